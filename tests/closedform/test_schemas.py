"""Every --json output against its shipped schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

from closedform.bench import Timing
from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.schemas import names, schema

RunJson = Callable[..., Any]
SHAPE = ("--L", 300, "--d", 64, "--hw", "mi300x")


def assert_valid(value: Any, name: str) -> None:
    errors = [e.json_path + ": " + e.message for e in Draft202012Validator(schema(name)).iter_errors(value)]
    assert errors == []


@pytest.mark.parametrize("name", names())
def test_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert schema(name)["title"]


def test_there_is_one_for_each_output() -> None:
    expected = "bench check compare decode decode_attention derive doctor emit emit_unfused error export fit hw_atoms "
    expected += "hw_list hw_show kernels manifest predict profile select simulate tune"
    assert list(names()) == expected.split()


def test_unknown_schema() -> None:
    with pytest.raises(BadInput, match="did you mean derive"):
        schema("derives")


def test_hw_list(run_json: RunJson) -> None:
    assert_valid(run_json("hw", "list"), "hw_list")


@pytest.mark.parametrize("name", catalogue.names())
def test_hw_show_and_atoms(run_json: RunJson, name: str) -> None:
    assert_valid(run_json("hw", "show", name), "hw_show")
    assert_valid(run_json("hw", "atoms", name), "hw_atoms")


@pytest.mark.parametrize("model", ["default", "paper"])
@pytest.mark.parametrize("hw", catalogue.names())
def test_derive_attention(run_json: RunJson, hw: str, model: str) -> None:
    answer = run_json("derive", "attention", "--L", 16384, "--d", 128, "--hw", hw, "--model", model)
    assert_valid(answer, "derive")
    assert answer["feasible"]


@pytest.mark.parametrize("hw", catalogue.names())
def test_derive_gemm(run_json: RunJson, hw: str) -> None:
    assert_valid(run_json("derive", "gemm", "--M", 4096, "--N", 4096, "--K", 4096, "--hw", hw), "derive")


def test_infeasible_derivation(run: Callable[..., Result], small_gpu: Callable[..., Path]) -> None:
    gpu = small_gpu(lds_bytes=2048, lds_max_per_workgroup_bytes=2048)
    result = run("derive", "attention", "--L", 256, "--d", 128, "--hw", gpu, "--json")
    answer = json.loads(result.stdout)
    assert_valid(answer, "derive")
    assert_valid({"error": answer["error"]}, "error")


def test_emit_and_manifest(run_json: RunJson, tmp_path: Path) -> None:
    answer = run_json("emit", "attention", *SHAPE, "--no-compile", "--explain", "--out", tmp_path)
    assert_valid(answer, "emit")
    assert_valid(answer["derivation"], "derive")
    assert_valid(json.loads(Path(answer["manifest"]).read_text()), "manifest")


def test_options_of_attention(run_json: RunJson, tmp_path: Path) -> None:
    options = ("--heads", 8, "--kv-heads", 2, "--scale", 0.5, "--lse")
    answer = run_json("emit", "attention", *SHAPE, *options, "--no-compile", "--explain", "--out", tmp_path)
    op = answer["derivation"]["op"]
    assert (op["kv_heads"], op["softmax_scale"], op["lse"]) == (2, 0.5, True)
    assert_valid(answer["derivation"], "derive")
    assert_valid(json.loads(Path(answer["manifest"]).read_text()), "manifest")


def test_check(run_json: RunJson) -> None:
    assert_valid(run_json("check", "attention", "--L", 40, "--d", 24, "--hw", "mi210"), "check")


def test_doctor(run_json: RunJson) -> None:
    assert_valid(run_json("doctor", "--no-compile"), "doctor")


def test_bench() -> None:
    assert_valid(Timing("kernel", "mi300x", 100.0, 90.0, 50, 3, 80.0, 160.0, 600.0, 5300.0).to_json(), "bench")


@pytest.mark.parametrize(
    "arguments", [("hw", "show", "mi300"), ("derive", "attention", "--L", 0, "--d", 4), ("emit", "nothing")]
)
def test_errors(run: Callable[..., Result], arguments: tuple[object, ...]) -> None:
    assert_valid(json.loads(run(*arguments, "--json").stdout), "error")
