"""closedform bench: what can be tested without a GPU is everything around the launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from closedform import emit
from closedform.bench import Timing, bench_operator, buffer_sets, launch_times_us, launches_of
from closedform.device import detect
from closedform.emitted_file import recorded_file
from closedform.hw import catalogue
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm
from closedform.operators.softmax import Softmax
from closedform.traffic import attention_flops, compulsory_bytes, flops, fused_bytes


@pytest.mark.skipif(detect() is not None, reason="a GPU is present: tests/device times it")
@pytest.mark.parametrize(
    "words",
    [
        ("attention", "--L", 256, "--d", 64),
        ("attention", "--L", 256, "--d", 64, "--causal", "--varlen"),
        ("gemm", "--M", 64, "--N", 64, "--K", 64),
        ("softmax", "--rows", 64, "--cols", 64),
    ],
)
def test_without_a_gpu_it_says_so(run: Callable[..., Result], words: tuple[object, ...]) -> None:
    result = run("bench", *words)
    assert result.exit_code == 3
    assert "GPU" in result.stderr or "torch" in result.stderr


def test_flops_and_bytes_of_the_main_job() -> None:
    op = Attention(16384, 16384, 128)
    assert attention_flops(op) == 137_438_953_472
    assert fused_bytes(op) == 33_554_432


@pytest.mark.parametrize("gpu", catalogue.names())
@pytest.mark.parametrize("length", [1, 300, 16384])
@pytest.mark.parametrize("kind", [lambda n: Attention(n, n, 128), lambda n: Gemm(n, n, 128)], ids=["attention", "gemm"])
def test_buffers_exceed_twice_the_last_level_cache(gpu: str, length: int, kind: Any) -> None:
    hw, op = catalogue.get(gpu), kind(length)
    cache_bytes = hw.mall_bytes or hw.l2_bytes * hw.num_xcds
    sets = buffer_sets(op, hw)
    assert sets * compulsory_bytes(op) >= 2 * cache_bytes
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

    occupied: list[float] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("closedform.bench._occupy", lambda cuda, seconds: occupied.append(seconds))
    times = launch_times_us([lambda n=n: launches.append(n) for n in range(3)], repeats=4, warmup=2)
    assert times == [250.0] * 4
    assert launches == [0, 1, 2, 0, 1, 2]
    assert len(occupied) == 1


def test_each_launch_has_buffers_of_its_own() -> None:
    """Inputs and output are separate in each set; a workspace serves all."""
    torch = pytest.importorskip("torch")
    seen: list[tuple[Any, ...]] = []

    def run(a: Any, b: Any, out: Any = None, workspace: Any = None) -> Any:
        out = torch.empty(1, 4, 8) if out is None else out
        seen.append((a.data_ptr(), b.data_ptr(), out.data_ptr(), id(workspace)))
        return out

    kernel: Any = SimpleNamespace(
        run=run,
        example=lambda device: [torch.ones(1, 4, 2), torch.ones(1, 2, 8)],
        problem=lambda a, b: (1, 4, 8, 2),
        workspace_of=lambda M, N, batch, device: (torch.zeros(batch * M * N),),
    )
    for launch in launches_of(kernel, sets=3, device="cpu"):
        launch()
    timed = seen[3:]
    assert timed == seen[:3]
    for place in range(3):
        assert len({launch[place] for launch in timed}) == 3
    assert len({launch[3] for launch in seen}) == 1


@pytest.mark.parametrize("op", [Softmax(6, 40), Softmax(6, 40, mask=True, lse=True), Softmax(2, 70, "bf16", lse=True)])
def test_softmax_is_launched_into_its_outputs(op: Softmax, tmp_path: Path) -> None:
    """Its own example and run() with the launch left out: both outputs of the first launch are written again."""
    pytest.importorskip("torch")
    pytest.importorskip("flydsl")
    places: list[tuple[Any, ...]] = []

    def launched(name: str, arguments: dict[str, Any], grid: tuple[int, int, int]) -> None:
        outputs = [arguments[kind] for kind in "XOL" if kind in arguments]
        places.append(tuple(t.data_ptr() for t in outputs))

    kernel = recorded_file(emit(op, "mi300x", tmp_path, compile=False).kernel, launched)
    for launch in launches_of(kernel, sets=2, device="cpu"):
        launch()
    assert len(places) == 4
    assert places[:2] == places[2:]
    assert len(set(places)) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True, "lse": True},
        {"varlen": True},
        {"page": 16, "key_lengths": True, "bias": True, "alibi": True},
        {"dtype": "fp8_e4m3fnuz", "bshd": True},
    ],
    ids=str,
)
def test_attention_with_options_is_launched_into_its_outputs(options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("flydsl")
    places: list[tuple[int, ...]] = []

    def launched(name: str, arguments: dict[str, Any], grid: tuple[int, int, int]) -> None:
        places.append(tuple(arguments[kind].data_ptr() for kind in ("Q", "O", "LSE") if kind in arguments))

    op = Attention(6, 40, 64, heads=2, batch=2, **{"dtype": "f16", **options})
    kernel = recorded_file(emit(op, "mi300x", tmp_path, compile=False).kernel, launched)
    for launch in launches_of(kernel, sets=2, device="cpu"):
        launch()
    assert places[:2] == places[2:]
    assert len(set(places)) == 2


def test_softmax_refuses_an_lse_that_it_would_write_past(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("flydsl")
    kernel = recorded_file(emit(Softmax(6, 40, lse=True), "mi300x", tmp_path, compile=False).kernel, lambda *_: None)
    (x,) = kernel.example("cpu")
    wrong = [torch.zeros(4), torch.zeros(6, dtype=torch.float16), torch.zeros(6, 2)[:, 0]]
    for lse in wrong:
        with pytest.raises(ValueError, match=r"lse must be contiguous, \(6,\) of torch.float32"):
            kernel.run(x, lse=lse)


@pytest.mark.parametrize(
    ("op", "constant"),
    [
        (Attention(1000, 1000, 64, heads=2, dtype="bf16"), ("HEAD_DIM", 64)),
        (Gemm(512, 256, 1024, dtype="bf16", layout="NT"), ("ELEM_BYTES", 2)),
        (Conv2d(1, 64, 14, 14, 64, 3, 3, dtype="f16"), ("ELEM_BYTES", 2)),
        (Softmax(300, 1000), ("ELEM_BYTES", 4)),
    ],
)
def test_bench_emits_and_times(monkeypatch: pytest.MonkeyPatch, op: Any, constant: tuple[str, int]) -> None:
    """The whole way with a stand-in for the launch: the emitted file is imported and its times become TFLOPS."""
    pytest.importorskip("torch")
    pytest.importorskip("flydsl")
    seen: list[Any] = []

    def launches_of(kernel: Any, sets: int) -> list[Any]:
        seen.append((kernel.TARGET, getattr(kernel, constant[0]), sets))
        return []

    monkeypatch.setattr("closedform.bench.launches_of", launches_of)
    monkeypatch.setattr("closedform.bench.launch_times_us", lambda launches, **counts: [30.0, 10.0, 20.0])
    timing = bench_operator(op, catalogue.get("mi300x"), repeats=3, warmup=1)
    assert seen == [("gfx942", constant[1], timing.buffer_sets)]
    assert (timing.median_us, timing.min_us) == (20.0, 10.0)
    assert timing.tflops == pytest.approx(flops(op) / 20e-6 / 1e12)


def test_timing_as_text() -> None:
    timing = Timing("kernel", "mi300x", 100.0, 90.0, 50, 3, 80.0, 160.0, 600.0, 5300.0)
    assert "50.0%" in str(timing)
    assert "600.0 GB/s of what must be moved, 11.3% of HBM's 5300.0" in str(timing)
    assert "median 100.0 us" in str(timing)
