"""What is searched: a start, rounds, and which candidates can exist at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Protocol

from .candidate import Candidate, Round, Value, canonical

__all__ = ["Space", "opened", "size_of"]


class Space(Protocol):
    """A search space. Every candidate that it gives has a value for every knob."""

    def identity(self) -> Mapping[str, object]:
        """Everything about the problem that can change a winner: operator, shape, types, strides, GPU."""
        ...

    def start(self) -> Candidate:
        """The candidate that is trusted."""
        ...

    def rounds(self) -> tuple[Round, ...]:
        """In the order of their worth."""
        ...

    def completed(self, values: Candidate, held: Candidate) -> Candidate | None:
        """The candidate with those values, others as in `held` and by formula where it has none; None if illegal."""
        ...

    def predicted_us(self, candidate: Candidate) -> float | None:
        """The model's time, for the order of measurement only."""
        ...


def size_of(opened_round: Round, incumbent: Candidate) -> int:
    """Combinations that a round enumerates, the incumbent's own among them."""
    size = 1
    for name, values in opened_round.axes.items():
        size *= len({canonical({"": value}) for value in (incumbent[name], *values)})
    return size


def opened(opened_round: Round, incumbent: Candidate) -> Iterator[dict[str, Value]]:
    """The round's values, combination by combination; the incumbent's value is in every list, and first."""
    lists = []
    for name, values in opened_round.axes.items():
        own = incumbent[name]
        # True equals 1 in Python, not in a journal.
        others = [v for v in values if canonical({"": v}) != canonical({"": own})]
        lists.append([own, *others])
    for combination in itertools.product(*lists):
        yield dict(zip(opened_round.axes, combination, strict=True)) | dict(opened_round.fixed)
