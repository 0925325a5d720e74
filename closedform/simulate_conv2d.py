"""Convolution on the simulator: the emitted file's own run() on CPU tensors, what was finished against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .emitted_file import execute_launch, recorded_module, words_of
from .hw.sim import parse_file
from .simulation_case import UNTOUCHED, Executed, How, require_memory, sampled
from .traffic import compulsory_bytes

if TYPE_CHECKING:
    from .hw.sim import Result
    from .operators.accuracy import Accuracy
    from .visitors.compile import Compiled
    from .visitors.derivation import Derivation

__all__ = ["simulate_conv2d"]


def simulate_conv2d(derivation: Derivation, compiled: Compiled, how: How) -> Executed:
    """The convolution of normal random inputs; with a sample of the workgroups only what they stored is compared.

    Raises BadInput where the tensors do not fit in memory.
    """
    require_memory(compulsory_bytes(derivation.op), "fewer images, or a smaller one")
    case = _Case(derivation, compiled, how)
    x, w, *rest = case.inputs.values()
    given = case.module.pack_w(w) if derivation.op.prepacked else w
    case.module.run(x, given, *rest, out=case.out)
    return Executed(tuple(case.results), case.accuracy(), case.grids[0])


class _Case:
    """Tensors in memory, and the launch that the host side of the emitted file makes of them."""

    def __init__(self, derivation: Derivation, compiled: Compiled, how: How) -> None:
        import torch

        from .visitors.compute import input_shapes
        from .visitors.emit import emit_source

        self.op, self.how = derivation.op, how
        self.program = parse_file(compiled.isa)
        self.module = recorded_module(emit_source(derivation), self._launched)
        self.module.pointer = lambda tensor: tensor.view(-1)  # type: ignore[attr-defined]
        self.results: list[Result] = []
        self.grids: list[tuple[int, int, int]] = []
        torch.manual_seed(how.seed)
        shapes = input_shapes(self.op)
        self.inputs = {name: self._random(shape, name) for name, shape in shapes.items()}
        self.out = torch.empty(self.op.shape_y, dtype=self.module.TORCH_OUT)
        words_of(self.out).view(np.uint8)[...] = UNTOUCHED

    def _random(self, shape: tuple[int, ...], name: str) -> Any:
        """Normal numbers in the type of the input; of i8 all that there are, but small ones for sums that f16 holds."""
        import torch

        kind = torch.float32 if name == "bias" else self.module.TORCH_DTYPE
        most = 4 if self.op.result == "f16" else 128
        return torch.randint(-most, most, shape).to(kind) if kind is torch.int8 else torch.randn(shape).to(kind)

    def _launched(self, kernel: str, values: dict[str, Any], grid: tuple[int, int, int]) -> None:
        """Execute the launch of the emitted file."""
        options = {"blocks": sampled(int(np.prod(grid)), self.how.blocks), **self.how.run_options}
        self.results.append(execute_launch(self.program, kernel, values, grid, ("Y",), **options))
        self.grids.append(grid)

    def accuracy(self) -> Accuracy | None:
        """Y against float64; of a sample what it left out counts as right, and None where it stored nothing."""
        from .operators.accuracy import compare
        from .operators.reference import reference

        words = words_of(self.out)
        size = words.dtype.itemsize
        touched = (words.view(np.uint8).reshape(*words.shape, size) != UNTOUCHED).any(axis=-1)
        inputs = {name: tensor.double().numpy() for name, tensor in self.inputs.items()}
        with np.errstate(all="ignore"):
            want = reference(self.op, **inputs)
            out = self.out.double().numpy()
            if self.how.blocks is not None:
                out = np.where(touched, out, want.out)
            return compare(self.op, out, want) if touched.any() else None
