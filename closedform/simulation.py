"""The compiled instructions of an operator, or of any assembly file, executed on this CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .emission import require_promises
from .hw.errors import BadInput
from .hw.sim import Out, flydsl_args, parse_file, run
from .kernel_arguments import argument, bound_arguments, write_array
from .traffic import attention_flops

if TYPE_CHECKING:
    from .hw.sim import Result
    from .operators.accuracy import Accuracy
    from .operators.attention import Attention
    from .visitors.compile import Compiled
    from .visitors.derivation import Derivation

__all__ = ["Progress", "Simulation", "compiled_kernel", "estimated_seconds", "simulate_derivation", "simulate_file"]

Array = Any  # a numpy array; what its elements are is said where it matters
#: Called with the workgroups done and to do.
Progress = Callable[[int, int], None]

#: GFLOP of attention that one core simulates in a second, sanitizers on: 0.3 to 0.9 were measured over types and
#: targets, and a tenth of that where every multiply-add is an instruction of its own. Only for the warning.
_GFLOPS = {"chained": 0.5, "lds": 0.5, "fma": 0.05}


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation found. `accuracy` is None for a file, whose right result nobody knows here.

    With a sample of the workgroups the result is partial: only the rows of sampled blocks were compared.
    `tiles` is None for a file. `saved` lists the outputs that were written.
    """

    name: str
    hw: str | None
    dtype: str | None
    tiles: Any | None
    result: Result
    accuracy: Accuracy | None
    grid: tuple[int, int, int]
    saved: tuple[Path, ...] = ()

    @property
    def ok(self) -> bool:
        """No report and, where compared, within the bound of float64."""
        return self.result.ok and (self.accuracy is None or self.accuracy.ok)

    def to_json(self) -> dict[str, Any]:
        from .visitors.derivation import tiles_json

        found = self.result.to_json()
        accuracy = self.accuracy
        return {
            "ok": self.ok,
            "name": self.name,
            "hw": self.hw,
            "gfx": found["target"],
            "kernel": found["kernel"],
            "dtype": self.dtype,
            "tiles": None if self.tiles is None else tiles_json(self.tiles),
            "grid": list(self.grid),
            "max_rel_error": None if accuracy is None else _finite(accuracy.max_rel_error),
            "error_bound": None if accuracy is None else _finite(accuracy.bound),
            "reports": found["reports"],
            "counts": found["counts"],
            "cu_bound": found["bound"],
            "workgroups": found["workgroups"],
            "sampled": found["sampled"],
            "seconds": found["seconds"],
            "saved": [str(path) for path in self.saved],
        }


def _finite(value: float) -> float | None:
    """JSON knows no infinity: an error that is not finite is null."""
    return value if np.isfinite(value) else None


def estimated_seconds(op: Attention) -> float:
    """Seconds that simulating every workgroup takes, by the operator's multiply-adds; the order of magnitude."""
    return attention_flops(op) / (_GFLOPS[op.variant] * 1e9)


def compiled_kernel(derivation: Derivation) -> Compiled:
    """The emitted kernel, compiled; PromiseBroken where the binary needs more than was derived."""
    from .visitors.compile import compile_source
    from .visitors.emit import emit_source

    compiled = compile_source(emit_source(derivation), derivation.hw.gfx)
    require_promises(derivation, compiled)
    return compiled


