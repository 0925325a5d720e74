"""Named convolutions, each emitted, compiled and executed: exact answers on outputs that were NaN before."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from closedform.operators.conv2d import Conv2d
from closedform.visitors.compile import missing_dependency
from closedform.visitors.emit import emit_source

from .conv2d_kernels import derived, simulate
from .gemm_addresses import OUT_OF_RANGE, Int, namespace

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch"),
]

NAMED = [
    ("mi210", Conv2d(2, 1, 22, 22, 1, 4, 4, stride=4, pad=(1, 2), dilation=(3, 2), dtype="f32")),
    ("mi300x", Conv2d(2, 1, 22, 22, 1, 4, 4, stride=4, pad=(1, 2), dilation=(3, 2), dtype="f16", layout="NCHW")),
    ("mi355x", Conv2d(2, 32, 15, 14, 24, 1, 1, stride=2, dtype="bf16")),
    ("mi100", Conv2d(1, 192, 9, 8, 192, 7, 7, pad=3, groups=192, dtype="f16")),
    ("mi300x", Conv2d(1, 16, 56, 56, 16, 3, 3, pad=1, dtype="f16")),
    ("mi210", Conv2d(3, 8, 3, 3, 8, 3, 3, dtype="f16")),
    ("mi355x", Conv2d(1, 1, 5, 5, 1, 5, 5, dtype="f32")),
]


#: Depthwise ones on MFMAs, too: by themselves they are on vector instructions.
DEPTHWISE = [(hw, op, (("kernel", "mfma"),)) for hw, op in NAMED if op.depthwise]


@pytest.mark.parametrize(("hw", "op", "fixed"), [*((hw, op, ()) for hw, op in NAMED), *DEPTHWISE], ids=str)
def test_named_cases_are_exact(hw: str, op: Conv2d, fixed: tuple[tuple[str, str], ...]) -> None:
    result, out, want = simulate(hw, op, None, fixed)
    assert result.ok, str(result)
    assert np.array_equal(out, want)


@pytest.mark.parametrize("channels", range(1, 10))
def test_even_and_odd_channels(channels: int) -> None:
    layout = ("NHWC", "NCHW")[channels % 2]
    result, out, want = simulate("mi300x", Conv2d(1, channels, 7, 8, 10 - channels, 3, 2, 1, 1, layout=layout))
    assert result.ok, str(result)
    assert np.array_equal(out, want)


def test_a_sample_of_groups_on_a_large_image() -> None:
    op = Conv2d(1, 64, 149, 149, 64, 3, 3, groups=8, dtype="f16")
    result, out, want = simulate("mi300x", op, sample=24)
    there = ~np.isnan(out)
    assert result.ok, str(result)
    assert there.sum() > 0
    assert np.array_equal(out[there], want[there])


@pytest.mark.parametrize("log2_bytes", [31, 32])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_addresses_of_tensors_of_2_and_4_gib(layout: str, log2_bytes: int) -> None:
    """Offsets on integers that refuse to wrap: the last workgroup of an X whose bytes are a power of two."""
    op = Conv2d(2 ** (log2_bytes - 21), 64, 128, 128, 64, 3, 3, pad=1, dtype="f16", layout=layout)
    assert np.prod([np.int64(n) for n in op.shape_x]) * 2 == 2**log2_bytes
    derivation = derived("mi300x", op)
    names = namespace(emit_source(derivation))
    blocks = derivation.require()[2].blocks
    last = blocks - 1
    names["gpu"].block_idx = types.SimpleNamespace(x=last % 65536, y=last // 65536, z=0)
    sizes = [Int(n, 32) for n in (op.N, op.OH, op.OW, op.filters, op.groups)]
    tile = names["Tile"](*sizes)
    strides = {"NHWC": (2**20, 8192, 64, 1), "NCHW": (2**20, 128, 1, 16384)}[layout]
    x_n, x_h, x_w, x_c = Int(strides[0], 64), *(Int(s, 32) for s in strides[1:])
    lane: Any = Int(5, 32)
    for thread in (0, 77, names["THREADS"] - 1):
        given = [Int(n, 32) for n in (op.N, op.IH, op.IW, op.channels, 1, 1)]
        x_c_given = 1 if layout == "NHWC" else x_c
        patch = names["Patch"](
            Int(0, 32), None, tile, *given, x_n, x_h, x_w, x_c_given, Int(thread, 32), Int(0, 32), lane
        )
        for _, _, chunk, offset in patch.units:
            if int(offset) == OUT_OF_RANGE or int(chunk) >= names["ROW_CHUNKS"]:
                continue
            at = int(patch.address) + int(offset)
            assert 0 <= at < 2**log2_bytes
            element = at // 2 - int(chunk) * names["VEC"] * strides[3]
            n, inside = divmod(element, strides[0])
            assert n == op.N - 1 or derivation.tiles.tile_n > 1
            assert 0 <= inside < strides[0]
