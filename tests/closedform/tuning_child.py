"""Run as a process of its own: a search on a toy space whose measurements take a while and are logged.

python tuning_child.py JOURNAL LOG SECONDS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from closedform.tuning.candidate import Candidate, Round, canonical
from closedform.tuning.descent import descend
from closedform.tuning.journal import Journal
from closedform.tuning.measuring import Budget, Meter
from closedform.tuning.trajectory import Trajectory

VALUES = tuple(range(8))


class Bowl:
    """Three knobs, and a time that is least at 5, 2 and 6; sums above 16 are illegal."""

    name = "bowl"
    repeatable = False

    def __init__(self, log: Path | None = None, seconds: float = 0.0) -> None:
        self.log, self.seconds = log, seconds
        self.calls: list[str] = []

    def identity(self) -> Mapping[str, object]:
        return {"space": "bowl"}

    def start(self) -> Candidate:
        return {"a": 0, "b": 0, "c": 0}

    def rounds(self) -> tuple[Round, ...]:
        return Round("first", "", {"a": VALUES, "b": VALUES}, reseed=True), Round("second", "", {"c": VALUES})

    def completed(self, values: Candidate, held: Candidate) -> Candidate | None:
        found = {**self.start(), **held, **values}
        return found if sum(map(int, found.values())) <= 16 else None

    def predicted_us(self, candidate: Candidate) -> float | None:
        return None

    def measure(self, candidate: Candidate) -> float:
        time.sleep(self.seconds)
        self.calls.append(canonical(candidate))
        if self.log is not None:
            with self.log.open("a") as stream:
                stream.write(canonical(candidate) + "\n")
        a, b, c = (int(candidate[name]) for name in "abc")
        return 10.0 + (a - 5) ** 2 + (b - 2) ** 2 + (c - 6) ** 2


def times_of(found: Trajectory) -> list[float]:
    """The start's time and the incumbent's after each round."""
    return [us for us in (found.start_us, *(r.latency_us for r in found.rounds)) if us is not None]


def searched(bowl: Bowl, budget: Budget | None = None, journal: Journal | None = None) -> Trajectory:
    return descend(Meter(bowl, bowl, Journal() if journal is None else journal, budget or Budget()))


if __name__ == "__main__":
    bowl = Bowl(Path(sys.argv[2]), float(sys.argv[3]))
    found = descend(Meter(bowl, bowl, Journal(Path(sys.argv[1]))))
    print(canonical(found.best), found.best_us)
