"""Convolution through the front door: library, command line, schemas."""

import json

import pytest

import closedform
from closedform.emitted_file import load_kernel
from closedform.traffic import compulsory_bytes, flops
from closedform.visitors.compile import missing_dependency

from .test_schemas import assert_valid

SIZES = ("conv2d", "--N", 1, "--IC", 8, "--IH", 9, "--IW", 8, "--OC", 12, "--KH", 3, "--KW", 2)
SHAPE = (*SIZES, "--pad", "1,0", "--dtype", "f16", "--hw", "mi300x")
DEPTHWISE = (*SHAPE, "--OC", 8, "--groups", 8)
needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))


@pytest.mark.parametrize("hw", closedform.hardware_names())
def test_derive(run_json, hw):
    answer = run_json("derive", *SIZES, "--stride", "2,1", "--pad", "1,0,2,1", "--hw", hw)
    assert_valid(answer, "derive")
    assert answer["op"]["name"] == "conv2d"
    assert (answer["op"]["stride"], answer["op"]["pad"]) == ([2, 1], [1, 0, 2, 1])


def test_explain_prints_every_formula_and_the_one_that_binds(run):
    text = run("derive", *SHAPE, "--explain").stdout
    assert text.count("** binds **") == 1
    for symbol in ("k", "D", "P", "R", "t_IC", "LDS", "I", "blocks", "rounds"):
        assert f"{symbol} = " in text


def test_knobs_are_options(run_json):
    tiles = run_json("derive", *SHAPE, "--tile-h", 2, "--tile-w", 8, "--replicate-h", 1, "--replicate-w", 1)["tiles"]
    assert (tiles["tile_h"], tiles["tile_w"], tiles["replicate_h"], tiles["replicate_w"]) == (2, 8, 1, 1)


@pytest.mark.parametrize("level", ["device", "block", "wave", "atom"])
def test_check(run_json, level):
    answer = run_json("check", *SHAPE, "--bias", "--activation", "relu", "--groups", 4, "--level", level)
    assert_valid(answer, "check")
    assert answer["ok"]


def test_emit_without_a_compiler(run_json, tmp_path):
    answer = run_json("emit", *SHAPE, "--prepack", "--no-compile", "--out", tmp_path)
    assert_valid(answer, "emit")
    (path,) = tmp_path.glob("conv2d_mi300x_f16_nhwc_3x2*_packed.json")
    manifest = json.loads(path.read_text())
    assert_valid(manifest, "manifest")
    assert manifest["op"]["prepacked"] is True
    assert manifest["packed"]


