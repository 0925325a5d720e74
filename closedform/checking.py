"""The tree of an operator executed on the CPU and compared with float64."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .visitors.derivation import Derivation

__all__ = ["CheckResult", "check_derivation"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Largest error of a row relative to its largest value, and what the roundings of the dtype allow."""

    op: str
    hw: str
    dtype: str
    level: str
    max_rel_error: float
    bound: float
    ok: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        verdict = "agrees with float64" if self.ok else "DISAGREES with float64"
        return (
            f"{self.op} {self.dtype} for {self.hw} at level {self.level}: {verdict}\n"
            f"max relative error {self.max_rel_error:.3e}, bound from rounding {self.bound:.3e}"
        )


def check_derivation(derivation: Derivation, level: str, *, seed: int = 0) -> CheckResult:
    """Execute the derived tree at `level` ("device", "block", "wave", "atom") on normal random inputs.

    Raises BadInput for an unknown level.
    """
    import numpy as np

    from .operators.accuracy import compare, compare_lse
    from .operators.attention import Attention
    from .operators.reference import lse_reference, reference
    from .simulation_case import worst_of
    from .visitors.compute import ComputeVisitor, random_inputs

    op = derivation.op
    inputs = random_inputs(op, np.random.default_rng(seed))
    visitor = ComputeVisitor(level)
    out = visitor.run(op.tree(derivation.tiles), **inputs)
    parts = [compare(op, out, reference(op, **inputs))]
    if isinstance(op, Attention) and op.lse:
        parts.append(compare_lse(op, visitor.lse, lse_reference(op, **inputs)))
    accuracy = worst_of(parts)
    return CheckResult(
        op=op.name,
        hw=derivation.hw.name,
        dtype=op.dtype,
        level=level,
        max_rel_error=accuracy.max_rel_error,
        bound=accuracy.bound,
        ok=accuracy.ok,
    )
