"""Tiles of the GEMM kernels that are emitted: accumulators, LDS, compute units, in that order.

1. Atom: 32x32 where the wave's tile is whole atoms of it (half the LDS bytes per operation of 16x16), else 16x16.
2. Depth: rows of 128 bytes in LDS. Two waves share a SIMD, so a wave has half of the register file; half of that holds
   accumulators, which bounds the area of its tile, and waves form a grid that is square in bytes.
3. Of all block tiles that fit, the one with the least predicted time: rounds of the grid over the CUs, times the clocks
   of a tile and of what its loads leave exposed. Small problems so get small tiles, large ones reuse.
4. Where the tiles leave CUs idle, or their last round does, k is split: split-K while there are fewer tiles than CUs,
   Stream-K where rounds go to waste, and only for a gain above what the sums cost (`gemm_spread`).
5. Buffers from the LDS that two waves per SIMD leave; direct loads where both operands allow them; widths of accesses
   from leading dimensions; order of tiles from the CUs that share an L2.
"""

from __future__ import annotations

from math import gcd, isqrt
from typing import Any

from closedform.hw.atoms import MFMAAtom
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, Infeasible, near_names
from closedform.hw.occupancy import occupancy_of
from closedform.operators.gemm import KNOBS, Gemm, GemmTiles

from .derivation import Derivation, GridVerdict, PredictedResources
from .formula import FormulaValue, ceil_div
from .gemm_formulas import GEMM
from .gemm_ladder import ROW_BYTES, WAVES_PER_SIMD, Block, block_ladder, gemm_atoms, lds_share
from .gemm_rules import RULES, registers_fit, waves_per_simd_range
from .gemm_shape import GRID_X, GemmShape
from .gemm_spread import Spread
from .rule import broken_rule

__all__ = ["derive_gemm_batch", "derive_gemm_default"]

#: A smaller tile must win by a thousandth.
TIE = 0.999
#: Rows that a transposing thread takes of an operand whose rows are contiguous, by element size.
ROWS_A_THREAD = {8: 1, 4: 1, 2: 4, 1: 4}

FIXED = ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n", "atom")


def derive_gemm_default(op: Gemm, hw: HardwareDescriptor, **overrides: Any) -> Derivation:
    """Tiles of `op` on `hw`; `overrides` fix knobs of GemmTiles, and the first rule that they break is returned."""
    known = {knob.name: knob for knob in KNOBS}
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise BadInput(f"unknown knob {unknown[0]!r} of gemm: {near_names(unknown[0], known)}")
    for name, value in overrides.items():
        if value is not None:
            known[name].check(value)
    kind = hw.resolve_dtype(op.dtype)
    hw.resolve_dtype(op.result)
    if kind.bits < 8:
        raise BadInput(f"gemm of {kind} is not offered")
    overrides = {**overrides, "atom": _atom_override(op, hw, overrides.get("atom"))}
    given = {k: v for k, v in overrides.items() if v is not None}
    if (refusal := _past_the_target(op, hw, given)) is not None:
        return Derivation(op, hw, "default", None, _binding_of(refusal.resource), (), None, None, refusal)
    candidates = _candidates(op, hw, overrides)
    block = _best(candidates) or _given_block(op, hw, overrides)
    try:
        shape = _shape(op, hw, block, candidates, given)
    except BadInput as error:
        refusal = Infeasible("whole atoms", 1, 0, "part", str(error), "give whole atoms of every wave")
        return Derivation(op, hw, "default", None, "atom", (), None, None, refusal)
    broken = broken_rule(RULES, shape)
    if broken is not None:
        return Derivation(op, hw, "default", None, _binding_of(broken.resource), (), None, None, broken)
    return _result(op, hw, shape.tiles, shape)


def _past_the_target(op: Gemm, hw: HardwareDescriptor, given: dict[str, Any]) -> Infeasible | None:
    """Knobs beyond anything that the target has: no shape of them is counted."""
    waves, depth = given.get("waves_per_simd", 1), given.get("tile_k", 1) * op.elem_bytes
    where = f"this gemm on {hw.name}"
    if waves > hw.waves_per_simd_max:
        return Infeasible("waves per SIMD", waves, hw.waves_per_simd_max, "waves", where, "use fewer waves per SIMD")
    if depth > hw.lds_max_per_workgroup_bytes:
        return Infeasible("row of LDS", depth, hw.lds_max_per_workgroup_bytes, "B", where, "use a smaller tile_k")
    return None


