"""Latency of fused attention from the parts of the GEMM model: two products and a softmax a step, over tiles of keys.

A group of `simds_per_cu` waves keeps every matrix core of a compute unit busy while it multiplies and every vector lane
while it does the softmax; the two alternate within a group, so that several groups (of one workgroup or of several)
overlap. All lengths in elements; arrays broadcast as in the GEMM model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .families import gemm_family
from .legality import check_capacities, check_whole
from .step import DIRECT_ROWS, workgroups_per_cu

if TYPE_CHECKING:
    from .configs import Array

__all__ = [
    "ATTENTION_LEVELS",
    "AttentionConfigs",
    "AttentionShape",
    "AttentionTiming",
    "attention_lattice",
    "attention_time",
    "check_attention_config",
]

ATTENTION_LEVELS = ("matrix", "softmax", "chain", "latency", "l1_fill", "hbm")
WAVE_ROWS = 16
#: Bytes that a lane holds in one register.
REGISTER_BYTES = 4
TILE_Q = (16, 32, 64, 128, 256)
TILE_KV = (16, 32, 64, 128)
WAVES = (4, 8)
#: Buffers of K and V in LDS; a staged kernel has one, and the next tiles under way in registers.
STAGES = (1, 2, 3, 4)
STAGED_STAGES = (2,)
#: Registers a thread needs besides the two accumulators before a configuration counts as legal.
OTHER_REGISTERS = 40
#: The same in an emitted kernel: addresses, offsets and fragments under way.
STAGED_OTHER_REGISTERS = 80
MATRIX_K_BYTES = 32


@dataclass(frozen=True, slots=True, eq=False)
class AttentionConfigs:
    """Query rows of a workgroup, keys of a step, waves and stages, as float64 arrays."""

    tile_q: Array
    tile_kv: Array
    waves: Array
    stages: Array

    def __len__(self) -> int:
        return len(self.tile_q)

    def take(self, where: Any) -> AttentionConfigs:
        return AttentionConfigs(*(getattr(self, f.name)[where] for f in fields(self)))

    def at(self, index: int) -> dict[str, int]:
        return {f.name: int(getattr(self, f.name)[index]) for f in fields(self)}


@dataclass(frozen=True, slots=True, eq=False)
class AttentionShape:
    """Extents in elements, numbers or arrays; `heads_all` is batch times heads."""

    heads_all: Any
    L_q: Any
    L_kv: Any
    d: Any
    causal: Any = False
    elem_bytes: float = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTiming:
    """Microseconds, and with detail the clocks of one step by level, the workgroups and the rounds."""

    latency_us: Array
    levels_clk: dict[str, Array] | None = None
    workgroups: Array | None = None
    rounds: Array | None = None


def _registers(hw: HardwareDescriptor, c: AttentionConfigs, d: Any, elem_bytes: float) -> Array:
    """Registers of a thread for O and S; in a staged kernel also for Q and for the next tiles of K and V."""
    found: Array = c.tile_q * (d + c.tile_kv)
    if gemm_family(hw) == "staged":
        found = found + (c.tile_q + 2 * c.tile_kv) * d * elem_bytes / REGISTER_BYTES
    registers: Array = found / (c.waves * hw.wavefront_size)
    return registers


def _lds_bytes(hw: HardwareDescriptor, c: AttentionConfigs, d: Any, elem_bytes: float) -> Array:
    """K and V in every buffer; Q too where the matrix cores read it from there."""
    if gemm_family(hw) == "staged":
        found: Array = 2 * c.tile_kv * d * elem_bytes
    else:
        found = (c.tile_q + 2 * c.stages * c.tile_kv) * d * elem_bytes
    return found


@lru_cache(maxsize=64)
def attention_lattice(hw: HardwareDescriptor, d: int, elem_bytes: float = 2.0) -> AttentionConfigs:
    """Every legal configuration for that head dim, in a fixed order: LDS of Q and the stages of K and V, registers of
    O and S, size of a workgroup; 8 waves where each owns 16 rows."""
    import numpy as np

    staged = gemm_family(hw) == "staged"
    axes = np.meshgrid(TILE_Q, TILE_KV, WAVES, STAGED_STAGES if staged else STAGES, indexing="ij")
    c = AttentionConfigs(*(np.ascontiguousarray(a.ravel(), float) for a in axes))
    registers = _registers(hw, c, d, elem_bytes) + (STAGED_OTHER_REGISTERS if staged else OTHER_REGISTERS)
    ok = (
        (_lds_bytes(hw, c, d, elem_bytes) <= hw.lds_max_per_workgroup_bytes)
        & (registers <= np.minimum(hw.vgpr_per_wave_max, hw.vgpr_file * hw.simds_per_cu / c.waves))
        & (c.waves * hw.wavefront_size <= hw.workgroup_max)
        & ((c.waves <= min(WAVES)) | (c.tile_q >= WAVE_ROWS * c.waves))
    )
    return c.take(np.flatnonzero(ok))


def check_attention_config(hw: HardwareDescriptor, d: int, elem_bytes: float, config: Mapping[str, int]) -> None:
    """Raises BadInput or InfeasibleError for a configuration that no kernel can have on that GPU."""
    import numpy as np

    check_whole(config, {"tile_q": WAVE_ROWS, "tile_kv": WAVE_ROWS})
    staged = gemm_family(hw) == "staged"
    c = AttentionConfigs(*(np.array([float(config[f.name])]) for f in fields(AttentionConfigs)))
    check_capacities(
        hw,
        waves=config["waves"],
        lds_bytes=float(_lds_bytes(hw, c, d, elem_bytes)[0]),
        registers=float(_registers(hw, c, d, elem_bytes)[0]) + (STAGED_OTHER_REGISTERS if staged else OTHER_REGISTERS),
        tile_elements=config["tile_q"] * config["tile_kv"],
    )
    if staged and config["stages"] not in STAGED_STAGES:
        raise BadInput(f"stages={config['stages']}: a staged kernel has {STAGED_STAGES[0]}")


def attention_time(
    hw: HardwareDescriptor,
    k: Mapping[str, float],
    c: AttentionConfigs,
    s: AttentionShape,
    flops_per_clk: float,
    *,
    detail: bool = False,
) -> AttentionTiming:
    """Time a shape with every configuration."""
    import numpy as np

    cus = float(hw.num_cus)
    clk_per_us = hw.clock_mhz * k["clock_share"]
    bm, bn, d = c.tile_q, c.tile_kv, s.d
    groups = c.waves / hw.simds_per_cu
    rows = bm / groups  # of one group
    direct = rows >= DIRECT_ROWS
    share = np.where(direct, k["direct_share"], k["register_share"])
    spare = np.maximum(1, hw.simds_per_cu * WAVE_ROWS / rows)  # waves without rows of their own repeat work
    blocks = np.ceil(s.L_q / bm)
    grid = blocks * s.heads_all
    active = np.minimum(grid, cus)
    # Beyond `power_cus` busy compute units the clock of dense products falls to keep the power.
    throttle = np.maximum(active / k["power_cus"], 1)
    matrix = 4 * rows * bn * d / (flops_per_clk * share) * np.where(direct, 1, spare ** k["repeat_exponent"]) * throttle
    # The A operand P of the second product comes from registers and must be packed; short tiles of keys stall more.
    chain_matrix = (d + bn) * s.elem_bytes / MATRIX_K_BYTES * k["chain_matrix_clk"]
    lanes = hw.vector_f32_flops_per_clk_cu / 2
    soft = (
        rows * bn * k["softmax_element_clk"] + rows * d * k["rescale_element_clk"] + rows * k["softmax_row_clk"]
    ) / lanes
    # One granule of every workgroup is the system's where Q lies in LDS.
    lds = _lds_bytes(hw, c, d, s.elem_bytes) + (0 if gemm_family(hw) == "staged" else hw.lds_granule_bytes)
    per_cu = workgroups_per_cu(hw, c.waves, lds, _registers(hw, c, d, s.elem_bytes) + k["registers"])
    number = np.clip(np.ceil(grid / cus), 1, per_cu)
    tile_bytes = 2 * bn * d * s.elem_bytes
    together = number * groups
    fill = np.maximum(
        number * tile_bytes / k["fill_bytes_per_clk"], number * active * tile_bytes / (k["l2_bytes_per_clk"] * cus)
    )
    chain = matrix + chain_matrix + soft + k["serial_clk"] + groups * k["barrier_clk"]
    # With one stage a step waits for its own tile; otherwise tiles come while the steps before them run.
    chain = chain + np.where(c.stages == 1, k["latency_clk"] + fill, 0)
    latency = (k["latency_clk"] + fill) / np.maximum(c.stages - 1, 1)
    heads_at_once = np.minimum(s.heads_all, np.ceil(number * active / blocks))
    hbm = heads_at_once * tile_bytes / (k["hbm_share"] * hw.hbm_bytes_per_s / 1e6 / clk_per_us)
    terms = np.broadcast_arrays(together * matrix, together * soft, chain, latency, fill, hbm / np.maximum(blocks, 1))
    total = sum((term**4 for term in terms), np.zeros_like(terms[0]))
    each = np.sqrt(np.sqrt(total)) + k["overlap_loss_share"] * (matrix + soft) * together

    clk = _blocks_clk(k, c, s, each, chain, number, grid, cus, per_cu)
    latency_us = k["launch_us"] + clk / clk_per_us
    if not detail:
        return AttentionTiming(latency_us)
    return AttentionTiming(
        latency_us, dict(zip(ATTENTION_LEVELS, terms, strict=True)), grid, np.ceil(grid / (cus * per_cu))
    )


def _blocks_clk(
    k: Mapping[str, float],
    c: AttentionConfigs,
    s: AttentionShape,
    each: Array,
    chain: Array,
    number: Array,
    grid: Array,
    cus: float,
    per_cu: Array,
) -> Array:
    """Clocks of all blocks of queries: full rounds and a faster last one, or with a causal mask the mean work of
    a block plus a share of the longest one's excess. `each` is a step of a full compute unit, `chain` of one block."""
    import numpy as np

    bm, bn = c.tile_q, c.tile_kv
    slots = cus * per_cu
    steps = np.ceil(s.L_kv / bn)
    diagonal = np.where(s.causal, np.ceil(bm / bn) * k["mask_steps"], 0)
    mean = np.where(s.causal, (s.L_kv / bn + bm / bn) / 2, steps) + diagonal
    longest = steps + diagonal
    ends = k["tile_prologue_clk"] + number * bm * s.d * s.elem_bytes * 2 / k["store_bytes_per_clk"]
    waves_of_work = grid / slots
    full = np.floor(waves_of_work)
    rest = grid - full * slots
    # A partly filled round runs with fewer workgroups a compute unit, each faster, down to its own chain.
    fewer = np.maximum(np.ceil(rest / cus), 1) / per_cu
    single = longest * each + ends
    last = np.where(rest > 0, steps * np.maximum(chain, each * fewer) + ends, 0)
    even = full * (steps * each + ends / number) + last
    slack = k["tail_share"] * (longest - mean) * np.maximum(chain, each / number)
    uneven = waves_of_work * (mean * each + ends / number) + slack + ends
    causal = np.where(waves_of_work <= 1, single, np.maximum(uneven, longest * np.maximum(chain, each / number)))
    clk: Array = np.where(s.causal, causal, np.where(waves_of_work <= 1, single, even))
    return clk
