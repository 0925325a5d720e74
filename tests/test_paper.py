"""Every number of the closed-formula paper that holds, each with its place in the paper.

What the paper prints otherwise is in docs/paper.md, whose numbers tests/test_docs.py recomputes.
"""

from __future__ import annotations

from math import ceil

import pytest

import closedform
from closedform.hw import catalogue
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm
from closedform.traffic import fused_bytes, savings, scores_bytes, streamed_bytes, unfused_bytes
from closedform.visitors.attention_formulas import PAPER

#: Section 3, the two descriptors of the listing.
PAPER_GPUS = ("paper_a", "paper_b")


# Section 3, listing: derive_tiles(gpu, L=16384, d=128) on both GPUs.


@pytest.mark.parametrize("gpu", PAPER_GPUS)
def test_section_3_tiles_are_identical_on_both_gpus(gpu: str) -> None:
    tiles = closedform.derive_tiles(catalogue.get(gpu), L=16384, d=128)
    assert (tiles.tile_q, tiles.tile_kv) == (32, 64)


@pytest.mark.parametrize("gpu", PAPER_GPUS)
def test_section_3_descriptors_hold_the_printed_inputs(gpu: str) -> None:
    hw = catalogue.get(gpu)
    assert hw.lds_bytes == 64 * 1024
    assert hw.vgpr_per_wave_max == 256
    assert hw.wavefront_size == 64
    assert (hw.num_cus, hw.hbm_bytes_per_s, hw.printed_peak_tflops_f32) == {
        "paper_a": (120, 1.2e12, 11.5),
        "paper_b": (304, 5.3e12, 383.0),
    }[gpu]
    assert {(atom.m, atom.n, atom.k, atom.dtype_a.name) for atom in hw.atoms} == {(16, 16, 4, "f32")}


def test_section_3_elements_per_thread() -> None:
    """For mfma_f32_16x16x4f32 each thread holds 1, 1 and 4 floats."""
    (atom,) = catalogue.get("paper_a").atoms
    assert (atom.elements_a, atom.elements_b, atom.elements_c) == (1, 1, 4)


def test_section_3_1_accumulator_layout() -> None:
    """acc[f] = C[4 * (tid // 16) + f][tid % 16]: the documented layout of the f32 instruction."""
    (atom,) = catalogue.get("paper_a").atoms
    for tid in range(64):
        for f in range(4):
            place = atom.c.coords(tid, f)
            assert (place["m"], place["n"]) == (4 * (tid // 16) + f, tid % 16)


# Section 4 and Figure 1: the GEMM of 4096^3.


def test_section_4_gemm_tile_and_grid() -> None:
    derivation = closedform.derive(Gemm(4096, 4096, 4096), "paper_a", model="paper")
    tiles, grid = derivation.tiles, derivation.grid
    assert tiles is not None
    assert grid is not None
    assert (tiles.tile_m, tiles.tile_n, tiles.tile_k) == (128, 128, 32)
    assert grid.blocks == 1024
    assert grid.blocks_per_cu == pytest.approx(8.53, abs=0.005)


# Section 6, equation 7.


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("length", [1024, 16384, 32768])
def test_equation_7_savings(length: int, d: int) -> None:
    assert savings(Attention(length, length, d)) == length / (4 * d)


# Section 6.2, Table 2: d, t_KV, t_Q, registers, feasible within 256.

TABLE_2 = [
    (64, 128, 48, 214, True),
    (64, 128, 64, 280, False),
    (128, 64, 32, 180, True),
    (128, 64, 48, 262, False),
]


@pytest.mark.parametrize(("d", "tile_kv", "tile_q", "registers", "feasible"), TABLE_2)
def test_table_2_registers_and_verdicts(d: int, tile_kv: int, tile_q: int, registers: int, feasible: bool) -> None:
    assert PAPER.tile_kv(lds_bytes=65536, d=d, elem_bytes=4, m=16).value == tile_kv
    assert PAPER.registers(u=tile_q // 16, d=d, t_KV=tile_kv, overhead=16).value == registers
    assert (registers <= 256) is feasible


@pytest.mark.parametrize(("d", "tile_kv", "tile_q"), [row[:3] for row in TABLE_2 if row[4]])
def test_table_2_largest_feasible_tile_is_the_derived_one(d: int, tile_kv: int, tile_q: int) -> None:
    tiles = closedform.derive_tiles("paper_a", L=16384, d=d)
    assert (tiles.tile_q, tiles.tile_kv) == (tile_q, tile_kv)


# Section 6.2, HBM traffic.


def test_section_6_2_hbm_traffic() -> None:
    main_job = Attention(16384, 16384, 128)
    assert round(fused_bytes(main_job) / 1e6) == 34
    assert round(scores_bytes(main_job) / 1e6) == 1074
    assert round(unfused_bytes(main_job) / 1e6) == 4329
    assert round(unfused_bytes(main_job) / fused_bytes(main_job)) == 129
    assert round(unfused_bytes(Attention(32768, 32768, 128)) / 1e9) == 17
    assert streamed_bytes(main_job, 32) == 512 * 2 * 16384 * 128 * 4


# Section 6.2, Table 3: L, fused ms, unfused ms, speedup; d=128, t_Q=32, 120 CUs.

TABLE_3 = [
    (4096, 27.9, 26.6, 0.95),
    (8192, 83.5, 104.6, 1.25),
    (16384, 279.3, 418.1, 1.50),
    (32768, 991.1, 1666.6, 1.68),
]


@pytest.mark.parametrize(("length", "fused_ms", "unfused_ms", "speedup"), TABLE_3)
def test_table_3_speedups(length: int, fused_ms: float, unfused_ms: float, speedup: float) -> None:
    assert unfused_ms / fused_ms == pytest.approx(speedup, abs=0.005)


def test_table_3_is_a_round_count() -> None:
    """fused time / (rounds * L) is one constant within 2%, with rounds = ceil(blocks / 120)."""
    per_round_us = []
    for length, fused_ms, _, _ in TABLE_3:
        grid = closedform.derive(Attention(length, length, 128), "paper_a", model="paper").grid
        assert grid is not None
        assert grid.rounds == ceil(ceil(length / 32) / 120)
        per_round_us.append(1e3 * fused_ms / (grid.rounds * length))
    middle = (max(per_round_us) + min(per_round_us)) / 2
    assert all(abs(t - middle) <= 0.02 * middle for t in per_round_us)