def _shape(
    op: Gemm, hw: HardwareDescriptor, block: Block, candidates: list[tuple[Block, float]], given: dict[str, Any]
) -> GemmShape:
    """The best block tile whose main loop fits the registers; the smallest one has a SIMD for itself if need be."""
    shape = GemmShape(op, _tiles(op, hw, block, given), hw)
    while block.spread is not None and not registers_fit(shape):
        smaller = _best(candidates, shape.accumulators)
        if smaller is None:
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
    atoms = gemm_atoms(hw, op.dtype)
    named = [a for a in atoms if name in (f"{a.m}x{a.n}", a.instruction)]
    if not named:
        raise BadInput(f"no atom {name!r} for {op.dtype}: {near_names(str(name), (a.instruction for a in atoms))}")
    return named[0]


def _candidates(op: Gemm, hw: HardwareDescriptor, overrides: dict[str, Any]) -> list[tuple[Block, float]]:
    """Rungs of the ladder that the overrides leave, with their predicted times: rounds times clocks."""
    found = []
    M, N, K, batch = op.M, op.N, op.K, op.batch
    given = [(k, overrides[k]) for k in ("tile_m", "tile_n", "wave_m", "wave_n") if overrides.get(k) is not None]
    atom, pad_bytes = overrides["atom"], (overrides.get("pad") or 0) * op.elem_bytes
    for block in block_ladder(hw, op.dtype, op.packed):
        if (given and any(getattr(block, k) != v for k, v in given)) or (atom is not None and block.atom != atom):
            continue
        rows = ("A" not in op.packed) * block.tile_m + ("B" not in op.packed) * block.tile_n
        if pad_bytes and rows * (ROW_BYTES + pad_bytes) > lds_share(hw, block.wave_m * block.wave_n):
            continue
        found.append((block, block.costs.least(block.count(M, N, batch), max(1, -(-K // block.tile_k)))))
    return found


def _best(candidates: list[tuple[Block, float]], below: int | None = None) -> Block | None:
    """The block tile of least predicted time; ties go to the larger one.

    `below` asks for fewer accumulator registers a wave than that.
    """
    best, best_time = None, 0.0
    for block, time in candidates:
        if (below is None or block.accumulators < below) and (best is None or time < best_time * TIE):
            best, best_time = block, time
    return best


def derive_gemm_batch(M: Any, N: Any, K: Any, hw: HardwareDescriptor, dtype: str, layout: str) -> dict[str, Any]:
    """Tiles of many products of a kind: arrays of extents in, an array for each attribute out, as `derive` gives them.

    Shapes whose extents share their powers of two up to 16 have the same access widths: of each kind one is counted.
    """
    import numpy as np

    M, N, K = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, np.int64)) for x in (M, N, K)))
    ladder = block_ladder(hw, dtype)
    ways = [b.costs.ways_of(b.count(M, N), np.maximum(1, -(-K // b.tile_k))) for b in ladder]
    held = np.array([block.accumulators for block in ladder])
    chosen, below = np.zeros(M.shape, int), np.full(M.shape, held.max() + 1)
    open_, widths = np.arange(len(M)), [np.gcd(x, 16) for x in (M, N, K)]
    while len(open_):
        place, best = np.full(len(open_), -1), np.zeros(len(open_))
        for i, (clocks, _, _) in enumerate(ways):
            better = (held[i] < below[open_]) & ((place < 0) | (clocks[open_] < best * TIE))
            place, best = np.where(better, i, place), np.where(better, clocks[open_], best)
        open_, place = open_[place >= 0], place[place >= 0]  # the smallest one has a SIMD for itself
        chosen[open_] = place
        streams = np.array([ways[i][2][at] > 0 for i, at in zip(place, open_, strict=True)], int)
        kinds = np.stack([place, streams, *(w[open_] for w in widths)], axis=1)
        _, first, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        fits = np.array(
            [
                _fits(Gemm(int(M[i]), int(N[i]), int(K[i]), dtype, layout=layout), hw, ladder[chosen[i]])
                for i in open_[first]
            ],
            bool,
        )
        open_ = open_[~fits[kind.ravel()]] if len(open_) else open_
        below[open_] = held[chosen[open_]]
    names = ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n")
    columns = {name: np.array([getattr(block, name) for block in ladder])[chosen] for name in names}
    rows = np.arange(len(M))
    split_k, stream_k = (np.stack([way[k] for way in ways])[chosen, rows] for k in (1, 2))
    return {**columns, "split_k": split_k, "stream_k": stream_k}


def _fits(op: Gemm, hw: HardwareDescriptor, block: Block) -> bool:
    return registers_fit(GemmShape(op, _tiles(op, hw, block, {}), hw))


def _given_block(op: Gemm, hw: HardwareDescriptor, overrides: dict[str, Any]) -> Block:
    """Tiles that no rung of the ladder has: what is given, the rest from the nearest rung."""
    ladder = block_ladder(hw, op.dtype, op.packed)
    atom = overrides["atom"]
    wanted_m, wanted_n = overrides.get("tile_m") or 128, overrides.get("tile_n") or 128
    near = min(ladder, key=lambda b: abs(b.tile_m - wanted_m) + abs(b.tile_n - wanted_n))
    tile_m, tile_n = overrides.get("tile_m") or near.tile_m, overrides.get("tile_n") or near.tile_n
    waves = near.wave_m * near.wave_n
    grids = [(m, n) for m in (1, 2, 4, 8) for n in (1, 2, 4, 8) if m * n <= waves]
    sides = (
        [atom]
        if atom is not None
        else [a for a in gemm_atoms(hw, op.dtype) if a.flops_per_clk_cu == near.atom.flops_per_clk_cu]
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
        return Block(tile_m, tile_n, wave_m, wave_n, sides[-1], near.tile_k, 0)
    _, _, _, wave_m, wave_n, found = min(fits, key=lambda f: f[:4])
    return Block(tile_m, tile_n, wave_m, wave_n, found, near.tile_k, 0)


def _tiles(op: Gemm, hw: HardwareDescriptor, block: Block, overrides: dict[str, Any]) -> GemmTiles:
    """The block tile with the knobs that follow from it."""
    atom = block.atom
    elem_bytes = atom.dtype_a.bits // 8
    vec, tile_k = 16 // elem_bytes, overrides.get("tile_k") or ROW_BYTES // elem_bytes
    waves = block.wave_m * block.wave_n
    threads = waves * hw.wavefront_size
    lda, ldb, ldd = op.leading
    along_a, along_b = op.layout[0] == "N", op.layout[1] == "T"

    def reads(name: str, along: bool, ld: int, rows: int, tile_rows: int) -> tuple[int, int]:
        if name in op.packed:
            return vec, vec
        if along:
            access = gcd(ld, vec)
            return access, gcd(op.K, access)
        access = gcd(gcd(ld, rows), min(ROWS_A_THREAD[elem_bytes], tile_rows))
        while access > 1 and tile_rows // access * (tile_k // vec) % threads:
            access //= 2
        return access, 1

    read_a, tail_a = reads("A", along_a, lda, op.M, block.tile_m)
    read_b, tail_b = reads("B", along_b, ldb, op.N, block.tile_n)
    images = [
        (along, read, rows)
        for name, along, read, rows in (("A", along_a, read_a, block.tile_m), ("B", along_b, read_b, block.tile_n))
        if name not in op.packed
    ]
    pad = overrides.get("pad", 0)
    image = sum(rows for _, _, rows in images) * (tile_k + pad) * elem_bytes
    direct = (
        image > 0
        and not pad
        and all(along and read == vec and not rows * tile_k // vec % threads for along, read, rows in images)
        and max(hw.direct_to_lds_bytes, default=0) >= 16
        and 2 * image <= lds_share(hw, waves)
    )
    spread = _spread(op, block, tile_k, overrides)
    derived: dict[str, Any] = {
        "split_k": spread.split_k,
        "split_algorithm": spread.algorithm,
        "stream_k": spread.stream_k,
        "buffers": 2 if direct or (elem_bytes < 4 and 0 < 2 * image <= lds_share(hw, waves)) else 1,
        "direct": direct,
        "lds_read": vec,
        "lds_write": vec,
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


def _spread(op: Gemm, block: Block, tile_k: int, overrides: dict[str, Any]) -> Spread:
    """How the sum over k is split: by formula for a rung of the ladder, else as given."""
    if overrides.get("stream_k") or block.spread is None:
        return Spread()
    blocks, depth = block.count(op.M, op.N, op.batch), -(-op.K // tile_k)
    if overrides.get("split_k") is not None:
        return Spread(algorithm=block.spread.algorithm(overrides["split_k"]))
    if overrides.get("stream_k") is not None:
        return block.spread.split_k(blocks, depth)
    return block.spread.best(blocks, depth)


def _run(op: Gemm, atom: MFMAAtom, block: Block) -> int:
    """Consecutive columns of D that a lane holds: a 16-byte store, as far as the wave's atoms allow."""
    columns = max(1, block.tile_n // (block.wave_n * atom.n))
    run = min(8, 16 // dtype(op.result).bytes)
    while columns * atom.elements_c % run:
        run //= 2
    return run


def _group(op: Gemm, hw: HardwareDescriptor, block: Block) -> int:
    """Rows of tiles in a group: the tiles that share an L2 at a time form a square in bytes of A and B."""
    together = max(1, hw.num_cus // hw.num_xcds)
    rows = isqrt(together * block.tile_n // block.tile_m)
    return max(1, min(rows, -(-op.M // block.tile_m)))


def _result(op: Gemm, hw: HardwareDescriptor, tiles: GemmTiles, shape: GemmShape) -> Derivation:
    resources = PredictedResources.within_budget(hw, shape.items, shape.lds_bytes, tiles.waves_per_simd)
    blocks = GEMM.blocks(M=op.M, N=op.N, t_M=tiles.tile_m, t_N=tiles.tile_n, batch=op.batch)
    # no more persistent workgroups than tiles of k are launched
    shared = min(tiles.stream_k, blocks.value * max(1, ceil_div(op.K, tiles.tile_k)))
    workgroups = shared or blocks.value * tiles.split_k
    rounds = GEMM.rounds(blocks=workgroups, num_cus=hw.num_cus)
    pad = GEMM.pad(lanes=hw.wavefront_size, m=tiles.atom.m, elem_bytes=shape.elem_bytes)
    words, waves = shape.atom.dtype_acc.bits // 32, tiles.waves
    steps = (
        GEMM.accumulators(t_M=tiles.tile_m, t_N=tiles.tile_n, acc_words=words, waves=waves, lanes=hw.wavefront_size),
        GEMM.tile_k(row_bytes=tiles.tile_k * shape.elem_bytes, elem_bytes=shape.elem_bytes),
        GEMM.lds(
            rows=shape.lds_rows,
            t_K=tiles.tile_k,
            pad=tiles.pad,
            elem_bytes=shape.elem_bytes,
            buffers=tiles.buffers,
        ),
        blocks,
        *_split_steps(op, tiles, blocks.value),
        rounds,
        pad,
        GEMM.pad_bytes(
            rows=shape.lds_rows,
            pad_min=pad.value,
            elem_bytes=shape.elem_bytes,
            buffers=tiles.buffers,
        ),
    )
    largest = block_ladder(hw, op.dtype, op.packed)[0]
    reduced = tiles.tile_m * tiles.tile_n < largest.tile_m * largest.tile_n
    per_cu = workgroups / hw.num_cus
    occupancy = occupancy_of(hw, waves, resources.arch_registers, resources.acc_registers, resources.lds_bytes)
    slots = hw.num_cus * max(1, occupancy.workgroups_per_cu)
    fills = workgroups >= hw.num_cus
    verdict = f"{per_cu:.2f} workgroups per CU, {rounds.value} round(s)"
    grid = GridVerdict(
        _grid(tiles, workgroups, op.batch),
        workgroups,
        hw.num_cus,
        occupancy.workgroups_per_cu,
        per_cu,
        ceil_div(workgroups, slots),
        workgroups / (rounds.value * hw.num_cus),
        fills,
        verdict if fills else f"{verdict}: CUs stay idle",
    )
    notes = [f"atom {tiles.atom.instruction}: {shape.atoms_m} x {shape.atoms_n} of it a wave"]
    if not fills:
        notes.append(
            f"the grid leaves CUs idle: {blocks.value} tiles of {ceil_div(op.K, tiles.tile_k)} tiles of k are too few "
            "to split; a vendor library's small-problem kernels are likely better"
        )
    if min(tiles.read_a, tiles.read_b) * shape.elem_bytes < 4:
        notes.append("accesses of less than 4 bytes: padded leading dimensions or a vendor library are likely better")
    if tiles.splits:
        notes.append(f"workspace of {_workspace_bytes(tiles, shape, blocks.value)} bytes for partial sums")
    index = 3 if reduced else 0
    marked = tuple(step.binding() if i == index else step for i, step in enumerate(steps))
    return Derivation(
        op, hw, "default", tiles, "cus" if reduced else "registers", marked, resources, grid, None, tuple(notes)
    )


def _grid(tiles: GemmTiles, workgroups: int, batch: int) -> tuple[int, int, int]:
    """Workgroups along x, y and z: x holds GRID_X, batch entries are z; persistent ones are all along x."""
    if tiles.stream_k:
        return workgroups, 1, 1
    entry = workgroups // batch
    return min(entry, GRID_X), ceil_div(entry, GRID_X), batch


def _split_steps(op: Gemm, tiles: GemmTiles, blocks: int) -> tuple[FormulaValue, ...]:
    depth = ceil_div(op.K, tiles.tile_k)
    if tiles.stream_k:
        return (GEMM.share(blocks=blocks, depth=depth, workgroups=tiles.stream_k),)
    if tiles.split_k > 1:
        return (GEMM.slice(depth=depth, parts=tiles.split_k),)
    return ()


def _workspace_bytes(tiles: GemmTiles, shape: GemmShape, blocks: int) -> int:
    slots = 2 * tiles.stream_k or blocks * tiles.split_k
    counters = 2 * tiles.stream_k or blocks * tiles.arrives
    return slots * tiles.tile_m * tiles.tile_n * shape.acc_bytes + 4 * counters
