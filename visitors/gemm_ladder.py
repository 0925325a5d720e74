"""Block tiles that an emitted GEMM may have, largest first, with the clocks of one tile of k of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from closedform.hw.atoms import MFMAAtom
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.hw.occupancy import register_budget

from .gemm_spread import SpreadCosts

__all__ = [
    "EXPOSED",
    "ROW_BYTES",
    "START_CLOCKS",
    "TILE_CLOCKS",
    "WAVES_PER_SIMD",
    "Block",
    "block_ladder",
    "gemm_atoms",
    "l2_bytes_per_clk",
    "lds_share",
]

ROW_BYTES = 128
SIDES = (16, 32, 64, 128, 256)
WAVES_PER_SIMD = 2
WAVES_MAX = 8
#: Share of a tile's load time that its MFMAs do not cover.
EXPOSED = 0.5
#: Clocks that a tile of k takes at least: its barriers and the LDS round trip between them.
TILE_CLOCKS = 300
#: Clocks of a workgroup outside of its main loop: first loads, last MFMAs, stores.
START_CLOCKS = 2000


@dataclass(frozen=True, slots=True)
class Block:
    """A block tile with its wave grid and atom; `spread` are the costs of a rung of the ladder, None of other tiles."""

    tile_m: int
    tile_n: int
    wave_m: int
    wave_n: int
    atom: MFMAAtom
    tile_k: int
    accumulators: int
    spread: SpreadCosts | None = None

    def count(self, M: Any, N: Any, batch: Any = 1) -> Any:
        """Tiles of D, on ints or numpy arrays."""
        return -(-M // self.tile_m) * -(-N // self.tile_n) * batch

    @property
    def costs(self) -> SpreadCosts:
        assert self.spread is not None, "a rung of the ladder"
        return self.spread


@lru_cache(maxsize=256)
def gemm_atoms(hw: HardwareDescriptor, name: str) -> tuple[MFMAAtom, ...]:
    """Single-block atoms of the type, the fastest first; BadInput without any."""
    found = tuple(a for a in hw.atoms_for(name) if a.blocks == 1)
    if not found:
        raise BadInput(f"{hw.name} ({hw.gfx}) has no emittable MFMA for {name}: see closedform hw atoms {hw.name}")
    return found


@lru_cache(maxsize=1024)
def block_ladder(hw: HardwareDescriptor, name: str, packed: tuple[str, ...] = ()) -> tuple[Block, ...]:
    """Every block tile that two waves per SIMD can hold, largest first; `packed` operands take no LDS."""
    atoms = gemm_atoms(hw, name)
    best = [a for a in atoms if a.flops_per_clk_cu == atoms[0].flops_per_clk_cu]
    by_side = {a.m: a for a in reversed(best)}
    words = atoms[0].dtype_acc.bits // 32
    elem_bytes = atoms[0].dtype_a.bits // 8
    area_max = register_budget(hw, WAVES_PER_SIMD).arch // 2 * hw.wavefront_size // words
    if not hw.vgpr_unified:
        area_max = register_budget(hw, WAVES_PER_SIMD).acc * hw.wavefront_size // words
    images = 2 if max(hw.direct_to_lds_bytes, default=0) >= 16 else 1
    blocks = []
    for tile_m in SIDES:
        for tile_n in SIDES:
            lds = images * (("A" not in packed) * tile_m + ("B" not in packed) * tile_n) * ROW_BYTES
            waves = max(min(4, tile_m * tile_n // 256), tile_m * tile_n // area_max)
            while waves < WAVES_MAX and lds > lds_share(hw, waves):
                waves *= 2
            if waves > WAVES_MAX or lds > lds_share(hw, waves):
                continue
            grid = _wave_grid(tile_m, tile_n, waves, packed)
            if grid is None:
                continue
            wave_m, wave_n = grid
            sides = (tile_m // wave_m, tile_n // wave_n)
            atom = next((by_side[m] for m in (32, 16) if m in by_side and not (sides[0] % m or sides[1] % m)), None)
            if atom is not None:
                tile_k = ROW_BYTES // elem_bytes
                clocks = _clocks(hw, atom, (tile_m, tile_n, tile_k), grid, packed)
                held = tile_m * tile_n * words // (waves * hw.wavefront_size)
                sums = tile_m * tile_n * words * 4 / l2_bytes_per_clk(hw)
                costs = SpreadCosts(hw.num_cus, WAVES_MAX // waves, clocks, sums, START_CLOCKS)
                blocks.append(Block(tile_m, tile_n, wave_m, wave_n, atom, tile_k, held, costs))
    return tuple(sorted(blocks, key=lambda b: (-b.tile_m * b.tile_n, abs(b.tile_m - b.tile_n))))


def lds_share(hw: HardwareDescriptor, waves: int) -> int:
    """LDS of a workgroup where WAVES_PER_SIMD waves share a SIMD."""
    together = max(1, WAVES_PER_SIMD * hw.simds_per_cu // waves)
    return min(hw.lds_bytes // together, hw.lds_max_per_workgroup_bytes)


def _wave_grid(tile_m: int, tile_n: int, waves: int, packed: tuple[str, ...]) -> tuple[int, int] | None:
    """(wave_m, wave_n) whose wave tiles are squarest; None where 16 rows or columns do not fit.

    Of equally square ones the one with the shorter side of a packed operand, which stays in registers, else rows first.
    """
    grids = [(m, waves // m) for m in (1, 2, 4, 8) if m <= waves]
    fitting = [(m, n) for m, n in grids if tile_m >= 16 * m and tile_n >= 16 * n]
    side = -1 if packed == ("A",) else 1
    return min(fitting, key=lambda g: (abs(tile_m * g[1] - tile_n * g[0]), abs(g[0] - g[1]), side * g[0]), default=None)


def l2_bytes_per_clk(hw: HardwareDescriptor) -> float:
    """Bytes that L2 gives one CU in a clock while all of them ask."""
    return hw.l2_bytes_per_s / (hw.num_cus * hw.clock_mhz * 1e6)


def _clocks(
    hw: HardwareDescriptor, atom: MFMAAtom, tile: tuple[int, int, int], grid: tuple[int, int], packed: tuple[str, ...]
) -> float:
    """Clocks of one tile of k: the busiest of matrix cores, LDS, L1 and L2, not below TILE_CLOCKS, and exposed loads.

    An operand passes the LDS once for every wave that shares it; a packed one passes L1, and at worst L2, as often.
    """
    tile_m, tile_n, tile_k = tile
    row_bytes = tile_k * atom.dtype_a.bits // 8
    read_a, read_b = tile_m * grid[1], tile_n * grid[0]
    packed_rows = ("A" in packed) * read_a + ("B" in packed) * read_b
    whole_rows = ("A" not in packed) * tile_m + ("B" not in packed) * tile_n
    matrix = 2 * tile_m * tile_n * tile_k / atom.flops_per_clk_cu
    lds = (read_a + read_b - packed_rows) * row_bytes / hw.lds_read_bytes_per_clk
    rows = whole_rows + packed_rows
    l1 = rows * row_bytes / hw.l1_bytes_per_clk
    l2 = rows * row_bytes / l2_bytes_per_clk(hw)
    return max(matrix, lds, l1 if packed else 0, l2, TILE_CLOCKS) + EXPOSED * l2
