"""Emitted softmax executed instruction by instruction against float64, with every sanitizer."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from closedform.operators.softmax import Softmax
from closedform.visitors.compile import missing_dependency

from .softmax_kernels import TARGETS, kernel, simulate, simulate_sample

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency())),
]

COLS = (1, 2, 63, 64, 65, 127, 1000, 4096, 8191, 50257, 1000000)
ROWS = (1, 76, 152, 8193)
DTYPES = ("f32", "f16", "bf16")
INF = np.inf


def listed():
    """Every length with every number of rows; types and targets take turns from length to length."""
    for i, cols in enumerate(COLS):
        for rows in ROWS:
            yield TARGETS[i % 4], Softmax(rows, cols, DTYPES[i % 3], lse=True)


def name(value):
    return value if isinstance(value, str) else f"{value.rows}x{value.cols}-{value.dtype}"


def normal(op, rows, seed=0):
    return 3 * np.random.default_rng(seed).standard_normal((rows, op.cols))


@pytest.mark.parametrize(("hw", "op"), list(listed()), ids=name)
def test_the_listed_lengths_and_rows_agree_with_float64(hw, op, record_property):
    ran = simulate_sample(hw, op)
    assert ran.ok, str(ran)
    record_property(f"max_rel_error {op.dtype}", ran.accuracy.max_rel_error)
    assert np.abs(ran.out.sum(-1) - 1).max() <= {"f32": 1e-5, "f16": 2e-2, "bf16": 2e-2}[op.dtype]


@pytest.mark.slow
@pytest.mark.parametrize("hw", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_the_full_product_agrees_with_float64(hw, dtype, cols):
    for rows, log in product(ROWS, (False, True)):
        ran = simulate_sample(hw, Softmax(rows, cols, dtype, log=log))
        assert ran.ok, str(ran)


#: One pass of a part of a wave, of a wave and of several waves; two passes; a row of several workgroups.
KINDS = [
    Softmax(5000, 61),
    Softmax(5000, 501),
    Softmax(200, 3000),
    (Softmax(5000, 5001), (("lanes", 128), ("chunks", 2), ("passes", 2), ("block_rows", 1))),
    (Softmax(3, 9001), (("splits", 3), ("lanes", 128), ("chunks", 2))),
]


def kind(i):
    found = KINDS[i]
    return found if isinstance(found, tuple) else (found, ())


@pytest.mark.parametrize("i", range(len(KINDS)))
@pytest.mark.parametrize("turn", [0, 1])
def test_mask_log_and_lse(turn, i):
    op, fixed = kind(i)
    hw = TARGETS[(i + 2 * turn) % 4]
    op = replace(op, dtype=DTYPES[(i + turn) % 3], log=bool((i + turn) % 2))
    op = replace(op, mask=True, lse=True)
    random = np.random.default_rng(i)
    mask = random.random((9, op.cols)) < 0.5
    mask[3] = False
    ran = simulate(hw, op, normal(op, 9), mask, fixed)
    assert ran.ok, str(ran)
    assert (ran.out[3] == (-INF if op.log else 0)).all()
    assert ran.lse[3] == -INF


def special(cols):
    rows = np.full((8, cols), 1.0)
    rows[0] = -INF
    rows[1, cols // 2] = INF
    rows[2, 0] = np.nan
    rows[3, -1] = np.nan
    rows[3, 0] = INF
    rows[4, : cols // 2] = 1e5
    rows[4, cols // 2 :] = -1e5
    rows[5] = -1e5
    rows[6, :-1] = -INF
    rows[7, -1] = INF
    return rows


@pytest.mark.parametrize("i", range(len(KINDS)))
@pytest.mark.parametrize("turn", [0, 1])
def test_infinities_and_nan_propagate_as_in_torch(i, turn):
    """But rows without a finite logit give zeros unless torch's way is asked for; 1e5 is in range of f32 and bf16."""
    import torch

    op, fixed = kind(i)
    log, empty, dtype = bool((i + turn) % 2), ("zero", "nan")[turn], ("f32", "bf16")[i % 2]
    op = replace(op, dtype=dtype, log=log, empty=empty, lse=True)
    x = special(op.cols)
    ran = simulate(TARGETS[i % 4], op, x, None, fixed)
    assert ran.ok, str(ran)
    x = torch.tensor(x, dtype=getattr(torch, {"f32": "float32", "bf16": "bfloat16"}[dtype])).double()
    want = (torch.log_softmax if log else torch.softmax)(x, -1).numpy()
    if empty == "zero":
        want[0] = -INF if log else 0.0
    assert np.array_equal(np.isnan(ran.out), np.isnan(want))
    assert np.array_equal(np.isinf(ran.out), np.isinf(want))
    np.testing.assert_allclose(ran.lse, torch.logsumexp(x, -1).numpy(), rtol=1e-6)


