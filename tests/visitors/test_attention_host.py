"""The host side of emitted attention with options: reference, example and what run() refuses."""

import pytest

from closedform.emitted_file import load_kernel
from closedform.hw import catalogue
from closedform.operators.attention import Attention
from closedform.visitors.compile import missing_dependency
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

pytestmark = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))


def module_of(folder, op):
    path = folder / "attention_under_test.py"
    path.write_text(emit_source(derive(op, catalogue.get("mi300x"))))
    return load_kernel(path)


@pytest.mark.parametrize(
    "options", [{}, {"kv_heads": 2}, {"softmax_scale": 0.3}, {"kv_heads": 1, "softmax_scale": 2.0}]
)
def test_the_reference_is_that_of_torch(tmp_path, options):
    import torch

    op = Attention(9, 21, 64, batch=2, heads=4, dtype="f16", **options)
    module = module_of(tmp_path, op)
    q, k, v = module.example("cpu")
    assert q.shape == (2, 4, 9, 64)
    assert k.shape == v.shape == (2, op.key_heads, 21, 64)
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), scale=op.softmax_scale, enable_gqa=True
    )
    assert torch.allclose(module.reference(q, k, v), exact, rtol=1e-12, atol=1e-12)


def test_run_refuses_heads_that_do_not_agree_and_scales_that_are_none(tmp_path, monkeypatch):
    module = module_of(tmp_path, Attention(9, 21, 64, batch=2, heads=4, dtype="f16", kv_heads=2, softmax_scale=0.5))
    q, k, v = module.example("cpu")
    for keys in (k[:, :1], k[:1], k.repeat(1, 2, 1, 1)):
        with pytest.raises(ValueError, match="share a head"):
            module.run(q, keys, keys)
    with pytest.raises(ValueError, match="on one GPU"):
        module.run(q, k, v)
    monkeypatch.setattr(module, "check", lambda *_: None)
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive and finite"):
            module.run(q, k, v, scale=scale)
