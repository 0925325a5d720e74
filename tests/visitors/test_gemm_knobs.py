"""Knobs of LDS and of the walk along k of emitted GEMMs, and the memory around their operands."""

from __future__ import annotations

import dataclasses
import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from closedform.emission import broken_promises
from closedform.operators.gemm import LAYOUTS
from closedform.visitors.emit import emit_source, kernel_name
from closedform.visitors.gemm_formulas import GEMM

from .gemm_checks import Knobs, compiles, exact, op_of
from .gemm_kernels import derived, kernel, simulate

TARGETS = ("mi100", "mi210", "mi300x", "mi355x")

# --- LDS: pad, width of reads and writes --------------------------------------------------------------------------

SMALL = (("tile_m", 64), ("tile_n", 64))


def test_lds_counts_the_pad() -> None:
    for pad in (0, 8, 16):
        derivation = derived("mi300x", op_of(4096, 4096, 4096), **dict(SMALL), buffers=2, pad=pad)
        assert derivation.require()[1].lds_bytes == 2 * (64 + 64) * (64 + pad) * 2
    assert derived("mi300x", op_of(4096, 4096, 4096)).require()[0].pad == 0


@pytest.mark.parametrize("hw", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_pad_alone_derives_tiles_that_fit(hw: str, dtype: str) -> None:
    pad = 16 // {"f32": 4}.get(dtype, 2)
    tiles, resources, _ = derived(hw, op_of(4096, 4096, 4096, dtype), pad=pad).require()
    assert (tiles.pad, tiles.direct) == (pad, False)
    assert resources.lds_bytes <= resources.lds_limit_bytes


@pytest.mark.parametrize(
    ("rule", "knobs"),
    [
        ("pad", {"pad": 4}),
        ("direct pad", {"pad": 8, "direct": True, "buffers": 2}),
        ("LDS", {"pad": 64, "tile_m": 256, "tile_n": 256}),
        ("LDS access width", {"lds_read": 2}),
        ("LDS access width", {"lds_write": 16}),
    ],
)
def test_every_illegal_setting_names_its_rule(rule: str, knobs: dict[str, Any]) -> None:
    hw = "mi355x" if "direct" in knobs else "mi300x"
    reason = derived(hw, op_of(4096, 4096, 4096), **{**dict(SMALL), **knobs}).infeasible
    assert reason is not None
    assert reason.resource == rule


def test_the_explanation_says_what_a_pad_would_cost() -> None:
    derivation = derived("mi300x", op_of(4096, 4096, 4096))
    steps = {step.formula.symbol: step.value for step in derivation.steps}
    assert steps["pad_min"] == 8
    assert steps["LDS_pad"] == (256 + 256) * 8 * 2
    assert GEMM.pad(lanes=64, m=16, elem_bytes=4).value == 8


#: A pairwise cover of targets, layouts, types and the LDS knobs, with one and two buffers.
LDS_COVER: list[tuple[str, str, str, Knobs]] = [
    ("mi300x", "bf16", "NT", (("pad", 8),)),
    ("mi300x", "bf16", "TN", (("pad", 16), ("buffers", 2), *SMALL)),
    ("mi300x", "f32", "NN", (("pad", 4), ("lds_read", 2))),
    ("mi355x", "f16", "TT", (("pad", 8), ("lds_write", 4))),
    ("mi355x", "bf16", "NT", (("lds_read", 4),)),  # direct
    ("mi100", "f32", "NT", (("pad", 8), ("lds_read", 2), ("lds_write", 2))),
    ("mi210", "bf16", "NN", (("lds_read", 4), ("lds_write", 4), ("tile_m", 48), ("tile_n", 64))),  # guarded writes
    ("mi300x", "fp8_e4m3fnuz", "TN", (("lds_read", 8), ("lds_write", 8), ("pad", 16))),
    ("mi300x", "f64", "NT", (("lds_read", 1), ("pad", 2))),
    ("mi355x", "fp8_e4m3fn", "NN", (("lds_read", 8), ("pad", 32))),
]


def check_lds(hw: str, dtype: str, layout: str, fixed: Knobs) -> None:
    op = op_of(4096, 4096, 4096, dtype, layout)
    derivation, binary = kernel(hw, op, fixed)
    assert broken_promises(derivation, binary) == []
    half = {name: derivation.tiles and getattr(derivation.tiles, name) * op.elem_bytes == 8 for name in WIDTHS}
    for name, (mnemonic, wide) in WIDTHS.items():
        found = {width: len(re.findall(rf"\s{mnemonic}_{width}\s", binary.isa)) for width in ("b64", wide)}
        assert (found["b64"] > 0) == half[name]
        assert (found[wide] > 0) != half[name]
    assert not re.search(r"ds_(read|write)2", binary.isa)
    exact(hw, op, fixed, op_of(72, 144, 208, dtype, layout))


#: Pads in chunks, LDS reads and writes of a chunk, atoms: every pair of settings.
PAIRWISE = [
    *((0, 2, 1, "16x16"), (0, 1, 2, "32x32"), (1, 1, 1, "16x16")),
    *((1, 2, 2, "32x32"), (2, 2, 1, "32x32"), (2, 1, 2, "16x16"), (1, 2, 2, "16x16")),
]
SLOW_ATOMS = [("mi300x", "32x32"), ("mi355x", "16x16"), ("mi355x", "32x32")]
WIDTHS = {"lds_read": ("ds_read", "b128"), "lds_write": ("ds_write", "b128")}


@compiles
@pytest.mark.parametrize(("hw", "dtype", "layout", "fixed"), LDS_COVER)
def test_lds_knobs(hw: str, dtype: str, layout: str, fixed: Knobs) -> None:
    check_lds(hw, dtype, layout, fixed)


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("hw", TARGETS)
def test_lds_knobs_at_length(hw: str, dtype: str, layout: str) -> None:
    vec = 4 if dtype == "f32" else 8
    for pad, read, write, atom in PAIRWISE:
        knobs = (("pad", pad * vec), ("lds_read", vec // read), ("lds_write", vec // write), ("atom", atom))
        check_lds(hw, dtype, layout, (*SMALL, *knobs))


@compiles
@pytest.mark.parametrize(
    ("hw", "atom"), [("mi300x", "16x16"), *(pytest.param(*x, marks=pytest.mark.slow) for x in SLOW_ATOMS)]
)
def test_the_smallest_pad_has_no_bank_conflict(hw: str, atom: str) -> None:
    op, side = op_of(64, 64, 128), int(atom[:2])
    pad = GEMM.pad(lanes=64, m=side, elem_bytes=2).value
    fixed = (*SMALL, ("wave_m", 1), ("wave_n", 2), ("atom", atom), ("direct", False))
    lost = {}
    for name, knobs in (("swizzle", {}), ("pad", {"pad": pad}), ("halves", {"lds_read": 4})):
        result, _ = exact(hw, op, (*fixed, *knobs.items()))
        lost[name] = result.counts["lds_bank_conflict_cycles"]
    assert lost["swizzle"] == lost["pad"] == 0
    assert lost["halves"] > 0


# --- stagger ------------------------------------------------------------------------------------------------------

STAGGER_COVER: list[tuple[str, str, str, Knobs]] = [
    ("mi300x", "bf16", "NT", (("buffers", 1),)),
    ("mi300x", "bf16", "TN", (("buffers", 2),)),
    ("mi300x", "f32", "NN", (("buffers", 1),)),
    ("mi355x", "bf16", "NT", (("buffers", 2), ("direct", True))),
    ("mi355x", "f16", "TT", (("buffers", 2),)),
    ("mi100", "f32", "NT", (("buffers", 1),)),
]


def staggered(hw: str, dtype: str, layout: str, fixed: Knobs, stagger: int, shape: tuple[int, int, int]) -> Any:
    knobs = (*SMALL, *fixed, ("stagger", stagger))
    return exact(hw, op_of(4096, 4096, 4096, dtype, layout), knobs, op_of(*shape, dtype, layout))


@compiles
@pytest.mark.parametrize(("hw", "dtype", "layout", "fixed"), STAGGER_COVER)
def test_staggered_starts_are_exact(hw: str, dtype: str, layout: str, fixed: Knobs) -> None:
    """Whole tiles, a partial last one, fewer tiles than starts, fewer terms than a tile."""
    tile = 32 if dtype == "f32" else 64
    for K in (8 * tile, 5 * tile + 24, 24, 0):
        staggered(hw, dtype, layout, fixed, 4, (72, 136, K))


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("stagger", [2, 3, 8, 32])
@pytest.mark.parametrize(("hw", "dtype", "layout", "fixed"), STAGGER_COVER)
def test_staggered_starts_are_exact_at_length(hw: str, dtype: str, layout: str, fixed: Knobs, stagger: int) -> None:
    for tiles, rest in product((1, 2, 7, 16, 33), (0, 8)):
        staggered(hw, dtype, layout, fixed, stagger, (200, 136, tiles * (32 if dtype == "f32" else 64) + rest))


@compiles
def test_staggered_sums_have_another_order_and_the_same_bits_every_time() -> None:
    op = op_of(72, 72, 512, "f32")
    rng = np.random.default_rng(5)
    inputs = {name: rng.standard_normal((1, 72, 512)) for name in "AB"}
    plain, turned, again = (
        simulate("mi300x", op, op, (*SMALL, ("stagger", stagger)), inputs=inputs)[1] for stagger in (0, 8, 8)
    )
    assert np.array_equal(turned, again)
    assert np.array_equal(plain[0, :64, :64], turned[0, :64, :64])  # the first tile starts at the first
    assert not np.array_equal(plain, turned)
    assert np.allclose(plain, turned, rtol=1e-4, atol=1e-3)


def test_stagger_is_off_by_default_and_leaves_no_trace() -> None:
    plain = derived("mi300x", op_of(4096, 4096, 4096))
    assert plain.require()[0].stagger == 0
    assert "stagger" not in emit_source(plain).lower()
    assert emit_source(derived("mi300x", op_of(4096, 4096, 4096), stagger=1)) == emit_source(plain)


def test_knobs_tell_kernel_names_apart() -> None:
    knobs = ({}, {"pad": 8}, {"lds_read": 4}, {"lds_write": 4}, {"stagger": 4}, {"stagger": 8})
    names = {kernel_name(derived("mi300x", op_of(4096, 4096, 4096), **dict(SMALL), **k)) for k in knobs}
    assert len(names) == len(knobs)


# --- memory around the operands -----------------------------------------------------------------------------------


@compiles
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_further_apart_than_they_are_long(layout: str) -> None:
    """Leading dimensions of every operand, odd and whole accesses, with NaN between the rows."""
    rows = op_of(70, 52, 88, "bf16", layout)
    for more in (3, 8) if layout in ("NT", "TN") else (3,):
        fields = {"lda": rows.shape_a[1] + more, "ldb": rows.shape_b[1] + more, "ldd": rows.N + more}
        op = op_of(70, 52, 88, "bf16", layout, has_c=True, bias="row", **fields)
        exact("mi300x" if more == 3 else "mi355x", op, beta=1.0)


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "fp8_e4m3fnuz", "i8"])
def test_rows_further_apart_at_length(dtype: str, layout: str) -> None:
    rows = op_of(70, 52, 88, dtype, layout, batch=2)
    for a, b, d in product((1, 4), (2, 16), (1, 4)):
        fields = {"lda": rows.shape_a[1] + a, "ldb": rows.shape_b[1] + b, "ldd": rows.N + d}
        exact("mi300x", dataclasses.replace(rows, has_c=True, **fields), beta=1.0)
