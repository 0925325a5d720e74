import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput
from closedform.operators.numerics import accumulator, rounded

words = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50)


@given(words)
def test_bf16_rounds_as_ml_dtypes_does(bits):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array(bits, np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(rounded(x, "bf16"), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@given(x=st.floats(-6e4, 6e4).filter(lambda x: abs(x) > 1e-4))
def test_rounding_is_within_the_roundoff_and_idempotent(name, x):
    once = rounded(x, name)
    assert abs(float(once) - x) <= dtype(name).unit_roundoff * abs(x)
    assert rounded(once, name) == once


def test_ties_go_to_even_and_overflow_to_infinity():
    assert rounded(1 + 2.0**-8, "bf16") == 1
    assert rounded(1 + 3 * 2.0**-8, "bf16") == 1 + 2.0**-6
    assert rounded(1 + 2.0**-11, "f16") == 1
    assert rounded([3.4e38, -3.4e38], "bf16").tolist() == [np.inf, -np.inf]
    assert rounded(7e4, "f16") == np.inf
    assert np.isnan(rounded(np.nan, "bf16"))


def test_values_are_kept_in_the_type_that_sums_have():
    assert rounded([1, 2], "f64").dtype == accumulator("f64") == np.float64
    for name in ("f32", "f16", "bf16"):
        assert rounded([1, 2], name).dtype == accumulator(name) == np.float32
    with pytest.raises(BadInput, match="fp4_e2m1"):
        rounded([1.0], "fp4_e2m1")
