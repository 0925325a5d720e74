"""Measuring within a budget, through the journal: nothing that is written there is measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from closedform.hw.errors import BadInput, ClosedformError, NoDevice
from closedform.interop.tool import is_time

from .candidate import Candidate
from .evaluator import Evaluator
from .journal import Journal, JournalError, Record, task_digest
from .space import Space

__all__ = ["Budget", "Busy", "Meter", "OutOfBudget"]

#: Two measurements of one candidate that differ by more than this are not of one thing: a third decides.
DISAGREEMENT = 1.5


class OutOfBudget(Exception):
    """The search cannot go on: `reason` is "budget" or "time" where it is spent, "journal" where nothing is kept,
    "evaluator" where nothing is measured any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Busy(Exception):
    """Another process measures this candidate now."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Most measurements that a search may rest on, and seconds that new ones may take; None for no limit."""

    evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.evaluations is not None and self.evaluations < 1:
            raise BadInput(f"a budget of {self.evaluations} measurements: at least 1, the start's")
        if self.seconds is not None and not self.seconds > 0:
            raise BadInput(f"a budget of {self.seconds} s: more than 0")


@dataclass(slots=True)
class Meter:
    """Measures candidates of a space. `used` counts every measurement once, `evaluated` those that were new.

    `seen` is called after each, with the record and whether it was new. `broken` is why the journal or the evaluator
    fails, if one does.
    """

    space: Space
    evaluator: Evaluator
    journal: Journal = field(default_factory=Journal)
    budget: Budget = field(default_factory=Budget)
    seen: Callable[[Record, bool], None] = lambda record, new: None
    used: set[tuple[str, str, int]] = field(default_factory=set)
    evaluated: int = 0
    failed: int = 0
    notes: tuple[str, ...] = ()
    begin: float = field(default_factory=time.monotonic)
    task: str = ""
    broken: ClosedformError | None = None

    def __post_init__(self) -> None:
        self.task = task_digest(self.identity)
        if self.budget.evaluations == 1 and not self.evaluator.repeatable:
            raise BadInput("a budget of 1 measurement: at least 2, for the start is measured twice")

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything that can change a winner: by it the journal knows the task."""
        evaluator = {"name": self.evaluator.name, **self.evaluator.identity()}
        return {"problem": dict(self.space.identity()), "evaluator": evaluator}

    def once(self, candidate: Candidate, repeat: int = 0, *, wait: bool = True) -> float | None:
        """Microseconds of the candidate, or None where it fails. Where another process measures it now its result is
        waited for, or without `wait` Busy is raised.

        Raises OutOfBudget before a measurement too many, and where the journal or the evaluator fails.
        """
        key = Record(self.task, candidate, repeat, None).key
        if key not in self.used and self.left == 0:
            raise OutOfBudget("budget")
        try:
            found, new = self._recorded(candidate, repeat, wait)
        except JournalError as error:
            self.broken = error
            raise OutOfBudget("journal") from error
        except (NoDevice, BadInput) as error:  # of the whole search, not of this candidate
            self.broken = error
            raise OutOfBudget("evaluator") from error
        self.evaluated += new
        if key not in self.used:
            self.used.add(key)
            self.failed += found.latency_us is None
            self.seen(found, new)
        return found.latency_us

    @property
    def left(self) -> int | None:
        """Measurements that the budget still allows; None without a limit."""
        limit = self.budget.evaluations
        return None if limit is None else max(0, limit - len(self.used))

    def affordable(self, candidates: Sequence[Candidate]) -> int:
        """How many of the first candidates the budget allows to measure once."""
        left = self.left
        if left is None:
            return len(candidates)
        for number, candidate in enumerate(candidates):
            left -= Record(self.task, candidate, 0, None).key not in self.used
            if left < 0:
                return number
        return len(candidates)

    def _recorded(self, candidate: Candidate, repeat: int, wait: bool) -> tuple[Record, bool]:
        """The journal's measurement, or a new one that is written there, and whether it is new."""
        found = self.journal.find(self.task, candidate, repeat)
        if found is not None:
            return found, False
        with self.journal.claimed(self.task, candidate, repeat, wait) as mine:
            if not mine:
                raise Busy
            self.journal.refresh()  # another process may have measured it just now
            found = self.journal.find(self.task, candidate, repeat)
            if found is not None:
                return found, False
            if self.budget.seconds is not None and time.monotonic() - self.begin > self.budget.seconds:
                raise OutOfBudget("time")
            return self.journal.add(self._measured(candidate, repeat), self.identity), True

    def confirmed(self, candidate: Candidate) -> tuple[float | None, float | None]:
        """Two independent measurements of the candidate; the same one twice where it would repeat itself.

        Where they are far apart a third is taken, and the two that are closest count.
        """
        first = self.once(candidate)
        if self.evaluator.repeatable:
            return first, first
        second = self.once(candidate, repeat=1)
        if first is None or second is None or max(first, second) <= DISAGREEMENT * min(first, second):
            return first, second
        third = self.once(candidate, repeat=2)
        if third is None:
            return first, second
        low, middle, high = sorted((first, second, third))
        return (low, middle) if middle / low <= high / middle else (middle, high)

    def _measured(self, candidate: Candidate, repeat: int) -> Record:
        """A new measurement; what is no positive number is a failure, and so is an error of the device or the tools."""
        try:
            us = self.evaluator.measure(candidate)
        except (NoDevice, BadInput):
            raise
        except (ClosedformError, TimeoutError, RuntimeError, OSError) as error:  # torch's are RuntimeErrors
            text = " ".join(str(error).split())
            return Record(self.task, candidate, repeat, None, f"{type(error).__name__}: {text}"[:400])
        if not is_time(us):
            return Record(self.task, candidate, repeat, None, f"{us!r} is no time")
        return Record(self.task, candidate, repeat, float(us))
