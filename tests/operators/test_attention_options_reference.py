"""The float64 reference of attention with options against torch with explicit masks.

torch's scaled_dot_product_attention gives NaN where a query sees no key, and its is_causal aligns at the top left; ours
gives 0 and aligns at the bottom right, so masks are always written out for it.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from closedform.operators.attention import Attention
from closedform.operators.attention_reference import attention_reference
from closedform.visitors.compute import random_inputs

torch = pytest.importorskip("torch")

CLOSE = {"rtol": 1e-11, "atol": 1e-11, "equal_nan": True}
MASKS = [
    {},
    {"causal": True},
    {"window": 4},
    {"window": 4, "sink": 1},
    {"causal": True, "window": 3},
    {"causal": True, "window": 4, "sink": 2},
]
LOGITS = [
    {},
    {"softmax_scale": 0.7},
    {"softcap": 1.5},
    {"bias": True},
    {"alibi": True},
    {"softcap": 3.0, "bias": True, "alibi": True, "softmax_scale": 0.4},
]
LENGTHS = [(1, 1), (5, 6), (7, 12), (12, 7), (1, 40)]


def seen_by(op, L_q, L_kv):
    """The mask of an entry, from the words of the issue."""
    position, key = np.arange(L_q)[:, None] + L_kv - L_q, np.arange(L_kv)
    seen = np.ones((L_q, L_kv), bool)
    if op.window:
        seen &= (abs(key - position) < op.window) | (key < op.sink)
    if op.causal:
        seen &= key <= position
    return torch.from_numpy(seen)


def plain(op, q, k, v, bias, slopes):
    """O and log-sum-exp of one entry in plain torch, with 0 and -inf where nothing is seen."""
    L_q, L_kv = q.shape[1], k.shape[1]
    k, v = (t.repeat_interleave(op.group, 0) for t in (k, v))
    x = torch.einsum("hqd,hkd->hqk", q, k) * op.scale
    if op.softcap is not None:
        x = op.softcap * torch.tanh(x / op.softcap)
    if bias is not None:
        x = x + bias
    if slopes is not None:
        away = torch.arange(L_q)[:, None] + (L_kv - L_q) - torch.arange(L_kv)
        x = x - slopes[:, None, None] * away.abs()
    x = x.masked_fill(~seen_by(op, L_q, L_kv), -math.inf)
    return torch.softmax(x, -1).nan_to_num(0.0) @ v, torch.logsumexp(x, -1)


def exact(op, inputs):
    """Inputs and bias as the reference is given them here: float64 throughout."""
    return {name: np.asarray(x, np.float64) for name, x in inputs.items()} | {
        name: inputs[name] for name in ("query_lengths", "key_lengths") if name in inputs
    }


def agrees(op, seed=0):
    inputs = exact(op, random_inputs(op, np.random.default_rng(seed)))
    out, lse = attention_reference(op, inputs)
    for i in range(op.batch):
        queries = int(inputs["query_lengths"][i]) if op.varlen else op.L_q
        keys = int(inputs["key_lengths"][i]) if op.varlen or op.key_lengths else op.L_kv
        q, k, v = (torch.from_numpy(inputs[n][i, :, :m]) for n, m in (("Q", queries), ("K", keys), ("V", keys)))
        bias = torch.from_numpy(inputs["bias"][i, :, :queries, :keys]) if op.bias else None
        slopes = torch.from_numpy(inputs["slopes"]) if op.alibi else None
        want, want_lse = plain(op, q, k, v, bias, slopes)
        assert np.allclose(out.out[i, :, :queries], want.numpy(), **CLOSE)
        assert np.allclose(lse.out[i, :, :queries, 0], want_lse.numpy(), **CLOSE)
        assert not out.out[i, :, queries:].any()
        assert np.isneginf(lse.out[i, :, queries:]).all()


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_masks_agree_with_torch(mask, lengths):
    """Against scaled_dot_product_attention itself, with a boolean and with an additive mask."""
    op = Attention(*lengths, 16, batch=2, heads=6, kv_heads=2, v_dim=24, **mask)
    inputs = exact(op, random_inputs(op, np.random.default_rng(1)))
    q, k, v = (torch.from_numpy(inputs[name]) for name in "QKV")
    seen = seen_by(op, *lengths)
    out, lse = attention_reference(op, inputs)
    additive = torch.zeros(lengths, dtype=torch.float64).masked_fill(~seen, -math.inf)
    some = seen.any(-1).numpy()
    for given in (seen, additive):
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=given, enable_gqa=True).numpy()
        assert np.allclose(out.out[:, :, some], want[:, :, some], **CLOSE)
    assert (out.out[:, :, ~some] == 0).all()
    assert np.isneginf(lse.out[:, :, ~some]).all()
    assert np.isfinite(lse.out[:, :, some]).all()


@pytest.mark.parametrize("logits", LOGITS, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_logits_agree_with_torch(mask, logits):
    agrees(Attention(9, 14, 16, batch=2, heads=4, kv_heads=2, **mask, **logits))
    agrees(Attention(14, 9, 16, heads=2, **mask, **logits))


def test_a_bias_is_torchs_additive_mask():
    op = Attention(7, 12, 16, batch=2, heads=3, bias=True)
    inputs = exact(op, random_inputs(op, np.random.default_rng(2)))
    q, k, v, bias = (torch.from_numpy(inputs[name]) for name in ("Q", "K", "V", "bias"))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).numpy()
    assert np.allclose(attention_reference(op, inputs)[0].out, want, **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
def test_of_a_square_torchs_causal_mask_is_ours(causal):
    op = Attention(11, 11, 8, heads=2, causal=causal)
    inputs = exact(op, random_inputs(op, np.random.default_rng(3)))
    q, k, v = (torch.from_numpy(inputs[name]) for name in "QKV")
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).numpy()
    assert np.allclose(attention_reference(op, inputs)[0].out, want, **CLOSE)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("lengths", [{"key_lengths": True}, {"varlen": True}], ids=str)
def test_lengths_agree_with_torch(mask, lengths):
    for seed in range(3):
        agrees(Attention(9, 14, 8, batch=5, heads=2, **mask, **lengths, alibi=True, softcap=2.0), seed)


@pytest.mark.parametrize("keys", [0, 1, 3])
def test_entries_whose_keys_are_fewer_than_their_queries(keys):
    op = Attention(9, 14, 8, batch=2, heads=2, varlen=True, causal=True)
    inputs = exact(op, random_inputs(op, np.random.default_rng(4)))
    inputs |= {"query_lengths": np.array([9, 5]), "key_lengths": np.array([keys, 0])}
    out, lse = attention_reference(op, inputs)
    assert (out.out[0, :, : 9 - keys] == 0).all()
    assert np.isneginf(lse.out[0, :, : 9 - keys]).all()
    assert (out.out[1] == 0).all()
    assert np.isfinite(lse.out[0, :, 9 - keys :]).all()


def test_many_queries_at_a_time_are_those_one_by_one():
    op = Attention(40, 30, 8, heads=2, causal=True, window=9, sink=2, alibi=True)
    inputs = exact(op, random_inputs(op, np.random.default_rng(5)))
    whole = attention_reference(op, inputs)
    longer = replace(op, L_q=30)
    tail = attention_reference(longer, {**inputs, "Q": inputs["Q"][:, :, 10:]})
    for all_rows, last in zip(whole, tail, strict=True):
        assert np.allclose(all_rows.out[:, :, 10:], last.out, **CLOSE)


# --- special values ---------------------------------------------------------------------------------------------------


def small(q, k, v, **options):
    """One head of column vectors, scale 1."""
    columns = {name: np.array(x, np.float64)[None, None, :, None] for name, x in (("Q", q), ("K", k), ("V", v))}
    extra = {name: options.pop(name) for name in ("key_lengths_given", "bias_given") if name in options}
    op = Attention(len(q), len(k), 1, softmax_scale=1.0, **options)
    if "key_lengths_given" in extra:
        columns["key_lengths"] = np.array(extra["key_lengths_given"])
    if "bias_given" in extra:
        columns["bias"] = np.array(extra["bias_given"], np.float64)[None, None]
    with np.errstate(all="ignore"):
        out, lse = attention_reference(op, columns)
    return out.out[0, 0, :, 0], lse.out[0, 0, :, 0]


@pytest.mark.parametrize("masked", [{"causal": True}, {"bias": True, "bias_given": [[0, -np.inf], [0, 0]]}], ids=str)
def test_no_sentinel_hides_true_logits(masked):
    out, lse = small([-20000, 0], [1, 0], [1, 100], **masked)
    assert out.tolist() == [1.0, 50.5]
    assert lse.tolist() == [-20000.0, math.log(2)]


def test_key_lengths_mask_it_too():
    out, lse = small([-20000, 0], [1, 0], [1, 100], key_lengths=True, key_lengths_given=[1])
    assert out.tolist() == [1.0, 1.0]
    assert lse.tolist() == [-20000.0, 0.0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_masked_key_changes_nothing(value):
    assert small([1, 1], [1, value], [2, 3], causal=True)[0][0] == 2.0



def test_infinite_logits():
    out, lse = small([1, 1], [np.inf, 0], [2, 3])
    assert np.isnan(out).all()
    assert np.isposinf(lse).all()
    out, lse = small([1], [-np.inf, 0], [2, 3])
    assert (out.tolist(), lse.tolist()) == ([3.0], [0.0])
    out, lse = small([1], [-np.inf, -np.inf], [2, 3])
    assert (out.tolist(), lse.tolist()) == ([0.0], [-np.inf])
    out, lse = small([1], [np.nan, 0], [2, 3])
    assert np.isnan(out).all()
    assert np.isnan(lse).all()


def test_a_bias_of_minus_infinity_everywhere_leaves_a_row_empty():
    out, lse = small([1, 1], [1, 1], [2, 3], bias=True, bias_given=[[-np.inf, -np.inf], [0, -np.inf]])
    assert out.tolist() == [0.0, 2.0]
    assert lse.tolist() == [-np.inf, 1.0]
