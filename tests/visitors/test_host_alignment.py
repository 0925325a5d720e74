"""Tensors as run() takes them: copies of those between the addresses of wide accesses, none that lie on a CPU."""

import pytest

from closedform.emitted_file import load_kernel, recorded_module
from closedform.hw import catalogue
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm
from closedform.operators.softmax import Softmax
from closedform.visitors.compile import missing_dependency
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

pytestmark = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))

OPS = (
    Attention(9, 21, 64, batch=2, heads=4, dtype="f16"),
    Attention(9, 21, 64, batch=2, heads=4, dtype="bf16", causal=True, softmax_scale=0.5),
    Gemm(64, 96, 128, dtype="f16", has_c=True),
    Gemm(64, 96, 128, dtype="bf16", layout="TN", bias="column", activation="relu"),
    Conv2d(2, 32, 9, 10, 64, 3, 3, pad=1, dtype="f16", bias=True),
    Conv2d(2, 32, 10, 16, 64, 3, 3, dtype="bf16", layout="NCHW"),
    Conv2d(2, 3, 14, 14, 32, 7, 7, stride=2, dtype="f16"),
    Conv2d(2, 64, 9, 10, 64, 3, 3, pad=1, groups=64, dtype="f16"),
)


def moved(t):
    """The tensor one element behind an address that any access may have."""
    import torch

    space = torch.empty(t.numel() + 1, dtype=t.dtype)
    assert space.data_ptr() % 16 == 0
    return space[1:].view(t.shape).copy_(t)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_the_kernel_gets_addresses_that_it_can_read(op):
    import torch

    launches = []
    module = recorded_module(emit_source(derive(op, catalogue.get("mi300x"))), lambda *launch: launches.append(launch))
    inputs = module.example("cpu")
    inputs = list(inputs.values()) if isinstance(inputs, dict) else inputs
    module.run(*map(moved, inputs))
    module.run(*inputs)
    (_, copied, _), (_, given, _) = launches
    for name, t in copied.items():
        if not isinstance(t, torch.Tensor):
            assert t == given[name]
        elif name.lower() not in ("d", "y", "o"):
            access = {"X": "X_READ", "A": "A_READ", "B": "B_READ"}.get(name)
            unit = getattr(module, access) * t.element_size() if access else 4 if name == "bias" else 16
            assert t.data_ptr() % unit == 0, name
            assert t.shape == given[name].shape
            assert torch.equal(t, given[name])


@pytest.mark.parametrize("op", [*OPS, Softmax(4, 64)], ids=str)
def test_tensors_that_no_kernel_can_read_are_refused(tmp_path, op):
    path = tmp_path / "emitted.py"
    path.write_text(emit_source(derive(op, catalogue.get("mi300x"))))
    module = load_kernel(path)
    inputs = module.example("cpu")
    with pytest.raises(ValueError, match="tensors must be on a GPU, not on cpu"):
        module.run(**inputs) if isinstance(inputs, dict) else module.run(*inputs)
