"""Kernels of attention and convolution read back: what export wrote, options that a target refuses, the comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

import closedform
from closedform.decoding.attention import AttentionExplanation, DecodedAttention
from closedform.decoding.decoded import Decoded
from closedform.decoding.readers import decoded
from closedform.hw import catalogue
from closedform.interop.exporting import export_gemm, export_operator
from closedform.interop.tools import ATTENTION_TOOLS, CONV2D_TOOLS
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm
from closedform.schemas import schema

Run = Callable[..., Result]
RunJson = Callable[..., Any]
OP = Attention(2048, 2048, 64, heads=8, dtype="f16")
CONV = Conv2d(8, 64, 56, 56, 64, 3, 3, pad=1, dtype="bf16")
GEMM = Gemm(2048, 2048, 2048, dtype="bf16", layout="NT")


@pytest.mark.parametrize("tool", [pytest.param(tool, id=f"{tool.name}{tool.suffix}") for tool in ATTENTION_TOOLS])
def test_attention_is_read_back(run_json: RunJson, tmp_path: Path, tool: Any) -> None:
    hw = catalogue.get("mi355x")
    made = export_operator(OP, hw, tool.name, form=tool.suffix)
    path = made.write(tmp_path)
    (found,) = decoded(str(path), hw)
    assert isinstance(found, DecodedAttention)
    assert found.kernel == made.offers[0].kernel.only(tool.carries)
    assert not found.refusals
    assert found.measured_us is None
    answer = run_json("decode", path, "--hw", "mi355x", "--dtype", "f16", *lengths(found))
    assert list(Draft202012Validator(schema("decode_attention")).iter_errors(answer)) == []
    assert (answer["legal"], answer["problem"]["d"]) == (True, 64)
    assert (answer["slower_by"] == pytest.approx(0)) == (made.offers[0].kernel.tile_kv == 64)


def lengths(found: DecodedAttention) -> tuple[object, ...]:
    return () if found.op is not None else ("--L", 2048, "--d", 64, "--heads", 8)


@pytest.mark.parametrize("tool", [pytest.param(tool, id=f"{tool.name}{tool.suffix}") for tool in CONV2D_TOOLS])
def test_convolutions_are_read_back(run_json: RunJson, tmp_path: Path, tool: Any) -> None:
    hw = catalogue.get("mi355x")
    made = export_operator(CONV, hw, tool.name, form=tool.suffix)
    path = made.write(tmp_path)
    (found,) = decoded(str(path), hw)
    kernel = made.offers[0].kernel
    assert isinstance(found, Decoded)
    assert (found.kernel.tile_m, found.kernel.tile_n, found.kernel.tile_k) == (
        *(kernel.tile_m, kernel.tile_n, kernel.tile_k),
    )
    assert not found.refusals
    if tool.name != "triton":  # its names are those of a product
        assert "output pixels" in found.notes[0]
    answer = run_json("decode", path, "--hw", "mi355x", "--dtype", "bf16")
    assert list(Draft202012Validator(schema("decode")).iter_errors(answer)) == []
    assert answer["legal"]


FILES = [
    (GEMM, "inductor", None, "kpack"),
    (GEMM, "tilelang", None, "k_pack"),
    (GEMM, "aiter", "json", "kpack"),
    (GEMM, "triton", None, "kpack"),
    (GEMM, "triton", "json", "kpack"),
    (OP, "inductor", None, "kpack"),
    (OP, "tilelang", None, "k_pack"),
    (OP, "triton", "json", "kpack"),
    (CONV, "inductor", None, "kpack"),
]


@pytest.mark.parametrize(("op", "to", "form", "name"), FILES)
def test_kpack_is_1_where_instructions_are_deep(tmp_path: Path, op: Any, to: str, form: str | None, name: str) -> None:
    """What is for gfx942 packs two, which gfx950 refuses."""
    export = export_gemm if isinstance(op, Gemm) else export_operator
    path = export(op, catalogue.get("mi300x"), to, form=form).write(tmp_path)
    (found,) = decoded(str(path), catalogue.get("mi300x"))
    assert not found.refusals
    assert found.parameters
    (found,) = decoded(str(path), catalogue.get("mi355x"))
    assert f"{name}: 2 where gfx950 takes 1" in found.refusals


@pytest.mark.parametrize(
    ("tile", "rule"), [("112x128x64", "tile m"), ("128x96x64", "tile n and k"), ("128x128x32", "tile n and k")]
)
def test_tiles_of_aiter_are_those_of_its_list(tile: str, rule: str) -> None:
    name = (
        f"flydsl_gemm2_abf16_wbf16_bf16_t{tile}_split_k1_block_m_warp1_block_n_warp2_block_k_warp1"
        "_async_copyFalse_b_to_ldsTrue_b_preshuffleFalse_c_to_ldsFalse_gfx942"
    )
    (found,) = decoded(name, catalogue.get("mi300x"))
    assert [refusal for refusal in found.refusals if refusal.startswith(rule)]
    (found,) = decoded(name.replace(tile, "128x128x64"), catalogue.get("mi300x"))
    assert not found.refusals


def test_a_table_of_aiters_attention_has_its_forward_kernels(tmp_path: Path) -> None:
    words = {"BLOCK_M": 128, "BLOCK_N": 64, "PRELOAD_V": False, "waves_per_eu": 2, "num_warps": 4, "num_stages": 1}
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"fwd": {"default": words, "pe": {**words, "num_warps": 3}}, "bkwd_onekernel": {}}))
    first, second = decoded(str(path), catalogue.get("mi300x"))
    assert isinstance(first, DecodedAttention)
    assert (first.kernel.block_q, first.kernel.tile_kv, first.kernel.waves, first.refusals) == (128, 64, 4, ())
    assert "power of two" in second.refusals[0]


def test_a_cache_of_attention_has_measured_times(tmp_path: Path) -> None:
    config = {"kwargs": {"BLOCK_M": 128, "BLOCK_N": 64, "matrix_instr_nonkdim": 16}, "num_warps": 4, "num_stages": 1}
    path = tmp_path / "flash.autotune.json"
    path.write_text(json.dumps({"key": [], "configs_timings": [[config, 0.5]]}))
    (found,) = decoded(str(path), catalogue.get("mi300x"))
    assert isinstance(found, DecodedAttention)
    assert (found.measured_us, found.kernel.mfma_m) == (500, 16)


@pytest.mark.parametrize(
    ("kernel", "problem", "reason"),
    [
        ({"block_q": 1024, "tile_kv": 512, "waves": 4}, {}, "LDS"),
        ({"block_q": 128, "tile_kv": 64, "mfma_m": 64}, {}, "no matrix instruction of 64 rows"),
        ({"block_q": 128, "tile_kv": 64, "mfma": [32, 32, 16, 1]}, {}, "no matrix instruction of 32x32x16x1"),
        ({"block_q": 128, "tile_kv": 64, "waves": 32}, {}, "work-items"),
    ],
)
def test_what_a_gpu_does_not_hold_is_said(
    run_json: RunJson, tmp_path: Path, kernel: dict[str, Any], problem: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "kernels.json"
    own = {"L_q": 64, "L_kv": 64, "d": 128, "dtype": "f16", **problem}
    path.write_text(json.dumps({"op": "attention", "problem": own, "hw": "mi300x", "kernels": [kernel]}))
    answer = run_json("decode", path, "--hw", "mi300x")
    assert not answer["legal"]
    assert answer["predicted_us"] is None
    assert reason in " ".join(answer["reasons"])


def test_text_and_notices(run: Run, tmp_path: Path) -> None:
    path = export_operator(OP, catalogue.get("mi300x"), "inductor").write(tmp_path)
    shown = run("decode", path, "--hw", "mi300x", "--dtype", "f16", "--L", 2048, "--d", 64)
    assert shown.exit_code == 0
    assert "queries 128  keys 64" in shown.stdout
    assert "attention L_q=2048 L_kv=2048 d=64 heads=16" in shown.stdout
    assert "choose with --L, --d and --heads" in shown.stderr
    path = export_operator(OP, catalogue.get("mi300x"), "json").write(tmp_path)
    shown = run("decode", path, "--hw", "mi300x", "--L", 64)
    assert "names its attention: --L, --d and --heads are not used" in shown.stderr


@pytest.mark.parametrize(
    ("op", "arguments", "what"),
    [(OP, ("--M", 64), "--M: the kernel is of attention"), (GEMM, ("--d", 64), "--d: the kernel is of a product")],
)
def test_extents_of_another_operator_are_refused(
    run: Run, tmp_path: Path, op: Any, arguments: tuple[object, ...], what: str
) -> None:
    made = closedform.export(op, "mi300x", "triton")
    result = run("decode", made.write(tmp_path), "--hw", "mi300x", "--dtype", "f16", *arguments)
    assert result.exit_code == 2
    assert what in result.stderr


def test_the_library_explains_attention(tmp_path: Path) -> None:
    path = closedform.export(OP, "mi300x", "triton").write(tmp_path)
    (answer,) = closedform.decode(path, "mi300x", attention=OP)
    assert isinstance(answer, AttentionExplanation)
    assert (answer.op, answer.slower_by) == (OP, pytest.approx(0))


def test_attention_is_no_start_of_a_product(run: Run, tmp_path: Path) -> None:
    path = closedform.export(OP, "mi300x", "triton").write(tmp_path)
    sizes = ("--M", 256, "--N", 256, "--K", 256, "--dtype", "f16", "--hw", "mi300x")
    result = run("tune", "gemm", *sizes, "--evaluator", "model", "--start", path)
    assert result.exit_code == 2
    assert "kernel of attention" in result.stderr


@pytest.mark.parametrize("text", ['{"fwd": 1}', '[{"block_M": 1}]', '{"op": "attention", "kernels": [1]}'])
def test_odd_files_are_refused(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    result = run("decode", path, "--hw", "mi300x")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
