"""Registers of an emitted GEMM, item by item: what its register promise consists of.

A wave holds most in the main loop, with the fragments of two steps and a tile under way; in the partial last tile of k,
with an offset of its own for every access; in the epilogue, where accumulators have a file of their own and pass
through the other one; or where partial sums are added. The promise is the largest of these live sets. The prologue
loads no more than the last tile and has no sums yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .derivation import RegisterItem

if TYPE_CHECKING:
    from .gemm_shape import GemmShape, OperandShape

__all__ = ["live_sets", "main_loop", "registers_least"]

#: Thread ids, coordinates for the epilogue, loop control: what binaries hold at the top of the main loop beyond the
#: named items (flydsl 0.5.0, all targets, types and layouts).
CONTROL = 4
#: ArchVGPRs through which accumulators of a file of their own pass.
PASSING = 4
#: Registers that the allocator leaves free between runs of 2 to 16, for it packs no closer than the occupancy asks; a
#: short loop, which LLVM unrolls, has copies of its own.
GAPS = 5
GAPS_PERCENT = 22
#: More of them where a wave has a SIMD for itself: nothing asks the allocator to pack.
GAPS_ALONE = 4
#: The same where tiles go straight to LDS, so that no loads wait in registers of their own, and in a main loop where
#: one step of long operands is the whole tile.
GAPS_PERCENT_FEW = 14
#: Registers of partial sums that the compiler loads early where they are added (SPLIT_K from 2 to 40); more in a kernel
#: that multiplies too, whose budget is larger, if they are few a part.
REDUCING, REDUCING_FEW, FEW = 72, 128, 8
#: Registers of the last tile where some access has less than 4 bytes, and what the epilogue adds is read early.
NARROW = 4
#: Words of transposed chunks that wait for their last line, in the main loop.
TRANSPOSING = 4
#: Of the partial last tile, percent of one register an access: an operand along k keeps the offset and the place in k
#: that is compared with K; of an operand along its rows the last offsets are made while the first loads are under way,
#: and more of them where it follows another one of that kind.
PERCENT_ALONG_K = 175
PERCENT_ALONG_ROWS = 75
PERCENT_BOTH_ALONG_ROWS = 55


def live_sets(shape: GemmShape) -> tuple[tuple[RegisterItem, ...], ...]:
    """Items of the main loop, of the last tile, of the epilogue or the adding, in 32-bit registers a lane."""
    loop = shape.main_loop if shape.tiles.pinned else main_loop(shape, False)
    one_step = shape.layout.steps == 1 and shape.layout.reads > 1
    percent = GAPS_PERCENT_FEW if one_step else None
    sets = [_with_gaps(shape, loop, percent=percent), _with_gaps(shape, *_last_tile(shape))]
    if not shape.hw.vgpr_unified:
        sets.append(_with_gaps(shape, _epilogue(shape)))
    elif shape.tiles.split_k > 1:
        sets.append(_reduction(shape))
    return tuple(sets)


def registers_least(shape: GemmShape) -> int:
    """Registers without which the main loop or the last tile spills: what is live in the emitted order, without gaps.

    Packed chunks beside LDS reads, where AccVGPRs are a file of their own, leave the allocator no way around its gaps,
    and an atom's accumulators pass between loops through other registers.
    """
    if shape.op.packed and shape.fragments and not shape.hw.vgpr_unified:
        return sum(item.registers for item in _with_gaps(shape, shape.main_loop)) + shape.atom.registers_c
    lines = shape.elem_bytes >= 4 and "AlongRows" in shape.kinds
    if lines + (shape.tiles.stream_k > 0) + (not shape.hw.vgpr_unified) > 1:
        # Of wide lines, values kept from tile to tile and a split file, two leave no way around the gaps, and a split
        # file has no room for the lines' addresses: without them gfx908 and gfx90a spilled 1 to 7.
        wide = [o.registers_loads for o in shape.operands if o.kind == "AlongRows" and not shape.hw.vgpr_unified]
        return sum(item.registers for item in _with_gaps(shape, shape.main_loop)) + lines * max(wide, default=0)
    last, _ = _last_tile(shape)
    return max(sum(item.registers for item in items) for items in (shape.main_loop, last)) + CONTROL


def _reads_ahead(shape: GemmShape, pinned: bool) -> int:
    """Registers of the next step's LDS reads beside the fragments that this step's MFMAs still take.

    Reads are spread over the MFMAs of a step, with two buffers before its loads and writes; the last step reads under
    its second half. Without a pinned order the scheduler may read a whole tile ahead.
    """
    layout, tiles = shape.layout, shape.tiles
    fragments = shape.fragments
    if shape.op.packed:
        return fragments * (layout.steps > 1)
    if not pinned:
        return fragments * max(1, layout.steps - 1)
    rows, columns, parts = shape.atoms_m, shape.atoms_n, layout.mfmas
    reads, words, per_part = layout.reads * (rows + columns), 4 * layout.reads, rows * columns
    mfmas = parts * per_part

    def needed(after: int) -> int:
        """Registers that MFMAs from number `after` on take."""
        if after == mfmas:
            return 0
        part, inside = divmod(after, per_part)
        row, column = divmod(inside, columns)
        left = rows - row + (columns if row < rows - 1 else columns - column)
        return ((parts - 1 - part) * (rows + columns) + left) * words // parts

    def most(first: int, others: int) -> int:
        """The most while MFMAs from number `first` on issue, reads and then `others` spread between them."""
        count = mfmas - first
        return max(4 * min(reads, -(-(reads + others) * n // count)) + needed(first + n) for n in range(1, count + 1))

    others = 0
    if tiles.buffers == 2 and not tiles.direct and layout.steps > 1:
        others = sum(o.registers_loads + _writes(o) for o in shape.operands) // (layout.steps - 1)
    peak = most(mfmas // 2, 0)
    if layout.steps > 1:
        peak = max(peak, most(0, others))
    return peak - fragments


def _writes(operand: OperandShape) -> int:
    """LDS writes of a tile by one thread."""
    if operand.kind == "Packed":
        return 0
    return operand.units_a_thread * (1 if operand.kind == "AlongK" else operand.read)


def _shared_places(shape: GemmShape) -> int:
    """LDS places of writes that A and B have in common, but for a constant: columns in their natural order."""
    bits = shape.layout.column_bits
    if shape.kinds != ("AlongK",) or bits != tuple(range(len(bits))):
        return 0
    return min(operand.units_a_thread for operand in shape.operands)


def main_loop(shape: GemmShape, pinned: bool) -> list[RegisterItem]:
    """Items of the main loop with a `pinned` order of its operations, or with one that the compiler chooses."""
    a, b = shape.operands
    direct = shape.tiles.direct
    units = sum(1 if operand.kind == "Packed" else operand.units_a_thread for operand in (a, b))
    staged = shape.staged * (1 if pinned else 2)
    transposed = shape.elem_bytes < 4 and "AlongRows" in shape.kinds
    return [
        RegisterItem("D", shape.accumulators, "acc", "accumulators of the wave's part of the tile"),
        RegisterItem("fragments", shape.fragments, "arch", "LDS reads that the MFMAs of this step take"),
        RegisterItem("reads ahead", _reads_ahead(shape, pinned), "arch", "next step, read under these MFMAs"),
        RegisterItem("packed", 4 * shape.chunks_packed, "arch", "pre-shuffled tile, replaced in place by the next"),
        RegisterItem("tile under way", staged, "arch", "next tile, loaded early"),
        RegisterItem("transposing", TRANSPOSING * transposed, "arch", "chunks that wait for their last line"),
        RegisterItem(
            "offsets",
            units if direct else a.offsets + b.offsets - _shared_places(shape),
            "arch",
            "byte offset of every global access, place of every LDS write",
        ),
        RegisterItem(
            "last tile",
            units + _writes(a) + _writes(b) if direct else 0,
            "arch",
            "offsets and places of the partial tile, which passes through registers, made before the loop",
        ),
        RegisterItem(
            "places",
            shape.places + shape.places // 2 * direct,
            "arch",
            "LDS places of a lane's chunks, one for each XOR of them; of a second buffer, half of them",
        ),
        RegisterItem("segment", shape.segment, "arch", "what a persistent workgroup keeps from tile to tile"),
    ]


def _last_tile(shape: GemmShape) -> tuple[list[RegisterItem], int]:
    """Items of the partial last tile, and how many of their registers stand alone."""
    tiles = shape.tiles
    staged = alone = offsets = transposing = 0
    percent_rows = PERCENT_BOTH_ALONG_ROWS if shape.kinds == ("AlongRows",) else PERCENT_ALONG_ROWS
    for operand, tail in zip(shape.operands, (tiles.tail_a, tiles.tail_b), strict=True):
        if operand.kind == "Packed":
            offsets += operand.offsets + 2  # with the number of its blocks, and which of them is meant
        elif operand.kind == "AlongK":
            accesses = operand.units_a_thread * (operand.vec // tail)
            narrow = tail * operand.elem_bytes < 4
            staged += accesses if narrow else 4 * operand.units_a_thread
            alone += accesses if narrow else 0
            offsets += accesses if tail == operand.vec else accesses * PERCENT_ALONG_K // 100
        else:
            staged += operand.staged
            alone += operand.staged if operand.read * operand.elem_bytes <= 4 else 0
            offsets += operand.registers_loads * percent_rows // 100
            if operand.elem_bytes < 4:
                transposing = max(transposing, operand.read * 4 // operand.elem_bytes)
        offsets += _writes(operand)
    offsets += NARROW * (shape.narrow and (shape.op.has_c or shape.op.bias != "none"))
    layout = shape.layout
    # Reads of a second step are made early; of operands of two reads, whose MFMAs are long, only those of the next one.
    ahead = shape.fragments * (layout.steps > 1) if layout.reads == 1 else 4 * layout.reads
    fragments = shape.fragments + ahead
    if fragments > staged + transposing:
        alone = 0
        held = [RegisterItem("fragments", fragments, "arch", "LDS reads of the last tile, of its next step too")]
    else:
        held = [
            RegisterItem("last tile under way", staged, "arch", "partial last tile of k, in narrower accesses"),
            RegisterItem("transposing", transposing, "arch", "chunks that wait for their last line"),
        ]
    return [
        RegisterItem("D", shape.accumulators, "acc", "accumulators of the wave's part of the tile"),
        *held,
        RegisterItem("packed", 4 * shape.chunks_packed, "arch", "pre-shuffled chunks of the last tile"),
        RegisterItem("segment", shape.segment, "arch", "what a persistent workgroup keeps from tile to tile"),
        RegisterItem("offsets", offsets, "arch", "byte offset of every access of the last tile, LDS places"),
        RegisterItem("places", shape.places, "arch", "LDS places of a lane's chunks, one for each XOR of them"),
    ], alone + offsets


def _epilogue(shape: GemmShape) -> list[RegisterItem]:
    return [
        RegisterItem("D", shape.accumulators, "acc", "accumulators of the wave's part of the tile"),
        RegisterItem("values", shape.accumulators, "arch", "the same on their way to memory, all at once"),
    ]


def _reduction(shape: GemmShape) -> tuple[RegisterItem, ...]:
    """Items where partial sums are added: the compiler unrolls the loop and loads early, within a limit."""
    part = shape.layout.span // shape.atom.m * shape.atom.registers_c
    most = REDUCING_FEW if shape.tiles.arrives and part <= FEW else REDUCING
    early = min(shape.tiles.split_k * part, most)
    return (
        RegisterItem("partial sums", early, "any", "parts of the sums, loaded before they are added"),
        RegisterItem("control", CONTROL + 2, "arch", "places of sums and of D"),
    )


def _with_gaps(
    shape: GemmShape, items: list[RegisterItem], alone: int = 0, percent: int | None = None
) -> tuple[RegisterItem, ...]:
    """The items that there are, with control and gaps; registers that stand `alone` fill as many gaps as they leave.

    Accumulators of a file of their own leave none.
    """
    items = [*items, RegisterItem("control", CONTROL, "arch", "thread ids, coordinates, loop control")]
    if not shape.hw.vgpr_unified:
        items.append(RegisterItem("passing", PASSING, "arch", "what memory gives to AccVGPRs and takes from them"))
    shared = sum(item.registers for item in items if shape.hw.vgpr_unified or item.file != "acc")
    percent = percent or (GAPS_PERCENT_FEW if shape.tiles.direct else GAPS_PERCENT)
    alone_on_simd = GAPS_ALONE * (shape.tiles.waves_per_simd == 1)
    gaps = GAPS + alone_on_simd + (shared - alone // 2) * percent // 100
    items.append(RegisterItem("gaps", gaps, "arch", "left free between runs of 2 to 16 registers"))
    return tuple(item for item in items if item.registers)
