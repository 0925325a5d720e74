"""The descent under adversarial evaluators, the journal under kills and company, evaluators, and the command."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from closedform.decoding.errors import Undecodable
from closedform.hw import catalogue
from closedform.hw.errors import BadInput, MissingDependency, NoDevice
from closedform.interop.tensilelite_rules import RULES, Solution
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm
from closedform.operators.softmax import Softmax
from closedform.schemas import schema
from closedform.tuning.candidate import Candidate, canonical
from closedform.tuning.descent import Plan, descend
from closedform.tuning.evaluator import EvaluationFailed
from closedform.tuning.grid import one_shot
from closedform.tuning.journal import Journal, JournalError, Record
from closedform.tuning.lattice_space import attention_space, gemm_space
from closedform.tuning.measuring import Budget, Meter
from closedform.tuning.operator_space import OperatorSpace
from closedform.tuning.session import NothingMeasured, Source, meter_of, run_tuning
from closedform.tuning.space import opened, size_of
from closedform.tuning.table import TableEvaluator, read_landscapes
from closedform.tuning.trajectory import Trajectory
from closedform.visitors.compile import missing_dependency

from .tuning_child import Bowl

Run = Callable[..., Result]
RunJson = Callable[..., Any]

LANDSCAPE = Path(__file__).parent / "data" / "h200_landscape.csv"
ATTENTION_LANDSCAPE = LANDSCAPE.with_name("h200_attention_landscape.csv")
MI300X = catalogue.get("mi300x")
PRODUCT = Gemm(4096, 4096, 4096, dtype="bf16")


class Adversary(Bowl):
    """Every measurement is what `outcome` makes of the true time; the first of the start is 100 times too slow."""

    def __init__(self, outcome: Callable[[float], float], slow_start: bool = False) -> None:
        super().__init__()
        self.outcome, self.slow_start = outcome, slow_start

    def measure(self, candidate: Candidate) -> float:
        true = super().measure(candidate)
        if self.slow_start and len(self.calls) == 1:
            return 100 * true
        return self.outcome(true)


def times_of(found: Trajectory) -> list[float]:
    """The start's time and the incumbent's after each round."""
    return [us for us in (found.start_us, *(r.latency_us for r in found.rounds)) if us is not None]


def searched(bowl: Bowl, budget: Budget | None = None, journal: Journal | None = None) -> Trajectory:
    return descend(Meter(bowl, bowl, Journal() if journal is None else journal, budget or Budget()))


def test_the_bottom_is_found_in_rounds() -> None:
    found = searched(Bowl())
    assert (dict(found.best), found.best_us, found.stopped) == ({"a": 5, "b": 2, "c": 6}, 10.0, "done")
    first, second = found.rounds[:2]
    assert (first.enumerated, first.legal, second.enumerated, second.legal) == (64, 63, 8, 7)
    assert first.adopted
    assert not found.rounds[-1].adopted


KINDS = st.sampled_from(("true", "noise", "tie", "nan", "inf", "negative", "zero", "failure", "timeout", "driver"))


@settings(max_examples=25, deadline=None)
@given(st.lists(KINDS, min_size=1, max_size=12), st.integers(0, 2**32), st.booleans(), st.none() | st.integers(1, 90))
def test_no_evaluator_makes_it_slower(kinds: list[str], seed: int, slow: bool, budget: int | None) -> None:
    """Never above the start, never rising, never over the budget, and no gain that a second measurement denies."""
    dice = random.Random(seed)
    calls = 0

    def outcome(true: float) -> float:
        nonlocal calls
        calls += 1
        kind = kinds[calls % len(kinds)]
        if kind == "failure":
            raise EvaluationFailed("does not launch")
        if kind == "timeout":
            raise TimeoutError("too long")
        if kind == "driver":
            raise RuntimeError("illegal access")
        values = {"nan": math.nan, "inf": math.inf, "negative": -true, "zero": 0.0, "tie": 20.0}
        return values.get(kind, true * (math.exp(dice.gauss(0, 1)) if kind == "noise" else 1))

    bowl = Adversary(outcome, slow)
    journal = Journal()
    found = searched(bowl, Budget(evaluations=budget), journal)
    times = times_of(found)
    assert times == sorted(times, reverse=True)
    assert all(us > 0 and math.isfinite(us) for us in times)
    assert found.measurements == len(bowl.calls) <= (budget or math.inf)
    assert max(Counter(bowl.calls).values()) <= 3
    task = Meter(bowl, bowl).task
    if found.best != found.start:
        own = [journal.find(task, found.best, repeat) for repeat in range(2)]
        assert found.best_us is not None
        assert all(r is not None and r.latency_us is not None and r.latency_us <= found.best_us for r in own) or (
            journal.find(task, found.best, 2) is not None
        )
        assert found.start_us is None or found.best_us < found.start_us


def test_an_inflated_start_is_no_gain() -> None:
    """The start 100 times too slow at first: the second measurement, and a third, say so."""
    found = searched(Adversary(lambda true: true, slow_start=True))
    assert found.start_us == 75.0
    assert found.gain == pytest.approx(7.5)


def test_a_tie_is_not_adopted() -> None:
    found = searched(Adversary(lambda _: 20.0))
    assert found.best == found.start
    assert not any(r.adopted for r in found.rounds)


def test_one_lucky_measurement_is_not_believed() -> None:
    """A candidate that is fast once and slow when measured again stays out."""
    bowl = Bowl()
    seen: set[str] = set()

    def lucky(candidate: Candidate) -> float:
        new = canonical(candidate) not in seen
        seen.add(canonical(candidate))
        return 1.0 if new and candidate["a"] == 7 else 50.0

    bowl.measure = lucky  # type: ignore[method-assign]
    found = searched(bowl)
    assert found.best == found.start
    assert found.best_us == 50.0


@given(st.integers(0, 7), st.integers(0, 7))
def test_the_incumbent_is_in_every_list(a: int, b: int) -> None:
    (first, _), incumbent = Bowl().rounds(), {"a": a, "b": b, "c": 0}
    combinations = list(opened(first, incumbent))
    assert combinations[0] == {"a": a, "b": b}
    assert len(combinations) == len({canonical(c) for c in combinations}) == size_of(first, incumbent)


def test_what_never_measures_has_no_best() -> None:
    def fail(true: float) -> float:
        raise EvaluationFailed("nothing runs")

    found = searched(Adversary(fail))
    assert found.best_us is None
    assert found.gain is None


def test_a_budget_counts_what_the_journal_holds(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    short = searched(Bowl(), Budget(evaluations=20), Journal(path))
    assert (short.measurements, short.stopped) == (20, "budget")
    again = searched(Bowl(), Budget(evaluations=20), Journal(path))
    assert (again.evaluated, again.measurements, again.best_us) == (0, 20, short.best_us)


def test_a_time_budget_ends_the_search() -> None:
    found = searched(Bowl(seconds=0.01), Budget(seconds=0.05))
    assert found.stopped == "time"
    assert found.measurements < 10


@pytest.mark.parametrize("at", [1, 2, 7, 40, 66])
def test_an_interrupt_loses_nothing(tmp_path: Path, at: int) -> None:
    """Ctrl-C at any measurement; the next run measures the rest, and comes to the same end."""
    whole = searched(Bowl())
    path = tmp_path / "journal.jsonl"
    bowl = Bowl()
    measure = bowl.measure

    def interrupted(candidate: Candidate) -> float:
        if len(bowl.calls) + 1 == at:
            raise KeyboardInterrupt
        return measure(candidate)

    bowl.measure = interrupted  # type: ignore[method-assign]
    first = searched(bowl, journal=Journal(path))
    assert first.stopped == "interrupted"
    second_bowl = Bowl()
    second = searched(second_bowl, journal=Journal(path))
    assert Counter(bowl.calls) + Counter(second_bowl.calls) == Counter(measured(whole))
    assert (second.best, second.best_us, second.measurements) == (whole.best, whole.best_us, whole.measurements)
    assert [r.latency_us for r in second.rounds] == [r.latency_us for r in whole.rounds]


def measured(found: Trajectory) -> list[str]:
    bowl = Bowl()
    assert searched(bowl).best == found.best
    return bowl.calls


def child(journal: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("tuning_child.py")
    command = [sys.executable, str(script), str(journal), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_kill_9_loses_nothing(tmp_path: Path) -> None:
    """Killed in the middle, then resumed: all that was written is used, only what was under way is measured again."""
    journal, log = tmp_path / "journal.jsonl", tmp_path / "log"
    process = child(journal, log, 0.02)
    while not log.exists() or log.read_text().count("\n") < 12:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(Journal(journal))
    assert kept >= 11
    out, _ = child(journal, log, 0).communicate()
    whole = Bowl()
    found = searched(whole)
    assert out.split() == [canonical(found.best), str(found.best_us)]
    logged = Counter(log.read_text().split())
    assert sum((logged - Counter(whole.calls)).values()) <= 1
    assert len(Journal(journal)) == found.measurements


def test_two_processes_share_a_journal(tmp_path: Path) -> None:
    journal, log = tmp_path / "journal.jsonl", tmp_path / "log"
    both = [child(journal, log, 0.003) for _ in range(2)]
    ends = [process.communicate()[0] for process in both]
    found = searched(Bowl())
    assert ends == [f"{canonical(found.best)} {found.best_us}\n"] * 2
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    keys = [(line["task"], canonical(line["candidate"]), line["repeat"]) for line in lines if "candidate" in line]
    assert len(keys) == len(set(keys)) == found.measurements


FOREIGN = [
    ("", "empty"),
    ("hello\n", "line 1"),
    ('{"journal": "another"}\n', "first line"),
    ('{"journal":"closedform tune","version":1}\n{"task":"a"', "cut off"),
    ('{"journal":"closedform tune","version":1}\n{"task":"a"}\n', "line 2"),
    ('{"journal":"closedform tune","version":1}\n[]\n', "line 2"),
    ('{"journal":"closedform tune","version":2}\n', "first line"),
]


@pytest.mark.parametrize(("text", "what"), FOREIGN)
def test_a_foreign_journal_is_left_alone(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    with pytest.raises(JournalError, match=what):
        Journal(path)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_another_task_is_another_measurement(tmp_path: Path) -> None:
    """Nothing is taken from a task that differs in anything that can change a winner."""
    space = OperatorSpace(PRODUCT, MI300X)
    others = (
        OperatorSpace(dataclasses.replace(PRODUCT, ldb=8192), MI300X),
        OperatorSpace(dataclasses.replace(PRODUCT, layout="NT"), MI300X),
        OperatorSpace(dataclasses.replace(PRODUCT, dtype="f16"), MI300X),
        OperatorSpace(PRODUCT, MI300X.with_cus(80)),
        OperatorSpace(PRODUCT, catalogue.get("mi325x")),
    )
    tasks = {Meter(one, Bowl()).task for one in (space, *others)}
    assert len(tasks) == len(others) + 1


def test_a_mature_pool_leaves_the_tile_round_out() -> None:
    space = OperatorSpace(PRODUCT, MI300X)
    meter = meter_of(PRODUCT, MI300X, Source("model"), budget=Budget(evaluations=30))
    assert next(r.name for r in space.rounds()) == "tile"
    assert "tile" not in [r.name for r in descend(meter, Plan(pool_maturity=0.6)).rounds]


# Evaluators and spaces


@pytest.mark.parametrize("table", [LANDSCAPE, ATTENTION_LANDSCAPE], ids=["gemm", "attention"])
def test_the_landscape_is_searched_well_within_40_measurements(table: Path) -> None:
    """benchmarks/tune_h200.py prints the same for every problem of the measured tables."""
    hw = catalogue.get("h200")
    shares, grids = [], []
    for landscape in read_landscapes(table, hw):
        op = landscape.op
        space = attention_space(op, hw, landscape.causal) if isinstance(op, Attention) else gemm_space(op, hw)
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
    [("M,N\n1,2\n", "no column"), ("M,N,K,dtype,layout,us,BM,BN,BK\n1,2,3,bf16,NN,x,16,16,32\n", "line 2")],
)
def test_a_table_that_is_none(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=what):
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
        (PRODUCT, Source("table", LANDSCAPE, start="derive"), BadInput, "starts from select"),
        (OPERATORS[3], Source("table", LANDSCAPE), BadInput, "does not time conv2d"),
        (OPERATORS[2], Source("table", ATTENTION_LANDSCAPE), BadInput, "has not the attention"),
        (OPERATORS[2], Source("tensilelite"), BadInput, "does not time attention"),
        (OPERATORS[2], Source("model", causal=True), BadInput, "has no mask"),
        (OPERATORS[2], Source("model", start="select"), BadInput, "starts from derive"),
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


# The command


TABLE = ("tune", "gemm", "--M", 8192, "--N", 16, "--K", 2048, "--dtype", "bf16", "--hw", "h200", "--evaluator", "table")


def test_json_follows_its_schema(run_json: RunJson, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    answer = run_json(*TABLE, "--table", LANDSCAPE, "--grid", "--budget", 40, "--plot", plot)
    assert list(Draft202012Validator(schema("tune")).iter_errors(answer)) == []
    assert answer["measurements"] <= 40
    assert answer["grid"]["method"] == "grid"
    assert plot.read_text().startswith("<?xml")


def test_attention_of_a_table(run_json: RunJson) -> None:
    shape = ("--L", 1024, "--d", 128, "--heads", 16, "--batch", 16, "--dtype", "bf16", "--hw", "h200")
    answer = run_json("tune", "attention", *shape, "--evaluator", "table", "--table", ATTENTION_LANDSCAPE)
    assert answer["best"]["tile_q"] >= 16
    assert answer["best_us"] <= answer["start_us"]


def test_a_journal_is_resumed_by_the_command(run_json: RunJson, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    first = run_json(*TABLE, "--table", LANDSCAPE, "--journal", journal)
    second = run_json(*TABLE, "--table", LANDSCAPE, "--journal", journal)
    assert first["evaluated"] == first["measurements"] == second["measurements"]
    assert second["evaluated"] == 0
    assert second["best"] == first["best"]


def test_the_table_of_rounds(run: Run) -> None:
    shown = run("tune", "attention", "--L", 1024, "--d", 64, "--dtype", "f16", "--hw", "mi300x", "--evaluator", "model")
    assert shown.exit_code == 0
    assert "enumerated  legal  measured" in shown.stdout
    assert "stopped   done" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--budget", 0), 2),
        (("--seconds", -1), 2),
        (("--pool-maturity", 2), 2),
        (("--evaluator", "nothing"), 2),
        (("--plot", "x.nothing"), 2),
    ],
)
def test_bad_input_of_the_command(run: Run, arguments: tuple[object, ...], status: int) -> None:
    base = ("tune", "attention", "--L", 128, "--d", 64, "--dtype", "f16", "--hw", "mi300x", "--evaluator", "model")
    assert run(*base, *arguments).exit_code == status


def test_a_foreign_journal_is_bad_input(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("notes\n")
    result = run(*TABLE, "--table", LANDSCAPE, "--journal", path)
    assert result.exit_code == 2
    assert path.read_text() == "notes\n"


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


def test_records_are_found_by_value() -> None:
    journal, identity = Journal(), {"op": "x"}
    identity_map: Mapping[str, object] = identity
    kept = journal.add(Record("t", {"a": 1, "b": True}, 0, 2.0), identity_map)
    assert journal.find("t", {"b": True, "a": 1}, 0) is kept
    assert journal.find("t", {"b": 1, "a": 1}, 0) is None
