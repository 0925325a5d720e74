"""The fragment-layout probe: every element of C is told apart, and every atom offered compiles."""

from __future__ import annotations

import re

import numpy as np
import pytest
from closedform.hw import catalogue
from closedform.hw.atoms import MFMAAtom
from closedform.hw.errors import BadInput
from closedform.operators.numerics import rounded
from closedform.visitors.emit_layout_probe import emit_layout_probe, probe_matrices

#: One GPU of every target.
TARGETS = {
    catalogue.get(name).gfx: name for name in reversed(catalogue.names()) if not name.startswith("paper")
}
OFFERED = [atom for name in TARGETS.values() for atom in catalogue.get(name).atoms if atom.emit]


def name_of(atom: MFMAAtom) -> str:
    return f"{atom.gfx}-{atom.instruction}"


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
def test_inputs_are_exact_in_the_type(atom: MFMAAtom) -> None:
    for matrix in map(np.array, probe_matrices(atom)):
        if atom.dtype_a.is_float:
            assert np.array_equal(rounded(matrix, atom.dtype_a.name), matrix)
        else:
            assert np.abs(matrix).max() <= atom.dtype_a.max_finite


@pytest.mark.parametrize("atom", OFFERED, ids=name_of)
def test_a_wrong_map_shows(atom: MFMAAtom) -> None:
    """Fragments filled by the map of another type's C, or with two k exchanged, give another C."""
    a, b = (np.array(x) for x in probe_matrices(atom))
    lanes = fragments(a @ b, atom, "c")
    assert len(np.unique(lanes)) == atom.m * atom.n
    swapped = a[:, [*range(1, atom.k), 0]]
    assert not np.array_equal(swapped @ b, a @ b)


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
    with pytest.raises(BadInput, match="cannot be emitted"):
        emit_layout_probe(hw.atom("v_mfma_f64_16x16x4_f64"))
    with pytest.raises(BadInput, match="one block"):
        probe_matrices(hw.atom("v_mfma_f32_32x32x1_2b_f32"))


@pytest.mark.compile
@pytest.mark.parametrize("atom", OFFERED, ids=name_of)
def test_compiles_to_exactly_that_instruction(atom: MFMAAtom) -> None:
    from closedform.visitors.compile import compile_source, missing_dependency

    if missing := missing_dependency():
        pytest.skip(missing)
    compiled = compile_source(emit_layout_probe(atom), atom.gfx)
    assert re.findall(r"^\s*(v_mfma_\S+)", compiled.isa, re.MULTILINE) == [atom.instruction]
