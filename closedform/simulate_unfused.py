"""Attention in three kernels on the simulator: the emitted files' own run(), every launch in its order."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from .emitted_file import execute_launch, recorded_file
from .hw.sim import Program, parse_file
from .simulation import Simulation, compiled_kernel
from .simulation_case import How, require_memory
from .traffic import unfused_bytes

if TYPE_CHECKING:
    from .hw.sim import Result
    from .operators.accuracy import Accuracy
    from .operators.attention import Attention
    from .visitors.unfused import UnfusedDerivation

__all__ = ["simulate_unfused"]


def simulate_unfused(derivation: UnfusedDerivation, how: How) -> Simulation:
    """Compile and execute all workgroups on normal random inputs and compare with float64; a sample has no meaning.

    Raises MissingDependency, CompileError, PromiseBroken and SimulationError.
    """
    require_memory(unfused_bytes(derivation.op), "a smaller length, or fewer heads")
    launches = _Launches(derivation, how)
    accuracy = launches.run()
    first, *later = launches.results
    op, hw = derivation.op, derivation.hw.name
    return Simulation(op.name, hw, op.dtype, None, first, accuracy, launches.grids[0], later=tuple(later))


class _Launches:
    """The three kernels compiled, and the launches that the driver's run() makes of them."""

    def __init__(self, derivation: UnfusedDerivation, how: How) -> None:
        self.derivation, self.how = derivation, how
        self.programs = {name: parse_file(compiled_kernel(d).isa) for name, d in derivation.parts.items()}
        self.results: list[Result] = []
        self.grids: list[tuple[int, int, int]] = []
        self.part = "scores"

    def run(self) -> Accuracy:
        import torch

        from .visitors.emit import emit_source, kernel_name
        from .visitors.unfused import driver_name, driver_source

        op, derivation = self.derivation.op, self.derivation
        generator = torch.Generator().manual_seed(self.how.seed)
        with TemporaryDirectory(prefix="closedform-") as folder:
            for part in derivation.parts.values():
                (Path(folder) / f"{kernel_name(part)}.py").write_text(emit_source(part), encoding="utf-8")
            driver = Path(folder) / f"{driver_name(derivation)}.py"
            driver.write_text(driver_source(derivation), encoding="utf-8")
            module = recorded_file(driver, self._launched)
            lengths = (op.L_q, op.L_kv, op.L_kv)
            shapes = [(op.batch, op.heads, length, op.d) for length in lengths]
            inputs = [torch.randn(s, generator=generator).to(module.TORCH_DTYPE) for s in shapes]
            out = module.run(*inputs)
        return judged(op, [t.double().numpy() for t in inputs], out.double().numpy())

    def _launched(self, kernel: str, values: dict[str, Any], grid: tuple[int, int, int]) -> None:
        """Execute a launch. The outputs of products start undefined, P takes the place of S."""
        softmax = kernel in ("state_kernel", "softmax_kernel")
        if softmax:
            self.part = "softmax"
        elif self.part == "softmax":
            self.part = "values"
        program: Program = self.programs[self.part]
        outputs = () if softmax else ("D",)
        self.results.append(execute_launch(program, kernel, values, grid, outputs, **self.how.run_options))
        self.grids.append(grid)


def judged(op: Attention, inputs: list[Any], out: Any) -> Accuracy:
    """Against float64. Beyond fused attention, S and P are rounded to the type: a logit s may be off by u |s|.

    That error enters the exponents of numerator and denominator, as those in `growth` do, whose unit is v.
    """
    from dataclasses import replace

    from .hw.dtypes import dtype as dtype_of
    from .operators.accuracy import compare
    from .operators.reference import reference

    named = dict(zip("QKV", inputs, strict=True))
    with np.errstate(all="ignore"):
        expected = reference(op, **named)
        if dtype_of(op.dtype).bits < 32:
            scores = inputs[0] @ np.swapaxes(inputs[1], -1, -2) * op.scale
            u, v = dtype_of(op.dtype).unit_roundoff, dtype_of("f32").unit_roundoff
            largest = np.abs(scores).max(axis=-1, keepdims=True)
            growth = expected.growth + 2 * u / v * largest * expected.size
            expected = replace(expected, growth=growth)
        return compare(op, out, expected)
