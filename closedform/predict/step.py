"""What one workgroup asks of its compute unit in one k step, in clocks and bytes: independent of the shape.

Two kernel families: `pipelined` copies global memory to shared memory asynchronously through `stages` buffers and
feeds the matrix cores from shared memory (tiles of at least 64 rows) or from registers; `staged` passes tiles through
registers to two LDS buffers, and every wave reads its operands from LDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from closedform.hw.descriptor import HardwareDescriptor

from .configs import Configs

if TYPE_CHECKING:
    from .configs import Array

__all__ = [
    "LINE_BYTES",
    "Step",
    "pipelined_step",
    "registers_per_thread",
    "staged_step",
    "tile_bytes",
    "workgroups_per_cu",
]

LINE_BYTES = 128
#: Rows from which a matrix instruction of several waves reads shared memory directly.
DIRECT_ROWS = 64
#: A k step of one matrix instruction, in bytes of a row.
INSTRUCTION_K_BYTES = 32
#: Stages that a staged kernel usually has: one tile in LDS, one under way in registers.
STAGED_BUFFERS = 2
#: Registers a thread needs besides its accumulators before a configuration counts as legal.
LEAST_OTHER_REGISTERS = 24


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Arrays over configurations: clocks and bytes of one k step of one workgroup, and what a compute unit holds."""

    tensor_clk: Array
    shared_clk: Array
    issue_clk: Array
    chain_clk: Array  # what must follow one another within the step
    load_bytes: Array  # after the cost of short rows
    depth: Array  # k steps in flight
    per_cu: Array  # workgroups that a compute unit holds


def registers_per_thread(hw: HardwareDescriptor, c: Configs) -> Array:
    """Accumulators of a thread, tile_m * tile_n / (waves that share the tile * wavefront)."""
    found: Array = c.tile_m * c.tile_n / (c.wave_m * c.wave_n * hw.wavefront_size)
    return found


def tile_bytes(family: str, c: Configs, elem_bytes: float) -> Array:
    """LDS of the tiles of A and B of a workgroup: every stage of a pipelined kernel, one image of a staged one."""
    found: Array = (c.tile_m + c.tile_n) * c.tile_k * elem_bytes
    return found * c.stages if family == "pipelined" else found


def workgroups_per_cu(
    hw: HardwareDescriptor, waves: Array, lds_bytes: Array, registers: Array, most: float | None = None
) -> Array:
    """Workgroups a compute unit holds at once by LDS, registers and wave slots; at least 1."""
    import numpy as np

    granule = hw.vgpr_granule
    allocated = np.ceil(np.minimum(registers, hw.vgpr_per_wave_max) / granule) * granule
    per_simd = np.minimum(np.floor(hw.vgpr_file / allocated), hw.waves_per_simd_max)
    by_waves = np.floor(per_simd * hw.simds_per_cu / waves)
    by_lds = np.floor(hw.lds_bytes / (np.ceil(lds_bytes / hw.lds_granule_bytes) * hw.lds_granule_bytes))
    return np.clip(np.minimum(by_lds, by_waves), 1, most or hw.workgroups_per_cu_max)


def pipelined_step(
    hw: HardwareDescriptor, k: Mapping[str, float], c: Configs, elem_bytes: float, layout: str, flops_per_clk: float
) -> Step:
    """The family of asynchronous copies: measured with one plain Triton kernel.

    `flops_per_clk` is the dense rate of a compute unit from its descriptor.
    """
    import numpy as np

    bm, bn, bk, waves = c.tile_m, c.tile_n, c.tile_k, c.waves
    direct = bm >= DIRECT_ROWS
    b_k_contiguous = layout[1] == "T"
    registers = registers_per_thread(hw, c) + k["registers"] + np.where(direct, 0, k["operand_registers"])
    lds = tile_bytes("pipelined", c, elem_bytes) + hw.lds_granule_bytes
    # Waves beyond the 16 x 8 pieces of a tile repeat work.
    repeated = np.where(direct, 1, np.maximum(1, waves / (bm / 16 * bn / 8)))
    wide = np.where(direct & b_k_contiguous, k["k_contiguous_b_share"], 0) * (bn / 256) ** 2
    rate = flops_per_clk * np.where(direct, k["direct_share"], k["register_share"])
    tensor = 2 * bm * bn * bk / rate * repeated * (1 + wide)
    groups_m = np.minimum(np.maximum(bm / DIRECT_ROWS, 1), waves / 4)
    group_n = bn / np.maximum(waves / 4 / groups_m, 1)
    by_group = bm / DIRECT_ROWS * (bn / group_n) * (DIRECT_ROWS + group_n)
    square = np.where(bm > bn, 2.0, 1.0)
    grid_m = np.minimum(np.maximum(bm / 16, 1), square)
    by_wave = bm * waves / grid_m + bn * grid_m
    shared = np.where(direct, by_group, by_wave) * bk * elem_bytes / hw.lds_read_bytes_per_clk
    row_a = np.minimum(bk * elem_bytes, LINE_BYTES)
    row_b = np.minimum((bk if b_k_contiguous else bn) * elem_bytes, LINE_BYTES)
    short_a, short_b = (1 + k["short_row_share"] * (LINE_BYTES / row - 1) for row in (row_a, row_b))
    load = (bm * short_a + bn * short_b) * bk * elem_bytes
    copies = (bm + bn) * bk * elem_bytes / (16 * hw.wavefront_size)
    products = np.where(direct, 0, bm * bn * bk * elem_bytes / 4096 * repeated)
    issue = waves * k["issue_wave_clk"] + k["issue_copy_clk"] * copies + k["issue_product_clk"] * products
    pieces = bk * elem_bytes / INSTRUCTION_K_BYTES
    chain = (
        k["serial_clk"]
        + np.maximum(tensor, shared)
        + np.where(direct, k["chain_direct_clk"], k["chain_register_clk"]) * pieces
    )
    return Step(
        tensor_clk=tensor,
        shared_clk=shared,
        issue_clk=issue / hw.simds_per_cu,
        chain_clk=chain,
        load_bytes=load,
        depth=np.maximum(c.stages - 1, 1),
        per_cu=workgroups_per_cu(hw, waves, lds, registers),
    )


