"""What the model thinks of the closed form's own tiles: by how much it prefers the selected ones, and why.

The closed form stays what `derive` answers; nothing here changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .answer import Candidate, ClosedForm, Prediction

if TYPE_CHECKING:
    from closedform.operators.attention import Attention
    from closedform.operators.gemm import Gemm

__all__ = ["closed_form"]

#: Closer than this two predictions are the same.
EQUAL = 0.0005


def closed_form(
    op: Attention | Gemm, hw: HardwareDescriptor, best: Prediction, timed: Callable[[object], Prediction]
) -> ClosedForm:
    """The tiles of `derive`, timed and compared with the selected configuration; why there are none where so."""
    from closedform.visitors.feasibility import derive

    try:
        derivation = derive(op, hw)
    except BadInput as error:
        return ClosedForm(None, f"no closed form: {error}")
    if derivation.infeasible is not None:
        return ClosedForm(None, f"no closed form: {derivation.infeasible}")
    other = timed(derivation.tiles)
    return ClosedForm(Candidate(other.config, other.latency_us), _reason(best, other))


def _reason(best: Prediction, other: Prediction) -> str:
    factor = other.latency_us / best.latency_us
    if abs(factor - 1) < EQUAL:
        return "as fast as the closed form's tiles"
    if factor < 1:
        return f"the closed form's tiles are predicted {1 / factor - 1:.1%} faster: keep them"
    parts = {name: other.parts_us[name] - best.parts_us[name] for name in best.parts_us}
    most = max(parts, key=lambda name: parts[name])
    states = [f"bound by {p.bound}, {p.slots}" for p in (other, best)]
    return (
        f"{factor - 1:.1%} faster than the closed form's tiles, which lose {parts[most]:.2f} us in the "
        f"{most.replace('_', ' ')}: {states[0]}" + (f", here {states[1]}" if states[1] != states[0] else " as here")
    )
