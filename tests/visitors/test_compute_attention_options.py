"""Attention with options executed at every level against float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from closedform.operators.accuracy import compare, compare_lse
from closedform.operators.attention import Attention, AttentionTiles
from closedform.operators.level import Level
from closedform.operators.reference import lse_reference, reference
from closedform.simulation_case import worst_of
from closedform.visitors.compute import ComputeVisitor, random_inputs

from .test_compute_attention import ATOMS, KINDS

MANY = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
EXAMPLES = {Level.DEVICE: 40, Level.BLOCK: 40, Level.WAVE: 60, Level.ATOM: 60}
ATOM = ATOMS["gfx942-v_mfma_f32_32x32x8_f16"]


@st.composite
def options(draw):
    """Options of attention that go together."""
    lengths = draw(st.sampled_from(["same", "key_lengths", "varlen", "page"]))
    chosen = {
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([0, 0, 1, 4, 33, 100])),
        "v_dim": draw(st.sampled_from([0, 0, 1, 24, 130])),
        "softcap": draw(st.sampled_from([None, None, 0.5, 20.0])),
        "alibi": draw(st.booleans()),
        "bias": lengths != "varlen" and draw(st.booleans()),
        "bshd": draw(st.booleans()),
        "key_lengths": lengths in ("key_lengths", "page"),
        "varlen": lengths == "varlen",
        "page": draw(st.sampled_from([1, 16, 128])) if lengths == "page" else 0,
    }
    return {**chosen, "sink": draw(st.sampled_from([0, 1, 40])) if chosen["window"] else 0}


@st.composite
def problems(draw):
    """An operator with options, tiles that it need not divide by, and its inputs."""
    atom = draw(st.sampled_from(list(KINDS.values())))
    op = Attention(
        L_q=draw(st.integers(1, 140)),
        L_kv=draw(st.integers(1, 200)),
        d=draw(st.integers(1, 140)),
        batch=draw(st.integers(1, 3)),
        heads=draw(st.sampled_from([1, 2, 8])),
        kv_heads=draw(st.sampled_from([0, 1])),
        softmax_scale=draw(st.sampled_from([None, 0.02, 1.0])),
        lse=True,
        dtype=atom.dtype_a.name,
        **draw(options()),
    )
    splits = 1 if op.varlen else draw(st.sampled_from([1, 1, 2, 3, 7]))
    tile_q, steps, waves = draw(st.sampled_from([atom.n, 32, 64])), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    tiles = tiles_for(op, atom, tile_q, steps, waves, splits)
    return op, tiles, drawn_inputs(draw, op)


def drawn_inputs(draw, op):
    """Normal random inputs; lengths of entries are 0, at most the number of queries, or any."""
    inputs = random_inputs(op, np.random.default_rng(draw(st.integers(0, 2**32))))
    if op.key_lengths or op.varlen:
        most = draw(st.sampled_from([0, min(op.L_q, op.L_kv), op.L_kv, op.L_kv]))
        keys = st.lists(st.integers(0, most), min_size=op.batch, max_size=op.batch)
        inputs["key_lengths"] = np.array(draw(keys))
    if op.varlen:
        queries = st.lists(st.integers(0, op.L_q), min_size=op.batch, max_size=op.batch)
        inputs["query_lengths"] = np.array(draw(queries))
    return inputs


def tiles_for(op, atom, tile_q=32, steps=1, waves=2, splits=1):
    align = max(32, atom.m)
    return AttentionTiles(tile_q, align * steps, waves, 1, -(-op.d // align) * align, atom, splits)


def check(op, tiles, level, inputs):
    """The worse one of O and log-sum-exp; rows past an entry's give 0 and -inf in both."""
    computed = ComputeVisitor(level)
    parts = [compare(op, computed.run(op.tree(tiles), **inputs), reference(op, **inputs))]
    parts.append(compare_lse(op, computed.lse, lse_reference(op, **inputs)))
    return worst_of(parts)


def every_problem_agrees(level, worst, how_many):
    @how_many
    @given(problems())
    def agrees(problem):
        op, tiles, inputs = problem
        verdict = check(op, tiles, level, inputs)
        worst[op.dtype] = max(worst.get(op.dtype, 0.0), verdict.max_rel_error)
        assert verdict.ok, verdict

    agrees()


