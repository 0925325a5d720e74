"""Convolutions executed at every level, against torch in float64: layouts, strides, pads, dilations, groups, taps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform.hw.errors import BadInput
from closedform.operators.accuracy import compare
from closedform.operators.conv2d import Conv2d
from closedform.operators.level import Level
from closedform.operators.reference import reference
from closedform.visitors.compute import ComputeVisitor, input_shapes

from .conv2d_kernels import derived, expected

pytest.importorskip("torch")

#: layout, stride, pad, dilation, groups: a family of algorithms each, with and without taps as channels.
FAMILIES = [
    (layout, stride, pad, dilation, groups)
    for layout in ("NCHW", "NHWC")
    for stride, pad, dilation in (
        (1, 0, 1),
        (1, 1, 1),
        (2, 1, 1),
        (2, (0, 1, 2, 0), 1),
        (1, 2, 2),
        ((2, 3), (1, 0), (3, 1)),
    )
    for groups in (1, 2, 6)
]


def run(op: Conv2d, hw: str, level: Level, **fixed: Any) -> None:
    tiles = derived(hw, op, **fixed).require()[0]
    rng = np.random.default_rng(0)
    inputs = {name: rng.integers(-3, 4, shape).astype(float) for name, shape in input_shapes(op).items()}
    out = ComputeVisitor(level).run(op.tree(tiles), **inputs)
    want = expected(op, inputs["X"], inputs["W"], inputs.get("bias"))
    assert compare(op, out, reference(op, **inputs)).ok
    assert np.array_equal(out, want.astype(np.float32))


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_is_exact_at_every_level(family: Any, replicated: bool) -> None:
    layout, stride, pad, dilation, groups = family
    op = Conv2d(2, 6, 9, 11, 12, 3, 2, stride, pad, dilation, groups, layout, dtype="f32", bias=groups == 2)
    fixed = {"replicate_h": 2, "replicate_w": 2} if replicated else {"replicate_h": 1}
    for level in Level:
        run(op, "mi300x", level, **fixed)


small = st.integers(1, 4)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_small_shapes_are_exact(data: Any) -> None:
    draw = data.draw
    groups = draw(st.integers(1, 3))
    kernel = (draw(small), draw(small))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    op = Conv2d(
        draw(st.integers(1, 3)),
        groups * draw(small),
        reach[0] + draw(st.integers(0, 6)),
        reach[1] + draw(st.integers(0, 6)),
        groups * draw(small),
        *kernel,
        stride=(draw(small), draw(small)),
        pad=tuple(draw(st.integers(0, 3)) for _ in range(4)),
        dilation=dilation,
        groups=groups,
        layout=draw(st.sampled_from(("NCHW", "NHWC"))),
        dtype=draw(st.sampled_from(("f32", "f16", "bf16"))),
    )
    run(op, draw(st.sampled_from(("mi100", "mi210", "mi300x", "mi355x"))), draw(st.sampled_from(tuple(Level))))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"groups": 4}, "groups=4 does not divide IC=6"),
        ({"KH": 20}, "no output is left"),
        ({"N": 0}, "N=0"),
        ({"OC": 0}, "OC=0"),
        ({"layout": "NCWH"}, "known: NCHW, NHWC"),
        ({"dtype": "f64"}, "not offered for conv2d"),
        ({"stride": 0}, "stride=0"),
        ({"stride": (1, 2, 3)}, "one number or two"),
        ({"pad": -1}, "pad=-1"),
        ({"pad": (1, 1, -1, 0)}, "pad=-1"),
        ({"dilation": (1, 0)}, "dilation=0"),
        ({"activation": "tanh"}, "not offered"),
        ({"bias": "row"}, "True or False"),
    ],
)
def test_what_is_no_convolution_is_bad_input(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        Conv2d(**{"N": 1, "IC": 6, "IH": 8, "IW": 8, "OC": 4, "KH": 3, "KW": 3, "dtype": "f16", **wrong})
