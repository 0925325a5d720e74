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
@pytest.mark.parametrize("op", [GEMM, ATTENTION, CONV], ids=lambda op: op[0])
def test_select(run_json: Callable[..., Any], hw: str, op: tuple[object, ...]) -> None:
    answer = run_json("select", *op, "--hw", hw)
    valid(answer, "select")
    assert len(answer["runners_up"]) == 3
    times = [answer["latency_us"], *(c["latency_us"] for c in answer["runners_up"])]
    assert times == sorted(times)
    assert "bound by" in answer["why"]
    assert answer["closed_form"]["why"] in answer["why"]
    assert ("latency_us" in answer["closed_form"]) == (hw != "h200")


def test_text(run: Callable[..., Result]) -> None:
    assert "us (" in run("predict", *GEMM, "--hw", "mi325x").stdout
    assert "ahead of the next" in run("select", *GEMM, "--hw", "h200").stdout
    chosen = run("select", *GEMM, "--hw", "mi325x").stdout
    assert "faster than the closed form's tiles, which lose" in chosen
    assert "us  closed form: tile_m" in chosen


SMALL = ("gemm", "--M", 512, "--N", 512, "--K", 512, "--dtype", "bf16")
KEYS = ("attention", "--L", 512, "--d", 128, "--dtype", "bf16")
IMAGE = ("conv2d", "--N", 1, "--IC", 3, "--IH", 9, "--IW", 9, "--OC", 4, "--KH", 3, "--KW", 3)
#: Configurations that no kernel has or that the GPU does not hold: exit status and what the one line must say.
REFUSED = {
    "tile": ((*SMALL, "--tile-m", 1024, "--tile-n", 1024, "--tile-k", 64), "mi300x", 4, "of LDS, the limit is 65536 B"),
    "registers": ((*SMALL, "--tile-m", 1024, "--tile-n", 256, "--tile-k", 8), "mi300x", 4, "of registers"),
    "stages": ((*SMALL, "--tile-m", 256, "--tile-n", 256, "--tile-k", 128, "--stages", 9), "h200", 4, "of LDS"),
    "staged stages": ((*SMALL, "--stages", 99), "mi300x", 2, "at most 2"),
    "rows": ((*SMALL, "--tile-m", 17), "mi300x", 2, "tile_m=17 is not a multiple of 16"),
    "depth": ((*SMALL, "--tile-k", 5), "mi300x", 2, "tile_k=5 is not a multiple"),
    "waves": ((*SMALL, "--waves", 64), "mi300x", 4, "work-items"),
    "idle lanes": ((*SMALL, "--tile-m", 16, "--tile-n", 16, "--waves", 8), "mi300x", 2, "512 lanes for the 256"),
    "split": ((*SMALL, "--split-k", 1000), "mi300x", 2, "split_k=1000: K=512 has"),
    "queries": ((*KEYS, "--tile-q", 7), "mi300x", 2, "tile_q=7"),
    "keys": ((*KEYS, "--tile-q", 64, "--tile-kv", 512), "mi300x", 4, "of LDS"),
    "attention stages": ((*KEYS, "--stages", 9), "mi300x", 2, "stages=9"),
    "no image": (("conv2d", "--N", 0, *IMAGE[3:]), "mi300x", 2, "N=0 must be at least 1"),
    "stride": ((*IMAGE, "--stride", 0), "mi300x", 2, "stride=0"),
    "pad": ((*IMAGE, "--pad", -1), "mi300x", 2, "pad=-1"),
    "dilation": ((*IMAGE, "--dilation", -1), "mi300x", 2, "dilation=-1"),
    "large filter": ((*IMAGE, "--dilation", 5), "mi300x", 2, "no output is left"),
    "plot's suffix": ((*SMALL, "--plot", "x.foo"), "mi300x", 2, "suffixes are"),
    "plot's folder": ((*SMALL, "--plot", "/proc/none/x.svg"), "mi300x", 2, "cannot write /proc/none/x.svg"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(run: Callable[..., Result], case: str) -> None:
    if "--plot" in REFUSED[case][0]:
        pytest.importorskip("matplotlib")
    words, hw, status, says = REFUSED[case]
    result = run("predict", *words, "--hw", hw)
    assert result.exit_code == status, result.output
    assert says in result.stderr
    assert result.stdout == ""


def test_what_the_model_leaves_out_is_said(run: Callable[..., Result]) -> None:
    answer = run("predict", *SMALL, "--hw", "mi300x", "--bias", "row", "--lda", 1024).stdout
    assert "leaves out the bias, leading dimensions" in answer
    assert "not of fma" in run("predict", *KEYS, "--hw", "mi300x", "--variant", "fma").stdout


def test_c_is_read(run_json: Callable[..., Any]) -> None:
    plain, with_c = (run_json("predict", *SMALL, "--hw", "mi300x", *more) for more in ((), ("--beta-c",)))
    assert with_c["hbm_bytes"] - plain["hbm_bytes"] == 2 * 512 * 512
    assert with_c["latency_us"] > plain["latency_us"]


def test_bad_input(run: Callable[..., Result]) -> None:
    assert run("predict", *GEMM, "--hw", "mi325x", "--tile-m", 0).exit_code == 2
    refused = run("select", *GEMM[:-1], "fp8_e4m3fn", "--hw", "mi300x", "--json")
    assert refused.exit_code == 2
    assert "fp8_e4m3fnuz" in json.loads(refused.stdout)["error"]["message"]


@pytest.mark.parametrize("op", [GEMM, ATTENTION, SOFTMAX, CONV], ids=lambda op: op[0])
def test_plot(run: Callable[..., Result], tmp_path: Path, op: tuple[object, ...]) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run("predict", *op, "--hw", "mi300x", "--plot", path).exit_code == 0
    assert first.read_bytes() == second.read_bytes()


def test_plot_without_matplotlib(run_without: Callable[..., Any], tmp_path: Path) -> None:
    result = run_without(["matplotlib"], "predict", *GEMM, "--hw", "mi300x", "--plot", tmp_path / "a.svg")
    assert result.returncode == 2
    assert "pip install 'closedform[plot]'" in result.stderr
    assert not (tmp_path / "a.svg").exists()


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
