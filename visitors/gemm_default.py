"""Tiles of the GEMM kernels that are emitted: accumulators, LDS, compute units, in that order.

1. Atom: 32x32 where the wave's tile is whole atoms of it (half the LDS bytes per operation of 16x16), else 16x16.
2. Depth: rows of 128 bytes in LDS. Two waves share a SIMD, so a wave has half of the register file; half of that holds
   accumulators, which bounds the area of its tile, and waves form a grid that is square in bytes.
3. Of all block tiles that fit, the one with the least predicted time: rounds of the grid over the CUs, times the clocks
   of a tile and of what its loads leave exposed. Small problems so get small tiles, large ones reuse.
4. Buffers from the LDS that two waves per SIMD leave; direct loads where both operands allow them; widths of accesses
   from leading dimensions; order of tiles from the CUs that share an L2.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from math import gcd, isqrt
from typing import Any

from closedform.hw.atoms import MFMAAtom
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, Infeasible, near_names
from closedform.hw.occupancy import occupancy_of, register_budget
from closedform.operators.gemm import Gemm, GemmTiles

from .derivation import Derivation, GridVerdict, PredictedResources
from .formula import ceil_div
from .gemm_formulas import GEMM
from .gemm_rules import broken_rule, registers_fit, waves_per_simd_range
from .gemm_shape import GemmShape

__all__ = ["KNOBS", "block_tiles", "derive_gemm_default"]

ROW_BYTES = 128
SIDES = (16, 32, 64, 128, 256)
WAVES_PER_SIMD = 2
WAVES_MAX = 8
#: Share of a tile's load time that its MFMAs do not cover.
EXPOSED = 0.5
#: Clocks of a workgroup outside of its main loop: first loads, last MFMAs, stores.
START_CLOCKS = 2000
#: Clocks that a tile of k takes at least: its barriers and the LDS round trip between them.
TILE_CLOCKS = 300
#: A smaller tile must win by a thousandth.
TIE = 0.999
#: Rows that a transposing thread takes of an operand whose rows are contiguous, by element size.
ROWS_A_THREAD = {8: 1, 4: 1, 2: 4, 1: 4}

FIXED = ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n", "atom")
KNOBS = tuple(f.name for f in fields(GemmTiles))


@dataclass(frozen=True, slots=True)
class _Block:
    """A block tile with its wave grid and atom; `clocks` of its MFMAs and exposed loads for one tile of k."""

    tile_m: int
    tile_n: int
    wave_m: int
    wave_n: int
    atom: MFMAAtom
    tile_k: int
    accumulators: int
    clocks: float


def derive_gemm_default(op: Gemm, hw: HardwareDescriptor, **overrides: Any) -> Derivation:
    """Tiles of `op` on `hw`; `overrides` fix knobs of GemmTiles, and the first rule that they break is returned."""
    unknown = sorted(set(overrides) - set(KNOBS))
    if unknown:
        raise BadInput(f"unknown knob {unknown[0]!r} of gemm: {near_names(unknown[0], KNOBS)}")
    kind = hw.resolve_dtype(op.dtype)
    if kind.bits < 8:
        raise BadInput(f"gemm of {kind} is not offered")
    overrides = {**overrides, "atom": _atom_override(op, hw, overrides.get("atom"))}
    given = {k: v for k, v in overrides.items() if v is not None}
    block = _block(op, hw, overrides, None)
    try:
        shape = _shape(op, hw, block, overrides, given)
    except BadInput as error:
        refusal = Infeasible("whole atoms", 1, 0, "part", str(error), "give whole atoms of every wave")
        return Derivation(op, hw, "default", None, "atom", (), None, None, refusal)
    broken = broken_rule(shape)
    if broken is not None:
        return Derivation(op, hw, "default", None, _binding_of(broken.resource), (), None, None, broken)
    return _result(op, hw, shape.tiles, shape)


def _shape(
    op: Gemm, hw: HardwareDescriptor, block: _Block, overrides: dict[str, Any], given: dict[str, Any]
) -> GemmShape:
    """The best block tile whose main loop fits the registers; the smallest one has a SIMD for itself if need be."""
    shape = GemmShape(op, _tiles(op, hw, block, given), hw)
    while block.clocks and not registers_fit(shape):
        smaller = _block(op, hw, overrides, shape.accumulators)
        if not smaller.clocks:
            least = waves_per_simd_range(hw, shape.tiles.waves, shape.lds_bytes)[0]
            return GemmShape(op, _tiles(op, hw, block, {"waves_per_simd": least, **given}), hw)
        block = smaller
        shape = GemmShape(op, _tiles(op, hw, block, given), hw)
    return shape


def _binding_of(resource: str) -> str:
    return {"LDS": "lds", "registers": "registers"}.get(resource, "atom")


def _atom_override(op: Gemm, hw: HardwareDescriptor, name: Any) -> MFMAAtom | None:
    """The atom that "32x32", "16x16" or an instruction names."""
    if name is None or isinstance(name, MFMAAtom):
        return name
    atoms = _atoms(hw, op.dtype)
    named = [a for a in atoms if name in (f"{a.m}x{a.n}", a.instruction)]
    if not named:
        raise BadInput(f"no atom {name!r} for {op.dtype}: {near_names(str(name), (a.instruction for a in atoms))}")
    return named[0]


@lru_cache(maxsize=256)
def _atoms(hw: HardwareDescriptor, name: str) -> tuple[MFMAAtom, ...]:
    """Single-block atoms of the type, the fastest first; BadInput without any."""
    found = tuple(a for a in hw.atoms_for(name) if a.blocks == 1)
    if not found:
        raise BadInput(f"{hw.name} ({hw.gfx}) has no emittable MFMA for {name}: see closedform hw atoms {hw.name}")
    return found


@lru_cache(maxsize=1024)
def _ladder(hw: HardwareDescriptor, name: str) -> tuple[_Block, ...]:
    """Every block tile that two waves per SIMD can hold, largest first."""
    atoms = _atoms(hw, name)
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
            lds = images * (tile_m + tile_n) * ROW_BYTES
            waves = max(min(4, tile_m * tile_n // 256), tile_m * tile_n // area_max)
            while waves < WAVES_MAX and lds > _lds_share(hw, waves):
                waves *= 2
            if waves > WAVES_MAX or lds > _lds_share(hw, waves):
                continue
            grid = _wave_grid(tile_m, tile_n, waves)
            if grid is None:
                continue
            wave_m, wave_n = grid
            sides = (tile_m // wave_m, tile_n // wave_n)
            atom = next((by_side[m] for m in (32, 16) if m in by_side and not (sides[0] % m or sides[1] % m)), None)
            if atom is not None:
                tile_k = ROW_BYTES // elem_bytes
                clocks = _clocks(hw, atom, (tile_m, tile_n, tile_k), sides, waves)
                held = tile_m * tile_n * words // (waves * hw.wavefront_size)
                blocks.append(_Block(tile_m, tile_n, wave_m, wave_n, atom, tile_k, held, clocks))
    return tuple(sorted(blocks, key=lambda b: (-b.tile_m * b.tile_n, abs(b.tile_m - b.tile_n))))


def _lds_share(hw: HardwareDescriptor, waves: int) -> int:
    """LDS of a workgroup where WAVES_PER_SIMD waves share a SIMD."""
    together = max(1, WAVES_PER_SIMD * hw.simds_per_cu // waves)
    return min(hw.lds_bytes // together, hw.lds_max_per_workgroup_bytes)


def _wave_grid(tile_m: int, tile_n: int, waves: int) -> tuple[int, int] | None:
    """(wave_m, wave_n) whose wave tiles are squarest, rows first; None where 16 rows or columns do not fit."""
    grids = [(m, waves // m) for m in (1, 2, 4, 8) if m <= waves]
    fitting = [(m, n) for m, n in grids if tile_m >= 16 * m and tile_n >= 16 * n]
    return min(fitting, key=lambda g: (abs(tile_m * g[1] - tile_n * g[0]), abs(g[0] - g[1]), g[0]), default=None)


def _clocks(
    hw: HardwareDescriptor, atom: MFMAAtom, tile: tuple[int, int, int], sides: tuple[int, int], waves: int
) -> float:
    """Clocks of one tile of k: the busier of matrix cores, LDS and L2, not below TILE_CLOCKS, and exposed loads."""
    tile_m, tile_n, tile_k = tile
    row_bytes = tile_k * atom.dtype_a.bits // 8
    matrix = 2 * tile_m * tile_n * tile_k / atom.flops_per_clk_cu
    lds = sum(sides) * waves * row_bytes / hw.lds_read_bytes_per_clk
    l2 = (tile_m + tile_n) * row_bytes / (hw.l2_bytes_per_s / (hw.num_cus * hw.clock_mhz * 1e6))
    return max(matrix, lds, l2, TILE_CLOCKS) + EXPOSED * l2


def _block(op: Gemm, hw: HardwareDescriptor, overrides: dict[str, Any], below: int | None) -> _Block:
    """The block tile of least predicted time: rounds times clocks; ties go to the larger one.

    `below` asks for fewer accumulator registers a wave than that.
    """
    cus, best, best_time = hw.num_cus, None, 0.0
    M, N, batch = op.M, op.N, op.batch
    given = [(k, overrides[k]) for k in ("tile_m", "tile_n", "wave_m", "wave_n") if overrides.get(k) is not None]
    atom = overrides["atom"]
    for block in _ladder(hw, op.dtype):
        if (given and any(getattr(block, k) != v for k, v in given)) or (atom is not None and block.atom != atom):
            continue
        if below is not None and block.accumulators >= below:
            continue
        blocks = -(-M // block.tile_m) * -(-N // block.tile_n) * batch
        time = -(-blocks // cus) * (-(-op.K // block.tile_k) * block.clocks + START_CLOCKS)
        if best is None or time < best_time * TIE:
            best, best_time = block, time
    if best is not None:
        return best
    return _given_block(op, hw, overrides)


def block_tiles(hw: HardwareDescriptor, name: str, M: Any, N: Any, K: Any) -> tuple[Any, Any]:
    """(tile_m, tile_n) of many shapes at once: numpy arrays in, arrays out; before the check of the live set."""
    import numpy as np

    best: Any = None
    for block in _ladder(hw, name):
        blocks = -(-M // block.tile_m) * -(-N // block.tile_n)
        time = -(-blocks // hw.num_cus) * (-(-K // block.tile_k) * block.clocks + START_CLOCKS)
        if best is None:
            best, tile_m, tile_n = time, np.full_like(M, block.tile_m), np.full_like(M, block.tile_n)
            continue
        better = time < best * TIE
        best = np.where(better, time, best)
        tile_m, tile_n = np.where(better, block.tile_m, tile_m), np.where(better, block.tile_n, tile_n)
    return tile_m, tile_n


def _given_block(op: Gemm, hw: HardwareDescriptor, overrides: dict[str, Any]) -> _Block:
    """Tiles that no rung of the ladder has: what is given, the rest from the nearest rung."""
    ladder = _ladder(hw, op.dtype)
    atom = overrides["atom"]
    wanted_m, wanted_n = overrides.get("tile_m") or 128, overrides.get("tile_n") or 128
    near = min(ladder, key=lambda b: abs(b.tile_m - wanted_m) + abs(b.tile_n - wanted_n))
    tile_m, tile_n = overrides.get("tile_m") or near.tile_m, overrides.get("tile_n") or near.tile_n
    waves = near.wave_m * near.wave_n
    grids = [(m, n) for m in (1, 2, 4, 8) for n in (1, 2, 4, 8) if m * n <= waves]
    sides = (
        [atom]
        if atom is not None
        else [a for a in _atoms(hw, op.dtype) if a.flops_per_clk_cu == near.atom.flops_per_clk_cu]
    )
    fits = [
        (-m * n, -a.m, abs(tile_m * n - tile_n * m), m, n, a)
        for m, n in grids
        for a in sides
        if not (tile_m % (m * a.m) or tile_n % (n * a.n))
        and overrides.get("wave_m") in (None, m)
        and overrides.get("wave_n") in (None, n)
    ]
    if not fits:
        wave_m, wave_n = overrides.get("wave_m") or near.wave_m, overrides.get("wave_n") or near.wave_n
        return _Block(tile_m, tile_n, wave_m, wave_n, sides[-1], near.tile_k, 0, 0.0)
    _, _, _, wave_m, wave_n, found = min(fits, key=lambda f: f[:4])
    return _Block(tile_m, tile_n, wave_m, wave_n, found, near.tile_k, 0, 0.0)


def _tiles(op: Gemm, hw: HardwareDescriptor, block: _Block, overrides: dict[str, Any]) -> GemmTiles:
    """The block tile with the knobs that follow from it."""
    atom = block.atom
    elem_bytes = atom.dtype_a.bits // 8
    vec, tile_k = 16 // elem_bytes, overrides.get("tile_k") or ROW_BYTES // elem_bytes
    waves = block.wave_m * block.wave_n
    threads = waves * hw.wavefront_size
    lda, ldb, ldd = op.leading
    along_a, along_b = op.layout[0] == "N", op.layout[1] == "T"

    def reads(along: bool, ld: int, rows: int, tile_rows: int) -> tuple[int, int]:
        if along:
            access = gcd(ld, vec)
            return access, gcd(op.K, access)
        access = gcd(gcd(ld, rows), min(ROWS_A_THREAD[elem_bytes], tile_rows))
        while access > 1 and tile_rows // access * (tile_k // vec) % threads:
            access //= 2
        return access, 1

    read_a, tail_a = reads(along_a, lda, op.M, block.tile_m)
    read_b, tail_b = reads(along_b, ldb, op.N, block.tile_n)
    image = (block.tile_m + block.tile_n) * tile_k * elem_bytes
    direct = (
        along_a
        and along_b
        and read_a == read_b == vec
        and max(hw.direct_to_lds_bytes, default=0) >= 16
        and 2 * image <= _lds_share(hw, waves)
        and not (block.tile_m * tile_k // vec % threads or block.tile_n * tile_k // vec % threads)
    )
    derived: dict[str, Any] = {
        "buffers": 2 if direct or (elem_bytes < 4 and 2 * image <= _lds_share(hw, waves)) else 1,
        "direct": direct,
        "read_a": read_a,
        "read_b": read_b,
        "tail_a": tail_a,
        "tail_b": tail_b,
        "store": gcd(gcd(op.N, ldd), _run(op, atom, block)),
        "group_m": _group(op, hw, block),
        "xcds": hw.num_xcds if hw.num_cus % hw.num_xcds == 0 else 1,
    }
    derived |= {k: v for k, v in overrides.items() if k not in FIXED}
    least, most = waves_per_simd_range(hw, waves, derived["buffers"] * image)
    derived.setdefault("waves_per_simd", max(least, min(WAVES_PER_SIMD, most)))
    return GemmTiles(block.tile_m, block.tile_n, tile_k, block.wave_m, block.wave_n, atom, **derived)


def _run(op: Gemm, atom: MFMAAtom, block: _Block) -> int:
    """Consecutive columns of D that a lane holds: a 16-byte store, as far as the wave's atoms allow."""
    columns = max(1, block.tile_n // (block.wave_n * atom.n))
    run = min(8, 16 // dtype(op.result).bytes)
    while columns * atom.elements_c % run:
        run //= 2
    return run


def _group(op: Gemm, hw: HardwareDescriptor, block: _Block) -> int:
    """Rows of tiles in a group: the tiles that share an L2 at a time form a square in bytes of A and B."""
    together = max(1, hw.num_cus // hw.num_xcds)
    rows = isqrt(together * block.tile_n // block.tile_m)
    return max(1, min(rows, -(-op.M // block.tile_m)))


def _result(op: Gemm, hw: HardwareDescriptor, tiles: GemmTiles, shape: GemmShape) -> Derivation:
    resources = _resources(hw, tiles, shape)
    blocks = GEMM.blocks(M=op.M, N=op.N, t_M=tiles.tile_m, t_N=tiles.tile_n, batch=op.batch)
    rounds = GEMM.rounds(blocks=blocks.value, num_cus=hw.num_cus)
    words, waves = shape.atom.dtype_acc.bits // 32, tiles.waves
    steps = (
        GEMM.accumulators(t_M=tiles.tile_m, t_N=tiles.tile_n, acc_words=words, waves=waves, lanes=hw.wavefront_size),
        GEMM.tile_k(row_bytes=tiles.tile_k * shape.elem_bytes, elem_bytes=shape.elem_bytes),
        GEMM.lds(
            t_M=tiles.tile_m, t_N=tiles.tile_n, t_K=tiles.tile_k, elem_bytes=shape.elem_bytes, buffers=tiles.buffers
        ),
        blocks,
        rounds,
    )
    largest = _ladder(hw, op.dtype)[0]
    reduced = tiles.tile_m * tiles.tile_n < largest.tile_m * largest.tile_n
    per_cu = blocks.value / hw.num_cus
    occupancy = occupancy_of(hw, waves, resources.arch_registers, resources.acc_registers, resources.lds_bytes)
    slots = hw.num_cus * max(1, occupancy.workgroups_per_cu)
    fills = blocks.value >= hw.num_cus
    verdict = f"{per_cu:.2f} workgroups per CU, {rounds.value} round(s)"
    grid = GridVerdict(
        (min(blocks.value, 65536), ceil_div(blocks.value, 65536), op.batch),
        blocks.value,
        hw.num_cus,
        occupancy.workgroups_per_cu,
        per_cu,
        ceil_div(blocks.value, slots),
        blocks.value / (rounds.value * hw.num_cus),
        fills,
        verdict if fills else f"{verdict}: CUs stay idle",
    )
    notes = [f"atom {tiles.atom.instruction}: {shape.atoms_m} x {shape.atoms_n} of it a wave"]
    if not fills:
        notes.append("the grid leaves CUs idle; a vendor library, which also splits k, is likely better")
    if min(tiles.read_a, tiles.read_b) * shape.elem_bytes < 4:
        notes.append("accesses of less than 4 bytes: padded leading dimensions or a vendor library are likely better")
    index = 3 if reduced else 0
    marked = tuple(step.binding() if i == index else step for i, step in enumerate(steps))
    return Derivation(
        op, hw, "default", tiles, "cus" if reduced else "registers", marked, resources, grid, None, tuple(notes)
    )


def _resources(hw: HardwareDescriptor, tiles: GemmTiles, shape: GemmShape) -> PredictedResources:
    """The live set, but never above the budget: the compiler keeps to the registers of the aimed-at occupancy."""
    budget = register_budget(hw, tiles.waves_per_simd)
    items = shape.items
    total = sum(item.registers for item in items)
    acc = shape.accumulators
    if hw.vgpr_unified:
        registers, arch = min(total, budget.total), min(total, budget.arch)
        split = registers - arch
    else:
        arch = min(total - acc, budget.arch)
        split = min(total - arch, budget.acc)
        registers = max(arch, split)
    return PredictedResources(
        items=items,
        registers=registers,
        arch_registers=arch,
        acc_registers=split,
        register_budget=budget.total if hw.vgpr_unified else budget.arch,
        lds_bytes=shape.lds_bytes,
        lds_limit_bytes=hw.lds_max_per_workgroup_bytes,
        waves_per_simd=tiles.waves_per_simd,
    )
