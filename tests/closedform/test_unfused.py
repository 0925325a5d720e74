"""Attention in three kernels: emission, simulation on every target, and the comparison with the fused kernel."""

import ast
import json

import pytest

from closedform.comparison import compare_attention
from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.operators.attention import Attention
from closedform.operators.unfused import UnfusedAttention
from closedform.simulate_unfused import simulate_unfused
from closedform.simulation_case import How
from closedform.traffic import compulsory_bytes, unfused_bytes
from closedform.visitors.compile import missing_dependency
from closedform.visitors.unfused import derive_unfused, driver_source

from .test_schemas import assert_valid

GPUS = [name for name in catalogue.names() if not name.startswith("paper")]
needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))


def test_the_three_operators_move_what_unfused_attention_moves():
    op = Attention(16384, 16384, 128, heads=2)
    parts = UnfusedAttention(op)
    assert sum(compulsory_bytes(part) for part in (parts.scores, parts.softmax, parts.values)) == unfused_bytes(op)


def test_rows_of_scores_are_whole_accesses_apart():
    parts = UnfusedAttention(Attention(30, 101, 64, batch=2, heads=3, dtype="f16"))
    assert (parts.score_stride, parts.scores.ldd, parts.softmax.ld, parts.values.lda) == (104, 104, 104, 104)
    assert parts.scores.batch == parts.values.batch == 6
    assert parts.softmax.rows == 180


def test_variants_of_the_fused_kernel_are_refused():
    with pytest.raises(BadInput, match="variant='lds'"):
        UnfusedAttention(Attention(64, 64, 64, variant="lds"))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_every_target_derives_three_kernels(gpu, dtype):
    found = derive_unfused(Attention(300, 201, 72, heads=2, dtype=dtype), catalogue.get(gpu))
    assert found.rounds >= 3
    tree = ast.parse(driver_source(found))
    assert {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)} >= {"run", "reference", "main", "check"}


def test_emit(run_json, tmp_path):
    shape = ("attention", "--L", 300, "--d", 64, "--hw", "mi300x", "--unfused", "--no-compile", "--out", tmp_path)
    answer = run_json("emit", *shape)
    assert_valid(answer, "emit_unfused")
    manifest = json.loads((tmp_path / "attention_mi300x_f32_d64_unfused_L300x300.json").read_text())
    assert sorted(manifest["parts"]) == ["scores", "softmax", "values"]
    assert all((tmp_path / name).exists() for name in manifest["parts"].values())
    assert len(list(tmp_path.glob("*.py"))) == 4


def test_nothing_is_written_where_a_folder_is_in_the_way(run, tmp_path):
    (tmp_path / "attention_mi300x_f32_d64_unfused_L300x300.json").mkdir()
    shape = ("attention", "--L", 300, "--d", 64, "--hw", "mi300x", "--unfused", "--no-compile", "--out", tmp_path)
    result = run("emit", *shape)
    assert result.exit_code == 2
    assert list(tmp_path.glob("*.py")) == []


@pytest.mark.parametrize("extra", [("--explain",), ("--tile-q", 32)])
def test_options_of_the_fused_kernel_are_refused(run, extra):
    for command in (("emit", "attention", "--unfused"), ("derive", "attention", "--compare")):
        result = run(*command, "--L", 300, "--d", 64, "--hw", "mi300x", *extra)
        assert result.exit_code == 2
        assert "leave out" in result.stderr


def test_compare(run, run_json):
    shape = ("derive", "attention", "--L", 16384, "--d", 128, "--hw", "mi300x", "--compare")
    answer = run_json(*shape)
    assert_valid(answer, "compare")
    assert answer["savings"] == 32.0
    assert (answer["fused"]["hbm_bytes"], answer["unfused"]["hbm_bytes"]) == (33554432, 4328521728)
    text = run(*shape).stdout
    for word in ("HBM traffic", "operations", "rounds", "predicted time", "Crossover", "L / (4 d)"):
        assert word in text


@pytest.mark.parametrize("gpu", ["mi100", "mi210", "mi300x", "mi355x"])
def test_the_crossover_is_one_of_rounds_and_not_of_traffic(gpu):
    """L / (4 d) does not know of heads; with as many as there are CUs the fused kernel wins at far shorter lengths."""
    hw = catalogue.get(gpu)
    found = compare_attention(Attention(4096, 4096, 128, dtype="f16"), hw)
    assert found.heads_filled == hw.num_cus
    assert found.crossover_filled is not None
    assert found.crossover is None or found.crossover > 4 * found.crossover_filled
    assert found.fused.rounds == 1


def test_the_crossover_separates_the_two():
    hw, op = catalogue.get("mi300x"), Attention(4096, 4096, 128, dtype="f16")
    crossover = compare_attention(op, hw).crossover
    for length, wins in ((crossover, True), (crossover - 64, False)):
        found = compare_attention(Attention(length, length, 128, dtype="f16"), hw)
        assert (found.fused.latency_us < found.unfused.latency_us) == wins


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("gpu", "op"),
    [
        ("mi100", Attention(33, 65, 64, dtype="f16")),
        ("mi210", Attention(20, 65, 33, dtype="bf16")),
        ("mi300x", Attention(70, 101, 40, heads=2)),
        ("mi355x", Attention(17, 64, 64, batch=2, dtype="bf16")),
    ],
)
def test_simulated_kernels_agree_with_float64(gpu, op, record_property):
    done = simulate_unfused(derive_unfused(op, catalogue.get(gpu)), How())
    assert done.ok, (done.accuracy, done.reports)
    assert len(done.later) == 2
    record_property(f"max_rel_error {op.dtype}", done.accuracy.max_rel_error)


@needs_compiler
@pytest.mark.compile
def test_simulate_on_the_command_line(run_json):
    done = run_json("simulate", "attention", "--L", 16, "--d", 32, "--dtype", "f16", "--hw", "mi300x", "--unfused")
    assert_valid(done, "simulate")
    assert done["ok"]


def test_a_sample_of_three_kernels_is_refused(run):
    result = run("simulate", "attention", "--L", 16, "--d", 32, "--hw", "mi300x", "--unfused", "--blocks", 1)
    assert result.exit_code == 2
    assert "leave out --blocks" in result.stderr
