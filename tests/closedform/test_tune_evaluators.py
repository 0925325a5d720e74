"""Spaces and evaluators: tables, the device, TensileLite's client, the compiled kernel."""

from __future__ import annotations

import dataclasses
import gzip
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from closedform.decoding.errors import Undecodable
from closedform.hw import catalogue
from closedform.hw.errors import BadInput, MissingDependency, NoDevice
from closedform.interop.attention_offers import ranked_attention
from closedform.interop.exporting import export_operator
from closedform.interop.tensilelite_rules import RULES, Solution
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm
from closedform.operators.softmax import Softmax
from closedform.tuning.descent import Plan, descend
from closedform.tuning.grid import one_shot
from closedform.tuning.journal import Journal
from closedform.tuning.lattice_space import attention_space, gemm_space
from closedform.tuning.measuring import Budget, Meter
from closedform.tuning.operator_space import OperatorSpace
from closedform.tuning.session import NothingMeasured, Source, meter_of, run_tuning
from closedform.tuning.space import opened
from closedform.tuning.starts import attention_overrides
from closedform.tuning.table import TableEvaluator, read_landscapes
from closedform.visitors.compile import missing_dependency

from .tuning_child import times_of

LANDSCAPE = Path(__file__).parent / "data" / "h200_landscape.csv"
ATTENTION_LANDSCAPE = LANDSCAPE.with_name("h200_attention_landscape.csv")
MI300X = catalogue.get("mi300x")
PRODUCT = Gemm(4096, 4096, 4096, dtype="bf16")


@pytest.mark.parametrize("table", [LANDSCAPE, ATTENTION_LANDSCAPE], ids=["gemm", "attention"])
def test_the_landscape_is_searched_well_within_40_measurements(table: Path) -> None:
    """benchmarks/tune_h200.py prints the same for every problem of the measured tables."""
    hw = catalogue.get("h200")
    shares, grids = [], []
    for landscape in read_landscapes(table, hw):
        op = landscape.op
        space = attention_space(op, hw) if isinstance(op, Attention) else gemm_space(op, hw)
        evaluator = TableEvaluator(landscape)
        found = descend(Meter(space, evaluator, Journal(), Budget(evaluations=40)))
        cold = one_shot(Meter(space, evaluator, Journal(), Budget(evaluations=40)))
        assert found.measurements <= 40
        assert times_of(found) == sorted(times_of(found), reverse=True)
        assert found.best_us is not None
        assert cold.best_us is not None
        shares.append(landscape.best_us / found.best_us)
        grids.append(landscape.best_us / cold.best_us)
    assert statistics.geometric_mean(shares) >= 0.98
    assert statistics.geometric_mean(grids) < statistics.geometric_mean(shares)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("M,N\n1,2\n", "no column"),
        ("M,N,K,dtype,layout,us,BM,BN,BK\n1,2,3,bf16,NN,x,16,16,32\n", "line 2: a cell"),
        ("M,N,K,dtype,layout,us,BM,BN,BK\nabc,2,3,bf16,NN,1,16,16,32\n", "line 2: a cell"),
        ("M,N,K,dtype,layout,us,BM,BN,BK\n1,2,3,bf16,NN,inf,16,16,32\n", "line 2: us inf is no time"),
        ("M,N,K,dtype,layout,us,BM,BN,BK\n1,2,3,bf61,NN,1,16,16,32\n", "line 2: unknown dtype"),
        ("M,N,K,dtype,layout,us,BM,BN,BK\n1,2\n", "line 2"),
        (f"M,N,K,dtype,layout,us,BM,BN,BK\n{'1' * 200_000},2\n", "a cell of more than 131072"),
    ],
)
def test_a_table_that_is_none(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=what):
        read_landscapes(path, catalogue.get("h200"))


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-20], lambda data: data[:30] + b"xx" + data[32:], lambda data: b""]
)
def test_a_packed_table_that_is_cut_off_or_spoilt(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(spoil(gzip.compress(LANDSCAPE.read_bytes())))
    with pytest.raises(BadInput, match=r"not a whole table|no column"):
        read_landscapes(path, catalogue.get("h200"))


OPERATORS = [
    PRODUCT,
    Gemm(16, 8192, 4096, dtype="fp8_e4m3fnuz", layout="NT"),
    Attention(L_q=2048, L_kv=2048, d=64, dtype="f16"),
    Conv2d(N=1, IC=64, IH=14, IW=14, OC=64, KH=3, KW=3, pad=1, dtype="f16"),
]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: f"{op.name}_{op.dtype}")
def test_a_candidate_is_a_whole_kernel(op: Any) -> None:
    """Every round gives candidates that derive takes as they are, and that the incumbent is one of."""
    space = OperatorSpace(op, MI300X)
    start = space.start()
    assert space.completed(start, {}) == start
    for one in space.rounds():
        legal = [c for values in opened(one, start) if (c := space.completed(values, start)) is not None]
        assert all(space.completed(c, {}) == c for c in legal[:20])
        assert one.fixed or start in legal


