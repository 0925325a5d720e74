"""Split-K and Stream-K of emitted GEMMs: bit-exact, repeatable in any order of workgroups, every counter back at 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from closedform.hw.sim import Out, flydsl_args, parse_file, run
from closedform.operators.gemm import Gemm
from closedform.visitors.compile import missing_dependency

from .gemm_kernels import kernel, loaded, stored, whole_numbers

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch"),
]


def launched(
    hw: str, op: Gemm, shape: tuple[int, ...], fixed: dict[str, Any], *, order: Any = None, real: bool = False
) -> tuple[list[Any], Any, Any]:
    """Simulator's results of every kernel, D, and the float64 reference; `order` gives the workgroups in another order."""
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
        parts = tiles.tile_m * tiles.tile_n // 64 // tiles.waves // (tiles.atom.elements_c)
        parts //= max(1, _span(derivation) // tiles.atom.m)
        values = [Out(out), *extra, sums, M, N, *ends]
        grid = (per * parts, 1, batch)
        results.append(run(program, flydsl_args(program.kernel(second), values), grid=grid, kernel=second))
    assert not counters.any()
    left, right = loaded(a, op.dtype), loaded(b, op.dtype)
    left = left if op.layout[0] == "N" else np.swapaxes(left, 1, 2)
    right = right if op.layout[1] == "N" else np.swapaxes(right, 1, 2)
    want = alpha * (left @ right) + (beta * loaded(extra[0], op.result) if extra else 0.0)
    return results, loaded(out, op.result), loaded(stored(want, op.result), op.result)


def _span(derivation: Any) -> int:
    from closedform.visitors.gemm_shape import GemmShape

    return GemmShape(derivation.op, derivation.tiles, derivation.hw).layout.span


WAYS = (
    {"split_k": 3},
    {"split_k": 3, "split_algorithm": "single"},
    {"stream_k": 5},
)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("hw", "dtype", "layout"), [("mi300x", "bf16", "NT"), ("mi355x", "f16", "NN")])
def test_parts_add_up(hw: str, dtype: str, layout: str, way: dict[str, Any]) -> None:
    op = Gemm(256, 256, 2048, dtype=dtype, layout=layout, has_c=True)
    fixed = {"tile_m": 64, "tile_n": 64, **way}
    for shape in ((136, 200, 64 * 10 + 8, 2), (64, 64, 64, 1), (72, 8, 8, 1)):
        results, out, want = launched(hw, op, shape, fixed)
        assert all(result.ok for result in results), "\n".join(map(str, results))
        assert np.array_equal(out, want), shape
