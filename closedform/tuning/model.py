"""The latency model as evaluator: what it cannot tell apart is never adopted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .candidate import Candidate
from .evaluator import EvaluationFailed
from .space import Space

__all__ = ["ModelEvaluator"]


@dataclass(frozen=True, slots=True)
class ModelEvaluator:
    """Times by the space's own prediction."""

    space: Space
    name: str = "model"
    repeatable: bool = True

    def identity(self) -> Mapping[str, object]:
        return {"model": "closedform.predict"}

    def measure(self, candidate: Candidate) -> float:
        us = self.space.predicted_us(candidate)
        if us is None:
            raise EvaluationFailed("the model has no time for this kernel")
        return us
