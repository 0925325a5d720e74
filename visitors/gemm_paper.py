"""The paper's derivation of GEMM tiles (section 4): LDS, registers, compute units, atom, in that order."""

from __future__ import annotations

from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, Infeasible
from closedform.operators.gemm import Gemm, GemmTiles

from .derivation import Derivation, GridVerdict, PredictedResources, RegisterItem
from .formula import Formula, FormulaValue, align_down, ceil_div, floor_sqrt

__all__ = ["derive_gemm"]

PAPER_TEXT = "closed-formula paper, section 4"
OVERHEAD = 16
WAVE_GRID = 2  # 2 x 2 waves: one for each SIMD

TILE_MN = Formula(
    "t_M = t_N",
    "block tile: the printed floor(sqrt(LDS/2/elem)) gives 90; the paper's 128 follows from LDS/elem",
    "elements",
    f"{PAPER_TEXT}, worked example",
    lambda lds_bytes, elem_bytes, m: align_down(floor_sqrt(lds_bytes // elem_bytes), m),
)
TILE_K = Formula(
    "t_K",
    "reduction tile: half of the LDS holds A and B, the other half is the second buffer",
    "elements",
    f"{PAPER_TEXT}, second equation",
    lambda lds_bytes, t_M, t_N, elem_bytes, k: align_down(lds_bytes // 2 // ((t_M + t_N) * elem_bytes), k),
)
REGISTERS = Formula(
    "V(u)",
    "accumulators of u row tiles of a wave, and overhead",
    "registers",
    f"{PAPER_TEXT}, V(u) = u * t_wn/n * c + overhead",
    lambda u, t_wn, n, c, overhead: u * (t_wn // n) * c + overhead,
)
BLOCKS = Formula(
    "blocks",
    "workgroups of the grid",
    "workgroups",
    f"{PAPER_TEXT}, occupancy constraint",
    lambda M, N, t_M, t_N, batch: ceil_div(M, t_M) * ceil_div(N, t_N) * batch,
)


def derive_gemm(op: Gemm, hw: HardwareDescriptor) -> Derivation:
    """Block tile from LDS, halved while the grid leaves CUs idle; registers and atom checked.

    4096^3 f32 on the paper's first GPU: 128 x 128 x 32, 1024 workgroups, 8.53 for each CU.
    """
    atoms = [a for a in hw.atoms_for(op.dtype) if a.blocks == 1]
    if not atoms:
        raise BadInput(f"{hw.name} ({hw.gfx}) has no emittable MFMA for {op.dtype}: see closedform hw atoms {hw.name}")
    atom = atoms[0]
    tile_mn = TILE_MN(lds_bytes=hw.lds_bytes, elem_bytes=op.elem_bytes, m=WAVE_GRID * atom.m)
    if tile_mn.value < WAVE_GRID * atom.m:
        return _infeasible(op, hw, (tile_mn,), WAVE_GRID * atom.m)
    tile_m = tile_n = tile_mn.value
    halved = 0
    while _blocks(op, tile_m, tile_n).value < hw.num_cus and min(tile_m, tile_n) // 2 >= WAVE_GRID * atom.m:
        tile_m = tile_n = align_down(tile_m // 2, WAVE_GRID * atom.m)
        halved += 1
    tile_k = TILE_K(lds_bytes=hw.lds_bytes, t_M=tile_m, t_N=tile_n, elem_bytes=op.elem_bytes, k=atom.k)
    if tile_k.value < atom.k:
        return _infeasible(op, hw, (tile_mn, tile_k), atom.k)
    u = tile_m // WAVE_GRID // atom.m
    registers = REGISTERS(u=u, t_wn=tile_n // WAVE_GRID, n=atom.n, c=atom.registers_c, overhead=OVERHEAD)
    blocks = _blocks(op, tile_m, tile_n)
    tiles = GemmTiles(tile_m, tile_n, tile_k.value, WAVE_GRID, WAVE_GRID, atom)
    lds = 2 * (tile_m + tile_n) * tile_k.value * op.elem_bytes
    accumulators = registers.value - OVERHEAD
    resources = PredictedResources(
        (
            RegisterItem("D", accumulators, "acc", "accumulators of a wave's part of the tile"),
            RegisterItem("overhead", OVERHEAD, "arch", "addresses and temporaries"),
        ),
        registers.value,
        OVERHEAD if not hw.vgpr_unified else registers.value,
        accumulators if not hw.vgpr_unified else 0,
        256,
        lds,
        hw.lds_max_per_workgroup_bytes,
        1,
    )
    notes = (f"the tile was halved {halved} time(s) to give every CU a workgroup",) if halved else ()
    return Derivation(
        op,
        hw,
        "paper",
        tiles,
        "cus" if halved else "lds",
        (tile_mn.binding(), tile_k, registers, blocks),
        resources,
        _grid(op, hw, tiles, blocks.value),
        None,
        notes,
    )


def _blocks(op: Gemm, tile_m: int, tile_n: int) -> FormulaValue:
    return BLOCKS(M=op.M, N=op.N, t_M=tile_m, t_N=tile_n, batch=op.batch)


def _grid(op: Gemm, hw: HardwareDescriptor, tiles: GemmTiles, blocks: int) -> GridVerdict:
    per_cu = blocks / hw.num_cus
    rounds = ceil_div(blocks, hw.num_cus)
    return GridVerdict(
        (ceil_div(op.N, tiles.tile_n), ceil_div(op.M, tiles.tile_m), op.batch),
        blocks,
        hw.num_cus,
        1,
        per_cu,
        rounds,
        blocks / (rounds * hw.num_cus),
        per_cu >= 1,
        f"{per_cu:.2f} blocks per CU: {'good' if per_cu >= 1 else 'low'} occupancy",
    )


def _infeasible(op: Gemm, hw: HardwareDescriptor, steps: tuple[FormulaValue, ...], least: Any) -> Derivation:
    needed = 2 * 2 * least * least * op.elem_bytes
    reason = Infeasible("LDS", needed, hw.lds_bytes, "B", "the smallest block tile", "use a GPU with more LDS")
    return Derivation(op, hw, "paper", None, "lds", steps, None, None, reason)
