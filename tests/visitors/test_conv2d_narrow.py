"""Convolutions of 8-bit types: i8, and the 8-bit floats of the target; refused where it has no atom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from closedform.emission import broken_promises
from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.operators.conv2d import Conv2d
from closedform.visitors.compile import missing_dependency
from closedform.visitors.feasibility import derive

from .conv2d_kernels import kernel, simulate

needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")
I8 = Conv2d(2, 24, 9, 9, 20, 3, 3, pad=1, dtype="i8")
LARGE: dict[str, Any] = {"N": 8, "IC": 128, "IH": 56, "IW": 56, "OC": 128, "KH": 3, "KW": 3, "pad": 1}
COVER = [
    ("mi100", Conv2d(1, 20, 8, 7, 12, 3, 2, stride=2, pad=1, dtype="i8", out_dtype="f32", bias=True)),
    ("mi210", Conv2d(1, 16, 7, 8, 16, 3, 3, dtype="i8", layout="NCHW", bias=True, activation="relu")),
    ("mi300x", Conv2d(1, 32, 8, 9, 16, 3, 3, pad=1, dtype="fp8_e4m3fnuz", out_dtype="f16", bias=True)),
    ("mi300x", Conv2d(1, 64, 6, 6, 16, 3, 3, groups=2, dtype="bf8_e5m2fnuz", prepacked=True)),
    ("mi355x", Conv2d(1, 128, 8, 8, 16, 3, 3, dilation=2, pad=2, dtype="bf8_e5m2", activation="relu")),
    ("mi355x", Conv2d(1, 3, 12, 12, 16, 3, 3, stride=2, pad=1, layout="NCHW", dtype="i8", out_dtype="bf16")),
    ("mi355x", Conv2d(1, 3, 9, 9, 16, 3, 3, dtype="fp8_e4m3fn")),
    # Every channel by itself, of filters in registers: masks of all of them spilled scalar registers.
    ("mi100", Conv2d(1, 7, 9, 13, 2, 1, 2, (2, 4), 0, (1, 2), layout="NCHW", dtype="i8", bias=True, prepacked=True)),
]


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(("hw", "op"), COVER, ids=str)
def test_cover_is_exact(hw: str, op: Conv2d) -> None:
    result, out, want = simulate(hw, op)
    assert result.ok, str(result)
    assert np.array_equal(out, want)
    assert not broken_promises(*kernel(hw, op))


@needs_compiler
@pytest.mark.compile
def test_every_number_of_i8() -> None:
    """Sums of the largest products are whole, to the last bit of i32."""
    rng = np.random.default_rng(5)
    x, w = (rng.integers(-128, 128, shape) for shape in (I8.shape_x, I8.shape_w))
    x[0], w[:10] = -128, -128
    result, out, want = simulate("mi300x", I8, x=x, w=w)
    assert result.ok, str(result)
    assert np.array_equal(out, want)
    assert out.max() == 24 * 9 * 128 * 128


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(("hw", "dtype"), [("mi300x", "i8"), ("mi355x", "fp8_e4m3fn")])
def test_a_large_shape_keeps_its_promise(hw: str, dtype: str) -> None:
    derivation, binary = kernel(hw, Conv2d(**LARGE, dtype=dtype))
    assert not broken_promises(derivation, binary)
    assert (binary.vgpr_spills, binary.scratch_bytes) == (0, 0)


def test_types_of_the_result() -> None:
    results = [Conv2d(1, 1, 1, 1, 1, 1, 1, dtype=name).result for name in ("i8", "bf8_e5m2", "f16")]
    assert results == ["i32", "f32", "f16"]


@pytest.mark.parametrize(
    ("hw", "dtype"),
    [("mi100", "fp8_e4m3fnuz"), ("mi210", "bf8_e5m2fnuz"), ("mi300x", "fp8_e4m3fn"), ("mi355x", "bf8_e5m2fnuz")],
)
def test_a_type_that_the_target_lacks_is_refused_by_name(hw: str, dtype: str) -> None:
    with pytest.raises(BadInput, match=f"{dtype}|fp8|bf8"):
        derive(Conv2d(**LARGE, dtype=dtype), catalogue.get(hw))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "f16", "out_dtype": "i32"}, "only sums of i8"),
        ({"dtype": "i8", "activation": "silu"}, "use relu for i32"),
        ({"dtype": "i8", "out_dtype": "i8"}, "out_dtype='i8'"),
        ({"dtype": "f64"}, "dtype='f64'"),
    ],
)
def test_conversions_that_cannot_be_right_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Conv2d(**LARGE, **fields)
