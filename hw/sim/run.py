"""Launch of a kernel: registers at the start, batches of workgroups, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .bound import cu_bound
from .counts import Counter
from .decode import Code
from .errors import AssemblyError
from .kernarg import pack_kernarg
from .machine import Machine
from .memory import Memory
from .parse import Kernel, Program
from .report import Report, Reporter, Result
from .state import EXEC, LANES, SCALARS, Group

__all__ = ["run"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: Waves that run in lockstep at most, and bytes of registers and LDS that they may take.
BATCH_WAVES = 256
BATCH_BYTES = 1 << 30
#: System VGPRs are packed into v0 from gfx90a on: 10 bits each for x, y and z.
_PACKED_IDS = ("gfx90a", "gfx942", "gfx950")


def run(
    program: Program,
    args: Sequence[Any],
    grid: Sequence[int] | int,
    block: Sequence[int] | int | None = None,
    *,
    kernel: str | None = None,
    dynamic_lds: int = 0,
    blocks: int | Sequence[int] | None = None,
    sanitizers: bool | Sequence[str] = True,
    counts: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Execute a kernel on the CPU.

    `grid` counts workgroups and `block` work-items along x, y and z; `block` may be left out where the metadata
    says it. `args` are numpy arrays (buffers, changed in place), `Out` arrays, ints, floats, numpy scalars or bytes.
    `blocks` samples: a number of workgroups spread over the grid, or their flat numbers. `sanitizers` is a flag, or the
    kinds of report to leave out. `counts` off leaves out what needs addresses.
    `progress` is called with the workgroups done and to do.
    """
    chosen = program.kernel(kernel)
    grid3, block3 = _three(grid), _three(block if block is not None else _block_of(chosen))
    sanitize = sanitizers is not False
    begin = time.perf_counter()
    code = Code(chosen)
    memory = Memory()
    packed = pack_kernarg(chosen, args, memory, grid3, block3)
    # The segment is allocated in whole cache lines: the compiler may widen a load past the last argument.
    segment = bytes(packed).ljust(max(64, -(-len(packed) // 64) * 64), b"\0")
    kernarg = memory.add("kernel arguments", np.frombuffer(segment, np.uint8).copy())
    numbers = _sample(grid3, blocks)
    waves = -(-block3[0] * block3[1] * block3[2] // LANES)
    lds_bytes = chosen.lds_bytes + dynamic_lds
    counter = Counter(code, counts)
    reporter = Reporter()
    if not isinstance(sanitizers, bool):
        reporter.ignored = frozenset(sanitizers)
    size = _batch(code.rows, waves, lds_bytes)
    with np.errstate(all="ignore"):
        for first in range(0, len(numbers), size):
            part = numbers[first : first + size]
            reporter.numbers = part
            start = _start(code, part, grid3, block3, waves, kernarg.base, packed)
            Machine(code, memory, reporter, counter, sanitize, start, lds_bytes).run()
            if progress is not None:
                progress(min(first + size, len(numbers)), len(numbers))
    memory.copy_back()
    sampled = len(numbers) < grid3[0] * grid3[1] * grid3[2]
    if sanitize and not sampled:
        _unwritten(memory, reporter)
    return Result(
        kernel=chosen.name,
        target=chosen.target,
        ok=not reporter.reports,
        reports=reporter.reports,
        counts=counter.summary(),
        seconds=time.perf_counter() - begin,
        workgroups=len(numbers),
        sampled=sampled,
        bound=cu_bound(code, counter, len(numbers), waves, lds_bytes),
    )


def _three(value: Sequence[int] | int) -> tuple[int, int, int]:
    values = [value] if isinstance(value, int) else list(value)
    values += [1] * (3 - len(values))
    if len(values) != 3 or any(v < 1 for v in values):
        raise AssemblyError(f"{value}: a grid or block has one to three positive sizes")
    return values[0], values[1], values[2]


def _block_of(kernel: Kernel) -> Sequence[int]:
    if kernel.workgroup is None:
        raise AssemblyError(f"{kernel.name} does not say its workgroup size: give block")
    return kernel.workgroup


def _sample(grid: tuple[int, int, int], blocks: int | Sequence[int] | None) -> Array:
    total = grid[0] * grid[1] * grid[2]
    if blocks is None:
        return np.arange(total)
    if isinstance(blocks, int):
        return np.unique(np.linspace(0, total - 1, min(blocks, total)).astype(np.int64))
    return np.asarray(blocks, np.int64)


def _batch(rows: int, waves: int, lds_bytes: int) -> int:
    """Workgroups that run together."""
    each = waves * (rows * (LANES * 4 + 16) + SCALARS * 12) + 5 * lds_bytes
    return max(1, min(BATCH_WAVES // waves, BATCH_BYTES // each))


def _start(
    code: Code,
    numbers: Array,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    waves: int,
    kernarg: int,
    packed: bytes | bytearray,
) -> Group:
    """All waves of these workgroups with the registers that the hardware fills in."""
    kernel, fields = code.kernel, code.kernel.descriptor
    workgroup = np.repeat(np.arange(len(numbers)), waves)
    wave_in_group = np.tile(np.arange(waves), len(numbers))
    g = Group.fresh(code.rows, workgroup, wave_in_group)
    known: set[int] = set()

    def put(row: int, value: Any) -> None:
        g.S[row] = value
        g.scalar_known[row] = True
        known.add(row)

    row = _user_registers(fields, put, kernarg, packed)
    row = fields.get("user_sgpr_count", row)
    flat = np.asarray(numbers)[workgroup]
    ids = (flat % grid[0], flat // grid[0] % grid[1], flat // (grid[0] * grid[1]))
    for axis, number in zip("xyz", ids, strict=True):
        if fields.get(f"system_sgpr_workgroup_id_{axis}", 1 if axis == "x" else 0):
            put(row, number)
            row += 1
    if fields.get("system_sgpr_workgroup_info", 0):
        row += 1
    item = wave_in_group[:, None] * LANES + np.arange(LANES)
    x, y, z = item % block[0], item // block[0] % block[1], item // (block[0] * block[1])
    exists = item < block[0] * block[1] * block[2]
    axes = fields.get("system_vgpr_workitem_id", 0) + 1
    if kernel.target in _PACKED_IDS:
        g.V[0] = x | (y << 10) * (axes > 1) | (z << 20) * (axes > 2)
        g.vector_known[0] = ~np.uint64(0)
    else:
        for k, values in enumerate((x, y, z)[:axes]):
            g.V[k] = values
            g.vector_known[k] = ~np.uint64(0)
    from .state import pack_mask

    lanes = pack_mask(np.ascontiguousarray(exists))
    g.vector_known |= ~lanes
    g.set_scalar64(EXEC, lanes)
    g.scalar_known[EXEC : EXEC + 2] = True
    g.define(
        frozenset(range(code.rows))
        & frozenset(r for r in range(code.rows) if (g.vector_known[r] == ~np.uint64(0)).all())
    )
    g.unknown -= {(1 << 16) + r for r in (*known, EXEC, EXEC + 1)}
    g.refresh_hot()
    return g


def _user_registers(
    fields: dict[str, int], put: Callable[[int, Any], None], kernarg: int, packed: bytes | bytearray
) -> int:
    """User SGPRs in the order of the ABI; returns the next free one. What has no model stays unwritten."""
    row = 0
    for name, count in (
        ("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2), ("kernarg_segment_ptr", 2),
        ("dispatch_id", 2), ("flat_scratch_init", 2), ("private_segment_size", 1),
    ):  # fmt: skip
        if not fields.get(f"user_sgpr_{name}", 0):
            continue
        if name == "kernarg_segment_ptr":
            put(row, np.uint32(kernarg & 0xFFFFFFFF))
            put(row + 1, np.uint32(kernarg >> 32))
        row += count
    length, offset = (fields.get(f"user_sgpr_kernarg_preload_{k}", 0) for k in ("length", "offset"))
    words = np.frombuffer(bytes(packed) + bytes(-len(packed) % 4), np.uint32)
    for k in range(length):
        put(row + k, words[offset + k] if offset + k < len(words) else np.uint32(0))
    return row + length


def _unwritten(memory: Memory, reporter: Reporter) -> None:
    for buffer in memory.buffers:
        if buffer.known is None or buffer.partial or buffer.known.all():
            continue
        missing = np.flatnonzero(~buffer.known)
        text = f"{len(missing)} of {buffer.size} bytes of {buffer.name} were never stored, the first at {missing[0]}"
        place = buffer.base + int(missing[0])
        reporter.plain(Report("unwritten-output", text, address=place, count=len(missing)))
