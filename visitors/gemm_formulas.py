"""Closed formulas of emitted GEMMs, each with its equation, unit and source."""

from __future__ import annotations

from .formula import Formula, ceil_div

__all__ = ["GEMM"]

OWN = "default model: the kernels that are emitted"


class GEMM:
    """t_M, t_N, t_K: tile of a workgroup; elem_bytes of an input element; registers are 32-bit and per lane."""

    accumulators = Formula(
        "D",
        "accumulators of a wave: half of the registers, the other half holds what is under way",
        "registers",
        OWN,
        lambda t_M, t_N, acc_words, waves, lanes: t_M * t_N * acc_words // (waves * lanes),
    )
    tile_k = Formula(
        "t_K",
        "depth of a tile: rows of 128 bytes, one cache line, whose reads have no bank conflict",
        "elements",
        OWN,
        lambda row_bytes, elem_bytes: row_bytes // elem_bytes,
    )
    lds = Formula(
        "LDS",
        "rows of a tile of A and B in LDS, one image for each buffer; a pre-shuffled operand has none there",
        "bytes",
        OWN,
        lambda rows, t_K, pad, elem_bytes, buffers: buffers * rows * (t_K + pad) * elem_bytes,
    )
    pad = Formula(
        "pad_min",
        "smallest pad of an image row whose reads have no bank conflict: half of the lane groups, in 16-byte chunks",
        "elements",
        OWN,
        lambda lanes, m, elem_bytes: 16 * (lanes // m) // 2 // elem_bytes,
    )
    pad_bytes = Formula(
        "LDS_pad",
        "LDS that the pad would take; the XOR swizzle of the default has no conflict and takes none",
        "bytes",
        OWN,
        lambda rows, pad_min, elem_bytes, buffers: buffers * rows * pad_min * elem_bytes,
    )
    blocks = Formula(
        "blocks",
        "workgroups of the grid",
        "workgroups",
        OWN,
        lambda M, N, t_M, t_N, batch: ceil_div(M, t_M) * ceil_div(N, t_N) * batch,
    )
    slice = Formula(
        "t_split",
        "tiles of k of a part, at most: split-K covers the CUs while there are fewer tiles than CUs",
        "tiles of k",
        OWN,
        lambda depth, parts: ceil_div(depth + 0, parts),
    )
    share = Formula(
        "t_share",
        "tiles of k of a persistent workgroup, at most: Stream-K leaves no part of a round idle",
        "tiles of k",
        OWN,
        lambda blocks, depth, workgroups: ceil_div(blocks * depth, workgroups),
    )
    rounds = Formula(
        "rounds",
        "times that every CU gets a workgroup",
        "rounds",
        OWN,
        lambda blocks, num_cus: ceil_div(blocks + 0, num_cus),
    )
