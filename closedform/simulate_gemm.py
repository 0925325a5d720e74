"""GEMM on the simulator: the emitted file's own run() on CPU tensors, the tiles that were finished against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .emitted_file import execute_launch, recorded_module, words_of
from .hw.sim import parse_file
from .simulation_case import UNTOUCHED, Array, Executed, How, require_memory, sampled, worst_of
from .traffic import gemm_bytes

if TYPE_CHECKING:
    from .hw.sim import Result
    from .operators.accuracy import Accuracy
    from .operators.gemm import Gemm
    from .visitors.compile import Compiled
    from .visitors.derivation import Derivation

__all__ = ["simulate_gemm"]


def simulate_gemm(
    derivation: Derivation, compiled: Compiled, how: How, *, alpha: float = 1.0, beta: float = 1.0, scale: float = 1.0
) -> Executed:
    """The product of random inputs: normal ones, of integer types whole numbers from -4 to 4.

    With a sample, whole tiles run with all parts of their sums, and of Stream-K neighbours; what they finish is
    compared. Raises BadInput where the operands do not fit in memory.
    """
    case = _Case(derivation, compiled, how)
    scalars = {"alpha": alpha, "beta": beta, "scale": scale}
    if not case.scaled:
        del scalars["scale"]
    case.module.run(*case.given, out=case.out, **scalars)
    return Executed(tuple(case.results), case.accuracy(scalars), case.grids[0])


class _Case:
    """Operands in memory, and the launches that the host side of the emitted file makes of them."""

    def __init__(self, derivation: Derivation, compiled: Compiled, how: How) -> None:
        import torch

        from .visitors.emit import emit_source

        op: Gemm = derivation.op
        self.op, self.how, self.hw = op, how, derivation.hw
        self.tiles, _, _ = derivation.require()
        self.program = parse_file(compiled.isa)
        self.module = recorded_module(emit_source(derivation), self._launched)
        self.scaled = op.result.startswith(("fp8", "bf8"))
        self.results: list[Result] = []
        self.grids: list[tuple[int, int, int]] = []
        self.tiles_m, self.tiles_n = -(-op.M // self.tiles.tile_m), -(-op.N // self.tiles.tile_n)
        require_memory(gemm_bytes(op), "smaller M, N, K or batch")
        torch.manual_seed(how.seed)
        self.inputs = {name: self._random(shape, name) for name, shape in self._shapes().items()}
        self.given = [
            getattr(self.module, f"pack_{name.lower()}")(tensor) if name in op.packed else tensor
            for name, tensor in self.inputs.items()
        ]
        self.out = self._strided((op.batch, op.M, op.N), op.ldd, self.module.TORCH_OUT)
        words_of(self.out).view(np.uint8)[...] = UNTOUCHED

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        from .visitors.compute import input_shapes

        return input_shapes(self.op)

    def _random(self, shape: tuple[int, ...], name: str) -> Any:
        import torch

        module = self.module
        kind = {"C": module.TORCH_OUT, "bias": torch.float32}.get(name, module.TORCH_DTYPE)
        values = torch.randn(shape) if kind.is_floating_point else torch.randint(-4, 5, shape)
        tensor = self._strided(shape, {"A": self.op.lda, "B": self.op.ldb, "C": self.op.ldd}.get(name, 0), kind)
        return tensor.copy_(values)

    @staticmethod
    def _strided(shape: tuple[int, ...], leading: int, kind: Any) -> Any:
        """A tensor with rows `leading` elements apart, tight with 0."""
        import torch

        *outer, columns = shape
        return torch.empty((*outer, leading or columns), dtype=kind)[..., :columns]

    def _launched(self, kernel: str, values: dict[str, Any], grid: tuple[int, int, int]) -> None:
        """Execute a launch of the emitted file; D and workspaces without counters start undefined."""
        first = kernel == "gemm_kernel"
        outputs = ("D", "W") if first and not self.tiles.stream_k else ("D",)
        options = {"blocks": self._numbers(first, grid), **self.how.run_options}
        self.results.append(execute_launch(self.program, kernel, values, grid, outputs, **options))
        self.grids.append(grid)

    def _numbers(self, first: bool, grid: tuple[int, int, int]) -> Array:
        """Flat numbers of the workgroups of a launch that run: whole tiles, or neighbours of Stream-K."""
        total = int(np.prod(grid))
        blocks = self.how.blocks
        if blocks is None or blocks >= total:
            return sampled(total, blocks)
        if self.tiles.stream_k:
            return self._neighbours(total, blocks)
        pieces = self.tiles.split_k if first else self.module.PARTS
        each = self.tiles_m * self.tiles_n
        chosen = sampled(each * self.op.batch, -(-blocks // self.tiles.split_k))
        entry, tile = chosen // each, chosen % each
        numbers = entry * (grid[0] * grid[1]) + tile + np.arange(pieces)[:, None] * each
        return np.sort(numbers.ravel())

    def _neighbours(self, total: int, blocks: int) -> Array:
        """Persistent workgroups whose runs of tiles of k lie side by side, from the first one on."""
        xcds, numbers = self.tiles.xcds, np.arange(total)
        xcd, turn = numbers % xcds, numbers // xcds
        place = xcd * (total // xcds) + np.minimum(xcd, total % xcds) + turn
        return np.sort(numbers[place < blocks])

    def accuracy(self, scalars: dict[str, float]) -> Accuracy | None:
        """Every element of the tiles that were worked on, against float64 on the values that memory holds."""
        op, tiles = self.op, self.tiles
        changed = words_of(self.out)
        changed = (np.ascontiguousarray(changed).view(np.uint8) != UNTOUCHED).reshape(*changed.shape, -1).any(-1)
        parts = []
        for batch in range(op.batch):
            for m in range(0, op.M, tiles.tile_m):
                rows = slice(m, m + tiles.tile_m)
                touched = np.logical_or.reduceat(changed[batch, rows].any(0), np.arange(0, op.N, tiles.tile_n))
                columns = np.repeat(touched, tiles.tile_n)[: op.N]
                if columns.any():
                    parts.append(self._compared(batch, rows, columns, scalars))
        return worst_of(parts) if parts else None

    def _compared(self, batch: int, rows: slice, columns: Array, scalars: dict[str, float]) -> Accuracy:
        """Some rows and columns of an entry of the batch."""
        from dataclasses import replace

        from .operators.accuracy import compare
        from .operators.reference import reference

        op, every = self.op, slice(None)
        picked: dict[str, tuple[Any, ...]] = {
            "A": (rows, every) if op.layout[0] == "N" else (every, rows),
            "B": (every, columns) if op.layout[1] == "N" else (columns, every),
            "C": (rows, columns),
            "bias": (rows,) if op.bias == "row" else (columns,),
        }
        inputs = {name: tensor[batch].double().numpy()[picked[name]][None] for name, tensor in self.inputs.items()}
        out = self.out[batch].double().numpy()[rows, columns][None]
        part = replace(op, M=out.shape[1], N=out.shape[2], batch=1, lda=0, ldb=0, ldd=0)
        with np.errstate(all="ignore"):
            return compare(part, out, reference(part, **scalars, **inputs))  # type: ignore[arg-type]
