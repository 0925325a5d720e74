"""The counts of an emitted GEMM that follow from its tiles: loads, registers and LDS of a thread and a workgroup."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.gemm import Gemm, GemmTiles
from closedform.operators.gemm_layout import CHUNK_BYTES, GemmLayout

from .derivation import RegisterItem
from .gemm_registers import live_sets, main_loop

__all__ = ["GemmShape", "OperandShape"]


@dataclass(frozen=True, slots=True)
class OperandShape:
    """Loads of one operand. kind: "AlongK" or "AlongRows", what is contiguous in memory.

    units: 16-byte chunks (along k) or blocks of VEC x read (along rows) of a tile.
    """

    kind: str
    units: int
    threads: int
    vec: int
    read: int
    elem_bytes: int

    @property
    def divides(self) -> bool:
        """Every thread has the same number of units."""
        return self.units % self.threads == 0

    @property
    def units_a_thread(self) -> int:
        return -(-self.units // self.threads)

    @property
    def registers_loads(self) -> int:
        """Vectors that a thread keeps under way."""
        return self.units_a_thread * (1 if self.kind == "AlongK" else self.vec)

    @property
    def staged(self) -> int:
        """Registers of them; elements of a narrow access come one a register."""
        if self.kind == "AlongK":
            narrow = self.read * self.elem_bytes < 4
            return self.units_a_thread * (self.vec // self.read if narrow else CHUNK_BYTES // 4)
        return self.registers_loads * -(-self.read * self.elem_bytes // 4)

    @property
    def offsets(self) -> int:
        """Registers of byte offsets of its accesses, and of places in LDS."""
        if self.kind == "AlongK":
            return self.units_a_thread * (max(1, self.vec // self.read) + 1)
        return self.units_a_thread * (1 + self.read)


class GemmShape:
    """Derived counts of one emitted GEMM."""

    def __init__(self, op: Gemm, tiles: GemmTiles, hw: HardwareDescriptor) -> None:
        self.op, self.tiles, self.hw = op, tiles, hw
        self.atom = tiles.atom
        self.threads = tiles.waves * hw.wavefront_size
        self.elem_bytes = tiles.atom.dtype_a.bits // 8
        self.out_bytes = dtype(op.result).bytes
        self.acc_type = tiles.atom.dtype_acc.name
        self.atoms_m = tiles.wave_tile[0] // tiles.atom.m
        self.atoms_n = tiles.wave_tile[1] // tiles.atom.n

    @cached_property
    def layout(self) -> GemmLayout:
        run = max(1, CHUNK_BYTES // self.out_bytes)
        tiles = self.tiles
        return GemmLayout(tiles.atom, tiles.tile_k, self.atoms_n, min(run, 8), 4 * self.hw.lds_banks_wide_read)

    @cached_property
    def operands(self) -> tuple[OperandShape, OperandShape]:
        """A and B."""
        tiles, op = self.tiles, self.op
        vec = CHUNK_BYTES // self.elem_bytes
        out = []
        for along_k, rows, read in (
            (op.layout[0] == "N", tiles.tile_m, tiles.read_a),
            (op.layout[1] == "T", tiles.tile_n, tiles.read_b),
        ):
            chunks = rows * tiles.tile_k // vec
            units = chunks if along_k else chunks // read
            kind = "AlongK" if along_k else "AlongRows"
            out.append(OperandShape(kind, units, self.threads, vec, read, self.elem_bytes))
        return out[0], out[1]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({operand.kind for operand in self.operands}))

    @property
    def narrow(self) -> bool:
        """Some access of A or B has less than 4 bytes."""
        tiles, (a, b) = self.tiles, self.operands
        widths = [tiles.read_a, tiles.read_b]
        widths += [tail for o, tail in ((a, tiles.tail_a), (b, tiles.tail_b)) if o.kind == "AlongK"]
        return min(widths) * self.elem_bytes < 4

    @property
    def mfma_words(self) -> int:
        return self.atom.elements_a * self.elem_bytes // 4

    @property
    def carried(self) -> int:
        """Loads that a thread carries from one tile to the next."""
        return 0 if self.tiles.direct else sum(operand.registers_loads for operand in self.operands)

    @property
    def lds_bytes(self) -> int:
        tiles = self.tiles
        return tiles.buffers * (tiles.tile_m + tiles.tile_n) * tiles.tile_k * self.elem_bytes

    @property
    def accumulators(self) -> int:
        """Registers of D of a lane."""
        return self.atoms_m * self.atoms_n * self.atom.registers_c

    @property
    def fragments(self) -> int:
        """Registers of the LDS reads of one step."""
        return 4 * self.layout.reads * (self.atoms_m + self.atoms_n)

    @property
    def staged(self) -> int:
        """Registers of the tile that is under way."""
        return 0 if self.tiles.direct else sum(operand.staged for operand in self.operands)

    @cached_property
    def main_loop(self) -> list[RegisterItem]:
        """The live set of the main loop in the emitted order."""
        return main_loop(self, pinned=True)

    @cached_property
    def items(self) -> tuple[RegisterItem, ...]:
        """The live set where a wave holds most, with reasons."""
        return max(live_sets(self), key=lambda items: sum(item.registers for item in items))

    @cached_property
    def places(self) -> int:
        """Different XORs of a chunk's place, of both operands."""
        layout, tiles = self.layout, self.tiles
        reads = layout.steps * layout.reads
        count = 0
        for atoms, waves, turn in (
            (self.atoms_m, tiles.wave_m, self.atom.m),
            (self.atoms_n, tiles.wave_n, layout.span),
        ):
            rows = [t * self.atom.m // turn * waves * turn + t * self.atom.m % turn for t in range(atoms)]
            swizzle, groups = layout.swizzle, layout.groups
            count += len({swizzle.chunk(row, read * groups) for row in rows for read in range(reads)})
        return count
