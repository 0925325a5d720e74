"""Emitted attention with options for tests: kernels compiled once, run on many lengths through their own host side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from closedform.emission import broken_promises
from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.operators.attention import Attention
from closedform.simulate_attention_options import AttentionRun
from closedform.simulation_case import How
from closedform.visitors.compile import Compiled, compile_source
from closedform.visitors.compute import random_inputs
from closedform.visitors.derivation import Derivation
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

TARGETS = ("mi100", "mi210", "mi300x", "mi355x")
TYPES = ("f32", "f16", "bf16")
HEAD_DIMS = (1, 40, 64, 72, 80, 96, 128, 192, 256, 512)
#: Each feature alone: options of the operator and knobs of the tiles.
FEATURES: Mapping[str, Mapping[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window": 4},
    "sink": {"window": 4, "sink": 1},
    "v_dim": {"v_dim": 48},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": True},
    "alibi": {"alibi": True},
    "key_lengths": {"key_lengths": True},
    "varlen": {"varlen": True},
    "page16": {"page": 16, "key_lengths": True},
    "page128": {"page": 128, "key_lengths": True},
    "bshd": {"bshd": True},
    "gqa": {"kv_heads": 4},
    "lse": {"lse": True},
    "scale": {"softmax_scale": 0.5},
    "splits": {"splits": 3},
}
#: Features of which a kernel has one at most.
ALTERNATIVES = (("window", "sink"), ("key_lengths", "varlen", "page16", "page128"))
#: Features that exclude each other.
EXCLUSIVE = ({"varlen", "bias"}, {"varlen", "splits"})


@dataclass(frozen=True)
class Kernel:
    """The operator that decides the tiles (32 heads of 4096 queries and keys), its features and the GPU."""

    hw: str
    dtype: str
    d: int
    features: tuple[str, ...] = ()
    fixed: tuple[tuple[str, Any], ...] = field(default=())

    def __str__(self) -> str:
        return "-".join([self.hw, self.dtype, f"d{self.d}", *self.features, *(f"{k}{v}" for k, v in self.fixed)])

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for feature in self.features for name, value in FEATURES[feature].items()}

    def derivation(self) -> Derivation:
        options = self.options
        knobs = {**({"splits": options.pop("splits")} if "splits" in options else {}), **dict(self.fixed)}
        op = Attention(4096, 4096, self.d, heads=32, dtype=self.dtype, **options)
        return derive(op, catalogue.get(self.hw), "default", **knobs)


class Executed(AttentionRun):
    """A run that keeps the tensors that it gave to run()."""

    def _given(self) -> dict[str, Any]:
        self.given = super()._given()
        return self.given


@cache
def compiled(kernel: Kernel) -> Compiled:
    derivation = kernel.derivation()
    return compile_source(emit_source(derivation), derivation.hw.gfx)


def broken(kernel: Kernel) -> list[str]:
    """What the binary needs beyond its promise."""
    return broken_promises(kernel.derivation(), compiled(kernel))


def of_lengths(kernel: Kernel, L_q: int, L_kv: int, heads: int = 1, batch: int = 1) -> Derivation:
    """The derivation on other lengths, with so many heads of K and V."""
    derivation = kernel.derivation()
    op = derivation.op
    kv_heads = heads if op.group > 1 else 0
    return replace(
        derivation, op=replace(op, L_q=L_q, L_kv=L_kv, heads=heads * op.group, kv_heads=kv_heads, batch=batch)
    )


def executed(
    kernel: Kernel,
    L_q: int,
    L_kv: int,
    *,
    heads: int = 1,
    batch: int = 1,
    inputs: Mapping[str, Any] | None = None,
    how: How | None = None,
) -> Executed:
    """The compiled kernel on these lengths; `inputs` replace the normal random ones of their names."""
    derivation = of_lengths(kernel, L_q, L_kv, heads, batch)
    random = np.random.default_rng(1000 * L_q + L_kv)
    given = {**random_inputs(derivation.op, random), **(inputs or {})}
    return Executed(derivation, compiled(kernel), given, How() if how is None else how)


def require_good(case: AttentionRun) -> None:
    """No report of a sanitizer, and every row that was worked on within its bound of float64."""
    reports = [report for result in case.results for report in result.reports]
    assert not reports, "\n".join(map(str, reports))
    accuracy = case.accuracy()
    assert accuracy is None or accuracy.ok, accuracy


@contextmanager
def counted_reads() -> Iterator[list[int]]:
    """Collects the cycles that LDS reads lose to bank conflicts, of every access of the runs inside."""
    from closedform.hw.sim import counts

    at, kept, lost = counts.COLUMNS.index, counts.Counter.lds_access, []

    def access(self: Any, index: int, address: Any, mask: Any, size: int, store: bool) -> None:
        before = self.sums[index].copy()
        kept(self, index, address, mask, size, store)
        added = self.sums[index] - before
        if not store:
            lost.append(int(added[at("lds_cycles")] - added[at("lds_cycles_ideal")]))

    counts.Counter.lds_access = access  # type: ignore[method-assign]
    try:
        yield lost
    finally:
        counts.Counter.lds_access = kept  # type: ignore[method-assign]


def is_offered(kernel: Kernel) -> bool:
    """Whether the operator exists and has tiles on that GPU."""
    if any(one <= set(kernel.features) for one in EXCLUSIVE):
        return False
    try:
        return kernel.derivation().feasible
    except BadInput:
        return False


# --- covers -----------------------------------------------------------------------------------------------------------

#: Choices of a cover: target, type, and for every feature or set of alternatives which, if any.
CHOICES: tuple[tuple[Any, ...], ...] = (
    TARGETS,
    TYPES,
    *((None, *names) for names in ALTERNATIVES),
    *((None, name) for name in FEATURES if not any(name in names for names in ALTERNATIVES)),
)


def pairs_of(row: tuple[Any, ...]) -> set[Any]:
    """Pairs of choices that a row has together."""
    return set(combinations(enumerate(row), 2))


def is_allowed(row: tuple[Any, ...]) -> bool:
    """Whether the features of a row, of which some may be undecided, go together."""
    return not any(one <= set(row) for one in EXCLUSIVE)


@cache
def pairwise() -> tuple[Kernel, ...]:
    """Kernels among which every two choices that go together meet, by a greedy search; head dims take turns."""
    columns = range(len(CHOICES))
    missing = {
        ((i, a), (j, b))
        for i, j in combinations(columns, 2)
        for a in CHOICES[i]
        for b in CHOICES[j]
        if is_allowed((a, b))
    }
    random, rows = np.random.default_rng(6), []
    while missing:
        candidates = [_candidate(missing, random) for _ in range(30)]
        best = max(candidates, key=lambda row: len(pairs_of(row) & missing))
        missing -= pairs_of(best)
        rows.append(best)
    return tuple(
        Kernel(row[0], row[1], HEAD_DIMS[n % len(HEAD_DIMS)], tuple(name for name in FEATURES if name in row[2:]))
        for n, row in enumerate(rows)
    )


def _candidate(missing: set[Any], random: np.random.Generator) -> tuple[Any, ...]:
    """A row with a pair that is missing, the rest chosen one after the other to have the most missing pairs."""
    left = sorted(missing, key=str)
    row: dict[int, Any] = dict(left[random.integers(len(left))])
    for i in random.permutation(len(CHOICES)):
        if int(i) in row:
            continue
        fitting = [x for x in CHOICES[i] if is_allowed((*row.values(), x))]
        gains = [
            sum(1 for j, b in row.items() if (((i, x), (j, b)) if i < j else ((j, b), (i, x))) in missing)
            for x in fitting
        ]
        row[int(i)] = fitting[int(np.argmax(gains))]
    return tuple(row[i] for i in range(len(CHOICES)))
