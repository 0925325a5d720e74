"""Element types."""

import numpy as np
import pytest

from closedform.hw import BadInput, dtype
from closedform.hw.dtypes import ALIASES, DTYPES


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_lookup_returns_the_type_of_that_name(name):
    found = dtype(name)
    assert found.name == str(found) == name
    assert dtype(found) is found
    assert found.numpy.itemsize * 8 >= found.bits


@pytest.mark.parametrize("name", ["f64", "f32", "f16"])
def test_rounding_numbers_agree_with_numpy(name):
    info = np.finfo(dtype(name).numpy)
    assert dtype(name).unit_roundoff == info.eps / 2
    assert dtype(name).max_finite == info.max
    assert dtype(name).min_normal == info.tiny


@pytest.mark.parametrize(
    ("name", "roundoff"),
    [
        ("xf32", 2**-11),
        ("bf16", 2**-8),
        ("fp8_e4m3fn", 2**-4),
        ("bf8_e5m2fnuz", 2**-3),
        ("fp4_e2m1", 2**-2),
        ("i8", 0),
    ],
)
def test_unit_roundoff(name, roundoff):
    assert dtype(name).unit_roundoff == roundoff


def test_bytes():
    assert [dtype(name).bytes for name in ("f64", "xf32", "bf16", "i8", "fp8_e4m3fn")] == [8, 4, 2, 1, 1]
    with pytest.raises(BadInput, match="6 bits"):
        _ = dtype("fp6_e2m3").bytes


def test_unknown_name_suggests_near_ones():
    with pytest.raises(BadInput, match="did you mean bf16"):
        dtype("bfl16")
    with pytest.raises(BadInput, match="known: bf16"):
        dtype("quaternion")


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_alias_needs_a_gpu(alias):
    with pytest.raises(BadInput, match="depends on the GPU"):
        dtype(alias)
