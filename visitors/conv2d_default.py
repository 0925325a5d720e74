"""Tiles of the convolutions that are emitted for MFMAs: registers, LDS, compute units, in that order.

1. Taps: where a group has fewer channels than a step of the atom takes, taps become channels, by the factors that
   leave the fewest multiply-adds (`CONV2D.replicated`).
2. Registers bound the tile of outputs as in a GEMM: the rungs of its ladder, with pixels for rows and output channels
   for columns.
3. LDS fixes the channels of a slice: the patch with its halo and the filter's slices of two taps must fit; the pixels
   are cut into images, rows and columns, whose halo R and clipped edges cost what they cost.
4. Of all that fit, the tile of least predicted time: rounds of the grid over the CUs, times the clocks of a workgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

from closedform.hw.atoms import MFMAAtom
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, Infeasible, near_names
from closedform.hw.occupancy import occupancy_of
from closedform.operators.conv2d import Conv2d, Conv2dTiles, taps_of
from closedform.operators.conv2d_layout import pitches
from closedform.operators.gemm_layout import CHUNK_BYTES

from .conv2d_formulas import CONV2D
from .conv2d_registers import live_set
from .conv2d_rules import RULES, widest_reads
from .conv2d_shape import Conv2dShape, step_bytes
from .derivation import Derivation, GridVerdict, PredictedResources
from .formula import ceil_div
from .gemm_ladder import (
    EXPOSED,
    ROW_BYTES,
    START_CLOCKS,
    TILE_CLOCKS,
    WAVES_PER_SIMD,
    Block,
    block_ladder,
    gemm_atoms,
    l2_bytes_per_clk,
)
from .gemm_rules import waves_per_simd_range
from .gemm_shape import GRID_X
from .rule import broken_rule

__all__ = ["derive_conv2d", "predicted_clocks"]

#: A smaller tile must win by a thousandth.
TIE = 0.999
#: Knobs of the pixels of a workgroup.
SHAPE = ("tile_n", "tile_h", "tile_w")
#: Clocks of the vector instructions that find what an access of replicated channels loads: 16 of 4 clocks.
GATHER_CLOCKS = 64
#: Steps of the atom from which on their channels leave little of the last one empty.
FEW_STEPS = 2
#: Bytes of a segment of memory that is fetched whole.
SEGMENT_BYTES = 64


def derive_conv2d(op: Conv2d, hw: HardwareDescriptor, **overrides: Any) -> Derivation:
    """Tiles of `op` on `hw`; `overrides` fix knobs of Conv2dTiles, whose names and values are checked.

    Raises BadInput for a type that the GPU has no atom for, for an unknown one, and for knobs that no tile has.
    """
    given = dict(overrides)
    hw.resolve_dtype(op.dtype)
    atoms = gemm_atoms(hw, op.dtype)
    wanted = given.get("atom")
    if isinstance(wanted, str):
        named = [a for a in atoms if wanted in (f"{a.m}x{a.n}", a.instruction)]
        if not named:
            raise BadInput(f"no atom {wanted!r} for {op.dtype}: {near_names(wanted, (a.instruction for a in atoms))}")
        given["atom"] = named[0]
    for name in SHAPE:
        if given.get(name, 1) & given.get(name, 1) - 1:
            raise BadInput(f"{name}={given[name]} is not a power of two")
    columns = sorted({block.tile_n for block in block_ladder(hw, op.dtype)})
    if given.get("tile_oc", columns[0]) not in columns:
        raise BadInput(f"tile_oc={given['tile_oc']} is not offered: {', '.join(map(str, columns))} are")
    best, clocks, reason, wrong = None, inf, None, None
    for block, shape, factors in _choices(op, hw, given):
        if _least_clocks(op, hw, block, shape, factors) >= clocks * TIE:
            continue
        try:
            found = _fitting(op, hw, block, shape, factors, given, clocks * TIE)
        except BadInput as error:  # what is given cuts no whole atoms out of this rung
            wrong = error
            continue
        if isinstance(found, Infeasible):
            reason = found  # the last rung is the smallest: what it lacks, all lack
        elif found is not None and (time := _clocks(op, hw, found)) < clocks * TIE:
            best, clocks = found, time
    if best is None and reason is None and wrong is not None:
        raise wrong
    return _refused(op, hw, given, reason) if best is None else _result(op, hw, best)


def predicted_clocks(derivation: Derivation) -> float:
    """Clocks of the busiest CU that the tiles of a derivation were chosen by."""
    tiles, _, _ = derivation.require()
    return _clocks(derivation.op, derivation.hw, tiles)


def _refused(op: Conv2d, hw: HardwareDescriptor, given: dict[str, Any], reason: Infeasible | None) -> Derivation:
    """The least patch and filter slices do not fit, or what is given breaks a rule or is of no tile."""
    least, limit = _lds_of_least(op, hw, given), hw.lds_max_per_workgroup_bytes
    if least > limit:
        way_out = "use a smaller kernel, stride or dilation, pads in multiples of an access, or im2col with our gemm"
        reason = Infeasible("LDS", least, limit, "B", "the patch of the smallest tile of this conv2d", way_out)
    if reason is None:
        raise BadInput(f"no tile of this conv2d has {', '.join(sorted(given))} as given: leave more of them open")
    return Derivation(op, hw, "default", None, "lds" if least > limit else "atom", (), None, None, reason)


def _lds_of_least(op: Conv2d, hw: HardwareDescriptor, given: dict[str, Any]) -> int:
    """LDS of the smallest tile: 16 outputs of 16 channels, one step of an atom."""
    block = min(block_ladder(hw, op.dtype), key=lambda b: b.tile_m * b.tile_n)
    sizes = []
    for shape in _shapes(op, block.tile_m, given):
        try:
            tiles = _in_lds(op, hw, _tiles(op, hw, block, shape, step_bytes(block.atom), (1, 1), given), given)
        except BadInput:  # what is given cuts no whole atoms out of it
            continue
        sizes.append(Conv2dShape(op, tiles, hw).lds_bytes)
    return min(sizes, default=0)


def _choices(
    op: Conv2d, hw: HardwareDescriptor, given: dict[str, Any]
) -> Iterator[tuple[Block, tuple[int, int, int], tuple[int, int]]]:
    """A rung of the ladder, the shape of its pixels and the factors of replication: all that have what is given."""
    most_oc, most_px = _cover(op.filters), _cover(op.N * op.OH * op.OW)
    smallest = min(b.tile_n for b in block_ladder(hw, op.dtype))
    for block in block_ladder(hw, op.dtype):
        if given.get("tile_oc", block.tile_n) != block.tile_n or given.get("atom", block.atom) != block.atom:
            continue
        if "tile_oc" not in given and block.tile_n > max(most_oc, smallest):
            continue
        if not set(SHAPE) & set(given) and block.tile_m > max(most_px, smallest):
            continue
        ways = replications(op, block.atom, given)
        for shape, factors in product(_shapes(op, block.tile_m, given), ways):
            yield block, shape, factors


def _least_clocks(
    op: Conv2d, hw: HardwareDescriptor, block: Block, shape: tuple[int, int, int], factors: tuple[int, int]
) -> float:
    """Clocks of the matrix cores alone, which no tile of that kind goes below."""
    images, height, width = shape
    cut = ceil_div(op.N, images) * ceil_div(op.OH, height) * ceil_div(op.OW, width)
    blocks = cut * ceil_div(op.filters, block.tile_n) * op.groups
    work = multiply_adds(op, factors, block.atom.k) * block.tile_m * block.tile_n
    return float(ceil_div(blocks, hw.num_cus) * 2 * work / block.atom.flops_per_clk_cu)


def _cover(extent: int) -> int:
    """The least power of two that is not below `extent`."""
    return 1 << max(0, extent - 1).bit_length()


def _shapes(op: Conv2d, pixels: int, given: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """(images, rows, columns) of that many pixels; what Y lacks goes to images."""
    fixed = [given.get(name) for name in SHAPE]
    wide, tall = fixed[2] or _cover(op.OW), fixed[1] or _cover(op.OH)
    width = 1
    while width <= min(pixels, wide):
        height = 1
        while height <= min(pixels // width, tall):
            shape = (pixels // (width * height), height, width)
            whole = shape[0] <= _cover(op.N) or (height == tall and width == wide) or fixed[0]
            if whole and all(want in (None, size) for want, size in zip(fixed, shape, strict=True)):
                yield shape
            height *= 2
        width *= 2


def replications(op: Conv2d, atom: MFMAAtom, given: dict[str, Any]) -> list[tuple[int, int]]:
    """Factors by which taps may become channels: none; where channels fill few steps of the atom, a row of taps, those
    within a slice that divide the kernel and leave the fewest multiply-adds, the smallest of these; and all taps, which
    leaves no halo to hold, where they lie together in memory.
    """
    step = step_bytes(atom) * 8 // atom.dtype_a.bits
    if "replicate_h" in given or "replicate_w" in given:
        return [(given.get("replicate_h", 1), given.get("replicate_w", 1))]
    if op.channels >= FEW_STEPS * step:
        return [(1, 1)]
    divisors = product(_divisors(op.KH), _divisors(op.KW))
    most = max(step, ROW_BYTES * 8 // atom.dtype_a.bits)
    options = [(f_h, f_w) for f_h, f_w in divisors if f_h * f_w * op.channels <= most]
    fewest = min(options, key=lambda f: (multiply_adds(op, f, step), f[0] * f[1], f[0]))
    wide = taps_of(op, (op.KH, op.KW)).access(CHUNK_BYTES * 8 // atom.dtype_a.bits, op.pad[2], op.IW) > 1
    return sorted({(1, 1), (1, op.KW), fewest, *([(op.KH, op.KW)] if wide else [])})


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def multiply_adds(op: Conv2d, factors: tuple[int, int], step: int) -> int:
    """Multiply-adds of a pixel and a filter, whole steps of `step` channels."""
    sizes = {"KH": op.KH, "KW": op.KW, "channels": op.channels, "step": step}
    return int(CONV2D.replicated(f_h=factors[0], f_w=factors[1], **sizes).value)


def _fitting(
    op: Conv2d,
    hw: HardwareDescriptor,
    block: Block,
    shape: tuple[int, int, int],
    factors: tuple[int, int],
    given: dict[str, Any],
    bound: float,
) -> Conv2dTiles | Infeasible | None:
    """The tile with the most channels a slice that breaks no rule, or the rule that the smallest slice breaks; None
    where no slice takes fewer clocks than `bound`.
    """
    least = step_bytes(block.atom)
    elem_bytes = block.atom.dtype_a.bits // 8
    channels = factors[0] * factors[1] * op.channels
    row_bytes = max(least, min(ROW_BYTES, _cover(channels) * elem_bytes))
    if "tile_ic" in given:
        row_bytes = least = given["tile_ic"] * elem_bytes
    broken = None
    while row_bytes >= least:
        tiles = _tiles(op, hw, block, shape, row_bytes, factors, given)
        if _clocks(op, hw, replace(tiles, waves_per_simd=WAVES_PER_SIMD)) >= bound:
            row_bytes //= 2
            continue
        tiles = _in_lds(op, hw, tiles, given)
        low, high = waves_per_simd_range(hw, tiles.waves, Conv2dShape(op, tiles, hw).lds_bytes)
        wanted = max(low, min(WAVES_PER_SIMD, high))
        options = [given["waves_per_simd"]] if "waves_per_simd" in given else range(wanted, low - 1, -1)
        for waves in options:
            fewer = replace(tiles, waves_per_simd=waves)
            broken = broken_rule(RULES, Conv2dShape(op, fewer, hw))
            if broken is None:
                return fewer
        row_bytes //= 2
    return broken


def _tiles(
    op: Conv2d,
    hw: HardwareDescriptor,
    block: Block,
    shape: tuple[int, int, int],
    row_bytes: int,
    factors: tuple[int, int],
    given: dict[str, Any],
) -> Conv2dTiles:
    """The tile with the knobs that follow from it, but for the layout of the patch in LDS."""
    elem_bytes = block.atom.dtype_a.bits // 8
    read_x, read_w = widest_reads(op, taps_of(op, factors), CHUNK_BYTES // elem_bytes)
    derived: dict[str, Any] = {
        "tile_oc": block.tile_n,
        "tile_n": shape[0],
        "tile_h": shape[1],
        "tile_w": shape[2],
        "tile_ic": row_bytes // elem_bytes,
        "wave_oc": block.wave_n,
        "wave_px": block.wave_m,
        "atom": block.atom,
        "replicate_h": factors[0],
        "replicate_w": factors[1],
        "read_x": read_x,
        "read_w": read_w,
    }
    tiles = Conv2dTiles(**{**derived, **given})
    return tiles if "store" in given else replace(tiles, store=Conv2dShape(op, tiles, hw).widest_store)


def _in_lds(op: Conv2d, hw: HardwareDescriptor, tiles: Conv2dTiles, given: dict[str, Any]) -> Conv2dTiles:
    """The same tile with a layout of its patch that is free of bank conflicts, where what is given leaves it open."""
    patch = Conv2dShape(op, tiles, hw).patch
    shape, row_bytes = (tiles.tile_n, tiles.tile_h, tiles.tile_w), tiles.tile_ic * tiles.atom.dtype_a.bits // 8
    pad_bytes, pitch, image = pitches(hw, tiles.atom.n, shape, patch.rows.extent, patch.cols.extent, row_bytes)
    layout: dict[str, Any] = {"gap": pad_bytes * 8 // tiles.atom.dtype_a.bits, "pitch": pitch, "image": image}
    return replace(tiles, **{name: value for name, value in layout.items() if name not in given})


def _clocks(op: Conv2d, hw: HardwareDescriptor, tiles: Conv2dTiles) -> float:
    """Predicted clocks of the busiest CU.

    A tap takes the busiest of matrix cores, LDS and L2; a tile of channels its taps and the exchange of the patch.
    """
    shape = Conv2dShape(op, tiles, hw)
    taps, row_bytes = shape.taps, tiles.tile_ic * shape.elem_bytes
    matrix = 2 * tiles.pixels * tiles.tile_oc * tiles.tile_ic / tiles.atom.flops_per_clk_cu
    passed, l1 = tiles.pixels * tiles.wave_oc * row_bytes, 0.0
    if op.prepacked:
        l1 = shape.filter_bytes * tiles.wave_px / hw.l1_bytes_per_clk
    else:
        passed += tiles.tile_oc * (tiles.wave_px + 1) * row_bytes
    l2 = shape.filter_bytes / l2_bytes_per_clk(hw)
    least = TILE_CLOCKS / tiles.waves_per_simd
    tap = max(matrix, passed / hw.lds_read_bytes_per_clk, l1, l2, least) + EXPOSED * l2
    patch = shape.patch.pixels * row_bytes
    if op.layout == "NCHW":
        patch *= max(1, SEGMENT_BYTES // (shape.patch.cols.extent * shape.elem_bytes))
    exchange = TILE_CLOCKS + patch / hw.lds_read_bytes_per_clk + EXPOSED * patch / l2_bytes_per_clk(hw)
    if shape.replicated:
        accesses = shape.loads_x.units_a_thread * shape.loads_x.accesses
        exchange += accesses * GATHER_CLOCKS * ceil_div(tiles.waves, hw.simds_per_cu)
    depth = ceil_div(taps.channels, tiles.tile_ic)
    workgroup = depth * (taps.count * tap + exchange) + START_CLOCKS
    return float(ceil_div(int(shape.blocks.value), hw.num_cus) * workgroup)


def _result(op: Conv2d, hw: HardwareDescriptor, tiles: Conv2dTiles) -> Derivation:
    shape = Conv2dShape(op, tiles, hw)
    resources = PredictedResources.within_budget(hw, live_set(shape), shape.lds_bytes, tiles.waves_per_simd)
    taps, patch = shape.taps, shape.patch
    sizes = {
        "KH": taps.rows,
        "KW": taps.cols,
        "s_h": taps.stride[0],
        "s_w": taps.stride[1],
        "d_h": taps.dilation[0],
        "d_w": taps.dilation[1],
        "p_h": patch.rows.phases,
        "p_w": patch.cols.phases,
        "t_OH": tiles.tile_h,
        "t_OW": tiles.tile_w,
    }
    copies = tiles.replicate_h * tiles.replicate_w
    halo, pixels = CONV2D.halo(**sizes, f=copies), CONV2D.patch(**sizes, t_N=tiles.tile_n)
    blocks = shape.blocks
    rounds = CONV2D.rounds(blocks=blocks.value, num_cus=hw.num_cus)
    step = step_bytes(tiles.atom) // shape.elem_bytes
    one = {"KH": op.KH, "KW": op.KW, "channels": op.channels, "step": step}
    work = CONV2D.replicated(**one, f_h=tiles.replicate_h, f_w=tiles.replicate_w)
    intensity = CONV2D.intensity(
        pixels=tiles.pixels,
        t_OC=tiles.tile_oc,
        patch=pixels.value * copies,
        channels=op.channels,
        taps=op.KH * op.KW,
        elem_bytes=shape.elem_bytes,
        out_bytes=shape.out_bytes,
    )
    places = shape.patch_bytes // patch.pixel_bytes
    largest = block_ladder(hw, op.dtype)[0]
    reduced = tiles.pixels * tiles.tile_oc < largest.tile_m * largest.tile_n
    steps = [
        work,
        CONV2D.accumulators(t_OC=tiles.tile_oc, pixels=tiles.pixels, waves=tiles.waves, lanes=hw.wavefront_size),
        pixels,
        halo,
        CONV2D.tile_ic(row_bytes=tiles.tile_ic * shape.elem_bytes, elem_bytes=shape.elem_bytes),
        CONV2D.lds(
            places=places,
            t_IC=tiles.tile_ic,
            pad=tiles.gap,
            t_OC=tiles.tile_oc,
            slices=shape.slices,
            elem_bytes=shape.elem_bytes,
        ),
        intensity,
        blocks,
        rounds,
    ]
    binding = "cus" if reduced else "registers"
    index = 7 if reduced else 1
    marked = tuple(s.binding() if i == index else s for i, s in enumerate(steps))
    occupancy = occupancy_of(hw, tiles.waves, resources.arch_registers, resources.acc_registers, resources.lds_bytes)
    slots = hw.num_cus * max(1, occupancy.workgroups_per_cu)
    per_cu, fills = blocks.value / hw.num_cus, blocks.value >= hw.num_cus
    verdict = f"{per_cu:.2f} workgroups per CU, {rounds.value} round(s)"
    grid = GridVerdict(
        (min(blocks.value, GRID_X), ceil_div(blocks.value, GRID_X), 1),
        blocks.value,
        hw.num_cus,
        occupancy.workgroups_per_cu,
        per_cu,
        ceil_div(blocks.value, slots),
        blocks.value / (rounds.value * hw.num_cus),
        fills,
        verdict if fills else f"{verdict}: CUs stay idle",
    )
    return Derivation(op, hw, "default", tiles, binding, marked, resources, grid, None, tuple(_notes(op, shape, step)))


def _notes(op: Conv2d, shape: Conv2dShape, step: int) -> Iterator[str]:
    """What the caller should know of the tiles."""
    tiles, taps = shape.tiles, shape.taps
    yield f"atom {tiles.atom.instruction}: {shape.atoms_oc} x {shape.atoms_px} of it a wave"
    plain = multiply_adds(op, (1, 1), step)
    if shape.replicated:
        gain = plain / multiply_adds(op, taps.factors, step)
        yield (
            f"taps become channels by {taps.factors[0]} x {taps.factors[1]}: {op.channels} channels become "
            f"{taps.channels}, {op.KH * op.KW} taps {taps.count}, {gain:.2f} times fewer multiply-adds"
        )
    used = op.KH * op.KW * op.channels / multiply_adds(op, taps.factors, step)
    used *= op.filters / (ceil_div(op.filters, tiles.tile_oc) * tiles.tile_oc)
    if used < 0.5:
        yield f"{used:.1%} of the multiply-adds of its MFMAs are the convolution's, the rest fill atoms"
    if tiles.read_w * shape.elem_bytes < 4 or tiles.read_x * shape.elem_bytes < 4:
        yield "accesses of less than 4 bytes: channels last, in multiples of 8, are read 16 bytes at a time"
