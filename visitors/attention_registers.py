"""The live set of emitted attention, item by item: what the register promise consists of.

It is taken at the synchronisation point between the two products, where Q, the scores of this step and the next, O, the
running maximum and sum and the tile under way are all live.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.occupancy import register_budget
from closedform.operators.attention import Attention

from .attention_schedule import keys_of_v_block
from .derivation import PredictedResources, RegisterItem

__all__ = [
    "SPLIT_RESULTS",
    "StepShape",
    "bounds_registers",
    "logits_registers",
    "page_registers",
    "predicted_registers",
    "predicted_resources",
]

#: LDS addresses, loop control and temporaries of the softmax. With the fragments and the exponentials it covers what
#: the binaries of all targets, types and head dims hold beyond the other items (flydsl 0.5.0).
ADDRESSES = 36
#: Registers of LDS reads under way where the budget leaves room, by bytes of an element: twelve 16-byte reads, fourteen
#: of f32, whose reads feed twice as many MFMAs; the four issued ahead and the one in use at the least.
FRAGMENTS = {1: 48, 2: 48, 4: 56}
FRAGMENTS_LEAST = 20
#: The counts above were held against binaries of chained kernels with whole atoms along d and steps of full length.
#: Other kernels get a fifth on top (short steps, padded rows, options), a quarter beyond d = 256, two fifths with P
#: through LDS, as much again and all ArchVGPRs with scalar FMA, which the compiler schedules most freely.
ALLOWANCE = 5
#: Registers that options take, as the binaries at the limit of two waves a SIMD told (d = 96 and 128): distances and
#: the slope, constants of the soft cap, rows that a table finds, where what a split of the keys comes to is stored, and
#: comparisons with both ends of a window.
ALIBI, SOFTCAP, PAGE_NUMBERS, SPLIT_RESULTS, WINDOW = 12, 14, 14, 14, 12
FULL_STEP = 64
#: Head dims beyond which only the smallest tiles come into question.
LEAST_TILES_D = 256
FULL_STEP_TO_D = 128


def bounds_registers(op: Attention, query_tiles: int) -> int:
    """Ends of what a query sees: one with a causal mask, two of a window, three with sink tokens."""
    if op.window:
        return WINDOW + (2 + (op.sink > 0)) * query_tiles
    return int(op.causal) * query_tiles


def logits_registers(op: Attention, query_tiles: int, scores: int) -> int:
    """The bias of a step with its offsets, distances of ALiBi, constants of the soft cap."""
    bias = scores * 5 // 4 if op.bias else 0
    return bias + (ALIBI + 2 * query_tiles if op.alibi else 0) + (SOFTCAP if op.softcap is not None else 0)


def page_registers(op: Attention, tile_kv: int) -> int:
    """Numbers of pages and what is computed of them, where the keys of a step lie in several pages."""
    return PAGE_NUMBERS if op.page and op.page % tile_kv else 0


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes that decide the live set of one wave; lengths in elements.

    columns: columns of O that a lane owns in the variant fma, 0 where the second product runs on the matrix core.
    chained: P stays in registers. Registers of options: bounds for the ends of what a query sees, logits for what turns
    the scores of a step into logits, pages for rows that a table finds, split for what a split of the keys comes to.
    """

    tile_q: int
    tile_kv: int
    waves: int
    d: int
    d_pad: int
    dv: int
    dv_pad: int
    elem_bytes: int
    query_tiles: int
    dv_run: int
    columns: int
    chained: bool
    lanes: int
    bounds: int = 0
    logits: int = 0
    pages: int = 0
    split: int = 0

    def counts(self) -> tuple[int, int, int, int, int, int, int]:
        """Registers of Q, S, P, O, the K tile under way, the V tile under way, and the offsets of global accesses.

        Half of the exponentials exist beside the scores before the product takes them, packed in 16 bits. A thread
        loads K in 16-byte chunks; V likewise in f32, in rows of dv_run elements for the keys of a block in 16 bits.
        Each access has its own offset; `access` elements are what the alignment of a row allows.
        """
        lanes, elem_bytes = self.lanes, self.elem_bytes
        packed = elem_bytes < 4
        q = self.tile_q * self.d_pad * elem_bytes // (4 * lanes)
        s = self.tile_q * self.tile_kv // lanes
        o = self.tile_q * self.columns if self.columns else self.tile_q * self.dv_pad // lanes
        vec, threads = 16 // elem_bytes, self.waves * lanes
        k_elements, v_elements = self.tile_kv * self.d_pad, self.tile_kv * self.dv_pad
        k_chunks = -(-k_elements // (vec * threads))
        v_keys = keys_of_v_block(self.tile_kv, self.dv_pad, self.dv_run, threads)
        v_block = v_keys * self.dv_run if packed else vec
        v_rows = -(-v_elements // (v_block * threads)) * (v_keys if packed else 1)
        v_row = self.dv_run if packed else vec
        offsets = k_chunks * (vec // gcd(self.d, vec)) + v_rows * -(-v_row // gcd(self.dv, vec))
        return q, s, s // (4 if packed else 2), o, 4 * k_chunks, v_rows * -(-v_row * elem_bytes // 4), offsets

    @property
    def pairs(self) -> int:
        """Copies that packed f32 arithmetic makes of scalar accumulators whose factors come from 16-bit values."""
        return 2 * self.tile_q * self.columns if self.columns > 1 and self.elem_bytes < 4 else 0

    @property
    def fragments(self) -> int:
        """LDS reads under way: all fragments of one product, but no more than the compiler keeps."""
        wider = max(self.d_pad, self.dv_pad)
        return min(FRAGMENTS[self.elem_bytes], self.tile_kv * wider * self.elem_bytes // (4 * self.lanes))

    @property
    def is_calibrated(self) -> bool:
        """Whether binaries of this kind were measured: chained, rows of whole atoms, steps of full length."""
        full = self.tile_kv >= FULL_STEP or self.d > FULL_STEP_TO_D
        whole = self.d == self.d_pad == self.dv
        options = self.bounds + self.logits + self.pages + self.split
        return self.chained and full and whole and self.tile_q > 16 and not options

    def need(self, unified: bool) -> tuple[int, int, int]:
        """(ArchVGPRs, AccVGPRs, all registers) that must be there.

        What vector instructions touch must be ArchVGPRs; on a unified file that includes the accumulators, on a split
        one the products leave S and O in AccVGPRs. S is there twice: the next scores grow while these become
        exponentials. Only one tile of K or V is under way at a time.
        """
        q, s, p, o, k, v, offsets = self.counts()
        touched = 2 * s + p + max(k, v) + offsets + 5 * self.query_tiles + ADDRESSES + FRAGMENTS_LEAST
        touched += self.bounds + self.logits + self.pages + self.split
        matrix = 0 if self.columns else 2 * s + o
        if unified:
            # LDS reads may go to AccVGPRs, which MFMAs take as they are: counted on where no smaller tile is left.
            moved = FRAGMENTS_LEAST if max(self.d_pad, self.dv_pad) > LEAST_TILES_D else 0
            return touched + o - moved, 0, touched + o + q
        in_arch = touched + q + self.copies + (o if self.columns else 0)
        return in_arch, matrix, in_arch + matrix

    @property
    def copies(self) -> int:
        """ArchVGPRs for scores on their way from AccVGPRs to a 16-bit chunk, on a split file."""
        packed = self.elem_bytes < 4 and not self.columns
        return self.tile_q * self.tile_kv // (2 * self.lanes) if packed else 0

    def items(self) -> tuple[RegisterItem, ...]:
        """The live set with reasons; `file` says what a split register file forces."""
        q, s, p, o, k, v, offsets = self.counts()
        matrix = "arch" if self.columns else "acc"
        items = (
            RegisterItem("Q", q, "any", "query fragments, operand B of the first product, kept for the loop"),
            RegisterItem("S", s, "arch", "scores of a step, on their way to exponentials"),
            RegisterItem("next S", s, "arch", "scores of the next step, which the first product sums meanwhile"),
            RegisterItem("P", p, "arch", "exponentials that wait for the second product"),
            RegisterItem("O", o, matrix, "output accumulators, rescaled when the maximum grows"),
            RegisterItem(
                "m, l", 5 * self.query_tiles, "arch", "maxima of the rows, of the step, and the sums of both halves"
            ),
            RegisterItem(
                "K, V under way", max(k, v), "arch", "next K under the first product, next V under the second"
            ),
            RegisterItem("bounds", self.bounds, "arch", "ends of what each query sees"),
            RegisterItem("logits", self.logits, "arch", "bias of a step, distances, constants of the soft cap"),
            RegisterItem("pages", self.pages, "arch", "numbers of pages, a row each"),
            RegisterItem("split", self.split, "arch", "where what a split of the keys comes to is stored"),
            RegisterItem("offsets", offsets, "arch", "byte offset of every global access of a step"),
            RegisterItem("addresses", ADDRESSES, "arch", "LDS addresses, loop control, temporaries of the softmax"),
            RegisterItem("pairs", self.pairs, "arch", "copies of scalar accumulators for packed arithmetic"),
            RegisterItem("fragments", self.fragments, "arch", "LDS reads under way, as far as the budget allows"),
        )
        return tuple(item for item in items if item.registers)

    @property
    def live(self) -> int:
        """Registers of all items."""
        return sum(item.registers for item in self.items())


def predicted_registers(hw: HardwareDescriptor, shape: StepShape, per_simd: int) -> tuple[int, int, int, int]:
    """(registers as the metadata counts them, arch, acc, budget) that the binary must stay within.

    The live set with the LDS fragments under way, but never above the budget: the compiler keeps to the registers of
    the aimed-at occupancy and fills what is left of them with reads under way.
    """
    budget = register_budget(hw, per_simd)
    _, s, _, o, *_ = shape.counts()
    live = shape.live + allowance(hw, shape, shape.live)
    if not hw.vgpr_unified and not shape.columns:
        live += shape.copies - 2 * s
    limit = budget.total if hw.vgpr_unified else budget.arch
    registers = min(live, limit)
    arch = min(registers, budget.arch)
    return registers, arch, registers - arch if hw.vgpr_unified else min(budget.acc, 2 * s + o), limit


def allowance(hw: HardwareDescriptor, shape: StepShape, live: int) -> int:
    """Registers on top of the counted ones for kernels unlike those that the counts were held against."""
    if shape.is_calibrated:
        return 0
    if shape.columns:
        return max(live, hw.vgpr_arch - live)
    wide = max(shape.d_pad, shape.dv_pad) > LEAST_TILES_D
    return live // (ALLOWANCE - wide) * (1 if shape.chained else 2)


def predicted_resources(hw: HardwareDescriptor, shape: StepShape, lds_bytes: int, per_simd: int) -> PredictedResources:
    """The promise for the binary, with the live set that it consists of."""
    registers, arch, acc, limit = predicted_registers(hw, shape, per_simd)
    items = shape.items()
    extra = allowance(hw, shape, shape.live)
    if extra:
        items += (
            RegisterItem("allowance", extra, "any", "for kernels unlike those that the counts were held against"),
        )
    return PredictedResources(
        items=items,
        registers=registers,
        arch_registers=arch,
        acc_registers=acc,
        register_budget=limit,
        lds_bytes=lds_bytes,
        lds_limit_bytes=hw.lds_max_per_workgroup_bytes,
        waves_per_simd=per_simd,
    )
