"""Emitted convolutions on the GPU against float64: of whole numbers, every word must be what float64 rounds to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import closedform
from closedform.bench import bench_operator
from closedform.emitted_file import load_kernel
from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.conv2d import DTYPES, LAYOUTS, Conv2d

pytestmark = pytest.mark.device

SHAPES: dict[str, dict[str, Any]] = {
    "one": {"N": 1, "IC": 1, "IH": 1, "IW": 1, "OC": 1, "KH": 1, "KW": 1},
    "3x3": {"N": 2, "IC": 128, "IH": 56, "IW": 56, "OC": 128, "KH": 3, "KW": 3, "pad": 1},
    "stem": {"N": 2, "IC": 3, "IH": 224, "IW": 224, "OC": 64, "KH": 7, "KW": 7, "stride": 2, "pad": 3},
    "dilated": {"N": 2, "IC": 40, "IH": 22, "IW": 19, "OC": 24, "KH": 3, "KW": 2, "dilation": (3, 2), "pad": 2},
    "grouped": {"N": 2, "IC": 64, "IH": 40, "IW": 40, "OC": 64, "KH": 3, "KW": 3, "groups": 8, "stride": (2, 1)},
    "depthwise": {"N": 2, "IC": 192, "IH": 28, "IW": 28, "OC": 192, "KH": 7, "KW": 7, "groups": 192, "pad": 3},
}
OPTIONS: list[dict[str, Any]] = [{}, {"prepacked": True}, {"bias": True, "activation": "relu"}]


def offered(gpu: HardwareDescriptor, dtype: str) -> bool:
    return any(atom.emit and atom.blocks == 1 and atom.dtype_a.name == dtype for atom in gpu.atoms)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_against_float64(
    gpu: HardwareDescriptor, tmp_path: Path, name: str, options: dict[str, Any], layout: str, dtype: str
) -> None:
    if not offered(gpu, dtype):
        pytest.skip(f"{gpu.name} has no emittable atom for {dtype}")
    op = Conv2d(**SHAPES[name], dtype=dtype, layout=layout, **options)
    kernel = load_kernel(closedform.emit(op, gpu, tmp_path, compile=False).kernel)
    inputs = kernel.example("cuda")
    given = [inputs[0], kernel.pack_w(inputs[1]), *inputs[2:]] if hasattr(kernel, "pack_w") else inputs
    want = kernel.reference(*(t.cpu() for t in inputs)).to(kernel.TORCH_OUT).double()
    for _ in range(2):
        assert (kernel.run(*given).cpu().double() == want).all()


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_bench_times_the_kernel(gpu: HardwareDescriptor, dtype: str) -> None:
    timing = bench_operator(Conv2d(**SHAPES["3x3"], dtype=dtype), gpu, repeats=10, warmup=3)
    assert 0 < timing.min_us <= timing.median_us
    assert 0 < timing.tflops < timing.peak_tflops
