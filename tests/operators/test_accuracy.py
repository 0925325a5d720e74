import numpy as np
import pytest

from closedform.hw.dtypes import dtype
from closedform.operators.accuracy import compare, error_bound, relative_error
from closedform.operators.attention import Attention
from closedform.operators.attention_reference import attention_reference
from closedform.operators.gemm import Gemm
from closedform.operators.numerics import rounded
from closedform.operators.reference import reference

rng = np.random.default_rng(0)


def draw(*shape):
    return rng.standard_normal(shape)


def test_relative_error_is_by_row():
    exact = np.array([[1.0, -4.0], [0.0, 0.0], [100.0, 1.0]])
    assert relative_error(exact, exact).tolist() == [0, 0, 0]
    assert relative_error(exact + np.array([[1.0], [0.0], [1.0]]), exact).tolist() == [0.25, 0, 0.01]
    assert relative_error(exact + 1e-30, exact)[1] == np.inf


def attend(q, k, v, scale):
    """Attention of [batch, heads, L, d] arrays, or of [L, d] ones."""
    q, k, v = (x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (q, k, v))
    op = Attention(q.shape[2], k.shape[2], q.shape[3], *q.shape[:2], softmax_scale=scale)
    return attention_reference(op, {"Q": q, "K": k, "V": v})[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_be_met_exactly(bad):
    exact = np.array([[bad, 2.0]])
    assert relative_error(np.array([[bad, 2.5]]), exact).tolist() == [0.25]
    others = [x for x in (np.nan, np.inf, -np.inf, 7.0) if not np.array_equal(x, bad, equal_nan=True)]
    for other in others:
        assert relative_error(np.array([[other, 2.0]]), exact).tolist() == [np.inf]
    assert relative_error(np.array([[2.0, bad]]), np.array([[2.0, 3.0]])).tolist() == [np.inf]


def test_the_reference_is_plain_softmax_attention():
    q, k, v = draw(2, 3, 5, 8), draw(2, 3, 9, 8), draw(2, 3, 9, 8)
    p = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(8))
    expected = (p / p.sum(-1, keepdims=True)) @ v
    assert np.allclose(attend(q, k, v, 8**-0.5).out, expected, rtol=1e-13)


def test_the_reference_rounds_its_inputs():
    op = Attention(5, 9, 8, dtype="bf16")
    q, k, v = draw(1, 1, 5, 8), draw(1, 1, 9, 8), draw(1, 1, 9, 8)
    exact = [rounded(x, "bf16").astype(np.float64) for x in (q, k, v)]
    assert np.array_equal(reference(op, Q=q, K=k, V=v).out, attend(*exact, op.scale).out)


def test_a_long_reference_is_computed_in_parts(monkeypatch):
    q, k, v = draw(2, 1, 50, 8), draw(2, 1, 9, 8), draw(2, 1, 9, 8)
    whole = attend(q, k, v, 0.3)
    monkeypatch.setattr("closedform.operators.attention_reference.SCORES_AT_ONCE", 7 * 2 * 9)
    parts = attend(q, k, v, 0.3)
    for field in ("out", "size", "growth", "lost"):
        assert np.allclose(getattr(parts, field), getattr(whole, field), rtol=1e-12)
        assert getattr(parts, field).shape == q.shape


def test_rows_without_visible_keys_are_zero_in_the_reference():
    q, k, v = np.ones((2, 1)), np.full((3, 1), -np.inf), draw(3, 1)
    ref = attend(q, k, v, 1.0)
    assert (ref.out == 0).all()
    with np.errstate(invalid="ignore"):
        assert np.isnan(attend(q, k * np.nan, v, 1.0).out).all()


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_gemm_reference_follows_the_layout(layout):
    op = Gemm(3, 4, 5, dtype="f64", layout=layout)
    a, b = draw(1, *op.shape_a), draw(1, *op.shape_b)
    subscripts = {"N": "bmk", "T": "bkm"}[layout[0]] + "," + {"N": "bkn", "T": "bnk"}[layout[1]]
    exact = np.einsum(subscripts + "->bmn", a, b)
    assert np.allclose(reference(op, A=a, B=b).out, exact, rtol=1e-12)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_the_bound_is_the_rounding_of_the_type_and_little_more(name):
    """One key: P is exactly 1 and the result is V itself. Many: P is rounded as well, and terms cancel."""
    u = dtype(name).unit_roundoff
    v = dtype("f32").unit_roundoff
    single = Attention(20, 1, 64, dtype=name)
    inputs = {"Q": draw(1, 1, 20, 64), "K": draw(1, 1, 1, 64), "V": draw(1, 1, 1, 64)}
    assert error_bound(single, reference(single, **inputs)).max() < 2 * u + 250 * v
    many = Attention(20, 300, 64, dtype=name)
    inputs = {"Q": draw(1, 1, 20, 64), "K": draw(1, 1, 300, 64), "V": draw(1, 1, 300, 64)}
    assert error_bound(many, reference(many, **inputs)).max() < (2 * u if name != "f32" else u) + 150 * v


@pytest.mark.parametrize(("name", "limit"), [("f64", 1e-14), ("f32", 4e-6), ("f16", 5e-4), ("bf16", 4e-3)])
def test_the_gemm_bound_is_the_rounding_of_the_type_and_little_more(name, limit):
    op = Gemm(40, 50, 300, dtype=name)
    assert error_bound(op, reference(op, A=draw(1, 40, 300), B=draw(1, 300, 50))).max() < limit


def test_an_error_past_its_row_bound_is_refused():
    op = Attention(6, 40, 16, dtype="f16")
    ref = reference(op, Q=draw(1, 1, 6, 16), K=draw(1, 1, 40, 16), V=draw(1, 1, 40, 16))
    good = compare(op, rounded(ref.out, "f16"), ref)
    assert good.ok
    assert 0 < good.share < 1
    assert good.max_rel_error <= 2.0**-11
    wrong = ref.out.copy()
    wrong[0, 0, 3, 2] += 3 * good.bound * ref.size[0, 0, 3].max()
    verdict = compare(op, wrong, ref)
    assert not verdict.ok
    assert verdict.share > 1
    assert verdict.max_rel_error > verdict.bound


def test_a_sum_without_terms_must_be_met_exactly() -> None:
    op = Gemm(3, 4, 0)
    ref = reference(op, A=np.zeros((1, 3, 0)), B=np.zeros((1, 0, 4)))
    assert error_bound(op, ref).max() == 0
    assert compare(op, np.zeros((1, 3, 4)), ref).ok
    assert not compare(op, np.full((1, 3, 4), 1e-30), ref).ok
