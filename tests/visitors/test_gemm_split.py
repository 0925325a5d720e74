"""Split-K and Stream-K of emitted GEMMs: bit-exact, repeatable in any order of workgroups, every counter back at 0."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform import check
from closedform.hw.sim import Out, flydsl_args, parse_file, run
from closedform.operators.gemm import LAYOUTS, Gemm
from closedform.operators.gemm_split import StreamK, even_runs
from closedform.visitors.compile import missing_dependency
from closedform.visitors.emit import emit_source
from closedform.visitors.gemm_shape import GemmShape
from closedform.visitors.gemm_spread import SPLIT_DEPTH

from .gemm_addresses import Int, namespace
from .gemm_kernels import derived, kernel, loaded, offered, stored, whole_numbers
from .gemm_memory import expected

compiled = pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")
TARGETS = ("mi100", "mi210", "mi300x", "mi355x")


def launched(
    hw: str, op: Gemm, shape: tuple[int, ...], fixed: dict[str, Any], *, order: Any = None, real: bool = False
) -> tuple[list[Any], Any, Any]:
    """Simulator's results of every kernel, D, and the float64 reference; `order` of the workgroups."""
    derivation, binary = kernel(hw, op, tuple(sorted(fixed.items())))
    assert binary.vgpr_spills == binary.sgpr_spills == 0
    tiles, _, _ = derivation.require()
    M, N, K, batch = (*shape, 1)[:4]
    at = Gemm(M, N, K, dtype=op.dtype, layout=op.layout, batch=batch)
    rng = np.random.default_rng(M + N + K)
    make = (lambda s: stored(rng.standard_normal(s), op.dtype)) if real else lambda s: whole_numbers(rng, s, op.dtype)
    a, b = make((batch, *at.shape_a)), make((batch, *at.shape_b))
    acc = {"f64": np.float64, "i32": np.int32}.get(tiles.atom.dtype_acc.name, np.float32)
    extra, alpha, beta = [], 2.0, 0.0
    if op.has_c:
        extra, beta = [whole_numbers(rng, (batch, M, N), op.result)], 0.5
    out = np.zeros((batch, M, N), stored(np.zeros(1), op.result).dtype)
    scalar = np.float64 if acc is np.float64 else np.float32
    ends = [scalar(alpha), scalar(beta)]
    per = -(-M // tiles.tile_m) * -(-N // tiles.tile_n)
    depth = max(1, -(-K // tiles.tile_k))
    slots = 2 * tiles.stream_k or per * batch * tiles.split_k
    sums = np.zeros(slots * tiles.tile_m * tiles.tile_n, acc)
    counters = np.zeros(2 * tiles.stream_k or per * batch, np.int32)
    program = parse_file(binary.isa)
    first = next(k for k in program.kernels if k.startswith("gemm_kernel"))
    if tiles.stream_k:
        grid = (max(1, min(tiles.stream_k, per * batch * depth)), 1, 1)
        space = np.full(sums.nbytes + counters.nbytes, 0xFF, np.uint8)  # NaN, until a sum is saved
        space[sums.nbytes :], counters = 0, space[sums.nbytes :]
        values = [a, b, Out(out), *extra, space, M, N, K, batch, grid[0], *ends]
    elif tiles.arrives:
        grid = (per * tiles.split_k, 1, batch)
        values = [a, b, Out(out), *extra, Out(sums), counters, M, N, K, *ends]
    else:
        grid = (per * tiles.split_k, 1, batch)
        values = [a, b, Out(sums), M, N, K]
    blocks = None if order is None else order(np.arange(int(np.prod(grid))))
    results = [run(program, flydsl_args(program.kernel(first), values), grid=grid, kernel=first, blocks=blocks)]
    if not tiles.arrives:
        second = next(k for k in program.kernels if k.startswith("reduce_kernel"))
        shape_of = GemmShape(op, tiles, derivation.hw)
        parts = shape_of.atoms_m * shape_of.atoms_n // (shape_of.layout.span // tiles.atom.m)
        values = [Out(out), *extra, sums, M, N, *ends]
        grid = (per * parts, 1, batch)
        results.append(run(program, flydsl_args(program.kernel(second), values), grid=grid, kernel=second))
    assert not counters.any()
    c = loaded(extra[0], op.result) if extra else None
    want = expected(op, loaded(a, op.dtype), loaded(b, op.dtype), c, None, alpha, beta, 1.0)
    return results, loaded(out, op.result), loaded(stored(want, op.result), op.result)


WAYS = (
    {"split_k": 3},
    {"split_k": 3, "split_algorithm": "single"},
    {"stream_k": 5},
)
TILE = {"tile_m": 64, "tile_n": 64}


def exact(hw: str, op: Gemm, shape: tuple[int, ...], fixed: dict[str, Any]) -> None:
    results, out, want = launched(hw, op, shape, fixed)
    assert all(result.ok for result in results), "\n".join(map(str, results))
    assert np.array_equal(out, want), shape


@pytest.mark.compile
@compiled
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("hw", "dtype", "layout"), [("mi300x", "bf16", "NT"), ("mi355x", "f16", "NN")])
def test_parts_add_up(hw: str, dtype: str, layout: str, way: dict[str, Any]) -> None:
    op = Gemm(256, 256, 2048, dtype=dtype, layout=layout, has_c=True)
    for shape in ((136, 200, 64 * 10 + 8, 2), (64, 64, 64, 1), (72, 8, 8, 1)):
        exact(hw, op, shape, {**TILE, **way})


@pytest.mark.compile
@compiled
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_short_last_slice_and_a_tile_of_48_rows_on_65(way: dict[str, Any]) -> None:
    fixed = {"tile_m": 48, "tile_n": 64}
    for n in (1, 2):
        K = 64 * (3 * n + 1)
        exact("mi300x", Gemm(65, 64, 64 * 7, dtype="bf16", layout="NT"), (65, 64, K), {**fixed, **way})


@pytest.mark.compile
@compiled
@pytest.mark.parametrize(("hw", "dtype", "way"), [("mi100", "f32", 1), ("mi210", "f16", 2), ("mi300x", "f64", 0)])
def test_other_targets_and_types(hw: str, dtype: str, way: int) -> None:
    exact(hw, Gemm(128, 128, 512, dtype=dtype, layout="TN"), (72, 136, 328), {**TILE, **WAYS[way]})


@pytest.mark.slow
@pytest.mark.compile
@compiled
@pytest.mark.parametrize("way", range(3))
@pytest.mark.parametrize(("hw", "dtype"), [(hw, dtype) for hw in TARGETS for dtype in offered(hw)])
def test_every_type_adds_up(hw: str, dtype: str, way: int) -> None:
    for layout in LAYOUTS:
        exact(hw, Gemm(256, 256, 2048, dtype=dtype, layout=layout), (136, 80, 848, 2), {**TILE, **WAYS[way]})


@pytest.mark.compile
@compiled
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_order_of_workgroups_changes_no_bit(way: dict[str, Any]) -> None:
    op = Gemm(256, 256, 2048, dtype="f32", layout="NN")
    outs = []
    for order in (None, lambda n: n[::-1], lambda n: np.random.default_rng(1).permutation(n)):
        results, out, _ = launched("mi300x", op, (100, 88, 704), {**TILE, **way}, order=order, real=True)
        assert all(result.ok for result in results), "\n".join(map(str, results))
        outs.append(out)
    assert np.array_equal(outs[0], outs[1])
    assert np.array_equal(outs[0], outs[2])


# --- the arithmetic of the kernel is that of the tree -------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 900), st.integers(1, 3), st.sampled_from((8, 1)))
def test_the_kernel_shares_as_the_tree_does(M: int, N: int, K: int, batch: int, xcds: int) -> None:
    names = emitted(xcds, stream_k=12)
    tiles = -(-M // 64) * -(-N // 64) * batch
    depth = max(1, -(-K // 64))
    workgroups = min(12, tiles * depth)
    want = list(StreamK(tiles, depth, workgroups).segments())
    got = []
    for x in range(workgroups):
        names["gpu"].block_idx = SimpleNamespace(x=x, y=0, z=0)
        share = names["Share"](*(Int(v, 32) for v in (M, N, K, batch, workgroups)))
        for number in range(int(share.segments)):
            segment = names["Segment"](share, Int(number, 32))
            assert 0 <= int(segment.first_m) < M
            assert 0 <= int(segment.first_n) < N
            first_k = int(segment.first_k)
            count = -(-int(segment.K) // 64)
            contributors, leader = int(segment.contributors), int(segment.leader)
            place = (int(segment.batch), int(segment.first_m), int(segment.first_n))
            slots = [int(segment.slot_at(Int(c, 32))) for c in range(contributors)] if contributors > 1 else []
            got.append((int(share.me), place, first_k, count, contributors, leader, int(segment.shared), slots))
            if contributors > 1:
                assert int(segment.slot) == slots[int(share.me) - leader]
    assert len(got) == len(want)
    assert {(g[0], g[2], g[4]) for g in got} == {(w.workgroup, w.steps.start, w.contributors) for w in want}
    if K:
        assert sum(g[3] for g in got) == tiles * depth
    places: dict[Any, set[int]] = {}
    for _, place, first_k, count, *_ in got:
        steps = set(range(first_k, first_k + max(1, count)))
        assert not steps & places.setdefault(place, set())
        places[place] |= steps
    assert len(places) == tiles
    assert all(steps == set(range(depth)) for steps in places.values())
    used = {(tuple(g[7]), g[6]) for g in got if g[4] > 1}
    flat = [slot for slots, _ in used for slot in slots]
    assert len(flat) == len(set(flat))  # no slot belongs to two tiles
    assert all(slot < 2 * workgroups for slot in flat)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 900))
def test_the_parts_of_the_kernel_are_those_of_the_tree(M: int, N: int, K: int) -> None:
    names = emitted(8, split_k=3)
    tiles, depth = -(-M // 64) * -(-N // 64), -(-K // 64)
    runs = list(even_runs(depth, 3))
    seen = set()
    for x in range(3 * tiles + 2):
        names["gpu"].block_idx = SimpleNamespace(x=x, y=0, z=1)
        part = names["Part"](*(Int(v, 32) for v in (M, N, K)), 3)
        if x >= 3 * tiles:
            assert (int(part.M), int(part.K)) == (0, 0)
            continue
        run = runs[int(part.piece)]
        assert int(part.first_k) == run.start
        assert int(part.K) == max(0, min(K, run.stop * 64) - run.start * 64)
        seen.add((int(part.tile), int(part.piece), int(part.first_m), int(part.first_n)))
    assert len(seen) == 3 * tiles
    assert {tile for tile, *_ in seen} == set(range(tiles, 2 * tiles))


@cache
def emitted(xcds: int, **way: int) -> dict[str, Any]:
    """Names of an emitted file with tiles of 64 x 64 x 64."""
    op = Gemm(512, 512, 1024, dtype="bf16", layout="NT")
    names = namespace(emit_source(derived("mi300x", op, tile_m=64, tile_n=64, xcds=xcds, **way)))
    names["opaque"] = lambda value: value
    return names


SHARED = [(1, 1, 1), (5, 7, 3), (304, 64, 304), (400, 80, 304), (2, 3, 9)]


@pytest.mark.parametrize(("tiles", "depth", "workgroups"), SHARED)
def test_every_tile_of_k_has_one_share(tiles: int, depth: int, workgroups: int) -> None:
    seen: list[tuple[int, int]] = []
    per: dict[int, int] = {}
    for segment in StreamK(tiles, depth, workgroups).segments():
        seen += [(segment.tile, step) for step in range(segment.steps.start, segment.steps.stop)]
        per[segment.workgroup] = per.get(segment.workgroup, 0) + segment.steps.count
    assert sorted(seen) == [(tile, step) for tile in range(tiles) for step in range(depth)]
    assert max(per.values()) - min(per.values()) <= 1 or len(per) < workgroups


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("level", ["block", "wave", "atom"])
def test_the_split_tree_agrees_with_float64(level: str, way: dict[str, Any]) -> None:
    op = Gemm(70, 50, 300, dtype="f32", layout="TN", batch=2)
    assert check(op, "mi300x", level, tile_m=32, tile_n=32, tile_k=32, **way).ok


# --- the closed form ----------------------------------------------------------------------------------------------


def test_k_is_split_where_tiles_leave_compute_units_idle() -> None:
    few = derived("mi300x", Gemm(128, 128, 65536, dtype="bf16", layout="NT"))
    assert few.tiles.split_k > 1
    assert few.grid.blocks == few.tiles.split_k * 4
    assert -(-65536 // few.tiles.tile_k) // few.tiles.split_k >= SPLIT_DEPTH
    tail = derived("mi300x", Gemm(5120, 5120, 4096, dtype="bf16", layout="NT"))
    assert tail.tiles.stream_k == 304  # 400 tiles: 2 rounds, of which a third would be idle
    full = derived("mi300x", Gemm(4864, 4096, 8192, dtype="bf16", layout="NT"))
    assert not full.tiles.splits  # 304 tiles, one round
    short = derived("mi300x", Gemm(128, 128, 64, dtype="bf16", layout="NT"))
    assert not short.tiles.splits
    assert any("vendor library" in note for note in short.notes)


def test_the_last_workgroup_adds_where_that_is_less_than_a_second_kernel() -> None:
    small = derived("mi300x", Gemm(16, 16, 32768, dtype="bf16", layout="NT"))
    assert small.tiles.split_algorithm == "single"
    large = derived("mi300x", Gemm(128, 128, 65536, dtype="bf16", layout="NT"))
    assert large.tiles.split_algorithm == "workspace"


def test_what_is_given_is_kept() -> None:
    op = Gemm(5120, 5120, 4096, dtype="bf16", layout="NT")
    assert not derived("mi300x", op, stream_k=0).tiles.splits
    assert derived("mi300x", op, split_k=2).tiles.split_k == 2
    assert derived("mi300x", op, stream_k=100).grid.grid == (100, 1, 1)
