"""The host side of an emitted GEMM on CPU tensors: its run(), with the launch of the GPU replaced by the simulator."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from closedform.hw.sim import Out, flydsl_args, parse_file, run
from closedform.operators.gemm import Gemm
from closedform.visitors.emit import emit_source

from .gemm_kernels import kernel


class Host:
    """An emitted file as a module. `launches` counts launches, `loaded_bytes` what they read from memory."""

    def __init__(self, hw: str, op: Gemm, fixed: tuple[tuple[str, Any], ...] = ()) -> None:
        derivation, binary = kernel(hw, op, fixed)
        self.program = parse_file(binary.isa)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "emitted.py"
            path.write_text(emit_source(derivation), encoding="utf-8")
            spec = importlib.util.spec_from_file_location("emitted_gemm", path)
            assert spec is not None
            assert spec.loader is not None
            self.file: Any = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.file)
        self.file.launch = self.simulated
        self.launches, self.loaded_bytes = 0, 0

    def simulated(self, *arguments: Any) -> None:
        """What launch() does, on this CPU; the third tensor is D."""
        import torch

        tensors = [_array(t) for t in arguments if isinstance(t, torch.Tensor)]
        M, N, K, batch, x, y, *scalars = arguments[len(tensors) : -1]
        kind = np.float64 if self.file.SCALAR.width == 64 else np.float32
        tensors[2] = Out(tensors[2])
        values = [*tensors, M, N, K, *map(kind, scalars)]
        result = run(self.program, flydsl_args(self.program.kernel(), values), grid=(x, y, batch))
        assert result.ok, str(result)
        self.launches += 1
        self.loaded_bytes += result.counts["global_load_bytes"]


def _array(t: Any) -> Any:
    """The tensor's memory, its words where numpy lacks the type."""
    import torch

    return t.view(torch.int16).numpy() if t.dtype is torch.bfloat16 else t.numpy()