@pytest.mark.parametrize("command", ["derive", "emit", "check", "simulate", "profile"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stride", "two"), "'two'"),
        (("--stride", "0"), "stride=0"),
        (("--pad", "1,2,3"), "pad="),
        (("--dilation", "9"), "no output is left"),
        (("--groups", 3), "groups=3"),
        (("--layout", "NHCW"), "known: NCHW, NHWC"),
        (("--activation", "rely"), "did you mean relu"),
        (("--out-dtype", "f17"), "f17"),
        (("--dtype", "f17"), "f17"),
        (("--tile-h", 3), "power of two"),
        (("--tile-oc", 17), "tile_oc=17 is not offered: 16, 32"),
        (("--pad", "1,2,3"), "must be one number, (rows, columns) or (top, bottom, left, right)"),
        (("--cus", 0), "CUs"),
    ],
    ids=str,
)
def test_bad_input_ends_with_a_reason(run, command, arguments, message):
    result = run(command, *SIZES, "--hw", "mi300x", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


@pytest.mark.parametrize("command", ["derive", "emit", "check", "simulate", "profile", "bench"])
def test_help_has_examples(run, command):
    assert "closedform " + command + " conv2d --N" in " ".join(run(command, "conv2d", "--help").stdout.split())


def test_traffic_and_operations():
    op = closedform.Conv2d(8, 128, 56, 56, 128, 3, 3, pad=1, dtype="f16")
    assert flops(op) == 2 * 8 * 56 * 56 * 128 * 9 * 128
    assert compulsory_bytes(op) == 2 * (2 * 8 * 56 * 56 * 128 + 128 * 9 * 128)


@needs_compiler
@pytest.mark.compile
def test_emit_simulate_and_profile(run_json, tmp_path):
    emitted = run_json("emit", *SHAPE, "--bias", "--isa", "--out", tmp_path)
    assert_valid(emitted, "emit")
    compiled, predicted = emitted["resources"]["compiled"], emitted["resources"]["predicted"]
    assert compiled["registers"] <= predicted["registers"]
    simulated = run_json("simulate", *SHAPE, "--bias")
    assert_valid(simulated, "simulate")
    assert simulated["ok"]
    profiled = run_json("profile", *SHAPE, "--replicate-h", 1, "--replicate-w", 1)
    assert_valid(profiled, "profile")
    assert profiled["counts"]["lds_bank_conflict_cycles"] == 0


def test_depthwise_without_a_compiler(run, run_json, tmp_path):
    answer = run_json("derive", *DEPTHWISE)
    assert_valid(answer, "derive")
    assert answer["tiles"]["kernel"] == "vector"
    forced = run_json("derive", *DEPTHWISE, "--kernel", "mfma")
    assert_valid(forced, "derive")
    assert forced["tiles"]["kernel"] == "mfma"
    text = run("derive", *DEPTHWISE, "--strip", 4, "--explain").stdout
    assert text.count("** binds **") == 1
    for symbol in ("P", "R", "registers", "valu", "L1", "L2", "memory", "wait", "clocks", "blocks", "rounds"):
        assert f"{symbol} = " in text
    assert run_json("check", *DEPTHWISE, "--bias", "--strip", 3)["ok"]
    assert_valid(run_json("emit", *DEPTHWISE, "--vec", 2, "--no-compile", "--out", tmp_path), "emit")
    (path,) = tmp_path.glob("conv2d_mi300x_f16_nhwc_3x2_depthwise_*c2*.json")
    assert_valid(json.loads(path.read_text()), "manifest")


@needs_compiler
@pytest.mark.compile
def test_simulate_and_profile_depthwise(run_json):
    simulated = run_json("simulate", *DEPTHWISE, "--strip", 4, "--activation", "relu")
    assert_valid(simulated, "simulate")
    assert simulated["ok"]
    profiled = run_json("profile", *DEPTHWISE, "--strip", 4, "--activation", "relu")
    assert_valid(profiled, "profile")
    assert profiled["counts"]["mfma_cycles"] == profiled["counts"]["lds_cycles"] == 0


@needs_compiler
@pytest.mark.compile
def test_library():
    op = closedform.Conv2d(1, 6, 7, 7, 10, 3, 3, stride=2, pad=1, layout="NCHW", dtype="bf16", prepacked=True)
    simulation = closedform.simulate(op, "mi210")
    assert simulation.ok
    profile = closedform.profile(op, "mi210", blocks=1)
    assert profile.kernel == simulation.result.kernel
    assert profile.binary.vgpr_spills == 0


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize("prepacked", [False, True])
def test_bench_launches_on_buffers_of_their_own(tmp_path, monkeypatch, prepacked):
    """The launches that bench times, with run() in place of a GPU: a packed filter arrives packed, each set its own."""
    from closedform.bench import launches_of

    op = closedform.Conv2d(1, 72, 6, 6, 16, 3, 3, dtype="f16", prepacked=prepacked)
    kernel = load_kernel(closedform.emit(op, "mi300x", tmp_path, compile=False).kernel)
    seen = []

    def launch(x, w, y, *_):
        seen.append((x.data_ptr(), w.data_ptr(), y.data_ptr(), w.numel()))

    monkeypatch.setattr(kernel, "launch", launch)
    monkeypatch.setattr(kernel, "pointer", lambda t: t)
    monkeypatch.setattr(kernel, "stream_of", lambda tensor, stream: stream)
    launches = launches_of(kernel, sets=2, device="cpu")
    for each in launches:
        each()
    assert seen[2:] == seen[:2]
    assert all(len({launch[place] for launch in seen}) == 2 for place in range(3))
    assert (seen[0][3] > 72 * 16 * 9) == prepacked
