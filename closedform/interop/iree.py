"""IREE: compilation info of a matmul, lowering configuration and translation, as MLIR attributes."""

from __future__ import annotations

import re

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput

from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool, lds_rule

__all__ = ["TOOL", "mma_name"]

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
    waves = k.waves_per_simd
    attributes = "" if waves is None else f',\n    llvm_func_attrs = {{"amdgpu-waves-per-eu" = "{waves}"}}'
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
    waves = re.search(r'"amdgpu-waves-per-eu" = "(\d+)"', text)
    return (
        Kernel(
            tile_m=int(workgroup[1]),
            tile_n=int(workgroup[2]),
            tile_k=int(reduction[3]) * unit,
            dtype=names.get(mma[4]),
            mfma=(int(mma[1]), int(mma[2]), depth, 1),
            wave_m=int(basis[1]),
            wave_n=int(basis[2]),
            waves_per_simd=None if waves is None else int(waves[1]),
        ),
    )


_CARRIES = ("dtype", "mfma", "wave_m", "wave_n", "waves_per_simd")
TOOL = Tool("iree", "IREE", ".mlir", _CARRIES, _RULES, _write, _read, many=False)