def test_stream_k_takes_the_place_of_a_split() -> None:
    space = OperatorSpace(PRODUCT, MI300X)
    last = space.rounds()[-1]
    assert last.name == "stream_k"
    found = [space.completed(values, space.start()) for values in opened(last, space.start())]
    persistent = [c for c in found if c is not None and c["stream_k"]]
    assert persistent
    assert all(c["split_k"] == 1 for c in persistent)


def test_a_decoded_kernel_is_a_start() -> None:
    name = "Cijk_Alik_Bljk_BBS_BH_MT128x64x64_MI16x16x1_SN_GSU2_MIWT4_2_WGM4"
    op = Gemm(4096, 4096, 4096, dtype="bf16", layout="NT")
    start = meter_of(op, MI300X, Source("model", start=name)).space.start()
    found = [start[n] for n in ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n", "split_k", "group_m")]
    assert found == [64, 128, 64, 2, 2, 2, 4]


def test_the_models_best_is_a_start() -> None:
    start = meter_of(PRODUCT, MI300X, Source("model", start="select")).space.start()
    assert start["stream_k"] == 0


@pytest.mark.parametrize(
    ("op", "source", "error", "what"),
    [
        (PRODUCT, Source("moddel"), BadInput, "did you mean model"),
        (PRODUCT, Source("table"), BadInput, "needs --table"),
        (PRODUCT, Source("table", LANDSCAPE), BadInput, "has not the product"),
        (PRODUCT, Source("table", ATTENTION_LANDSCAPE), BadInput, "a table of attention, not of gemm"),
        (OPERATORS[2], Source("table", LANDSCAPE), BadInput, "a table of gemm, not of attention"),
        (PRODUCT, Source("tensilelite", client="python 'x"), BadInput, "a quotation mark or a backslash has no end"),
        (dataclasses.replace(PRODUCT, activation="gelu"), Source("tensilelite", client="x"), BadInput, "has no gelu"),
        (
            Attention(128, 128, 64, dtype="bf16", variant="lds"),
            Source("table", ATTENTION_LANDSCAPE),
            BadInput,
            "nothing of",
        ),
        (PRODUCT, Source("model", client="x"), BadInput, "--client is of the evaluator tensilelite"),
        (PRODUCT, Source("table", LANDSCAPE, start="derive"), BadInput, "starts from select"),
        (OPERATORS[3], Source("table", LANDSCAPE), BadInput, "does not time conv2d"),
        (OPERATORS[2], Source("table", ATTENTION_LANDSCAPE), BadInput, "has not the attention"),
        (OPERATORS[2], Source("tensilelite"), BadInput, "does not time attention"),
        (OPERATORS[3], Source("profile", start="select"), BadInput, "starts from derive"),
        (OPERATORS[2], Source("model", start="hgemm_bf16_t256x256x64x2_ks1_w2x4x1"), BadInput, "not of attention"),
        (OPERATORS[3], Source("model"), BadInput, "times no tiles"),
        (Softmax(4, 4), Source("model"), BadInput, "has no rounds"),
        (PRODUCT, Source("model", start="foo"), Undecodable, "neither a file"),
        (
            PRODUCT,
            Source("model", start="Cijk_Alik_Bljk_HHS_BH_MT64x64x64_MI16x16x1_SN_MIWT2_2"),
            BadInput,
            "start's type",
        ),
        (PRODUCT, Source("tensilelite", client="no-such-program"), MissingDependency, "not a program"),
    ],
)
def test_what_does_not_go_together(op: Any, source: Source, error: type[Exception], what: str) -> None:
    hw = catalogue.get("h200") if source.evaluator == "table" and source.table else MI300X
    with pytest.raises(error, match=what):
        meter_of(op, hw, source)


def test_the_device_is_needed_for_device() -> None:
    from closedform.device import detect

    if detect() is not None:
        pytest.skip("there is a GPU")
    with pytest.raises((NoDevice, MissingDependency)):
        meter_of(PRODUCT, MI300X, Source("device"))


def test_the_device_evaluator_times_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the GPU: launches and knobs arrive, another GPU is refused, and so is a number of none."""
    from closedform import bench, device
    from closedform.device import Device
    from closedform.tuning.device import DeviceEvaluator

    monkeypatch.setattr(device, "launch_device", lambda: Device("gfx942", 304))
    asked: list[dict[str, Any]] = []

    def timed(op: Any, hw: Any, **values: Any) -> bench.Timing:
        asked.append(values)
        return bench.Timing("kernel", hw.name, 12.5, 12.0, values["repeats"], 2, 1.0, 1.0, 1.0, 1.0)

    monkeypatch.setattr(bench, "bench_operator", timed)
    meter = meter_of(PRODUCT, MI300X, Source("device"), budget=Budget(evaluations=2))
    found = descend(meter)
    assert (found.start_us, found.measurements) == (12.5, 2)
    assert asked[0]["tile_m"] == found.start["tile_m"]
    assert asked[0]["repeats"] > 0
    with pytest.raises(BadInput, match="at least 1 of each"):
        DeviceEvaluator(PRODUCT, MI300X, repeats=0)
    with pytest.raises(BadInput, match="mi355x is gfx950"):
        meter_of(PRODUCT, catalogue.get("mi355x"), Source("device"))
    monkeypatch.setattr(bench, "buffer_sets", lambda op, hw: 0)
    with pytest.raises(BadInput, match="no copies"):
        DeviceEvaluator(PRODUCT, MI300X)


def test_nothing_measured_is_said() -> None:
    op = Attention(L_q=64, L_kv=64, d=64, dtype="f16")
    meter = meter_of(op, MI300X, Source("model"))
    assert meter.evaluator.measure(meter.space.start()) > 0
    fake = Path(sys.executable)
    with pytest.raises(NothingMeasured, match="client ended"):
        run_tuning(PRODUCT, MI300X, Source("tensilelite", client=f"{fake} -c raise"), budget=Budget(evaluations=2))


CLIENT = """
import pathlib, sys, yaml
config, out = sys.argv[1:]
((_, group),) = yaml.safe_load(open(config))["BenchmarkProblems"]
own = {name: values for fork in group["ForkParameters"] for name, values in fork.items()}
assert all(len(values) == 1 for values in own.values())
us = 100.0 / own["GlobalSplitU"][0] if own["GlobalSplitU"][0] else 90.0
folder = pathlib.Path(out, "1_BenchmarkProblems", "Data")
folder.mkdir(parents=True)
header = "GFlops, SizeI, SizeJ, SizeK, SizeL, LDD, LDC, LDA, LDB, TotalFlops, WinnerGFlops, WinnerTimeUS, WinnerIdx"
(folder / "00_Final.csv").write_text(f"{header}\\nGFlops, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1.0, {us}, 0\\n")
"""


def test_the_client_of_tensilelite_is_driven(tmp_path: Path) -> None:
    """A stand-in for it reads the file that pins a candidate and writes results as the client does."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    source = Source("tensilelite", client=f"{sys.executable} {script}")
    meter = meter_of(Gemm(64, 64, 65536, dtype="bf16"), MI300X, source, budget=Budget(evaluations=12))
    start = meter.space.start()
    assert meter.evaluator.measure(start) == pytest.approx(100.0 / max(1, int(start["GlobalSplitU"])), rel=0.2)
    found = descend(meter, Plan(sweeps=1, pool_maturity=0.0))
    assert found.best_us is not None
    assert found.start_us is not None
    assert found.best_us <= found.start_us


def test_output_of_a_client_in_another_encoding(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text("import sys\nsys.stderr.buffer.write(b'\\xff\\xfe')\nsys.exit(3)\n")
    meter = meter_of(Gemm(64, 64, 64, dtype="bf16"), MI300X, Source("tensilelite", client=f"{sys.executable} {script}"))
    assert meter.once(meter.space.start()) is None


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_no_candidate_of_tensilelite_breaks_its_rules(layout: str) -> None:
    from closedform.interop.offers import derived_offer
    from closedform.tuning.tensilelite_space import TensileliteSpace, parameters_of_candidate

    space = TensileliteSpace(derived_offer(dataclasses.replace(PRODUCT, layout=layout), MI300X, tile_m=128, tile_n=128))
    letters = layout[1] + layout[0]
    for one in space.rounds()[1:]:
        for values in opened(one, space.start()):
            candidate = space.completed(values, space.start())
            if candidate is not None:
                solution = Solution(parameters_of_candidate(candidate), letters, MI300X.num_cus, (2, 2))
                assert not [rule.name for rule in RULES if rule.broken(solution)]


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))
def test_a_compiled_product_keeps_or_improves_its_bound(tmp_path: Path) -> None:
    """End to end through FlyDSL for gfx942: each candidate compiled, executed by the simulator, and counted."""
    op = Gemm(512, 512, 256, dtype="bf16")
    done = run_tuning(
        op,
        MI300X,
        Source("profile", blocks=1),
        journal=tmp_path / "journal.jsonl",
        budget=Budget(evaluations=24),
        plan=Plan(sweeps=1),
    )
    found = done.descent
    assert found.best_us is not None
    assert found.start_us is not None
    assert found.best_us <= found.start_us
    assert found.measurements > 10


