"""Where a GEMM tile lies: k order of the MFMAs, the LDS image of an operand, the columns of D that a lane holds.

Every operand tile is kept in LDS as rows of k, in 16-byte chunks. A lane reads whole chunks; the lane groups of an MFMA
read neighbouring chunks, and A and B visit k in the same order, so any order gives the sum:

    k = (step * reads + j) * groups * vec + group * vec + element        j: read of a step, element: of a chunk

Against bank conflicts the chunks of a row are swizzled, or rows lie `pad` elements further apart than they are long.
B^T is the first operand of the MFMA, so that a lane holds consecutive columns n of one row m of D.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from closedform.hw.atoms import MFMAAtom
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.lds import lds_cycles

__all__ = ["CHUNK_BYTES", "GemmLayout", "Swizzle", "swizzle_of"]

CHUNK_BYTES = 16
#: Banks that one phase of LDS writes covers, on every target.
WRITE_LINE_BYTES = 128
LANES = 64


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Chunk c of image row r lies at chunk c ^ (((r >> first) ^ (r >> second)) & mask) of the row.

    The first shift spreads neighbouring rows over the banks, the second one rows that a transposing thread writes.
    """

    first: int
    second: int
    mask: int

    def chunk(self, row: int, chunk: int) -> int:
        return chunk ^ (((row >> self.first) ^ (row >> self.second)) & self.mask)


