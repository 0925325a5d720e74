"""The compiled instructions of an operator, or of any assembly file, executed on this CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from .emission import require_promises
from .hw.sim import Out, parse_file, run
from .kernel_arguments import argument, bound_arguments, write_array
from .simulation_case import Executed, How, Progress, sampled
from .traffic import flops

if TYPE_CHECKING:
    from .hw.sim import Report, Result
    from .operators.accuracy import Accuracy
    from .operators.operator import Operator
    from .visitors.compile import Compiled
    from .visitors.derivation import Derivation

__all__ = ["How", "Simulation", "compiled_kernel", "estimated_seconds", "simulate_derivation", "simulate_file"]

#: GFLOP of attention that one core simulates in a second, sanitizers on: 0.3 to 0.9 were measured over types and
#: targets, and a tenth of that where every multiply-add is an instruction of its own. Only for the warning.
ATTENTION_GFLOPS = {"chained": 0.5, "lds": 0.5, "fma": 0.05}
#: The same of GEMM and convolution.
GEMM_GFLOPS = 0.5
#: The same of what vector instructions compute: softmax, by its operations, and depthwise convolution.
VECTOR_GFLOPS = 0.05


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation found. `accuracy` is None for a file, whose right result nobody knows here.

    With a sample of the workgroups the result is partial: only what they finished was compared, and `accuracy` is None
    where that is nothing. `tiles` is None for a file. `saved` lists the outputs that were written. `result` is that of
    the first kernel launched, `later` those of the kernels behind it.
    """

    name: str
    hw: str | None
    dtype: str | None
    tiles: Any | None
    result: Result
    accuracy: Accuracy | None
    grid: tuple[int, int, int]
    saved: tuple[Path, ...] = ()
    later: tuple[Result, ...] = ()

    @property
    def results(self) -> tuple[Result, ...]:
        """Of every kernel that was launched, in order."""
        return (self.result, *self.later)

    @property
    def reports(self) -> list[Report]:
        """Findings of all kernels."""
        return [report for result in self.results for report in result.reports]

    @property
    def ok(self) -> bool:
        """No report and, where compared, within the bound of float64."""
        return not self.reports and (self.accuracy is None or self.accuracy.ok)

    def to_json(self) -> dict[str, Any]:
        from .visitors.derivation import tiles_json

        every = [result.to_json() for result in self.results]
        found = every[0]
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
            "reports": [report for result in every for report in result["reports"]],
            "counts": found["counts"],
            "cu_bound": found["bound"],
            "workgroups": found["workgroups"],
            "sampled": found["sampled"],
            "later_kernels": [
                {
                    "kernel": result["kernel"],
                    "counts": result["counts"],
                    "cu_bound": result["bound"],
                    "workgroups": result["workgroups"],
                }
                for result in every[1:]
            ],
            "seconds": sum(result["seconds"] for result in every),
            "saved": [str(path) for path in self.saved],
        }


def _finite(value: float) -> float | None:
    """JSON knows no infinity: an error that is not finite is null."""
    return value if np.isfinite(value) else None


def estimated_seconds(op: Operator) -> float:
    """Seconds that simulating every workgroup takes, by the operator's operations; the order of magnitude."""
    conv2d = VECTOR_GFLOPS if getattr(op, "depthwise", False) else GEMM_GFLOPS
    rates = {"gemm": GEMM_GFLOPS, "conv2d": conv2d, "softmax": VECTOR_GFLOPS}
    rate = rates[op.name] if op.name in rates else ATTENTION_GFLOPS[getattr(op, "variant", "chained")]
    return flops(op) / (rate * 1e9)


def compiled_kernel(derivation: Derivation) -> Compiled:
    """The emitted kernel, compiled; PromiseBroken where the binary needs more than was derived."""
    from .visitors.compile import compile_source
    from .visitors.emit import emit_source

    compiled = compile_source(emit_source(derivation), derivation.hw.gfx)
    require_promises(derivation, compiled)
    return compiled


def simulate_derivation(
    derivation: Derivation,
    how: How | None = None,
    *,
    compiled: Compiled | None = None,
    scalars: Mapping[str, float] = MappingProxyType({}),
) -> Simulation:
    """Emit, compile and execute the operator on random inputs and compare with float64.

    `scalars` are alpha, beta and scale of gemm. Of a sample only what its workgroups finish is compared.
    Raises InfeasibleError, MissingDependency, CompileError, PromiseBroken and SimulationError.
    """
    op = derivation.op
    compiled = compiled_kernel(derivation) if compiled is None else compiled
    done = _simulator(op)(derivation, compiled, How() if how is None else how, **scalars)
    first, *later = done.results
    hw = derivation.hw.name
    return Simulation(op.name, hw, op.dtype, derivation.tiles, first, done.accuracy, done.grid, later=tuple(later))


def _simulator(op: Any) -> Callable[..., Executed]:
    """What executes the operator's launches."""
    from .simulate_attention import simulate_attention
    from .simulate_conv2d import simulate_conv2d
    from .simulate_gemm import simulate_gemm
    from .simulate_softmax import simulate_softmax

    by_name: dict[str, Callable[..., Executed]]
    by_name = {
        "attention": simulate_attention,
        "gemm": simulate_gemm,
        "conv2d": simulate_conv2d,
        "softmax": simulate_softmax,
    }
    return by_name[op.name]


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
        blocks=sampled(int(np.prod(shape)), blocks),
        sanitizers=sanitizers,
        progress=progress,
    )
    saved = []
    for number, (value, old) in enumerate(zip(values, before, strict=True)):
        if save is not None and (isinstance(value, Out) or (old is not None and not np.array_equal(value, old))):
            saved.append(save / f"arg{number}.npy")
            write_array(saved[-1], value.array if isinstance(value, Out) else value)
    return Simulation(Path(path).name, None, None, None, result, None, shape, tuple(saved))
