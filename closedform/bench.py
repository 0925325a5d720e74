"""Times an emitted kernel on the GPU of this machine."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .hw.errors import InfeasibleError, MissingDependency
from .traffic import attention_flops, fused_bytes

if TYPE_CHECKING:
    from .hw.descriptor import HardwareDescriptor
    from .operators.attention import Attention

__all__ = [
    "Timing",
    "bench_attention",
    "buffer_sets",
    "launch_times_us",
    "load_kernel",
]


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one launch in microseconds; `tflops` from the median, `peak_tflops` computed."""

    kernel: str
    hw: str
    median_us: float
    min_us: float
    launches: int
    buffer_sets: int
    tflops: float
    peak_tflops: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.kernel} on {self.hw}: median {self.median_us:.1f} us, minimum {self.min_us:.1f} us of "
            f"{self.launches} launches over {self.buffer_sets} sets of buffers\n"
            f"{self.tflops:.1f} TFLOPS, {self.tflops / self.peak_tflops:.1%} of the computed peak of "
            f"{self.peak_tflops:.1f}"
        )


def buffer_sets(op: Attention, hw: HardwareDescriptor) -> int:
    """Sets of buffers to rotate: at least twice the last-level cache, so that no launch finds its inputs.

    The last level is the Infinity Cache, or L2 on a GPU without one.
    """
    cache_bytes = hw.mall_bytes or hw.l2_bytes * hw.num_xcds
    return max(2, -(-2 * cache_bytes // fused_bytes(op)))


def load_kernel(path: Path) -> ModuleType:
    """Import an emitted file under its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bench_attention(
    op: Attention, hw: HardwareDescriptor, *, repeats: int = 50, warmup: int = 10, **overrides: Any
) -> Timing:
    """Emit the kernel, launch it `warmup` and then `repeats` times, and time each launch with device events.

    Raises InfeasibleError, MissingDependency, and what emission raises. The caller
    has made sure of the GPU (`launch_device`).
    """
    from .emission import emit_to
    from .visitors.compile import missing_dependency
    from .visitors.feasibility import derive

    if missing := missing_dependency():
        raise MissingDependency(missing)
    derivation = derive(op, hw, model="default", **overrides)
    if derivation.infeasible is not None:
        raise InfeasibleError(derivation.infeasible)
    with tempfile.TemporaryDirectory() as folder:
        emission = emit_to(derivation, Path(folder), compile=False)
        kernel = load_kernel(emission.kernel)
        sets = buffer_sets(op, hw)
        times_us = launch_times_us(kernel, op, sets=sets, repeats=repeats, warmup=warmup)
    median_us = statistics.median(times_us)
    return Timing(
        kernel=emission.kernel.stem,
        hw=hw.name,
        median_us=median_us,
        min_us=min(times_us),
        launches=repeats,
        buffer_sets=sets,
        tflops=attention_flops(op) / median_us / 1e6,
        peak_tflops=hw.peak_tflops(op.dtype),
    )


def launch_times_us(
    kernel: ModuleType, op: Attention, *, sets: int, repeats: int, warmup: int, device: str = "cuda"
) -> list[float]:
    """Microseconds of each timed launch; every launch, warm-up included, takes the next set of buffers."""
    import torch

    cuda: Any = torch.cuda
    queries, keys = (op.batch, op.heads, op.L_q, op.d), (op.batch, op.heads, op.L_kv, op.d)
    shapes = (queries, keys, keys, queries)
    buffers = [[torch.randn(shape, device=device).to(kernel.TORCH_DTYPE) for shape in shapes] for _ in range(sets)]
    events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for launch in range(warmup):
        kernel.run(*buffers[launch % sets])
    for launch, (begin, end) in enumerate(events, start=warmup):
        begin.record()
        kernel.run(*buffers[launch % sets])
        end.record()
    cuda.synchronize()
    return [begin.elapsed_time(end) * 1e3 for begin, end in events]
