"""Where a search begins: the closed form's kernel, the model's best, or a kernel of another tool."""

from __future__ import annotations

from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.interop.attention_kernel import AttentionKernel
from closedform.interop.kernel import Kernel
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm

__all__ = ["attention_overrides", "overrides_of", "start_kernel"]

#: Fields of a kernel that are knobs of ours under the same name.
_SHARED = ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n", "split_k", "stream_k", "group_m", "xcds")


def start_kernel(text: str, op: Gemm, hw: HardwareDescriptor) -> Kernel | None:
    """The kernel of `derive` (None: what follows from no override), of `select`, or of the name or file.

    Raises BadInput for a kernel of another type or layout than the product's, Undecodable for an unknown name.
    """
    if text == "derive":
        return None
    if text == "select":
        from closedform.interop.offers import ranked_offers

        best = next(ranked_offers(op, hw), None)
        if best is None:
            raise BadInput(f"the model ranks no kernel of ours for this product on {hw.name}")
        return best.kernel
    from closedform.decoding.decoded import Decoded
    from closedform.decoding.readers import decoded

    found = decoded(text, hw)[0]
    if not isinstance(found, Decoded):
        raise BadInput("the start is a kernel of attention, not of a product")
    for name, own, wanted in (
        ("type", found.kernel.dtype, op.dtype),
        ("layout", found.kernel.layout, op.layout),
    ):
        if own is not None and own != wanted:
            raise BadInput(f"the start's {name} is {own}, row-major, the product's is {wanted}")
    return found.kernel


def overrides_of(kernel: Kernel, hw: HardwareDescriptor) -> dict[str, Any]:
    """Knobs that make our kernel as alike as what is known of the other allows."""
    known: dict[str, Any] = {name: getattr(kernel, name) for name in _SHARED if getattr(kernel, name) is not None}
    if kernel.wave_k > 1:
        raise BadInput(f"{kernel.wave_k} groups of waves share a k step of the start: kernels of ours have none")
    if kernel.mfma is not None or kernel.mfma_m in (16, 32):
        known["atom"] = f"{kernel.mfma_m}x{kernel.mfma_m}"
    return known


def attention_overrides(text: str, op: Attention, hw: HardwareDescriptor) -> dict[str, Any]:
    """Knobs of attention that make our kernel like that of `derive` (none), of `select`, or of the file.

    Raises BadInput for a kernel of another type, one of a product, and queries that its waves do not share evenly.
    """
    if text == "derive":
        return {}
    kernel = _selected(op, hw) if text == "select" else _read_attention(text, op, hw)
    found: dict[str, Any] = {"tile_kv": kernel.tile_kv}
    if kernel.waves is not None:
        if kernel.block_q % kernel.waves:
            raise BadInput(f"the start's {kernel.waves} waves do not share its {kernel.block_q} queries evenly")
        found |= {"waves": kernel.waves, "tile_q": kernel.block_q // kernel.waves}
    if kernel.mfma_m in (16, 32):
        found["atom"] = f"{kernel.mfma_m}x{kernel.mfma_m}"
    return found


def _selected(op: Attention, hw: HardwareDescriptor) -> AttentionKernel:
    from closedform.interop.attention_offers import ranked_attention

    best = next(ranked_attention(op, hw), None)
    if best is None:
        raise BadInput(f"the model ranks no kernel of ours for this attention on {hw.name}")
    return best.kernel


def _read_attention(text: str, op: Attention, hw: HardwareDescriptor) -> AttentionKernel:
    from closedform.decoding.attention import DecodedAttention
    from closedform.decoding.readers import decoded

    found = decoded(text, hw)[0]
    if not isinstance(found, DecodedAttention):
        raise BadInput("the start is a kernel of a product, not of attention")
    if found.kernel.dtype not in (None, op.dtype):
        raise BadInput(f"the start's type is {found.kernel.dtype}, that of the attention {op.dtype}")
    return found.kernel
