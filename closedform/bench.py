"""Times an emitted kernel on the GPU of this machine."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .emitted_file import load_kernel
from .hw.errors import MissingDependency
from .traffic import compulsory_bytes, flops

if TYPE_CHECKING:
    from .hw.descriptor import HardwareDescriptor
    from .operators.operator import Operator

__all__ = ["Timing", "bench_operator", "buffer_sets", "launch_times_us", "launches_of"]

#: Side of the square product that keeps the GPU busy while launches are queued, and the most of them.
FILLER_SIDE, FILLER_LIMIT = 4096, 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one launch in microseconds. From the median `tflops`, and `gb_per_s` of what must be moved; peaks are
    computed from the descriptor.
    """

    kernel: str
    hw: str
    median_us: float
    min_us: float
    launches: int
    buffer_sets: int
    tflops: float
    peak_tflops: float
    gb_per_s: float
    peak_gb_per_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.kernel} on {self.hw}: median {self.median_us:.1f} us, minimum {self.min_us:.1f} us of "
            f"{self.launches} launches over {self.buffer_sets} sets of buffers\n"
            f"{self.tflops:.1f} TFLOPS, {self.tflops / self.peak_tflops:.1%} of the computed peak of "
            f"{self.peak_tflops:.1f}\n"
            f"{self.gb_per_s:.1f} GB/s of what must be moved, {self.gb_per_s / self.peak_gb_per_s:.1%} of HBM's "
            f"{self.peak_gb_per_s:.1f}"
        )


def buffer_sets(op: Operator, hw: HardwareDescriptor) -> int:
    """Sets of buffers to rotate: at least twice the last-level cache, so that no launch finds its inputs.

    The last level is the Infinity Cache, or L2 on a GPU without one.
    """
    cache_bytes = hw.mall_bytes or hw.l2_bytes * hw.num_xcds
    return max(2, -(-2 * cache_bytes // compulsory_bytes(op)))


def bench_operator(
    op: Operator, hw: HardwareDescriptor, *, repeats: int = 50, warmup: int = 10, **overrides: Any
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
    derivation.require()
    with tempfile.TemporaryDirectory() as folder:
        emission = emit_to(derivation, Path(folder), compile=False)
        sets = buffer_sets(op, hw)
        launches = launches_of(load_kernel(emission.kernel), sets=sets)
        times_us = launch_times_us(launches, repeats=repeats, warmup=warmup)
    median_us = statistics.median(times_us)
    return Timing(
        kernel=emission.kernel.stem,
        hw=hw.name,
        median_us=median_us,
        min_us=min(times_us),
        launches=repeats,
        buffer_sets=sets,
        tflops=flops(op) / median_us / 1e6,
        peak_tflops=hw.peak_tflops(op.dtype),
        gb_per_s=compulsory_bytes(op) / median_us / 1e3,
        peak_gb_per_s=hw.hbm_bytes_per_s / 1e9,
    )


def launches_of(kernel: ModuleType, *, sets: int, device: str = "cuda") -> list[Callable[[], Any]]:
    """Launches of the emitted shape, each on buffers of its own, output included, and one workspace for all."""
    inputs, fixed = kernel.example(device), {}
    if isinstance(inputs, dict):  # by the names of run(), in its order
        if "cu_q" in inputs:  # run() would find the longest entry on the host, and wait for it
            fixed["most_rows"] = int(inputs["cu_q"].diff().max())
        inputs = list(inputs.values())
    for place, name in enumerate(signature(kernel.run).parameters):
        if (pack := getattr(kernel, f"pack_{name}", None)) is not None:
            inputs[place] = pack(inputs[place])
    if (workspace_of := getattr(kernel, "workspace_of", None)) is not None:
        batch, M, N, _ = kernel.problem(*inputs[:2])
        fixed["workspace"] = workspace_of(M, N, batch, device)
    return [_launch(kernel, [_copied(value) for value in inputs], fixed) for _ in range(sets)]


def _launch(kernel: ModuleType, inputs: Sequence[Any], fixed: dict[str, Any]) -> Callable[[], Any]:
    """A launch into the outputs of the first one: `out`, and where there are two the `lse` of each row."""
    made = kernel.run(*inputs, **fixed)
    outputs = dict(zip(("out", "lse"), made if isinstance(made, tuple) else (made,), strict=False))
    return lambda: kernel.run(*inputs, **outputs, **fixed)


def _copied(value: Any) -> Any:
    """A tensor of its own memory; of a packed operand its data."""
    if isinstance(value, tuple):
        packed: Any = value
        return packed._replace(data=packed.data.clone())
    return value.clone()


def launch_times_us(launches: Sequence[Callable[[], Any]], *, repeats: int, warmup: int) -> list[float]:
    """Microseconds of each timed launch; every launch, warm-up included, takes the next set of buffers.

    Other work keeps the GPU busy until all launches are queued: else the events around a short kernel would time
    the host.
    """
    import torch

    cuda: Any = torch.cuda
    begin_s = time.perf_counter()
    for launch in range(warmup):
        launches[launch % len(launches)]()
    queued_s = (time.perf_counter() - begin_s) / max(warmup, 1) * repeats
    cuda.synchronize()
    events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    _occupy(cuda, 2 * queued_s)
    for launch, (begin, end) in enumerate(events, start=warmup):
        begin.record()
        launches[launch % len(launches)]()
        end.record()
    cuda.synchronize()
    return [begin.elapsed_time(end) * 1e3 for begin, end in events]


def _occupy(cuda: Any, seconds: float) -> None:
    """Queue products that keep the GPU busy for about that long."""
    import torch

    square = torch.ones(FILLER_SIDE, FILLER_SIDE, device="cuda")
    torch.mm(square, square)
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    begin.record()
    torch.mm(square, square)
    end.record()
    cuda.synchronize()
    each_s = max(begin.elapsed_time(end) * 1e-3, 1e-6)
    for _ in range(min(int(seconds / each_s) + 1, FILLER_LIMIT)):
        torch.mm(square, square)
