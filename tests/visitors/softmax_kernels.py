"""Emitted softmax kernels for tests: derived, compiled in child processes, simulated against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from closedform.hw import catalogue
from closedform.operators.accuracy import Accuracy, compare
from closedform.operators.reference import reference
from closedform.operators.softmax import Softmax
from closedform.visitors.compile import Compiled, compile_source
from closedform.visitors.derivation import Derivation
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

from .gemm_kernels import loaded, stored
from .gemm_memory import surrounded, untouched

#: Compiled kernels by target, operator without its extents, and tiles.
BINARIES: dict[Any, Compiled] = {}
TARGETS = ("mi100", "mi210", "mi300x", "mi355x")


def kernel(hw: str, op: Softmax, fixed: tuple[tuple[str, Any], ...] = ()) -> tuple[Derivation, Compiled]:
    """The derivation and its binary; kernels that differ in rows, columns or strides only share one."""
    derivation = derive(op, catalogue.get(hw), "default", **dict(fixed))
    tiles, _, _ = derivation.require()
    key = (hw, replace(op, rows=1, cols=1, ld=0), tiles)
    if key not in BINARIES:
        BINARIES[key] = compile_source(emit_source(derivation), derivation.hw.gfx)
    return derivation, BINARIES[key]


class Ran:
    """What the kernels of one launch did: results of the simulator, output, lse and accuracy."""

    def __init__(self, results: list[Any], out: Any, lse: Any, accuracy: Accuracy, expected: Any) -> None:
        self.results, self.out, self.lse, self.accuracy, self.expected = results, out, lse, accuracy, expected

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results) and self.accuracy.ok

    def __str__(self) -> str:
        return "\n".join([*(str(result) for result in self.results if not result.ok), str(self.accuracy)])


def simulate(
    hw: str,
    op: Softmax,
    x: Any,
    mask: Any = None,
    fixed: tuple[tuple[str, Any], ...] = (),
    *,
    leading: int = 0,
    in_place: bool = False,
) -> Ran:
    """The kernel that `op` decides, run on the rows `x`, which lie among NaN; every byte of the output is poisoned.

    `leading` elements are between rows; with 0 whole accesses, more than a row is long.
    """
    words = stored(x, op.dtype)[None]
    source, _ = surrounded(words, op.dtype, leading)
    target, allocation = surrounded(words if in_place else np.zeros_like(words), op.dtype, leading)
    inputs = {"X": loaded(words[0], op.dtype)} | ({"mask": mask} if op.mask else {})
    results, lse = launched(hw, op, fixed, target[0] if in_place else source[0], target[0], mask, in_place=in_place)
    assert untouched(target, allocation, op.dtype), "the kernel wrote beside its rows"
    return judged(op, results, loaded(target[0], op.dtype), lse, inputs)


def simulate_sample(hw: str, op: Softmax, fixed: tuple[tuple[str, Any], ...] = ()) -> Ran:
    """The kernel of `op` on its own shape, of which only the first, a middle and the last block of rows are run."""
    from closedform.hw.sim.memory import shadow

    derivation, _ = kernel(hw, op, fixed)
    tiles, _, _ = derivation.require()
    blocks = -(-op.rows // tiles.block_rows)
    chosen = sorted({0, blocks // 2, blocks - 1})
    rows = [r for b in chosen for r in range(b * tiles.block_rows, min((b + 1) * tiles.block_rows, op.rows))]
    random = np.random.default_rng(op.rows + op.cols)
    values = stored(3 * random.standard_normal((len(rows), op.cols)), op.dtype)
    x, out = (shadow(op.rows * op.cols, values.dtype).reshape(op.rows, op.cols) for _ in range(2))
    x[rows] = values
    out[rows] = stored(np.full(1, np.nan), op.dtype)
    numbers = [b * tiles.splits + part for b in chosen for part in range(tiles.splits)]
    results, lse = launched(hw, op, fixed, x, out, None, blocks=numbers)
    part = replace(op, rows=len(rows), ld=0)
    return judged(part, results, loaded(out[rows], op.dtype), lse[rows], {"X": loaded(values, op.dtype)})


def launched(
    hw: str,
    op: Softmax,
    fixed: tuple[tuple[str, Any], ...],
    x: Any,
    out: Any,
    mask: Any,
    *,
    in_place: bool = False,
    blocks: list[int] | None = None,
) -> tuple[list[Any], Any]:
    """Runs every kernel of the file: the simulator's results, and the lse."""
    from closedform.hw.sim import Out, flydsl_args, parse_file, run

    derivation, binary = kernel(hw, op, fixed)
    tiles, _, _ = derivation.require()
    rows, cols = x.shape
    arguments = [x, out if in_place else Out(out)]
    if op.mask:
        arguments.append(np.zeros((rows, -(-cols // 16) * 16), np.uint8))
        arguments[-1][:, :cols] = mask
    lse = np.full(rows, np.nan, np.float32)
    work = np.full((rows, 2 * tiles.splits), np.nan, np.float32)
    arguments += ([Out(lse)] if op.lse else []) + ([work] if tiles.splits > 1 else [])
    program = parse_file(binary.isa)
    count = -(-rows // tiles.block_rows) * tiles.splits
    grid = (min(count, 65536), -(-count // 65536), 1)
    results = []
    for name in program.kernels:
        given = list(arguments)
        if name.startswith("state"):
            given = [*(a.array if isinstance(a, Out) else a for a in given[:-1]), Out(work)]
        values = flydsl_args(program.kernel(name), [*given, rows, cols])
        results.append(run(program, values, grid=grid, kernel=name, blocks=blocks))
    return results, lse


def judged(op: Softmax, results: list[Any], out: Any, lse: Any, inputs: dict[str, Any]) -> Ran:
    with np.errstate(all="ignore"):
        expected = reference(replace(op, rows=len(out)), **inputs)
    return Ran(results, out, lse, compare(op, out, expected), expected)
