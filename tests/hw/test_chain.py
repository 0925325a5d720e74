"""Chained MFMAs: C registers as the B operand, against V^T P^T for every atom of every target."""

import dataclasses

import numpy as np
import pytest
import sympy

from closedform.hw import FragmentMap, Infeasible, chain_atoms, get, tiles_per_group
from closedform.hw.chain import ChainStep, chain
from closedform.hw.errors import BadInput
from closedform.hw.fragments import fragment_map, parse_digits

GPUS = ("mi100", "mi210", "mi300x", "mi355x")
ATOMS = [
    atom
    for gpu in GPUS
    for atom in get(gpu).atoms
    if atom.blocks == 1 and atom.dtype_a == atom.dtype_b and "scale" not in atom.instruction
]
OFFERED = [atom for atom in ATOMS if atom.emit is not None]
LANES = np.arange(64)[:, None]


def chained(steps, c, second, scores, values):
    """O^T of the steps as 64 lanes compute it: registers filled by the C map, operands read by their maps."""
    rows = c.shape["m"]
    held = c.table()
    tiles = scores.shape[0] // rows
    registers = np.stack([scores[tile * rows + held["m"], held["n"]] for tile in range(tiles)])
    a, b = second.a.table(), second.b.table()
    out = np.zeros((second.m, second.n))
    for step in steps:
        a_matrix = np.full((second.m, second.k), np.nan)
        b_matrix = np.full((second.k, second.n), np.nan)
        for elem, (tile, register) in enumerate(step.registers):
            b_matrix[b["k"][:, elem], b["n"][:, elem]] = registers[tile, :, register]
        key = step.key_of_a(second.a, LANES, np.arange(second.elements_a)[None, :])
        a_matrix[a["m"], a["k"]] = values[key, a["m"]]
        out += a_matrix @ b_matrix
    return out


def operands(first, second, tiles, seed=0):
    rng = np.random.default_rng(seed)
    keys = tiles * first.m
    scores = rng.integers(-8, 9, (keys, first.n)).astype(float)
    values = rng.integers(-8, 9, (keys, second.m)).astype(float)
    return scores, values


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_chaining_gives_the_product(atom, groups):
    tiles = groups * tiles_per_group(atom.c, atom.b)
    steps = chain_atoms(atom, atom, tiles)
    assert len(steps) * atom.k == tiles * atom.m
    scores, values = operands(atom, atom, tiles)
    assert np.array_equal(chained(steps, atom.c, atom, scores, values), values.T @ scores)


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_every_register_and_every_key_is_used_once(atom):
    tiles = 2 * tiles_per_group(atom.c, atom.b)
    steps = chain_atoms(atom, atom, tiles)
    used = [register for step in steps for register in step.registers]
    assert sorted(used) == [(tile, e) for tile in range(tiles) for e in range(atom.elements_c)]
    assert sorted(key for step in steps for key in step.key_of_k) == list(range(tiles * atom.m))


def test_each_offered_type_chains_on_each_target():
    assert {(a.gfx, a.dtype_a.name) for a in OFFERED} >= {
        (get(gpu).gfx, name) for gpu in GPUS for name in ("f32", "f16", "bf16")
    }


@pytest.mark.parametrize(
    ("gpu", "instruction", "tiles"),
    [
        ("mi300x", "v_mfma_f32_16x16x4_f32", 1),
        ("mi300x", "v_mfma_f32_32x32x8_f16", 1),
        ("mi100", "v_mfma_f32_16x16x8bf16", 1),
        ("mi355x", "v_mfma_f32_16x16x32_bf16", 2),
        ("mi355x", "v_mfma_f32_32x32x16_f16", 1),
        ("mi300x", "v_mfma_f32_16x16x32_fp8_fp8", 2),
    ],
)
def test_tiles_that_one_group_takes(gpu, instruction, tiles):
    atom = get(gpu).atom(instruction)
    assert tiles_per_group(atom.c, atom.b) == tiles


def test_keys_of_known_steps():
    """32x32x8: 8 keys in order; 16x16x4 f32: every fourth key; 16x16x32: 4 keys of each of two tiles."""
    mi300x, mi355x = get("mi300x"), get("mi355x")
    f16 = mi300x.atom("v_mfma_f32_32x32x8_f16")
    assert [s.key_of_k for s in chain_atoms(f16, f16, 1)] == [tuple(range(8 * s, 8 * s + 8)) for s in range(4)]
    f32 = mi300x.atom("v_mfma_f32_16x16x4_f32")
    assert [s.key_of_k for s in chain_atoms(f32, f32, 1)] == [(s, s + 4, s + 8, s + 12) for s in range(4)]
    wide = mi355x.atom("v_mfma_f32_16x16x32_bf16")
    [step] = chain_atoms(wide, wide, 2)
    assert step.key_of_k[:12] == (0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7)
    assert step.registers[3:5] == ((0, 3), (1, 0))


