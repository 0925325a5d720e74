"""IREE: compilation info of a matmul or a convolution, lowering configuration and translation, as MLIR attributes."""

from __future__ import annotations

import re
from math import gcd, prod

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput

from .conv2d_offers import Conv2dKernel, Conv2dOffer, Conv2dTool
from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool, lds_rule

__all__ = ["CONV2D", "TOOL", "mma_name"]

_SOURCE = "sharktuner: candidate_gen.py, dispatch_constraints.py"
TILE_MOST = 512
SUBGROUPS_MOST = 10
_TYPES = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "i8": "I8",
    "fp8_e4m3fnuz": "F8E4M3FNUZ",
    "fp8_e4m3fn": "F8E4M3FN",
    "bf8_e5m2fnuz": "F8E5M2FNUZ",
    "bf8_e5m2": "F8E5M2",
}


def mma_name(kind: str, mfma: tuple[int, int, int, int]) -> str:
    """Name of a matrix instruction in IREE.

    >>> mma_name("bf16", (16, 16, 16, 1))
    'MFMA_F32_16x16x16_BF16'
    """
    total = {"f64": "F64", "i8": "I32"}.get(kind, "F32")
    return f"MFMA_{total}_{mfma[0]}x{mfma[1]}x{mfma[2]}_{_TYPES[kind]}"


def _whole(offer: Offer) -> bool:
    op, k = offer.op, offer.kernel
    return op.M % k.tile_m + op.N % k.tile_n + op.K % k.tile_k == 0


_RULES: tuple[Rule[Offer], ...] = (
    lds_rule(
        lambda o: (o.kernel.tile_m + o.kernel.tile_n) * o.kernel.tile_k * o.elem_bytes,
        "A and B of a tile fit the LDS",
        _SOURCE,
    ),
    Rule("type", f"one of {', '.join(_TYPES)}", _SOURCE, lambda o: dtype(o.op.dtype).name not in _TYPES),
    Rule("tile", f"at most {TILE_MOST}", _SOURCE, lambda o: max(o.kernel.tile_m, o.kernel.tile_n) > TILE_MOST),
    Rule("shape", "tiles divide M, N and K", _SOURCE, lambda o: not _whole(o)),
    Rule(
        "subgroups",
        f"a grid of at most {SUBGROUPS_MOST}",
        _SOURCE,
        lambda o: o.kernel.wave_m is None or o.kernel.wave_n is None or (o.kernel.waves or 0) > SUBGROUPS_MOST,
    ),
    Rule("instruction", "of one block", _SOURCE, lambda o: o.kernel.mfma is None or o.kernel.mfma[3] != 1),
    Rule("split", "is a pass of its own", _SOURCE, lambda o: (o.kernel.split_k or 1) > 1 or bool(o.kernel.stream_k)),
)

_INFO = """#iree_codegen.compilation_info<
  lowering_config = #iree_gpu.lowering_config<{{
    mma_kind = #iree_gpu.mma_layout<{mma}>,
    promote_operands = [0, 1],
    workgroup = [{m}, {n}, 0],
    reduction = [0, 0, {k}],
    subgroup_basis = [[{wave_m}, {wave_n}, 1], [0, 1, 2]]
  }}>,
  translation_info = <pipeline = LLVMGPUTileAndFuse workgroup_size = [{threads}, 1, 1] subgroup_size = {lanes}, {{
    gpu_pipeline_options = #iree_gpu.pipeline_options<prefetch_shared_memory = true>{attributes}
  }}>>
"""


def _write(offers: tuple[Offer, ...]) -> str:
    offer = offers[0]
    k, lanes = offer.kernel, offer.hw.wavefront_size
    assert k.mfma is not None
    attributes = _attributes(k.waves_per_simd)
    return _INFO.format(
        mma=mma_name(dtype(offer.op.dtype).name, k.mfma),
        m=k.tile_m,
        n=k.tile_n,
        k=k.tile_k // k.mfma[2],  # TileAndFuse counts the reduction in instructions
        wave_m=k.wave_m,
        wave_n=k.wave_n,
        threads=(k.waves or 1) * lanes,
        lanes=lanes,
        attributes=attributes,
    )


