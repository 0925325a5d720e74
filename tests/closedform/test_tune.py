"""The descent under adversarial evaluators: never slower than its start, whatever they answer."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform.hw import catalogue
from closedform.operators.gemm import Gemm
from closedform.tuning.candidate import Candidate, canonical
from closedform.tuning.descent import Plan, descend
from closedform.tuning.evaluator import EvaluationFailed
from closedform.tuning.journal import Journal
from closedform.tuning.measuring import Budget, Meter
from closedform.tuning.operator_space import OperatorSpace
from closedform.tuning.session import Source, meter_of
from closedform.tuning.space import opened, size_of

from .tuning_child import Bowl, searched, times_of

MI300X = catalogue.get("mi300x")
PRODUCT = Gemm(4096, 4096, 4096, dtype="bf16")


class Adversary(Bowl):
    """Every measurement is what `outcome` makes of the true time; the first of the start is 100 times too slow."""

    def __init__(self, outcome: Callable[[float], float], slow_start: bool = False) -> None:
        super().__init__()
        self.outcome, self.slow_start = outcome, slow_start

    def measure(self, candidate: Candidate) -> float:
        true = super().measure(candidate)
        if self.slow_start and len(self.calls) == 1:
            return 100 * true
        return self.outcome(true)


def test_the_bottom_is_found_in_rounds() -> None:
    found = searched(Bowl())
    assert (dict(found.best), found.best_us, found.stopped) == ({"a": 5, "b": 2, "c": 6}, 10.0, "done")
    first, second = found.rounds[:2]
    assert (first.enumerated, first.legal, second.enumerated, second.legal) == (64, 63, 8, 7)
    assert first.adopted
    assert not found.rounds[-1].adopted


KINDS = st.sampled_from(("true", "noise", "tie", "nan", "inf", "negative", "zero", "failure", "timeout", "driver"))


@settings(max_examples=25, deadline=None)
@given(st.lists(KINDS, min_size=1, max_size=12), st.integers(0, 2**32), st.booleans(), st.none() | st.integers(2, 90))
def test_no_evaluator_makes_it_slower(kinds: list[str], seed: int, slow: bool, budget: int | None) -> None:
    """Never above the start, never rising, never over the budget, and no gain that a second measurement denies."""
    dice = random.Random(seed)
    calls = 0

    def outcome(true: float) -> float:
        nonlocal calls
        calls += 1
        kind = kinds[calls % len(kinds)]
        if kind == "failure":
            raise EvaluationFailed("does not launch")
        if kind == "timeout":
            raise TimeoutError("too long")
        if kind == "driver":
            raise RuntimeError("illegal access")
        values = {"nan": math.nan, "inf": math.inf, "negative": -true, "zero": 0.0, "tie": 20.0}
        return values.get(kind, true * (math.exp(dice.gauss(0, 1)) if kind == "noise" else 1))

    bowl = Adversary(outcome, slow)
    journal = Journal()
    found = searched(bowl, Budget(evaluations=budget), journal)
    times = times_of(found)
    assert times == sorted(times, reverse=True)
    assert all(us > 0 and math.isfinite(us) for us in times)
    assert found.measurements == len(bowl.calls) <= (budget or math.inf)
    assert max(Counter(bowl.calls).values()) <= 3
    task = Meter(bowl, bowl).task
    if found.best != found.start:
        own = [journal.find(task, found.best, repeat) for repeat in range(2)]
        assert found.best_us is not None
        assert all(r is not None and r.latency_us is not None and r.latency_us <= found.best_us for r in own) or (
            journal.find(task, found.best, 2) is not None
        )
        assert found.start_us is None or found.best_us < found.start_us


def test_an_inflated_start_is_no_gain() -> None:
    """The start 100 times too slow at first: the second measurement, and a third, say so."""
    found = searched(Adversary(lambda true: true, slow_start=True))
    assert found.start_us == 75.0
    assert found.gain == pytest.approx(7.5)


def test_a_tie_is_not_adopted() -> None:
    found = searched(Adversary(lambda _: 20.0))
    assert found.best == found.start
    assert not any(r.adopted for r in found.rounds)


def test_one_lucky_measurement_is_not_believed() -> None:
    """A candidate that is fast once and slow when measured again stays out."""
    bowl = Bowl()
    seen: set[str] = set()

    def lucky(candidate: Candidate) -> float:
        new = canonical(candidate) not in seen
        seen.add(canonical(candidate))
        return 1.0 if new and candidate["a"] == 7 else 50.0

    bowl.measure = lucky  # type: ignore[method-assign]
    found = searched(bowl)
    assert found.best == found.start
    assert found.best_us == 50.0


@given(st.integers(0, 7), st.integers(0, 7))
def test_the_incumbent_is_in_every_list(a: int, b: int) -> None:
    (first, _), incumbent = Bowl().rounds(), {"a": a, "b": b, "c": 0}
    combinations = list(opened(first, incumbent))
    assert combinations[0] == {"a": a, "b": b}
    assert len(combinations) == len({canonical(c) for c in combinations}) == size_of(first, incumbent)


def test_what_never_measures_has_no_best() -> None:
    def fail(true: float) -> float:
        raise EvaluationFailed("nothing runs")

    found = searched(Adversary(fail))
    assert found.best_us is None
    assert found.gain is None


def test_a_mature_pool_leaves_the_tile_round_out() -> None:
    space = OperatorSpace(PRODUCT, MI300X)
    meter = meter_of(PRODUCT, MI300X, Source("model"), budget=Budget(evaluations=30))
    assert next(r.name for r in space.rounds()) == "tile"
    assert "tile" not in [r.name for r in descend(meter, Plan(pool_maturity=0.6)).rounds]
