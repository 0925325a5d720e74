"""Emission to disk: all files or none, the same bytes every time, promises kept."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

import closedform
from closedform.emission import PromiseBroken, broken_promises, emit_to
from closedform.hw.errors import BadInput, InfeasibleError
from closedform.operators.attention import Attention
from closedform.visitors.compile import missing_dependency

OP = Attention(300, 300, 64, dtype="f16")
needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def compiled_like(derivation: Any, **changes: int) -> Any:
    """A compiler's answer that keeps every promise exactly, with changes."""
    predicted = derivation.resources
    answer = {
        "isa": "s_endpgm\n",
        "vgpr": predicted.registers,
        "agpr": 0,
        "sgpr": 30,
        "vgpr_total": predicted.registers,
        "vgpr_spills": 0,
        "sgpr_spills": 0,
        "lds_bytes": predicted.lds_bytes,
    }
    return SimpleNamespace(**(answer | changes))


def test_writes_kernel_and_manifest(tmp_path: Path) -> None:
    emission = closedform.emit(OP, "mi300x", tmp_path / "new" / "folder", compile=False)
    assert set(files(tmp_path / "new" / "folder")) == {emission.kernel.name, emission.manifest.name}
    assert emission.isa is None
    assert emission.resources["compiled"] is None
    compile(emission.kernel.read_text(), "kernel", "exec")


def test_the_kernel_does_not_import_closedform(tmp_path: Path) -> None:
    text = closedform.emit(OP, "mi300x", tmp_path, compile=False).kernel.read_text()
    assert "import closedform" not in text
    assert "from closedform" not in text


def test_manifest_says_what_was_derived(tmp_path: Path) -> None:
    emission = closedform.emit(OP, "mi300x", tmp_path, compile=False)
    manifest = json.loads(emission.manifest.read_text())
    derivation = closedform.derive(OP, "mi300x")
    assert manifest["kernel"] == emission.kernel.name
    assert manifest["op"]["L_q"] == 300
    assert manifest["tiles"]["tile_q"] == derivation.tiles.tile_q
    assert manifest["binding"] == derivation.binding
    assert manifest["formulas"]
    assert manifest["occupancy"]["blocks"] >= 1
    assert manifest["versions"]["closedform"] == closedform.__version__
    assert manifest["resources"]["compiled_reason"]


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    """Also in other processes with other hash seeds and other folders; nothing holds a time or a path."""
    code = (
        "import sys, closedform; from closedform.operators.attention import Attention;"
        "closedform.emit(Attention(300, 300, 64, dtype='f16'), 'mi300x', sys.argv[1], compile=False)"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, str(tmp_path / f"seed{seed}")]
        subprocess.run(command, env=environment, check=True, timeout=120)
    closedform.emit(OP, "mi300x", tmp_path / "here", compile=False)
    first, second, here = (files(tmp_path / name) for name in ("seed1", "seed2", "here"))
    assert first == second == here
    assert all(str(tmp_path).encode() not in content for content in here.values())


def test_emitting_again_replaces(tmp_path: Path) -> None:
    first = closedform.emit(OP, "mi300x", tmp_path, compile=False)
    first.kernel.write_text("old")
    closedform.emit(OP, "mi300x", tmp_path, compile=False)
    assert first.kernel.read_text() != "old"
    assert len(files(tmp_path)) == 2


def test_concurrent_emissions_do_not_mix(tmp_path: Path) -> None:
    """Lengths that share a file name: kernel and manifest in the folder must come from the same one."""
    lengths = [300, 301, 302, 303]
    with ThreadPoolExecutor(4) as pool:
        derivations = [closedform.derive(dataclasses.replace(OP, L_q=n), "mi300x") for n in lengths * 3]
        emissions = list(pool.map(lambda d: emit_to(d, tmp_path, compile=False), derivations))
    assert len(files(tmp_path)) == 2 * len({emission.kernel for emission in emissions})
    for number, length in enumerate(lengths):
        alone = tmp_path / f"alone{number}"
        emit_to(derivations[number], alone, compile=False)
        manifest = json.loads(emissions[number].manifest.read_text())
        if manifest["op"]["L_q"] == length:
            assert emissions[number].kernel.read_bytes() == next(alone.glob("*.py")).read_bytes()


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    name = closedform.emit(OP, "mi300x", tmp_path / "a", compile=False).manifest.name
    (tmp_path / "b" / name).mkdir(parents=True)
    with pytest.raises(BadInput, match="in the way"):
        closedform.emit(OP, "mi300x", tmp_path / "b", compile=False)
    assert [p.name for p in (tmp_path / "b").iterdir()] == [name]