def _attributes(waves_per_simd: int | None) -> str:
    """Attributes of the function that follow the pipeline's options."""
    if waves_per_simd is None:
        return ""
    return f',\n    llvm_func_attrs = {{"amdgpu-waves-per-eu" = "{waves_per_simd}"}}'


_MMA = re.compile(r"mma_layout<MFMA_\w+?_(\d+)x(\d+)x(\d+)_(\w+)>")
_LIST = r"{name} = \[(\d+), (\d+), (\d+)\]"


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    mma = _MMA.search(text)
    workgroup = re.search(_LIST.format(name="workgroup"), text)
    reduction = re.search(_LIST.format(name="reduction"), text)
    basis = re.search(r"subgroup_basis = \[\[(\d+), (\d+)", text)
    if mma is None or workgroup is None or reduction is None or basis is None:
        raise BadInput("not the compilation info of a matmul: mma_kind, workgroup, reduction, subgroup_basis")
    names = {word: name for name, word in _TYPES.items()}
    depth = int(mma[3])
    # VectorDistribute counts the reduction in elements.
    unit = depth if "TileAndFuse" in text else 1
    return (
        Kernel(
            tile_m=int(workgroup[1]),
            tile_n=int(workgroup[2]),
            tile_k=int(reduction[3]) * unit,
            dtype=names.get(mma[4]),
            mfma=(int(mma[1]), int(mma[2]), depth, 1),
            wave_m=int(basis[1]),
            wave_n=int(basis[2]),
            waves_per_simd=_waves_per_simd(text),
        ),
    )


def _waves_per_simd(text: str) -> int | None:
    waves = re.search(r'"amdgpu-waves-per-eu" = "(\d+)"', text)
    return None if waves is None else int(waves[1])


_CARRIES = ("dtype", "mfma", "wave_m", "wave_n", "waves_per_simd")
TOOL = Tool("iree", "IREE", ".mlir", _CARRIES, _RULES, _write, _read, many=False)


_CONV_SOURCE = "tuning specifications of convolutions as implicit products, by sharktuner"


