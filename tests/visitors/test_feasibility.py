"""Derivations: what fits, what binds, what is refused; the formulas on every arithmetic."""

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform.hw import catalogue
from closedform.hw.errors import BadInput, Infeasible, InfeasibleError
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm
from closedform.visitors.attention_formulas import DEFAULT, GRID, PAPER
from closedform.visitors.feasibility import derive, derive_attention
from closedform.visitors.formula import Formula, ceil_div, minimum, round_up

GPUS = [name for name in catalogue.names() if not name.startswith("paper")]
LENGTHS = st.integers(1, 5000)
FORMULAS = [f for owner in (PAPER, DEFAULT, GRID) for f in vars(owner).values() if isinstance(f, Formula)]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("variant", ["chained", "lds", "fma"])
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 256),
    st.integers(1, 64),
    st.sampled_from(["f32", "f16", "bf16"]),
)
def test_tiles_fit_and_cover(gpu, variant, L_q, L_kv, d, heads, dtype):
    hw = catalogue.get(gpu)
    derivation = derive(Attention(L_q, L_kv, d, heads=heads, dtype=dtype, variant=variant), hw)
    tiles, promised, grid = derivation.require()
    layout = tiles.layout(derivation.op)
    assert d <= tiles.d_pad < d + layout.d_align
    assert tiles.tile_q % tiles.atom.n == 0
    assert tiles.tile_kv % layout.key_align == 0
    assert promised.registers <= promised.register_budget
    assert promised.lds_bytes <= hw.lds_max_per_workgroup_bytes
    assert grid.grid[0] * tiles.block_q >= L_q
    assert grid.blocks == grid.grid[0] * heads * tiles.splits
    assert (grid.rounds - 1) * hw.num_cus * grid.workgroups_per_cu < grid.blocks
    assert 0 < grid.utilisation <= 1
    assert all(check.ok for check in derivation.checks)
    assert {check.level for check in derivation.checks} == {"block", "wave", "atom"}
    assert sum(step.binds for step in derivation.steps) == 1


def test_the_example_of_the_design():
    """f16, d = 128, many heads: 32 rows, 64 keys, two waves of 256 registers, K and V in half of the LDS."""
    tiles, promised, _ = derive(Attention(4096, 4096, 128, heads=32, dtype="f16"), catalogue.get("mi300x")).require()
    assert (tiles.tile_q, tiles.tile_kv, tiles.waves_per_simd) == (32, 64, 2)
    items = {item.name: item.registers for item in promised.items}
    assert (items["Q"], items["S"], items["O"], items["m, l"]) == (32, 32, 64, 5)
    assert (items["next S"], items["K, V under way"]) == (32, 8)
    assert (promised.register_budget, promised.lds_bytes) == (256, 32768)


@pytest.mark.parametrize("d", [32, 64, 96, 128])
def test_sixteen_bit_types_run_two_waves_on_a_unified_file(d):
    for gpu in ("mi210", "mi300x", "mi355x"):
        derivation = derive(Attention(4096, 4096, d, heads=32, dtype="bf16"), catalogue.get(gpu))
        assert derivation.tiles.waves_per_simd == 2
        assert derivation.grid.workgroups_per_cu * derivation.tiles.waves == 8


def test_an_empty_device_gets_smaller_query_tiles_and_says_so():
    hw = catalogue.get("mi300x")
    full, thin = (derive(Attention(4096, 4096, 64, heads=h, dtype="f16"), hw) for h in (64, 1))
    assert (full.tiles.waves, full.binding) == (8, "step")
    assert (thin.tiles.block_q < full.tiles.block_q, thin.binding) == (True, "cus")
    assert any("underfilled" in note for note in thin.notes)
    assert not any("underfilled" in note for note in full.notes)


def test_few_query_rows_take_the_narrow_atom():
    tiles, _, _ = derive(Attention(16, 4096, 128, heads=64, dtype="f16"), catalogue.get("mi300x")).require()
    assert (tiles.atom.n, tiles.tile_q) == (16, 16)
    assert derive(Attention(17, 4096, 128, heads=64, dtype="f16"), catalogue.get("mi300x")).tiles.atom.n == 32


def test_fewer_visible_cus_change_the_verdict_only():
    op = Attention(16384, 16384, 128, heads=8, dtype="f16")
    whole, part = (derive(op, catalogue.get("mi300x").with_cus(n)) for n in (304, 38))
    assert whole.tiles == part.tiles
    assert part.grid.rounds > whole.grid.rounds


