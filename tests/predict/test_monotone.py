"""Monotone: more work is never faster at equal tiles, a better device never slower; finite and positive."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform.hw import catalogue
from closedform.operators.softmax import Softmax
from closedform.predict import gemm_selector, predict_softmax
from closedform.predict.attention_lattice import attention_lattice
from closedform.predict.attention_time import AttentionShape, attention_time
from closedform.predict.constants import constants_for

#: The paper's descriptors have nothing but f32.
GPUS = (*(name for name in catalogue.names() if not name.startswith("paper_")), "h200")
LAYOUTS = ("NN", "NT", "TN", "TT")
gpus = st.sampled_from(GPUS)
layouts = st.sampled_from(LAYOUTS)
extent = st.integers(1, 20000)
more_of = st.integers(1, 9000)


def times(hw, layout, *shape):
    return gemm_selector(hw, "f16", layout).times(*shape)[0]


def never_faster(small, large):
    both = np.isfinite(small) & np.isfinite(large)
    assert (small[both] <= large[both] * (1 + 1e-9)).all()


@settings(max_examples=80, deadline=None)
@given(gpus, layouts, extent, extent, extent, st.integers(1, 8), st.integers(0, 3), more_of)
def test_a_larger_product_is_never_faster_at_equal_tiles(gpu, layout, m, n, k, batch, axis, more):
    hw = catalogue.get(gpu)
    larger = [m, n, k, batch]
    larger[axis] += more
    never_faster(times(hw, layout, m, n, k, batch), times(hw, layout, *larger))


@settings(max_examples=80, deadline=None)
@given(gpus, layouts, extent, extent, extent, st.floats(1.0, 4.0))
def test_a_faster_device_is_never_slower(gpu, layout, m, n, k, factor):
    hw = catalogue.get(gpu)
    base = times(hw, layout, m, n, k)
    for change in (
        {"clock_mhz": int(hw.clock_mhz * factor) + 1},
        {"hbm_bytes_per_s": hw.hbm_bytes_per_s * factor},
        {"l2_bytes_per_s": hw.l2_bytes_per_s * factor},
    ):
        never_faster(times(dataclasses.replace(hw, **change), layout, m, n, k), base)


@settings(max_examples=80, deadline=None)
@given(gpus, layouts, extent, extent, extent, st.floats(0.01, 1.0))
def test_more_compute_units_are_never_slower(gpu, layout, m, n, k, share):
    hw = catalogue.get(gpu)
    part = hw.with_cus(max(1, int(hw.num_cus * share)))
    never_faster(times(hw, layout, m, n, k), times(part, layout, m, n, k))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(GPUS), extent, extent, extent)
def test_finite_and_positive(gpu, m, n, k):
    found = times(catalogue.get(gpu), "NN", m, n, k)
    assert not np.isnan(found).any()
    assert (found > 0).all()
    assert np.isfinite(found).any()


def attention_times(hw, heads, length_q, length_kv, d, causal):
    k, c = constants_for(hw, "attention"), attention_lattice(hw, d)
    shape = AttentionShape(float(heads), float(length_q), float(length_kv), float(d), causal)
    return attention_time(hw, k, c, shape, hw.flops_per_clk_cu("f16")).latency_us


heads_of = st.integers(1, 200)
head_dims = st.sampled_from((64, 128, 256))


@settings(max_examples=80, deadline=None)
@given(gpus, heads_of, extent, extent, head_dims, st.booleans(), st.integers(0, 2), more_of)
def test_more_attention_is_never_faster_at_equal_tiles(gpu, heads, queries, keys, d, causal, axis, more):
    hw = catalogue.get(gpu)
    base = attention_times(hw, heads, queries, keys, d, causal)
    assert np.isfinite(base).all()
    assert (base > 0).all()
    larger = [heads, queries, keys]
    larger[axis] += more
    never_faster(base, attention_times(hw, *larger, d, causal))


@settings(max_examples=80, deadline=None)
@given(gpus, heads_of, extent, extent, head_dims, st.booleans(), st.floats(0.01, 1.0), st.floats(1.0, 4.0))
def test_attention_on_a_better_device_is_never_slower(gpu, heads, queries, keys, d, causal, share, factor):
    hw = catalogue.get(gpu)
    shape = (heads, queries, keys, d, causal)
    base = attention_times(hw, *shape)
    never_faster(base, attention_times(hw.with_cus(max(1, int(hw.num_cus * share))), *shape))
    for change in (
        {"clock_mhz": int(hw.clock_mhz * factor) + 1},
        {"hbm_bytes_per_s": hw.hbm_bytes_per_s * factor},
    ):
        never_faster(attention_times(dataclasses.replace(hw, **change), *shape), base)


@settings(max_examples=40, deadline=None)
@given(gpus, extent, extent, more_of, st.floats(0.01, 1.0))
def test_softmax_is_monotone(gpu, rows, cols, more, share):
    hw = catalogue.get(gpu)

    def run(rows, cols, gpu=hw):
        return predict_softmax(Softmax(rows, cols, "f16"), gpu).latency_us

    assert run(rows, cols) <= min(run(rows + more, cols), run(rows, cols + more)) * (1 + 1e-9)
    assert run(rows, cols) <= run(rows, cols, hw.with_cus(max(1, int(hw.num_cus * share)))) * (1 + 1e-9)
