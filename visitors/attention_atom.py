"""Which MFMA both products of emitted attention use, and why."""

from __future__ import annotations

from functools import lru_cache

from closedform.hw.atoms import MFMAAtom
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.attention import Attention
from closedform.operators.chain_layout import ChainLayout

__all__ = ["alignment", "choose_atom", "narrow_atom"]

#: A length that every atom's alignment divides.
ALIGNED = 256


def choose_atom(op: Attention, hw: HardwareDescriptor, wanted: str | None, rows: int) -> tuple[MFMAAtom, str]:
    """The atom and the reason; `wanted` is "32x32", "16x16x16" or an instruction, `rows` the queries at hand.

    Fastest first; then the largest n, since a fragment of A from LDS feeds n columns: elem_bytes / (2 n) bytes per
    FLOP. Where the rows fit a narrow atom, a wide one would leave columns empty. Raises BadInput without a choice.
    """
    atoms = _chainable(hw, op.dtype, op.elem_bytes)
    if not atoms:
        raise BadInput(f"{hw.name} ({hw.gfx}) has no emittable {op.dtype} MFMA: see closedform hw atoms {hw.name}")
    if wanted is not None:
        named = [a for a in atoms if wanted in (a.instruction, f"{a.m}x{a.n}", f"{a.m}x{a.n}x{a.k}")]
        if not named:
            offered = ", ".join(f"{a.m}x{a.n}x{a.k}" for a in atoms)
            raise BadInput(f"atom {wanted!r} is not offered for {op.dtype} on {hw.gfx}: {offered}")
        return max(named, key=_preference), "fixed by the caller"
    narrow = narrow_atom(op, hw)
    if narrow is not None and rows <= narrow.n:
        return narrow, f"{rows} query rows fill no more than {narrow.n} columns"
    best = max(atoms, key=_preference)
    return best, f"{best.flops_per_clk_cu:.0f} FLOP/clk/CU, {op.elem_bytes / (2 * best.n):.4g} LDS bytes per FLOP"


def narrow_atom(op: Attention, hw: HardwareDescriptor) -> MFMAAtom | None:
    """The best atom with fewer columns than the widest; None where all are alike."""
    atoms = _chainable(hw, op.dtype, op.elem_bytes)
    widest = max(a.n for a in atoms)
    return max((a for a in atoms if a.n < widest), key=_preference, default=None)


def _preference(atom: MFMAAtom) -> tuple[float, int, int]:
    return atom.flops_per_clk_cu, atom.n, atom.k


@lru_cache(maxsize=64)
def _chainable(hw: HardwareDescriptor, dtype: str, elem_bytes: int) -> tuple[MFMAAtom, ...]:
    """Square single-block atoms that FlyDSL's MMA atom emits and whose maps chain."""
    found = [a for a in hw.atoms_for(dtype) if a.emit == "atom" and a.blocks == 1 and a.m == a.n]
    return tuple(a for a in found if _chains(a, elem_bytes))


def _chains(atom: MFMAAtom, elem_bytes: int) -> bool:
    try:
        alignment(atom, elem_bytes)
    except BadInput:
        return False
    return True


@lru_cache(maxsize=256)
def alignment(atom: MFMAAtom, elem_bytes: int) -> tuple[int, int]:
    """Multiples that d_pad and t_KV must be of. Raises BadInput for an atom whose maps do not chain."""
    probe = ChainLayout(atom, elem_bytes, ALIGNED, ALIGNED)
    return probe.d_align, probe.key_align
