"""Softmax on the simulator: the emitted file's own run() on CPU tensors, the rows that ran against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .emitted_file import execute_launch, recorded_module, words_of
from .hw.sim import parse_file
from .simulation_case import UNTOUCHED, Array, Executed, How, require_memory, sampled
from .traffic import compulsory_bytes

if TYPE_CHECKING:
    from .hw.sim import Result
    from .operators.accuracy import Accuracy
    from .visitors.compile import Compiled
    from .visitors.derivation import Derivation

__all__ = ["simulate_softmax"]


def simulate_softmax(derivation: Derivation, compiled: Compiled, how: How) -> Executed:
    """Softmax of normal random rows; with a sample whole workgroups of rows run, with all parts of a split row.

    Raises BadInput where input and output do not fit in memory.
    """
    require_memory(compulsory_bytes(derivation.op), "fewer rows or columns")
    case = _Case(derivation, compiled, how)
    case.module.run(*case.inputs.values(), out=case.out)
    return Executed(tuple(case.results), case.accuracy(), case.grids[0])


class _Case:
    """Input and output in memory, and the launches that the host side of the emitted file makes of them."""

    def __init__(self, derivation: Derivation, compiled: Compiled, how: How) -> None:
        import torch

        from .visitors.emit import emit_source

        self.op, self.how = derivation.op, how
        self.tiles, _, _ = derivation.require()
        self.program = parse_file(compiled.isa)
        self.module = recorded_module(emit_source(derivation), self._launched)
        self.results: list[Result] = []
        self.grids: list[tuple[int, int, int]] = []
        shape = self.op.rows, self.op.cols
        generator = torch.Generator().manual_seed(how.seed)
        self.inputs = {"X": self._strided().copy_(torch.randn(shape, generator=generator))}
        if self.op.mask:
            self.inputs["mask"] = torch.rand(shape, generator=generator) < 0.5
        self.out = self._strided()
        words_of(self.out).view(np.uint8)[...] = UNTOUCHED

    def _strided(self) -> Any:
        """A matrix with rows as far apart as the operator says."""
        import torch

        op = self.op
        return torch.empty(op.rows, op.row_stride, dtype=self.module.TORCH_DTYPE)[:, : op.cols]

    def _launched(self, kernel: str, values: dict[str, Any], grid: tuple[int, int, int]) -> None:
        """Execute a launch; what a kernel stores starts undefined."""
        outputs = ("W",) if kernel == "state_kernel" else ("O", "L")
        blocks = (self._chosen()[:, None] * self.tiles.splits + np.arange(self.tiles.splits)).ravel()
        options = {"blocks": blocks, **self.how.run_options}
        self.results.append(execute_launch(self.program, kernel, values, grid, outputs, **options))
        self.grids.append(grid)

    def _chosen(self) -> Array:
        """Numbers of the groups of rows that run."""
        total, splits = -(-self.op.rows // self.tiles.block_rows), self.tiles.splits
        return sampled(total, None if self.how.blocks is None else -(-self.how.blocks // splits))

    def accuracy(self) -> Accuracy:
        """Every row of the workgroups that ran, against float64 on the values that memory holds."""
        from dataclasses import replace

        from .operators.accuracy import compare
        from .operators.reference import reference

        rows = (self._chosen()[:, None] * self.tiles.block_rows + np.arange(self.tiles.block_rows)).ravel()
        rows = rows[rows < self.op.rows]
        inputs = {name: tensor[rows].double().numpy() for name, tensor in self.inputs.items()}
        part = replace(self.op, rows=len(rows))
        with np.errstate(all="ignore"):
            return compare(part, self.out[rows].double().numpy(), reference(part, **inputs))
