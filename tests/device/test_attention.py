"""Emitted attention on the GPU against float64."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import closedform
from closedform.bench import bench_operator
from closedform.emitted_file import load_kernel
from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.attention import VARIANTS, Attention

pytestmark = pytest.mark.device

#: Types that every target has.
WIDE = ("f32", "f16", "bf16")
#: Options alone and together, each with what the emitted file makes of it.
OPTIONS: tuple[dict[str, Any], ...] = (
    {"causal": True},
    {"causal": True, "window": 40, "sink": 3, "lse": True},
    {"v_dim": 40},
    {"softcap": 5.0, "bias": True},
    {"alibi": True, "causal": True, "kv_heads": 2},
    {"key_lengths": True, "lse": True},
    {"varlen": True, "causal": True, "lse": True},
    {"page": 16, "key_lengths": True, "causal": True},
    {"page": 128, "key_lengths": True, "bshd": True},
    {"causal": True, "splits": 3, "lse": True},
    {"page": 16, "key_lengths": True, "kv_heads": 2, "splits": 4},
)
#: L_q, L_kv, d, heads, batch: one of everything, then clipped at each edge, then many tiles.
SHAPES = [
    (1, 1, 1, 1, 1),
    (33, 65, 40, 2, 1),
    (128, 128, 64, 1, 2),
    (100, 300, 80, 3, 2),
    (257, 1000, 128, 2, 1),
    (64, 2048, 256, 1, 1),
]


def kernel_for(op: Attention, gpu: HardwareDescriptor, folder: Path, **overrides: Any) -> ModuleType:
    return load_kernel(closedform.emit(op, gpu, folder, compile=False, **overrides).kernel)


def inputs(op: Attention, dtype: Any, scale: float = 1.0) -> tuple[Any, Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    keys = (op.batch, op.heads, op.L_kv, op.d)
    shapes = ((op.batch, op.heads, op.L_q, op.d), keys, keys)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return tuple(x.to(dtype).cuda() for x in (q * scale, k * scale, v))  # type: ignore[return-value]


def assert_agrees(kernel: ModuleType, q: Any, k: Any, v: Any) -> None:
    out = kernel.run(q, k, v)
    error = kernel.max_error(out.cpu(), kernel.reference(q.cpu(), k.cpu(), v.cpu()))
    assert error <= kernel.TOLERANCE


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(
    gpu: HardwareDescriptor, tmp_path: Path, shape: tuple[int, ...], variant: str, dtype: str
) -> None:
    L_q, L_kv, d, heads, batch = shape
    op = Attention(L_q, L_kv, d, heads=heads, batch=batch, dtype=dtype, variant=variant)
    kernel = kernel_for(op, gpu, tmp_path)
    assert_agrees(kernel, *inputs(op, kernel.TORCH_DTYPE))


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("atom", ["32x32", "16x16"])
def test_both_atoms(gpu: HardwareDescriptor, tmp_path: Path, atom: str, dtype: str) -> None:
    op = Attention(200, 333, 64, heads=2, dtype=dtype)
    kernel = kernel_for(op, gpu, tmp_path, atom=atom)
    assert_agrees(kernel, *inputs(op, kernel.TORCH_DTYPE))


@pytest.mark.parametrize(("dtype", "logit"), [("f32", -1e5), ("f16", -1e5), ("bf16", -1e5), ("f32", -1e35)])
def test_very_negative_logits_are_not_lost(gpu: HardwareDescriptor, tmp_path: Path, dtype: str, logit: float) -> None:
    """All logits far below zero: no finite stand-in for -inf may hide them, the result is the mean of V."""
    import torch

    op = Attention(40, 70, 64, dtype=dtype)
    kernel = kernel_for(op, gpu, tmp_path)
    _, _, v = inputs(op, kernel.TORCH_DTYPE)
    size = (abs(logit) / op.d * op.d**0.5) ** 0.5
    q = torch.full((1, 1, op.L_q, op.d), size).to(kernel.TORCH_DTYPE).cuda()
    k = torch.full((1, 1, op.L_kv, op.d), -size).to(kernel.TORCH_DTYPE).cuda()
    out = kernel.run(q, k, v).cpu().double()
    mean = v.cpu().double().mean(-2, keepdim=True).expand_as(out)
    assert kernel.max_error(out, mean) <= kernel.TOLERANCE


@pytest.mark.parametrize("dtype", [*WIDE, "fp8"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_against_float64(
    gpu: HardwareDescriptor, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], dtype: str
) -> None:
    """The emitted file's own check of every entry, on inputs of the emitted shape."""
    if dtype == "fp8" and gpu.gfx not in ("gfx942", "gfx950"):
        pytest.skip(f"{gpu.gfx} has no 8-bit floats")
    kind = gpu.resolve_dtype(dtype).name
    given = {name: value for name, value in options.items() if name != "splits"}
    op = Attention(70, 333, 64, heads=4, batch=3, dtype=kind, **given)
    kernel = kernel_for(op, gpu, tmp_path, **{name: options[name] for name in ("splits",) if name in options})
    assert kernel.main() == 0, capsys.readouterr().out


def test_strided_inputs(gpu: HardwareDescriptor, tmp_path: Path) -> None:
    """[batch, L, heads, d] tensors seen as [batch, heads, L, d]."""
    op = Attention(96, 160, 64, heads=4, batch=2, dtype="f16")
    kernel = kernel_for(op, gpu, tmp_path)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(op, kernel.TORCH_DTYPE))
    assert_agrees(kernel, q, k, v)


@pytest.mark.parametrize("dtype", WIDE)
def test_bench_times_the_kernel(gpu: HardwareDescriptor, dtype: str) -> None:
    timing = bench_operator(Attention(4096, 4096, 128, heads=4, dtype=dtype), gpu, repeats=10, warmup=3)
    assert 0 < timing.min_us <= timing.median_us
    assert 0 < timing.tflops < timing.peak_tflops
