"""The float64 reference of attention and its options against torch's scaled_dot_product_attention."""

import numpy as np
import pytest

from closedform.operators.attention import Attention
from closedform.operators.reference import lse_reference, reference

torch = pytest.importorskip("torch")

OPTIONS = [{}, {"heads": 6, "kv_heads": 2}, {"softmax_scale": 0.7}, {"heads": 4, "kv_heads": 1, "softmax_scale": 0.01}]


def inputs_of(op, seed=0):
    random = np.random.default_rng(seed)
    keys = (op.batch, op.key_heads, op.L_kv, op.d)
    return {"Q": random.standard_normal((op.batch, op.heads, op.L_q, op.d), np.float32)} | {
        name: random.standard_normal(keys, np.float32) for name in "KV"
    }


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_reference_is_that_of_torch(options):
    op = Attention(7, 12, 16, batch=2, **options)
    inputs = inputs_of(op)
    q, k, v = (torch.from_numpy(inputs[name]).double() for name in "QKV")
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=op.softmax_scale, enable_gqa=True)
    assert np.allclose(reference(op, **inputs).out, want.numpy(), rtol=1e-12, atol=1e-12)
    logits = q @ k.repeat_interleave(op.group, 1).transpose(-1, -2) * op.scale
    lse = lse_reference(op, **inputs).out[..., 0]
    assert np.allclose(lse, torch.logsumexp(logits, -1).numpy(), rtol=1e-12, atol=1e-12)