@pytest.mark.parametrize("i", range(len(KINDS)))
def test_rows_that_begin_at_any_element(i):
    """Rows an odd number of elements apart: of 16-bit types every second one begins inside of a 32-bit word."""
    op, fixed = kind(i)
    leading = op.cols + 1 + op.cols % 2
    assert leading % 2
    op = replace(op, dtype=("f16", "bf16")[i % 2], ld=leading, mask=True)
    mask = np.random.default_rng(1).random((6, op.cols)) < 0.8
    ran = simulate(TARGETS[(i + 1) % 4], op, normal(op, 6), mask, fixed, leading=leading)
    assert ran.ok, str(ran)


def test_the_mask_of_the_last_element_counts_where_accesses_begin_at_an_odd_one():
    """The last access of a row ends with it, and its mask lies in three words, the last of which is not whole."""
    op = Softmax(60, 1001, "f16", mask=True)
    mask = np.random.default_rng(1).random((6, op.cols)) < 0.5
    mask[:, -1] = True
    ran = simulate("mi300x", op, normal(op, 6), mask, leading=op.cols)
    assert ran.ok, str(ran)


@pytest.mark.parametrize("i", [2, 3])
def test_the_result_may_take_the_place_of_the_input(i):
    op, fixed = kind(i)
    ran = simulate("mi300x", op, normal(op, 5), None, fixed, in_place=True)
    assert ran.ok, str(ran)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 20), st.integers(1, 255), st.integers(0, 3), st.integers(0, 2**32))
def test_one_kernel_takes_every_shape_that_fits(rows, cols, gap, seed):
    """Rows, lengths and strides are run-time arguments of one pass by 16 lanes a row."""
    random = np.random.default_rng(seed)
    op = Softmax(4000, 255, "f16")
    ran = simulate("mi300x", op, 3 * random.standard_normal((rows, cols)), leading=max(2, cols + gap))
    assert ran.ok, str(ran)


ONE_READ = [("mi100", "f32"), ("mi210", "f16"), ("mi300x", "f32"), ("mi300x", "bf16"), ("mi355x", "f16")]


@pytest.mark.parametrize(("hw", "dtype"), ONE_READ)
def test_a_row_in_registers_is_read_once_by_16_bytes_a_lane(hw, dtype):
    op = Softmax(4096, 1024, dtype)
    ran = simulate(hw, op, normal(op, 16))
    assert ran.ok, str(ran)
    (result,) = ran.results
    moved = 16 * op.cols * op.elem_bytes
    counts = result.counts
    assert (counts["global_load_bytes"], counts["global_store_bytes"]) == (moved, moved)
    accesses = [line.split()[0] for line in kernel(hw, op)[1].isa.splitlines() if line.strip().startswith("buffer_")]
    assert set(accesses) == {"buffer_load_dwordx4", "buffer_store_dwordx4"}
    assert counts["lds_bank_conflict_cycles"] == 0


@pytest.mark.parametrize(("hw", "dtype"), ONE_READ)
def test_reductions_move_values_between_active_lanes_only(hw, dtype):
    """DPP and permutes never stand behind a branch on lanes: exec is whole wherever one is executed."""
    isa = kernel(hw, Softmax(4096, 1024, dtype))[1].isa
    assert "_dpp" in isa
    assert "s_and_saveexec" not in isa
