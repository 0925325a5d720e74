"""Softmax executed at every level against float64, and against torch where it has a word of its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform.operators.accuracy import compare
from closedform.operators.level import Level
from closedform.operators.reference import reference
from closedform.operators.softmax import Softmax, SoftmaxTiles
from closedform.visitors.compute import ComputeVisitor

LEVELS = list(Level)
INF = np.inf


@st.composite
def problems(draw):
    op = Softmax(
        rows=draw(st.integers(1, 12)),
        cols=draw(st.integers(1, 2000)),
        dtype=draw(st.sampled_from(["f32", "f16", "bf16"])),
        log=draw(st.booleans()),
        mask=draw(st.booleans()),
    )
    lanes = draw(st.sampled_from([n for n in (4, 8, 32, 64, 256) if n >= op.vec]))
    chunks = draw(st.integers(1, 4))
    passes = 1 if op.cols <= lanes * chunks * op.vec else 2
    rows = max(1, 64 // lanes)
    splits = draw(st.integers(1, 4)) if passes == 2 and rows == 1 else 1
    return op, SoftmaxTiles(op.vec, True, lanes, chunks, rows, passes, splits, 1), draw(st.integers(0, 2**32))


def drawn(op, seed):
    random = np.random.default_rng(seed)
    inputs = {"X": random.standard_normal((op.rows, op.cols)) * 4}
    return {**inputs, "mask": random.random((op.rows, op.cols)) < 0.7} if op.mask else inputs


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_agrees_with_float64(level):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(problems())
    def agrees(problem):
        op, tiles, seed = problem
        inputs = drawn(op, seed)
        verdict = compare(op, ComputeVisitor(level).run(op.tree(tiles), **inputs), reference(op, **inputs))
        assert verdict.ok, verdict

    agrees()


SPECIAL = np.array(
    [
        [-INF] * 70,
        [1.0] * 69 + [INF],
        [np.nan] + [1.0] * 69,
        [-INF, np.nan] + [INF] * 68,
        [1e5] * 35 + [-1e5] * 35,
        [-1e5] * 70,
        [-INF] * 69 + [3.0],
    ]
)
TILES = SoftmaxTiles(4, True, 64, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("empty", ["zero", "nan"])
@pytest.mark.parametrize("log", [False, True])
def test_infinities_and_nan_propagate_as_in_torch(level, log, empty):
    """But a row without a finite logit gives zeros, of which the logarithm is -inf, unless torch's way is asked for."""
    torch = pytest.importorskip("torch")
    op = Softmax(*SPECIAL.shape, log=log, lse=True, empty=empty)
    visitor = ComputeVisitor(level)
    out = visitor.run(op.tree(TILES), X=SPECIAL)
    x = torch.tensor(SPECIAL)
    want = (torch.log_softmax if log else torch.softmax)(x, -1).numpy()
    if empty == "zero":
        want[0] = -INF if log else 0.0
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(visitor.lse, torch.logsumexp(x, -1).numpy(), rtol=1e-6)
    verdict = compare(op, out, reference(op, X=SPECIAL))
    assert verdict.ok, verdict


@pytest.mark.parametrize("log", [False, True])
def test_the_reference_is_that_of_torch(log):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float32)
    mask = np.random.default_rng(1).random(x.shape) < 0.5
    op = Softmax(5, 100, log=log, mask=True)
    shifted = torch.tensor(x).double().masked_fill(torch.tensor(~mask), -INF)
    want = (torch.log_softmax if log else torch.softmax)(shifted, -1).numpy()
    np.testing.assert_allclose(reference(op, X=x, mask=mask).out, want, rtol=1e-12)


def test_a_wrong_result_is_found():
    op = Softmax(3, 64)
    x = np.random.default_rng(0).standard_normal((3, 64))
    expected = reference(op, X=x)
    wrong = expected.out.copy()
    wrong[1, 3] *= 1.001
    assert not compare(op, wrong, expected).ok
    assert compare(op, expected.out, expected).ok
