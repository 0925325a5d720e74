"""FlyDSL's own hand-written kernels, compiled and simulated: code that this project did not write.

Set CLOSEDFORM_FLYDSL to a FlyDSL checkout (its folder `kernels` is imported); without it these tests are skipped.
"""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from closedform.hw.sim import Out, flydsl_args, parse_text, run
from closedform.hw.sim.testing import relative_error

CHECKOUT = os.environ.get("CLOSEDFORM_FLYDSL", "")
pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(not CHECKOUT, reason="CLOSEDFORM_FLYDSL names no FlyDSL checkout"),
]
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ROUNDING = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}

SOFTMAX = """import sys
sys.path.insert(0, {path!r})
def compile_only():
    import torch
    import flydsl.expr as fx
    from kernels.norm.softmax_kernel import build_softmax_module
    kind = dict(f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16)[{dtype!r}]
    a = torch.zeros(({rows}, {columns}), dtype=kind)
    build_softmax_module({rows}, {columns}, {dtype!r})(a, a.clone(), {rows}, stream=fx.Stream(None))
"""
ATTENTION = """import sys
sys.path.insert(0, {path!r})
def compile_only():
    import torch
    import flydsl.expr as fx
    from kernels.attention.flash_attn_generic import build_flash_attn_func_module_primary as build
    kind = dict(f16=torch.float16, bf16=torch.bfloat16)[{dtype!r}]
    q = torch.zeros((1, {length}, {heads}, {d}), dtype=kind).reshape(-1)
    launch = build({heads}, {d}, {causal}, {dtype!r}, block_m=128, flat_work_group_size=256)
    launch(q, q, q, q, 1, {length}, stream=fx.Stream(None))
"""


def compiled(source, gfx="gfx942", **values):
    from closedform.visitors.compile import compile_source

    return parse_text(compile_source(source.format(path=CHECKOUT, **values), gfx).isa)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(3, 2048), (2, 1000)])
def test_softmax(dtype, rows, columns):
    """The values are right. The kernel has a race: its second reduction stores into LDS that other waves still read."""
    program = compiled(SOFTMAX, dtype=dtype, rows=rows, columns=columns)
    a = np.random.default_rng(0).standard_normal((rows, columns)).astype(TYPES[dtype])
    out, unused = np.zeros_like(a), np.zeros_like(a)
    result = run(program, flydsl_args(program.kernel(), [a, unused, unused, Out(out)]), rows)
    wide = np.exp(a.astype(np.float64) - a.astype(np.float64).max(1, keepdims=True))
    assert relative_error(out, wide / wide.sum(1, keepdims=True)) < ROUNDING[dtype]
    assert {r.kind for r in result.reports} == {"lds-race"}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("length", "d", "causal"), [(128, 64, False), (200, 64, True), (130, 128, False), (256, 128, True)]
)
def test_flash_attention(dtype, length, d, causal):
    heads = 2
    program = compiled(ATTENTION, dtype=dtype, length=length, heads=heads, d=d, causal=causal)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, length, heads, d)).astype(TYPES[dtype]) for _ in range(3))
    out, unused = np.zeros_like(q), np.zeros(1, np.uint16)
    flat = [x.reshape(-1).view(np.uint16) for x in (q, k, v, out)]
    values = [*flat[:3], Out(flat[3]), unused, length, length, unused, unused, unused, 0]
    result = run(program, flydsl_args(program.kernel(), values), heads * -(-length // 128))
    assert result.ok, str(result)
    wide = [x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v)]
    scores = wide[0] @ wide[1].swapaxes(2, 3) / np.sqrt(d)
    if causal:
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = (weights / weights.sum(-1, keepdims=True) @ wide[2]).transpose(0, 2, 1, 3)
    assert relative_error(out, want) < ROUNDING[dtype]
