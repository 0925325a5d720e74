"""Launch of a kernel: registers at the start, batches of workgroups, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .bound import cu_bound
from .counts import Counter
from .decode import code_of
from .errors import AssemblyError
from .kernarg import pack_kernarg
from .launch import place_arguments, start_group
from .machine import Machine
from .memory import Memory
from .parse import Kernel, Program
from .report import Report, Reporter, Result
from .state import LANES, SCALARS

__all__ = ["run"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: Waves that run in lockstep at most, and bytes of registers and LDS that they may take.
BATCH_WAVES = 256
BATCH_BYTES = 1 << 30


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
    code = code_of(chosen)
    memory = Memory()
    packed = pack_kernarg(chosen, args, memory, grid3, block3, dynamic_lds)
    lds_bytes = chosen.lds_bytes + dynamic_lds
    setup = place_arguments(memory, packed, grid3, block3, lds_bytes)
    numbers = _sample(grid3, blocks)
    waves = -(-block3[0] * block3[1] * block3[2] // LANES)
    counter = Counter(code, counts)
    reporter = Reporter()
    if not isinstance(sanitizers, bool):
        reporter.ignored = frozenset(sanitizers)
    size = _batch(code.rows, waves, lds_bytes)
    with np.errstate(all="ignore"):
        for first in range(0, len(numbers), size):
            part = numbers[first : first + size]
            reporter.numbers = part
            start = start_group(code, part, grid3, block3, setup)
            Machine(code, memory, reporter, counter, sanitize, start, lds_bytes).run()
            if progress is not None:
                progress(min(first + size, len(numbers)), len(numbers))
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


def _unwritten(memory: Memory, reporter: Reporter) -> None:
    for buffer in memory.buffers:
        missing = np.zeros(0) if buffer.partial else buffer.missing()
        if not len(missing):
            continue
        text = f"{len(missing)} of {buffer.size} bytes of {buffer.name} were never stored, the first at {missing[0]}"
        place = buffer.base + int(missing[0])
        reporter.plain(Report("unwritten-output", text, address=place, count=len(missing)))
