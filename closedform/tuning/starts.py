"""Where a search begins: the closed form's kernel, the model's best, or a kernel of another tool."""

from __future__ import annotations

from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.interop.kernel import Kernel
from closedform.operators.gemm import Gemm

__all__ = ["overrides_of", "start_kernel"]

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
