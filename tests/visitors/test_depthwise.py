"""The vector kernel of depthwise convolutions: chosen, exact at every level and in the simulator, as promised."""

from __future__ import annotations

import re
import types
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from closedform.emission import broken_promises
from closedform.hw.errors import BadInput
from closedform.operators.conv2d import Conv2d
from closedform.operators.depthwise import DepthwiseTiles
from closedform.operators.level import Level
from closedform.operators.reference import reference
from closedform.visitors.compile import missing_dependency
from closedform.visitors.compute import ComputeVisitor, input_shapes
from closedform.visitors.depthwise_formulas import DEPTHWISE
from closedform.visitors.emit import emit_source

from .conv2d_host import Host
from .conv2d_kernels import derived, kernel, simulate
from .gemm_addresses import OUT_OF_RANGE, Int, namespace

needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")
#: A promise this far above the binary is the most that still explains something, below which all waves fit.
SLACK, ALL_WAVES = 1.25, 64


def depthwise(N: int, C: int, size: tuple[int, int], taps: tuple[int, int], **fields: Any) -> Conv2d:
    return Conv2d(N, C, *size, C, *taps, groups=C, **fields)


#: A pairwise cover of targets, types, layouts and what an operator may ask for, with knobs: what small images do not
#: have by themselves, strips of several outputs and channels.
COVER = [
    ("mi100", depthwise(2, 24, (9, 9), (3, 3), pad=1, dtype="f32", bias=True), {}),
    ("mi100", depthwise(1, 12, (10, 7), (3, 2), stride=2, pad=1, layout="NCHW", dtype="f16"), {"strip": 3}),
    ("mi100", depthwise(2, 20, (8, 12), (4, 3), dilation=(2, 1), pad=2, dtype="bf16"), {"strip": 2, "lines": 2}),
    ("mi210", depthwise(1, 16, (12, 11), (3, 5), stride=(1, 3), dtype="f16", activation="silu"), {"strip": 4}),
    ("mi210", depthwise(1, 24, (7, 13), (5, 7), dilation=2, pad=(6, 5, 6, 7), dtype="bf16"), {"strip": 6, "vec": 8}),
    ("mi300x", depthwise(1, 192, (9, 8), (7, 7), pad=3, dtype="f32"), {"strip": 8, "vec": 4, "together": 7}),
    ("mi300x", depthwise(3, 9, (7, 11), (3, 3), pad=1, dtype="bf16", layout="NCHW", activation="relu"), {}),
    ("mi300x", depthwise(1, 32, (9, 12), (5, 5), pad=2, stride=(2, 1), dtype="f16", out_dtype="bf16"), {"strip": 5}),
    ("mi355x", depthwise(1, 64, (8, 8), (3, 3), stride=(2, 1), pad=1, dtype="f16", out_dtype="f32"), {"strip": 8}),
    ("mi355x", depthwise(2, 3, (20, 18), (7, 7), stride=3, pad=3, dilation=2, layout="NCHW", bias=True), {"strip": 2}),
]
#: Layers as they are: ConvNeXt, MobileNet, EfficientNet, a large kernel, one row.
LAYERS = {
    "7x7": depthwise(8, 192, (56, 56), (7, 7), pad=3),
    "3x3": depthwise(8, 192, (56, 56), (3, 3), pad=1),
    "5x5s2": depthwise(16, 240, (28, 28), (5, 5), stride=2, pad=2),
    "31x31": depthwise(8, 128, (32, 32), (31, 31), pad=15),
    "dilated": depthwise(1, 96, (64, 64), (3, 3), dilation=4, pad=4),
    "odd": depthwise(4, 75, (30, 29), (5, 3)),
    "1x9": depthwise(4, 64, (16, 512), (1, 9)),
}
TARGETS = ("mi100", "mi210", "mi300x", "mi355x")
TYPES = ("f32", "f16", "bf16")
#: Every layer once; targets, types and layouts take turns.
MATRIX = [(TARGETS[i % 4], TYPES[i % 3], name, ("NHWC", "NCHW")[i // 2 % 2]) for i, name in enumerate(LAYERS)]
FULL = [*product(TARGETS, TYPES, LAYERS, ("NHWC", "NCHW"))]


def of_type(op: Conv2d, **fields: Any) -> Conv2d:
    names = ("N", "IC", "IH", "IW", "OC", "KH", "KW", "stride", "pad", "dilation", "groups")
    return Conv2d(**{name: getattr(op, name) for name in names}, **fields)


def keeps(hw: str, dtype: str, name: str, layout: str) -> None:
    derivation, binary = kernel(hw, of_type(LAYERS[name], dtype=dtype, layout=layout), (("kernel", "vector"),))
    promised = derivation.require()[1]
    assert (binary.vgpr_spills, binary.sgpr_spills, binary.scratch_bytes, binary.lds_bytes) == (0, 0, 0, 0)
    assert binary.vgpr_total <= promised.registers <= promised.register_budget
    assert promised.registers <= max(SLACK * binary.vgpr_total, ALL_WAVES)


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(("hw", "op", "fixed"), COVER, ids=str)
def test_cover_is_exact(hw: str, op: Conv2d, fixed: dict[str, int]) -> None:
    given = (*fixed.items(), ("kernel", "vector"))
    result, out, want = simulate(hw, op, None, given)
    assert result.ok, str(result)
    if op.activation in ("none", "relu"):
        assert np.array_equal(out, want)
    else:
        assert np.allclose(out, want, rtol=2**-9, atol=1e-5)
    assert not broken_promises(*kernel(hw, op, given))


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(("hw", "dtype", "name", "layout"), MATRIX)
def test_the_binary_stays_within_a_promise_that_is_tight(hw: str, dtype: str, name: str, layout: str) -> None:
    keeps(hw, dtype, name, layout)


@needs_compiler
@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("channels", range(1, 10))
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_even_and_odd_channels(layout: str, channels: int) -> None:
    dtype, hw = TYPES[channels % 3], TARGETS[channels % 4]
    result, out, want = simulate(hw, depthwise(2, channels, (7, 8), (3, 2), pad=1, layout=layout, dtype=dtype))
    assert result.ok, str(result)
    assert np.array_equal(out, want)


@needs_compiler
@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize(("hw", "dtype", "name", "layout"), FULL)
def test_every_layer_stays_within_its_promise(hw: str, dtype: str, name: str, layout: str) -> None:
    keeps(hw, dtype, name, layout)


@pytest.mark.parametrize("family", [(1, 1, 1), (2, (0, 1, 2, 0), 1), ((2, 3), (1, 0), (3, 1))], ids=str)
@pytest.mark.parametrize(("layout", "vec"), [("NHWC", 1), ("NHWC", 2), ("NCHW", 1)])
def test_every_level_is_exact(layout: str, vec: int, family: Any) -> None:
    stride, pad, dilation = family
    op = depthwise(2, 6, (9, 11), (3, 2), stride=stride, pad=pad, dilation=dilation, layout=layout, bias=vec == 2)
    rng = np.random.default_rng(0)
    inputs = {name: rng.integers(-3, 4, shape).astype(float) for name, shape in input_shapes(op).items()}
    want = reference(op, **inputs).out
    tiles = DepthwiseTiles(strip=3, vec=vec, together=4, lines=1, waves=1)
    for level in Level:
        assert np.array_equal(ComputeVisitor(level).run(op.tree(tiles), **inputs), want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_get_the_vector_kernel_and_say_what_the_other_would_take(name: str, dtype: str) -> None:
    derivation = derived("mi300x", of_type(LAYERS[name], dtype=dtype))
    assert derivation.tiles.kernel == "vector"
    assert "kernel=mfma: " in derivation.notes[-1]
    assert sum(step.binds for step in derivation.steps) == 1
    assert derivation.resources.waves_per_simd >= 4


def test_the_page_prints_what_is_derived() -> None:
    text = (Path(__file__).parents[2] / "docs" / "conv2d.md").read_text()
    rows = re.findall(r"\| (\dx?) x \d (\w+) \| (\w+) \| ([\d.]+) us \| ([\d.]+) us \| (\d+) \|", text)
    assert len(rows) == 6
    for taps, dtype, binds, vector, mfma, registers in rows:
        derivation = derived("mi300x", of_type(LAYERS[f"{taps}x{taps}"], dtype=dtype))
        assert f"{vector} us" in derivation.notes[0]
        assert f"{mfma} us" in derivation.notes[-1]
        assert (derivation.binding, derivation.resources.registers) == (binds, int(registers))


@pytest.mark.parametrize("fixed", [{"kernel": "mfma"}, {"tile_oc": 16}, {"atom": "16x16"}])
def test_mfmas_can_be_asked_for(fixed: dict[str, Any]) -> None:
    assert derived("mi300x", LAYERS["3x3"], **fixed).tiles.kernel == "mfma"


@pytest.mark.parametrize("fields", [{"dtype": "i8"}, {"prepacked": True}])
def test_what_is_no_vector_kernel_stays_on_mfmas(fields: dict[str, Any]) -> None:
    op = depthwise(1, 16, (8, 8), (3, 3), **fields)
    assert derived("mi300x", op).tiles.kernel == "mfma"
    with pytest.raises(BadInput, match="kernel='vector' is for"):
        derived("mi300x", op, kernel="vector")


@pytest.mark.parametrize(
    ("fixed", "match"),
    [
        ({"kernel": "fma"}, "did you mean mfma"),
        ({"strip": 0}, "strip=0"),
        ({"vec": 3}, "vec=3 does not divide 4"),
        ({"vec": 8}, "vec=8 does not divide 4"),
        ({"lines": 2}, "lines=2 does not divide 7"),
        ({"lines": 7, "together": 9}, "places at once"),
        ({"strip": 4, "tile_oc": 16}, "is no knob of kernel=mfma"),
        ({"kernel": "vector", "atom": "16x16"}, "atom is no knob of kernel=vector"),
        ({"stripe": 4}, "did you mean strip"),
    ],
    ids=str,
)
def test_knobs_that_cannot_be_are_refused(fixed: dict[str, Any], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        derived("mi300x", LAYERS["7x7"], **fixed)


def test_channels_that_lie_apart_are_read_one_by_one() -> None:
    with pytest.raises(BadInput, match="vec=2 does not divide 1"):
        derived("mi300x", of_type(LAYERS["7x7"], layout="NCHW"), vec=2)


def test_a_strip_that_registers_do_not_hold_is_infeasible() -> None:
    derivation = derived("mi300x", LAYERS["7x7"], strip=16, vec=4, together=22, waves_per_simd=8)
    assert derivation.infeasible is not None
    assert (derivation.infeasible.resource, derivation.infeasible.limit) == ("registers", 64)
    for fixed in ({}, {"kernel": "vector"}, {"kernel": "mfma"}):
        assert derived("mi300x", depthwise(1, 4, (1, 5000), (1, 5000)), **fixed).infeasible is not None


def test_the_formula_of_places_counts_them() -> None:
    for strip, taps, stride, dilation in product(range(1, 6), range(1, 6), range(1, 5), range(1, 5)):
        counted = len({j * stride + k * dilation for j in range(strip) for k in range(taps)})
        gcd = int(np.gcd(stride, dilation))
        assert DEPTHWISE.places(t=strip, K_a=taps, s_a=stride, d_a=dilation, gcd=gcd).value == counted


@pytest.mark.parametrize("log2_bytes", [31, 32])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_addresses_of_tensors_of_2_and_4_gib(layout: str, log2_bytes: int) -> None:
    """Offsets on integers that refuse to wrap: the last workgroup of an X whose bytes are a power of two."""
    op = depthwise(2 ** (log2_bytes - 21), 64, (128, 128), (3, 3), pad=1, dtype="f16", layout=layout)
    derivation = derived("mi300x", op, kernel="vector", lines=1, xcds=1)
    names, last = namespace(emit_source(derivation)), derivation.grid.blocks - 1
    names["gpu"].block_idx = types.SimpleNamespace(x=last % 65536, y=last // 65536, z=0)
    strides = {"NHWC": (2**20, 8192, 64, 1), "NCHW": (2**20, 128, 1, 16384)}[layout]
    given = [Int(strides[0], 64), *(Int(s, 32) for s in strides[1:])][: 3 if layout == "NHWC" else 4]
    for thread in (0, 77, names["THREADS"] - 1):
        names["gpu"].thread_idx = types.SimpleNamespace(x=thread)
        work = names["Work"](Int(op.N, 32), *(Int(n, 32) for n in (op.IC, op.OH, op.OW)))
        assert int(work.n) == op.N - 1
        sizes = [Int(n, 32) for n in (op.IH, op.IW, op.IC, 1, 1)]
        image = names["Image"](None, None, work, *sizes, *given)
        address, extent = image.X
        assert address == 2**log2_bytes - 2**21
        offsets = [int(offset) for offset in image.offsets.values() if int(offset) != OUT_OF_RANGE]
        line = max(0, int(image.first)) * int(image.step)
        assert offsets
        assert all(0 <= line + offset < 2**21 for offset in offsets)
        assert extent == names["OFFSET_LIMIT"]


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_x_is_loaded_as_often_as_the_halo_says(layout: str) -> None:
    """Bytes of loads: of X those of R, less what lies in the padding, and every weight once for each strip."""
    size, vec, strip = (8, 24), (4 if layout == "NHWC" else 1), 8
    op = depthwise(1, 32, size, (3, 3), pad=1, layout=layout)
    fixed = (("strip", strip), ("vec", vec))
    result, out, want = simulate("mi300x", op, None, fixed)
    assert np.array_equal(out, want)
    along, across = size[::-1] if layout == "NHWC" else size
    threads = 32 // vec * along // strip * across
    halo = next(step.value for step in kernel("mi300x", op, fixed)[0].steps if step.formula.symbol == "R")
    assert halo * 32 * along * across == threads * vec * 3 * (strip + 2)
    inside = (along // strip * (strip + 2) - 2) * (3 * across - 2)
    assert result.counts["global_load_bytes"] == 4 * (32 * inside + threads * vec * 9)
    assert result.counts["global_store_bytes"] == 4 * 32 * along * across


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_run_takes_other_channels_and_views_and_refuses_the_rest(layout: str) -> None:
    import torch

    op = depthwise(1, 16, (7, 9), (3, 3), pad=1, dtype="f16", layout=layout, bias=True)
    host = Host("mi300x", op, (("strip", 4),))
    channels = 3 if layout == "NHWC" else 1
    for count in (16, 24):
        x = torch.randint(-2, 3, (2, 7, 9, 2 * count) if channels == 3 else (2, 2 * count, 7, 9)).half()
        x = x.narrow(channels, 0, count)
        w = torch.randint(-2, 3, (count, 3, 3, 1) if channels == 3 else (count, 1, 3, 3)).half()
        bias = torch.randint(-2, 3, (count,)).float()
        out = host.file.run(x, w, bias, groups=count)
        assert torch.equal(out.double(), host.file.reference(x, w, bias, groups=count))
    assert host.file.run(x[:0], w, bias, groups=24).shape[0] == 0
    assert host.launches == 2
    for wrong in ((x.float(), w), (x, w[:12]), (x, torch.cat([w, w]))):
        with pytest.raises(ValueError, match=r"x|filter for each"):
            host.file.run(*wrong, bias, groups=24)
    if layout == "NHWC":
        with pytest.raises(ValueError, match="multiples of"):
            host.file.run(x[..., :3], w[:3], bias[:3], groups=3)
    huge = torch.empty(1, 2**13, 2**13, 16, dtype=torch.float16, device="meta")
    with pytest.raises(ValueError, match="2 GiB"):
        host.file.check_offsets(huge, out, w)
    host.file.check_offsets(huge[:, : 2**13 - 1], out, w)
