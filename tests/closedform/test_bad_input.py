"""Every kind of bad input: a typed error, one line, its exit status, nothing written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
RunWithout = Callable[..., "subprocess.CompletedProcess[str]"]

SHAPE = ("--L", 256, "--d", 64, "--hw", "mi300x")

#: Arguments after `emit attention`, and what the one line must say.
BAD_ATTENTION = {
    "L=0": (("--L", 0, "--d", 64, "--hw", "mi300x"), "L_q=0"),
    "negative L": (("--L", -5, "--d", 64, "--hw", "mi300x"), "L_q=-5"),
    "Lkv=0": (("--L", 5, "--Lkv", 0, "--d", 64, "--hw", "mi300x"), "L_kv=0"),
    "L is no number": (("--L", "many", "--d", 64, "--hw", "mi300x"), "many"),
    "d=0": (("--L", 256, "--d", 0, "--hw", "mi300x"), "d=0"),
    "d=1000": (("--L", 256, "--d", 1000, "--hw", "mi300x"), "512"),
    "heads=0": ((*SHAPE, "--heads", 0), "heads=0"),
    "heads that do not share": ((*SHAPE, "--heads", 6, "--kv-heads", 4), "not a multiple of kv_heads=4"),
    "scale=0": ((*SHAPE, "--scale", 0), "softmax_scale=0.0"),
    "option of one kernel": ((*SHAPE, "--heads", 2, "--kv-heads", 1, "--unfused"), "kv_heads=1"),
    "batch=-1": ((*SHAPE, "--batch", -1), "batch=-1"),
    "unknown dtype": ((*SHAPE, "--dtype", "f61"), "did you mean f16"),
    "dtype of no attention": ((*SHAPE, "--dtype", "i8"), "dtype='i8'"),
    "fp8 flavour": ((*SHAPE, "--dtype", "fp8_e4m3fn"), "fp8_e4m3fn"),
    "unknown variant": ((*SHAPE, "--variant", "chaned"), "did you mean chained"),
    "unknown GPU": (("--L", 256, "--d", 64, "--hw", "mi300"), "did you mean mi300x"),
    "no such file": (("--L", 256, "--d", 64, "--hw", "none.toml"), "none.toml"),
    "no CUs": ((*SHAPE, "--cus", 0), "CUs"),
    "unknown atom": ((*SHAPE, "--atom", "8x8"), "8x8"),
    "tile_kv=0": ((*SHAPE, "--tile-kv", 0), "tile_kv"),
    "waves=-1": ((*SHAPE, "--waves", -1), "waves"),
    "missing option": (("--L", 256), "--d"),
    "unknown option": ((*SHAPE, "--tile", 7), "--tile"),
    "isa of no compile": ((*SHAPE, "--isa", "--no-compile"), "exclude each other"),
}


def only_line(stderr: str) -> str:
    """The error line, with the notices before it left out."""
    lines = [line for line in stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, stderr
    return lines[0]


@pytest.mark.parametrize("case", BAD_ATTENTION)
def test_emit_attention_rejects(run: Run, tmp_path: Path, case: str) -> None:
    arguments, says = BAD_ATTENTION[case]
    out = tmp_path / "out"
    result = run("emit", "attention", *arguments, "--out", out)
    assert result.exit_code == 2, result.output
    line = only_line(result.stderr)
    assert line.startswith("error: ")
    assert says in line
    assert result.stdout == ""
    assert not out.exists()


@pytest.mark.parametrize("command", ["derive", "check", "bench"])
@pytest.mark.parametrize("case", ["L=0", "negative L", "d=0", "d=1000", "unknown dtype", "unknown variant"])
def test_other_commands_reject_the_same(run: Run, command: str, case: str) -> None:
    arguments, says = BAD_ATTENTION[case]
    result = run(command, "attention", *arguments)
    assert result.exit_code == 2, result.output
    assert says in only_line(result.stderr)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--M", 0, "--N", 4, "--K", 4), "M=0"),
        (("--M", 4, "--N", -4, "--K", 4), "N=-4"),
        (("--M", 4, "--N", 4, "--K", 4, "--layout", "XY"), "layout"),
        (("--M", 4, "--N", 4, "--K", 4, "--dtype", "f61"), "f16"),
        (("--M", 4, "--N", 4), "--K"),
    ],
)
def test_derive_gemm_rejects(run: Run, arguments: tuple[object, ...], says: str) -> None:
    result = run("derive", "gemm", *arguments, "--hw", "mi300x")
    assert result.exit_code == 2, result.output
    assert says in only_line(result.stderr)


def test_unknown_model_is_refused(run: Run) -> None:
    result = run("derive", "attention", *SHAPE, "--model", "papre")
    assert result.exit_code == 2, result.output
    assert "papre" in only_line(result.stderr)


def test_unknown_level_is_refused(run: Run) -> None:
    result = run("check", "attention", *SHAPE, "--level", "warp")
    assert result.exit_code == 2, result.output
    assert "warp" in only_line(result.stderr)


def test_json_error_is_one_object(run: Run, tmp_path: Path) -> None:
    result = run("emit", "attention", "--L", 0, "--d", 64, "--hw", "mi300x", "--out", tmp_path / "o", "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "BadInput"
    assert "L_q=0" in error["message"]


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_unwritable_folder(run: Run, tmp_path: Path, below: str) -> None:
    file = tmp_path / "a_file"
    file.write_text("kept")
    result = run("emit", "attention", *SHAPE, "--no-compile", "--out", file / below)
    assert result.exit_code == 2, result.output
    assert "a_file" in only_line(result.stderr)
    assert file.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [file]


def test_folder_without_permission(run: Run) -> None:
    """The kernel's own file system lets nobody make a folder, not even root."""
    result = run("emit", "attention", *SHAPE, "--no-compile", "--out", "/proc/closedform")
    assert result.exit_code == 2, result.output
    assert "/proc/closedform" in only_line(result.stderr)


