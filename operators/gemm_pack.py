"""Pre-shuffled operands of a GEMM: memory holds, one after the other, the fragments that lanes read.

    packed[batch, block, read, lane, element] = operand[batch, row, k]
    image row = block * rows + lane % rows          k = read * read_k + lane // rows * vec + element

An image row is the row of A, or for B the column that GemmLayout puts there. So one read of a wave is 64 lanes x 16
bytes in a row, a lane's part of it is one MFMA fragment, and what a wave reads of a block for successive k is
contiguous. Rows past the last one and k past K hold 0. The layout depends on the atom, on tile_k and, for B, on how
many columns a lane stores at once, but not on the rest of the tile: one packing serves kernels of many tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from closedform.hw.errors import BadInput

from .gemm import Gemm
from .gemm_layout import LANES, GemmLayout

__all__ = ["PackedLayout", "pack", "packed_layout", "unpack"]

Array = Any  # a numpy array


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Layout of one operand. `bits`: which bit of a row's number becomes bit b of its image row, for b = 0, 1, ...

    rows: of a block; lanes and vec: of one read, vec in elements; tile_k: k is padded to whole tiles of it.
    """

    rows: int
    lanes: int
    vec: int
    tile_k: int
    bits: tuple[int, ...]

    @property
    def read_k(self) -> int:
        """Elements of k of one read."""
        return self.lanes // self.rows * self.vec

    @property
    def span(self) -> int:
        """Rows after which the order of rows repeats, at least a block: rows are padded to whole spans."""
        return max(self.rows, 1 << len(self.bits))

    def shape(self, rows: int, k: int) -> tuple[int, int, int, int]:
        """Blocks, reads, lanes and elements of an operand of `rows` x `k`.

        >>> PackedLayout(rows=32, lanes=64, vec=8, tile_k=64, bits=()).shape(33, 65)
        (2, 8, 64, 8)
        """
        blocks, tiles = -(-rows // self.span) * self.span // self.rows, -(-k // self.tile_k)
        return blocks, tiles * (self.tile_k // self.read_k), self.lanes, self.vec

    def row_of(self, image_row: Any) -> Any:
        """The row that lies in an image row; of numbers and of arrays."""
        moved = sum((image_row >> to & 1) << source for to, source in enumerate(self.bits))
        return image_row // self.span * self.span + moved if self.bits else image_row

    def to_json(self) -> dict[str, Any]:
        return {
            "block_rows": self.rows,
            "read_k": self.read_k,
            "lanes": self.lanes,
            "vec": self.vec,
            "tile_k": self.tile_k,
            "row_bits": list(self.bits),
        }


def packed_layout(layout: GemmLayout, operand: str) -> PackedLayout:
    """How `operand`, "A" or "B", is packed for a kernel of that tile layout."""
    bits = layout.column_bits if operand == "B" else ()
    return PackedLayout(layout.atom.m, LANES, layout.vec, layout.tile_k, bits)


def pack(op: Gemm, operand: str, stored: Array, layout: PackedLayout) -> Array:
    """[batch, blocks, reads, lanes, vec] of `stored`, [batch, rows, columns] or without batch as `op`'s layout says."""
    import numpy as np

    array = stored if stored.ndim == 3 else stored[None]
    rows = _rows_by_k(op, operand, array)
    batch, count, k = rows.shape
    blocks, reads, lanes, vec = layout.shape(count, k)
    padded = np.zeros((batch, blocks * layout.rows, reads * layout.read_k), array.dtype)
    padded[:, :count, :k] = rows
    image = padded[:, layout.row_of(np.arange(blocks * layout.rows))]
    parts = image.reshape(batch, blocks, layout.rows, reads, lanes // layout.rows, vec)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 4, 2, 5)).reshape(batch, blocks, reads, lanes, vec)


def unpack(op: Gemm, operand: str, packed: Array, layout: PackedLayout, rows: int, k: int) -> Array:
    """The [batch, rows, columns] array, stored as `op`'s layout says, that `pack` made `packed` of.

    Raises BadInput where an operand of `rows` x `k` is not packed to that shape.
    """
    import numpy as np

    shape = layout.shape(rows, k)
    if packed.ndim != 5 or packed.shape[1:] != shape:
        want = f"[batch, {', '.join(map(str, shape))}]"
        raise BadInput(f"{operand} of {rows} x {k} is packed as {want}, not {list(packed.shape)}")
    blocks, reads, lanes, vec = shape
    parts = packed.reshape(-1, blocks, reads, lanes // layout.rows, layout.rows, vec).transpose(0, 1, 4, 2, 3, 5)
    image = parts.reshape(len(packed), blocks * layout.rows, reads * layout.read_k)
    padded = np.empty_like(image)
    padded[:, layout.row_of(np.arange(image.shape[1]))] = image
    return np.ascontiguousarray(_rows_by_k(op, operand, padded[:, :rows, :k]))


def _rows_by_k(op: Gemm, operand: str, array: Array) -> Array:
    """Between as stored and [batch, rows, k], rows of A or columns of B; its own inverse."""
    along_k = op.layout["AB".index(operand)] == ("N" if operand == "A" else "T")
    return array if along_k else array.swapaxes(1, 2)
