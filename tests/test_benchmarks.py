"""benchmarks/attention.py: what it counts, and the README's table that it printed. Nothing is timed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from closedform.hw import catalogue
from closedform.operators.gemm import Gemm
from closedform.simulation import How, simulate_derivation
from closedform.static_share import find_mca
from closedform.visitors.compile import missing_dependency
from closedform.visitors.feasibility import derive

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "attention.py"
TABLE = re.search(r"<!-- attention -->\n((?:\|.*\n)+)", (ROOT / "README.md").read_text())
needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_attention", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def kernels(benchmark: Any) -> Any:
    """Kernels that the tests of this file share."""
    return benchmark.Kernels()


def printed() -> dict[tuple[str, int, str], list[str]]:
    """The README's cells behind GPU, length and way: LDS, HBM, share, rounds, time."""
    assert TABLE is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.group(1).splitlines()[2:]]
    return {(gpu, int(length), way): cells for gpu, length, way, *cells in rows}


def test_the_table_has_every_row(benchmark: Any) -> None:
    wanted = {(g, n, way) for g in benchmark.GPUS for n in benchmark.LENGTHS for way in benchmark.NAMES.values()}
    assert set(printed()) == wanted


def test_what_needs_no_compiler_is_as_printed(benchmark: Any) -> None:
    """A difference that is meant: python benchmarks/attention.py writes the table."""
    for gpu in benchmark.GPUS:
        for length in benchmark.LENGTHS:
            for known in benchmark.plan(catalogue.get(gpu), length, "f16"):
                _, hbm, _, rounds, latency = printed()[gpu, length, benchmark.NAMES[known.way]]
                assert (hbm, rounds) == (f"{known.hbm_bytes / 1e9:.2f}", str(known.rounds)), known
                assert known.way == "lds" or latency == f"{known.latency_us / 1e3:.2f}", known


@pytest.mark.compile
@needs_compiler
@pytest.mark.parametrize("way", ["chained", "lds"])
def test_a_step_of_attention_moves_what_its_tiles_hold(benchmark: Any, kernels: Any, way: str) -> None:
    """K and V are written once and read by every wave; P of every wave, where it passes through LDS, once each way."""
    derivation = derive(benchmark.attention(4096, "f16", way), catalogue.get("mi300x"))
    tiles = derivation.require()[0]

    def at(steps: int) -> int:
        op = replace(derivation.op, L_q=tiles.block_q, L_kv=steps * tiles.tile_kv, heads=1)
        return kernels.executed(derivation, op)

    keys_values = (tiles.waves + 1) * tiles.tile_kv * 2 * 128 * 2
    exponentials = 2 * tiles.block_q * tiles.tile_kv * 2 if way == "lds" else 0
    assert at(8) - at(4) == 4 * (keys_values + exponentials)
    assert kernels.extrapolated(11, at) == at(11)


@pytest.mark.compile
@needs_compiler
def test_rows_of_the_table_are_what_is_counted(benchmark: Any, kernels: Any) -> None:
    hw = catalogue.get("mi300x")
    fused = benchmark.plan(hw, 4096, "f16")[:2]
    for row in benchmark.measured(kernels, hw, fused, "f16"):
        lds, _, share, _, latency = printed()[row.gpu, row.L, benchmark.NAMES[row.way]]
        assert lds == f"{row.lds_bytes / 1e9:.1f}"
        if find_mca() is not None:
            assert (share, latency) == (f"{row.mfma_share[0]:.2f}", f"{row.latency_us / 1e3:.2f}")


@pytest.mark.compile
@needs_compiler
def test_bytes_of_a_product_are_those_of_all_its_workgroups(benchmark: Any, kernels: Any) -> None:
    """Against the whole launch, executed."""
    op = Gemm(128, 192, 700, "f16", layout="NN", batch=2)
    derivation = derive(op, catalogue.get("mi300x"), tile_m=64, tile_n=64, tile_k=32, split_k=1, stream_k=0)
    done = simulate_derivation(derivation, How(sanitizers=False), compiled=kernels.binary(derivation))
    assert done.ok
    counts = done.result.counts
    assert kernels.gemm_lds(derivation) == counts["lds_read_bytes"] + counts["lds_write_bytes"]


def test_help() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True)
    assert "--json" in done.stdout
