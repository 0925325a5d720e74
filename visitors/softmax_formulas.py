"""Closed formulas of softmax, each with its equation, unit and source. Registers are 32-bit and per lane."""

from __future__ import annotations

from .formula import Formula, ceil_div, maximum, minimum, power_of_two

__all__ = ["SOFTMAX"]

OWN = "default model: the kernels that are emitted"


class SOFTMAX:
    """From the shape and three capacities to lanes, accesses, rows and splits."""

    accesses = Formula(
        "accesses", "16-byte accesses of a row", "accesses", OWN, lambda row_bytes: ceil_div(row_bytes, 16)
    )
    lanes = Formula(
        "lanes",
        "lanes that share a row: as few as leave each no more accesses than it should have under way",
        "lanes",
        OWN,
        lambda accesses, under_way, least, most: minimum(
            maximum(power_of_two(ceil_div(accesses, under_way)), least), most
        ),
    )
    chunks = Formula(
        "chunks",
        "accesses of a lane, where all of a row are in registers",
        "accesses",
        OWN,
        lambda row_bytes, lanes: ceil_div(row_bytes, 16 * lanes),
    )
    chunks_max = Formula(
        "chunks_max",
        "accesses of a lane that the registers hold",
        "accesses",
        OWN,
        lambda budget, fixed, each: (budget - fixed) // each,
    )
    block_rows = Formula(
        "block_rows",
        "rows of a workgroup: as many as fill it, as long as every CU has a workgroup",
        "rows",
        OWN,
        lambda rows, num_cus, lanes, threads, wave: maximum(
            minimum(maximum(threads // lanes, 1), power_of_two(maximum(rows // num_cus + 1, 1)) // 2),
            maximum(wave // lanes, 1),
        ),
    )
    splits = Formula(
        "splits",
        "workgroups of a row: one for every idle CU, none without a step of its own",
        "workgroups",
        OWN,
        lambda num_cus, rows, row_bytes, step_bytes: maximum(
            minimum(num_cus // rows, ceil_div(row_bytes, step_bytes)), 1
        ),
    )
    gain = Formula(
        "gain",
        "bytes that a CU moves less when `splits` share a row, less what it moves while a second kernel is launched",
        "bytes",
        OWN,
        lambda row_bytes, passes, splits, launch_bytes: (
            (passes + 1) * row_bytes - ceil_div(3 * row_bytes, splits) - launch_bytes
        ),
    )
    registers = Formula(
        "registers",
        "registers of a lane: what it holds of a row, and what does not grow with the row",
        "registers",
        OWN,
        lambda chunks, each, fixed, least: maximum(chunks * each + fixed, least),
    )
    blocks = Formula(
        "blocks",
        "workgroups",
        "workgroups",
        OWN,
        lambda rows, block_rows, splits: ceil_div(rows, block_rows) * splits,
    )
    rounds = Formula(
        "rounds",
        "times that the device is filled",
        "rounds",
        OWN,
        lambda blocks, num_cus, workgroups_per_cu: ceil_div(blocks, num_cus * workgroups_per_cu),
    )
