"""Closed formulas of emitted convolutions, each with its equation, unit and source."""

from __future__ import annotations

from .formula import Formula, ceil_div

__all__ = ["CONV2D"]

OWN = "default model: the kernels that are emitted"
PAPER = "R = (1 + (KH-1)/t_OH)(1 + (KW-1)/t_OW) of the closed-formula paper, for any stride and dilation"


class CONV2D:
    """t_OC, t_IC, t_N, t_OH, t_OW: tile of a workgroup; s and d: stride and dilation of rows (h) and columns (w); p:
    the remainders by the stride that taps have; registers are 32-bit and per lane.
    """

    halo = Formula(
        "R",
        "halo redundancy: loads of X by the pixels that the outputs step over; f neighbours where taps become channels",
        "of X once",
        PAPER,
        lambda t_OH, t_OW, KH, KW, s_h, s_w, d_h, d_w, p_h, p_w, f: (
            f * p_h * (t_OH + (KH - 1) * d_h // s_h) * p_w * (t_OW + (KW - 1) * d_w // s_w) / (t_OH * s_h * t_OW * s_w)
        ),
    )
    patch = Formula(
        "P",
        "pixels of the patch, loaded once for all taps",
        "pixels",
        OWN,
        lambda t_N, t_OH, t_OW, KH, KW, s_h, s_w, d_h, d_w, p_h, p_w: (
            t_N * p_h * (t_OH + (KH - 1) * d_h // s_h) * p_w * (t_OW + (KW - 1) * d_w // s_w)
        ),
    )
    tile_ic = Formula(
        "t_IC",
        "channels of a slice: what the LDS holds of the patch, with its pads, and of two slices of the filter",
        "elements",
        OWN,
        lambda row_bytes, elem_bytes: row_bytes // elem_bytes,
    )
    lds = Formula(
        "LDS",
        "the patch with its pads, and the filter's slices of two taps; none of a packed filter",
        "bytes",
        OWN,
        lambda places, t_IC, pad, t_OC, slices, elem_bytes: (places * (t_IC + pad) + slices * t_OC * t_IC) * elem_bytes,
    )
    accumulators = Formula(
        "D",
        "accumulators of a wave",
        "registers",
        OWN,
        lambda t_OC, pixels, waves, lanes: t_OC * pixels // (waves * lanes),
    )
    replicated = Formula(
        "k",
        "multiply-adds of a pixel and a filter: taps, by their channels in whole steps of the atom",
        "multiply-adds",
        OWN,
        lambda KH, KW, f_h, f_w, channels, step: (
            ceil_div(KH, f_h) * ceil_div(KW, f_w) * ceil_div(f_h * f_w * channels, step) * step
        ),
    )
    intensity = Formula(
        "I",
        "arithmetic intensity of a workgroup: operations by bytes that it loads and stores",
        "FLOP/B",
        OWN,
        lambda pixels, t_OC, patch, channels, taps, elem_bytes, out_bytes: (
            2
            * pixels
            * t_OC
            * channels
            * taps
            / ((patch + t_OC * taps) * channels * elem_bytes + pixels * t_OC * out_bytes)
        ),
    )
    blocks = Formula(
        "blocks",
        "workgroups of the grid",
        "workgroups",
        OWN,
        lambda N, OH, OW, OC, groups, t_N, t_OH, t_OW, t_OC: (
            ceil_div(N, t_N) * ceil_div(OH, t_OH) * ceil_div(OW, t_OW) * ceil_div(OC, t_OC) * groups
        ),
    )
    rounds = Formula(
        "rounds",
        "times that every CU gets a workgroup",
        "rounds",
        OWN,
        lambda blocks, num_cus: ceil_div(blocks + 0, num_cus),
    )
