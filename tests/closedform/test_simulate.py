"""closedform simulate: emitted attention against float64, assembly files with arguments, findings, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

from closedform.hw.errors import BadInput
from closedform.hw.sim import Out
from closedform.hw.sim.testing import kernel_text
from closedform.kernel_arguments import FORMS, argument
from closedform.schemas import schema
from closedform.visitors.compile import missing_dependency

Run = Callable[..., Result]
RANDOM = np.random.default_rng(0)
#: y[i] = x[i] + s for 64 f32 a workgroup: two buffers and an integer that is not used.
ADD = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshl_or_b32 v1, s2, 6, v0
  v_lshlrev_b32_e32 v1, 2, v1
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_add_f32_e32 v2, 1.0, v2
  global_store_dword v1, v2, s[6:7]
"""
needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")


@pytest.fixture
def add(tmp_path: Path) -> Path:
    path = tmp_path / "add.s"
    path.write_text(kernel_text("gfx942", ADD, 2, scalars=1))
    return path


def assert_valid(value: Any, name: str = "simulate") -> None:
    errors = [e.json_path + ": " + e.message for e in Draft202012Validator(schema(name)).iter_errors(value)]
    assert errors == []


def only_line(result: Result) -> str:
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("hw", "dtype", "arguments"),
    [
        ("mi300x", "f16", ("--L", 300, "--Lkv", 77, "--d", 40, "--heads", 2)),
        ("mi355x", "bf16", ("--L", 65, "--d", 64)),
        ("mi100", "f16", ("--L", 17, "--d", 64, "--batch", 2)),
    ],
)
def test_attention(run: Run, hw: str, dtype: str, arguments: tuple[object, ...]) -> None:
    result = run("simulate", "attention", *arguments, "--hw", hw, "--dtype", dtype, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert_valid(answer)
    assert answer["ok"]
    assert answer["reports"] == []
    assert 0 < answer["max_rel_error"] <= answer["error_bound"]
    assert not answer["sampled"]


@needs_compiler
@pytest.mark.compile
def test_attention_sample(run: Run) -> None:
    """Only the rows of the sampled workgroups are compared, so that what did not run cannot fail."""
    shape = ("--L", 500, "--Lkv", 100, "--d", 32, "--heads", 3, "--hw", "mi210", "--dtype", "f16")
    result = run("simulate", "attention", *shape, "--blocks", 2)
    assert result.exit_code == 0, result.output
    assert "a sample, 2 of" in result.stdout
    assert "agrees with float64 in the part of the sample" in result.stdout
    assert "nothing to report" in result.stdout


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("words", "kernels"),
    [
        ("--M 65 --N 48 --K 200 --dtype bf16 --layout NT --hw mi300x --lda 208", 1),
        ("--M 40 --N 64 --K 0 --beta-c --beta 0.5 --dtype f32 --hw mi100", 1),
        ("--M 64 --N 64 --K 700 --dtype f16 --hw mi210 --split-k 3", 1),
        ("--M 64 --N 64 --K 704 --dtype f16 --hw mi355x --split-k 3 --split-algorithm workspace", 2),
        ("--M 96 --N 64 --K 256 --dtype fp8 --out-dtype fp8 --scale 0.5 --hw mi300x --stream-k 3 --preshuffle A", 1),
        ("--M 33 --N 64 --K 64 --dtype i8 --bias row --alpha 0.3 --hw mi355x", 1),
    ],
)
def test_gemm(run: Run, words: str, kernels: int) -> None:
    result = run("simulate", "gemm", *words.split(), "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert_valid(answer)
    assert answer["ok"]
    assert answer["reports"] == []
    assert answer["max_rel_error"] <= answer["error_bound"]
    assert len(answer["later_kernels"]) == kernels - 1


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("fixed", "workgroups"),
    [
        ((), 2),
        (("--split-k", 2), 2),
        (("--split-k", 2, "--split-algorithm", "workspace"), 2),
        (("--stream-k", 9), 2),
    ],
)
def test_gemm_sample(run: Run, fixed: tuple[object, ...], workgroups: int) -> None:
    """Of a sample whole tiles run, whoever adds to them, and nothing else is compared."""
    shape = ("--M", 200, "--N", 200, "--K", 200, "--batch", 2, "--tile-m", 64, "--tile-n", 64)
    result = run("simulate", "gemm", *shape, "--hw", "mi210", "--dtype", "f16", "--blocks", 2, *fixed)
    assert result.exit_code == 0, result.output
    assert f"a sample, {workgroups} of" in result.stdout
    assert "agrees with float64 in the part of the sample" in result.stdout


