"""Latency of fused attention from the parts of the GEMM model: two products and a softmax a step, over tiles of keys.

A group of `simds_per_cu` waves keeps every matrix core of a compute unit busy while it multiplies and every vector lane
while it does the softmax; the two alternate within a group, so that several groups (of one workgroup or of several)
overlap. All lengths in elements; arrays broadcast as in the GEMM model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closedform.hw.descriptor import HardwareDescriptor

from .attention_lattice import WAVE_ROWS, AttentionConfigs, lds_bytes, registers_per_thread
from .families import gemm_family
from .step import DIRECT_ROWS, workgroups_per_cu

if TYPE_CHECKING:
    from .configs import Array

__all__ = ["ATTENTION_LEVELS", "AttentionShape", "AttentionTiming", "attention_time"]

ATTENTION_LEVELS = ("matrix", "softmax", "chain", "latency", "l1_fill", "hbm")
#: A k step of one matrix instruction, in bytes of a row.
MATRIX_K_BYTES = 32


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


@dataclass(frozen=True, slots=True, eq=False)
class _Rounds:
    """What runs at once: `number` workgroups on each busy compute unit in each of `rounds`, of the `held` that fit,
    and `running` on the device."""

    rounds: Array
    number: Array
    running: Array
    throttle: Array
    held: Array


def _rounds(hw: HardwareDescriptor, k: Mapping[str, float], grid: Array, per_cu: Array, causal: Any) -> _Rounds:
    """Rounds share the grid evenly, as in the GEMM model. With a causal mask blocks differ in length and follow one
    another without a common end: then rounds and workgroups are fractions.

    Beyond `power_cus` busy compute units, on the average over the rounds, the clock falls to keep the power.
    """
    import numpy as np

    share = grid / float(hw.num_cus)
    most = np.where(causal, np.maximum(share, 1), np.ceil(share))
    rounds = np.where(causal, np.maximum(most / per_cu, 1), np.ceil(most / per_cu))
    return _Rounds(rounds, most / rounds, grid / rounds, np.maximum(grid / most / k["power_cus"], 1), per_cu)


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

    clk_per_us = hw.clock_mhz * k["clock_share"]
    bm, bn, d = c.tile_q, c.tile_kv, s.d
    groups = c.waves / hw.simds_per_cu
    rows = bm / groups  # of one group
    direct = rows >= DIRECT_ROWS
    share = np.where(direct, k["direct_share"], k["register_share"])
    spare = np.maximum(1, hw.simds_per_cu * WAVE_ROWS / rows)  # waves without rows of their own repeat work
    matrix = 4 * rows * bn * d / (flops_per_clk * share) * np.where(direct, 1, spare ** k["repeat_exponent"])
    lanes = hw.vector_f32_flops_per_clk_cu / 2
    element, rescale, row = (k[name] for name in ("softmax_element_clk", "rescale_element_clk", "softmax_row_clk"))
    soft = rows * (bn * element + d * rescale + row) / lanes
    # One granule of every workgroup is the system's where Q lies in LDS.
    lds = lds_bytes(hw, c, d, s.elem_bytes) + (0 if gemm_family(hw) == "staged" else hw.lds_granule_bytes)
    per_cu = workgroups_per_cu(hw, c.waves, lds, registers_per_thread(hw, c, d, s.elem_bytes) + k["registers"])
    grid = np.ceil(s.L_q / bm) * s.heads_all
    r = _rounds(hw, k, grid, per_cu, s.causal)

    # The A operand P of the second product comes from registers and must be packed; short tiles of keys stall more.
    packing = (d + bn) * s.elem_bytes / MATRIX_K_BYTES * k["chain_matrix_clk"]
    chain = matrix + packing + soft + k["serial_clk"] + groups * k["barrier_clk"]
    tile_bytes = 2 * bn * d * s.elem_bytes
    hbm_rate = k["hbm_share"] * hw.hbm_bytes_per_s / 1e6 / clk_per_us
    heads_at_once = np.maximum(s.heads_all / r.rounds, 1)

    def step(number: Any, throttle: Any, running: Any, heads: Any) -> tuple[Array, list[Array]]:
        """Clocks of a step of a compute unit with so many workgroups, and its terms in the order of the levels."""
        fill = np.maximum(
            number * tile_bytes / k["fill_bytes_per_clk"],
            running * tile_bytes / (k["l2_bytes_per_clk"] * hw.num_cus),
        )
        # With one stage a step waits for its own tile; otherwise tiles come while the steps before them run.
        alone = chain + np.where(c.stages == 1, k["latency_clk"] + fill, 0)
        latency = (k["latency_clk"] + fill) / np.maximum(c.stages - 1, 1)
        work, softmax = number * groups * matrix * throttle, number * groups * soft
        terms = list(np.broadcast_arrays(work, softmax, alone, latency, fill, heads * tile_bytes / hbm_rate))
        total = sum((term**4 for term in terms), np.zeros_like(terms[0]))
        return np.sqrt(np.sqrt(total)) + k["overlap_loss_share"] * (work + softmax), terms

    each, terms = step(r.number, r.throttle, r.running, heads_at_once)
    lone, _ = step(1.0, 1.0, 0.0, 0.0)
    latency_us = k["launch_us"] + _blocks_clk(k, c, s, each, lone, r) / clk_per_us
    if not detail:
        return AttentionTiming(latency_us)
    levels_clk = dict(zip(ATTENTION_LEVELS, terms, strict=True))
    return AttentionTiming(latency_us, levels_clk, grid, np.ceil(r.rounds))


def _blocks_clk(
    k: Mapping[str, float], c: AttentionConfigs, s: AttentionShape, each: Array, lone: Array, r: _Rounds
) -> Array:
    """Clocks of all blocks of queries; `each` is a step of a full compute unit, `lone` of one workgroup by itself.

    Without a mask all blocks take the same steps. With a causal mask the mean work of a block counts and `tail_share`
    of the longest one's excess; no less than the longest one by itself. The first prologue is exposed; later ones are
    hidden by the workgroups that the compute unit can hold besides.
    """
    import numpy as np

    bm, bn = c.tile_q, c.tile_kv
    steps = np.ceil(s.L_kv / bn)
    masked = np.minimum(np.ceil(bm / bn), steps) * k["mask_steps"]
    mean = np.minimum((s.L_kv + bm) / bn / 2, steps)
    uneven = r.rounds * (mean + masked) * each + k["tail_share"] * (steps - mean) * lone
    main = np.where(s.causal, np.maximum(uneven, (steps + masked) * lone), r.rounds * steps * each)
    ends = (1 + r.rounds / r.held) * k["tile_prologue_clk"]
    store = r.rounds * r.number * bm * s.d * s.elem_bytes * 2 / k["store_bytes_per_clk"]
    clk: Array = main + ends + store
    return clk
