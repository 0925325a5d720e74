"""What every knob setting of an emitted GEMM must satisfy, as data: a name, a mechanism, a need and a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import Infeasible
from closedform.hw.occupancy import occupancy_of, register_budget

from .formula import ceil_div
from .gemm_registers import main_loop_least
from .gemm_shape import GemmShape

__all__ = ["EXPORT_MARGIN_BYTES", "RULES", "Rule", "broken_rule", "lds_fits", "registers_fit", "waves_per_simd_range"]

OFFSET_LIMIT = 2**31 - 16
#: LDS that compilers with scratch of their own keep back; our kernels allocate exactly what they name.
EXPORT_MARGIN_BYTES = 256


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


@dataclass(frozen=True, slots=True)
class Rule:
    """`measure` gives (needed, limit); the rule holds while needed <= limit."""

    name: str
    mechanism: str
    unit: str
    way_out: str
    measure: Callable[[GemmShape], tuple[int, int]]

    def broken(self, shape: GemmShape) -> Infeasible | None:
        needed, limit = self.measure(shape)
        if needed <= limit:
            return None
        return Infeasible(self.name, needed, limit, self.unit, f"the {self.mechanism} of this gemm", self.way_out)


def _power_of_two(*values: int) -> tuple[int, int]:
    """0 needed where every value is a power of two, else the first one that is not."""
    return next((value for value in values if value & (value - 1)), 0), 0


def _lds(shape: GemmShape) -> tuple[int, int]:
    return shape.lds_bytes, shape.hw.lds_max_per_workgroup_bytes


def _registers(shape: GemmShape) -> tuple[int, int]:
    budget = register_budget(shape.hw, shape.tiles.waves_per_simd)
    least = main_loop_least(shape)
    if budget.unified:
        return least, budget.total
    return max(shape.accumulators, least - shape.accumulators), budget.arch


def _offsets(shape: GemmShape) -> tuple[int, int]:
    tiles, (lda, ldb, ldd) = shape.tiles, shape.op.leading
    a, b = shape.operands
    lines = ((a, tiles.tile_m, lda), (b, tiles.tile_n, ldb))
    reach = [(rows if o.kind == "AlongK" else tiles.tile_k) * ld * shape.elem_bytes for o, rows, ld in lines]
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
        left += ld % read + (op.K % tail if o.kind == "AlongK" else rows % read)
    return left, 0


def _widths(shape: GemmShape) -> tuple[int, int]:
    tiles = shape.tiles
    vec = 16 // shape.elem_bytes
    rows = max(1, 8 // shape.elem_bytes)
    limits = [
        (read, vec if o.kind == "AlongK" else rows)
        for o, read in zip(shape.operands, (tiles.read_a, tiles.read_b), strict=True)
    ]
    limits += [(tiles.tail_a, vec), (tiles.tail_b, vec), (tiles.store, 16 // shape.out_bytes)]
    return max(limits, key=lambda pair: pair[0] / pair[1])


def _row(shape: GemmShape) -> tuple[int, int]:
    layout = shape.layout
    return (layout.chunks % (layout.groups * layout.reads) if layout.steps else layout.groups * layout.reads), 0


def _direct_kinds(shape: GemmShape) -> tuple[int, int]:
    """Operands that a direct load cannot bring: rows contiguous, narrow accesses, parts of a wave."""
    tiles = shape.tiles
    if not tiles.direct:
        return 0, 0
    vec = 16 // shape.elem_bytes
    whole = [
        o.kind == "AlongK" and o.divides and read == vec
        for o, read in zip(shape.operands, (tiles.read_a, tiles.read_b), strict=True)
    ]
    return whole.count(False), 0


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
    Rule("access width", "global reads", "elements", "16 bytes along k, 8 along rows, 16 to D", _widths),
    Rule("access divides", "global reads", "elements", "narrower accesses divide the leading dimensions", _reads),
    Rule(
        "store divides",
        "stores",
        "elements",
        "a narrower store divides N, ldd and the columns of a lane",
        lambda s: (s.op.N % s.tiles.store + s.op.leading[2] % s.tiles.store + s.layout.run % s.tiles.store, 0),
    ),
    Rule("offsets", "global reads", "B", "use smaller tiles: a tile must lie within 31-bit offsets", _offsets),
    Rule(
        "XCDs",
        "mapping",
        "XCDs",
        "xcds must divide the visible CUs",
        lambda s: (s.hw.num_cus % s.tiles.xcds, 0),
    ),
    Rule("batch", "mapping", "workgroups", "the grid's z holds 65535", lambda s: (s.op.batch, 65535)),
)


def registers_fit(shape: GemmShape) -> bool:
    """Whether the main loop fits the registers of the aimed-at occupancy."""
    needed, limit = _registers(shape)
    return needed <= limit


def broken_rule(shape: GemmShape) -> Infeasible | None:
    """The first rule that the setting breaks, or None."""
    return next((broken for rule in RULES if (broken := rule.broken(shape)) is not None), None)
