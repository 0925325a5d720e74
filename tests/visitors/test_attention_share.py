"""The compiled main loops of attention against the shares that they were designed for; without llvm-mca not run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from closedform.hw.sim import parse_file
from closedform.hw.sim.decode import Code
from closedform.static_share import find_mca, static_share

from .attention_kernels import Case, compiled

pytestmark = pytest.mark.skipif(find_mca() is None, reason="llvm-mca is not installed")


@dataclass(frozen=True)
class Bar:
    """Least static MFMA share of the path that every iteration takes, and of all blocks; least waves of a SIMD."""

    hw: str
    dtype: str
    always: float
    all_blocks: float = 0.0
    d: int = 128
    causal: bool = False
    waves: int = 2
    slow: bool = True

    def __str__(self) -> str:
        return f"{self.hw}-{self.dtype}-d{self.d}{'-causal' if self.causal else ''}"


BARS = (
    Bar("mi300x", "f16", 0.88, slow=False),
    Bar("mi300x", "bf16", 0.88),
    Bar("mi300x", "f16", 0.82, 0.70, causal=True, slow=False),
    Bar("mi300x", "bf16", 0.82, 0.70, causal=True),
    Bar("mi300x", "f16", 0.82, d=64),
    Bar("mi300x", "bf16", 0.82, d=64),
    Bar("mi210", "f16", 0.92),
    Bar("mi210", "bf16", 0.92),
    Bar("mi355x", "bf16", 0.78),
    Bar("mi210", "f32", 0.95, waves=1),
    Bar("mi300x", "f32", 0.95, waves=1),
    Bar("mi100", "f32", 0.90, waves=1),
)


@pytest.mark.parametrize("bar", [pytest.param(b, marks=[pytest.mark.slow] if b.slow else [], id=str(b)) for b in BARS])
def test_the_matrix_core_is_busy_for_its_share_of_the_loop(bar: Bar) -> None:
    features = (("causal", True),) if bar.causal else ()
    case = Case(bar.hw, bar.dtype, bar.d, features=features)
    made = compiled(case)
    found = static_share(Code(parse_file(made.isa).kernel()))
    assert found.always.share >= bar.always, found
    assert found.all_blocks.share >= bar.all_blocks, found
    assert (made.vgpr_spills, made.sgpr_spills) == (0, 0)
    assert case.derivation().require()[1].waves_per_simd >= bar.waves
