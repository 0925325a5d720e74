"""run(), pack_w() and unpack_w() of emitted convolutions on CPU tensors, the kernel in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from closedform import pack, unpack
from closedform.emission import manifest_of
from closedform.hw.errors import BadInput
from closedform.operators.conv2d import Conv2d
from closedform.visitors.compile import missing_dependency

from .conv2d_host import Host
from .conv2d_kernels import derived, kernel

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch"),
]

#: layout, channels and filters of a group, and whether taps become channels.
OPS = [
    Conv2d(1, 24, 8, 9, 40, 3, 3, pad=1, dtype="f16", prepacked=True, groups=2),
    Conv2d(1, 3, 14, 12, 20, 5, 3, stride=2, pad=1, dtype="f32", layout="NCHW", prepacked=True, bias=True),
    Conv2d(1, 16, 8, 7, 12, 3, 3, dtype="f16"),
]


def inputs(op: Conv2d, seed: int = 0) -> list:
    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    kind = {"f16": torch.float16, "f32": torch.float32}[op.dtype]
    shapes = [op.shape_x, op.shape_w, *([(op.OC,)] if op.bias else [])]
    numbers = [torch.randint(-2, 3, shape, generator=generator) for shape in shapes]
    return [t.to(torch.float32 if n == 2 else kind) for n, t in enumerate(numbers)]


@pytest.mark.parametrize("op", OPS, ids=str)
def test_run_is_exact_and_its_packing_is_ours(op: Conv2d) -> None:
    import torch

    host = Host("mi300x", op)
    x, w, *rest = inputs(op)
    given = w
    if op.prepacked:
        given = host.file.pack_w(w)
        derivation, _ = kernel("mi300x", op)
        packed = pack(derivation, "W", w.numpy())
        assert np.array_equal(given.data.numpy(), packed)
        assert np.array_equal(unpack(derivation, "W", packed), w.numpy())
        assert torch.equal(host.file.unpack_w(given), w)
    out = host.file.run(x, given, *rest)
    assert torch.equal(out.double(), host.file.reference(x, w, *rest))
    assert host.launches == 1


def test_run_takes_views_empty_batches_and_refuses_the_rest() -> None:
    import torch

    host = Host("mi300x", OPS[2])
    x, w = inputs(OPS[2])
    wide = torch.zeros(1, 8, 9, 32, dtype=torch.float16)
    wide[:, :, 1:8, 8:24] = x
    view = wide[:, :, 1:8, 8:24]
    out = torch.full((1, 6, 5, 24), torch.nan, dtype=torch.float16)
    assert host.file.run(view, w, out=out[..., :12]) is not None
    assert torch.equal(out[..., :12].double(), host.file.reference(x, w))
    assert out[..., 12:].isnan().all()
    before = host.launches
    assert host.file.run(x[:0], w).shape == (0, 6, 5, 12)
    assert host.launches == before
    for wrong in ((x.float(), w), (x, w[:, :2]), (x[..., :8], w), (x[:, :1], w)):
        with pytest.raises(ValueError, match="x"):
            host.file.run(*wrong)


def test_run_refuses_what_the_kernel_would_read_past_its_end() -> None:
    host = Host("mi300x", OPS[0])
    x, w = inputs(OPS[0])
    packed = host.file.pack_w(w)
    for wrong in (w, packed._replace(data=packed.data[:1])):
        with pytest.raises(ValueError, match=r"w must come from pack_w\(\) with groups=2"):
            host.file.run(x, wrong)
    with pytest.raises(ValueError, match="must be four numbers"):
        host.file.run(x, packed, pad=(1, 1))
    host = Host("mi300x", OPS[1])
    x, w, bias = inputs(OPS[1])
    for wrong in (bias[:-1], None, bias.long(), bias[None]):
        with pytest.raises(ValueError, match="bias must be a floating-point tensor of 20 elements"):
            host.file.run(x, host.file.pack_w(w), wrong)
    assert host.launches == 0


def test_the_manifest_says_how_the_filter_lies() -> None:
    derivation = derived("mi300x", OPS[0])
    described = manifest_of(derivation, "name", {})["packed"]["W"]
    assert described["order"][0] == "group"
    assert described["tile_oc"] == derivation.tiles.tile_oc
    with pytest.raises(BadInput, match="not pre-shuffled"):
        pack(derived("mi300x", OPS[2]), "W", np.zeros(1))
    with pytest.raises(BadInput, match="is packed as"):
        unpack(derivation, "W", np.zeros((1, 2)))
