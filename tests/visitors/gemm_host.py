"""The host side of an emitted GEMM on CPU tensors: its run(), with launches executed by the simulator."""

from __future__ import annotations

from typing import Any

from closedform.emitted_file import recorded_module, words_of
from closedform.hw.sim import Out, flydsl_args, parse_file, run
from closedform.operators.gemm import Gemm
from closedform.visitors.emit import emit_source

from .gemm_kernels import kernel


class Host:
    """An emitted file as a module. `launches` counts launches, `loaded_bytes` what they read from memory."""

    def __init__(self, hw: str, op: Gemm, fixed: tuple[tuple[str, Any], ...] = ()) -> None:
        derivation, binary = kernel(hw, op, fixed)
        self.program = parse_file(binary.isa)
        self.file: Any = recorded_module(emit_source(derivation), self.simulated)
        self.launches, self.loaded_bytes = 0, 0

    def simulated(self, name: str, values: dict[str, Any], grid: tuple[int, int, int]) -> None:
        """A launch on this CPU: every byte of D must be stored."""
        import torch

        words = {key: words_of(t) if isinstance(t, torch.Tensor) else t for key, t in values.items()}
        words["D"] = Out(words["D"])
        chosen = self.program.kernel()
        result = run(self.program, flydsl_args(chosen, list(words.values())), grid=grid)
        assert result.ok, str(result)
        self.launches += 1
        self.loaded_bytes += result.counts["global_load_bytes"]
