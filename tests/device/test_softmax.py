"""Emitted softmax kernels on the GPU against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import closedform
from closedform.bench import bench_operator
from closedform.emitted_file import load_kernel
from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.softmax import DTYPES, Softmax

pytestmark = pytest.mark.device

#: Rows and columns: one of everything, a part of a wave, several waves, rows past the registers, rows to split.
SHAPES = [(1, 1), (152, 127), (8193, 512), (76, 8191), (300, 200003), (1, 1000000)]
OPTIONS: list[dict[str, Any]] = [{}, {"log": True, "lse": True}, {"mask": True, "lse": True}, {"empty": "nan"}]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_against_float64(
    gpu: HardwareDescriptor, tmp_path: Path, options: dict[str, Any], shape: tuple[int, int], dtype: str
) -> None:
    import torch

    kernel = load_kernel(closedform.emit(Softmax(*shape, dtype, **options), gpu, tmp_path, compile=False).kernel)
    inputs = kernel.example("cuda")
    inputs[0][0] = -torch.inf
    found, want = kernel.run(*inputs), kernel.reference(*(t.cpu() for t in inputs))
    pairs = zip(found, want, strict=True) if options.get("lse") else [(found, want)]
    for out, exact in pairs:
        torch.testing.assert_close(
            out.cpu().double(), exact, rtol=kernel.TOLERANCE, atol=kernel.TOLERANCE, equal_nan=True
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_bench_times_the_kernel(gpu: HardwareDescriptor, dtype: str) -> None:
    timing = bench_operator(Softmax(8192, 4096, dtype), gpu, repeats=10, warmup=3)
    assert 0 < timing.min_us <= timing.median_us
    assert timing.gb_per_s > 0
