"""What FeasibilityVisitor promises and what the binary needs: registers, LDS, spills."""

import pytest

from closedform.visitors.compile import missing_dependency

from .attention_kernels import TARGETS, Case, compiled

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency())),
]

#: A promise this far above the binary is the most that still explains something.
SLACK = 1.25
MATRIX = [Case(hw, dtype, d) for hw in TARGETS for dtype in ("f32", "f16", "bf16") for d in (32, 64, 96, 128, 192, 256)]
#: The default command: one long sequence, one head.
ONE_HEAD = [Case(hw, dtype, 128, L=16384, heads=1) for hw in TARGETS for dtype in ("f32", "f16", "bf16")]
#: Every option where the registers are used up.
OPTIONS = [Case(hw, "bf16", 128, features=(("kv_heads", 4), ("softmax_scale", 0.1), ("lse", True))) for hw in TARGETS]


#: The paper's way through LDS, on both sides of the head dim up to which two waves share a SIMD.
THROUGH_LDS = [Case(hw, "f16", d, "lds") for hw in TARGETS for d in (96, 128)]


def keeps(case: Case) -> None:
    promised, binary = case.derivation().resources, compiled(case)
    assert (binary.vgpr_spills, binary.sgpr_spills, binary.scratch_bytes) == (0, 0, 0)
    assert binary.vgpr_total <= promised.registers <= promised.register_budget
    assert binary.lds_bytes <= promised.lds_bytes <= promised.lds_limit_bytes


@pytest.mark.parametrize("case", MATRIX + ONE_HEAD + OPTIONS, ids=str)
def test_the_binary_stays_within_a_promise_that_is_tight(case):
    keeps(case)
    assert case.derivation().resources.registers <= SLACK * compiled(case).vgpr_total


@pytest.mark.parametrize("case", THROUGH_LDS, ids=str)
def test_exponentials_through_lds_stay_within_the_promise(case):
    keeps(case)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["chained", "lds", "fma"])
@pytest.mark.parametrize("hw", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_every_head_dim_stays_within_its_promise(hw, dtype, variant):
    for d in (1, 7, 33, 40, 72, 80, 100, 160, 250):
        for L, heads in ((300, 1), (4096, 32)):
            keeps(Case(hw, dtype, d, variant, L=L, heads=heads))
