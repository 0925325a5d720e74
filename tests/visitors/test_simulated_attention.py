"""Emitted attention executed instruction by instruction against float64, with every sanitizer."""

import numpy as np
import pytest

from closedform.visitors.compile import missing_dependency

from .attention_kernels import TARGETS, Case, simulate

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency())),
]

#: Full tiles, a clipped tile in each direction, single rows and keys, more keys than queries and the reverse.
SHAPES = [(1, 1), (17, 300), (127, 64), (300, 127)]
#: Every target meets every type, variant and head dim with another one.
PAIRS = [
    Case("mi100", "f32", 128),
    Case("mi100", "f16", 64, "lds"),
    Case("mi100", "bf16", 96),
    Case("mi210", "f32", 96, "fma"),
    Case("mi210", "f16", 256),
    Case("mi210", "bf16", 128, "lds"),
    Case("mi300x", "f32", 64),
    Case("mi300x", "f16", 128),
    Case("mi300x", "bf16", 32, "fma"),
    Case("mi300x", "f16", 37),
    Case("mi355x", "f32", 256),
    Case("mi355x", "f16", 32, "lds"),
    Case("mi355x", "bf16", 128),
    Case("mi300x", "bf16", 72, fixed=(("atom", "16x16"), ("tile_q", 16))),
]


def agrees(case: Case, L_q: int, L_kv: int, record=None, **options) -> None:
    result, accuracy, _ = simulate(case, L_q, L_kv, **options)
    assert result.ok, str(result)
    assert accuracy.ok, accuracy
    if record is not None:
        record(f"max_rel_error {case.dtype}", accuracy.max_rel_error)


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_agrees_with_float64(case, record_property):
    for L_q, L_kv in SHAPES:
        agrees(case, L_q, L_kv, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("d", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("variant", ["chained", "lds", "fma"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("hw", TARGETS)
def test_the_full_product_agrees_with_float64(hw, dtype, variant, d):
    for L in (1, 17, 64, 127, 300):
        agrees(Case(hw, dtype, d, variant), L, L)
    agrees(Case(hw, dtype, d, variant), 17, 300)


def test_heads_and_batch_are_grid_dimensions():
    agrees(Case("mi300x", "f16", 128), 40, 70, heads=3, batch=2)


#: Each option on every target, with another type and variant.
OPTIONS = [
    Case("mi100", "f32", 64, features=(("kv_heads", 16),)),
    Case("mi210", "bf16", 64, "lds", features=(("kv_heads", 4), ("softmax_scale", 0.5))),
    Case("mi300x", "f16", 128, features=(("kv_heads", 4),)),
    Case("mi300x", "f16", 32, "fma", features=(("softmax_scale", 0.02),)),
    Case("mi355x", "bf16", 128, features=(("softmax_scale", 1.0), ("lse", True))),
    Case("mi100", "f16", 72, "lds", features=(("lse", True),)),
    Case("mi210", "f32", 128, "fma", features=(("lse", True), ("kv_heads", 8))),
    Case("mi300x", "bf16", 128, features=(("lse", True),)),
]


@pytest.mark.parametrize("case", OPTIONS, ids=str)
def test_options_agree_with_float64(case, record_property):
    heads = 2 * case.operator().group
    agrees(case, 5, 6, record_property, heads=heads)
    agrees(case, 40, 70, record_property, heads=heads, batch=2)


@pytest.mark.parametrize(
    ("case", "size"), [(Case("mi300x", "f16", 128), 1e2), (Case("mi300x", "f32", 64), 1e17)], ids=str
)
def test_logits_far_below_zero_are_not_hidden(case, size):
    """All logits of a row near -size**2 * d: no finite sentinel may stand above them."""
    L_q, L_kv = 5, 70
    random = np.random.default_rng(1)
    q = np.full((1, 1, L_q, case.d), size) * random.uniform(0.9, 1.1, (1, 1, L_q, case.d))
    k = np.full((1, 1, L_kv, case.d), -size) * random.uniform(0.9, 1.1, (1, 1, L_kv, case.d))
    agrees(case, L_q, L_kv, inputs=[q, k, random.standard_normal((1, 1, L_kv, case.d))])


def test_nan_and_infinity_stay_in_their_rows():
    case, L_q, L_kv = Case("mi300x", "f16", 128), 40, 70
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((1, 1, n, case.d)) for n in (L_q, L_kv, L_kv))
    q[0, 0, 3, 5] = np.nan
    q[0, 0, 7, 9] = np.inf
    _, _, out = simulate(case, L_q, L_kv, inputs=[q, k, v])
    bad = np.isnan(out[0, 0]).any(-1)
    assert np.flatnonzero(bad).tolist() == [3, 7]
    assert np.isfinite(out[0, 0][~bad]).all()


def test_lse_of_nan_and_infinite_logits_is_that_of_float64():
    """A logit of +inf gives +inf, of NaN NaN, all of -inf -inf; others are not touched."""
    case, L_q, L_kv = Case("mi300x", "f16", 128, features=(("lse", True),)), 40, 70
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((1, 1, n, case.d)) for n in (L_q, L_kv, L_kv))
    q[0, 0, 3, 5], q[0, 0, 7, 9] = np.nan, np.inf
    q[0, 0, 9] = 0
    q[0, 0, 9, 11], k[..., 11] = -np.inf, np.abs(k[..., 11]) + 0.1
    agrees(case, L_q, L_kv, inputs=[q, k, v])


def test_maxima_that_grow_below_and_past_the_headroom():
    """Tiles of 64 keys whose logits lie 0, 3, 8.5, 20 and 19 powers of two above the first ones, rows out of step."""
    case, L_q, L_kv = Case("mi300x", "f16", 128), 40, 300
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal((1, 1, n, case.d)) for n in (L_q, L_kv, L_kv))
    rise = np.repeat([0, 3, 8.5, 20, 19], 64)[:L_kv] / np.log2(np.e) * np.sqrt(case.d)
    q[..., 0], k[..., 0] = np.linspace(0.5, 2, L_q), rise
    agrees(case, L_q, L_kv, inputs=[q, k, v])


@pytest.mark.parametrize(
    ("case", "flops"),
    [(Case("mi300x", "f16", 128), 16384), (Case("mi300x", "bf16", 64), 16384), (Case("mi355x", "bf16", 128), 32768)],
    ids=str,
)
def test_lds_bytes_of_a_flop_are_those_of_256_rows_that_share_a_step(case, flops):
    """Each of 8 waves reads K and V of a step and writes its eighth: 9/8 * 2 * 64 d elements for 4 * 32 * 64 d FLOP.

    flydsl 0.5.0's kernels with 256 rows move as much, those with 128 rows 1/9 more.
    """
    result, _, _ = simulate(case, 256, 320)
    loop = max(result.counts["loops"], key=lambda found: found["instructions"]["mfma"])
    moved = loop["lds_read_bytes"] + loop["lds_write_bytes"]
    assert moved / (loop["instructions"]["mfma"] * flops) <= 9 / 8 * 2 * 2 / (4 * 32)