def simulate_derivation(
    derivation: Derivation,
    *,
    compiled: Compiled | None = None,
    blocks: int | None = None,
    sanitizers: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Simulation:
    """Emit, compile and execute attention on normal random inputs and compare with float64.

    blocks: so many workgroups, spread over the grid, instead of all; only their rows are compared.
    Raises InfeasibleError, MissingDependency, CompileError, PromiseBroken and SimulationError.
    """
    op = derivation.op
    tiles, _, verdict = derivation.require()
    compiled = compiled_kernel(derivation) if compiled is None else compiled
    launch = _Attention(op, tiles.block_q, verdict.grid, _sampled(verdict.grid, blocks), seed)
    program = parse_file(compiled.isa)
    arguments = flydsl_args(program.kernel(), launch.arguments)
    result = run(program, arguments, verdict.grid, blocks=launch.numbers, sanitizers=sanitizers, progress=progress)
    return Simulation(op.name, derivation.hw.name, op.dtype, tiles, result, launch.accuracy(), verdict.grid)


def _sampled(grid: Sequence[int], blocks: int | None) -> Array:
    """Flat numbers of the workgroups to run: all, or `blocks` of them spread over the grid."""
    total = int(np.prod(grid))
    if blocks is None or blocks >= total:
        return np.arange(total)
    if blocks < 1:
        raise BadInput(f"--blocks {blocks}: at least one workgroup has to run")
    return np.unique(np.linspace(0, total - 1, blocks).round().astype(np.int64))


class _Attention:
    """Inputs and output of attention in memory, of which only what the sampled workgroups touch is filled.

    A workgroup (x, y, z) has queries x * block_q and on of head y of batch z.
    """

    def __init__(self, op: Any, block_q: int, grid: Sequence[int], numbers: Array, seed: int) -> None:
        from .hw.sim.memory import shadow
        from .operators.numerics import rounded

        self.op, self.block_q, self.numbers = op, block_q, numbers
        x, y, z = numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1])
        self.rows: dict[tuple[int, int], list[int]] = {}
        for block, head, batch in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
            self.rows.setdefault((batch, head), []).append(block)
        word = np.uint16 if op.dtype == "bf16" else np.dtype({"f32": np.float32, "f16": np.float16}[op.dtype])
        shapes = [(op.batch, op.heads, length, op.d) for length in (op.L_q, op.L_kv, op.L_kv, op.L_q)]
        self.q, self.k, self.v, self.out = (shadow(int(np.prod(s)), word).reshape(s) for s in shapes)
        random = np.random.default_rng(seed)
        for batch, head in self.rows:
            for array in (self.q, self.k, self.v):
                values = rounded(random.standard_normal(array.shape[2:], np.float32), op.dtype)
                array[batch, head] = (values.view(np.uint32) >> 16) if op.dtype == "bf16" else values

    @property
    def arguments(self) -> list[Any]:
        """The kernel's arguments in FlyDSL's order."""
        op = self.op
        return [self.q, self.k, self.v, Out(self.out), op.L_q, op.L_kv, np.float32(op.scale)]

    def accuracy(self) -> Accuracy:
        """Every row of the workgroups that ran, against float64 on the values that memory holds."""
        from .operators.accuracy import Accuracy, compare
        from .operators.attention import Attention
        from .operators.reference import reference

        op = self.op
        worst: list[Accuracy] = []
        for (batch, head), blocks in self.rows.items():
            starts = (np.array(blocks)[:, None] * self.block_q + np.arange(self.block_q)).ravel()
            rows = starts[starts < op.L_q]
            q, out = self.q[batch, head][rows], self.out[batch, head][rows]
            part = Attention(len(rows), op.L_kv, op.d, dtype=op.dtype, variant=op.variant)
            inputs = zip("QKV", (q, self.k[batch, head], self.v[batch, head]), strict=True)
            with np.errstate(all="ignore"):
                expected = reference(part, **{name: self._values(a)[None, None] for name, a in inputs})
                worst.append(compare(part, self._values(out)[None, None], expected))
        top = max(worst, key=lambda a: (not a.ok, a.max_rel_error))
        return Accuracy(top.max_rel_error, top.bound, top.share, all(a.ok for a in worst))

    def _values(self, words: Array) -> Array:
        """float64 of what memory holds."""
        if self.op.dtype == "bf16":
            return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return words.astype(np.float64)


def simulate_file(
    path: str | Path,
    arguments: Sequence[str],
    grid: Sequence[int],
    *,
    block: Sequence[int] | None = None,
    kernel: str | None = None,
    flydsl: bool = False,
    dynamic_lds: int = 0,
    blocks: int | None = None,
    sanitizers: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    save: Path | None = None,
) -> Simulation:
    """Execute a kernel of an assembly file on arguments such as "i32:128" or "out:f32:4x4".

    `save` is a folder for the arrays that the kernel changed, argN.npy by the argument's number from 0.
    Raises BadInput, AssemblyError and SimulationError.
    """
    program = parse_file(Path(path))
    chosen = program.kernel(kernel)
    random = np.random.default_rng(seed)
    values = [argument(text, random) for text in arguments]
    made = bound_arguments(chosen, values, flydsl)
    shape = (grid[0], grid[1], grid[2])
    before = [None if save is None or not isinstance(v, np.ndarray) else v.copy() for v in values]
    result = run(
        program,
        made,
        shape,
        block,
        kernel=chosen.name,
        dynamic_lds=dynamic_lds,
        blocks=_sampled(shape, blocks),
        sanitizers=sanitizers,
        progress=progress,
    )
    saved = []
    for number, (value, old) in enumerate(zip(values, before, strict=True)):
        if save is not None and (isinstance(value, Out) or (old is not None and not np.array_equal(value, old))):
            saved.append(save / f"arg{number}.npy")
            write_array(saved[-1], value.array if isinstance(value, Out) else value)
    return Simulation(Path(path).name, None, None, None, result, None, shape, tuple(saved))
