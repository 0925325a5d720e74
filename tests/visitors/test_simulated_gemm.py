"""Emitted GEMMs, compiled for their targets and executed by the simulator: bit-exact on whole numbers, no report."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from closedform.emission import broken_promises
from closedform.operators.gemm import LAYOUTS, Gemm
from closedform.visitors.compile import missing_dependency

from .gemm_kernels import kernel, offered, simulate

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch"),
]

TARGETS = ("mi100", "mi210", "mi300x", "mi355x")
LARGE = 4096
EDGES = (1, 2, 3, 15, 16, 17, 63, 65, 127, 133, 192)


def exact(hw: str, op: Gemm, shape: tuple[int, ...], fixed: tuple[tuple[str, Any], ...] = (), **options: Any) -> Any:
    M, N, K, batch = (*shape, 1)[:4]
    run_op = dataclasses.replace(op, M=M, N=N, K=K, batch=batch, lda=0, ldb=0, ldd=0)
    result, out, want = simulate(hw, op, run_op, fixed, **options)
    assert result.ok, str(result)
    assert np.array_equal(out, want)
    return result


def main_loop_conflicts(result: Any) -> int:
    """Cycles that the loops over tiles of k lose to bank conflicts."""
    return sum(loop["lds_bank_conflict_cycles"] for loop in result.counts["loops"])


#: A pairwise cover of targets, types and layouts; each kernel has the tiles of 4096^3 and runs a clipped shape.
COVER = [
    ("mi300x", "bf16", "NT"),
    ("mi300x", "f16", "TN"),
    ("mi300x", "f32", "NN"),
    ("mi300x", "fp8_e4m3fnuz", "TT"),
    ("mi300x", "f64", "NT"),
    ("mi300x", "xf32", "TN"),
    ("mi355x", "bf16", "NT"),
    ("mi355x", "f16", "NN"),
    ("mi355x", "fp8_e4m3fn", "NT"),
    ("mi355x", "i8", "TN"),
    ("mi355x", "f32", "TT"),
    ("mi210", "f32", "TN"),
    ("mi210", "bf16", "NN"),
    ("mi100", "f32", "NT"),
    ("mi100", "f16", "TT"),
]
CLIPPED = (136, 272, 208)


def large(dtype: str, layout: str, **fields: Any) -> Gemm:
    return Gemm(LARGE, LARGE, LARGE, dtype=dtype, layout=layout, **fields)


@pytest.mark.parametrize(("hw", "dtype", "layout"), COVER)
def test_large_tiles_on_a_clipped_shape(hw: str, dtype: str, layout: str) -> None:
    op = large(dtype, layout)
    derivation, binary = kernel(hw, op)
    assert broken_promises(derivation, binary) == []
    predicted = derivation.require()[1].registers
    assert binary.vgpr_total <= predicted <= 1.25 * binary.vgpr_total
    assert main_loop_conflicts(exact(hw, op, CLIPPED)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("hw", "dtype"), [(hw, dtype) for hw in TARGETS for dtype in offered(hw)])
def test_every_type_and_layout(hw: str, dtype: str, layout: str) -> None:
    op = large(dtype, layout)
    derivation, binary = kernel(hw, op)
    assert broken_promises(derivation, binary) == []
    assert main_loop_conflicts(exact(hw, op, (256, 256, 256))) == 0
    exact(hw, op, (*CLIPPED, 2))


@pytest.mark.parametrize(
    ("hw", "dtype", "layout", "shape"),
    [
        ("mi300x", "bf16", "NT", (1, 1, 1)),
        ("mi300x", "bf16", "TN", (133, 192, 1000)),
        ("mi300x", "bf16", "NN", (65, 127, 133)),
        ("mi355x", "f16", "NT", (133, 65, 127)),
        ("mi100", "f32", "TT", (17, 15, 63)),
    ],
)
def test_small_and_odd_shapes(hw: str, dtype: str, layout: str, shape: tuple[int, int, int]) -> None:
    op = Gemm(*shape, dtype=dtype, layout=layout)
    derivation, binary = kernel(hw, op)
    assert broken_promises(derivation, binary) == []
    exact(hw, op, shape)


@pytest.mark.slow
@pytest.mark.parametrize("hw", TARGETS)
@pytest.mark.parametrize("seed", range(30))
def test_edges(hw: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(rng.choice(EDGES)) for _ in "MNK")
    dtype, layout = str(rng.choice(offered(hw))), str(rng.choice(LAYOUTS))
    op = Gemm(*shape, dtype=dtype, layout=layout)
    exact(hw, op, shape)


def test_k_of_an_odd_number_of_tiles_and_batch() -> None:
    exact("mi300x", large("bf16", "NT"), (64, 72, 64 * 3, 6))


def test_a_tile_of_48_rows_on_65() -> None:
    op = Gemm(65, 64, 192, dtype="bf16", layout="NT")
    exact("mi300x", op, (65, 64, 192), (("tile_m", 48), ("tile_n", 64)))


@pytest.mark.parametrize("fields", [{"bias": "column", "activation": "relu", "out_dtype": "f32"}, {"bias": "row"}])
def test_epilogue(fields: dict[str, str]) -> None:
    op = large("bf16", "NT", has_c=True, **fields)
    exact("mi300x", op, (136, 520, 64), alpha=2.0, beta=0.5)


def test_alpha_zero_gives_beta_c() -> None:
    exact("mi300x", large("bf16", "NT", has_c=True, bias="row"), (40, 264, 64), alpha=0.0, beta=2.0)


@pytest.mark.parametrize(("hw", "out"), [("mi300x", "fp8_e4m3fnuz"), ("mi355x", "bf8_e5m2")])
def test_narrow_output_is_rounded_and_saturated(hw: str, out: str) -> None:
    exact(hw, Gemm(64, 64, 512, dtype="f16", layout="NT", out_dtype=out), (64, 64, 512))


def test_asymmetric_operands_are_not_transposed() -> None:
    op = Gemm(32, 32, 32, dtype="f32", layout="NN")
    exact("mi300x", op, (32, 32, 32))


def test_two_runs_agree_bit_for_bit() -> None:
    op = large("f32", "NN")
    first, second = (simulate("mi300x", op, Gemm(72, 72, 72, layout="NN"))[1] for _ in range(2))
    assert np.array_equal(first, second)
