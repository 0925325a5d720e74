"""closedform profile: natural loops, the static MFMA share, counts of loops, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

from closedform.hw.errors import BadInput
from closedform.hw.sim import parse_text
from closedform.hw.sim.decode import Code
from closedform.hw.sim.flow import natural_loops
from closedform.hw.sim.testing import kernel_text
from closedform.schemas import schema
from closedform.static_share import find_mca, static_share
from closedform.visitors.compile import missing_dependency

Run = Callable[..., Result]
MFMA = "v_mfma_f32_32x32x8_f16 v[16:31], v[2:3], v[4:5], v[16:31]"
needs_mca = pytest.mark.skipif(find_mca() is None, reason="llvm-mca is not installed")
#: An outer loop of 3 around an inner one of 5 with a block that runs only where s8 is 1; the header is not first.
LOOPS = f"""
  s_mov_b32 s5, 3
.Louter:
  s_mov_b32 s6, 5
  s_branch .Lheader
.Llatch:
  s_sub_u32 s6, s6, 1
  s_cmp_eq_u32 s6, 0
  s_cbranch_scc1 .Lafter
.Lheader:
  v_mov_b32_e32 v1, 0
  s_cmp_lg_u32 s6, 1
  s_cbranch_scc1 .Lcommon
  v_mov_b32_e32 v6, 0
.Lcommon:
  {MFMA}
  s_branch .Llatch
.Lafter:
  s_sub_u32 s5, s5, 1
  s_cmp_lg_u32 s5, 0
  s_cbranch_scc1 .Louter
"""


def prepared(body: str) -> str:
    """The loops with every register that they read written before."""
    return "\n".join(f"  v_mov_b32_e32 v{n}, 0" for n in range(1, 32)) + body


@pytest.fixture
def loops(tmp_path: Path) -> Path:
    path = tmp_path / "loops.s"
    path.write_text(kernel_text("gfx942", prepared(LOOPS), 0, threads=128))
    return path


def code_of(body: str, target: str = "gfx942") -> Code:
    return Code(parse_text(kernel_text(target, body, 0)).kernel())


def assert_valid(value: Any) -> None:
    errors = [e.json_path + ": " + e.message for e in Draft202012Validator(schema("profile")).iter_errors(value)]
    assert errors == []


def test_natural_loops() -> None:
    code = code_of(LOOPS)
    outer, inner = natural_loops(code)
    assert (outer.label, outer.innermost, inner.label, inner.innermost) == (".Louter", False, ".Lheader", True)
    assert inner.conditional_blocks == 1
    skipped = [code.ops[n].ins.text for n in inner.all if n not in inner.always]
    assert skipped == ["v_mov_b32_e32 v6, 0"]
    assert set(inner.all) < set(outer.all)
    assert natural_loops(code_of("  s_nop 0")) == []


def test_a_block_that_jumps_to_itself_and_code_that_nothing_reaches() -> None:
    (loop,) = natural_loops(code_of(".La:\n  s_cbranch_scc1 .La\n  s_endpgm\n.Lb:\n  s_cbranch_scc1 .Lb"))
    assert (loop.label, len(loop.all), loop.conditional_blocks) == (".La", 1, 0)


@needs_mca
def test_static_share_of_dependent_mfmas() -> None:
    """16 MFMAs on one accumulator leave the matrix core no pause: 32 clocks each, and the share is near 1."""
    body = ".Lloop:\n" + f"  {MFMA}\n" * 16 + "  s_sub_u32 s6, s6, 1\n  s_cmp_lg_u32 s6, 0\n  s_cbranch_scc1 .Lloop"
    found = static_share(code_of(body))
    assert found is not None
    assert found.always == found.all_blocks
    assert (found.always.mfmas, found.always.matrix_clocks) == (16, 512)
    assert found.always.share is not None
    assert 0.7 < found.always.share <= 1.0


@needs_mca
def test_static_share_with_conditional_block() -> None:
    found = static_share(code_of(LOOPS))
    assert found is not None
    assert (found.loop, found.conditional_blocks, found.always.mfmas) == (".Lheader", 1, 1)
    assert found.all_blocks.instructions == found.always.instructions + 1
    assert found.all_blocks.mca_clocks >= found.always.mca_clocks
    assert found.note is None


@needs_mca
def test_fp8_in_f8f6f4_takes_twice_the_time_of_fp4() -> None:
    """LLVM's model times both alike; the extra MFMA makes up for it."""
    shares = []
    for modifier in ("", " cbsz:4 blgp:4"):
        mfma = f"  v_mfma_f32_32x32x64_f8f6f4 v[32:47], v[0:7], v[8:15], v[32:47]{modifier}\n"
        if modifier:
            mfma = mfma.replace("v[0:7]", "v[0:3]").replace("v[8:15]", "v[8:11]")
        body = f".Lloop:\n{mfma * 8}  s_cbranch_scc1 .Lloop"
        found = static_share(code_of(body, "gfx950"))
        assert found is not None
        shares.append((found.always.matrix_clocks, found.always.share))
    assert shares[0][0] == 2 * shares[1][0]
    assert shares[0][1] == pytest.approx(shares[1][1], rel=0.15)


