"""A `triton.Config` of its AMD backend: names, options, LDS, and what the backend refuses.

Of products the names are those of the tutorials; of attention BLOCK_M queries and BLOCK_N keys; of convolutions those
of Inductor's template, whose blocks are pixels, output channels and channels of a tap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.visitors.gemm_rules import EXPORT_MARGIN_BYTES

from .attention_kernel import AttentionKernel
from .attention_offers import AttentionOffer
from .conv2d_offers import Conv2dKernel, Conv2dOffer
from .kernel import Kernel
from .rules import Rule
from .tool import Offer, lds_rule

__all__ = [
    "ATTENTION_RULES",
    "BACKEND_RULES",
    "CONV2D_RULES",
    "TILE_NAMES",
    "attention_config_of",
    "attention_kernel_of_config",
    "attention_lds_bytes",
    "config_of",
    "conv2d_config_of",
    "conv2d_kernel_of_config",
    "copies_to_lds",
    "head_dim",
    "is_attention",
    "kernel_of_config",
    "kpack",
    "lds_bytes",
    "option_refusals",
]

_SOURCE = "HIPOptions and the allocation of Triton's AMD backend"
WAVES_MOST = 16
#: Names of the tile, of the group and of the split that kernels use: tutorials, AITER and vLLM first, then Inductor.
TILE_NAMES = (("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
_GROUP_NAMES = ("GROUP_SIZE_M", "GROUP_M")
_SPLIT_NAMES = ("SPLIT_K", "NUM_KSPLIT")


def kpack(hw: HardwareDescriptor) -> int:
    """LDS reads of k that one instruction's operand joins: 1 where the target's instructions are deep already."""
    return 1 if hw.gfx == "gfx950" else 2


def lds_bytes(tile: tuple[int, int, int], elem_bytes: float, stages: int) -> int:
    """LDS that the backend allocates for operands: the larger of A and B for one stage, else stages - 1 of both.

    >>> lds_bytes((128, 256, 64), 2, 2), lds_bytes((256, 64, 64), 2, 1)
    (49152, 32768)
    """
    m, n, k = tile
    a, b = m * k * elem_bytes, n * k * elem_bytes
    return int(max(a, b) if stages == 1 else (stages - 1) * (a + b))


def copies_to_lds(hw: HardwareDescriptor) -> bool:
    """Whether the backend copies tiles to LDS without registers, all of them that are under way."""
    return max(hw.direct_to_lds_bytes, default=0) >= 16


def attention_lds_bytes(kernel: AttentionKernel, hw: HardwareDescriptor, d: int, elem_bytes: int) -> int:
    """LDS that the backend allocates: Q on its way to registers or, after that, the tiles of K and V under way.

    As the backend compiles a flash attention for CDNA, at most: one tile of either for one stage, else stages - 1 of
    both, or all stages where they are copied without registers; beside them the exponentials, unless each wave has
    whole rows of them in 16 bits, which stay in its registers.
    """
    q, k = (rows * head_dim(d) * elem_bytes for rows in (kernel.block_q, kernel.tile_kv))
    sets = (kernel.stages or 2) - (not copies_to_lds(hw))
    stays = elem_bytes < 4 and kernel.block_q >= (kernel.waves or 1) * (kernel.mfma_m or 16)
    exponentials = 0 if stays else kernel.block_q * kernel.tile_kv * elem_bytes
    return max(q, (2 * k * sets or k) + exponentials + EXPORT_MARGIN_BYTES)


def head_dim(d: int) -> int:
    """The head dim as blocks have it: a power of two."""
    return max(16, 1 << (d - 1).bit_length())


def _power(*values: int) -> bool:
    return all(value > 0 and value & (value - 1) == 0 for value in values)


def option_refusals(config: Mapping[str, Any], hw: HardwareDescriptor) -> tuple[str, ...]:
    """Options of a Config, or of another compiler's with the same ones, that the backend refuses on that GPU."""
    words, most = {**config, **config.get("kwargs", {})}, kpack(hw)
    takes = "1" if most == 1 else "1 or 2"
    given = ((name, words[name]) for name in ("kpack", "k_pack") if words.get(name) is not None)
    return tuple(
        f"{name}: {value} where {hw.gfx} takes {takes}" for name, value in given if value not in range(1, most + 1)
    )


def _backend_rules(
    extents: Callable[[Any], tuple[int, ...]], sides: Callable[[Any], tuple[int, ...]]
) -> tuple[Rule[Any], ...]:
    """What the backend refuses of any kernel: `extents` are those of its blocks, `sides` those that an instruction
    covers with its rows or columns.
    """
    return (
        Rule(
            "blocks",
            "extents of blocks are powers of two of at least 16",
            _SOURCE,
            lambda o: not _power(*extents(o)) or min(extents(o)) < 16,
            alone=True,
        ),
        Rule(
            "num_warps",
            f"a power of two of at most {WAVES_MOST}",
            _SOURCE,
            lambda o: o.kernel.waves is not None and (not _power(o.kernel.waves) or o.kernel.waves > WAVES_MOST),
            alone=True,
        ),
        Rule(
            "matrix_instr_nonkdim",
            "4, 16 or 32, dividing the block",
            _SOURCE,
            lambda o: (
                o.kernel.mfma_m is not None
                and (o.kernel.mfma_m not in (4, 16, 32) or any(side % o.kernel.mfma_m for side in sides(o)))
            ),
            alone=True,
        ),
    )


