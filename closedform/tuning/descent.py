"""The descent: rounds of knobs, each searched around the incumbent, which gives way only to what is strictly faster.

Monotone by construction: the incumbent is one of the candidates of every round, its time never rises, and a candidate
takes its place only if the slower of two independent measurements of it is below the incumbent's time, which is itself
the lower of two. Neither ranges, noise nor failures can end below the start.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .candidate import Candidate, Round, canonical
from .measuring import Busy, Meter, OutOfBudget
from .space import Space, opened, size_of
from .trajectory import RoundResult, Trajectory

__all__ = ["MATURE", "Plan", "descend"]

#: From this share of a shape's own landscape on, the kernel that was brought in has won against the tiles already.
MATURE = 0.5
#: Faster candidates of a round that are confirmed before the round is given up.
CONFIRMATIONS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """sweeps: how often the rounds are gone through, as long as one adopts. pool_maturity: share of the shape's tiles
    that the start has already won against; from `MATURE` on the tile round, the first, is left out."""

    sweeps: int = 2
    pool_maturity: float = 0.0


@dataclass(slots=True)
class _Descent:
    meter: Meter
    told: Callable[[RoundResult], None]
    incumbent: Candidate
    incumbent_us: float | None = None
    results: list[RoundResult] = field(default_factory=list)

    def consider(self, candidate: Candidate, first_us: float) -> bool:
        """Adopt a candidate that was measured faster, if a second measurement says so too."""
        if self.incumbent_us is not None and first_us >= self.incumbent_us:
            return False
        pair = self.meter.confirmed(candidate)
        times = [us for us in pair if us is not None]
        if len(times) < 2:
            return False
        slower = max(times)
        if self.incumbent_us is not None and slower >= self.incumbent_us:
            return False
        self.incumbent, self.incumbent_us = candidate, slower
        return True

    def measure(self, chosen: list[Candidate], times: list[tuple[float, int]]) -> None:
        """Measure the candidates once, and collect the times that there are with their places.

        What another process measures now comes last, so that processes that share a journal share the work; the budget
        is spent on the first ones all the same.
        """
        first = self.meter.affordable(chosen)
        later = []
        for number in range(first):
            try:
                us = self.meter.once(chosen[number], wait=False)
            except Busy:
                later.append(number)
                continue
            if us is not None:
                times.append((us, number))
        for number in (*later, *range(first, len(chosen))):
            us = self.meter.once(chosen[number])
            if us is not None:
                times.append((us, number))

    def run(self, one: Round, sweep: int) -> bool:
        """One round; whether it adopted."""
        before_new, before_used, before_failed = self.meter.evaluated, len(self.meter.used), self.meter.failed
        enumerated = size_of(one, self.incumbent)
        candidates = _ordered(self.meter.space, one, self.incumbent, reseed=one.reseed and sweep == 1)
        chosen = candidates[: one.most] if one.most else candidates
        adopted, spent = False, None
        times: list[tuple[float, int]] = []
        try:
            self.measure(chosen, times)
        except OutOfBudget as stop:
            spent = stop
        try:
            for us, number in sorted(times)[:CONFIRMATIONS]:
                if self.consider(chosen[number], us):
                    adopted = True
                    break
        except OutOfBudget as stop:
            spent = stop
        new = self.meter.evaluated - before_new
        result = RoundResult(
            name=one.name,
            sweep=sweep,
            enumerated=enumerated,
            legal=len(candidates),
            evaluated=new,
            reused=len(self.meter.used) - before_used - new,
            failed=self.meter.failed - before_failed,
            adopted=adopted,
            candidate=self.incumbent,
            latency_us=self.incumbent_us,
        )
        self.results.append(result)
        self.told(result)
        if spent is not None:
            raise spent
        return adopted


def _ordered(space: Space, one: Round, incumbent: Candidate, *, reseed: bool) -> list[Candidate]:
    """Legal candidates of the round without the incumbent, the best by the model first, each once."""
    seen = {canonical(incumbent)}
    found: list[tuple[float, int, Candidate]] = []
    for values in opened(one, incumbent):
        candidate = space.completed(values, {} if reseed else incumbent)
        if candidate is None or canonical(candidate) in seen:
            continue
        seen.add(canonical(candidate))
        predicted = space.predicted_us(candidate)
        found.append((math.inf if predicted is None else predicted, len(found), candidate))
    return [candidate for _, _, candidate in sorted(found, key=lambda entry: entry[:2])]


def descend(
    meter: Meter,
    plan: Plan | None = None,
    told: Callable[[RoundResult], None] = lambda result: None,
) -> Trajectory:
    """Search from the space's start. `told` is called after each round.

    An interrupt ends the search with what it has; every measurement is in the journal by then.
    """
    plan = plan or Plan()
    begin = time.monotonic()
    space = meter.space
    start = space.start()
    state = _Descent(meter, told, start)
    start_us = disagreement = None
    stopped = "done"
    try:
        times = [us for us in meter.confirmed(start) if us is not None]
        if times:
            start_us = min(times)
            disagreement = None if meter.evaluator.repeatable else max(times) / start_us
        state.incumbent_us = start_us
        rounds = [r for r in space.rounds() if not (r.reseed and plan.pool_maturity >= MATURE)]
        for sweep in range(1, plan.sweeps + 1):
            adopted = [state.run(one, sweep) for one in rounds]
            if not any(adopted):
                break
    except OutOfBudget as stop:
        stopped = stop.reason
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Trajectory(
        method="rounds",
        identity=meter.identity,
        evaluator=meter.evaluator.name,
        start=start,
        start_us=start_us,
        disagreement=disagreement,
        rounds=tuple(state.results),
        best=state.incumbent,
        best_us=state.incumbent_us,
        measurements=len(meter.used),
        evaluated=meter.evaluated,
        seconds=time.monotonic() - begin,
        stopped=stopped,
    )