@pytest.mark.parametrize("to", ["triton", "flydsl", "json"])
def test_attention_starts_from_a_kernel_of_another_tool(tmp_path: Path, to: str) -> None:
    """What the file says of the kernel is the start, and the search ends no slower."""
    op = Attention(2048, 2048, 64, heads=8, dtype="f16")
    path = export_operator(op, MI300X, to, waves=2).write(tmp_path)
    meter = meter_of(op, MI300X, Source("model", start=str(path)))
    start = meter.space.start()
    assert (start["tile_q"], start["tile_kv"], start["waves"]) == (32, 64, 2)
    found = descend(meter)
    assert found.start == start
    assert found.best_us is not None
    assert found.start_us is not None
    assert found.best_us <= found.start_us


def test_attention_starts_from_the_models_best() -> None:
    op = Attention(2048, 2048, 64, heads=8, dtype="f16")
    best = next(ranked_attention(op, MI300X)).kernel
    start = meter_of(op, MI300X, Source("model", start="select")).space.start()
    assert (start["tile_q"] * start["waves"], start["tile_kv"]) == (best.block_q, best.tile_kv)


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        ({"block_q": 100, "tile_kv": 64, "waves": 3}, "evenly"),
        ({"block_q": 128, "tile_kv": 64, "dtype": "bf16"}, "type is bf16"),
    ],
)
def test_a_start_that_is_none_of_the_attention(tmp_path: Path, kernel: dict[str, Any], what: str) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({"op": "attention", "problem": {}, "hw": "mi300x", "kernels": [kernel]}))
    with pytest.raises(BadInput, match=what):
        attention_overrides(str(path), Attention(2048, 2048, 64, dtype="f16"), MI300X)
