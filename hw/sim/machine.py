"""The machine: resident workgroups in lockstep, the scheduler of their groups of waves, barriers, register checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from .counts import Counter
from .decode import Code
from .errors import SimulationError
from .lds import Lds
from .memory import Memory
from .op import Op
from .parse import Instruction
from .report import Reporter
from .scratch import Scratch
from .state import SCALAR, Group, unpack_mask

__all__ = ["Machine"]

#: Branches and barriers of one batch of workgroups after which it counts as endless.
LIMIT_TURNS = 20_000_000

Array = Any  # a numpy array; what its elements are is said where it matters


class Machine:
    """Runs one batch of workgroups to the end.

    All waves at one program counter run together. Of several groups the one with the smallest program counter
    runs, so that a branch's two sides meet again behind it.
    """

    def __init__(
        self,
        code: Code,
        memory: Memory,
        reporter: Reporter,
        counter: Counter,
        sanitize: bool,
        start: Group,
        lds_bytes: int,
    ) -> None:
        self.code = code
        self.memory = memory
        self.reporter = reporter
        self.counter = counter
        self.sanitize = sanitize
        self.lds = Lds(lds_bytes, start.workgroup, start.wave_in_group, sanitize)
        self.scratch = Scratch(start.n, code.kernel.scratch_bytes)
        self.alive = np.bincount(start.workgroup)
        self.arrived = np.zeros_like(self.alive)
        self.parked: list[Group] = []
        self.runnable: list[Group] = [start]
        self.executed = counter.executed
        self.turns = 0
        start.machine = self

    # --- scheduling -----------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Run until every wave has ended or waits in vain."""
        while self.runnable:
            first = min(g.pc for g in self.runnable)
            same = [g for g in self.runnable if g.pc == first]
            self.runnable = [g for g in self.runnable if g.pc != first]
            group = same[0] if len(same) == 1 else Group.merge(same)
            stop = min((g.pc for g in self.runnable), default=-1)
            self._straight(group, stop)
        if self.parked:
            for g in self.parked:
                op = self.code.ops[g.pc]
                self.reporter.add(
                    "deadlock", op.ins, g, np.ones(g.n, np.bool_), "the other waves never reach a barrier"
                )

    def _straight(self, g: Group, stop: int) -> None:
        """Run a group until it ends, parks, splits, or reaches the program counter of another group."""
        ops, executed, sanitize = self.code.ops, self.executed, self.sanitize
        pc, last = g.pc, len(ops)
        while pc != stop:
            if pc >= last:
                op = ops[-1]
                raise SimulationError(f"control ran past line {op.ins.line}, the end of {self.code.kernel.name}")
            op = ops[pc]
            executed[pc] += g.n
            suspect = sanitize and not op.regs.isdisjoint(g.hot)
            if suspect:
                self._check(op, g)
            if not op.flow:
                taint = self._undefined(op, g) if suspect and op.soft else None
                op.run(g)
                if suspect and not op.writes.isdisjoint(g.unknown):
                    g.define(op.writes, op.whole)
                if taint:
                    g.undefine(taint)
                pc += 1
                continue
            if op.flow == "wait":
                op.run(g)
                self.lds.waited(g)
                pc += 1
                continue
            g.pc = pc
            g.fragments.clear()
            self.turns += 1
            if self.turns > LIMIT_TURNS:
                where = f"line {op.ins.line} of {self.code.kernel.name}"
                raise SimulationError(f"no end after {LIMIT_TURNS} branches and barriers of a batch, now at {where}")
            following = self._flow(op, g)
            if following < 0:
                return
            pc = following
            if stop >= 0 and pc > stop:
                break
        g.pc = pc
        self.runnable.append(g)

    def _flow(self, op: Op, g: Group) -> int:
        """The next program counter of the whole group, or -1 if it was put away."""
        if op.flow == "branch":
            return self.code.jump[g.pc]
        if op.flow == "cbranch":
            return self._branch(op, g)
        if op.flow == "end":
            self._end(g)
            return -1
        return self._barrier(g)

    def _branch(self, op: Op, g: Group) -> int:
        taken: Any = op.run(g)
        target = self.code.jump[g.pc]
        count = int(np.count_nonzero(taken))
        if count == g.n:
            return target
        if count == 0:
            return g.pc + 1
        jumping, falling = g.take(taken), g.take(~taken)
        jumping.pc, falling.pc = target, g.pc + 1
        self.runnable += [jumping, falling]
        return -1

    # --- barriers and ends ----------------------------------------------------------------------------------------
    def _barrier(self, g: Group) -> int:
        counts = np.bincount(g.workgroup, minlength=len(self.alive))
        present = np.flatnonzero(counts)
        if not self.parked and (counts[present] == self.alive[present]).all():
            self.lds.barrier(present)
            return g.pc + 1
        self.parked.append(g)
        self.arrived += counts
        self._release()
        return -1

    def _release(self) -> None:
        """Let go the workgroups of which every living wave waits."""
        complete = (self.arrived == self.alive) & (self.alive > 0)
        if not complete.any():
            return
        parked, self.parked = self.parked, []
        first_at: dict[int, int] = {}
        for g in parked:
            freed = complete[g.workgroup]
            if not freed.any():
                self.parked.append(g)
                continue
            part = g if freed.all() else g.take(freed)
            if not freed.all():
                self.parked.append(g.take(~freed))
            other = np.array([first_at.setdefault(int(w), part.pc) != part.pc for w in part.workgroup])
            if other.any():
                self.reporter.add(
                    "divergent-barrier",
                    self.code.ops[part.pc].ins,
                    part,
                    other,
                    "other waves wait at another barrier",
                )
            part.pc += 1
            self.runnable.append(part)
        self.arrived[complete] = 0
        self.lds.barrier(np.flatnonzero(complete))

    def _end(self, g: Group) -> None:
        self.alive -= np.bincount(g.workgroup, minlength=len(self.alive))
        if self.parked:
            early = (self.arrived > 0)[g.workgroup]
            ins = self.code.ops[g.pc].ins
            self.reporter.add("divergent-barrier", ins, g, early, "ended while other waves wait at a barrier")
            self._release()

    # --- register checks ------------------------------------------------------------------------------------------
    def _check(self, op: Op, g: Group) -> None:
        """Report reads of registers that are unwritten or whose load has not arrived, and writes under a load."""
        for row in op.reads & g.hot:
            self._check_arrival(op.ins, g, row, "read")
            if row not in g.unknown or row in op.soft:
                continue
            if row >= SCALAR:
                bad = ~g.scalar_known[row - SCALAR]
                name = self.register_name(row)
                self.reporter.add("uninitialised-register", op.ins, g, bad, f"{name} holds nothing defined")
                continue
            lanes = ~g.vector_known[row] & (np.uint64(0xFFFFFFFFFFFFFFFF) if op.whole else g.EX)
            if lanes.any():
                self.reporter.add(
                    "uninitialised-register",
                    op.ins,
                    g,
                    unpack_mask(lanes),
                    f"{self.register_name(row)} holds nothing defined",
                )
        if op.kind not in ("vmem", "lds", "smem", "scratch"):
            for row in op.writes & g.hot:
                self._check_arrival(op.ins, g, row, "overwritten")

    @staticmethod
    def _undefined(op: Op, g: Group) -> dict[int, Array]:
        """Written rows that come of unwritten soft sources, and in which lanes."""
        found: dict[int, Array] = {}
        for source, targets in op.soft.items():
            if source not in g.unknown:
                continue
            if source >= SCALAR:
                lanes = np.where(g.scalar_known[source - SCALAR], np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF))
            else:
                lanes = ~g.vector_known[source]
            for row in targets:
                found[row] = found.get(row, np.uint64(0)) | lanes
        return found

    def _check_arrival(self, ins: Instruction, g: Group, row: int, what: str) -> None:
        late = np.zeros(g.n, np.bool_)
        if row >= SCALAR:
            if row - SCALAR in g.pending_sm:
                late = g.sm_ticket[row - SCALAR] > g.sm_done
        else:
            if row in g.pending_vm:
                late = g.vm_ticket[row] > g.vm_done
            if row in g.pending_ds:
                late = late | (g.ds_ticket[row] > g.ds_done)
        if late.any():
            name = self.register_name(row)
            self.reporter.add("missing-wait", ins, g, late, f"{name} is {what} before its load was waited for")

    def lane_read(self, g: Group, ins: Instruction, row: int, lanes: Array) -> None:
        """Check a read of one lane a wave of a vector register."""
        if not self.sanitize or row not in g.hot:
            return
        self._check_arrival(ins, g, row, "read")
        bad = (g.vector_known[row] >> lanes.astype(np.uint64)) & np.uint64(1) == 0
        if bad.any():
            self.reporter.add(
                "uninitialised-register", ins, g, bad, f"{self.register_name(row)} holds nothing defined there"
            )

    def register_name(self, row: int) -> str:
        """s12, v3 or a7."""
        if row >= SCALAR:
            special = {106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi"}
            return special.get(row - SCALAR, f"s{row - SCALAR}")
        return f"v{row}" if row < self.code.acc_base else f"a{row - self.code.acc_base}"

    # --- hooks of the memory instructions ---------------------------------------------------------------------------
    def check_alignment(self, g: Group, ins: Instruction, address: Array, mask: Array, needed: int) -> None:
        if self.sanitize and needed > 1:
            bad = (address & (needed - 1)) != 0
            if bad.any():
                self.reporter.add("misaligned", ins, g, bad & mask, f"not a multiple of {needed}", address)

    def count_global(self, g: Group, ins: Instruction, address: Array, mask: Array, size: int, store: bool) -> None:
        self.counter.global_access(ins.index, address, mask, size, store)

    def count_lds(self, g: Group, ins: Instruction, address: Array, mask: Array, size: int, store: bool) -> None:
        self.counter.lds_access(ins.index, address, mask, size, store)
