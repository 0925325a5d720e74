"""The explanation of whatever was decoded: a kernel of a product or of attention."""

from __future__ import annotations

from collections.abc import Callable

from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.attention import Attention

from .attention import AttentionExplanation, explained_attention
from .decoded import Decoded
from .explanation import Explanation, explained
from .readers import AnyDecoded

__all__ = ["explained_any"]


def explained_any(
    found: AnyDecoded,
    hw: HardwareDescriptor,
    shape: tuple[int, int, int, int],
    kind: str | None,
    attention: Callable[[], Attention],
    number: int = 1,
    count: int = 1,
) -> Explanation | AttentionExplanation:
    """A kernel of a product of (M, N, K, batch), row-major, or of the attention, unless its source names its own.

    Raises BadInput as `attention` does, which is asked only for a kernel of one whose source does not say it.
    """
    if isinstance(found, Decoded):
        return explained(found, hw, shape, kind, number, count)
    return explained_attention(found, hw, found.op or attention(), number, count)
