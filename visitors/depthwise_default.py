"""Tiles of depthwise convolutions on vector instructions: access, registers, compute units, in that order.

1. Access: as many channels as 16 bytes of X and of Y hold and the channels are a multiple of, and halves of that.
2. Registers bound the strip, and how many loads are under way at once: what four waves of a SIMD have room for.
3. CUs: of all of these the one with the least predicted clocks of the busiest CU, which are those of its vector units,
   L1, L2, memory or waiting; of equals the one with the least work on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import gcd
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import Infeasible
from closedform.hw.occupancy import register_budget, waves_per_simd, workgroups_per_cu
from closedform.operators.conv2d import Conv2d
from closedform.operators.depthwise import WAVE, Depthwise, DepthwiseTiles

from .depthwise_formulas import DEPTHWISE
from .depthwise_registers import live_set
from .derivation import Derivation, GridVerdict, PredictedResources
from .formula import FormulaValue, ceil_div
from .gemm_ladder import START_CLOCKS, l2_bytes_per_clk
from .gemm_shape import GRID_X

__all__ = ["derive_depthwise", "predicted_clocks"]

#: Outputs of the longest strip: beyond, the halo is below an eighth of what is loaded of a filter of 3 taps.
STRIP_MAX = 16
#: Groups that the places of a line of taps are cut into, at most.
GROUPS_MAX = 8
#: Waves of a workgroup, where an image has work for them.
WAVES = 4
#: Waves that share a SIMD, where some strip leaves them the registers: loads of each wait under products of the others.
WAVES_PER_SIMD = 4
#: Clocks from a load to its data in L2; the first one of a workgroup, from memory, is in START_CLOCKS.
LOAD_CLOCKS = 500
#: Clocks of a vector instruction of a wave: 64 lanes on 16.
ISSUE_CLOCKS = 4
#: Vector instructions of a thread: the mask and offset of a line of taps; outside of the loop the divisions of its
#: number, the offset of a place, an output. They and the products come within 5% of what is executed (gfx942).
OFFSETS_LINE, AROUND, AROUND_PLACE, AROUND_OUTPUT = 10, 140, 5, 8


def derive_depthwise(op: Conv2d, hw: HardwareDescriptor, **given: Any) -> Derivation:
    """Tiles of the vector kernel of `op` on `hw`; `given` fixes knobs of DepthwiseTiles.

    Raises BadInput for an operator that this kernel does not compute and for accesses that do not divide the channels.
    """
    found = [_Candidate(op, hw, tiles) for tiles in _choices(op, hw, given)]
    fitting = [candidate for candidate in found if candidate.fits]
    if fitting:
        return _result(min(fitting, key=lambda candidate: candidate.order))
    least = min(found, key=lambda candidate: candidate.registers.value)
    place, way_out = "a thread of this conv2d", "leave more of the knobs open, or use kernel=mfma"
    reason = Infeasible("registers", least.registers.value, least.budget, "registers", place, way_out)
    return Derivation(op, hw, "default", None, "registers", (least.registers,), None, None, reason)


def predicted_clocks(derivation: Derivation) -> float:
    """Clocks of the busiest CU that the tiles of a derivation were chosen by."""
    tiles, _, _ = derivation.require()
    return float(_Candidate(derivation.op, derivation.hw, tiles).clocks.value)


def _choices(op: Conv2d, hw: HardwareDescriptor, given: dict[str, Any]) -> Iterator[DepthwiseTiles]:
    """Every strip, access and group of places that has what is given, at the occupancy that its registers leave."""
    least = Depthwise(op, DepthwiseTiles(strip=1, vec=1, together=1, lines=1, waves=1))
    vecs = [given["vec"]] if "vec" in given else [least.widest >> n for n in range(least.widest.bit_length())]
    longest = min(STRIP_MAX, least.outputs[least.a])
    strips = [given["strip"]] if "strip" in given else range(1, longest + 1)
    taps = least.kernel[least.b]
    lines = [given["lines"]] if "lines" in given else sorted({1, taps})
    for vec, strip, line in product(vecs, strips, lines):
        if 1 < line == taps and vec == 1 < strip and hw.has_packed_f32 and "lines" not in given:
            continue  # the compiler adds to neighbouring sums in pairs, whose registers are more than it has
        work = Depthwise(op, DepthwiseTiles(strip, vec, 1, line, 1))
        reads = len(work.strip.places) * line
        if line > 1 and "lines" not in given and given.get("together", reads) < reads:
            continue
        waves = given.get("waves", min(WAVES, ceil_div(work.items, WAVE)))
        for groups in range(1, min(reads, GROUPS_MAX) + 1) if line == 1 else [1]:
            together = given.get("together", ceil_div(reads, groups))
            tiles = DepthwiseTiles(strip, vec, together, line, waves, given.get("xcds", hw.num_xcds))
            op.tree(tiles)
            registers = sum(item.registers for item in live_set(op, tiles, hw))
            fewest = ceil_div(waves, hw.simds_per_cu)
            resident = max(fewest, waves_per_simd(hw, min(registers, register_budget(hw, fewest).arch)))
            yield replace(tiles, waves_per_simd=given.get("waves_per_simd", resident))
            if "together" in given:
                break


class _Candidate:
    """One choice of tiles with what its formulas give."""

    def __init__(self, op: Conv2d, hw: HardwareDescriptor, tiles: DepthwiseTiles) -> None:
        self.op, self.hw, self.tiles, self.work = op, hw, tiles, Depthwise(op, tiles)
        work, strip = self.work, self.work.strip
        lines, access_bytes = work.kernel[work.b], tiles.vec * op.elem_bytes
        places = len(strip.places)
        self.groups = lines // tiles.lines * ceil_div(places * tiles.lines, tiles.together)
        self.items = live_set(op, tiles, hw)
        held = {item.name: item.registers for item in self.items}
        self.registers = DEPTHWISE.registers(
            sums=held["sums"],
            under_way=held["places"] + held.get("widened", 0) + held.get("pairs", 0),
            weights=held["weights"],
            offsets=held.get("offsets", 0),
            fixed=held["control"] + held.get("spare", 0),
        )
        self.budget = register_budget(hw, tiles.waves_per_simd).arch
        outputs, stride = work.outputs, op.stride
        self.places = DEPTHWISE.places(
            t=strip.outputs, K_a=strip.taps, s_a=strip.stride, d_a=strip.dilation, gcd=gcd(strip.stride, strip.dilation)
        )
        self.halo = DEPTHWISE.halo(P=places, t=strip.outputs, K_b=lines, s_a=strip.stride, s_b=stride[work.b])
        self.blocks = DEPTHWISE.blocks(
            N=op.N,
            C=op.IC,
            v=tiles.vec,
            O_a=outputs[work.a],
            t=strip.outputs,
            O_b=outputs[work.b],
            threads=tiles.threads,
        )
        self.waves = DEPTHWISE.waves(blocks=self.blocks.value, num_cus=hw.num_cus, waves_of_block=tiles.waves)
        products = strip.outputs * strip.taps * tiles.vec
        packed = 2 if hw.has_packed_f32 and tiles.vec > 1 else 1
        mixed = op.dtype == "f32" or (op.dtype == "f16" and packed == 1)
        widened = 0 if mixed else (places + strip.taps) * tiles.vec
        around = AROUND + AROUND_PLACE * places + AROUND_OUTPUT * strip.outputs
        common = {"waves": self.waves.value, "K_b": lines}
        loads = {**common, "lanes": WAVE, "P": places, "access_bytes": access_bytes}
        self.valu = DEPTHWISE.vector(
            **common,
            simds=hw.simds_per_cu,
            products=products,
            packed=packed,
            widened=widened,
            offsets=places + OFFSETS_LINE,
            around=around,
            issue=ISSUE_CLOCKS,
        )
        self.l1 = DEPTHWISE.l1(**loads, K_a=strip.taps, l1_bytes_per_clk=hw.l1_bytes_per_clk)
        self.l2 = DEPTHWISE.l2(**loads, l2_bytes_per_clk=l2_bytes_per_clk(hw))
        self.memory = DEPTHWISE.memory(
            compulsory_bytes=op.compulsory_bytes, memory_bytes_per_clk=hw.hbm_bytes_per_s / (hw.clock_mhz * 1e6)
        )
        self.wait = DEPTHWISE.latency(
            waves=self.waves.value,
            simds=hw.simds_per_cu,
            resident=tiles.waves_per_simd,
            groups=self.groups,
            load_clocks=LOAD_CLOCKS,
            own=(lines * (ceil_div(products, packed) + widened + places + OFFSETS_LINE) + around) * ISSUE_CLOCKS,
        )
        self.clocks = DEPTHWISE.clocks(**{name: pipe.value for name, pipe in self.pipes.items()}, start=START_CLOCKS)

    @property
    def pipes(self) -> dict[str, FormulaValue]:
        return {"valu": self.valu, "l1": self.l1, "l2": self.l2, "memory": self.memory, "wait": self.wait}

    @property
    def fits(self) -> bool:
        return bool(self.registers.value <= self.budget)

    @property
    def order(self) -> tuple[bool, float, float]:
        """Enough waves a SIMD, then predicted clocks to a hundredth, then all that is done."""
        few = self.tiles.waves_per_simd < WAVES_PER_SIMD
        return few, float(f"{self.clocks.value:.3g}"), sum(pipe.value for pipe in self.pipes.values())


def _result(best: _Candidate) -> Derivation:
    op, hw, tiles = best.op, best.hw, best.tiles
    busiest = max(best.pipes, key=lambda name: best.pipes[name].value)
    registers, blocks = best.registers.value, best.blocks.value
    per_cu = max(1, workgroups_per_cu(hw, tiles.waves, registers))
    rounds = DEPTHWISE.rounds(blocks=blocks, num_cus=hw.num_cus, workgroups_per_cu=per_cu)
    pipes = [pipe.binding() if name == busiest else pipe for name, pipe in best.pipes.items()]
    steps = (best.places, best.halo, best.registers, best.blocks, best.waves, *pipes, best.clocks, rounds)
    share = blocks / (rounds.value * hw.num_cus * per_cu)
    fills = blocks >= hw.num_cus
    verdict = f"{blocks / hw.num_cus:.2f} workgroups per CU, {rounds.value} round(s)"
    grid = GridVerdict(
        (min(blocks, GRID_X), ceil_div(blocks, GRID_X), 1),
        blocks,
        hw.num_cus,
        per_cu,
        blocks / hw.num_cus,
        rounds.value,
        share,
        fills,
        verdict if fills else f"{verdict}: CUs stay idle",
    )
    resources = PredictedResources(
        items=best.items,
        registers=registers,
        arch_registers=registers,
        acc_registers=0,
        register_budget=best.budget,
        lds_bytes=0,
        lds_limit_bytes=hw.lds_max_per_workgroup_bytes,
        waves_per_simd=tiles.waves_per_simd,
    )
    return Derivation(op, hw, "default", tiles, busiest, steps, resources, grid, None, tuple(_notes(best)))


def _notes(best: _Candidate) -> Iterator[str]:
    """What the caller should know of the tiles."""
    tiles, us = best.tiles, best.clocks.value / best.hw.clock_mhz
    yield (
        f"vector instructions: {us:.1f} us predicted, X is loaded {best.halo.value:.2f} times, "
        f"loads come in {best.groups} group(s)"
    )
    if tiles.vec * best.op.elem_bytes < 4 and best.op.layout == "NHWC":
        yield "accesses of less than 4 bytes: channels in multiples of 8 are read 16 bytes at a time"
