"""Knobs of convolutions: any setting is refused by a named rule, or a kernel that is exact and keeps its promise."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from closedform.emission import broken_promises
from closedform.hw.errors import BadInput
from closedform.operators.conv2d import KNOBS, LAYOUTS, Conv2d
from closedform.visitors.compile import missing_dependency
from closedform.visitors.conv2d_rules import RULES

from .conv2d_kernels import derived, kernel, simulate

compiles = pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")

#: What each knob is set to, legal or not.
VALUES: dict[str, tuple[Any, ...]] = {
    "tile_oc": (16, 32, 64, 128, 256),
    "tile_n": (1, 2, 4),
    "tile_h": (1, 2, 4, 8, 16),
    "tile_w": (1, 2, 4, 8, 16),
    "tile_ic": (8, 16, 32, 64, 128),
    "wave_oc": (1, 2, 4, 8),
    "wave_px": (1, 2, 4, 8),
    "atom": ("32x32", "16x16"),
    "replicate_h": (1, 2, 3, 5),
    "replicate_w": (1, 2, 3, 5),
    "gap": (0, 1, 4, 8, 16),
    "pitch": (1, 7, 10, 18, 40),
    "image": (1, 30, 100, 400),
    "read_x": (1, 2, 3, 4, 8, 16),
    "read_w": (1, 2, 4, 8, 16),
    "store": (1, 2, 3, 4, 8),
    "waves_per_simd": (1, 2, 3, 4, 8),
    "kernel": ("mfma", "vector"),
}
TARGETS = {"mi100": "f32", "mi210": "bf16", "mi300x": "f16", "mi355x": "f16"}
#: Settings drawn for each target: a few by default, all of them with `-m slow`.
FEW, ALL = 8, 160


def setting(seed: int, hw: str) -> tuple[Conv2d, dict[str, Any]]:
    """A small convolution and one to three fixed knobs."""
    draw = random.Random(seed)
    kernel, channels = draw.choice((1, 2, 3, 5)), draw.choice((1, 2, 3, 4, 8, 12, 33, 64))
    groups = draw.choice((1, 1, 2))
    op = Conv2d(
        draw.choice((1, 3)),
        channels * groups,
        draw.choice((5, 9, 16)),
        draw.choice((6, 8, 16)),
        draw.choice((5, 16, 40)) * groups,
        kernel,
        draw.choice((kernel, 1)),
        stride=draw.choice((1, 1, 2)),
        pad=draw.choice((0, 1, (2, 0, 1, 0))),
        dilation=draw.choice((1, 1, 2)) if kernel < 5 else 1,
        groups=groups,
        layout=draw.choice(LAYOUTS),
        dtype=TARGETS[hw],
        prepacked=draw.random() < 0.3,
    )
    knobs = draw.sample(sorted(VALUES), draw.randint(1, 3))
    return op, {knob: draw.choice(VALUES[knob]) for knob in knobs}


def holds(hw: str, seed: int) -> bool:
    """Whether the setting is legal; then its kernel has been executed, is exact and keeps its promise."""
    try:
        op, knobs = setting(seed, hw)
        derivation = derived(hw, op, **knobs)
    except BadInput:
        return False
    if derivation.infeasible is not None:
        assert derivation.infeasible.resource in {*(rule.name for rule in RULES)}
        return False
    fixed = tuple(knobs.items())
    result, out, want = simulate(hw, op, None, fixed)
    assert result.ok, str(result)
    assert np.array_equal(out, want)
    assert broken_promises(*kernel(hw, op, fixed)) == []
    return True


def test_every_knob_is_drawn() -> None:
    assert set(VALUES) == {knob.name for knob in KNOBS}


def test_rules_have_names_and_ways_out() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.way_out for rule in RULES)


@compiles
@pytest.mark.compile
@pytest.mark.parametrize("hw", TARGETS)
def test_a_few_settings(hw: str) -> None:
    assert sum(holds(hw, seed) for seed in range(FEW))


@compiles
@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEW, ALL))
@pytest.mark.parametrize("hw", TARGETS)
def test_every_setting(hw: str, seed: int) -> None:
    holds(hw, seed)


OP = Conv2d(2, 8, 12, 12, 32, 3, 3, pad=1, dtype="f16")
BROKEN: dict[str, tuple[Conv2d, dict[str, Any]]] = {
    "work-items": (OP, {"wave_oc": 4, "wave_px": 8, "tile_oc": 256, "tile_h": 16, "tile_w": 16}),
    "channels of a slice": (OP, {"tile_ic": 8, "atom": "32x32"}),
    "taps as channels": (OP, {"replicate_h": 5, "replicate_w": 1}),
    "gap": (OP, {"gap": 4}),
    "pitch": (OP, {"pitch": 1, "tile_w": 8}),
    "width of a read": (OP, {"read_x": 16}),
    "width of a store": (OP, {"store": 3}),
    "waves per SIMD": (OP, {"waves_per_simd": 9}),
    "gathered slices": (Conv2d(1, 3, 24, 24, 16, 7, 7, dtype="f16", dilation=2), {"replicate_h": 7, "replicate_w": 7}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_rule_forbids_is_refused_by_its_name(name: str) -> None:
    op, knobs = BROKEN[name]
    derivation = derived("mi300x", op, **knobs)
    assert derivation.infeasible is not None
    assert derivation.infeasible.resource == name


@compiles
@pytest.mark.compile
@pytest.mark.parametrize(
    ("hw", "layout", "factors"),
    [("mi300x", "NHWC", (2, 2)), ("mi100", "NCHW", (2, 2)), ("mi210", "NCHW", (1, 2)), ("mi355x", "NHWC", (2, 1))],
)
def test_taps_past_the_filter_multiply_nothing(hw: str, layout: str, factors: tuple[int, int]) -> None:
    """Factors that do not divide the filter leave channels without a tap: 0 times an infinity would be NaN there."""
    op = Conv2d(1, 3, 9, 8, 20, 3, 3, pad=1, dtype=TARGETS[hw], layout=layout, prepacked=hw == "mi210")
    x = np.random.default_rng(1).integers(-2, 3, op.shape_x).astype(float)
    x.flat[[7, 33, 70]] = np.inf, np.nan, -np.inf
    fixed = (("replicate_h", factors[0]), ("replicate_w", factors[1]))
    result, out, want = simulate(hw, op, None, fixed, x=x)
    assert result.ok, str(result)
    assert 0 < np.isnan(want).sum() < want.size / 2
    assert np.array_equal(out, want, equal_nan=True)


PATCHES = [
    (Conv2d(2, 3, 64, 64, 48, 16, 16, stride=16, dtype="f16"), 8),
    (Conv2d(2, 3, 64, 64, 48, 16, 16, stride=16, dtype="f16", layout="NCHW"), 8),
    (Conv2d(1, 4, 18, 20, 16, 5, 4, stride=4, pad=(2, 1, 4, 0), dtype="f16", layout="NCHW"), 4),
    (Conv2d(1, 8, 9, 9, 16, 3, 3, pad=1, dtype="f16", groups=2), 4),
    (Conv2d(1, 2, 9, 12, 16, 3, 3, pad=1, dtype="f16", dilation=(2, 1)), 2),
]


@compiles
@pytest.mark.compile
@pytest.mark.parametrize(("op", "read"), PATCHES, ids=str)
def test_taps_that_lie_together_are_loaded_together(op: Conv2d, read: int) -> None:
    derivation, _ = kernel("mi300x", op)
    tiles = derivation.require()[0]
    assert tiles.replicate_h * tiles.replicate_w > 1
    assert tiles.read_x == read
    result, out, want = simulate("mi300x", op)
    assert result.ok, str(result)
    assert np.array_equal(out, want)