def _extents(offer: Offer | Conv2dOffer) -> tuple[int, int, int]:
    return offer.kernel.tile_m, offer.kernel.tile_n, offer.kernel.tile_k


def _sides(offer: Offer | Conv2dOffer) -> tuple[int, int]:
    return offer.kernel.tile_m, offer.kernel.tile_n


def _lds(offer: Offer | Conv2dOffer) -> int:
    return lds_bytes(_extents(offer), offer.elem_bytes, offer.kernel.stages or 2) + EXPORT_MARGIN_BYTES


def _blocks(offer: AttentionOffer) -> tuple[int, int]:
    return offer.kernel.block_q, offer.kernel.tile_kv


_LDS_TEXT = f"(num_stages - 1) x ({{}}) and {EXPORT_MARGIN_BYTES} B of its own fit the LDS"
BACKEND_RULES: tuple[Rule[Offer], ...] = (
    lds_rule(_lds, _LDS_TEXT.format("A + B"), _SOURCE),
    *_backend_rules(_extents, _sides),
    Rule("Stream-K", "persistent workgroups are no option of a Config", _SOURCE, lambda o: bool(o.kernel.stream_k)),
)
ATTENTION_RULES: tuple[Rule[AttentionOffer], ...] = (
    lds_rule(
        lambda o: attention_lds_bytes(o.kernel, o.hw, o.op.d, o.elem_bytes),
        "Q, and the tiles of K and V under way with what else passes through it, fit the LDS",
        _SOURCE,
    ),
    *_backend_rules(_blocks, _blocks),
)
CONV2D_RULES: tuple[Rule[Conv2dOffer], ...] = (
    lds_rule(_lds, _LDS_TEXT.format("pixels + filters"), _SOURCE),
    *_backend_rules(_extents, _sides),
)


def config_of(offer: Offer) -> dict[str, Any]:
    """A Config as the cache stores it; SPLIT_K only where the sum is split, as few kernels take it."""
    k = offer.kernel
    tile = dict(zip(TILE_NAMES[0], _extents(offer), strict=True))
    split = {"SPLIT_K": k.split_k} if (k.split_k or 1) > 1 else {}
    return _config(offer, {**tile, "GROUP_SIZE_M": k.group_m or 1}, split)


def conv2d_config_of(offer: Conv2dOffer) -> dict[str, Any]:
    """A Config of a convolution: BLOCK_M pixels, BLOCK_N output channels, BLOCK_K channels of a tap."""
    return _config(offer, dict(zip(TILE_NAMES[1], _extents(offer), strict=True)))


def attention_config_of(offer: AttentionOffer) -> dict[str, Any]:
    """A Config of attention: BLOCK_M queries, BLOCK_N keys."""
    return _config(offer, dict(zip(TILE_NAMES[1], _blocks(offer), strict=False)))


def _config(offer: Any, first: dict[str, Any], last: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A Config with these names around the backend's options."""
    k = offer.kernel
    options = {
        "matrix_instr_nonkdim": k.mfma_m,
        "waves_per_eu": k.waves_per_simd or 0,
        "kpack": kpack(offer.hw),
    }
    words = {**first, **options, **(last or {})}
    return {"kwargs": words, "num_warps": k.waves, "num_ctas": 1, "num_stages": k.stages or 2}


def kernel_of_config(config: dict[str, Any]) -> Kernel:
    """The kernel of a Config; BadInput where its names are not of a GEMM."""
    words = {**config, **config.get("kwargs", {})}
    names = next((names for names in TILE_NAMES if all(name in words for name in names)), None)
    if names is None:
        raise BadInput(f"no block of a GEMM among {', '.join(sorted(words)) or 'no names'}")
    m, n, k = (words[name] for name in names)
    return Kernel(
        tile_m=m,
        tile_n=n,
        tile_k=k,
        mfma_m=words.get("matrix_instr_nonkdim") or None,
        waves=words.get("num_warps"),
        stages=words.get("num_stages"),
        split_k=next((words[name] for name in _SPLIT_NAMES if name in words), 1),
        group_m=next((words[name] for name in _GROUP_NAMES if name in words), None),
        waves_per_simd=words.get("waves_per_eu") or None,
    )


def is_attention(config: Mapping[str, Any]) -> bool:
    """Whether the names of a Config are those of attention: blocks of queries and keys without a depth."""
    words = {**config, **config.get("kwargs", {})}
    return "BLOCK_M" in words and "BLOCK_N" in words and "BLOCK_K" not in words


def attention_kernel_of_config(config: Mapping[str, Any]) -> AttentionKernel:
    """The kernel of a Config; BadInput where its names are not of attention."""
    words = {**config, **config.get("kwargs", {})}
    if not is_attention(config):
        raise BadInput(f"no block of attention among {', '.join(sorted(words)) or 'no names'}")
    return AttentionKernel(
        block_q=words["BLOCK_M"],
        tile_kv=words["BLOCK_N"],
        mfma_m=words.get("matrix_instr_nonkdim") or None,
        waves=words.get("num_warps"),
        stages=words.get("num_stages"),
        waves_per_simd=words.get("waves_per_eu") or None,
    )


def conv2d_kernel_of_config(config: dict[str, Any]) -> Conv2dKernel:
    """The kernel of a Config, of a convolution's product."""
    return Conv2dKernel(**{**kernel_of_config(config).to_json(), "split_k": None})
