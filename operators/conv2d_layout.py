"""The patch of a convolution in LDS: every pixel of X that a workgroup's outputs reach, once, its channels contiguous.

An output at (n, h, w) of a tile and a tap at (i, j) read the pixel at n, h stride + i dilation, w stride + j dilation.
Rows and columns are sorted by their phase, the remainder by the stride, so that neighbours w, w + 1 of Y are neighbours
in the patch for every tap, and pixels of phases that no tap has are not loaded at all:

    place = n image + (phase(i) span_h + h + shift(i)) pitch + phase(j) span_w + w + shift(j)

with shift(i) = i dilation // stride and the number phase(i) = i mod the count of phases. A place is a sum of a part
of the pixel and a part of the tap: one address register a lane serves all taps and all atoms of a wave, the rest are
constants of the instruction and one scalar. So the patch is padded against bank conflicts, not swizzled: `pad` bytes
between pixels, and a pitch between rows that spreads the rows of an atom over the banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import gcd
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.lds import lds_cycles

from .conv2d_taps import Taps
from .gemm_layout import CHUNK_BYTES, LANES

__all__ = ["BLOCK", "Axis", "Patch", "patch_of", "pitches", "writers"]

#: Chunks of a write that go to different banks at a time.
LINE_CHUNKS = 8
#: Pixels among which the order of writers may change.
BLOCK = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """Rows or columns of a patch: `tile` outputs, `stride` apart, of `taps` taps, `dilation` apart."""

    tile: int
    taps: int
    stride: int
    dilation: int

    @property
    def period(self) -> int:
        """Taps after which their phases repeat."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def phases(self) -> int:
        """Remainders by the stride that taps have."""
        return min(self.taps, self.period)

    @property
    def span(self) -> int:
        """Pixels of one phase."""
        return self.tile + (self.taps - 1) * self.dilation // self.stride

    @property
    def extent(self) -> int:
        """Pixels of the patch along the axis.

        >>> Axis(8, 3, 1, 1).extent, Axis(8, 7, 2, 1).extent, Axis(8, 1, 2, 1).extent, Axis(8, 3, 1, 2).extent
        (10, 22, 8, 12)
        """
        return self.phases * self.span

    def element(self, number: Any) -> Any:
        """Elements from the first one of the tile to pixel `number` of the patch; of numbers and of arrays."""
        phase, inside = number // self.span, number % self.span
        return inside * self.stride + phase * self.dilation % self.stride

    def shift(self, tap: Any) -> Any:
        """Pixels of the patch from those of tap 0 to those of a tap."""
        return tap % self.phases * self.span + tap * self.dilation // self.stride


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch of `images` images. Channels of a pixel take `row_bytes` and `pad_bytes` more; `pitch` pixels lie from a
    row to the next one, `image` pixels from an image to the next one.
    """

    images: int
    rows: Axis
    cols: Axis
    row_bytes: int
    pad_bytes: int
    pitch: int
    image: int

    @property
    def row_pixels(self) -> int:
        """Pixels of a row that are written: with its gap where several pixels share a line of banks, so that writers in
        a row stay as far apart as pixels.
        """
        return self.cols.extent if self.chunks >= LINE_CHUNKS else self.pitch

    @property
    def pixels(self) -> int:
        """Pixels that are written: whole blocks of them where their writers have an order of their own."""
        count = self.images * self.rows.extent * self.row_pixels
        return count if self.chunks >= LINE_CHUNKS else -(-count // BLOCK) * BLOCK

    @property
    def pixel_bytes(self) -> int:
        return self.row_bytes + self.pad_bytes

    @property
    def lds_bytes(self) -> int:
        return int(self.pixel(self.pixels - 1)[0] + 1) * self.pixel_bytes

    @property
    def chunks(self) -> int:
        """16-byte chunks of a pixel."""
        return self.row_bytes // CHUNK_BYTES

    def pixel(self, number: Any) -> tuple[Any, Any, Any, Any]:
        """Of a written pixel: place in LDS, image, and elements from the tile's first one along rows and columns."""
        cols, rows = self.row_pixels, self.rows.extent
        col, row, image = number % cols, number // cols % rows, number // (cols * rows)
        place = image * self.image + row * self.pitch + col
        return place, image, self.rows.element(row), self.cols.element(col)

    def place(self, image: Any, row: Any, col: Any, tap: Any) -> Any:
        """Place of what an output of the tile reads at a tap."""
        shift = self.rows.shift(tap // self.cols.taps) * self.pitch + self.cols.shift(tap % self.cols.taps)
        return image * self.image + row * self.pitch + col + shift


def patch_of(taps: Taps, tile: tuple[int, int, int], row_bytes: int, pad_bytes: int, pitch: int, image: int) -> Patch:
    """The patch of a tile of (images, rows, columns) of outputs."""
    images, height, width = tile
    rows = Axis(height, taps.rows, taps.stride[0], taps.dilation[0])
    cols = Axis(width, taps.cols, taps.stride[1], taps.dilation[1])
    return Patch(images, rows, cols, row_bytes, pad_bytes, pitch, image)


@lru_cache(maxsize=4096)
def pitches(
    hw: HardwareDescriptor, lanes: int, tile: tuple[int, int, int], rows: int, cols: int, row_bytes: int
) -> tuple[int, int, int]:
    """(pad_bytes, pitch, image) of the smallest patch of rows x cols pixels that is read with the fewest bank
    conflicts by atoms of `lanes` pixels.

    pad is half of the lane groups that share a pixel, in chunks, as between the rows of a GEMM's image; the others are
    at most a line of banks above rows and columns.
    """
    pad_bytes = CHUNK_BYTES * (LANES // lanes) // 2
    line = hw.lds_banks_wide_read * 4 // CHUNK_BYTES
    images, height, width = tile
    options = []
    for pitch in range(cols, cols + (line if height > 1 else 1)):
        for image in range(rows * pitch, rows * pitch + (line if images > 1 else 1)):
            lost = _conflicts(hw, lanes, (height, width), row_bytes + pad_bytes, pitch, image)
            options.append((lost, (images - 1) * image + rows * pitch, pitch, image))
            if lost == 0:
                break
    _, _, pitch, image = min(options)
    return pad_bytes, pitch, image


@lru_cache(maxsize=4096)
def writers(hw: HardwareDescriptor, chunks: int, pixel_bytes: int) -> tuple[int, int, int]:
    """Which bit of a pixel's number bits 0, 1 and 2 of a writer's are: the first order without bank conflicts, where
    `chunks` threads in a row write a pixel of `pixel_bytes`. Pixels of whole lines of banks need none.

    >>> from closedform.hw.catalogue import get
    >>> writers(get("mi300x"), 8, 144), writers(get("mi300x"), 4, 80)
    ((0, 1, 2), (2, 0, 1))
    """

    def lost(bits: tuple[int, ...]) -> int:
        places = []
        for lane in range(LANES):
            writer, chunk = divmod(lane, chunks)
            pixel = writer // BLOCK * BLOCK + sum((writer >> b & 1) << bit for b, bit in enumerate(bits))
            places.append(pixel * pixel_bytes + chunk * CHUNK_BYTES)
        return lds_cycles(hw, "write", CHUNK_BYTES, places).conflicts

    first, second, third = min(permutations(range(3)), key=lost)
    return first, second, third


@lru_cache(maxsize=65536)
def _conflicts(
    hw: HardwareDescriptor, lanes: int, tile: tuple[int, int], pixel_bytes: int, pitch: int, image: int
) -> int:
    """Cycles that one read of an atom loses: any tap, atom and chunk moves all of its lanes alike."""
    height, width = tile
    places = []
    for lane in range(LANES):
        pixel, group = lane % lanes, lane // lanes
        place = pixel // (height * width) * image + pixel // width % height * pitch + pixel % width
        places.append(place * pixel_bytes + group * CHUNK_BYTES)
    return lds_cycles(hw, "read", CHUNK_BYTES, places).conflicts
