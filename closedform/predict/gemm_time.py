"""Latency of a tiled matrix product from its k step: rounds, tails, the memory levels, split K and Stream-K.

Arrays broadcast: shapes [s, 1] against configurations [c]. Clocks are those of the device, at the sustained rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closedform.hw.descriptor import HardwareDescriptor

from .configs import Configs
from .step import Step

if TYPE_CHECKING:
    from .configs import Array

__all__ = ["LEVELS", "GemmShapes", "Timing", "gemm_time"]

#: What can bind a k step, in the order of `Timing.levels_clk`.
LEVELS = ("compute", "lds", "issue", "latency", "l1_fill", "last_level_cache", "hbm")
#: Below this the constant stands for none.
NO_STRIDE = 1e-3
#: Bytes of a partial sum.
PARTIAL_BYTES = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class GemmShapes:
    """Products to time: extents in elements as arrays [s, 1], sizes of the operands and of the result in bytes."""

    M: Array
    N: Array
    K: Array
    elem_bytes: float
    out_bytes: float
    layout: str
    batch: Array | float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """`latency_us` over shapes x configurations; the rest only where asked for.

    `levels_clk`: clocks of one k step of a full round by what could bind it; `parts_us`: launch, main loop, what
    begins and ends a tile, reduction.
    """

    latency_us: Array
    levels_clk: dict[str, Array] | None = None
    parts_us: dict[str, Array] | None = None
    rounds: Array | None = None
    tiles: Array | None = None


def _window(workgroups: Array, blocks_m: Array, blocks_n: Array, c: Configs, group: float) -> tuple[Array, Array]:
    """Block rows and columns that concurrent workgroups cover: groups of rows where given, else a square."""
    import numpy as np

    if group >= 1:
        rows = np.minimum(group, blocks_m)
        band = rows * blocks_n
        inside = workgroups <= band
        high = np.where(inside, np.minimum(rows, workgroups), np.minimum(rows * workgroups / band, blocks_m))
        wide = np.where(inside, np.minimum(np.ceil(workgroups / high), blocks_n), blocks_n)
        return high, wide
    high = np.minimum(blocks_m, np.maximum(np.sqrt(workgroups * c.tile_n / c.tile_m), workgroups / blocks_n))
    high = np.maximum(high, 1)
    return high, np.maximum(np.minimum(workgroups / high, blocks_n), 1)


def gemm_time(
    hw: HardwareDescriptor,
    k: Mapping[str, float],
    c: Configs,
    step: Step,
    s: GemmShapes,
    *,
    stream_k: bool = False,
    detail: bool = False,
) -> Timing:
    """Time every shape with every configuration.

    A k step lasts (sum of the p-th powers of its binding times)^(1/p), p = `overlap`: near the largest, above it where
    two are close. A round lasts its k steps, a prologue and the store of its tiles; workgroups that share a compute
    unit hide each other's. The last round holds fewer workgroups.
    """
    import numpy as np

    clk_per_us = hw.clock_mhz * k["clock_share"]
    steps_all = np.ceil(s.K / c.tile_k)
    split = np.minimum(c.split_k, steps_all)
    tiles = np.ceil(s.M / c.tile_m) * np.ceil(s.N / c.tile_n) * s.batch
    r = _rounds(hw, step, tiles * split, stream_k)
    terms, cold = _step_terms(hw, k, c, step, s, r, split)
    each = _norm(terms, k["overlap_exponent"])
    if s.layout == "NT" and k["stride_steps"] > NO_STRIDE:
        # What a sum up to the last such K takes, a longer one takes too.
        met = np.floor(s.K * s.elem_bytes / k["stride_bytes"]) * k["stride_bytes"] / s.elem_bytes
        share = np.ceil(np.ceil(met / c.tile_k) / split) / np.ceil(steps_all / split)
        each = np.maximum(each, (each + _stride_clk(k, c, step, s, r, split)) * share)
    store = r.number * c.tile_m * c.tile_n * np.where(split > 1, PARTIAL_BYTES, s.out_bytes) / k["store_bytes_per_clk"]
    turn = 0.0 if s.layout == "NT" else k["turn_prologue_clk"]
    begin = k["tile_prologue_clk"] + turn + k["miss_latency_clk"] * cold
    if stream_k:
        main = tiles * steps_all / hw.num_cus * each
        ends = tiles / hw.num_cus * (store + begin)
        parts = np.maximum(hw.num_cus / tiles, 1)
        cut = k["stream_tail_clk"] + k["stream_fix_clk"] * c.tile_m * c.tile_n * parts
        reduce = np.where(tiles % hw.num_cus > 0, cut, 0) / clk_per_us
    else:
        main = r.rounds * each * np.ceil(steps_all / split)
        body = main + r.rounds * begin
        stores = r.rounds * store
        ends = np.maximum(body, stores) + np.minimum(body, stores) / r.number - main
        traffic = s.M * s.N * s.batch * PARTIAL_BYTES * split / (k["hbm_share"] * hw.hbm_bytes_per_s / 1e6)
        reduce = np.where(split > 1, k["reduce_clk"] / clk_per_us + traffic, 0.0)
    start = k["launch_us"] + k["prologue_clk"] / clk_per_us
    latency_us = start + (main + ends) / clk_per_us + reduce
    if not detail:
        return Timing(latency_us)
    shown = dict(zip(LEVELS, np.broadcast_arrays(*terms), strict=True))
    parts_us = {
        "launch": np.full_like(latency_us, start),
        "main_loop": main / clk_per_us,
        "prologue_epilogue": ends / clk_per_us,
        "reduction": reduce + np.zeros_like(latency_us),
    }
    return Timing(latency_us, shown, parts_us, r.rounds + np.zeros_like(latency_us), tiles)


@dataclass(frozen=True, slots=True, eq=False)
class _Rounds:
    """What runs at once, as the mean over the rounds: `running` workgroups on `active` compute units, `number` on each
    of them, which has `slots`; `busy` compute units work on the average over the workgroups of the busiest."""

    rounds: Array
    number: Array
    active: Array
    running: Array
    busy: Array
    slots: Array


def _rounds(hw: HardwareDescriptor, step: Step, grid: Array, stream_k: bool) -> _Rounds:
    """Rounds share the grid evenly: a device that is not filled in its last round runs its others less than full when
    memory binds, and the busiest compute unit sets the pace when it does not. So more units never cost time."""
    import numpy as np

    cus = float(hw.num_cus)
    most = np.ceil(grid / cus)
    if stream_k:
        one = np.ones_like(most)
        return _Rounds(one, one, cus * one, cus * one, cus * one, step.per_cu)
    rounds = np.ceil(most / step.per_cu)
    running = grid / rounds
    return _Rounds(rounds, most / rounds, np.minimum(running, cus), running, grid / most, step.per_cu)


def _step_terms(
    hw: HardwareDescriptor, k: Mapping[str, float], c: Configs, step: Step, s: GemmShapes, r: _Rounds, split: Array
) -> tuple[list[Array], Array]:
    """Clocks of one k step of a round by what could bind it, in the order of LEVELS, and the share that caches miss."""
    import numpy as np

    cus = float(hw.num_cus)
    bm, bn, bk = c.tile_m, c.tile_n, c.tile_k
    blocks_m, blocks_n = np.ceil(s.M / bm), np.ceil(s.N / bn)
    # A memory level delivers its distinct bytes at its rate; one compute unit alone gets 1 / (1 + cus_half) of that.
    alone = k["cus_half"] / r.active
    spread = 1 + k["cus_half"] / k["cus"]
    high, wide = _window(r.running / split, blocks_m, blocks_n, c, k["group_rows"])
    requested = r.running * (bm + bn) * bk * s.elem_bytes
    distinct = (high * bm + wide * bn) * bk * s.elem_bytes * split
    total = s.batch * ((s.M + s.N) * s.K * s.elem_bytes + s.M * s.N * s.out_bytes)
    cold = 1 / (1 + (k["warm_bytes"] / total) ** k["warm_exponent"])
    hbm_rate = k["hbm_share"] * hw.hbm_bytes_per_s / 1e6 / (hw.clock_mhz * k["clock_share"])
    hbm = (np.minimum(distinct, requested) + alone * requested) * cold / (hbm_rate * spread)
    # Beyond `power_cus` busy compute units, on the average over the rounds, the clock falls to keep the power.
    throttle = np.maximum(r.busy / k["power_cus"], 1)
    compute = np.maximum(r.number * step.tensor_clk * throttle, step.chain_clk)
    own_fill = r.number * step.load_bytes / k["fill_bytes_per_clk"]
    fill = np.maximum(own_fill, r.running * step.load_bytes / (k["l2_bytes_per_clk"] * cus))
    latency = (k["latency_clk"] + k["miss_latency_clk"] * cold + own_fill + step.chain_clk) / step.depth
    if hw.mall_bytes:
        of_xcd = r.running / hw.num_xcds
        slices = np.clip(of_xcd / (blocks_m * blocks_n), 1, split)
        high, wide = _window(np.maximum(of_xcd / slices, 1), blocks_m, blocks_n, c, k["group_rows"])
        xcds = np.minimum(float(hw.num_xcds), r.active)
        past_l2 = np.minimum((high * bm + wide * bn) * slices * xcds * bk * s.elem_bytes, requested)
        mall = (past_l2 + alone * requested) / (k["mall_bytes_per_clk"] * cus * spread)
    else:
        mall = np.zeros_like(hbm)
    terms = [compute, r.number * step.shared_clk, r.number * step.issue_clk, latency, fill, mall, hbm]
    return terms, cold


def _norm(terms: list[Array], p: float) -> Array:
    """(sum of x^p)^(1/p) for p = 2 or 4 by products, which are many times faster than powers."""
    import numpy as np

    total: Any = 0.0
    for term in terms:
        square = term * term
        total += square * square if p == 4 else square
    root: Array = np.sqrt(np.sqrt(total)) if p == 4 else np.sqrt(total)
    return root


def _stride_clk(k: Mapping[str, float], c: Configs, step: Step, s: GemmShapes, r: _Rounds, split: Array) -> Array:
    """Clocks that a k step takes longer where both operands lie along k with rows a power of two apart: while all
    workgroups walk in step, their loads meet on the same channels. In steps of a lone workgroup; compute units that
    take several tiles, or large ones, drift apart."""
    import numpy as np

    in_step = np.minimum(1, s.M * s.N / k["stride_outputs"])
    drift = np.maximum(r.rounds * r.slots / split * c.tile_m * c.tile_n / k["stride_tile_elements"], 1)
    found: Array = k["stride_steps"] * step.chain_clk * in_step / drift
    return found
