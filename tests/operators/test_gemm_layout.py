"""The LDS image of a GEMM operand: orders are permutations and no access of a wave meets a bank twice."""

from __future__ import annotations

import pytest

from closedform.hw import catalogue
from closedform.hw.atoms import MFMAAtom
from closedform.hw.lds import lds_phases
from closedform.operators.gemm_layout import GemmLayout

ATOMS = {
    f"{name}-{atom.instruction}-{atom.dtype_a}": (name, atom)
    for name in ("mi100", "mi210", "mi300x", "mi355x")
    for atom in catalogue.get(name).atoms
    if atom.emit and atom.blocks == 1 and atom.dtype_a == atom.dtype_b and atom.dtype_a.bits >= 8
}


def layout_of(name: str, atom: MFMAAtom, row_bytes: int = 128, **fields: int) -> GemmLayout:
    run = {4: 4, 8: 2}.get(atom.dtype_a.bits // 8, 8)
    line = 4 * catalogue.get(name).lds_banks_wide_read
    return GemmLayout(atom, row_bytes * 8 // atom.dtype_a.bits, 4, run, line, **fields)


@pytest.mark.parametrize("kind", ATOMS)
def test_a_lane_holds_runs_of_columns_and_the_image_rows_are_a_permutation(kind: str) -> None:
    layout = layout_of(*ATOMS[kind])
    columns = range(2 * layout.span)
    assert sorted(layout.image_row(c) for c in columns) == list(columns)
    held = [layout.column(g, i) for g in range(layout.groups) for i in range(4 * layout.acc)]
    assert sorted(held) == list(range(4 * layout.atom.m))
    run = [layout.column(0, i) for i in range(layout.run)]
    assert run == list(range(layout.run))
    assert sorted(layout.column_bits) == list(range(len(layout.column_bits)))


@pytest.mark.parametrize("kind", ATOMS)
def test_reads_of_128_byte_rows_have_no_bank_conflict(kind: str) -> None:
    name, atom = ATOMS[kind]
    layout = layout_of(name, atom)
    hw = catalogue.get(name)
    assert layout.read_conflicts(hw) == 0
    assert layout.write_conflicts(hw, 0, True) == 0


def test_transposing_writes_of_16_bits_have_no_bank_conflict() -> None:
    for name in ("mi300x", "mi355x"):
        hw = catalogue.get(name)
        atom = next(a for a in hw.atoms_for("bf16") if a.m == 32)
        assert layout_of(name, atom).write_conflicts(hw, 4, True) == 0
        assert layout_of(name, atom).write_conflicts(hw, 4, False) == 0


def test_an_image_holds_every_chunk_once() -> None:
    for name, atom in ATOMS.values():
        layout = layout_of(name, atom)
        places = {layout.address(row, chunk) for row in range(64) for chunk in range(layout.chunks)}
        assert places == set(range(0, 64 * layout.chunks * 16, 16))


@pytest.mark.parametrize("row_bytes", [64, 128, 256])
@pytest.mark.parametrize("kind", ATOMS)
def test_the_smallest_pad_without_read_conflicts_is_512_bytes_over_the_side(kind: str, row_bytes: int) -> None:
    """On every target, for every atom and depth; rows of a cache line are then also written without conflicts."""
    name, atom = ATOMS[kind]
    hw, elem_bytes = catalogue.get(name), atom.dtype_a.bits // 8
    if not layout_of(name, atom, row_bytes).steps:
        return
    pad = 512 // atom.m // elem_bytes
    padded = {p: layout_of(name, atom, row_bytes, pad=p) for p in range(16 // elem_bytes, pad + 1, 16 // elem_bytes)}
    assert [p for p, layout in padded.items() if layout.read_conflicts(hw) == 0] == [pad]
    assert row_bytes != 128 or padded[pad].write_conflicts(hw, 0, True) == 0
    places = [padded[pad].address(row, c) for row in range(8) for c in range(padded[pad].chunks)]
    assert sorted(places) == places
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("kind", ATOMS)
def test_reads_of_half_a_chunk_meet_every_bank_twice(kind: str) -> None:
    """Lanes read one half of their chunks at a time, which lie in half of the banks."""
    hw, layout = catalogue.get(ATOMS[kind][0]), layout_of(*ATOMS[kind], read_bytes=8)
    phases = len(lds_phases(hw, "read", 8).groups)
    assert layout.read_conflicts(hw) == layout.steps * layout.reads * 2 * 2 * phases


def test_transposing_writes_conflict_where_rows_are_padded() -> None:
    """Why the default swizzles: a thread writes rows 4 apart, and no pad of whole chunks spreads them."""
    hw = catalogue.get("mi300x")
    atom = next(a for a in hw.atoms_for("bf16") if a.m == 32)
    assert all(layout_of("mi300x", atom, pad=pad).write_conflicts(hw, 4, False) for pad in range(8, 65, 8))
