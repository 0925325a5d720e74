"""Pre-shuffling of GEMM operands on the CPU: the numpy counterpart of the pack functions of an emitted kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .hw.errors import BadInput

if TYPE_CHECKING:
    from .operators.gemm_pack import PackedLayout
    from .visitors.derivation import Derivation

__all__ = ["pack", "packed_layouts", "unpack"]

Array = Any  # a numpy array


def packed_layouts(derivation: Derivation) -> dict[str, PackedLayout]:
    """How the pre-shuffled operands of the derived kernel lie, by their names; empty where there are none.

    Raises InfeasibleError without tiles.
    """
    from .visitors.gemm_shape import GemmShape

    tiles, _, _ = derivation.require()
    if derivation.op.name != "gemm" or not derivation.op.packed:
        return {}
    return GemmShape(derivation.op, tiles, derivation.hw).packed


def pack(derivation: Derivation, operand: str, stored: Array) -> Array:
    """Operand "A" or "B" as the derived kernel reads it: [batch, blocks, reads, lanes, elements].

    `stored` is [batch, rows, columns], or without batch, as the operator's layout says; any type, kept as it is. What
    fills blocks and tiles of k is 0. Raises BadInput for an operand that is not pre-shuffled, InfeasibleError without
    tiles.

    >>> import numpy as np
    >>> from closedform import Gemm, derive
    >>> kernel = derive(Gemm(4096, 4096, 4096, dtype="f16", layout="NT", preshuffled="B"), "mi300x")
    >>> pack(kernel, "B", np.ones((4096, 100), np.float16)).shape
    (1, 128, 8, 64, 8)
    """
    from .operators.gemm_pack import pack as packed

    return packed(derivation.op, operand, stored, _layout(derivation, operand))


def unpack(derivation: Derivation, operand: str, packed: Array, rows: int = 0, k: int = 0) -> Array:
    """The [batch, rows, columns] array that `pack` made `packed` of.

    `rows` of A or columns of op(B), and `k`: the extents without what fills them up; 0 for those of the operator.
    Raises BadInput for an operand that is not pre-shuffled or a shape that does not belong to these extents.
    """
    from .operators.gemm_pack import unpack as unpacked

    op, layout = derivation.op, _layout(derivation, operand)
    return unpacked(op, operand, packed, layout, rows or (op.M if operand == "A" else op.N), k or op.K)


def _layout(derivation: Derivation, operand: str) -> PackedLayout:
    layouts = packed_layouts(derivation)
    if operand not in layouts:
        known = " and ".join(layouts) or "none"
        raise BadInput(f"operand {operand!r} is not pre-shuffled in this kernel ({known} is): see Gemm.preshuffled")
    return layouts[operand]
