"""The host side of an emitted convolution on CPU tensors: its run(), with the launch replaced by the simulator."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from closedform.hw.sim import Out, flydsl_args, parse_file, run
from closedform.operators.conv2d import Conv2d
from closedform.visitors.emit import emit_source

from .conv2d_kernels import kernel


class Host:
    """An emitted file as a module; `launches` counts launches."""

    def __init__(self, hw: str, op: Conv2d, fixed: tuple[tuple[str, Any], ...] = ()) -> None:
        derivation, binary = kernel(hw, op, fixed)
        self.program = parse_file(binary.isa)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "emitted.py"
            path.write_text(emit_source(derivation), encoding="utf-8")
            spec = importlib.util.spec_from_file_location("emitted_conv2d", path)
            assert spec is not None
            assert spec.loader is not None
            self.file: Any = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.file)
        self.file.launch, self.file.pointer = self.simulated, lambda t: t
        self.file.stream_of = lambda tensor, stream: stream
        self.launches = 0

    def simulated(self, *arguments: Any) -> None:
        """What launch() does, on this CPU; the third tensor is Y."""
        import torch

        tensors = [_memory(t) for t in arguments if isinstance(t, torch.Tensor)]
        *numbers, x, y, _ = arguments[len(tensors) :]
        tensors[2] = Out(tensors[2], partial=True)
        values = [*tensors, *numbers]
        result = run(self.program, flydsl_args(self.program.kernel(), values), grid=(x, y, 1))
        assert result.ok, str(result)
        self.launches += 1


def _memory(t: Any) -> Any:
    """The tensor's memory from its first element on, its words where numpy lacks the type."""
    import torch

    words = t.view(torch.int16) if t.dtype is torch.bfloat16 else t
    flat = words.as_strided((words.untyped_storage().nbytes() // words.element_size() - words.storage_offset(),), (1,))
    return flat.numpy()