def test_f64_chains_by_its_own_c_map_and_not_by_that_of_f32():
    f64 = get("mi300x").atom("v_mfma_f64_16x16x4_f64")
    scores, values = operands(f64, f64, 1)
    wrong = fragment_map("c16x16", "c")
    assert chain(f64.c, f64.b, 1) != chain(wrong, f64.b, 1)
    assert np.array_equal(chained(chain(f64.c, f64.b, 1), f64.c, f64, scores, values), values.T @ scores)
    assert not np.array_equal(chained(chain(wrong, f64.b, 1), f64.c, f64, scores, values), values.T @ scores)


@pytest.mark.parametrize("atom", [a for a in OFFERED if a.m == 32], ids=str)
def test_a_wrong_c_map_gives_wrong_values(atom):
    """Rows 16 * group + register, a map that tools have had for 32x32, against what the hardware holds."""
    wrong = FragmentMap("wrong", ("m", "n", "block"), parse_digits("lane n32 m2*16; elem m16"))
    tiles = tiles_per_group(atom.c, atom.b)
    scores, values = operands(atom, atom, tiles)
    steps = chain(wrong, atom.b, tiles)
    assert not np.array_equal(chained(steps, atom.c, atom, scores, values), values.T @ scores)


def test_keys_run_on_symbols():
    lane, elem = sympy.symbols("lane elem", integer=True, nonnegative=True)
    atom = get("mi355x").atom("v_mfma_f32_16x16x32_bf16")
    [step] = chain_atoms(atom, atom, 2)
    symbolic = step.key_of_a(atom.a, lane, elem)
    for at in ((0, 0), (17, 5), (63, 7)):
        assert symbolic.subs({lane: at[0], elem: at[1]}) == step.key_of_k[atom.a.coords(*at)["k"]]


@pytest.mark.parametrize(
    ("first", "second", "tiles", "message"),
    [
        ("v_mfma_f32_32x32x8_f16", "v_mfma_f32_16x16x16_f16", 1, "lane 16 holds query 16, B wants 0"),
        ("v_mfma_f64_4x4x4_4b_f64", "v_mfma_f64_4x4x4_4b_f64", 1, "needs 4 blocks of one instruction"),
        ("v_mfma_f32_16x16x32_fp8_fp8", "v_mfma_f32_16x16x32_fp8_fp8", 1, "use a multiple of 2"),
        ("v_mfma_f32_16x16x32_fp8_fp8", "v_mfma_f32_16x16x32_fp8_fp8", 0, "use a multiple of 2"),
    ],
)
def test_what_does_not_chain_is_a_value_with_the_reason(first, second, tiles, message):
    hw = get("mi300x")
    found = chain_atoms(hw.atom(first), hw.atom(second), tiles)
    assert isinstance(found, Infeasible)
    assert message in str(found)


def test_lanes_that_hold_other_queries_do_not_chain():
    atom = get("mi300x").atom("v_mfma_f32_16x16x16_f16")
    turned = FragmentMap("turned", ("m", "n", "block"), parse_digits("lane n16 m2*8 m2*4; elem m4"))
    swapped = dataclasses.replace(turned, digits=parse_digits("lane n8 m2*4 n2*8 m2*8; elem m4"))
    assert isinstance(chain(swapped, atom.b, 1), Infeasible)
    scores, values = operands(atom, atom, 1)
    steps = chain(turned, atom.b, 1)
    assert np.array_equal(chained(steps, turned, atom, scores, values), values.T @ scores)


def test_mixed_instructions_of_one_shape_chain():
    hw = get("mi300x")
    first, second = hw.atom("v_mfma_f32_32x32x8_f16"), hw.atom("v_mfma_f32_32x32x2_f32")
    scores, values = operands(first, second, 1)
    steps = chain_atoms(first, second, 1)
    assert np.array_equal(chained(steps, first.c, second, scores, values), values.T @ scores)


def test_a_step_whose_keys_are_no_digits_is_refused():
    with pytest.raises(BadInput, match="are not digits of k"):
        ChainStep(((0, 0),), (0, 1, 3, 2))
