"""What is promised of derived GEMMs and what their binaries need: registers, LDS, spills; kernels as users get them."""

from __future__ import annotations

import pytest

from closedform.emission import broken_promises
from closedform.operators.gemm import LAYOUTS, Gemm
from closedform.visitors.compile import compile_source
from closedform.visitors.emit import emit_source

from .gemm_checks import compiles
from .gemm_kernels import derived, offered

TARGETS = ("mi100", "mi210", "mi300x", "mi355x")
#: Large and square, one round, few rows, no multiple of a tile.
SHAPES = ((4096, 4096, 4096), (8192, 1024, 2048), (16, 16384, 4096), (1000, 1000, 1000))
#: A promise this far above the binary is the most that still explains something.
SLACK = 1.25
KINDS = [(hw, dtype) for hw in TARGETS for dtype in offered(hw)]
#: Every type of every target once, with shapes and layouts in turn.
COVER = [(hw, dtype, SHAPES[n % 4], LAYOUTS[n // 4 % 4]) for n, (hw, dtype) in enumerate(KINDS)]


def keeps(hw: str, op: Gemm) -> None:
    derivation = derived(hw, op)
    _, promised, _ = derivation.require()
    binary = compile_source(emit_source(derivation), derivation.hw.gfx)
    assert broken_promises(derivation, binary) == []
    assert binary.scratch_bytes == 0
    assert promised.registers <= SLACK * binary.vgpr_total
    assert promised.lds_bytes == binary.lds_bytes


@compiles
@pytest.mark.parametrize(("hw", "dtype", "shape", "layout"), COVER)
def test_a_cover_keeps_its_promise(hw: str, dtype: str, shape: tuple[int, int, int], layout: str) -> None:
    keeps(hw, Gemm(*shape, dtype=dtype, layout=layout))


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("hw", "dtype"), KINDS)
def test_every_kernel_keeps_its_promise(hw: str, dtype: str, shape: tuple[int, int, int], layout: str) -> None:
    keeps(hw, Gemm(*shape, dtype=dtype, layout=layout))
