"""closedform hw list | show | atoms."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from closedform.hw import catalogue

Run = Callable[..., Result]


def test_list_names_every_gpu(run: Run) -> None:
    result = run("hw", "list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(catalogue.names())
    assert result.stderr == ""


def test_list_peaks_are_computed(run_json: Callable[..., Any]) -> None:
    for entry in run_json("hw", "list")["hardware"]:
        hw = catalogue.get(entry["name"])
        assert entry["peak_tflops"]["f32"] == round(hw.peak_tflops("f32"), 1)


@pytest.mark.parametrize("name", catalogue.names())
def test_show_gives_a_source_for_every_number(run: Run, name: str) -> None:
    result = run("hw", "show", name)
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    column = header.index("source")
    assert [row for row in rows if not row[column:].strip() and not row.startswith("name ")] == []


@pytest.mark.parametrize("name", catalogue.names())
def test_atoms_lists_every_instruction(run_json: Callable[..., Any], name: str) -> None:
    listed = run_json("hw", "atoms", name)["atoms"]
    assert len(listed) == len(catalogue.get(name).atoms)
    assert all(atom["emit"] or atom["emit_reason"] for atom in listed)


def test_atoms_resolves_the_flavour_of_fp8(run_json: Callable[..., Any]) -> None:
    assert {a["dtype_a"] for a in run_json("hw", "atoms", "mi300x", "--dtype", "fp8")["atoms"]} >= {"fp8_e4m3fnuz"}


def test_atoms_as_text_say_why_not_emitted(run: Run) -> None:
    assert "no: " in run("hw", "atoms", "mi100").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "mi300"), "did you mean mi300x"),
        (("show", "zzz"), "known: mi100"),
        (("show", "nowhere.toml"), "nowhere.toml"),
        (("atoms", "mi300x", "--dtype", "fp8_e4m3fn"), "use fp8_e4m3fnuz"),
        (("atoms", "mi210", "--dtype", "fp8"), "has no fp8"),
        (("atoms", "mi210", "--dtype", "f23"), "did you mean f32"),
    ],
)
def test_bad_names_exit_2_with_one_line(run: Run, arguments: tuple[str, ...], says: str) -> None:
    result = run("hw", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_errors_are_json_too(run: Run) -> None:
    result = run("hw", "show", "mi300", "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "BadInput"
    assert error["exit_status"] == 2
    assert "mi300x" in error["message"]
