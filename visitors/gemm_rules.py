"""What every knob setting of an emitted GEMM must satisfy, as data."""

from __future__ import annotations

from math import ceil

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.occupancy import occupancy_of, register_budget

from .formula import ceil_div
from .gemm_shape import GemmShape
from .rule import COUNT_LIMIT, OFFSET_LIMIT, Rule

__all__ = ["EXPORT_MARGIN_BYTES", "RULES", "lds_fits", "registers_fit", "waves_per_simd_range"]

#: LDS that compilers with scratch of their own keep back; our kernels allocate exactly what they name.
EXPORT_MARGIN_BYTES = 256
#: Types of D that sums of a type are converted to; an 8-bit float must also be the target's flavour.
NARROW = ("fp8_e4m3fnuz", "bf8_e5m2fnuz", "fp8_e4m3fn", "bf8_e5m2")
OUTPUTS = {
    "f64": ("f64", "f32", "f16", "bf16"),
    "f32": ("f32", "f16", "bf16", *NARROW),
    "i32": ("i32", "f32", "f16", "bf16", *NARROW),
}
#: Activations that are computed in f32, which sums of f64 and whole numbers are not brought to.
IN_F32 = ("gelu", "gelu_tanh", "silu")


def lds_fits(hw: HardwareDescriptor, lds_bytes: int, margin_bytes: int = 0) -> bool:
    """Whether a workgroup may have that much LDS where its compiler keeps `margin_bytes` for itself.

    >>> from closedform.hw.catalogue import get
    >>> lds_fits(get("mi300x"), 65536), lds_fits(get("mi300x"), 65536, EXPORT_MARGIN_BYTES)
    (True, False)
    """
    return lds_bytes + margin_bytes <= hw.lds_max_per_workgroup_bytes


def waves_per_simd_range(hw: HardwareDescriptor, waves: int, lds_bytes: int) -> tuple[int, int]:
    """Waves per SIMD of workgroups of `waves` waves: those of one workgroup, and those that the LDS leaves room for.

    The compiler ignores the wish for fewer or more.

    >>> from closedform.hw.catalogue import get
    >>> waves_per_simd_range(get("mi300x"), 4, 32768), waves_per_simd_range(get("mi300x"), 8, 65536)
    ((1, 2), (2, 2))
    """
    least = ceil_div(waves, hw.simds_per_cu)
    return least, max(least, ceil(occupancy_of(hw, waves, 1, 0, lds_bytes).waves_per_simd))


def _power_of_two(*values: int) -> tuple[int, int]:
    """0 needed where every value is a power of two, else the first one that is not."""
    return next((value for value in values if value & (value - 1)), 0), 0


def _lds(shape: GemmShape) -> tuple[int, int]:
    return shape.lds_bytes, shape.hw.lds_max_per_workgroup_bytes


def _registers(shape: GemmShape) -> tuple[int, int]:
    budget = register_budget(shape.hw, shape.tiles.waves_per_simd)
    least = shape.registers_least
    if budget.unified:
        return least, budget.total
    return max(shape.accumulators, least - shape.accumulators), budget.arch


