"""The commands predict, select and fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

from closedform.schemas import schema

GEMM = ("gemm", "--M", 512, "--N", 1024, "--K", 2048, "--dtype", "bf16")
ATTENTION = ("attention", "--L", 1024, "--d", 128, "--heads", 8, "--dtype", "bf16", "--causal")
SOFTMAX = ("softmax", "--rows", 512, "--cols", 1024, "--dtype", "bf16")
CONV = ("conv2d", "--N", 1, "--IC", 64, "--IH", 28, "--IW", 28, "--OC", 64, "--KH", 3, "--KW", 3, "--dtype", "bf16")


def valid(value: Any, name: str) -> None:
    assert [e.message for e in Draft202012Validator(schema(name)).iter_errors(value)] == []


@pytest.mark.parametrize("hw", ["mi100", "mi300x", "mi355x", "h200"])
@pytest.mark.parametrize("op", [GEMM, ATTENTION, SOFTMAX, CONV], ids=lambda op: op[0])
def test_predict(run_json: Callable[..., Any], hw: str, op: tuple[object, ...]) -> None:
    answer = run_json("predict", *op, "--hw", hw)
    valid(answer, "predict")
    assert answer["low_us"] < answer["latency_us"] < answer["high_us"]


@pytest.mark.parametrize("hw", ["mi100", "mi325x", "h200"])
@pytest.mark.parametrize("op", [GEMM, ATTENTION], ids=lambda op: op[0])
def test_select(run_json: Callable[..., Any], hw: str, op: tuple[object, ...]) -> None:
    answer = run_json("select", *op, "--hw", hw)
    valid(answer, "select")
    assert len(answer["runners_up"]) == 3
    times = [answer["latency_us"], *(c["latency_us"] for c in answer["runners_up"])]
    assert times == sorted(times)
    assert "bound by" in answer["why"]


def test_text(run: Callable[..., Result]) -> None:
    assert "us (" in run("predict", *GEMM, "--hw", "mi325x").stdout
    assert "ahead of the next" in run("select", *GEMM, "--hw", "h200").stdout


def test_bad_input(run: Callable[..., Result]) -> None:
    assert run("predict", *GEMM, "--hw", "mi325x", "--tile-m", 0).exit_code == 2
    refused = run("select", *GEMM[:-1], "fp8_e4m3fn", "--hw", "mi300x", "--json")
    assert refused.exit_code == 2
    assert "fp8_e4m3fnuz" in json.loads(refused.stdout)["error"]["message"]


def test_plot(run: Callable[..., Result], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run("predict", *GEMM, "--hw", "mi300x", "--plot", path).exit_code == 0
    assert first.read_bytes() == second.read_bytes()


def test_fit(run_json: Callable[..., Any], run: Callable[..., Result], tmp_path: Path) -> None:
    lines = ["M,N,K,dtype,layout,us,tile_m,tile_n,tile_k"]
    lines += [
        f"{m},{n},4096,bf16,NT,{5 + m * n / 4e5},128,128,64" for m in (256, 1024, 4096) for n in (256, 1024, 4096)
    ]
    table, out = tmp_path / "t.csv", tmp_path / "c.csv"
    table.write_text("\n".join(lines))
    answer = run_json("fit", table, "--hw", "mi300x", "--out", out, "--folds", 3)
    valid(answer, "fit")
    assert answer["factor_after"] <= answer["factor_before"]
    assert out.read_text().startswith("family,gpu,name")
    table.write_text("M,N\n")
    assert run("fit", table, "--hw", "mi300x").exit_code == 2
