"""MFMA atoms: every dense instruction of the four targets."""

import dataclasses

import pytest

from closedform.hw import BadInput, get
from closedform.hw import atoms as atoms_module
from closedform.hw.atoms import instructions

COUNTS = {"gfx908": 20, "gfx90a": 27, "gfx942": 32, "gfx950": 48}
ATOMS = [atom for gfx in COUNTS for atom in instructions(gfx, gfx == "gfx908")]


@pytest.mark.parametrize(("gfx", "count"), COUNTS.items())
def test_every_dense_instruction_is_there(gfx, count):
    rows = {(a.instruction, a.cycles, a.map_a, a.dtype_a.family, a.dtype_b.family) for a in instructions(gfx, False)}
    folded = {(i, c, m) if "f8f6f4" in i else (i, c, m, a, b) for i, c, m, a, b in rows}
    # fp6 and fp4 of one f8f6f4 shape share cycles and map, and have a row of their own for the registers.
    assert len(folded) + (4 if gfx == "gfx950" else 0) == count


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_numbers_of_an_atom_agree_with_each_other(atom):
    for fragment, elements in (
        (atom.a, atom.elements_a),
        (atom.b, atom.elements_b),
        (atom.c, atom.elements_c),
    ):
        assert fragment.elements == elements
    assert atom.registers_a * 32 * 64 == atom.m * atom.k * atom.blocks * atom.dtype_a.bits
    assert atom.registers_b * 32 * 64 == atom.n * atom.k * atom.blocks * atom.dtype_b.bits
    assert atom.registers_c * 32 * 64 == atom.m * atom.n * atom.blocks * atom.dtype_acc.bits
    assert atom.flops == 2 * atom.m * atom.n * atom.k * atom.blocks
    assert atom.passes * 4 == atom.cycles
    assert atom.latency == atom.cycles + 16
    assert atom.acc_only == (atom.gfx == "gfx908")
    assert atom.coexec_valu_clocks is None or 0 <= atom.coexec_valu_clocks < atom.cycles
    assert atom.source
    assert atom.emit in ("atom", "rocdl", None)
    assert bool(atom.emit_reason) == (atom.emit is None)
    assert bool(atom.emit_source) == bool(atom.rocdl_op) == bool(atom.rocdl_operand) == (atom.emit is not None)
    assert atom.emit is None or atom.blocks == 1


@pytest.mark.parametrize(
    ("gpu", "instruction", "cycles", "registers", "rate"),
    [
        ("mi100", "v_mfma_f32_32x32x8f16", 64, (2, 2, 16), 1024),
        ("mi100", "v_mfma_f32_16x16x8bf16", 32, (1, 1, 4), 512),
        ("mi210", "v_mfma_f32_16x16x16bf16_1k", 32, (2, 2, 4), 1024),
        ("mi210", "v_mfma_f64_16x16x4f64", 32, (2, 2, 8), 256),
        ("mi300x", "v_mfma_f32_16x16x4_f32", 32, (1, 1, 4), 256),
        ("mi300x", "v_mfma_f32_32x32x8_bf16", 32, (2, 2, 16), 2048),
        ("mi300x", "v_mfma_f32_16x16x32_fp8_fp8", 16, (2, 2, 4), 4096),
        ("mi300x", "v_mfma_f32_32x32x4_2b_f16", 64, (2, 2, 32), 1024),
        ("mi355x", "v_mfma_f32_32x32x16_bf16", 32, (4, 4, 16), 4096),
        ("mi355x", "v_mfma_i32_16x16x64_i8", 16, (4, 4, 4), 8192),
        ("mi355x", "v_mfma_f64_16x16x4_f64", 64, (2, 2, 8), 128),
    ],
)
def test_known_instructions(gpu, instruction, cycles, registers, rate):
    atom = get(gpu).atom(instruction)
    assert (atom.cycles, (atom.registers_a, atom.registers_b, atom.registers_c)) == (cycles, registers)
    assert atom.flops_per_clk_cu == rate


@pytest.mark.parametrize(
    ("name", "registers", "rate"), [("fp8", 8, 8192), ("bf8", 8, 8192), ("fp6", 6, 16384), ("fp4", 4, 16384)]
)
def test_one_mnemonic_takes_several_types(name, registers, rate):
    atom = get("mi355x").atom("v_mfma_f32_32x32x64_f8f6f4", name)
    assert atom.registers_a == registers
    assert atom.flops_per_clk_cu == rate


def test_what_is_offered_for_emission():
    """The single-block shapes by type and target; the f32 and 16-bit ones of FlyDSL's atom everywhere."""
    for gpu in ("mi100", "mi210", "mi300x", "mi355x"):
        shapes = {name: {(a.m, a.n, a.k) for a in get(gpu).atoms_for(name)} for name in ("f32", "f16", "bf16")}
        assert {(16, 16, 4), (32, 32, 2)} <= shapes["f32"]
        assert {(16, 16, 16), (32, 32, 8)} <= shapes["f16"]
        assert shapes["bf16"]
    assert {(a.m, a.n, a.k) for a in get("mi355x").atoms_for("bf16")} >= {(16, 16, 32), (32, 32, 16)}
    assert {(a.m, a.n, a.k) for a in get("mi100").atoms_for("bf16")} == {(16, 16, 8), (32, 32, 4)}
    through_rocdl = {(a.gfx, a.dtype_a.family) for a in ATOMS if a.emit == "rocdl"}
    assert through_rocdl == {
        *((gfx, "f64") for gfx in ("gfx90a", "gfx942", "gfx950")),
        *((gfx, "i8") for gfx in ("gfx908", "gfx90a", "gfx950")),
        *((gfx, family) for gfx in ("gfx942", "gfx950") for family in ("fp8", "bf8")),
        *(("gfx950", family) for family in ("fp6", "bf6", "fp4")),
        ("gfx942", "xf32"),
    }


def test_text_of_an_atom():
    atom = get("mi300x").atom("v_mfma_f32_16x16x32_fp8_bf8")
    assert str(atom) == "v_mfma_f32_16x16x32_fp8_bf8 (fp8_e4m3fnuz x bf8_e5m2fnuz 16x16x32, gfx942)"
    assert "x2, gfx942" in str(get("mi300x").atom("v_mfma_f32_32x32x4_2b_f16"))


def test_atoms_are_values():
    atom = get("mi300x").atom("v_mfma_f32_16x16x4_f32")
    assert atom == dataclasses.replace(atom)
    assert hash(atom) == hash(dataclasses.replace(atom))
    with pytest.raises(dataclasses.FrozenInstanceError):
        atom.m = 32


def test_unknown_target_names_the_known_ones():
    with pytest.raises(BadInput, match="gfx908, gfx90a, gfx942, gfx950"):
        instructions("gfx1100", False)


@pytest.mark.parametrize(
    ("emit", "message"),
    [("", "gives no reason"), ("atom", "without a source"), ("rocdl", "without a source")],
)
def test_a_row_must_say_how_its_emission_is_known(monkeypatch, emit, message):
    row = {**atoms_module._rows()[0], "gfx": "gfx000", "emit": emit, "emit_reason": "", "emit_source": ""}
    monkeypatch.setattr(atoms_module, "_rows", lambda: [row])
    with pytest.raises(BadInput, match=message):
        instructions("gfx000", False)