@pytest.mark.parametrize("level", list(Level))
def test_every_level_agrees_with_float64(level, worst):
    every_problem_agrees(level, worst, settings(MANY, max_examples=EXAMPLES[level]))


@pytest.mark.slow
@pytest.mark.parametrize("level", list(Level))
def test_every_level_agrees_with_float64_at_length(level, worst):
    every_problem_agrees(level, worst, settings(MANY, max_examples=600, derandomize=False))


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("keys", [[0, 0], [0, 5], [1, 9]], ids=str)
def test_entries_without_keys_or_with_fewer_keys_than_queries(level, splits, keys):
    op = Attention(70, 200, 40, batch=2, heads=2, dtype="f16", causal=True, key_lengths=True, lse=True)
    inputs = {**random_inputs(op, np.random.default_rng(1)), "key_lengths": np.array(keys)}
    assert check(op, tiles_for(op, ATOM, splits=splits), level, inputs).ok
    computed = ComputeVisitor(level)
    out = computed.run(op.tree(tiles_for(op, ATOM, splits=splits)), **inputs)
    for i, n in enumerate(keys):
        assert (out[i, :, : 70 - n] == 0).all()
        assert np.isneginf(computed.lse[i, :, : 70 - n]).all()


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("lengths", [([0, 0], [0, 0]), ([0, 5], [7, 0]), ([40, 0], [0, 90])], ids=str)
def test_entries_of_length_zero(level, lengths):
    op = Attention(40, 90, 24, batch=2, heads=2, dtype="f16", varlen=True, lse=True)
    queries, keys = (np.array(x) for x in lengths)
    inputs = {**random_inputs(op, np.random.default_rng(2)), "query_lengths": queries, "key_lengths": keys}
    assert check(op, tiles_for(op, ATOM), level, inputs).ok


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("splits", [1, 2, 70])
def test_the_example_of_a_sentinel_that_hides_logits(level, splits):
    op = Attention(2, 2, 1, softmax_scale=1.0, causal=True, lse=True)
    tiles = tiles_for(op, ATOMS["gfx942-v_mfma_f32_32x32x2_f32"], splits=splits)
    given_ = {"Q": [-20000.0, 0.0], "K": [1.0, 0.0], "V": [1.0, 100.0]}
    computed = ComputeVisitor(level)
    out = computed.run(op.tree(tiles), **{name: np.reshape(x, (1, 1, 2, 1)) for name, x in given_.items()})
    assert out.ravel().tolist() == [1.0, 50.5]
    assert computed.lse.ravel().tolist() == [-20000.0, np.float32(np.log(2))]


@pytest.mark.parametrize("level", list(Level))
def test_nan_in_masked_keys_changes_nothing(level):
    op = Attention(70, 90, 40, heads=2, dtype="f16", causal=True, lse=True)
    inputs = random_inputs(op, np.random.default_rng(3))
    poisoned = {**inputs, "K": inputs["K"].copy()}
    poisoned["K"][:, :, 60:] = np.nan
    clean, dirty = ComputeVisitor(level), ComputeVisitor(level)
    tiles = tiles_for(op, ATOM)
    outs = [one.run(op.tree(tiles), **x)[:, :, :40] for one, x in ((clean, inputs), (dirty, poisoned))]
    assert np.array_equal(*outs)
    assert np.array_equal(clean.lse[:, :, :40], dirty.lse[:, :, :40])
    assert np.isnan(dirty.lse[:, :, 40:]).all()


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("splits", [1, 3])
def test_infinite_logits_are_those_of_float64(level, splits):
    """A bias of +inf, -inf or NaN, of one key or all of a row."""
    op = Attention(8, 200, 16, dtype="f16", bias=True, lse=True)
    inputs = random_inputs(op, np.random.default_rng(4))
    bias = inputs["bias"][0, 0]
    bias[1, 150], bias[2, 3], bias[3, 70], bias[4, 199] = np.inf, -np.inf, np.nan, np.inf
    bias[5], bias[6, :100], bias[7, 100:] = -np.inf, -np.inf, -np.inf
    assert check(op, tiles_for(op, ATOM, splits=splits), level, inputs).ok
