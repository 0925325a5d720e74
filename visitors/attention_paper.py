"""The paper's model of attention: f32, one wave a workgroup, 256 registers, overhead 16; it reproduces the tables.

It leaves out the LDS of the exponentials (72 KiB of 64 with K and V at d = 128) and six registers a query tile for
maximum and sum (8 and not 2 in the C layout); `notes` says the former. It is not used for emitted kernels.
"""

from __future__ import annotations

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, Infeasible
from closedform.operators.attention import Attention, AttentionTiles

from .attention_formulas import GRID, PAPER
from .derivation import Derivation, GridVerdict, PredictedResources, RegisterItem
from .formula import ceil_div

__all__ = ["derive_paper"]

ELEM_BYTES = 4
BUDGET = 256
OVERHEAD = 16
SHAPE = (16, 16, 4)


def derive_paper(op: Attention, hw: HardwareDescriptor) -> Derivation:
    """tile_Q and tile_KV of the paper; grid verdict from blocks per CU with one workgroup on each CU."""
    if op.dtype != "f32":
        raise BadInput(f"the paper's model is f32 only, not {op.dtype}: use --model default")
    atom = next((a for a in hw.atoms_for("f32") if (a.m, a.n, a.k) == SHAPE), None)
    if atom is None:
        raise BadInput(f"{hw.name} has no f32 16x16x4 atom, which the paper's model is made for")
    m = atom.m
    keys = PAPER.tile_kv(lds_bytes=hw.lds_bytes, d=op.d, elem_bytes=ELEM_BYTES, m=m)
    if keys.value < m:
        reason = Infeasible(
            "LDS",
            2 * m * op.d * ELEM_BYTES,
            hw.lds_bytes,
            "B",
            f"{m} keys of K and V at d={op.d}",
            "use a smaller d",
        )
        return Derivation(op, hw, "paper", None, "lds", (keys,), None, None, reason)
    u = PAPER.query_tiles(budget=BUDGET, d=op.d, t_KV=keys.value, overhead=OVERHEAD)
    if u.value < 1:
        need = PAPER.registers(u=1, d=op.d, t_KV=keys.value, overhead=OVERHEAD).value
        reason = Infeasible("VGPRs", need, BUDGET, "registers", f"one query tile at d={op.d}", "use --model default")
        limits = {"tile_q_max": 0, "tile_kv_max": keys.value}
        return Derivation(op, hw, "paper", None, "registers", (keys, u), None, None, reason, (), limits)
    rows = PAPER.tile_q(u=u.value, m=m)
    registers = PAPER.registers(u=u.value, d=op.d, t_KV=keys.value, overhead=OVERHEAD)
    blocks = GRID.blocks(L_q=op.L_q, block_q=rows.value, heads=op.heads, batch=op.batch)
    rounds = GRID.rounds(blocks=blocks.value, num_cus=hw.num_cus, workgroups_per_cu=1)
    d4 = op.d // 4
    items = (
        RegisterItem("Q", u.value * d4, "any", "query tile"),
        RegisterItem("O", u.value * d4, "any", "output accumulators"),
        RegisterItem("S", u.value * keys.value // 4, "any", "scores of one step"),
        RegisterItem("m, l", 2 * u.value, "any", "running maximum and sum"),
        RegisterItem("overhead", OVERHEAD, "any", "addresses and temporaries"),
    )
    per_cu = blocks.value / hw.num_cus
    grid = GridVerdict(
        (ceil_div(op.L_q, rows.value), op.heads, op.batch),
        blocks.value,
        hw.num_cus,
        1,
        per_cu,
        rounds.value,
        blocks.value / (rounds.value * hw.num_cus),
        per_cu >= 1,
        f"{per_cu:.2f} blocks per CU: {'good' if per_cu >= 1 else 'low'} occupancy",
    )
    exponentials = rows.value * keys.value * ELEM_BYTES
    lds = 2 * keys.value * op.d * ELEM_BYTES
    resources = PredictedResources(
        items, registers.value, registers.value, 0, BUDGET, lds, hw.lds_max_per_workgroup_bytes, 1
    )
    notes = (
        f"left out by the paper: {exponentials // 1024} KiB of exponentials in LDS beside {lds // 1024} KiB of "
        f"K and V, {(lds + exponentials) / 1024:g} KiB of {hw.lds_bytes // 1024}",
    )
    limits = {"tile_q_max": rows.value, "tile_kv_max": keys.value}
    tiles = AttentionTiles(rows.value, keys.value, 1, 1, op.d, atom)
    steps = (keys.binding(), u.binding(), rows, registers, blocks, rounds)
    return Derivation(op, hw, "paper", tiles, "lds and registers", steps, resources, grid, None, notes, limits)
