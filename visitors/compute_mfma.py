"""One MFMA on register contents: 64 lanes times the elements that each holds.

The instruction does what the catalogue says of it, whatever the caller believes: a kernel that was laid out
with another fragment map gets wrong numbers, as it would on the machine.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from closedform.hw.atoms import MFMAAtom, instructions
from closedform.hw.errors import BadInput
from closedform.hw.fragments import FragmentMap
from closedform.operators.numerics import Array, accumulator

__all__ = ["LANES", "mfma"]

LANES = 64


def mfma(atom: MFMAAtom, a: Array, b: Array, c: Array) -> Array:
    """C + A B on fragments a, b, c of shape [..., 64, elements]; leading axes broadcast and are independent.

    Values of the input types, sums in the accumulator's type. BadInput if the target has no such instruction.
    """
    gather_a, gather_b, scatter_c = _tables(_catalogued(atom))
    kind = accumulator(atom.dtype_acc.name)
    left = a.reshape(*a.shape[:-2], -1)[..., gather_a].astype(kind, copy=False)
    right = b.reshape(*b.shape[:-2], -1)[..., gather_b].astype(kind, copy=False)
    product = left @ right
    return np.asarray(c + product.reshape(*product.shape[:-2], -1)[..., scatter_c])


@lru_cache(maxsize=256)
def _catalogued(atom: MFMAAtom) -> MFMAAtom:
    """The atom of the same instruction and types as the catalogue describes it."""
    for known in instructions(atom.gfx, atom.acc_only):
        if known.instruction == atom.instruction and known.dtype_a == atom.dtype_a and known.blocks == 1:
            return known
    raise BadInput(f"{atom} is not a single-block instruction of {atom.gfx}")


@lru_cache(maxsize=256)
def _tables(atom: MFMAAtom) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Where A[m, k] and B[k, n] lie among the lanes' elements, and which C[m, n] each element is."""
    c = atom.c.table()
    return _places(atom.a, "m", "k"), _places(atom.b, "k", "n"), c["m"] * atom.n + c["n"]


def _places(fragment: FragmentMap, rows: str, cols: str) -> NDArray[np.intp]:
    shape = fragment.shape
    row, col = np.arange(shape[rows])[:, None], np.arange(shape[cols])[None, :]
    lane, elem = fragment.owner(**{rows: row, cols: col})
    return np.asarray(lane * fragment.elements + elem, dtype=np.intp)
