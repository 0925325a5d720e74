"""Emitted convolutions, compiled for their targets and executed by the simulator: exact on whole numbers, no report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from closedform.emission import broken_promises
from closedform.operators.conv2d import Conv2d
from closedform.visitors.compile import missing_dependency

from .conv2d_kernels import kernel, simulate
from .test_compute_conv2d import FAMILIES

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch"),
]

TARGETS = ("mi100", "mi210", "mi300x", "mi355x")
NHWC_3X3 = Conv2d(8, 128, 56, 56, 128, 3, 3, pad=1, dtype="f16")


def exact(hw: str, op: Conv2d, run_op: Conv2d | None = None, **fixed: Any) -> Any:
    result, out, want = simulate(hw, op, run_op, tuple(fixed.items()))
    assert result.ok, str(result)
    assert np.array_equal(out, want)
    derivation, binary = kernel(hw, op, tuple(fixed.items()))
    assert not broken_promises(derivation, binary)
    return result


#: A pairwise cover of targets, types, layouts and what an operator may ask for.
COVER = [
    ("mi100", Conv2d(2, 24, 9, 9, 20, 3, 3, pad=1, dtype="f32")),
    ("mi100", Conv2d(1, 16, 10, 7, 8, 3, 2, stride=2, pad=1, layout="NCHW", dtype="f16", activation="relu")),
    ("mi210", Conv2d(2, 12, 9, 9, 16, 1, 1, stride=2, layout="NCHW", dtype="f32", bias=True)),
    ("mi210", Conv2d(1, 40, 8, 9, 24, 3, 3, dilation=2, pad=(2, 1, 0, 3), dtype="bf16")),
    ("mi300x", Conv2d(1, 32, 12, 12, 40, 5, 5, pad=2, groups=2, dtype="bf16", bias=True)),
    ("mi300x", Conv2d(1, 9, 7, 11, 5, 3, 3, pad=1, dtype="f32", layout="NCHW", activation="relu")),
    ("mi355x", Conv2d(1, 64, 8, 8, 48, 3, 3, stride=(2, 1), pad=1, dtype="f16", out_dtype="f32")),
    ("mi355x", Conv2d(1, 3, 20, 18, 16, 7, 7, stride=2, pad=3, dtype="bf16", layout="NCHW")),
]


@pytest.mark.parametrize(("hw", "op"), COVER, ids=str)
def test_cover_is_exact(hw: str, op: Conv2d) -> None:
    exact(hw, op)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_is_exact(family: Any, replicated: bool, turn: int) -> None:
    """Families of the tree's test on every target; types and packed filters take turns."""
    layout, stride, pad, dilation, groups = family
    hw, number = TARGETS[turn], FAMILIES.index(family) + turn
    dtype = ("f32", "f16", "bf16" if hw != "mi100" else "f16")[number % 3]
    op = Conv2d(2, 6, 9, 11, 12, 3, 2, stride, pad, dilation, groups, layout, dtype=dtype, bias=groups == 2)
    op = replace(op, prepacked=number % 2 == 1)
    exact(hw, op, **({"replicate_h": 2, "replicate_w": 2} if replicated else {"replicate_h": 1, "replicate_w": 1}))


@pytest.mark.parametrize("hw", TARGETS)
def test_tiles_of_a_large_shape_are_exact_on_a_clipped_one(hw: str) -> None:
    dtype = "f32" if hw in ("mi100", "mi210") else "bf16"
    large = Conv2d(8, 128, 56, 56, 128, 3, 3, pad=1, dtype=dtype)
    small = Conv2d(1, 72, 10, 9, 40, 3, 3, pad=(1, 0, 0, 2), dtype=dtype)
    assert exact(hw, large, small).counts["lds_bank_conflict_cycles"] == 0


def test_taps_beyond_the_instruction_cache_are_looped() -> None:
    exact("mi300x", Conv2d(1, 64, 30, 20, 64, 20, 11, dtype="f16", stride=(3, 2)), tile_oc=64)
