"""What simulating an operator takes and gives, whichever operator it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .hw.errors import BadInput

if TYPE_CHECKING:
    from .hw.sim import Result
    from .operators.accuracy import Accuracy

__all__ = ["UNTOUCHED", "Executed", "How", "Progress", "require_memory", "sampled", "worst_of"]

#: Bytes of operands that a simulation may take.
MEMORY_LIMIT_BYTES = 16 << 30
#: Every byte of an output before the launch; what has changed was worked on.
UNTOUCHED = 0xA5

Array = Any  # a numpy array; what its elements are is said where it matters
#: Called with the workgroups done and to do.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class How:
    """How to simulate: `blocks` workgroups instead of all, sanitizers, seed of the inputs, progress."""

    blocks: int | None = None
    sanitizers: bool = True
    seed: int = 0
    progress: Progress | None = None

    @property
    def run_options(self) -> dict[str, Any]:
        """What the simulator itself takes."""
        return {"sanitizers": self.sanitizers, "progress": self.progress}


@dataclass(frozen=True, slots=True)
class Executed:
    """Results of the launched kernels in order, the accuracy of what they finished, and the grid of the first.

    `accuracy` is None where a sample finished nothing that could be compared.
    """

    results: tuple[Result, ...]
    accuracy: Accuracy | None
    grid: tuple[int, int, int]


def require_memory(needed_bytes: int, way_out: str) -> None:
    """Raises BadInput with the way out where inputs and outputs exceed what a simulation may take."""
    if needed_bytes > MEMORY_LIMIT_BYTES:
        raise BadInput(
            f"the operands take {needed_bytes / 2**30:.1f} GiB of this machine's memory and {MEMORY_LIMIT_BYTES >> 30} "
            f"GiB is the most that a simulation takes: choose {way_out}"
        )


def sampled(total: int, blocks: int | None) -> Array:
    """Numbers from 0 to total - 1: all, or `blocks` of them spread over the range. Raises BadInput below one."""
    import numpy as np

    if blocks is not None and blocks < 1:
        raise BadInput(f"--blocks {blocks}: at least one workgroup has to run")
    if blocks is None or blocks >= total:
        return np.arange(total)
    return np.unique(np.linspace(0, total - 1, blocks).round().astype(np.int64))


def worst_of(parts: Sequence[Accuracy]) -> Accuracy:
    """The accuracy of the worst part; it is good only if every part is."""
    from .operators.accuracy import Accuracy

    top = max(parts, key=lambda a: (not a.ok, a.max_rel_error))
    return Accuracy(top.max_rel_error, top.bound, max(a.share for a in parts), all(a.ok for a in parts))
