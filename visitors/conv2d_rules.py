"""What every knob setting of an emitted convolution must satisfy, as data."""

from __future__ import annotations

from math import gcd

from closedform.hw.occupancy import register_budget
from closedform.operators.conv2d import Conv2d
from closedform.operators.conv2d_taps import Taps
from closedform.operators.gemm_layout import CHUNK_BYTES

from .conv2d_registers import live_set
from .conv2d_shape import Conv2dShape
from .formula import ceil_div
from .gemm_rules import waves_per_simd_range
from .rule import COUNT_LIMIT, OFFSET_LIMIT, Rule

__all__ = ["RULES", "widest_reads"]


def widest_reads(op: Conv2d, taps: Taps, vec: int) -> tuple[int, int]:
    """The most elements of a read of X and of one of the filter: what lies together and begins at multiples of it."""
    last, replicated = op.layout == "NHWC", taps.factors != (1, 1)
    read_x = taps.access(vec, op.pad[2], op.IW) if replicated else gcd(op.channels, vec) if last else 1
    return read_x, vec if op.prepacked else gcd(taps.channels, vec) if last or replicated else 1


def _registers(shape: Conv2dShape) -> tuple[int, int]:
    budget, items = register_budget(shape.hw, shape.tiles.waves_per_simd), live_set(shape)
    total = sum(item.registers for item in items)
    if budget.unified:
        return total, budget.total
    return max(shape.accumulators, sum(item.registers for item in items if item.file != "acc")), budget.arch


def _slice(shape: Conv2dShape) -> tuple[int, int]:
    """Bytes of a slice past whole steps of LDS reads."""
    return shape.tiles.tile_ic * shape.elem_bytes % shape.step_bytes, 0


def _slices(shape: Conv2dShape) -> int:
    """Slices of a tap's channels."""
    return int(ceil_div(shape.taps.channels, shape.tiles.tile_ic))


def _taps(shape: Conv2dShape) -> tuple[int, int]:
    return 1 if shape.taps.whole else _slices(shape), 1


def _reads(shape: Conv2dShape) -> tuple[int, int]:
    """Elements left over where an access does not divide the widest one."""
    widest = widest_reads(shape.op, shape.taps, shape.vec)
    given = (shape.tiles.read_x, shape.tiles.read_w)
    return sum((most % min(read, most + 1) for most, read in zip(widest, given, strict=True)), start=0), 0


def _waves(shape: Conv2dShape, bound: int) -> int:
    return waves_per_simd_range(shape.hw, shape.tiles.waves, shape.lds_bytes)[bound]


def _reach(shape: Conv2dShape) -> tuple[int, int]:
    """Bytes from the first to the last element of a tile of X or of Y."""
    op, tiles = shape.op, shape.tiles
    if op.layout == "NHWC":
        x, y = (op.IH * op.IW * op.IC, op.IW * op.IC, op.IC, 1), (op.OH * op.OW * op.OC, op.OW * op.OC, op.OC, 1)
    else:
        x, y = (op.IC * op.IH * op.IW, op.IW, 1, op.IH * op.IW), (op.OC * op.OH * op.OW, op.OW, 1, op.OH * op.OW)
    rows, cols = (axis.element(axis.extent - 1) + 1 for axis in (shape.patch.rows, shape.patch.cols))
    size_x = (tiles.tile_n - 1, op.reach[0] + rows, op.reach[1] + cols, tiles.tile_ic)
    size_y = (tiles.tile_n - 1, tiles.tile_h, tiles.tile_w, tiles.tile_oc)
    reach_x, reach_y = (sum(a * b for a, b in zip(*pair, strict=True)) for pair in ((x, size_x), (y, size_y)))
    filters = tiles.tile_oc * op.KH * op.KW * op.channels
    return max(reach_x * shape.elem_bytes, reach_y * shape.out_bytes, filters * shape.elem_bytes), OFFSET_LIMIT


RULES: tuple[Rule, ...] = (
    Rule("LDS", "tile", "B", "a smaller tile, or fewer channels a slice", lambda s: (s.lds_bytes, s.lds_limit)),
    Rule(
        "work-items",
        "tile",
        "work-items",
        "fewer waves along filters or pixels",
        lambda s: (s.threads, s.hw.workgroup_max),
    ),
    Rule("channels of a slice", "tile", "B", "tile_ic in whole steps of the atom's LDS reads", _slice),
    Rule(
        "taps as channels",
        "tile",
        "rows and columns",
        "replicate_h of at most KH and replicate_w of at most KW",
        lambda s: max(zip(s.taps.factors, s.taps.kernel, strict=True), key=lambda pair: pair[0] - pair[1]),
    ),
    Rule(
        "gathered slices",
        "tile",
        "slices",
        "a tile_ic that holds all channels of a tap, or taps that lie together in memory: single elements of later "
        "slices would be found anew, each by itself",
        lambda s: (_slices(s) if s.replicated and s.tiles.read_x == 1 else 1, 1),
    ),
    Rule(
        "channels of the last taps",
        "tile",
        "slices",
        "factors that divide the filter, or a tile_ic that holds all channels of a tap",
        _taps,
    ),
    Rule(
        "gap",
        "LDS",
        "B",
        "a gap of whole chunks of 16 bytes",
        lambda s: (s.tiles.gap * s.elem_bytes % CHUNK_BYTES, 0),
    ),
    Rule(
        "pitch",
        "LDS",
        "pixels",
        "a pitch that holds a row of the patch",
        lambda s: (s.patch.cols.extent, s.tiles.pitch),
    ),
    Rule(
        "image",
        "LDS",
        "pixels",
        "an image that holds the rows of the patch",
        lambda s: (s.patch.rows.extent * s.tiles.pitch if s.tiles.tile_n > 1 else 0, s.tiles.image),
    ),
    Rule("width of a read", "global reads", "elements", "read_x and read_w that divide what lies together", _reads),
    Rule(
        "width of a store",
        "stores",
        "elements",
        "a store that divides the filters of a group, and 1 of NCHW",
        lambda s: (s.widest_store % min(s.tiles.store, s.widest_store + 1), 0),
    ),
    Rule(
        "waves per SIMD",
        "tile",
        "waves",
        "waves_per_simd within what one workgroup brings and the LDS leaves room for",
        lambda s: (s.tiles.waves_per_simd, _waves(s, 1)),
    ),
    Rule(
        "waves of one workgroup",
        "tile",
        "waves",
        "waves_per_simd of at least what one workgroup brings",
        lambda s: (_waves(s, 0), s.tiles.waves_per_simd),
    ),
    Rule("registers", "tile", "registers", "a smaller tile, or fewer waves_per_simd", _registers),
    Rule("offsets", "tile", "B", "a smaller tile: what it touches lies within 31-bit offsets", _reach),
    Rule(
        "workgroups",
        "tile",
        "workgroups",
        "a larger tile: workgroups are counted in 31 bits",
        lambda s: (s.blocks.value, COUNT_LIMIT),
    ),
)
