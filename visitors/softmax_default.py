"""The default derivation of softmax: the order makes it well-posed.

(1) Lanes of a row: as few as keep every lane's accesses few enough to be under way at once. (2) Registers: a row that
its lanes hold is read once, a longer one twice. (3) CUs: rows of a workgroup while every CU has one; workgroups of a
row where CUs would idle and the row is long enough to pay for a second kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, Infeasible, near_names
from closedform.hw.occupancy import waves_per_simd, workgroups_per_cu
from closedform.operators.softmax import KNOBS, LANES_MAX, WAVE, Softmax, SoftmaxTiles

from .derivation import Derivation, GridVerdict
from .formula import FormulaValue
from .gemm_shape import GRID_X
from .softmax_formulas import SOFTMAX
from .softmax_registers import LiveSet, budget_of, lds_bytes, resources

__all__ = ["derive_softmax"]

#: Accesses of a lane that are under way at once where CUs have several workgroups, and where they have one.
UNDER_WAY, UNDER_WAY_ALONE = 4, 1
#: Work-items of a workgroup of short rows.
THREADS = 256
#: Clocks from the end of a kernel to the first work of the next one: 2 us at 2.1 GHz, as fitted for GEMMs.
LAUNCH_CLOCKS = 4200


def derive_softmax(op: Softmax, hw: HardwareDescriptor, **fixed: Any) -> Derivation:
    """Tiles of softmax, or the constraint that forbids those that are `fixed`.

    Raises BadInput for an unknown knob, a value of the wrong kind, or values that contradict one another.
    """
    rows = {row.name: row for row in KNOBS}
    for name, value in fixed.items():
        if name not in rows:
            raise BadInput(f"unknown override {name!r}: {near_names(name, rows)}")
        rows[name].check(value)
    return _Derivation(op, hw, fixed).result()


@dataclass(frozen=True, slots=True)
class _Derivation:
    op: Softmax
    hw: HardwareDescriptor
    fixed: dict[str, Any]

    def result(self) -> Derivation:
        op, hw, fixed = self.op, self.hw, self.fixed
        accesses = SOFTMAX.accesses(row_bytes=op.cols * op.elem_bytes)
        alone = op.rows <= hw.num_cus
        lanes = SOFTMAX.lanes(
            accesses=accesses.value,
            under_way=UNDER_WAY_ALONE if alone else UNDER_WAY,
            least=op.vec,
            most=min(LANES_MAX, hw.workgroup_max),
        )
        splits, gain = self._splits()
        split = fixed.get("splits", splits.value if gain.value > 0 else 1)
        lane_count = fixed.get("lanes", THREADS if split > 1 else lanes.value)
        chunks = SOFTMAX.chunks(row_bytes=op.cols * op.elem_bytes, lanes=lane_count)
        most = self._most_chunks(1, lane_count)
        once = split == 1 and chunks.value <= most.value and fixed.get("chunks", chunks.value) >= chunks.value
        passes = fixed.get("passes", 1 if once else 2)
        step = chunks.value if passes == 1 else min(UNDER_WAY, self._most_chunks(2, lane_count).value)
        rows = SOFTMAX.block_rows(rows=op.rows, num_cus=hw.num_cus, lanes=lane_count, threads=THREADS, wave=WAVE)
        row_count = fixed.get("block_rows", 1 if split > 1 else rows.value)
        chunk_count = fixed.get("chunks", step)
        live = LiveSet.of(op, hw, passes)
        registers = SOFTMAX.registers(chunks=chunk_count, each=live.each, fixed=live.fixed, least=live.least)
        limit = budget_of(hw, max(1, lane_count * row_count // WAVE))
        if registers.value > limit:
            return self._refused(registers, limit)
        simd_waves = waves_per_simd(hw, registers.value)
        tiles = SoftmaxTiles(op.vec, op.ends, lane_count, chunk_count, row_count, passes, split, simd_waves)
        op.tree(tiles)
        grid, counted = self._grid(tiles, registers.value)
        binding = "cus" if split > 1 else "registers" if passes == 2 else "row"
        steps = (
            accesses,
            lanes,
            chunks.binding() if binding == "row" else chunks,
            most.binding() if binding == "registers" else most,
            rows,
            splits.binding() if binding == "cus" else splits,
            gain,
            registers,
            *counted,
        )
        promised = resources(hw, live, tiles, registers.value)
        limits = {"cols_of_one_pass": LANES_MAX * op.vec * self._most_chunks(1, LANES_MAX).value}
        note = self._note(tiles)
        return Derivation(op, hw, "default", tiles, binding, steps, promised, grid, None, (note,), limits)

    def _most_chunks(self, passes: int, lanes: int) -> FormulaValue:
        """Accesses that a lane can hold where so many share a row."""
        live = LiveSet.of(self.op, self.hw, passes)
        budget = budget_of(self.hw, max(1, lanes // WAVE))
        return SOFTMAX.chunks_max(budget=budget, fixed=live.fixed, each=live.each)

    def _splits(self) -> tuple[FormulaValue, FormulaValue]:
        op, hw = self.op, self.hw
        row_bytes = op.cols * op.elem_bytes
        splits = SOFTMAX.splits(
            num_cus=hw.num_cus, rows=op.rows, row_bytes=row_bytes, step_bytes=THREADS * UNDER_WAY * 16
        )
        passes = 1 if op.cols <= LANES_MAX * op.vec * self._most_chunks(1, LANES_MAX).value else 2
        gain = SOFTMAX.gain(
            row_bytes=row_bytes,
            passes=passes,
            splits=splits.value,
            launch_bytes=LAUNCH_CLOCKS * hw.l1_bytes_per_clk,
        )
        return splits, gain

    def _grid(self, tiles: SoftmaxTiles, registers: int) -> tuple[GridVerdict, tuple[FormulaValue, ...]]:
        op, hw = self.op, self.hw
        per_cu = max(1, workgroups_per_cu(hw, tiles.waves, registers, 0, lds_bytes(tiles)))
        blocks = SOFTMAX.blocks(rows=op.rows, block_rows=tiles.block_rows, splits=tiles.splits)
        rounds = SOFTMAX.rounds(blocks=blocks.value, num_cus=hw.num_cus, workgroups_per_cu=per_cu)
        count, slots = blocks.value, hw.num_cus * per_cu
        share = count / (rounds.value * slots)
        fills = count >= hw.num_cus
        verdict = (
            f"{count} workgroups on {slots} slots: {rounds.value} round(s), {share:.0%} of the slots used"
            if fills
            else f"underfilled: {count} workgroups for {hw.num_cus} CUs, {1 - count / hw.num_cus:.0%} of the CUs idle"
        )
        grid = (min(count, GRID_X), -(-count // GRID_X), 1)
        found = GridVerdict(grid, count, hw.num_cus, per_cu, count / hw.num_cus, rounds.value, share, fills, verdict)
        return found, (blocks, rounds)

    def _note(self, tiles: SoftmaxTiles) -> str:
        if tiles.passes == 1:
            return "the row stays in registers: every byte is read once and written once"
        if tiles.splits == 1:
            return "the row does not fit the registers: it is read twice"
        return f"{tiles.splits} workgroups share a row: it is read twice, by two kernels"

    def _refused(self, registers: FormulaValue, limit: int) -> Derivation:
        way_out = "fewer chunks, or two passes over the row"
        reason = Infeasible("registers", registers.value, limit, "32 bits", "a lane of softmax", way_out)
        return Derivation(self.op, self.hw, "default", None, "registers", (registers,), None, None, reason)
