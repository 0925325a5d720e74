"""The counts of an emitted GEMM that follow from its tiles: loads, registers and LDS of a thread and a workgroup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, overload

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.gemm import Gemm, GemmTiles
from closedform.operators.gemm_layout import CHUNK_BYTES, GemmLayout
from closedform.operators.gemm_pack import PackedLayout, packed_layout

from .derivation import RegisterItem
from .gemm_registers import live_sets, main_loop, registers_least

__all__ = ["GRID_X", "GemmShape", "OperandShape"]

#: Workgroups along x; the runtime multiplies them by the threads in 32 bits.
GRID_X = 65536


@dataclass(frozen=True, slots=True)
class OperandShape:
    """Loads of one operand. kind: "AlongK" or "AlongRows", what is contiguous in memory, or "Packed", pre-shuffled.

    units: 16-byte chunks (along k) or blocks of VEC x read (along rows) of a tile; of a packed operand, whose chunks
    every wave loads for itself, those of all waves.
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
        return self.units_a_thread * (self.vec if self.kind == "AlongRows" else 1)

    @property
    def staged(self) -> int:
        """Registers of them; elements of a narrow access come one a register."""
        if self.kind == "Packed":
            return 0
        if self.kind == "AlongK":
            narrow = self.read * self.elem_bytes < 4
            return self.units_a_thread * (self.vec // self.read if narrow else CHUNK_BYTES // 4)
        return self.registers_loads * -(-self.read * self.elem_bytes // 4)

    @property
    def offsets(self) -> int:
        """Registers of byte offsets of its accesses, and of places in LDS."""
        if self.kind == "Packed":
            return 1
        if self.kind == "AlongK":
            return self.units_a_thread * (max(1, self.vec // self.read) + 1)
        return self.units_a_thread * (1 + self.read)


T = TypeVar("T")


class _OfAnySize(Generic[T]):
    """A property that depends on the kind of product and not on its sizes: computed once for all of them."""

    def __init__(self, function: Callable[[GemmShape], T]) -> None:
        self.function, self.name = function, function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, shape: None, owner: type) -> _OfAnySize[T]: ...
    @overload
    def __get__(self, shape: GemmShape, owner: type) -> T: ...
    def __get__(self, shape: GemmShape | None, owner: type) -> T | _OfAnySize[T]:
        if shape is None:
            return self
        if self.name not in shape.known:
            shape.known[self.name] = self.function(shape)
        value: T = shape.known[self.name]
        return value


@lru_cache(maxsize=4096)
def _known(hw: HardwareDescriptor, tiles: GemmTiles, *kind: str | bool) -> dict[str, Any]:
    """What is known of all products of a kind."""
    return {}


class GemmShape:
    """Derived counts of one emitted GEMM."""

    def __init__(self, op: Gemm, tiles: GemmTiles, hw: HardwareDescriptor) -> None:
        self.op, self.tiles, self.hw = op, tiles, hw
        self.known = _known(hw, tiles, op.dtype, op.result, op.layout, op.preshuffled, op.bias, op.has_c)
        self.atom = tiles.atom
        self.threads = tiles.waves * hw.wavefront_size
        self.elem_bytes = tiles.atom.dtype_a.bits // 8
        self.out_bytes = dtype(op.result).bytes
        self.acc_type = tiles.atom.dtype_acc.name
        self.acc_bytes = tiles.atom.dtype_acc.bytes
        self.atoms_m = tiles.wave_tile[0] // tiles.atom.m
        self.atoms_n = tiles.wave_tile[1] // tiles.atom.n

    @_OfAnySize
    def layout(self) -> GemmLayout:
        run = max(1, CHUNK_BYTES // self.out_bytes)
        tiles = self.tiles
        return GemmLayout(
            tiles.atom,
            tiles.tile_k,
            self.atoms_n,
            min(run, 8),
            4 * self.hw.lds_banks_wide_read,
            tiles.pad,
            tiles.lds_read * self.elem_bytes,
            tiles.lds_write * self.elem_bytes,
        )

    @_OfAnySize
    def operands(self) -> tuple[OperandShape, OperandShape]:
        """A and B."""
        tiles, op = self.tiles, self.op
        vec = CHUNK_BYTES // self.elem_bytes
        out = []
        for name, along_k, rows, read, sharing in (
            ("A", op.layout[0] == "N", tiles.tile_m, tiles.read_a, tiles.wave_n),
            ("B", op.layout[1] == "T", tiles.tile_n, tiles.read_b, tiles.wave_m),
        ):
            chunks = rows * tiles.tile_k // vec
            units = chunks if along_k else chunks // read
            kind = "AlongK" if along_k else "AlongRows"
            if name in op.packed:
                kind, units = "Packed", chunks * sharing
            out.append(OperandShape(kind, units, self.threads, vec, read, self.elem_bytes))
        return out[0], out[1]

    @property
    def through_lds(self) -> tuple[tuple[OperandShape, int, int], ...]:
        """Operands that pass through LDS, with the rows of a tile and the atoms of a wave."""
        a, b = self.operands
        both = ((a, self.tiles.tile_m, self.atoms_m), (b, self.tiles.tile_n, self.atoms_n))
        return tuple(row for row in both if row[0].kind != "Packed")

    @_OfAnySize
    def packed(self) -> dict[str, PackedLayout]:
        """How the pre-shuffled operands lie."""
        return {name: packed_layout(self.layout, name) for name in self.op.packed}

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
    def scaled_out(self) -> bool:
        """D is an 8-bit float: it is multiplied by a scale and saturated."""
        return self.op.result.startswith(("fp8", "bf8"))

    @property
    def mfma_words(self) -> int:
        return self.atom.elements_a * self.elem_bytes // 4

    @property
    def carried(self) -> int:
        """Loads that a thread carries from one tile to the next."""
        return 0 if self.tiles.direct else sum(operand.registers_loads for operand, _, _ in self.through_lds)

    @property
    def lds_rows(self) -> int:
        """Image rows of one buffer."""
        return sum(rows for _, rows, _ in self.through_lds)

    @_OfAnySize
    def lds_bytes(self) -> int:
        tiles = self.tiles
        row_bytes = (tiles.tile_k + tiles.pad) * self.elem_bytes
        return max(tiles.buffers * self.lds_rows * row_bytes, CHUNK_BYTES if tiles.arrives else 0)

    @property
    def accumulators(self) -> int:
        """Registers of D of a lane."""
        return self.atoms_m * self.atoms_n * self.atom.registers_c

    @property
    def fragments(self) -> int:
        """Registers of the LDS reads of one step."""
        return 4 * self.layout.reads * sum(atoms for _, _, atoms in self.through_lds)

    @property
    def chunks_packed(self) -> int:
        """Chunks that a lane holds of the packed operands of a tile."""
        return sum(operand.units_a_thread for operand in self.operands if operand.kind == "Packed")

    @property
    def staged(self) -> int:
        """Registers of the tile that is under way."""
        return 0 if self.tiles.direct else sum(operand.staged for operand in self.operands)

    @_OfAnySize
    def main_loop(self) -> list[RegisterItem]:
        """The live set of the main loop in the emitted order."""
        return main_loop(self, pinned=True)

    @_OfAnySize
    def registers_least(self) -> int:
        """Registers without which the kernel spills."""
        return registers_least(self)

    @_OfAnySize
    def items(self) -> tuple[RegisterItem, ...]:
        """The live set where a wave holds most, with reasons."""
        return max(live_sets(self), key=lambda items: sum(item.registers for item in items))

    @property
    def segment(self) -> int:
        """Registers of Stream-K beside the loop's.

        On a unified file numbers of thread and share, and with direct loads second places. Where AccVGPRs are a file of
        their own, what the sums pass through on their way to memory, a part of them and a third of the others, and
        addresses of wide lines.
        """
        if not self.tiles.stream_k:
            return 0
        if not self.hw.vgpr_unified:
            part = self.layout.span // self.atom.m * self.atom.registers_c
            lines = self.accumulators // 6 * (self.elem_bytes == 4 and "AlongRows" in self.kinds)
            return part - 3 + (self.accumulators - part) // 3 + lines
        return 14 + 6 * self.tiles.direct

    @_OfAnySize
    def places(self) -> int:
        """Different XORs of a chunk's place, of both operands."""
        layout, tiles = self.layout, self.tiles
        reads = layout.steps * layout.reads
        count = 0
        for operand, atoms, waves, turn in (
            (self.operands[0], self.atoms_m, tiles.wave_m, self.atom.m),
            (self.operands[1], self.atoms_n, tiles.wave_n, layout.span),
        ):
            if operand.kind == "Packed":
                continue
            rows = [t * self.atom.m // turn * waves * turn + t * self.atom.m % turn for t in range(atoms)]
            swizzle, groups = layout.swizzle, layout.groups
            count += len({swizzle.chunk(row, read * groups) for row in rows for read in range(reads)})
        return count
