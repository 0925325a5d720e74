"""The counts of an emitted convolution that follow from its tiles: loads, registers and LDS."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.conv2d import Conv2d, Conv2dTiles
from closedform.operators.conv2d_layout import Patch, patch_of, writers
from closedform.operators.conv2d_pack import FilterLayout, filter_layout
from closedform.operators.conv2d_taps import Taps
from closedform.operators.gemm_layout import CHUNK_BYTES, GemmLayout

__all__ = ["Conv2dShape", "Loads"]

#: Code of a main loop that an instruction cache of 64 KiB for two CUs holds beside a prologue.
LOOP_BYTES = 32768
INSTRUCTION_BYTES = 8
#: Instructions of a tap beside MFMAs, reads and the loads of the filter: addresses, barrier, waits.
PER_TAP = 24


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of an operand on its way to LDS: `units` chunks of `vec` elements, `read` elements an access."""

    units: int
    threads: int
    vec: int
    read: int
    elem_bytes: int

    @property
    def divides(self) -> bool:
        """Every thread has the same number of chunks."""
        return self.units % self.threads == 0

    @property
    def units_a_thread(self) -> int:
        return -(-self.units // self.threads)

    @property
    def accesses(self) -> int:
        """Accesses of a chunk."""
        return self.vec // self.read

    @property
    def narrow(self) -> bool:
        """An access has less than 4 bytes."""
        return self.read * self.elem_bytes < 4

    @property
    def staged(self) -> int:
        """Registers of the chunks under way; elements of a narrow access come one a register."""
        return self.units_a_thread * (self.accesses if self.narrow else CHUNK_BYTES // 4)


class Conv2dShape:
    """Derived counts of one emitted convolution."""

    def __init__(self, op: Conv2d, tiles: Conv2dTiles, hw: HardwareDescriptor) -> None:
        self.op, self.tiles, self.hw = op, tiles, hw
        self.atom = tiles.atom
        self.threads = tiles.waves * hw.wavefront_size
        self.elem_bytes = tiles.atom.dtype_a.bits // 8
        self.out_bytes = dtype(op.result).bytes
        self.acc_type = tiles.atom.dtype_acc.name
        self.atoms_oc = tiles.wave_tile[0] // tiles.atom.m
        self.atoms_px = tiles.wave_tile[1] // tiles.atom.n

    @property
    def work(self) -> str:
        """Type that the epilogue computes in: f64 where Y holds whole numbers of 32 bits."""
        return "f64" if self.op.result == "i32" else "f32"

    @cached_property
    def taps(self) -> Taps:
        return self.tiles.taps(self.op)

    @cached_property
    def layout(self) -> GemmLayout:
        """Layout of the filter's image in LDS and of the sums: op(B) of a GEMM whose columns are output channels."""
        run = max(1, CHUNK_BYTES // self.out_bytes)
        line = 4 * self.hw.lds_banks_wide_read
        return GemmLayout(self.atom, self.tiles.tile_ic, self.atoms_oc, min(run, 8), line)

    @cached_property
    def patch(self) -> Patch:
        tiles = self.tiles
        tile = (tiles.tile_n, tiles.tile_h, tiles.tile_w)
        sizes = (tiles.tile_ic * self.elem_bytes, tiles.gap * self.elem_bytes, tiles.pitch, tiles.image)
        return patch_of(self.taps, tile, *sizes)

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return self.layout.vec

    @property
    def channels_last(self) -> bool:
        return self.op.layout == "NHWC"

    @property
    def replicated(self) -> bool:
        return self.taps.factors != (1, 1)

    @property
    def single(self) -> bool:
        """One tile has all channels, whatever X is: no other patch is ever loaded."""
        return self.replicated and self.taps.channels <= self.tiles.tile_ic

    @property
    def staged_x(self) -> int:
        """Chunks of the next patch that a thread keeps under way."""
        return 0 if self.single else self.loads_x.units_a_thread

    @property
    def by_chunk(self) -> bool:
        """Threads in a row load the chunks of a pixel, not one chunk of neighbouring pixels."""
        return self.channels_last and not self.replicated

    @cached_property
    def writers(self) -> tuple[int, int, int]:
        """Bits of a pixel's number as writers count them."""
        return writers(self.hw, self.patch.chunks, self.patch.pixel_bytes) if self.by_chunk else (0, 1, 2)

    @property
    def loads_x(self) -> Loads:
        return Loads(self.patch.pixels * self.patch.chunks, self.threads, self.vec, self.tiles.read_x, self.elem_bytes)

    @property
    def loads_w(self) -> Loads:
        units = 0 if self.op.prepacked else self.tiles.tile_oc * self.layout.chunks
        return Loads(units, self.threads, self.vec, self.tiles.read_w, self.elem_bytes)

    @property
    def channel_step(self) -> int:
        """Channels of a tap come in multiples of it, so that they exist or do not together."""
        return gcd(self.taps.channels, self.vec)

    @property
    def filter_bytes(self) -> int:
        """LDS of one slice of the filter."""
        return self.tiles.tile_oc * self.tiles.tile_ic * self.elem_bytes

    @property
    def patch_bytes(self) -> int:
        """LDS of the patch, in whole chunks."""
        return self.patch.lds_bytes

    @property
    def lds_bytes(self) -> int:
        """The patch, and the slices of two taps: one is read while the next one is written; none of a packed filter."""
        return self.patch_bytes + self.slices * self.filter_bytes

    @property
    def slices(self) -> int:
        """Slices of the filter in LDS."""
        return 0 if self.op.prepacked else 2

    @property
    def chunks_packed(self) -> int:
        """Chunks of a tap that a lane holds of a packed filter."""
        return self.layout.steps * self.layout.reads * self.atoms_oc if self.op.prepacked else 0

    @cached_property
    def packed(self) -> FilterLayout:
        """How a packed filter lies."""
        return filter_layout(self.layout, self.taps, self.tiles.tile_oc)

    @property
    def accumulators(self) -> int:
        """Registers of Y of a lane."""
        return self.atoms_oc * self.atoms_px * self.atom.registers_c

    @property
    def fragments(self) -> int:
        """Registers of the LDS reads of one step."""
        return 4 * self.layout.reads * (self.atoms_px + (0 if self.op.prepacked else self.atoms_oc))

    @property
    def unrolled(self) -> bool:
        """Whether the taps of a tile of channels are written out: the instruction cache holds such a loop."""
        mfmas = self.atoms_oc * self.atoms_px * self.layout.steps * self.layout.mfmas
        reads = self.layout.steps * self.layout.reads * (self.atoms_oc + self.atoms_px)
        others = self.loads_w.units_a_thread * (2 * self.loads_w.accesses + 2) + PER_TAP
        return self.taps.count * (mfmas + 2 * reads + others) * INSTRUCTION_BYTES <= LOOP_BYTES

    @cached_property
    def filter_places(self) -> int:
        """Different XORs of a chunk's place in the filter's image: registers of addresses."""
        if self.op.prepacked:
            return 1
        layout, tiles = self.layout, self.tiles
        rows = [
            t * self.atom.m // layout.span * tiles.wave_oc * layout.span + t * self.atom.m % layout.span
            for t in range(self.atoms_oc)
        ]
        reads = range(layout.steps * layout.reads)
        return len({layout.swizzle.chunk(row, read * layout.groups) for row in rows for read in reads})

    @property
    def mfma_words(self) -> int:
        """32-bit words of an MFMA operand."""
        return self.atom.registers_a
