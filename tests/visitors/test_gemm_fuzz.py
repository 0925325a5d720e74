"""Any setting of any product is refused by a named rule, or a kernel that compiles and keeps its promise."""

from __future__ import annotations

import random
from typing import Any

import pytest

from closedform.emission import broken_promises
from closedform.hw.errors import BadInput
from closedform.operators.gemm import ACTIVATIONS, BIASES, KNOBS, LAYOUTS, PRESHUFFLED, Gemm
from closedform.visitors.compile import compile_source
from closedform.visitors.emit import emit_source
from closedform.visitors.gemm_rules import RULES

from .gemm_checks import compiles
from .gemm_kernels import derived, offered

#: What each knob is set to, legal or not.
VALUES: dict[str, tuple[Any, ...]] = {
    "tile_m": (16, 32, 48, 64, 96, 128, 192, 256),
    "tile_n": (16, 32, 48, 64, 96, 128, 192, 256),
    "tile_k": (16, 32, 64, 128, 256),
    "wave_m": (1, 2, 3, 4, 8),
    "wave_n": (1, 2, 4, 8),
    "atom": ("32x32", "16x16"),
    "waves_per_simd": (1, 2, 3, 4),
    "split_k": (1, 2, 3, 7, 16),
    "split_algorithm": ("workspace", "single"),
    "stream_k": (0, 1, 40, 304),
    "group_m": (1, 3, 8),
    "xcds": (1, 2, 4, 7, 8),
    "stagger": (0, 1, 4, 7),
    "read_a": (1, 2, 4, 8, 16),
    "read_b": (1, 2, 4, 8, 16),
    "tail_a": (1, 2, 4, 8, 16),
    "tail_b": (1, 2, 4, 8, 16),
    "buffers": (1, 2, 3),
    "direct": (True, False),
    "pad": (0, 2, 4, 8, 16, 32),
    "lds_read": (1, 2, 4, 8, 16),
    "lds_write": (1, 2, 4, 8, 16),
    "store": (1, 2, 4, 8),
    "pinned": (True, False),
}
EXTENTS = (1, 16, 100, 256, 1000, 4096)
#: Settings drawn for each target: a few by default, all of them with `-m slow`; half of them are legal.
FEW, ALL = 20, 640


def setting(seed: int, hw: str) -> tuple[Gemm, dict[str, Any]]:
    """A product and one to four fixed knobs."""
    draw = random.Random(seed)
    M, N, K = (draw.choice(EXTENTS) for _ in "MNK")
    plain = draw.random() < 0.5
    op = Gemm(
        M,
        N,
        K,
        dtype=draw.choice(offered(hw)),
        batch=draw.choice((1, 1, 3)),
        layout=draw.choice(LAYOUTS),
        has_c=not plain and draw.random() < 0.5,
        bias="none" if plain else draw.choice(BIASES),
        activation="none" if plain else draw.choice(ACTIVATIONS),
        preshuffled=draw.choice(PRESHUFFLED) if draw.random() < 0.2 else "none",
    )
    knobs = draw.sample(sorted(VALUES), draw.randint(1, 4))
    return op, {knob: draw.choice(VALUES[knob]) for knob in knobs}


def holds(hw: str, seed: int) -> bool:
    """Whether the setting is legal; then it has been compiled and found to keep its promise."""
    op, knobs = setting(seed, hw)
    try:
        derivation = derived(hw, op, **knobs)
    except BadInput:
        assert "atom" in knobs  # the target has no such shape for the type
        return False
    if derivation.infeasible is not None:
        assert derivation.infeasible.resource in {*(rule.name for rule in RULES), "whole atoms"}
        return False
    assert broken_promises(derivation, compile_source(emit_source(derivation), derivation.hw.gfx)) == []
    return True


def test_every_knob_is_drawn() -> None:
    assert set(VALUES) == {knob.name for knob in KNOBS}


@pytest.mark.parametrize("hw", ["mi300x", "mi355x"])
def test_enough_settings_are_legal(hw: str) -> None:
    legal = 0
    for seed in range(ALL):
        op, knobs = setting(seed, hw)
        legal += "atom" in knobs or derived(hw, op, **knobs).feasible
    assert legal >= 300


@compiles
@pytest.mark.parametrize("hw", ["mi300x", "mi355x"])
def test_a_few_settings(hw: str) -> None:
    legal = sum(holds(hw, seed) for seed in range(FEW))
    assert legal


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEW, ALL))
@pytest.mark.parametrize("hw", ["mi300x", "mi355x"])
def test_every_setting(hw: str, seed: int) -> None:
    holds(hw, seed)
