"""The fragment-layout probe: every element of C is told apart, and every atom offered compiles."""

from __future__ import annotations

import re

import numpy as np
import pytest

from closedform.hw import catalogue
from closedform.hw.atoms import MFMAAtom
from closedform.hw.dtypes import DTYPES
from closedform.hw.errors import BadInput
from closedform.visitors.emit_layout_probe import emit_layout_probe
from closedform.visitors.layout_probe import encode, pack, probe_matrices, unpack_integers

#: One GPU of every target.
TARGETS = {catalogue.get(name).gfx: name for name in reversed(catalogue.names()) if not name.startswith("paper")}
OFFERED = [atom for name in TARGETS.values() for atom in catalogue.get(name).atoms if atom.emit]


def name_of(atom: MFMAAtom) -> str:
    return f"{atom.gfx}-{atom.instruction}-{atom.dtype_a}-{atom.dtype_b}"


def fragments(matrix: np.ndarray, atom: MFMAAtom, operand: str) -> np.ndarray:
    """What each lane holds of an operand, [lanes, elements], by the operand's map."""
    table = getattr(atom, operand).table()
    if operand == "a":
        return np.asarray(matrix[table["m"], table["k"]])
    if operand == "b":
        return np.asarray(matrix[table["k"], table["n"]])
    return np.asarray(matrix[table["m"], table["n"]])


def test_every_target_has_atoms_to_offer() -> None:
    assert {atom.gfx for atom in OFFERED} == set(TARGETS)


@pytest.mark.parametrize("atom", OFFERED, ids=name_of)
def test_every_element_of_c_is_different(atom: MFMAAtom) -> None:
    a, b = (np.array(x) for x in probe_matrices(atom))
    c = a @ b
    assert np.array_equal(c, np.arange(atom.m * atom.n).reshape(atom.m, atom.n))


@pytest.mark.parametrize("atom", OFFERED, ids=name_of)
def test_inputs_fit_the_registers(atom: MFMAAtom) -> None:
    """Every factor is exact in its type (encode refuses others) and each lane gets the registers of the atom."""
    a, b = probe_matrices(atom)
    for matrix, operand, dtype, registers in (
        (a, atom.a, atom.dtype_a, atom.registers_a),
        ([list(column) for column in zip(*b, strict=True)], atom.b, atom.dtype_b, atom.registers_b),
    ):
        words = np.array(pack(matrix, operand, dtype), dtype=np.int32)
        assert words.shape == (64, registers)


@pytest.mark.parametrize("atom", OFFERED, ids=name_of)
def test_a_wrong_map_shows(atom: MFMAAtom) -> None:
    """Two k exchanged between A and B, or two lanes of C, give another matrix."""
    a, b = (np.array(x) for x in probe_matrices(atom))
    lanes = fragments(a @ b, atom, "c")
    assert len(np.unique(lanes)) == atom.m * atom.n
    assert unpack_integers(lanes.tolist(), atom.c) == (a @ b).tolist()
    assert unpack_integers(np.roll(lanes, 1, axis=0).tolist(), atom.c) != (a @ b).tolist()
    assert not np.array_equal(np.roll(a, 1, axis=1) @ b, a @ b)


@pytest.mark.parametrize(
    ("name", "value", "bits"),
    [
        ("f32", 1, 0x3F800000),
        ("f64", 3, 0x4008000000000000),
        ("f16", 12, 0x4A00),
        ("bf16", 96, 0x42C0),
        ("i8", -3, 0xFD),
        ("fp8_e4m3fn", 1, 0x38),
        ("fp8_e4m3fnuz", 1, 0x40),
        ("fp8_e4m3fn", 448, 0x7E),
        ("bf8_e5m2", 1, 0x3C),
        ("bf8_e5m2fnuz", 1, 0x40),
        ("fp6_e2m3", 7, 0x1E),
        ("bf6_e3m2", 28, 0x1F),
        ("fp4_e2m1", 6, 0x7),
        ("fp4_e2m1", 1, 0x2),
        ("xf32", 31, 0x41F80000),
        ("f16", 0, 0),
    ],
)
def test_encode(name: str, value: int, bits: int) -> None:
    assert encode(value, DTYPES[name]) == bits


@pytest.mark.parametrize(
    ("name", "value"),
    [("fp4_e2m1", 5), ("fp4_e2m1", 8), ("bf8_e5m2", 9), ("bf16", 257), ("i8", 128), ("f16", -1)],
)
def test_encode_refuses_what_is_not_exact(name: str, value: int) -> None:
    with pytest.raises(BadInput, match="not exact"):
        encode(value, DTYPES[name])


def test_f64_rows_are_not_f32_rows() -> None:
    """The C map depends on the type: f32 and f64 16x16x4 hold different rows in the same lane and element."""
    hw = catalogue.get("mi300x")
    c = np.arange(256).reshape(16, 16)
    f32, f64 = hw.atom("v_mfma_f32_16x16x4_f32"), hw.atom("v_mfma_f64_16x16x4_f64")
    assert not np.array_equal(fragments(c, f32, "c"), fragments(c, f64, "c"))


def test_text_is_deterministic() -> None:
    for atom in OFFERED:
        assert emit_layout_probe(atom) == emit_layout_probe(atom)


def test_atoms_that_are_not_offered_are_refused() -> None:
    hw = catalogue.get("mi300x")
    several_blocks = hw.atom("v_mfma_f32_32x32x1_2b_f32")
    with pytest.raises(BadInput, match="cannot be emitted"):
        emit_layout_probe(several_blocks)
    with pytest.raises(BadInput, match="one block"):
        probe_matrices(several_blocks)


@pytest.mark.compile
@pytest.mark.parametrize("atom", OFFERED, ids=name_of)
def test_compiles_to_exactly_that_instruction(atom: MFMAAtom) -> None:
    from closedform.visitors.compile import compile_source, missing_dependency

    if missing := missing_dependency():
        pytest.skip(missing)
    compiled = compile_source(emit_layout_probe(atom), atom.gfx)
    assert re.findall(r"^\s*(v_mfma_\S+)", compiled.isa, re.MULTILINE) == [atom.instruction]
