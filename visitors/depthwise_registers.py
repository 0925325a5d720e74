"""Registers of an emitted depthwise convolution, item by item: what its register promise consists of.

A thread holds most in the loop over lines of taps, while the loads of a group of places are under way.
"""

from __future__ import annotations

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.occupancy import register_budget
from closedform.operators.conv2d import Conv2d
from closedform.operators.depthwise import Depthwise, DepthwiseTiles

from .derivation import RegisterItem

__all__ = ["live_set"]

#: Coordinates, offsets of lines, loop control, temporaries of the divisions: held against binaries of all targets,
#: types and options (flydsl 0.5.0).
CONTROL = 14


def live_set(op: Conv2d, tiles: DepthwiseTiles, hw: HardwareDescriptor) -> tuple[RegisterItem, ...]:
    """Items in 32-bit registers a lane, no fewer than all waves of a SIMD may have.

    Where all loads come at once sums begin in place of X that is no longer needed, and no offset is kept.
    """
    work = Depthwise(op, tiles)
    strip, vec = work.strip, tiles.vec
    words = -(-vec * op.elem_bytes // 4)
    places = len(strip.places)
    together = min(tiles.together, places * tiles.lines)
    looped, at_once = work.kernel[work.b] > tiles.lines, together == places * tiles.lines
    sums, narrow = tiles.strip * vec, dtype(op.dtype).bits < 32
    if at_once and not looped:
        sums = max(vec, sums - tiles.strip * words)
    pairs = tiles.strip if not looped and vec == 1 and hw.has_packed_f32 else 0
    held = strip.held(tiles.together)
    multiplied = min(held, tiles.strip)
    items: tuple[RegisterItem, ...] = (
        RegisterItem("sums", sums, "arch", "outputs in f32"),
        RegisterItem("places", together * words, "arch", "X of a group of loads, under way together"),
        RegisterItem("weights", held * words, "arch", "taps that meet the group, kept"),
        RegisterItem("widened", multiplied * (vec - words) + vec if narrow else 0, "arch", "X and weights in f32"),
        RegisterItem("pairs", pairs, "arch", "neighbouring sums that are added to together"),
        RegisterItem("offsets", places if looped else max(0, places - together), "arch", "of places, kept"),
        RegisterItem("control", CONTROL, "arch", "coordinates, temporaries"),
    )
    total = sum(item.registers for item in items)
    spare = max(0, register_budget(hw, hw.waves_per_simd_max).arch - total)
    items += (RegisterItem("spare", spare, "arch", "what costs no wave, so that the compiler may take it"),)
    return tuple(item for item in items if item.registers)