def _offsets(shape: GemmShape) -> tuple[int, int]:
    tiles, (lda, ldb, ldd) = shape.tiles, shape.op.leading
    a, b = shape.operands
    lines = ((a, tiles.tile_m, lda), (b, tiles.tile_n, ldb))
    padded = -(-shape.op.K // tiles.tile_k) * tiles.tile_k
    reach = []
    for o, rows, ld in lines:
        row, count = (padded if o.kind == "Packed" else ld), (tiles.tile_k if o.kind == "AlongRows" else rows)
        reach.append(count * row * shape.elem_bytes)
    return max(*reach, tiles.tile_m * ldd * shape.out_bytes), OFFSET_LIMIT


def _reads(shape: GemmShape) -> tuple[int, int]:
    """Elements left over where an access does not divide what it must divide."""
    op, tiles = shape.op, shape.tiles
    left = 0
    for o, read, tail, ld, rows in zip(
        shape.operands,
        (tiles.read_a, tiles.read_b),
        (tiles.tail_a, tiles.tail_b),
        op.leading,
        (op.M, op.N),
        strict=False,
    ):
        if o.kind != "Packed":
            left += ld % read + (op.K % tail if o.kind == "AlongK" else rows % read)
    return left, 0


def _widths(shape: GemmShape) -> tuple[int, int]:
    tiles = shape.tiles
    vec = 16 // shape.elem_bytes
    rows = max(1, 8 // shape.elem_bytes)
    limits = [
        (read, rows if o.kind == "AlongRows" else vec)
        for o, read in zip(shape.operands, (tiles.read_a, tiles.read_b), strict=True)
    ]
    limits += [(tiles.tail_a, vec), (tiles.tail_b, vec), (tiles.store, 16 // shape.out_bytes)]
    return max(limits, key=lambda pair: pair[0] / pair[1])


def _row(shape: GemmShape) -> tuple[int, int]:
    layout = shape.layout
    return (layout.chunks % (layout.groups * layout.reads) if layout.steps else layout.groups * layout.reads), 0


def _packed_reads(shape: GemmShape) -> tuple[int, int]:
    """Elements that the reads of packed operands, also of the last tile of k, fall short of 16 bytes."""
    tiles, vec = shape.tiles, 16 // shape.elem_bytes
    widths = {"A": (tiles.read_a, tiles.tail_a), "B": (tiles.read_b, tiles.tail_b)}
    return sum(abs(vec - width) for name in shape.op.packed for width in widths[name]), 0


def _pad(shape: GemmShape) -> tuple[int, int]:
    """Elements of a pad that are not whole chunks."""
    return shape.tiles.pad % (16 // shape.elem_bytes), 0


def _lds_widths(shape: GemmShape) -> tuple[int, int]:
    """Elements of the first access to LDS that is neither a chunk nor half of one."""
    widths = (16 // shape.elem_bytes, 8 // shape.elem_bytes)
    return next((w for w in (shape.tiles.lds_read, shape.tiles.lds_write) if w not in widths), 0), 0


def _direct_kinds(shape: GemmShape) -> tuple[int, int]:
    """Operands that a direct load cannot bring: rows contiguous, narrow accesses, parts of a wave."""
    tiles = shape.tiles
    if not tiles.direct:
        return 0, 0
    vec = 16 // shape.elem_bytes
    whole = [
        o.kind == "Packed" or (o.kind == "AlongK" and o.divides and read == vec)
        for o, read in zip(shape.operands, (tiles.read_a, tiles.read_b), strict=True)
    ]
    return whole.count(False), 0


def _workgroups(shape: GemmShape) -> tuple[int, int]:
    """Numbers that the kernel counts with: tiles, their parts, and the tiles of k that persistent workgroups share."""
    op, tiles = shape.op, shape.tiles
    blocks = -(-op.M // tiles.tile_m) * -(-op.N // tiles.tile_n)
    if not tiles.splits:
        return blocks, COUNT_LIMIT
    if tiles.stream_k:
        return max(blocks * op.batch, 2 * tiles.stream_k * -(-op.K // tiles.tile_k)), COUNT_LIMIT
    return blocks * max(tiles.split_k, shape.atoms_m * shape.atoms_n), COUNT_LIMIT


RULES: tuple[Rule, ...] = (
    Rule("LDS", "LDS", "B", "use smaller tiles or fewer buffers", _lds),
    Rule("registers", "tile", "registers", "use smaller wave tiles or fewer waves per SIMD", _registers),
    Rule(
        "waves per SIMD",
        "LDS",
        "waves",
        "use smaller tiles, fewer buffers or fewer waves per SIMD",
        lambda s: (s.tiles.waves_per_simd, waves_per_simd_range(s.hw, s.tiles.waves, s.lds_bytes)[1]),
    ),
    Rule(
        "waves of a workgroup",
        "tile",
        "waves per SIMD",
        "use a smaller wave grid or more waves per SIMD",
        lambda s: (waves_per_simd_range(s.hw, s.tiles.waves, s.lds_bytes)[0], s.tiles.waves_per_simd),
    ),
    Rule(
        "work-items",
        "tile",
        "work-items",
        "use a smaller wave grid",
        lambda s: (s.threads, s.hw.workgroup_max),
    ),
    Rule(
        "wave grid",
        "tile",
        "waves",
        "give powers of two for wave_m and wave_n",
        lambda s: _power_of_two(s.tiles.wave_m, s.tiles.wave_n),
    ),
    Rule(
        "row of LDS",
        "LDS",
        "chunks",
        "tile_k must be a power of two and whole steps of the atom",
        lambda s: max(_row(s), _power_of_two(s.tiles.tile_k)),
    ),
    Rule("buffers", "LDS", "buffers", "use 1 or 2 buffers", lambda s: (s.tiles.buffers, 2)),
    Rule(
        "direct buffers",
        "LDS",
        "buffers",
        "direct loads need 2 buffers",
        lambda s: (2 if s.tiles.direct else 0, s.tiles.buffers),
    ),
    Rule(
        "direct width",
        "LDS",
        "bytes",
        "this target loads fewer bytes directly to LDS: use direct=False",
        lambda s: (16 if s.tiles.direct else 0, max(s.hw.direct_to_lds_bytes, default=0)),
    ),
    Rule("direct operands", "LDS", "operands", "direct loads need k contiguous in both operands", _direct_kinds),
    Rule(
        "direct pad",
        "LDS",
        "elements",
        "a wave's direct loads fill LDS without gaps: use pad=0 or direct=False",
        lambda s: (s.tiles.pad if s.tiles.direct else 0, 0),
    ),
    Rule("pad", "LDS", "elements", "a pad is whole 16-byte chunks, 0 swizzles", _pad),
    Rule("LDS access width", "LDS", "elements", "16 or 8 bytes for lds_read and lds_write", _lds_widths),
    Rule(
        "access size",
        "global reads",
        "elements",
        "accesses are a power of two of elements",
        lambda s: _power_of_two(s.tiles.read_a, s.tiles.read_b, s.tiles.tail_a, s.tiles.tail_b, s.tiles.store),
    ),
    Rule("access width", "global reads", "elements", "16 bytes along k, 8 along rows, 16 to D", _widths),
    Rule("packed reads", "global reads", "elements", "packed operands are read 16 bytes at a time", _packed_reads),
    Rule(
        "packed direct",
        "LDS",
        "operands",
        "where both operands are packed nothing passes through LDS: use direct=False",
        lambda s: (len(s.op.packed), 1) if s.tiles.direct else (0, 1),
    ),
    Rule(
        "packed stagger",
        "mapping",
        "starts along k",
        "a pre-shuffled operand is read from its first tile of k on: use stagger=0",
        lambda s: (s.tiles.stagger if s.op.packed else 0, 1),
    ),
    Rule("access divides", "global reads", "elements", "narrower accesses divide the leading dimensions", _reads),
    Rule(
        "store divides",
        "stores",
        "elements",
        "a narrower store divides N, ldd and the columns of a lane",
        lambda s: (s.op.N % s.tiles.store + s.op.leading[2] % s.tiles.store + s.layout.run % s.tiles.store, 0),
    ),
    Rule(
        "output type",
        "types",
        "types",
        "sums go to a float no wider than they, f64 not to 8 bits, and sums of i8 to i32 too",
        lambda s: (int(s.op.result not in OUTPUTS[s.acc_type]), 0),
    ),
    Rule(
        "activation",
        "types",
        "types",
        "gelu, gelu_tanh and silu are computed in f32: use relu for f64 sums and i32 outputs",
        lambda s: (int(s.op.activation in IN_F32 and (s.acc_type == "f64" or s.op.result == "i32")), 0),
    ),
    Rule(
        "extents",
        "mapping",
        "elements",
        "M, N and K, filled to whole tiles, are counted in 31 bits: cut the product",
        lambda s: (max(s.op.M + s.tiles.tile_m, s.op.N + s.tiles.tile_n, s.op.K + s.tiles.tile_k), COUNT_LIMIT),
    ),
    Rule("offsets", "global reads", "B", "use smaller tiles: a tile must lie within 31-bit offsets", _offsets),
    Rule(
        "XCDs",
        "mapping",
        "XCDs",
        "xcds must divide the visible CUs",
        lambda s: (s.hw.num_cus % s.tiles.xcds, 0),
    ),
    Rule(
        "split or stream",
        "split",
        "parts",
        "Stream-K shares tiles of k by itself: give split_k or stream_k, not both",
        lambda s: (s.tiles.split_k if s.tiles.stream_k else 1, 1),
    ),
    Rule(
        "split depth",
        "split",
        "tiles of k",
        "fewer parts: each takes at least one tile of k",
        lambda s: (s.tiles.split_k, max(1, -(-s.op.K // s.tiles.tile_k))),
    ),
    Rule("workgroups", "split", "workgroups", "split less: workgroups are counted in 31 bits", _workgroups),
    Rule(
        "persistent workgroups",
        "split",
        "workgroups",
        "persistent workgroups are all on the CUs at a time: use a smaller stream_k",
        lambda s: (s.tiles.stream_k, s.hw.num_cus * s.hw.simds_per_cu * s.hw.waves_per_simd_max),
    ),
    Rule(
        "group of tiles",
        "mapping",
        "tiles",
        "a smaller group_m: the tiles of a group of rows are counted in 31 bits",
        lambda s: (s.tiles.group_m * -(-s.op.N // s.tiles.tile_n), COUNT_LIMIT),
    ),
    Rule(
        "stagger",
        "mapping",
        "starts along k",
        "a smaller stagger: starts are counted in 31 bits",
        lambda s: (s.tiles.stagger, COUNT_LIMIT),
    ),
    Rule("batch", "mapping", "workgroups", "the grid's z holds 65535", lambda s: (s.op.batch, 65535)),
)


def registers_fit(shape: GemmShape) -> bool:
    """Whether the main loop fits the registers of the aimed-at occupancy."""
    needed, limit = _registers(shape)
    return needed <= limit