def test_lds_too_small_for_any_tile(run: Run, tmp_path: Path, small_gpu: Callable[..., Path]) -> None:
    gpu = small_gpu(lds_bytes=2048, lds_max_per_workgroup_bytes=2048)
    out = tmp_path / "out"
    arguments = ("attention", "--L", 256, "--d", 128, "--hw", gpu)
    result = run("emit", *arguments, "--out", out)
    assert result.exit_code == 4, result.output
    line = only_line(result.stderr)
    assert "LDS" in line
    assert "2048" in line
    assert not out.exists()

    derived = run("derive", *arguments, "--json")
    assert derived.exit_code == 4
    answer = json.loads(derived.stdout)
    assert answer["feasible"] is False
    assert answer["tiles"] is None
    assert answer["infeasible"] == answer["error"]["infeasible"]
    assert answer["infeasible"]["resource"] == "LDS"
    assert answer["infeasible"]["needed"] > answer["infeasible"]["limit"] == 2048


def test_paper_tiles_that_do_not_fit_say_72_kib(run: Run) -> None:
    """The paper's d=128 tile with K, V and E in LDS at once: 72 KiB of 64."""
    result = run(
        "derive", "attention", "--L", 16384, "--d", 128, "--hw", "mi100", "--variant", "lds",
        "--tile-q", 32, "--tile-kv", 64, "--waves", 1,
    )  # fmt: skip
    assert result.exit_code == 4, result.output
    line = only_line(result.stderr)
    assert "73728 B of LDS" in line
    assert "65536 B" in line


def test_a_tile_that_no_atom_has(run: Run) -> None:
    result = run("derive", "attention", *SHAPE, "--tile-q", 7)
    assert result.exit_code == 2, result.output
    assert "16" in only_line(result.stderr)


@pytest.mark.parametrize("package", ["torch", "flydsl"])
def test_missing_compiler_is_a_typed_error(run_without: RunWithout, tmp_path: Path, package: str) -> None:
    out = tmp_path / "out"
    done = run_without([package], "emit", "attention", *SHAPE, "--compile", "--out", out, "--json")
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "MissingDependency"
    assert package in error["message"]
    assert "pip install" in error["message"]
    assert only_line(done.stderr).startswith("error: ")
    assert not out.exists()


@pytest.mark.parametrize("package", ["torch", "flydsl"])
def test_assembly_needs_the_compiler(run_without: RunWithout, tmp_path: Path, package: str) -> None:
    out = tmp_path / "out"
    done = run_without([package], "emit", "attention", *SHAPE, "--isa", "--out", out)
    assert done.returncode == 2, done.stderr
    assert not out.exists()


def test_source_needs_no_compiler(run_without: RunWithout, tmp_path: Path) -> None:
    """Deriving, explaining and emitting work without torch and flydsl; the manifest says what is missing."""
    out = tmp_path / "out"
    done = run_without(["torch", "flydsl"], "emit", "attention", *SHAPE, "--out", out, "--json", "--explain")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    manifest = json.loads(Path(answer["manifest"]).read_text())
    assert manifest["resources"]["compiled"] is None
    assert "pip install" in manifest["resources"]["compiled_reason"]
    assert Path(answer["kernel"]).stat().st_size > 0
    assert "not compiled" in done.stderr


def test_our_own_bug_shows_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import closedform.hardware_report

    def broken() -> None:
        raise RuntimeError("a slip of ours")

    monkeypatch.setattr(closedform.hardware_report, "overview_rows", broken)
    result = run("hw", "list")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "a slip of ours" in result.stderr
    assert "this is a bug" in result.stderr.splitlines()[-1]
