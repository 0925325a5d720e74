"""closedform tune on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

from closedform.hw.errors import BadInput, ClosedformError, NoDevice
from closedform.schemas import schema
from closedform.tuning.candidate import Candidate
from closedform.tuning.journal import Journal, Record
from closedform.tuning.model import ModelEvaluator

Run = Callable[..., Result]
RunJson = Callable[..., Any]

LANDSCAPE = Path(__file__).parent / "data" / "h200_landscape.csv"
ATTENTION_LANDSCAPE = LANDSCAPE.with_name("h200_attention_landscape.csv")


TABLE = ("tune", "gemm", "--M", 8192, "--N", 16, "--K", 2048, "--dtype", "bf16", "--hw", "h200", "--evaluator", "table")


def test_json_follows_its_schema(run_json: RunJson, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    pytest.importorskip("matplotlib")
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
        (("--plot", "no/such/folder/x.svg"), 2),
        (("--client", "x"), 2),
        (("--blocks", 3), 2),
        (("--table", LANDSCAPE), 2),
    ],
)
def test_bad_input_of_the_command(run: Run, arguments: tuple[object, ...], status: int) -> None:
    base = ("tune", "attention", "--L", 128, "--d", 64, "--dtype", "f16", "--hw", "mi300x", "--evaluator", "model")
    assert run(*base, *arguments).exit_code == status


OWN = (
    "tune",
    "gemm",
    "--M",
    4096,
    "--N",
    4096,
    "--K",
    4096,
    "--dtype",
    "bf16",
    "--hw",
    "mi300x",
    "--evaluator",
    "model",
)


def test_no_plot_is_found_out_before_the_search(run: Run, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    assert run(*OWN, "--plot", tmp_path / "plot.nothing", "--journal", journal).exit_code == 2
    assert not journal.exists()


def test_the_grid_has_the_budget_of_the_rounds(run_json: RunJson) -> None:
    answer = run_json(*OWN, "--grid", "--budget", 30)
    assert answer["measurements"] == answer["grid"]["measurements"] == 30


def test_no_time_at_all_is_bad_input(run: Run) -> None:
    result = run(*OWN, "--seconds", 1e-9)
    assert result.exit_code == 2
    assert "before the first measurement" in result.stderr


def test_a_lost_journal_loses_no_result(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, add = tmp_path / "journal.jsonl", Journal.add

    def losing(self: Journal, record: Record, identity: Mapping[str, object]) -> Record:
        if len(self) == 9:
            journal.unlink()
        return add(self, record, identity)

    monkeypatch.setattr(Journal, "add", losing)
    result = run(*OWN, "--journal", journal, "--grid")
    assert result.exit_code == 2
    assert "stopped   journal: 9 measurements" in result.stdout
    assert "cannot use" in result.stderr


@pytest.mark.parametrize(("error", "status"), [(NoDevice("the GPU is gone"), 3), (BadInput("no such client"), 2)])
def test_an_evaluator_that_ends_half_way_loses_no_result(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ClosedformError, status: int
) -> None:
    measure, count = ModelEvaluator.measure, 0

    def gone(self: ModelEvaluator, candidate: Candidate) -> float:
        nonlocal count
        count += 1
        if count == 10:
            raise error
        return measure(self, candidate)

    monkeypatch.setattr(ModelEvaluator, "measure", gone)
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.svg"
    result = run(*OWN, "--grid", "--plot", plot)
    assert result.exit_code == status
    assert "stopped   evaluator: 9 measurements" in result.stdout
    assert str(error) in result.stderr
    assert plot.exists()
    count = 9
    assert run(*OWN).stdout == ""  # nothing was measured: the error alone


@pytest.mark.parametrize(
    "option", [("--start", "derive"), ("--bias", "row"), ("--lda", 4096), ("--activation", "relu")]
)
@pytest.mark.parametrize("base", ["table", "model"])
def test_what_a_lattice_does_not_know_is_refused(run: Run, base: str, option: tuple[object, ...]) -> None:
    table = (*TABLE, "--table", LANDSCAPE)
    result = run(*(table if base == "table" else (*TABLE[:-1], "model")), *option)
    assert result.exit_code == 2
    assert "starts from select" in result.stderr or "knows nothing of" in result.stderr


def test_rows_that_are_there_twice_are_said(run: Run, tmp_path: Path) -> None:
    text = LANDSCAPE.read_text()
    path = tmp_path / "twice.csv"
    path.write_text(text + "".join(text.splitlines(keepends=True)[1:]))
    result = run(*TABLE, "--table", path)
    assert result.exit_code == 0
    assert "configurations twice" in result.stderr


def test_a_foreign_journal_is_bad_input(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("notes\n")
    result = run(*TABLE, "--table", LANDSCAPE, "--journal", path)
    assert result.exit_code == 2
    assert path.read_text() == "notes\n"
