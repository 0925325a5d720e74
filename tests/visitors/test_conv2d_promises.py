"""What is promised of emitted convolutions and what their binaries need: registers, LDS, spills, main-loop shares."""

from __future__ import annotations

from typing import Any

import pytest

from closedform.hw import catalogue
from closedform.hw.sim import parse_file
from closedform.hw.sim.decode import code_of
from closedform.operators.conv2d import Conv2d
from closedform.static_share import find_mca, static_share
from closedform.visitors.compile import missing_dependency
from closedform.visitors.conv2d_shape import Conv2dShape

from .conv2d_kernels import kernel

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch"),
]

#: A promise this far above the binary is the most that still explains something: 1.17 on average. It is looser where
#: elements of less than a register are loaded one by one, whose places the compiler keeps or finds again (1.27), and on
#: a split file, where accumulators take no part.
SLACK, LOOSE_SLACK = 1.5, 2.0
#: Binaries of so few registers leave a SIMD seven waves and more, so that nothing depends on the promise.
ALL_WAVES = 72
SHAPES: dict[str, dict[str, Any]] = {
    "3x3": {"N": 8, "IC": 128, "IH": 56, "IW": 56, "OC": 128, "KH": 3, "KW": 3, "pad": 1},
    "wide": {"N": 32, "IC": 256, "IH": 56, "IW": 56, "OC": 256, "KH": 3, "KW": 3, "pad": 1},
    "1x1": {"N": 8, "IC": 64, "IH": 56, "IW": 56, "OC": 256, "KH": 1, "KW": 1},
    "1x1s2": {"N": 8, "IC": 256, "IH": 28, "IW": 28, "OC": 64, "KH": 1, "KW": 1, "stride": 2},
    "dilated": {"N": 1, "IC": 40, "IH": 9, "IW": 9, "OC": 24, "KH": 3, "KW": 3, "dilation": 2, "pad": 2},
    "stem": {"N": 8, "IC": 3, "IH": 224, "IW": 224, "OC": 64, "KH": 7, "KW": 7, "stride": 2, "pad": 3},
    "deep": {"N": 8, "IC": 512, "IH": 7, "IW": 7, "OC": 512, "KH": 3, "KW": 3, "pad": 1},
    "odd": {"N": 2, "IC": 9, "IH": 20, "IW": 18, "OC": 5, "KH": 3, "KW": 3, "pad": 1},
    "patches": {"N": 8, "IC": 3, "IH": 224, "IW": 224, "OC": 768, "KH": 16, "KW": 16, "stride": 16},
    "few": {"N": 1, "IC": 4, "IH": 7, "IW": 7, "OC": 10, "KH": 3, "KW": 3, "stride": 2, "pad": 1},
    "grouped": {"N": 2, "IC": 64, "IH": 40, "IW": 40, "OC": 64, "KH": 3, "KW": 3, "groups": 2, "stride": 2},
}
TYPES = [("mi100", "f32"), ("mi210", "f16"), ("mi300x", "bf16"), ("mi355x", "f16")]
OTHERS = [("mi100", "f16"), ("mi210", "f32"), ("mi300x", "f32"), ("mi355x", "bf16")]
#: Every shape on every target; types, layouts and packing take turns.
MATRIX = [
    (hw, dtype, name, ("NHWC", "NCHW")[(i + j) % 2], (i + 2 * j) % 3 == 0)
    for i, name in enumerate(SHAPES)
    for j, (hw, dtype) in enumerate(TYPES if i % 2 else OTHERS)
]
FULL = [
    (hw, dtype, name, layout, packed)
    for name in SHAPES
    for hw, dtype in TYPES + OTHERS
    for layout in ("NHWC", "NCHW")
    for packed in (False, True)
]


def keeps(hw: str, dtype: str, name: str, layout: str, packed: bool) -> None:
    derivation, binary = kernel(hw, Conv2d(**SHAPES[name], dtype=dtype, layout=layout, prepacked=packed))
    promised = derivation.require()[1]
    assert (binary.vgpr_spills, binary.sgpr_spills, binary.scratch_bytes) == (0, 0, 0)
    assert binary.vgpr_total <= promised.registers <= promised.register_budget
    narrow = Conv2dShape(derivation.op, derivation.tiles, derivation.hw).loads_x.narrow
    slack = LOOSE_SLACK if narrow or not derivation.hw.vgpr_unified else SLACK
    assert promised.registers <= max(slack * binary.vgpr_total, ALL_WAVES)
    assert binary.lds_bytes == promised.lds_bytes <= promised.lds_limit_bytes


@pytest.mark.parametrize(("hw", "dtype", "name", "layout", "packed"), MATRIX)
def test_the_binary_stays_within_a_promise_that_is_tight(
    hw: str, dtype: str, name: str, layout: str, packed: bool
) -> None:
    keeps(hw, dtype, name, layout, packed)


GPUS = [name for name in catalogue.names() if name not in {hw for hw, _ in TYPES + OTHERS}]


@pytest.mark.slow
@pytest.mark.parametrize("hw", GPUS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_other_catalogued_gpu_stays_within_its_promise(hw: str, name: str) -> None:
    turn = list(SHAPES).index(name) + GPUS.index(hw)
    keeps(hw, ("f16", "f32", "f16")[turn % 3], name, ("NHWC", "NCHW")[turn % 2], turn % 4 == 0)


@pytest.mark.slow
@pytest.mark.parametrize(("hw", "dtype", "name", "layout", "packed"), FULL)
def test_every_shape_stays_within_its_promise(hw: str, dtype: str, name: str, layout: str, packed: bool) -> None:
    keeps(hw, dtype, name, layout, packed)


@pytest.mark.skipif(find_mca() is None, reason="needs llvm-mca")
@pytest.mark.parametrize(
    ("hw", "dtype", "least"), [("mi300x", "f16", 0.80), ("mi355x", "bf16", 0.75), ("mi210", "f32", 0.85)]
)
def test_share_of_mfmas_in_the_main_loop(hw: str, dtype: str, least: float) -> None:
    for packed in (False, True):
        _, binary = kernel(hw, Conv2d(**SHAPES["3x3"], dtype=dtype, prepacked=packed))
        found = static_share(code_of(parse_file(binary.isa).kernel()))
        assert found is not None
        assert found.always.share is not None
        assert found.always.share >= least
