"""What measures a candidate: one small protocol, and the failures that are no bugs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from closedform.hw.errors import ClosedformError

from .candidate import Candidate

__all__ = ["EvaluationFailed", "Evaluator"]


class EvaluationFailed(ClosedformError):
    """A candidate could not be measured; the search goes on without it."""


class Evaluator(Protocol):
    """Measures candidates of one problem.

    `repeatable` says that a second measurement would give the same number, so that none is taken.
    """

    @property
    def name(self) -> str: ...

    @property
    def repeatable(self) -> bool: ...

    def identity(self) -> Mapping[str, object]:
        """What else can change a time: versions, sources, how it is measured."""
        ...

    def measure(self, candidate: Candidate) -> float:
        """Microseconds. Raises EvaluationFailed, TimeoutError or another ClosedformError where there are none."""
        ...
