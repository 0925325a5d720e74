"""Emitted GEMMs on the GPU against float64: of whole numbers, every word must be what float64 rounds to."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import closedform
from closedform.bench import bench_operator
from closedform.emitted_file import load_kernel
from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.gemm import DTYPES, LAYOUTS, Gemm

pytestmark = pytest.mark.device

#: M, N, K, batch: one of everything, then clipped at each edge, then many tiles.
SHAPES = [(1, 1, 1, 1), (65, 63, 17, 2), (133, 192, 1000, 1), (1000, 1000, 1000, 1), (16, 4096, 4096, 1)]
KNOBS: list[dict[str, Any]] = [
    {},
    {"split_k": 3},
    {"split_k": 3, "split_algorithm": "single"},
    {"stream_k": 40},
    {"buffers": 1},
    {"waves_per_simd": 1},
]


def offered(gpu: HardwareDescriptor, dtype: str) -> bool:
    return any(atom.emit and atom.blocks == 1 and atom.dtype_a.name == dtype for atom in gpu.atoms)


def kernel_for(op: Gemm, gpu: HardwareDescriptor, folder: Path, **overrides: Any) -> ModuleType:
    if not offered(gpu, op.dtype):
        pytest.skip(f"{gpu.name} has no emittable atom for {op.dtype}")
    return load_kernel(closedform.emit(op, gpu, folder, compile=False, **overrides).kernel)


def assert_exact(kernel: ModuleType, **scalars: float) -> None:
    """run() on the emitted shape, twice: both results are the rounded reference, word by word."""
    inputs = kernel.example("cuda")
    given = list(inputs)
    for place, name in enumerate("ab"):
        if hasattr(kernel, f"pack_{name}"):
            given[place] = getattr(kernel, f"pack_{name}")(given[place])
    want = kernel.reference(*(t.cpu() for t in inputs), **scalars).to(kernel.TORCH_OUT).double()
    for _ in range(2):
        assert (kernel.run(*given, **scalars).cpu().double() == want).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(
    gpu: HardwareDescriptor, tmp_path: Path, shape: tuple[int, ...], layout: str, dtype: str
) -> None:
    M, N, K, batch = shape
    assert_exact(kernel_for(Gemm(M, N, K, batch=batch, dtype=dtype, layout=layout), gpu, tmp_path))


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_knobs(gpu: HardwareDescriptor, tmp_path: Path, knobs: dict[str, Any]) -> None:
    op = Gemm(200, 328, 2056, dtype="f16", layout="NT", has_c=True)
    assert_exact(kernel_for(op, gpu, tmp_path, **knobs), alpha=2.0, beta=0.5)


@pytest.mark.parametrize("preshuffled", ["A", "B", "AB"])
def test_packed_operands(gpu: HardwareDescriptor, tmp_path: Path, preshuffled: str) -> None:
    op = Gemm(200, 328, 1032, dtype="f16", layout="NT", preshuffled=preshuffled)
    assert_exact(kernel_for(op, gpu, tmp_path))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_bench_times_the_kernel(gpu: HardwareDescriptor, dtype: str) -> None:
    timing = bench_operator(Gemm(4096, 4096, 4096, dtype=dtype, layout="NT"), gpu, repeats=10, warmup=3)
    assert 0 < timing.min_us <= timing.median_us
    assert 0 < timing.tflops < timing.peak_tflops
