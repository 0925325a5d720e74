"""Registers of an emitted convolution, item by item: what its register promise consists of.

A wave holds most in the loop over the taps, with the fragments of two steps, the next patch and two slices of the
filter under way, or where it writes one patch to LDS and loads the next one, with an address for every access.

Data are counted. What the compiler keeps to find them is the least upper bound of that form, linear in accesses, over
the binaries of 730 kernels (flydsl 0.5.0: 54 shapes, both layouts, packed and not, on every target), and nine more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from .derivation import RegisterItem

if TYPE_CHECKING:
    from .conv2d_shape import Conv2dShape

__all__ = ["live_set"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Registers of finding things: `control` once, `place` for a place in the filter's image; for chunks (first number)
    and for their runs of channels or accesses (second): of the filter, and of X taken chunk by chunk, pixel by pixel,
    the same by accesses of less than a register, and of replicated channels. `gather`: accesses of the only patch.
    """

    control: int
    place: int
    filter: tuple[float, float]
    by_chunk: tuple[float, float]
    by_pixel: tuple[float, float]
    narrow: tuple[float, float]
    replicated: tuple[float, float]
    gather: float


#: With one register file for all, and where accumulators have one of their own.
UNIFIED = Costs(18, 5, (7.9, 0.0), (1.2, 1.4), (2.4, 1.5), (4.0, 1.6), (5.2, 1.6), 1.6)
SPLIT = Costs(18, 5, (10.0, 0.5), (2.7, 0.6), (2.5, 1.1), (1.8, 1.0), (4.0, 4.5), 3.2)
#: Gaps between accumulators, in percent of them.
GAPS_PERCENT = 12
#: Coordinates and offsets of the epilogue.
EPILOGUE = 14


def live_set(shape: Conv2dShape) -> tuple[RegisterItem, ...]:
    """Items of the loop over the taps, in 32-bit registers a lane, or those before it if they are more: where one patch
    has all channels its loads. Where accumulators have a file of their own, those of the epilogue if they are more.
    """
    costs = UNIFIED if shape.hw.vgpr_unified else SPLIT
    phases = [_loop(shape, costs)]
    if shape.single:
        phases.append(_gather(shape, costs))
    if not shape.hw.vgpr_unified:
        phases.append(_epilogue(shape))
    return max(phases, key=lambda items: sum(item.registers for item in items))


def _reads_ahead(shape: Conv2dShape) -> int:
    """Registers of the next step's reads while the last MFMAs of this one hold the rest of its fragments."""
    return shape.fragments - 4 * shape.layout.reads


def _offsets(shape: Conv2dShape, costs: Costs) -> int:
    """Registers of where chunks of X are, in memory and in LDS."""
    x = shape.loads_x
    if shape.single:
        return 2
    if shape.replicated:
        (one, each), accesses = costs.replicated, x.accesses
    else:
        one, each = costs.by_chunk if shape.by_chunk else costs.narrow if x.narrow else costs.by_pixel
        accesses = _runs(shape)
    return ceil(x.units_a_thread * (one + each * accesses))


def _runs(shape: Conv2dShape) -> int:
    """Runs of a chunk's channels that exist together."""
    return shape.vec // shape.channel_step


def _offsets_of_filter(shape: Conv2dShape, costs: Costs) -> int:
    one, each = costs.filter
    return ceil(shape.loads_w.units_a_thread * (one + each * _runs(shape)))


def _loop(shape: Conv2dShape, costs: Costs) -> tuple[RegisterItem, ...]:
    x, w = shape.loads_x, shape.loads_w
    gaps = shape.accumulators * GAPS_PERCENT // 100 if shape.hw.vgpr_unified else 0
    masks = 0 if shape.taps.whole else 4 * shape.layout.reads
    return _present(
        RegisterItem("D", shape.accumulators, "acc", "accumulators of the wave's part of the tile"),
        RegisterItem("fragments", shape.fragments, "arch", "LDS reads that the MFMAs of this step take"),
        RegisterItem("reads ahead", _reads_ahead(shape), "arch", "next step, read under these MFMAs"),
        RegisterItem("patch under way", 0 if shape.single else x.staged, "arch", "next tile of channels"),
        RegisterItem(
            "packed", 4 * shape.chunks_packed, "arch", "packed filter of a tap, replaced in place by the next"
        ),
        RegisterItem("filter under way", w.staged, "arch", "slice of the tap after the next one"),
        RegisterItem("offsets of X", _offsets(shape, costs), "arch", "where its chunks are, in memory and in LDS"),
        RegisterItem("offsets of the filter", _offsets_of_filter(shape, costs), "arch", "the same of its chunks"),
        RegisterItem("places", costs.place * shape.filter_places, "arch", "LDS places of a lane's chunks"),
        RegisterItem("masks", masks, "arch", "channels that a tap has"),
        RegisterItem("control", costs.control, "arch", "thread ids, coordinates, loop control"),
        RegisterItem("gaps", gaps, "arch", "left free between runs of 2 to 16 registers"),
    )


def _gather(shape: Conv2dShape, costs: Costs) -> tuple[RegisterItem, ...]:
    """The loads of the only patch, of which every access has an offset, and of the first slice of the filter."""
    x, w = shape.loads_x, shape.loads_w
    offsets = ceil(2 * x.units_a_thread + costs.gather * x.accesses)
    return _present(
        RegisterItem("patch under way", x.staged, "arch", "the patch, an element of a narrow access a register"),
        RegisterItem("packed", 4 * shape.chunks_packed, "arch", "packed filter of the first tap"),
        RegisterItem("filter under way", w.staged, "arch", "slice of the first tap"),
        RegisterItem("offsets of X", offsets, "arch", "rows and columns, offsets of a chunk"),
        RegisterItem("offsets of the filter", _offsets_of_filter(shape, costs), "arch", "the same of its chunks"),
        RegisterItem("control", costs.control, "arch", "thread ids, coordinates"),
    )


def _epilogue(shape: Conv2dShape) -> tuple[RegisterItem, ...]:
    return _present(
        RegisterItem("D", shape.accumulators, "acc", "accumulators of the wave's part of the tile"),
        RegisterItem("values", shape.accumulators, "arch", "the same on their way to memory, all at once"),
        RegisterItem("control", EPILOGUE, "arch", "coordinates of the outputs"),
    )


def _present(*items: RegisterItem) -> tuple[RegisterItem, ...]:
    """The items that there are."""
    return tuple(item for item in items if item.registers)