def test_infeasible_is_an_error_here(tmp_path: Path, small_gpu: Callable[..., Path]) -> None:
    gpu = small_gpu(lds_bytes=2048, lds_max_per_workgroup_bytes=2048)
    with pytest.raises(InfeasibleError, match="LDS") as caught:
        closedform.emit(OP, gpu, tmp_path / "out", compile=False)
    assert caught.value.reason.limit == 2048
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vgpr_total": 1000}, "1000 registers compiled"),
        ({"lds_bytes": 10**6}, "1000000 B of LDS compiled"),
        ({"vgpr_spills": 3}, "3 vector and 0 scalar registers spilled"),
        ({"sgpr_spills": 2}, "0 vector and 2 scalar registers spilled"),
    ],
)
def test_a_broken_promise_is_our_bug_and_writes_nothing(
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, int],
    says: str,
) -> None:
    derivation = closedform.derive(OP, "mi300x")
    assert broken_promises(derivation, compiled_like(derivation)) == []
    answer = compiled_like(derivation, **changes)
    monkeypatch.setattr("closedform.visitors.compile.missing_dependency", lambda: None)
    monkeypatch.setattr("closedform.visitors.compile.compile_source", lambda source, gfx: answer)
    with pytest.raises(PromiseBroken, match=says):
        emit_to(derivation, tmp_path / "out")
    shape = ("--L", 300, "--d", 64, "--dtype", "f16", "--hw", "mi300x")
    result = run("emit", "attention", *shape, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert says in result.stderr
    assert "bug" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.compile
@needs_compiler
@pytest.mark.parametrize(
    "kind",
    [
        "mi100 f16 64 chained",
        "mi210 bf16 96 chained",
        "mi300x f32 128 chained",
        "mi355x bf16 80 chained",
        "mi300x f16 64 lds",
        "mi210 f32 64 fma",
    ],
)
def test_emits_compiles_and_keeps_its_promises(run: Callable[..., Result], tmp_path: Path, kind: str) -> None:
    hw, dtype, d, variant = kind.split()
    options = ("--hw", hw, "--dtype", dtype, "--d", d, "--variant", variant)
    result = run("emit", "attention", "--L", 16384, *options, "--isa", "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    predicted, compiled = answer["resources"]["predicted"], answer["resources"]["compiled"]
    assert compiled["registers"] <= predicted["registers"]
    assert compiled["lds_bytes"] <= predicted["lds_bytes"] <= predicted["lds_limit_bytes"]
    assert compiled["vgpr_spills"] == compiled["sgpr_spills"] == 0
    assert "v_mfma" in Path(answer["isa"]).read_text()
    assert set(files(tmp_path)) == {Path(answer[key]).name for key in ("kernel", "manifest", "isa")}


@pytest.mark.compile
@needs_compiler
def test_the_emitted_file_without_a_gpu(tmp_path: Path) -> None:
    """Run as a program it says that there is no GPU and exits with 3; its checks work on CPU tensors."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is present")
    kernel = closedform.emit(OP, "mi300x", tmp_path, compile=False).kernel
    done = subprocess.run([sys.executable, kernel], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "gfx942" in done.stdout

    from closedform.emitted_file import load_kernel

    module = load_kernel(kernel)
    q = torch.zeros(1, 1, 8, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="head dim"):
        module.check(q[..., :32], q[..., :32], q[..., :32], q[..., :32])
    with pytest.raises(ValueError, match="float16"):
        module.check(q.float(), q, q, q)
    q, k, v = module.example("cpu", 8, 12, 2, 1)
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert torch.allclose(module.reference(q, k, v), want)
