"""Closed formulas of attention, each with its equation, unit and source.

Names: t_Q query rows of a wave, t_KV keys of a step, d the (padded) head dim, elem_bytes of an input element. Registers
are 32-bit and per lane; a wave has 64 lanes, so a t x u tile of f32 takes t*u/64 of them.
"""

from __future__ import annotations

from .formula import Formula, align_down, ceil_div, minimum

__all__ = ["DEFAULT", "GRID", "PAPER"]

PAPER_TEXT = "closed-formula paper"
OWN = "default model: the kernels that are emitted"


class PAPER:
    """The paper's formulas (sections 4 and 6, Table 2)."""

    tile_kv = Formula(
        "t_KV",
        "keys of a step: K and V share the LDS",
        "elements",
        f"{PAPER_TEXT}, section 6: LDS/2 holds one operand, aligned down to the atom",
        lambda lds_bytes, d, elem_bytes, m: align_down(lds_bytes // 2 // (d * elem_bytes), m),
    )
    query_tiles = Formula(
        "u",
        "query tiles that the registers hold: V(u) <= budget, solved for u",
        "tiles",
        f"{PAPER_TEXT}, section 4, V(u) <= V_budget",
        lambda budget, d, t_KV, overhead: (budget - overhead) // (2 * d // 4 + t_KV // 4 + 2),
    )
    tile_q = Formula("t_Q", "query rows of a wave", "elements", f"{PAPER_TEXT}, section 6", lambda u, m: u * m)
    registers = Formula(
        "V(u)",
        "registers at the synchronisation point: Q, O, S, maximum and sum of u query tiles",
        "registers",
        f"{PAPER_TEXT}, Table 2",
        lambda u, d, t_KV, overhead: u * (2 * d // 4 + t_KV // 4 + 2) + overhead,
    )


class DEFAULT:
    """The default model."""

    d_pad = Formula(
        "d_pad",
        "head dim filled with zeros up to whole atoms and whole 16-byte accesses",
        "elements",
        OWN,
        lambda d, d_align: ceil_div(d, d_align) * d_align,
    )
    lds_share = Formula(
        "LDS_share",
        "LDS of each of the workgroups that share a CU",
        "bytes",
        "LDS and its allocation granule, from the descriptor",
        lambda lds_bytes, workgroups_per_cu, granule: align_down(lds_bytes // workgroups_per_cu, granule),
    )
    tile_kv_lds = Formula(
        "t_KV_LDS",
        "keys of a step that the LDS holds: K, V and, where P passes through LDS, P",
        "elements",
        OWN,
        lambda lds_share, d_pad, dv_pad, elem_bytes, p_rows, p_bytes, key_align: align_down(
            lds_share // ((d_pad + dv_pad) * elem_bytes + p_rows * p_bytes), key_align
        ),
    )
    tile_kv_registers = Formula(
        "t_KV_registers",
        "keys of a step that the registers hold beside everything of fixed size",
        "elements",
        OWN,
        lambda budget, fixed, per_64_keys, key_align: align_down((budget - fixed) * 64 // per_64_keys, key_align),
    )
    tile_q_registers = Formula(
        "t_Q_registers",
        "query rows that the registers hold at this t_KV",
        "elements",
        OWN,
        lambda budget, fixed, per_64_rows, n: align_down((budget - fixed) * 64 // per_64_rows, n),
    )
    tile_kv = Formula(
        "t_KV",
        "keys of a step: the smaller limit, no more than there are keys or than pays for its barriers",
        "elements",
        OWN,
        lambda lds_limit, register_limit, keys, worthwhile: minimum(
            minimum(lds_limit, register_limit), minimum(keys, worthwhile)
        ),
    )
    q = Formula(
        "Q",
        "query fragments, kept for the whole loop",
        "registers",
        OWN,
        lambda t_Q, d_pad, elem_bytes: t_Q * d_pad * elem_bytes // 256,
    )
    s = Formula("S", "scores of one step", "registers", OWN, lambda t_Q, t_KV: t_Q * t_KV // 64)
    o = Formula("O", "output accumulators", "registers", OWN, lambda t_Q, dv_pad: t_Q * dv_pad // 64)
    lds = Formula(
        "LDS",
        "K and V tiles and, where P passes through LDS, P of every wave",
        "bytes",
        OWN,
        lambda t_KV, d_pad, dv_pad, elem_bytes, p_rows, p_bytes: (
            t_KV * ((d_pad + dv_pad) * elem_bytes + p_rows * p_bytes)
        ),
    )


class GRID:
    """How the workgroups fill the device."""

    blocks = Formula(
        "blocks",
        "workgroups: query blocks x heads x batch",
        "workgroups",
        f"{PAPER_TEXT}, section 4 (CU count)",
        lambda L_q, block_q, heads, batch: ceil_div(L_q, block_q) * heads * batch,
    )
    splits = Formula(
        "splits",
        "workgroups that share the keys of a query block: as many as fill whole rounds, each with steps enough",
        "workgroups",
        OWN,
        lambda rounds, slots, blocks, most: minimum(rounds * slots // blocks, most),
    )
    split_blocks = Formula(
        "blocks",
        "workgroups: query blocks x heads x batch x splits of the keys",
        "workgroups",
        f"{PAPER_TEXT}, section 4 (CU count), with the keys split",
        lambda L_q, block_q, heads, batch, splits: ceil_div(L_q, block_q) * heads * batch * splits,
    )
    rounds = Formula(
        "rounds",
        "times that the device is filled",
        "rounds",
        f"{PAPER_TEXT}, Table 3 read as round counts",
        lambda blocks, num_cus, workgroups_per_cu: ceil_div(blocks, num_cus * workgroups_per_cu),
    )
    step_clocks = Formula(
        "clocks",
        "roofline of one step on one CU: matrix cores against LDS reads, whichever is longer",
        "clocks",
        OWN,
        lambda matrix_clocks, waves_per_simd, lds_clocks, waves_per_cu: (
            -minimum(-matrix_clocks * waves_per_simd, -lds_clocks * waves_per_cu)
        ),
    )