def staged_step(
    hw: HardwareDescriptor, k: Mapping[str, float], c: Configs, elem_bytes: float, layout: str, flops_per_clk: float
) -> Step:
    """The family of TensileLite: global loads to registers, then LDS, then operands of every wave from LDS."""
    import numpy as np

    bm, bn, bk, threads = c.tile_m, c.tile_n, c.tile_k, c.waves * hw.wavefront_size
    share = k["share_8bit"] if elem_bytes == 1 else k["share_16bit"]
    large = np.where(c.mfma_m >= 32, k["large_instruction_factor"], 1.0)
    tensor = 2 * bm * bn * bk / (flops_per_clk * share) * large
    read = (bm * c.wave_n + bn * c.wave_m) * bk * elem_bytes / (hw.lds_read_bytes_per_clk * k["lds_share"])
    write = (bm + bn) * bk * elem_bytes / (hw.lds_write_bytes_per_clk * k["lds_share"])
    a_k, b_k = layout[0] == "N", layout[1] == "T"
    load = np.zeros_like(bm)
    for tile, k_contiguous in ((bm, a_k), (bn, b_k)):
        pieces = (k["split_k_row_share"] if k_contiguous else k["split_row_share"]) * _pieces(
            tile, bk, threads, k_contiguous
        )
        row = np.minimum((bk if k_contiguous else tile) * elem_bytes, LINE_BYTES)
        load = load + bk * elem_bytes * tile * (1 + pieces + k["short_row_share"] * (LINE_BYTES / row - 1))
    # 8-bit elements that do not lie along k are turned with byte operations on their way to LDS.
    turned = (bm * (not a_k) + bn * (not b_k)) * bk / k["turn_bytes_per_clk"] if elem_bytes == 1 else np.zeros_like(bm)
    registers = registers_per_thread(hw, c) + k["registers"]
    lds = tile_bytes("staged", c, elem_bytes)
    return Step(
        tensor_clk=tensor,
        shared_clk=read + write,
        issue_clk=turned,
        # A wave has one matrix core: few waves leave the others idle unless several workgroups share the unit.
        chain_clk=k["serial_clk"] + tensor * np.maximum(hw.simds_per_cu / c.waves, 1) + turned,
        load_bytes=load,
        depth=k["depth_steps"] * c.stages / STAGED_BUFFERS,
        per_cu=workgroups_per_cu(hw, c.waves, lds, registers, most=k["held_workgroups"]),
    )


def _pieces(tile: Array, tile_k: Array, threads: Array, k_contiguous: bool) -> Array:
    """Extra load instructions of 16 bits elements: rows along k that no full vector divides, or rows along the tile
    that only several powers of two make up (192 is 128 + 64: one more)."""
    import numpy as np

    if not k_contiguous:
        chunks = (tile / 8).astype(int)
        bits = np.zeros_like(tile)
        for shift in range(6):
            bits += (chunks >> shift) & 1
        more: Array = np.maximum(bits - 1, 0)
        return more
    each = tile * tile_k / threads
    return np.where(each % 8 == 0, 0, np.where(each % 4 == 0, 1, np.where(each % 2 == 0, 3, 7)))
