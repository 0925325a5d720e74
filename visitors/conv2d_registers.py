"""Registers of an emitted convolution, item by item: what its register promise consists of.

A wave holds most in the loop over the taps, with the fragments of two steps, the next patch and two slices of the
filter under way, or where it writes one patch to LDS and loads the next one, with an address for every access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .derivation import RegisterItem

if TYPE_CHECKING:
    from .conv2d_shape import Conv2dShape

__all__ = ["live_set"]

#: Thread ids, coordinates, loop control.
CONTROL = 10
#: Half registers of an element of replicated channels whose tap changes from tile to tile: its row, column, channel.
#: On a split file the compiler finds them again instead.
CHANGING = 7
#: ArchVGPRs through which accumulators of a file of their own pass.
PASSING = 4
GAPS = 3
GAPS_PERCENT = 15
#: The same of a loop that loads no more of X, whose chunks are most of the runs.
GAPS_PERCENT_SINGLE = 7


def live_set(shape: Conv2dShape) -> tuple[RegisterItem, ...]:
    """Items of the loop over the taps, in 32-bit registers a lane, or those before it if they are more: where one patch
    has all channels its loads. Where accumulators have a file of their own, those of the epilogue if they are more.
    """
    phases = [_with_gaps(shape, _loop(shape), GAPS_PERCENT_SINGLE if shape.single else GAPS_PERCENT)]
    if shape.single:
        phases.append(_with_gaps(shape, _gather(shape)))
    if not shape.hw.vgpr_unified:
        phases.append(_epilogue(shape))
    return max(phases, key=lambda items: sum(item.registers for item in items))


def _reads_ahead(shape: Conv2dShape) -> int:
    """Registers of the next step's reads while the last MFMAs of this one hold the rest of its fragments."""
    return shape.fragments - 4 * shape.layout.reads


def _offsets(shape: Conv2dShape, units: int) -> int:
    """Registers of chunks on their way: a place in LDS, and offsets for the runs of channels that exist together, three
    of four of which are kept.
    """
    runs = shape.vec // shape.channel_step
    return units * (1 + (3 * runs + 3) // 4)


def _loop(shape: Conv2dShape) -> list[RegisterItem]:
    x, w = shape.loads_x, shape.loads_w
    offsets_x = _offsets(shape, x.units_a_thread) + (0 if shape.by_chunk else x.units_a_thread)
    if shape.replicated:
        offsets_x = 2 if shape.single else x.units_a_thread + 2
        if shape.hw.vgpr_unified and shape.taps.channels > shape.tiles.tile_ic:
            offsets_x += x.units_a_thread * shape.vec * CHANGING // 2
    return [
        RegisterItem("D", shape.accumulators, "acc", "accumulators of the wave's part of the tile"),
        RegisterItem("fragments", shape.fragments, "arch", "LDS reads that the MFMAs of this step take"),
        RegisterItem("reads ahead", _reads_ahead(shape), "arch", "next step, read under these MFMAs"),
        RegisterItem("patch under way", 0 if shape.single else x.staged, "arch", "next tile of channels"),
        RegisterItem(
            "packed", 4 * shape.chunks_packed, "arch", "packed filter of a tap, replaced in place by the next"
        ),
        RegisterItem("filter under way", w.staged, "arch", "slice of the tap after the next one"),
        RegisterItem("offsets of X", offsets_x, "arch", "byte offsets and LDS place of every chunk"),
        RegisterItem("offsets of the filter", _offsets(shape, w.units_a_thread), "arch", "the same of its chunks"),
        RegisterItem("places", shape.filter_places + 2, "arch", "LDS places of a lane's chunks"),
        RegisterItem("control", CONTROL, "arch", "thread ids, coordinates, loop control"),
    ]


def _gather(shape: Conv2dShape) -> list[RegisterItem]:
    """The loads of the only patch, of which every element has an offset, and of the first slice of the filter."""
    x, w = shape.loads_x, shape.loads_w
    return [
        RegisterItem("patch under way", x.staged, "arch", "the patch, an element a register"),
        RegisterItem("packed", 4 * shape.chunks_packed, "arch", "packed filter of the first tap"),
        RegisterItem("filter under way", w.staged, "arch", "slice of the first tap"),
        RegisterItem("offsets of X", 2 * x.units_a_thread + shape.vec, "arch", "rows and columns, offsets of a chunk"),
        RegisterItem("offsets of the filter", _offsets(shape, w.units_a_thread), "arch", "the same of its chunks"),
        RegisterItem("control", CONTROL, "arch", "thread ids, coordinates"),
    ]


def _epilogue(shape: Conv2dShape) -> tuple[RegisterItem, ...]:
    return (
        RegisterItem("D", shape.accumulators, "acc", "accumulators of the wave's part of the tile"),
        RegisterItem("values", shape.accumulators, "arch", "the same on their way to memory, all at once"),
        RegisterItem("control", CONTROL, "arch", "coordinates of the outputs"),
    )


def _with_gaps(shape: Conv2dShape, items: list[RegisterItem], percent: int = GAPS_PERCENT) -> tuple[RegisterItem, ...]:
    """The items that there are, with what the allocator leaves free."""
    if not shape.hw.vgpr_unified:
        items.append(RegisterItem("passing", PASSING, "arch", "what memory gives to AccVGPRs and takes from them"))
    shared = sum(item.registers for item in items if shape.hw.vgpr_unified or item.file != "acc")
    gaps = GAPS + shared * percent // 100
    items.append(RegisterItem("gaps", gaps, "arch", "left free between runs of 2 to 16 registers"))
    return tuple(item for item in items if item.registers)