@pytest.mark.parametrize(
    ("fixed", "resource"),
    [
        ({"tile_kv": 64, "tile_q": 32, "waves": 1}, "LDS"),
        ({"tile_kv": 32, "tile_q": 256}, "ArchVGPRs"),
        ({"waves": 32}, "work-items"),
    ],
)
def test_what_does_not_fit_names_the_capacity(fixed, resource):
    op = Attention(4096, 4096, 128, heads=32, variant="lds" if resource == "LDS" else "chained")
    derivation = derive_attention(op, catalogue.get("mi300x"), **fixed)
    assert isinstance(derivation.infeasible, Infeasible)
    assert derivation.tiles is None
    assert derivation.infeasible.resource == resource
    assert derivation.infeasible.needed > derivation.infeasible.limit
    with pytest.raises(InfeasibleError, match=str(derivation.infeasible.limit)):
        derivation.require()


def test_the_paper_tile_through_lds_is_72_kib_of_64():
    op = Attention(16384, 16384, 128, variant="lds")
    derivation = derive_attention(op, catalogue.get("mi300x"), tile_q=32, tile_kv=64, waves=1)
    assert (derivation.infeasible.needed, derivation.infeasible.limit) == (72 * 1024, 64 * 1024)
    assert derivation.binding == "lds"


@pytest.mark.parametrize(
    ("fixed", "text"),
    [
        ({"tile_kv": 24}, "multiple of 8|multiple of 32"),
        ({"tile_q": 7}, "multiple of 16, the columns"),
        ({"tile_q": 48, "atom": "32x32"}, "multiple of 32, the columns"),
        ({"tile_kv": 0}, "at least 1"),
        ({"waves": -1}, "at least 1"),
        ({"tile_q": True}, "whole number"),
        ({"atom": "8x8"}, "not offered"),
    ],
)
def test_overrides_that_mean_nothing_are_bad_input(fixed, text):
    with pytest.raises(BadInput, match=text):
        derive_attention(Attention(512, 512, 64, dtype="f16"), catalogue.get("mi300x"), **fixed)


def test_models_and_their_overrides_are_checked():
    hw = catalogue.get("paper_a")
    with pytest.raises(BadInput, match="unknown model"):
        derive(Attention(64, 64, 64), hw, "papers")
    with pytest.raises(BadInput, match="cannot be fixed"):
        derive(Attention(64, 64, 64), hw, "paper", tile_q=32)
    with pytest.raises(BadInput, match="f32 only"):
        derive(Attention(64, 64, 64, dtype="f16"), hw, "paper")


def test_the_paper_gemm_is_halved_until_every_cu_has_a_block():
    derivation = derive(Gemm(1024, 1024, 4096), catalogue.get("paper_a"), "paper")
    assert derivation.grid.blocks >= 120
    assert derivation.binding == "cus"
    assert derivation.tiles.tile_m < 128


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.symbol)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_formula_gives_the_same_on_int_numpy_and_sympy(formula, data):
    expression = formula.expression()
    names = sorted(str(s) for s in expression.free_symbols)
    inputs = {n: data.draw(st.integers(1, 4096), label=n) for n in names}
    missing = dict.fromkeys(formula.function.__code__.co_varnames[: formula.function.__code__.co_argcount], 1)
    number = formula.function(**(missing | inputs))
    arrays = formula.function(**{n: np.array([v, v]) for n, v in (missing | inputs).items()})
    exact = expression.subs({s: inputs[str(s)] for s in expression.free_symbols})
    assert arrays.tolist() == [number, number]
    assert sympy.simplify(exact - number) == 0
    assert formula.text.startswith(f"{formula.symbol} = ")


@given(st.integers(1, 10**12), st.integers(1, 10**6))
def test_helpers_round_as_they_say(a, b):
    assert ceil_div(a, b) == -(-a // b) == int(ceil_div(np.int64(a), np.int64(b)))
    assert round_up(a, b) % b == 0 <= round_up(a, b) - a < b
    assert minimum(a, b) == min(a, b) == int(minimum(np.array(a), np.array(b)))


def test_huge_lengths_are_plain_integers():
    derivation = derive(Attention(2**31 - 65536, 2**31 - 65536, 128, heads=1000, dtype="f16"), catalogue.get("mi300x"))
    assert derivation.grid.blocks == -(-(2**31 - 65536) // derivation.tiles.block_q) * 1000
