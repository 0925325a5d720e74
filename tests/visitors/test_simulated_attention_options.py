"""Emitted attention with options executed instruction by instruction against float64, with every sanitizer."""

from dataclasses import replace

import numpy as np
import pytest

from closedform.operators.attention import Attention
from closedform.operators.reference import reference
from closedform.simulation_case import UNTOUCHED, How
from closedform.visitors.compile import missing_dependency

from .attention_options_kernels import (
    FEATURES,
    HEAD_DIMS,
    TARGETS,
    TYPES,
    Kernel,
    broken,
    compiled,
    counted_reads,
    executed,
    is_offered,
    pairwise,
    require_good,
)

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency())),
]

#: (L_q, L_kv): one of each, clipped, one query, more keys than queries and the reverse.
SHAPES = [(1, 1), (5, 6), (1, 513), (17, 300), (70, 200), (200, 70)]
#: The first kernels of the pairwise cover, which have most of its pairs.
FEW = pairwise()[:8]
#: Each feature alone, on a target and of a type by turns; those that the plain host side has with a mask.
ALONE = [
    Kernel(
        TARGETS[i % 4],
        TYPES[(i + i // 4) % 3],
        (64, 128, 40, 96)[i % 3],
        (feature, "causal") if feature in ("gqa", "lse", "scale") else (feature,),
    )
    for i, feature in enumerate(FEATURES)
]


def keeps_its_promises(kernel):
    """Registers and LDS within what was derived, nothing spilled."""
    assert not broken(kernel)
    assert (compiled(kernel).vgpr_spills, compiled(kernel).sgpr_spills) == (0, 0)


def agrees(kernel, shapes, record):
    for L_q, L_kv in shapes:
        with counted_reads() as lost:
            case = executed(kernel, L_q, L_kv, batch=2)
        require_good(case)
        assert sum(lost) == 0
        accuracy = case.accuracy()
        if accuracy is not None:
            record(f"max_rel_error {kernel.dtype}", accuracy.max_rel_error)


def test_the_cover_has_every_pair():
    kernels = pairwise()
    assert all(is_offered(kernel) for kernel in kernels)
    for hw in TARGETS:
        assert {kernel.dtype for kernel in kernels if kernel.hw == hw} == set(TYPES)
        assert {name for kernel in kernels if kernel.hw == hw for name in kernel.features} == set(FEATURES)
    assert {kernel.d for kernel in kernels} == set(HEAD_DIMS)


@pytest.mark.parametrize("kernel", FEW, ids=str)
def test_features_together_agree_with_float64(kernel, record_property):
    keeps_its_promises(kernel)
    agrees(kernel, [(17, 300)], record_property)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", pairwise(), ids=str)
def test_every_pair_of_features_agrees_with_float64(kernel, record_property):
    keeps_its_promises(kernel)
    agrees(kernel, SHAPES, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ALONE, ids=str)
def test_each_feature_alone_agrees_with_float64(kernel, record_property):
    keeps_its_promises(kernel)
    agrees(kernel, SHAPES, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("d", HEAD_DIMS)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("hw", TARGETS)
def test_the_full_product_agrees_with_float64(hw, dtype, feature, d, record_property):
    kernel = Kernel(hw, dtype, d, (feature,))
    if not is_offered(kernel):
        pytest.skip(str(kernel.derivation().infeasible))
    keeps_its_promises(kernel)
    agrees(kernel, SHAPES, record_property)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", [Kernel("mi300x", "f16", 128, ("causal",)), Kernel("mi100", "f32", 64, ("sink",))], ids=str
)
def test_a_sample_of_long_sequences(kernel):
    require_good(executed(kernel, 2048, 1024, heads=2, batch=2, how=How(blocks=4)))


@pytest.mark.parametrize("hw", TARGETS)
def test_no_read_of_lds_has_a_conflict(hw):
    kernel = Kernel(hw, "bf16", 64, ("causal",))
    with counted_reads() as lost:
        executed(kernel, 17, 90)
    assert sum(lost) == 0


#: 8-bit floats, of the kind that the target has.
NARROW = [
    Kernel("mi300x", "fp8_e4m3fnuz", 64, ("causal", "lse")),
    Kernel("mi355x", "fp8_e4m3fn", 128, ("sink", "causal", "page16", "splits")),
    Kernel("mi300x", "fp8_e4m3fnuz", 40, ("softcap", "bias", "gqa")),
    Kernel("mi300x", "fp8_e4m3fnuz", 128, ("page128", "causal", "bshd", "splits")),
    Kernel("mi355x", "fp8_e4m3fn", 1, ("alibi", "varlen", "lse")),
    Kernel("mi355x", "fp8_e4m3fn", 256, ("window", "key_lengths")),
]


@pytest.mark.parametrize("kernel", NARROW[:1], ids=str)
def test_8_bit_floats(kernel, record_property):
    keeps_its_promises(kernel)
    agrees(kernel, [(5, 6), (17, 300)], record_property)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", NARROW, ids=str)
def test_8_bit_floats_with_options(kernel, record_property):
    keeps_its_promises(kernel)
    agrees(kernel, SHAPES, record_property)


# --- special values ---------------------------------------------------------------------------------------------------

CAUSAL = Kernel("mi300x", "f16", 64, ("causal", "lse"))
LENGTHS = Kernel("mi300x", "f16", 64, ("causal", "key_lengths", "lse", "splits"))
VARLEN = Kernel("mi210", "bf16", 64, ("causal", "varlen", "lse"))
BIAS = Kernel("mi300x", "f32", 1, ("bias", "scale", "lse"))


def results(case):
    """O [batch, heads, L_q, columns] and log-sum-exp in float64."""
    return case.out.double().numpy(), case.lse.double().numpy()


def test_queries_ahead_of_all_keys_give_zero():
    case = executed(CAUSAL, 70, 9)
    require_good(case)
    out, lse = results(case)
    assert (out[:, :, :61] == 0).all()
    assert not np.signbit(out[:, :, :61]).any()
    assert np.isneginf(lse[:, :, :61]).all()
    assert np.isfinite(lse[:, :, 61:]).all()


@pytest.mark.parametrize("keys", [[0, 0], [0, 5], [300, 1]], ids=str)
def test_entries_without_keys_or_with_fewer_than_queries(keys):
    case = executed(LENGTHS, 17, 300, batch=2, inputs={"key_lengths": np.array(keys)})
    require_good(case)
    out, lse = results(case)
    for i, n in enumerate(keys):
        empty = max(17 - n, 0)
        assert (out[i, :, :empty] == 0).all()
        assert np.isneginf(lse[i, :, :empty]).all()
        assert np.isfinite(lse[i, :, empty:]).all()


@pytest.mark.parametrize(
    "lengths", [([0, 0, 0], [0, 0, 0]), ([0, 40, 7], [90, 0, 3]), ([40, 1, 0], [1, 90, 90])], ids=str
)
def test_entries_of_length_zero_leave_their_neighbours_alone(lengths):
    queries, keys = (np.array(x) for x in lengths)
    case = executed(VARLEN, 40, 90, batch=3, inputs={"query_lengths": queries, "key_lengths": keys})
    require_good(case)
    import torch

    past = case.out[int(queries.sum()) :].contiguous().view(torch.uint8)
    assert (past == UNTOUCHED).all(), "rows past the last entry were written"
    assert torch.isnan(case.lse[:, int(queries.sum()) :]).all()


def test_no_sentinel_hides_true_logits():
    """Also where -inf comes with the bias: row 0 sees the first key only, whose logit is -20000."""
    columns = {"Q": [-20000.0, 0.0], "K": [1.0, 0.0], "V": [1.0, 100.0]}
    inputs = {name: np.reshape(x, (1, 1, 2, 1)) / (0.5 if name == "Q" else 1) for name, x in columns.items()}
    inputs["bias"] = np.array([[0, -np.inf], [0, 0]]).reshape(1, 1, 2, 2)
    case = executed(BIAS, 2, 2, inputs=inputs)
    require_good(case)
    out, lse = results(case)
    assert out.ravel().tolist() == [1.0, 50.5]
    assert lse[0, 0, 0] == -20000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_keys_that_are_not_seen_change_nothing(value):
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((1, 1, n, 64)) for n in (70, 90, 90))
    poisoned = k.copy()
    poisoned[:, :, 60:] = value
    clean, dirty = (results(executed(CAUSAL, 70, 90, inputs={"Q": q, "K": x, "V": v})) for x in (k, poisoned))
    for one, other in zip(clean, dirty, strict=True):
        assert np.array_equal(one[:, :, :40], other[:, :, :40])


def test_infinite_logits_are_those_of_float64():
    """A bias of +inf, -inf or NaN for a key or a whole row; in float64 +inf makes the row NaN and its lse +inf."""
    bias = np.random.default_rng(2).standard_normal((1, 1, 8, 200))
    bias[0, 0, 1, 150], bias[0, 0, 2, 3], bias[0, 0, 3, 70], bias[0, 0, 4, 199] = np.inf, -np.inf, np.nan, np.inf
    bias[0, 0, 5], bias[0, 0, 6, :100], bias[0, 0, 7, 100:] = -np.inf, -np.inf, -np.inf
    case = executed(BIAS, 8, 200, inputs={"bias": bias})
    require_good(case)
    out, lse = results(case)
    assert (out[0, 0, 5] == 0).all()
    assert np.isneginf(lse[0, 0, 5])


@pytest.mark.parametrize("extra", [0, 1, 31, 33, 63])
@pytest.mark.parametrize(
    "kernel", [LENGTHS, pytest.param(Kernel("mi355x", "bf16", 64, ("splits",)), marks=pytest.mark.slow)], ids=str
)
def test_the_weights_of_a_row_add_up_to_one(kernel, extra):
    """With V of ones O is the sum of the weights; not causal, or with every key ahead of the queries."""
    keys = 128 + extra
    ones = np.ones((1, 1, keys, 64))
    inputs = {"V": ones, **({"key_lengths": np.array([keys])} if "key_lengths" in kernel.features else {})}
    case = executed(kernel, 1, keys, inputs=inputs)
    require_good(case)
    assert abs(case.out.double().numpy() - 1).max() <= 2.0**-7


def test_a_soft_cap_far_above_the_logits_is_none():
    """cap tanh(x / cap) is x to within x^3 / 3 cap^2."""
    kernel = Kernel("mi300x", "f32", 64, ("softcap",))
    random = np.random.default_rng(3)
    inputs = {name: random.standard_normal((1, 1, n, 64)) for name, n in (("Q", 17), ("K", 70), ("V", 70))}
    capped = replaced_cap(kernel, 17, 70, inputs, 1e5)
    plain = Attention(17, 70, 64, dtype="f32")
    assert abs(capped.out.numpy() - reference(plain, **inputs).out).max() <= 1e-5


# --- memory -----------------------------------------------------------------------------------------------------------


def spread(tensor, axis, elements):
    """A copy whose `axis` has a stride of so many elements; only what is touched takes memory."""
    import torch

    from closedform.hw.sim.testing import sparse_array

    inner = tensor.movedim(axis, 0)
    strides = [elements, *torch.empty(inner.shape[1:], device="meta").stride()]
    kind = torch.empty(0, dtype=tensor.dtype)
    words = sparse_array(inner.shape, strides, {2: np.int16, 4: np.int32}[kind.element_size()])
    far = torch.from_numpy(words).view(tensor.dtype)
    far.copy_(inner)
    return far.movedim(0, axis)


def run_far(case, axis, elements, names=("q", "k", "v")):
    """Runs the case once more with tensors, and its result, whose `axis` is far apart."""
    given = case.given
    far = {name: spread(given[name], axis, elements) for name in names}
    case.out = spread(case.out, axis, elements) if "q" in names else case.out
    results = {"lse": case.lse} if case.op.lse else {}
    case.results.clear(), case.grids.clear()
    case.module.run(**{**given, **far}, out=case.out, **results)
    return case


@pytest.mark.parametrize(
    ("kernel", "axis"),
    [
        (CAUSAL, 1),
        (VARLEN, 1),
        (LENGTHS, 0),
        pytest.param(Kernel("mi100", "f32", 64, ("sink", "bshd")), 2, marks=pytest.mark.slow),
        pytest.param(Kernel("mi355x", "bf16", 64, ("key_lengths", "alibi", "gqa")), 0, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_heads_and_entries_may_lie_past_two_gigabytes(kernel, axis):
    case = executed(kernel, 17, 90, heads=2, batch=2)
    require_good(run_far(case, axis, 2**31 + 64))


def test_pages_of_whole_tiles_may_lie_past_four_gigabytes():
    kernel = next(kernel for kernel in FEW if "page128" in kernel.features and "lse" in kernel.features)
    case = executed(kernel, 17, 300, inputs={"key_lengths": np.array([300])})
    require_good(run_far(case, 0, 2**30, ("k", "v")))


def replaced_cap(kernel, L_q, L_kv, inputs, cap):
    """The kernel that was compiled, given another cap when it is run."""
    from closedform.simulate_attention_options import AttentionRun

    from .attention_options_kernels import of_lengths

    derivation = of_lengths(kernel, L_q, L_kv)
    derivation = replace(derivation, op=replace(derivation.op, softcap=cap))
    return AttentionRun(derivation, compiled(kernel), inputs, How())


# --- promises that were broken once -----------------------------------------------------------------------------------

AT_THE_LIMIT = [
    Kernel("mi300x", "f16", 128, ("sink", "causal", "page16", "gqa", "lse")),
    Kernel("mi300x", "f16", 128, ("sink", "causal", "page16", "splits")),
    Kernel("mi300x", "bf16", 128, ("softcap", "page16", "lse")),
    Kernel("mi300x", "bf16", 128, ("causal", "alibi", "key_lengths")),
    Kernel("mi355x", "bf16", 128, ("sink", "softcap", "alibi", "varlen")),
    Kernel("mi355x", "f16", 128, ("sink", "causal", "page16", "gqa", "lse", "splits")),
    Kernel("mi300x", "f16", 96, ("sink", "softcap", "alibi", "page16", "lse")),
    Kernel("mi100", "f32", 512, ("lse", "splits")),
    Kernel("mi100", "f32", 512, ("sink", "softcap", "alibi", "varlen")),
    Kernel("mi300x", "f32", 192, ("page16", "lse", "splits")),
]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", AT_THE_LIMIT, ids=str)
def test_promises_of_options_together(kernel):
    if not is_offered(kernel):
        pytest.skip(str(kernel.derivation().infeasible))
    keeps_its_promises(kernel)
