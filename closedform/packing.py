"""Pre-shuffling of operands and filters on the CPU: the numpy counterpart of an emitted kernel's pack functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .hw.errors import BadInput

if TYPE_CHECKING:
    from .operators.conv2d_pack import FilterLayout
    from .operators.gemm_pack import PackedLayout
    from .visitors.derivation import Derivation

__all__ = ["pack", "packed_layouts", "unpack"]

Array = Any  # a numpy array


def packed_layouts(derivation: Derivation) -> Mapping[str, PackedLayout | FilterLayout]:
    """How the pre-shuffled operands of the derived kernel lie, by their names; empty where there are none.

    Raises InfeasibleError without tiles.
    """
    from .visitors.conv2d_shape import Conv2dShape
    from .visitors.gemm_shape import GemmShape

    tiles, _, _ = derivation.require()
    if derivation.op.name == "conv2d" and derivation.op.prepacked:
        return {"W": Conv2dShape(derivation.op, tiles, derivation.hw).packed}
    if derivation.op.name != "gemm" or not derivation.op.packed:
        return {}
    return GemmShape(derivation.op, tiles, derivation.hw).packed


def pack(derivation: Derivation, operand: str, stored: Array) -> Array:
    """Operand "A" or "B" of a gemm as the derived kernel reads it: [batch, blocks, reads, lanes, elements]; "W" of a
    conv2d in the order that its FilterLayout says.

    `stored` is [batch, rows, columns], or without batch, as the operator's layout says; any type, kept as it is. What
    fills blocks and tiles is 0. Raises BadInput for an operand that is not pre-shuffled, InfeasibleError without
    tiles.

    >>> import numpy as np
    >>> from closedform import Gemm, derive
    >>> kernel = derive(Gemm(4096, 4096, 4096, dtype="f16", layout="NT", preshuffled="B"), "mi300x")
    >>> pack(kernel, "B", np.ones((4096, 100), np.float16)).shape
    (1, 128, 8, 64, 8)
    """
    from .operators.conv2d_pack import FilterLayout, pack_filter
    from .operators.gemm_pack import pack as packed

    layout = _layout(derivation, operand)
    if isinstance(layout, FilterLayout):
        return pack_filter(derivation.op, stored, layout)
    return packed(derivation.op, operand, stored, layout)


def unpack(derivation: Derivation, operand: str, packed: Array, rows: int = 0, k: int = 0) -> Array:
    """The [batch, rows, columns] array that `pack` made `packed` of.

    `rows` of A or columns of op(B), and `k`: the extents without what fills them up; 0 for those of the operator.
    Raises BadInput for an operand that is not pre-shuffled or a shape that does not belong to these extents.
    """
    from .operators.conv2d_pack import FilterLayout, unpack_filter
    from .operators.gemm_pack import unpack as unpacked

    op, layout = derivation.op, _layout(derivation, operand)
    if isinstance(layout, FilterLayout):
        return unpack_filter(op, packed, layout)
    return unpacked(op, operand, packed, layout, rows or (op.M if operand == "A" else op.N), k or op.K)


def _layout(derivation: Derivation, operand: str) -> PackedLayout | FilterLayout:
    layouts = packed_layouts(derivation)
    if operand not in layouts:
        known = " and ".join(layouts) or "none"
        raise BadInput(f"operand {operand!r} is not pre-shuffled in this kernel ({known} is): see Gemm.preshuffled")
    return layouts[operand]