def _subgroup(kernel: Conv2dKernel) -> tuple[int, int, int, int] | None:
    """Instructions of a wave along images, rows, columns and channels; None where the waves do not divide the tile.

    Instructions lie along columns and channels; waves of pixels take columns first, then rows, then images.
    """
    if kernel.pixels is None or kernel.mfma is None or kernel.wave_m is None or kernel.wave_n is None:
        return None
    images, rows, columns = kernel.pixels
    if columns % kernel.mfma[0] or kernel.tile_n % (kernel.mfma[1] * kernel.wave_n):
        return None
    counts, left = [columns // kernel.mfma[0], rows, images], kernel.wave_m
    for place, count in enumerate(counts):
        taken = gcd(count, left)
        counts[place], left = count // taken, left // taken
    if left > 1:
        return None
    return counts[2], counts[1], counts[0], kernel.tile_n // (kernel.mfma[1] * kernel.wave_n)


_CONV_RULES: tuple[Rule[Conv2dOffer], ...] = (
    lds_rule(
        lambda o: (o.kernel.tile_m + o.kernel.tile_n) * o.kernel.tile_k * o.elem_bytes,
        "pixels and filters of a tile fit the LDS",
        _SOURCE,
    ),
    Rule("type", f"one of {', '.join(_TYPES)}", _SOURCE, lambda o: dtype(o.op.dtype).name not in _TYPES),
    Rule("layout", "channels last: NHWC", _CONV_SOURCE, lambda o: o.op.layout != "NHWC"),
    Rule("groups", "one group of channels", _CONV_SOURCE, lambda o: o.op.groups > 1),
    Rule("tile", f"at most {TILE_MOST}", _SOURCE, lambda o: max(o.kernel.tile_m, o.kernel.tile_n) > TILE_MOST),
    Rule("subgroups", f"at most {SUBGROUPS_MOST}", _SOURCE, lambda o: (o.kernel.waves or 0) > SUBGROUPS_MOST),
    Rule("instruction", "of one block", _SOURCE, lambda o: o.kernel.mfma is None or o.kernel.mfma[3] != 1),
    Rule(
        "wave tiles",
        "columns and channels of a wave's part are whole instructions",
        _CONV_SOURCE,
        lambda o: _subgroup(o.kernel) is None,
    ),
)

_CONV_INFO = """#iree_codegen.compilation_info<
  lowering_config = #iree_gpu.lowering_config<{{
    mma_kind = #iree_gpu.mma_layout<{mma}>,
    promote_operands = [0, 1],
    {padding}workgroup = [{workgroup}, 0],
    reduction = [0, 0, 0, 0, {k}],
    subgroup = [{subgroup}, 0]
  }}>,
  translation_info = <pipeline = LLVMGPUTileAndFuse workgroup_size = [{threads}, 1, 1] subgroup_size = {lanes}, {{
    gpu_pipeline_options = #iree_gpu.pipeline_options<prefetch_shared_memory = true, use_igemm_convolution = true>{more}
  }}>>
"""


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _write_conv2d(offers: tuple[Conv2dOffer, ...]) -> str:
    """The implicit product of images, rows, columns and channels; tiles that do not divide the extents are padded."""
    offer = offers[0]
    op, k, lanes = offer.op, offer.kernel, offer.hw.wavefront_size
    subgroup = _subgroup(k)
    assert k.mfma is not None
    assert k.pixels is not None
    assert subgroup is not None
    workgroup = (*k.pixels, k.tile_n)
    extents = (op.N, op.OH, op.OW, op.OC, op.channels * op.KH * op.KW)
    tiles = (*workgroup, k.tile_k)
    divides = not any(extent % tile for extent, tile in zip(extents, tiles, strict=True))
    return _CONV_INFO.format(
        mma=mma_name(dtype(op.dtype).name, k.mfma),
        padding="" if divides else f"padding = [{_listed(tiles)}],\n    ",
        workgroup=_listed(workgroup),
        k=k.tile_k // k.mfma[2],
        subgroup=_listed(subgroup),
        threads=(k.waves or 1) * lanes,
        lanes=lanes,
        more=_attributes(k.waves_per_simd),
    )


def _numbers(text: str, name: str) -> tuple[int, ...]:
    """The list of numbers of that name; BadInput where there is none of five."""
    found = re.search(rf"\b{name} = \[([\d, ]+)\]", text)
    numbers = () if found is None else tuple(int(part) for part in found[1].split(","))
    if len(numbers) != 5:
        raise BadInput(f"not the compilation info of a convolution: no {name} of five numbers")
    return numbers


def _read_conv2d(text: str, hw: HardwareDescriptor) -> tuple[Conv2dKernel, ...]:
    mma = _MMA.search(text)
    if mma is None:
        raise BadInput("not the compilation info of a convolution: no mma_kind")
    workgroup, reduction, subgroup = (_numbers(text, name) for name in ("workgroup", "reduction", "subgroup"))
    rows, columns, depth = int(mma[1]), int(mma[2]), int(mma[3])
    parts = (subgroup[0], subgroup[1], subgroup[2] * rows, subgroup[3] * columns)
    if not all(parts) or any(tile % part for tile, part in zip(workgroup[:4], parts, strict=True)):
        raise BadInput(f"a workgroup of {workgroup} is no whole waves of {parts}")
    waves = tuple(tile // part for tile, part in zip(workgroup[:4], parts, strict=True))
    names = {word: name for name, word in _TYPES.items()}
    return (
        Conv2dKernel(
            tile_m=prod(workgroup[:3]),
            tile_n=workgroup[3],
            tile_k=reduction[4] * depth,
            dtype=names.get(mma[4]),
            mfma=(rows, columns, depth, 1),
            wave_m=prod(waves[:3]),
            wave_n=waves[3],
            waves_per_simd=_waves_per_simd(text),
            pixels=(workgroup[0], workgroup[1], workgroup[2]),
        ),
    )


CONV2D = Conv2dTool(
    "iree",
    "IREE",
    ".mlir",
    (*_CARRIES, "pixels"),
    _CONV_RULES,
    _write_conv2d,
    _read_conv2d,
    many=False,
)
