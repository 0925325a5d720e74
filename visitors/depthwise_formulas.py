"""Closed formulas of the vector kernel of depthwise convolutions, each with its equation, unit and source.

a: the axis along a strip, b: the other one; t: outputs of a strip, v: channels of a thread, K: taps, s: stride, d:
dilation, P: places of X that a strip reaches under one line of taps. Clocks are those of the busiest CU.
"""

from __future__ import annotations

from .formula import Formula, ceil_div, maximum, minimum

__all__ = ["DEPTHWISE"]

OWN = "default model: the kernels that are emitted"


class DEPTHWISE:
    """From the shape, the registers and the rates of a CU to the strip of a thread."""

    places = Formula(
        "P",
        "places of X that a strip reaches under one line of taps: pairs of output and tap, less those that meet",
        "places",
        "j s + k d = j' s + k' d where (j, k) and (j', k') differ by multiples of (d, -s) / gcd(s, d)",
        lambda t, K_a, s_a, d_a, gcd: t * K_a - maximum(t - d_a // gcd, 0) * maximum(K_a - s_a // gcd, 0),
    )
    halo = Formula(
        "R",
        "redundancy: loads of X by the pixels that the outputs of a strip step over",
        "of X once",
        OWN,
        lambda P, t, K_b, s_a, s_b: P * K_b / (t * s_a * s_b),
    )
    registers = Formula(
        "registers",
        "registers of a lane: sums, places and weights under way, offsets, and what does not grow with the strip",
        "registers",
        OWN,
        lambda sums, under_way, weights, offsets, fixed: sums + under_way + weights + offsets + fixed,
    )
    blocks = Formula(
        "blocks",
        "workgroups: of each image those that its strips fill",
        "workgroups",
        OWN,
        lambda N, C, v, O_a, t, O_b, threads: N * ceil_div(ceil_div(C, v) * ceil_div(O_a, t) * O_b, threads),
    )
    waves = Formula(
        "waves",
        "waves of the busiest CU",
        "waves",
        OWN,
        lambda blocks, num_cus, waves_of_block: ceil_div(blocks, num_cus) * waves_of_block,
    )
    vector = Formula(
        "valu",
        "clocks of the vector units: for every line of taps the products, two at a time where they are packed, what is "
        "widened to f32 and the offsets; and once what comes before and behind",
        "clocks",
        OWN,
        lambda waves, simds, K_b, products, packed, widened, offsets, around, issue: (
            ceil_div(waves, simds) * (K_b * (ceil_div(products, packed) + widened + offsets) + around) * issue
        ),
    )
    l1 = Formula(
        "L1",
        "clocks of L1: every place and every weight of a line of taps, at least 4 bytes a lane",
        "clocks",
        OWN,
        lambda waves, lanes, K_b, P, K_a, access_bytes, l1_bytes_per_clk: (
            waves * lanes * K_b * (P + K_a) * maximum(access_bytes, 4) / l1_bytes_per_clk
        ),
    )
    l2 = Formula(
        "L2",
        "clocks of L2: every place of a line of taps, which L1 has lost when the next line of outputs reads it",
        "clocks",
        OWN,
        lambda waves, lanes, K_b, P, access_bytes, l2_bytes_per_clk: (
            waves * lanes * K_b * P * access_bytes / l2_bytes_per_clk
        ),
    )
    memory = Formula(
        "memory",
        "clocks of memory: X, the filter and Y once",
        "clocks",
        OWN,
        lambda compulsory_bytes, memory_bytes_per_clk: compulsory_bytes / memory_bytes_per_clk,
    )
    latency = Formula(
        "wait",
        "clocks of waves that wait: the loads of each group and the wave's own instructions, one after another; waves "
        "of a SIMD that are there at once wait together; the first loads of all are in the start",
        "clocks",
        OWN,
        lambda waves, simds, resident, groups, load_clocks, own: (
            ceil_div(ceil_div(waves, simds), minimum(resident, ceil_div(waves, simds))) * (groups * load_clocks + own)
            - load_clocks
        ),
    )
    clocks = Formula(
        "clocks",
        "predicted: the busiest of the five, and the start of a workgroup",
        "clocks",
        OWN,
        lambda valu, l1, l2, memory, wait, start: (
            maximum(valu, maximum(l1, maximum(l2, maximum(memory, wait)))) + start
        ),
    )
    rounds = Formula(
        "rounds",
        "times that the device is filled",
        "rounds",
        OWN,
        lambda blocks, num_cus, workgroups_per_cu: ceil_div(blocks, num_cus * workgroups_per_cu),
    )
