import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from closedform.operators.monoid import LOG2_E, SoftmaxState, log2_scale, power

C = log2_scale(0.125)
logits = st.floats(-100, 100, width=32) | st.just(-np.inf)
states = arrays(np.float32, st.tuples(st.just(3), st.integers(1, 20)), elements=logits).map(
    lambda scores: SoftmaxState.of(scores, C)
)


def same(a, b):
    return np.array_equal(a.m, b.m) and np.allclose(a.l, b.l, rtol=1e-5, atol=0)


@given(states)
def test_identity_changes_nothing(a):
    identity = SoftmaxState.identity((3,))
    for both in (a.combine(identity, C), identity.combine(a, C)):
        assert np.array_equal(both.m, a.m)
        assert np.array_equal(both.l, a.l)


@given(states, states, states)
def test_combine_is_associative_and_commutative(a, b, c):
    assert same(a.combine(b, C), b.combine(a, C))
    assert same(a.combine(b, C).combine(c, C), a.combine(b.combine(c, C), C))


@given(states, arrays(np.float32, (3, 7), elements=logits))
def test_absorb_is_combine_with_new_keys(a, scores):
    after, p, rescale = a.absorb(scores, C)
    assert same(after, a.combine(SoftmaxState.of(scores, C), C))
    assert np.isfinite(p).all()
    assert np.isfinite(rescale).all()


@given(states)
def test_a_masked_tile_contributes_exactly_nothing(a):
    after, p, rescale = a.absorb(np.full((3, 5), -np.inf, np.float32), C)
    assert np.array_equal(after.m, a.m)
    assert np.array_equal(after.l, a.l)
    assert (p == 0).all()
    assert (rescale == np.where(np.isneginf(a.m), 0, 1)).all()


def test_nothing_seen_has_the_finite_value_zero():
    empty = SoftmaxState.of(np.full((2, 4), -np.inf, np.float32), C)
    assert empty.inverse().tolist() == [0.0, 0.0]
    assert SoftmaxState.identity((1,)).inverse().tolist() == [0.0]


def test_the_largest_weight_is_exactly_one_however_large_the_logits():
    """As s c - round(m c) by one multiply-add, the exponent would be the rounding error of m c."""
    for m in (-1e5, -1e12, -1e35, 1e35):
        scores = np.float32([[m, 2 * m, m / 2]])
        state = SoftmaxState.of(scores, C)
        assert state.m == scores.max()
        assert state.l == 1
        assert power(scores, state.m[:, None], C).max() == 1


def test_nan_and_infinity_reach_the_sum():
    with np.errstate(invalid="ignore"):
        state = SoftmaxState.of(np.float32([[np.nan, 1.0], [np.inf, 1.0]]), C)
    assert np.isnan(state.l[0])
    assert np.isposinf(state.l[1])
    assert np.isnan(state.inverse()).all()
    assert np.isnan(state.inverse()).all()


def test_scale_is_in_base_two():
    assert np.log2(np.e) == LOG2_E
    assert np.isclose(power(np.float32(1), np.float32(3), log2_scale(1.0)), np.exp(-2.0))