def swizzle_of(chunks: int, line_bytes: int, elem_bytes: int = 2) -> Swizzle:
    """Swizzle of rows of `chunks` chunks, a power of two, where one LDS phase of reads covers `line_bytes`.

    Rows that share a line of banks need no swizzle among each other: first = log2(line / row), and the mask spans the
    chunks of a row, but no more than of a line; second = first + 3 reaches the rows that a wave of writers skips.
    Threads that transpose wide elements skip none: lanes write the same chunk of neighbouring rows, and a phase of
    writes covers 128 bytes whatever one of reads does. Where it covers less, every row is told from its neighbour.

    >>> swizzle_of(8, 128), swizzle_of(8, 256), swizzle_of(4, 128)
    (Swizzle(first=0, second=3, mask=7), Swizzle(first=1, second=4, mask=7), Swizzle(first=1, second=4, mask=3))
    >>> swizzle_of(8, 256, elem_bytes=4)
    Swizzle(first=0, second=1, mask=7)
    """
    if elem_bytes >= 4 and line_bytes > WRITE_LINE_BYTES and chunks * CHUNK_BYTES >= WRITE_LINE_BYTES:
        return Swizzle(0, 1, WRITE_LINE_BYTES // CHUNK_BYTES - 1)
    line = line_bytes // CHUNK_BYTES
    span = min(chunks, line)
    first = (line // span).bit_length() - 1
    return Swizzle(first, first + 3, span - 1)


@dataclass(frozen=True)
class GemmLayout:
    """Layout of one tile.

    `columns` counts the atoms of a wave along n, `run_max` the elements of a 16-byte store; `pad` elements lie between
    image rows, and with 0 the rows are swizzled; `read_bytes` and `write_bytes` are the width of an access to LDS.
    """

    atom: MFMAAtom
    tile_k: int
    columns: int
    run_max: int
    line_bytes: int
    pad: int = 0
    read_bytes: int = CHUNK_BYTES
    write_bytes: int = CHUNK_BYTES

    @property
    def elem_bits(self) -> int:
        return self.atom.dtype_a.bits

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return CHUNK_BYTES * 8 // self.elem_bits

    @property
    def chunks(self) -> int:
        """Chunks of an image row."""
        return self.tile_k // self.vec

    @property
    def groups(self) -> int:
        """Lane groups: lanes that share a row of the operand."""
        return LANES // self.atom.m

    @property
    def reads(self) -> int:
        """LDS reads that one MFMA operand takes, at least one."""
        return max(1, self.atom.elements_a // self.vec)

    @property
    def mfmas(self) -> int:
        """MFMAs that one read feeds, at least one."""
        return max(1, self.vec // self.atom.elements_a)

    @property
    def steps(self) -> int:
        """Rounds of reads that cover tile_k."""
        return self.chunks // (self.groups * self.reads)

    @property
    def row_bytes(self) -> int:
        """Bytes from an image row to the next."""
        return (self.tile_k + self.pad) * self.elem_bits // 8

    @cached_property
    def swizzle(self) -> Swizzle:
        """Swizzle of the rows; one that moves nothing where they are padded."""
        return Swizzle(0, 0, 0) if self.pad else swizzle_of(self.chunks, self.line_bytes, self.elem_bits // 8)

    @property
    def acc(self) -> int:
        """Elements of D that a lane holds of one MFMA."""
        return self.atom.elements_c

    @cached_property
    def run(self) -> int:
        """Consecutive columns of D in consecutive registers of a lane: the largest that the wave's atoms allow."""
        run = self.run_max
        while self.columns * self.acc % run:
            run //= 2
        return run

    @property
    def span(self) -> int:
        """Columns after which the order of columns repeats."""
        return max(self.atom.m, self.run * self.groups)

    def column(self, group: int, index: int) -> int:
        """Column of D, from the wave's first, that register `index` (atom * acc + element) of a lane group holds."""
        return _column(self.run, self.groups, group, index)

    @property
    def column_bits(self) -> tuple[int, ...]:
        """Which bit of a column becomes bit b of its image row, for b = 0, 1, ..."""
        return _column_order(self.atom, self.run)[1]

    def image_row(self, column: int) -> int:
        """Row of the image of B that holds column `column`."""
        inside = column % self.span
        return column - inside + _column_order(self.atom, self.run)[0][inside]

    def address(self, row: int, chunk: int) -> int:
        """Byte address of a chunk inside an image."""
        return row * self.row_bytes + self.swizzle.chunk(row, chunk) * CHUNK_BYTES

    def _conflicts(self, hw: HardwareDescriptor, access: str, width: int, lanes: list[int]) -> int:
        """Cycles that the accesses of `width` bytes lose with which a wave reads or writes a chunk a lane."""
        parts = range(0, CHUNK_BYTES, width)
        return sum(lds_cycles(hw, access, width, [lane + part for lane in lanes]).conflicts for part in parts)

    def read_conflicts(self, hw: HardwareDescriptor) -> int:
        """Cycles that the reads of one tile lose to bank conflicts."""
        lost = 0
        for read in range(self.steps * self.reads):
            for tile in range(2):
                lanes = [
                    self.address(tile * self.atom.m + lane % self.atom.m, read * self.groups + lane // self.atom.m)
                    for lane in range(LANES)
                ]
                lost += self._conflicts(hw, "read", self.read_bytes, lanes)
        return lost

    def write_conflicts(self, hw: HardwareDescriptor, rows_a_thread: int, permuted: bool) -> int:
        """Cycles that one wave's first writes lose; rows_a_thread is 0 where a thread writes along k."""
        places = []
        for lane in range(LANES):
            if rows_a_thread:
                places.append((lane * rows_a_thread, 0))
            else:
                places.append(divmod(lane, self.chunks))
        lost = 0
        for j in range(max(1, rows_a_thread)):
            rows = [(self.image_row(row + j) if permuted else row + j, chunk) for row, chunk in places]
            lost += self._conflicts(hw, "write", self.write_bytes, [self.address(*place) for place in rows])
        return lost


def _column(run: int, groups: int, group: int, index: int) -> int:
    return index // run * (groups * run) + group * run + index % run


@lru_cache(maxsize=256)
def _column_order(atom: MFMAAtom, run: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Image row of each column of a span, atom * m + the row of the C map that holds it, and that order by bits.

    Kept: it follows from the atom and the run alone, and every derivation asks for it.
    """
    groups, acc = LANES // atom.m, atom.elements_c
    span = max(atom.m, run * groups)
    rows = [-1] * span
    for index in range(span // atom.m * acc):
        tile, element = divmod(index, acc)
        for group in range(groups):
            rows[_column(run, groups, group, index)] = tile * atom.m + atom.c.coords(group * atom.m, element)["m"]
    sources: list[int] = [-1] * (span.bit_length() - 1)
    for bit in range(len(sources)):
        sources[rows[1 << bit].bit_length() - 1] = bit
    for column, row in enumerate(rows):
        if row != sum((column >> source & 1) << bit for bit, source in enumerate(sources)):
            raise AssertionError("the order of columns is not a bit permutation")
    return tuple(rows), tuple(sources)
