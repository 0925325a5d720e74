"""closedform bench: what can be tested without a GPU is everything around the launch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from closedform.bench import Timing, bench_attention, buffer_sets, launch_times_us
from closedform.device import detect
from closedform.hw import catalogue
from closedform.operators.attention import Attention
from closedform.traffic import attention_flops, fused_bytes


@pytest.mark.skipif(detect() is not None, reason="a GPU is present: tests/device times it")
def test_without_a_gpu_it_says_so(run: Callable[..., Result]) -> None:
    result = run("bench", "attention", "--L", 256, "--d", 64)
    assert result.exit_code == 3
    assert "GPU" in result.stderr or "torch" in result.stderr


def test_flops_and_bytes_of_the_main_job() -> None:
    op = Attention(16384, 16384, 128)
    assert attention_flops(op) == 137_438_953_472
    assert fused_bytes(op) == 33_554_432


@pytest.mark.parametrize("gpu", catalogue.names())
@pytest.mark.parametrize("length", [1, 300, 16384])
def test_buffers_exceed_twice_the_last_level_cache(gpu: str, length: int) -> None:
    hw, op = catalogue.get(gpu), Attention(length, length, 128)
    cache_bytes = hw.mall_bytes or hw.l2_bytes * hw.num_xcds
    sets = buffer_sets(op, hw)
    assert sets * fused_bytes(op) >= 2 * cache_bytes
    assert sets >= 2


def test_every_launch_takes_the_next_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    launches: list[int] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = len(launches)

        def elapsed_time(self, end: Event) -> float:
            assert end.at == self.at + 1
            return 0.25

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def run(q: Any, k: Any, v: Any, out: Any) -> None:
        assert q.shape == out.shape == (1, 2, 5, 8)
        assert k.shape == v.shape == (1, 2, 7, 8)
        launches.append(id(q))

    kernel: Any = SimpleNamespace(TORCH_DTYPE=torch.float16, run=run)
    times = launch_times_us(kernel, Attention(5, 7, 8, heads=2), sets=3, repeats=4, warmup=2, device="cpu")
    assert times == [250.0] * 4
    assert len(launches) == 6
    assert launches[:3] != launches[1:4]
    assert len(set(launches)) == 3


def test_bench_emits_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way with a stand-in for the launch: the emitted file is imported and its times become TFLOPS."""
    pytest.importorskip("torch")
    pytest.importorskip("flydsl")
    seen: list[Any] = []

    def launch_times_us(kernel: Any, op: Attention, **counts: int) -> list[float]:
        seen.append((kernel.TARGET, kernel.HEAD_DIM, counts))
        return [30.0, 10.0, 20.0]

    monkeypatch.setattr("closedform.bench.launch_times_us", launch_times_us)
    op = Attention(1000, 1000, 64, heads=2, dtype="bf16")
    timing = bench_attention(op, catalogue.get("mi300x"), repeats=3, warmup=1)
    assert seen == [("gfx942", 64, {"sets": timing.buffer_sets, "repeats": 3, "warmup": 1})]
    assert (timing.median_us, timing.min_us) == (20.0, 10.0)
    assert timing.tflops == pytest.approx(attention_flops(op) / 20e-6 / 1e12)


def test_timing_as_text() -> None:
    timing = Timing("kernel", "mi300x", 100.0, 90.0, 50, 3, 80.0, 160.0)
    assert "50.0%" in str(timing)
    assert "median 100.0 us" in str(timing)
