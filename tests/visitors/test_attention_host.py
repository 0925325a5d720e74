"""The host side of emitted attention with options: reference, example and what run() refuses."""

import pytest

from closedform.emitted_file import load_kernel, recorded_module
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


@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "softmax_scale": 0.3}])
def test_the_reference_has_the_lse_where_the_kernel_has_it(tmp_path, options):
    import torch

    op = Attention(9, 21, 64, batch=2, heads=4, dtype="f16", lse=True, **options)
    module = module_of(tmp_path, op)
    q, k, v = module.example("cpu")
    out, lse = module.reference(q, k, v)
    logits = q.double() @ k.double().repeat_interleave(op.group, 1).transpose(-1, -2) * op.scale
    assert out.shape == q.shape
    assert torch.allclose(lse, torch.logsumexp(logits, -1), rtol=1e-12, atol=1e-12)


def test_run_hands_out_and_lse_to_the_kernel(tmp_path):
    import torch

    def launched(kernel, values, grid):
        launches.append((kernel, grid))
        values["LSE"].fill_(7.0)

    launches = []
    op = Attention(300, 21, 64, batch=2, heads=4, dtype="f16", lse=True, kv_heads=2)
    derivation = derive(op, catalogue.get("mi300x"))
    module = recorded_module(emit_source(derivation), launched)
    q, k, v = module.example("cpu")
    out, lse = module.run(q, k, v)
    assert out.shape == q.shape
    assert lse.shape == (2, 4, 300)
    assert (lse == 7.0).all()
    assert module.run(q, k, v, out, lse)[1] is lse
    assert launches == [("attention_kernel", derivation.grid.grid)] * 2
    for wrong in (lse.double(), lse[:1], torch.empty(2, 300, 4).transpose(1, 2)):
        with pytest.raises(ValueError, match="lse must be"):
            module.run(q, k, v, out, wrong)


def test_run_refuses_heads_that_do_not_agree_and_scales_that_are_none(tmp_path, monkeypatch):
    module = module_of(tmp_path, Attention(9, 21, 64, batch=2, heads=4, dtype="f16", kv_heads=2, softmax_scale=0.5))
    q, k, v = module.example("cpu")
    for keys in (k[:, :1], k[:1], k.repeat(1, 2, 1, 1)):
        with pytest.raises(ValueError, match="share a head"):
            module.run(q, keys, keys)
    with pytest.raises(ValueError, match="on a GPU, not on cpu"):
        module.run(q, k, v)
    monkeypatch.setattr(module, "check", lambda *_: None)
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive and finite"):
            module.run(q, k, v, scale=scale)