def test_operands_beyond_memory() -> None:
    from closedform.simulation_case import require_memory

    require_memory(1 << 34, "less")
    with pytest.raises(BadInput, match=r"take 16\.1 GiB .* 16 GiB is the most .* choose less"):
        require_memory((1 << 34) + (1 << 27), "less")


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("gemm", "--M", 1 << 17, "--N", 1 << 17, "--K", 64), "choose smaller M"),
        (("softmax", "--rows", 1 << 20, "--cols", 1 << 13), "choose fewer rows"),
        (
            ("conv2d", "--N", 512, "--IC", 64, "--IH", 512, "--IW", 512, "--OC", 8, "--KH", 1, "--KW", 1),
            "choose fewer images",
        ),
        (("attention", "--L", 40000, "--d", 64, "--heads", 4, "--unfused"), "choose a smaller length"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_does_not_fit_in_memory_is_refused(run: Run, words: tuple[object, ...], way_out: str) -> None:
    result = run("simulate", *words, "--hw", "mi300x")
    assert result.exit_code == 2, result.output
    assert way_out in result.stderr


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("words", "instruction"),
    [
        (("attention", "--L", 33, "--d", 32, "--dtype", "f16"), ("v_exp_f32", "v_log_f32")),
        (("gemm", "--M", 33, "--N", 40, "--K", 64, "--dtype", "f32"), ("_mul_f32", "_add_f32")),
    ],
)
def test_wrong_kernel_is_our_bug(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], instruction: tuple[str, str]
) -> None:
    """An instruction of the compiled kernel changed: exit status 1 and the word bug."""
    from dataclasses import replace

    from closedform import simulation

    compiled = simulation.compiled_kernel

    def broken(derivation: Any) -> Any:
        good = compiled(derivation)
        return replace(good, isa=good.isa.replace(*instruction))

    monkeypatch.setattr(simulation, "compiled_kernel", broken)
    result = run("simulate", *words, "--hw", "mi300x", "--json")
    assert result.exit_code == 1
    assert "bug in closedform" in only_line(result)
    answer = json.loads(result.stdout)
    assert_valid(answer)
    assert not answer["ok"]


def test_long_runs_are_announced(capsys: pytest.CaptureFixture[str]) -> None:
    from closedform.cli.simulate import warn_of_length
    from closedform.operators.attention import Attention

    warn_of_length(Attention(512, 512, 64), 8, None)
    assert capsys.readouterr().err == ""
    warn_of_length(Attention(16384, 16384, 128, heads=16), 2048, None)
    assert "2048 workgroups take about" in (said := capsys.readouterr().err)
    assert "--blocks N" in said
    warn_of_length(Attention(16384, 16384, 128, heads=16), 2048, 1)
    assert capsys.readouterr().err == ""


