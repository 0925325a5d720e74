"""Inputs that need care: infinities, NaN, huge logits, tiles and rows without a visible key."""

import numpy as np
import pytest

from closedform.hw import catalogue
from closedform.hw.dtypes import dtype
from closedform.operators.accuracy import compare, relative_error
from closedform.operators.attention import VARIANTS, Attention, AttentionTiles
from closedform.operators.level import Level
from closedform.operators.numerics import rounded
from closedform.operators.reference import reference
from closedform.visitors.compute import ComputeVisitor, input_shapes

NAMES = {
    "f32": "v_mfma_f32_32x32x2_f32",
    "f16": "v_mfma_f32_16x16x16_f16",
    "bf16": "v_mfma_f32_32x32x8_bf16",
}
LEVELS = list(Level)


def run(op, level, **inputs):
    atom = next(a for a in catalogue.get("mi300x").atoms if a.instruction == NAMES[op.dtype])
    tiles = AttentionTiles(32, 32, 2, 1, -(-op.d // 32) * 32, atom)
    return ComputeVisitor(level).run(op.tree(tiles), **inputs)


def inputs_of(op, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in input_shapes(op).items()}


def constant_logits(op, q, k):
    """Every logit is q k, for d = 1."""
    inputs = inputs_of(op)
    return {**inputs, "Q": np.full_like(inputs["Q"], q), "K": np.full_like(inputs["K"], k)}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("name", "q", "k"),
    [
        ("f32", -250.0, 400.0),
        ("f16", -250.0, 400.0),
        ("bf16", -250.0, 400.0),
        ("f16", -65504.0, 65504.0),
        ("f32", -1e17, 1e18),
        ("f32", 1e17, 1e18),
        ("bf16", -1e17, 1e18),
    ],
)
def test_huge_logits_are_right(name, q, k, level, variant):
    """Logits of -1e5, -4e9 and 1e35 in size, every second one half as large, in tiles of 32 with padding.

    No finite stand-in for -inf may exist between them and the padding, and no exponent may carry the
    rounding error of a large product. The result is the mean of V over the keys with the largest logit.
    """
    op = Attention(5, 70, 1, dtype=name, variant=variant)
    inputs = constant_logits(op, q, k)
    inputs["K"][:, :, ::2] *= 0.5
    first = 0 if q * k < 0 else 1
    largest = inputs["V"][0, 0, first::2]
    u, v = dtype(name).unit_roundoff, dtype("f32").unit_roundoff
    exact = rounded(largest, name).astype(np.float64).mean()
    assert np.allclose(reference(op, **inputs).out, exact, rtol=1e-12)
    error = np.abs(run(op, level, **inputs) - exact).max()
    assert error <= u * abs(exact) + 35 * v * np.abs(largest).mean()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", sorted(NAMES))
def test_tiles_with_only_masked_keys_contribute_exactly_nothing(name, level):
    """The first and third tile of keys have logits of -inf: the result is that of the other keys alone."""
    op = Attention(40, 100, 1, dtype=name)
    inputs = inputs_of(op)
    inputs["Q"] = np.abs(inputs["Q"]) + 0.5
    inputs["K"][:, :, :32] = inputs["K"][:, :, 64:96] = -np.inf
    out = run(op, level, **inputs)
    assert compare(op, out, reference(op, **inputs)).ok
    visible = [*range(32, 64), *range(96, 100)]
    fewer = Attention(40, len(visible), 1, dtype=name)
    same = {"Q": inputs["Q"], "K": inputs["K"][:, :, visible], "V": inputs["V"][:, :, visible]}
    if level in (Level.WAVE, Level.ATOM):
        assert np.array_equal(out, run(fewer, level, **same))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", sorted(NAMES))
def test_rows_without_any_visible_key_are_zero(name, level):
    op = Attention(3, 40, 1, dtype=name)
    inputs = inputs_of(op)
    inputs["Q"][0, 0, :, 0], inputs["K"][...] = (1, 0, 2), -np.inf
    out = run(op, level, **inputs)
    assert np.array_equal(out[0, 0, [0, 2]], [[0], [0]])
    assert np.isnan(out[0, 0, 1]).all()
    assert relative_error(out, reference(op, **inputs).out).max() == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["Q", "K", "V"])
def test_nan_and_infinity_spread_as_in_float64(where, bad, name, level):
    op = Attention(40, 50, 24, dtype=name)
    inputs = inputs_of(op)
    inputs[where][0, 0, 7, 3] = bad
    ref = reference(op, **inputs)
    out = run(op, level, **inputs)
    assert np.array_equal(np.isnan(out), np.isnan(ref.out))
    assert np.array_equal(np.isinf(out), np.isinf(ref.out))
    assert compare(op, out, ref).ok


@pytest.mark.parametrize("level", LEVELS)
def test_results_past_the_largest_number_become_infinite(level):
    op = Attention(3, 4, 8, dtype="f16")
    inputs = inputs_of(op)
    inputs["V"][...] = 7e4
    assert np.isinf(run(op, level, **inputs)).all()
