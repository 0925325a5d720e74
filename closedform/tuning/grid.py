"""The comparison: one cold grid over all knobs at once, thinned to the budget, without the kernel that is trusted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from .candidate import Candidate, Value, canonical
from .measuring import Meter, OutOfBudget
from .trajectory import RoundResult, Trajectory

__all__ = ["one_shot"]

#: A step of this share of a product's size visits it evenly, however far it gets.
GOLDEN = (math.sqrt(5) - 1) / 2
#: Combinations looked at for each measurement of the budget, at most: few of a wide product are legal.
LOOKED_AT = 4000


def _evenly(axes: dict[str, tuple[Value, ...]], most: int) -> Iterator[dict[str, Value]]:
    """Combinations of the product of all axes, spread evenly, each once."""
    size = math.prod(len(values) for values in axes.values())
    step = max(1, round(size * GOLDEN))
    while math.gcd(step, size) != 1:
        step += 1
    for number in range(min(size, most)):
        index, values = number * step % size, {}
        for name, choices in axes.items():
            index, place = divmod(index, len(choices))
            values[name] = choices[place]
        yield values


def one_shot(meter: Meter) -> Trajectory:
    """The fastest of the grid; each candidate is measured once, and none is known to be good beforehand."""
    begin = time.monotonic()
    space = meter.space
    axes: dict[str, tuple[Value, ...]] = {}
    for one in space.rounds():
        for name, choices in one.axes.items():
            axes[name] = tuple(dict.fromkeys((*axes.get(name, ()), *choices)))
    size = math.prod(len(values) for values in axes.values())
    limit = meter.budget.evaluations
    best: tuple[float, Candidate] | None = None
    seen: set[str] = set()
    stopped = "done"
    try:
        for values in _evenly(axes, size if limit is None else LOOKED_AT * limit):
            candidate = space.completed(values, {})
            if candidate is None or canonical(candidate) in seen:
                continue
            seen.add(canonical(candidate))
            us = meter.once(candidate)
            if us is not None and (best is None or us < best[0]):
                best = us, candidate
    except OutOfBudget as stop:
        stopped = stop.reason
    except KeyboardInterrupt:
        stopped = "interrupted"
    found: Candidate = {} if best is None else best[1]
    best_us = None if best is None else best[0]
    used = len(meter.used)
    result = RoundResult(
        name="grid",
        sweep=1,
        enumerated=size,
        legal=len(seen),
        evaluated=meter.evaluated,
        reused=used - meter.evaluated,
        failed=meter.failed,
        adopted=best is not None,
        candidate=found,
        latency_us=best_us,
    )
    return Trajectory(
        method="grid",
        identity=meter.identity,
        evaluator=meter.evaluator.name,
        start={},
        start_us=None,
        disagreement=None,
        rounds=(result,),
        best=found,
        best_us=best_us,
        measurements=used,
        evaluated=meter.evaluated,
        seconds=time.monotonic() - begin,
        stopped=stopped,
    )