def test_progress_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where stderr is no terminal, a line now and then, none at the end."""
    from closedform.cli import progress

    monkeypatch.setattr(progress, "EVERY_S", -1.0)
    with progress.workgroup_progress() as tell:
        tell(1, 4)
        tell(4, 4)
    assert capsys.readouterr().err.startswith("note: 1 of 4 workgroups, about ")


def test_file(run: Run, add: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(128, dtype=np.float32))
    arguments = ("--arg", f"npy:{tmp_path / 'x.npy'}", "--arg", "out:f32:128", "--arg", "i32:7")
    result = run("simulate", add, "--grid", 2, *arguments, "--save", tmp_path / "saved", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert_valid(answer)
    assert answer["max_rel_error"] is None
    assert answer["saved"] == [str(tmp_path / "saved" / "arg1.npy")]
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == ["arg1.npy"]
    np.testing.assert_array_equal(np.load(answer["saved"][0]), np.arange(128) + 1)
    assert answer["counts"]["global_load_bytes"] == 512
    assert answer["counts"]["instructions"]["vmem"] == 4


def test_file_with_findings(run: Run, add: Path) -> None:
    """A grid that leaves half of the output, and one that runs past the end."""
    arguments = ("--arg", "normal:f32:128", "--arg", "out:f32:128", "--arg", "i32:7")
    half = run("simulate", add, "--grid", 1, *arguments)
    assert half.exit_code == 1
    assert "1 finding(s)" in half.stdout
    assert "unwritten-output" in half.stdout
    past = run("simulate", add, "--grid", "3,1,1", *arguments, "--json")
    assert past.exit_code == 1
    answer = json.loads(past.stdout)
    assert_valid(answer)
    load = next(r for r in answer["reports"] if r["instruction"].startswith("global_load_dword"))
    assert (load["kind"], load["workgroup"], load["wave"], load["lane"]) == ("out-of-bounds", 2, 0, 0)
    assert load["address"] > 0
    assert add.read_text().splitlines()[load["line"] - 1].split()[0] == "global_load_dword"
    quiet = run("simulate", add, "--grid", 1, *arguments, "--no-sanitizers")
    assert quiet.exit_code == 0
    partial = run("simulate", add, "--grid", 1, "--arg", "zeros:f32:64", "--arg", "partial:f32:128", "--arg", "i32:7")
    assert partial.exit_code == 0


def test_file_sample(run: Run, add: Path) -> None:
    arguments = ("--arg", "zeros:f32:6400", "--arg", "out:f32:6400", "--arg", "i32:7")
    result = run("simulate", add, "--grid", 100, "--blocks", 3, *arguments)
    assert result.exit_code == 0
    assert "a sample, 3 of 100 workgroups" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--grid X,Y,Z"),
        (("--grid", "0"), "positive sizes"),
        (("--grid", "1,2,3,4"), "positive sizes"),
        (("--grid", "1"), "3 arguments (pointer, pointer, 4 B), 0 were given"),
        (("--grid", "1", "--arg", "i32:1"), "3 arguments (pointer, pointer, 4 B), 1 were given"),
        (("--grid", "1", "--arg", "zeross:f32:4"), "did you mean zeros"),
        (("--grid", "1", "--arg", "i32:x"), "is no i32"),
        (("--grid", "1", "--arg", "npy:/nowhere.npy"), "/nowhere.npy"),
        (("--grid", "1", "--kernel", "other"), "no kernel other; the file has: k"),
        (("--grid", "1", "--blocks", "0"), "--blocks"),
        (("--grid", "1", *("--arg", "zeros:f32:64") * 3), "is 4 B"),
    ],
)
def test_file_rejects(run: Run, add: Path, arguments: tuple[str, ...], says: str) -> None:
    result = run("simulate", add, *arguments)
    assert result.exit_code == 2, result.output
    assert says in only_line(result)
    assert result.stdout == ""


def test_flydsl_is_suggested(run: Run, tmp_path: Path) -> None:
    """Where the structs behind tensors are what is missing, the error says so; with --flydsl they are passed."""
    text = kernel_text("gfx942", ADD, 2)
    entries = [(0, 8, "global_buffer"), (8, 12, "by_value"), (24, 8, "global_buffer"), (32, 12, "by_value")]
    listed = "".join(
        f"      - .offset:         {offset}\n        .size:           {size}\n        .value_kind:     {kind}\n"
        for offset, size, kind in entries
    )
    start, end = text.index("    .args:\n") + len("    .args:\n"), text.index("    .group_segment_fixed_size:")
    path = tmp_path / "tensors.s"
    path.write_text(text[:start] + listed + text[end:])
    arguments = ("--grid", 1, "--arg", "zeros:f32:1x64", "--arg", "out:f32:1x64")
    refused = run("simulate", path, *arguments)
    assert refused.exit_code == 2
    assert "4 arguments (pointer, 12 B, pointer, 12 B), 2 were given; --flydsl passes" in only_line(refused)


def test_other_files(run: Run, tmp_path: Path) -> None:
    assert "no such file" in only_line(run("simulate", tmp_path / "none.s", "--grid", 1))
    (tmp_path / "text.s").write_text("hello\n")
    assert "no .amdgcn_target" in only_line(run("simulate", tmp_path / "text.s", "--grid", 1))
    (tmp_path / "binary.s").write_bytes(bytes(range(256)))
    result = run("simulate", tmp_path / "binary.s", "--grid", 1, "--json")
    assert result.exit_code == 2
    assert "not a text file" in only_line(result)
    assert_valid(json.loads(result.stdout), "error")
    assert "No such command" in only_line(run("simulate", "nothing"))


def test_unknown_instruction(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "odd.s"
    path.write_text(kernel_text("gfx942", "  v_frobnicate_b32 v1, v2", 0))
    result = run("simulate", path, "--grid", 1)
    assert result.exit_code == 1
    assert "no model of `v_frobnicate_b32` for gfx942" in only_line(result)


def test_help_shows_examples(run: Run) -> None:
    for words in (("simulate",), ("simulate", "attention"), ("simulate", "kernel.s")):
        text = run(*words, "--help").stdout
        assert "Examples:" in text
        assert "closedform simulate" in text


def test_arguments() -> None:
    assert argument("i8:-128", RANDOM) == np.int8(-128)
    assert argument("u32:0xffffffff", RANDOM).dtype == np.uint32
    assert argument("f32:0.5", RANDOM) == np.float32(0.5)
    assert argument("bf16:1", RANDOM) == np.uint16(0x3F80)
    assert argument("zeros:i64:2x3", RANDOM).shape == (2, 3)
    out = argument("out:f32:4x4", RANDOM)
    assert isinstance(out, Out)
    assert not out.partial
    assert argument("partial:f32:4", RANDOM).partial
    halves = argument("normal:bf16:1000", RANDOM)
    values = (halves.astype(np.uint32) << 16).view(np.float32)
    assert halves.dtype == np.uint16
    assert 0.8 < values.std() < 1.2
    assert argument("normal:f16:3x5", RANDOM).dtype == np.float16
    assert set(FORMS) == {
        "TYPE:VALUE", "zeros:TYPE:SHAPE", "normal:TYPE:SHAPE", "out:TYPE:SHAPE", "partial:TYPE:SHAPE", "npy:PATH"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown form"),
        ("i33:1", "did you mean i32"),
        ("i8:128", "outside of i8"),
        ("u8:-1", "outside of u8"),
        ("i32:1.5", "is no i32"),
        ("f32:half", "is no f32"),
        ("zeros:f32", "extents joined by x"),
        ("zeros:f32:0x4", "extents joined by x"),
        ("zeros:f32:4x-1", "extents joined by x"),
        ("zeros:f61:4", "did you mean f64 or f16"),
        ("normal:i32:4", "floating type"),
        ("normal:f32:100000x100000", "at most"),
        ("zeros:f64:99999999999x99999999999", "do not fit"),
        ("npy:", "cannot read"),
    ],
)
def test_bad_arguments(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        argument(text, RANDOM)


def test_npy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(BadInput, match="cannot read"):
        argument(f"npy:{tmp_path / 'objects.npy'}", RANDOM)
    np.save(tmp_path / "text.npy", np.array(["a"]))
    with pytest.raises(BadInput, match="expected real numbers"):
        argument(f"npy:{tmp_path / 'text.npy'}", RANDOM)
    np.savez(tmp_path / "several.npz", a=np.zeros(1))
    with pytest.raises(BadInput, match="several arrays"):
        argument(f"npy:{tmp_path / 'several.npz'}", RANDOM)
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert argument(f"npy:{tmp_path / 'columns.npy'}", RANDOM).strides == (24, 8)


def test_save_where_it_cannot(run: Run, add: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    arguments = ("--grid", 1, "--arg", "zeros:f32:64", "--arg", "out:f32:64", "--arg", "i32:7")
    result = run("simulate", add, *arguments, "--save", tmp_path / "file")
    assert result.exit_code == 2
    assert "choose another folder with --save" in only_line(result)
