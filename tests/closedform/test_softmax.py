"""Softmax through the front door: library, command line, schemas."""

import json

import pytest

import closedform
from closedform.hw.errors import BadInput
from closedform.traffic import compulsory_bytes, flops
from closedform.visitors.compile import missing_dependency

from .test_schemas import assert_valid

SHAPE = ("softmax", "--rows", 60, "--cols", 1001, "--dtype", "f16", "--hw", "mi300x")
needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))


@pytest.mark.parametrize("hw", closedform.hardware_names())
def test_derive(run_json, hw):
    answer = run_json("derive", "softmax", "--rows", 8192, "--cols", 4096, "--hw", hw)
    assert_valid(answer, "derive")
    assert answer["op"]["name"] == "softmax"
    assert answer["tiles"]["vec"] == 4


def test_explain_prints_every_formula_and_the_one_that_binds(run):
    text = run("derive", *SHAPE, "--explain").stdout
    assert text.count("** binds **") == 1
    for symbol in ("accesses", "lanes", "chunks_max", "splits", "gain", "registers", "rounds"):
        assert f"{symbol} = " in text


def test_knobs_are_options(run_json):
    tiles = run_json("derive", *SHAPE, "--lanes", 64, "--chunks", 2, "--block-rows", 4)["tiles"]
    assert (tiles["lanes"], tiles["chunks"], tiles["block_rows"], tiles["passes"]) == (64, 2, 4, 1)


@pytest.mark.parametrize("level", ["device", "block", "wave", "atom"])
def test_check(run_json, level):
    answer = run_json("check", *SHAPE, "--mask", "--log", "--level", level)
    assert_valid(answer, "check")
    assert answer["ok"]


def test_emit_without_a_compiler(run_json, tmp_path):
    answer = run_json("emit", *SHAPE, "--lse", "--no-compile", "--out", tmp_path)
    assert_valid(answer, "emit")
    manifest = json.loads((tmp_path / "softmax_mi300x_f16_l128c1r1_ends_lse.json").read_text())
    assert_valid(manifest, "manifest")
    assert manifest["op"]["lse"] is True


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--rows", 0, "--cols", 5), 2, "rows=0"),
        (("--rows", 5, "--cols", 5, "--empty", "one"), 2, "empty='one'"),
        (("--rows", 5, "--cols", 5, "--ld", 3), 2, "ld=3"),
        (("--rows", 5, "--cols", 500, "--lanes", 48), 2, "power of two"),
        (("--rows", 5000, "--cols", 1000000, "--chunks", 64), 4, "registers"),
    ],
)
def test_bad_input_ends_with_a_reason(run, arguments, status, message):
    result = run("derive", "softmax", *arguments, "--hw", "mi300x")
    assert result.exit_code == status
    assert message in result.stderr


def test_traffic_and_operations():
    op = closedform.Softmax(8192, 512)
    assert compulsory_bytes(op) == 2 * 8192 * 512 * 4
    assert compulsory_bytes(closedform.Softmax(8192, 512, "f16", mask=True, lse=True)) == 8192 * (512 * 5 + 4)
    assert flops(op) == 5 * 8192 * 512


def test_a_simulation_that_does_not_fit_in_memory_is_refused():
    with pytest.raises(BadInput, match="fewer rows"):
        closedform.simulate(closedform.Softmax(10**6, 10**5, "f16"), "mi300x")


@needs_compiler
@pytest.mark.compile
def test_emit_simulate_and_profile(run_json, tmp_path):
    """The host side is the emitted file's own: a mask that it lays out, rows that begin at odd elements, the lse."""
    emitted = run_json("emit", *SHAPE, "--mask", "--lse", "--isa", "--out", tmp_path)
    assert_valid(emitted, "emit")
    compiled, predicted = emitted["resources"]["compiled"], emitted["resources"]["predicted"]
    assert compiled["registers"] <= predicted["registers"]
    simulated = run_json("simulate", *SHAPE, "--mask", "--lse")
    assert_valid(simulated, "simulate")
    assert simulated["ok"]
    profiled = run_json("profile", *SHAPE)
    assert_valid(profiled, "profile")
    assert profiled["counts"]["lds_bank_conflict_cycles"] == 0


@needs_compiler
@pytest.mark.compile
def test_a_split_row_is_two_kernels(run_json):
    simulated = run_json("simulate", "softmax", "--rows", 2, "--cols", 9001, "--splits", 3, "--lse", "--hw", "mi210")
    assert simulated["ok"]
    assert [later["kernel"] for later in simulated["later_kernels"]] == ["softmax_kernel_1"]
