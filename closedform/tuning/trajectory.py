"""What a search gives: the start, every round, the best, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .candidate import Candidate

__all__ = ["RoundResult", "Trajectory"]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round. `enumerated` combinations, of which `legal` can exist; `evaluated` were measured now, `reused` were in
    the journal, `failed` of both gave no time. `latency_us` is the incumbent's after the round."""

    name: str
    sweep: int
    enumerated: int
    legal: int
    evaluated: int
    reused: int
    failed: int
    adopted: bool
    candidate: Candidate
    latency_us: float | None

    def to_json(self) -> dict[str, Any]:
        names = ("name", "sweep", "enumerated", "legal", "evaluated", "reused", "failed", "adopted", "latency_us")
        return {**{name: getattr(self, name) for name in names}, "candidate": dict(self.candidate)}


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A search by `method` ("rounds" or "grid"). `stopped`: done, budget, time, interrupted, journal where that can no
    longer be written, or evaluator where that can no longer measure.

    `start_us` is the lower of two independent measurements of the start, None where it could not be measured;
    `disagreement` is their ratio, None where a second one would repeat the first. `measurements` counts all that the
    search rests on, those of the journal too.
    """

    method: str
    identity: Mapping[str, object]
    evaluator: str
    start: Candidate
    start_us: float | None
    disagreement: float | None
    rounds: tuple[RoundResult, ...]
    best: Candidate
    best_us: float | None
    measurements: int
    evaluated: int
    seconds: float
    stopped: str

    @property
    def gain(self) -> float | None:
        """Time of the start over that of the best."""
        if self.start_us is None or self.best_us is None:
            return None
        return self.start_us / self.best_us

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "identity": dict(self.identity),
            "evaluator": self.evaluator,
            "start": dict(self.start),
            "start_us": self.start_us,
            "disagreement": self.disagreement,
            "rounds": [r.to_json() for r in self.rounds],
            "best": dict(self.best),
            "best_us": self.best_us,
            "gain": self.gain,
            "measurements": self.measurements,
            "evaluated": self.evaluated,
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped,
        }
