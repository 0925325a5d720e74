"""Pre-packed filters of a convolution: memory holds, one after the other, the fragments that lanes read.

    packed[group, oc / t_oc, c / t_ic, tap, atom, read, lane, element] = w[oc, tap, c]

so a slice of t_oc filters and t_ic channels of one tap is contiguous, and inside of it one read of a wave is 64 lanes x
16 bytes in a row. Filters and channels of a slice are permuted as GemmLayout reads op(B); where taps become channels,
they do before. Filters past the last one of a group and channels past the last one hold 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from closedform.hw.errors import BadInput

from .conv2d import Conv2d
from .conv2d_taps import Taps
from .gemm_layout import GemmLayout
from .gemm_pack import PackedLayout, packed_layout

__all__ = ["FilterLayout", "filter_layout", "pack_filter", "unpack_filter"]

Array = Any  # a numpy array


@dataclass(frozen=True, slots=True)
class FilterLayout:
    """Layout of a filter: `slice` is one of t_oc filters and t_ic channels, in blocks of an atom's rows."""

    slice: PackedLayout
    taps: Taps
    tile_oc: int

    def shape(self, groups: int, filters: int) -> tuple[int, ...]:
        """Groups, tiles of filters and of channels, taps, atoms, reads, lanes, elements, for that many filters a group.

        >>> taps = Taps((3, 3), (1, 1), (1, 1), 72)
        >>> layout = FilterLayout(PackedLayout(rows=32, lanes=64, vec=8, tile_k=64, bits=()), taps, 128)
        >>> layout.shape(groups=1, filters=130)
        (1, 2, 2, 9, 4, 4, 64, 8)
        """
        part, tile_ic = self.slice, self.slice.tile_k
        tiles = (-(-filters // self.tile_oc), -(-self.taps.channels // tile_ic), self.taps.count)
        return groups, *tiles, self.tile_oc // part.rows, tile_ic // part.read_k, part.lanes, part.vec

    def to_json(self) -> dict[str, Any]:
        return {
            "order": ["group", "oc_tile", "ic_tile", "tap", "atom", "read", "lane", "element"],
            "tile_oc": self.tile_oc,
            "tile_ic": self.slice.tile_k,
            "replicate": list(self.taps.factors),
            **self.slice.to_json(),
        }


def filter_layout(layout: GemmLayout, taps: Taps, tile_oc: int) -> FilterLayout:
    """How the filter is packed for a kernel of that tile layout."""
    return FilterLayout(packed_layout(layout, "B"), taps, tile_oc)


def pack_filter(op: Conv2d, stored: Array, layout: FilterLayout) -> Array:
    """The packed filter of `stored`, as `op`'s layout says; any type, kept as it is."""
    import numpy as np

    filters = layout.taps.filters(stored if op.layout == "NHWC" else stored.transpose(0, 2, 3, 1))
    groups, tiles_oc, tiles_ic, taps, atoms, reads, lanes, vec = layout.shape(op.groups, op.filters)
    rows, width = tiles_oc * layout.tile_oc, tiles_ic * layout.slice.tile_k
    padded = np.zeros((groups, rows, taps, width), filters.dtype)
    padded[:, : op.filters, :, : filters.shape[2]] = filters.reshape(groups, op.filters, taps, -1)
    image = padded[:, layout.slice.row_of(np.arange(rows))]
    atom_rows = layout.slice.rows
    parts = image.reshape(groups, tiles_oc, atoms, atom_rows, taps, tiles_ic, reads, lanes // atom_rows, vec)
    ordered = parts.transpose(0, 1, 5, 4, 2, 6, 7, 3, 8)
    return np.ascontiguousarray(ordered).reshape(groups, tiles_oc, tiles_ic, taps, atoms, reads, lanes, vec)


def unpack_filter(op: Conv2d, packed: Array, layout: FilterLayout) -> Array:
    """The filter as `op`'s layout stores it, that `pack_filter` made `packed` of.

    Raises BadInput where the filter of `op` is not packed to that shape.
    """
    import numpy as np

    shape = layout.shape(op.groups, op.filters)
    if packed.shape != shape:
        raise BadInput(f"the filter of this conv2d is packed as {list(shape)}, not {list(packed.shape)}")
    groups, tiles_oc, tiles_ic, taps, atoms, reads, lanes, vec = shape
    atom_rows = layout.slice.rows
    parts = packed.reshape(groups, tiles_oc, tiles_ic, taps, atoms, reads, lanes // atom_rows, atom_rows, vec)
    image = parts.transpose(0, 1, 4, 7, 3, 2, 5, 6, 8).reshape(groups, tiles_oc * layout.tile_oc, taps, -1)
    padded = np.empty_like(image)
    padded[:, layout.slice.row_of(np.arange(image.shape[1]))] = image
    filters = padded[:, : op.filters, :, : layout.taps.channels].reshape(op.OC, taps, -1)
    stored = layout.taps.unfiltered(filters)
    return np.ascontiguousarray(stored if op.layout == "NHWC" else stored.transpose(0, 3, 1, 2))
