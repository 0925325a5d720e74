"""How a grid of attention workgroups fills the device, and the roofline of the whole grid."""

from __future__ import annotations

from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.attention import Attention, AttentionTiles
from closedform.operators.view import Window

from .attention_formulas import GRID
from .derivation import GridVerdict
from .formula import ceil_div

__all__ = ["GRID_LIMIT", "SPLIT_STEPS", "grid_clocks", "grid_verdict", "longest_steps", "split_count"]

#: Percent of the slots that a split of the keys must use.
SLOTS_USED = 90
#: Workgroups along y and z of a HIP grid.
GRID_LIMIT = 65535
#: Steps of a split at the least: reading and merging the results of a split takes about as long as one step.
SPLIT_STEPS = 4


def grid_verdict(op: Attention, tiles: AttentionTiles, hw: HardwareDescriptor, workgroups_per_cu: int) -> GridVerdict:
    """Workgroups, rounds and the share of slots in use."""
    cus = hw.num_cus
    q_blocks = ceil_div(op.L_q, tiles.block_q)
    blocks = q_blocks * op.heads * op.batch * tiles.splits
    slots = cus * workgroups_per_cu
    rounds = ceil_div(blocks, slots)
    utilisation = blocks / (rounds * slots)
    if blocks >= cus:
        verdict = f"{blocks} workgroups on {slots} slots: {rounds} round(s), {utilisation:.0%} of the slots used"
    else:
        verdict = f"underfilled: {blocks} workgroups for {cus} CUs, {1 - blocks / cus:.0%} of the CUs idle"
    grid = (q_blocks, op.heads, op.batch * tiles.splits)
    per_cu = blocks / cus
    return GridVerdict(grid, blocks, cus, workgroups_per_cu, per_cu, rounds, utilisation, blocks >= cus, verdict)


def grid_clocks(op: Attention, tiles: AttentionTiles, hw: HardwareDescriptor, grid: GridVerdict) -> float:
    """Clocks of the whole grid if every step ran at the roofline of its CU.

    A step of one wave has 4 t_Q t_KV d_pad FLOPs (two products) and reads K and V once from LDS; the matrix cores
    serve the waves of a SIMD one after the other, the LDS serves all waves of the CU.
    """
    resident = min(grid.workgroups_per_cu, ceil_div(grid.blocks, hw.num_cus))
    on_cu = tiles.waves * resident
    flops = 4 * tiles.tile_q * tiles.tile_kv * tiles.d_pad
    clocks: float = GRID.step_clocks(
        matrix_clocks=flops * hw.simds_per_cu / tiles.atom.flops_per_clk_cu,
        waves_per_simd=ceil_div(on_cu, hw.simds_per_cu),
        lds_clocks=2 * tiles.tile_kv * tiles.d_pad * op.elem_bytes / hw.lds_read_bytes_per_clk,
        waves_per_cu=on_cu,
    ).value
    steps: int = ceil_div(longest_steps(op, tiles), tiles.splits)
    return grid.rounds * steps * clocks


def longest_steps(op: Attention, tiles: AttentionTiles) -> int:
    """Tiles of keys that the longest workgroups visit, all splits of them together: those of the last queries."""
    last = Window.whole(op.L_q).tile((op.L_q - 1) // tiles.block_q, tiles.block_q)
    return max(op.visibility.count(last, tiles.tile_kv), 1)


def split_count(blocks: int, slots: int, most: int) -> int:
    """Workgroups that share the keys of each of `blocks`, so that they fill `slots` in whole rounds.

    The fewest rounds r for which floor(r slots / blocks) splits use at least SLOTS_USED of the slots, but no more than
    `most`. Some r up to 1 / (1 - SLOTS_USED) does.

    >>> split_count(32, 304, 512), split_count(48, 104, 512), split_count(32, 304, 3)
    (9, 13, 3)
    """
    for rounds in range(1, ceil_div(blocks, slots) + ceil_div(100, 100 - SLOTS_USED) + 1):
        splits = rounds * slots // blocks
        if splits >= most:
            return most
        if 100 * blocks * splits >= SLOTS_USED * rounds * slots:
            break
    return max(splits, 1)