def test_llvm_mca_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLVM_MCA", "/nowhere/llvm-mca")
    with pytest.raises(BadInput, match="LLVM_MCA=/nowhere/llvm-mca"):
        find_mca()
    monkeypatch.delenv("LLVM_MCA")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_mca() is None
    found = static_share(code_of(LOOPS))
    assert found is not None
    assert found.always.share is None
    assert found.always.matrix_clocks == 32
    assert "not installed" in str(found.note)


def test_file_without_a_run(run: Run, loops: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LLVM_MCA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("profile", loops, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert_valid(answer)
    assert answer["counts"] is None
    assert answer["binary"]["waves_per_workgroup"] == 2
    assert answer["static_mfma_share"]["always"]["share"] is None
    text = run("profile", loops).stdout
    assert "MFMA share unknown" in text
    assert "nothing: give --grid" in text


def test_file(run: Run, loops: Path) -> None:
    """Counts of nested loops: 3 x 5 MFMAs of 32 clocks in each of two waves, all workgroups run."""
    result = run("profile", loops, "--grid", 4, "--blocks", 0, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert_valid(answer)
    outer, inner = answer["counts"]["loops"]
    waves = 8
    assert answer["counts"]["mfma_cycles"] == outer["mfma_cycles"] == inner["mfma_cycles"] == waves * 15 * 32
    assert inner["entries_per_wave"] == 15
    assert inner["instructions"]["valu"] == waves * (15 + 3)
    assert answer["cu_bound"]["clocks_per_workgroup"]["matrix"] == 2 * 15 * 32 / 4
    assert answer["cu_bound"]["loops"][1]["binds"] == "matrix"
    assert (answer["workgroups"], answer["sampled"]) == (4, False)
    shown = run("profile", loops, "--grid", 4)
    assert "a sample, 2 of 4 workgroups" in shown.stdout
    assert any(line.startswith(".Lheader") for line in shown.stdout.splitlines())


def test_kernel_without_mfma(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plain.s"
    path.write_text(kernel_text("gfx90a", "  s_nop 0", 0))
    result = run("profile", path, "--grid", 1)
    assert result.exit_code == 0, result.output
    assert "no loop with MFMAs" in result.stdout
    assert_valid(json.loads(run("profile", path, "--grid", 1, "--json").stdout))


def test_rejects(run: Run, loops: Path) -> None:
    assert run("profile", loops.with_name("none.s")).exit_code == 2
    assert run("profile", loops, "--grid", "1", "--arg", "i32:1").exit_code == 2
    assert run("profile", loops, "--blocks", "-1").exit_code == 2
    assert run("profile", "attention", "--L", 0, "--d", 4, "--hw", "mi300x").exit_code == 2


@pytest.mark.compile
@pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")
def test_attention(run: Run) -> None:
    result = run("profile", "attention", "--L", 300, "--d", 64, "--hw", "mi300x", "--dtype", "f16", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert_valid(answer)
    main = answer["static_mfma_share"]
    loop = next(x for x in answer["counts"]["loops"] if x["label"] == main["loop"])
    assert loop["innermost"]
    assert loop["instructions"]["mfma"] == main["always"]["mfmas"] * 8 * loop["entries_per_wave"]
    assert answer["counts"]["lds_bank_conflict_cycles"] <= answer["counts"]["lds_cycles"]
    assert answer["binary"]["occupancy"]["workgroups_per_cu"] == answer["cu_bound"]["workgroups_per_cu"]
    assert answer["sampled"]
