"""The registers of a group of waves that share a program counter, with their shadow state.

Every array holds all waves of the group: a vector register is a row of shape [waves, 64], a scalar register
a row of shape [waves]. AccVGPR n is the row `acc_base + n`. Groups are split where a scalar branch diverges and
merged where their program counters meet again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXEC", "FLAT_SCRATCH", "LANES", "M0", "SCALAR", "VCC", "Group", "pack_mask", "unpack_mask"]

Array = Any  # a numpy array; what its elements are is said where it matters

LANES = 64
#: Row numbers of the special scalar registers (their hardware encodings).
FLAT_SCRATCH, VCC, M0, EXEC = 102, 106, 124, 126
SCALARS = 128
#: Added to a scalar row in sets that hold vector and scalar rows alike.
SCALAR = 1 << 16

ALL_LANES = np.uint64(0xFFFFFFFFFFFFFFFF)


def unpack_mask(words: Array) -> NDArray[np.bool_]:
    """Lane masks: uint64 of shape [waves] to bool [waves, 64]."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 8)
    return np.unpackbits(raw, axis=1, bitorder="little").view(np.bool_)


def pack_mask(mask: Array) -> Array:
    """Bool [waves, 64] to uint64 [waves]."""
    return np.packbits(mask, axis=1, bitorder="little").view(np.uint64).reshape(len(mask))


#: Per-wave arrays whose wave axis is 1 and 0.
_AXIS1 = ("V", "S", "vector_known", "scalar_known", "vm_ticket", "ds_ticket", "sm_ticket")
_AXIS0 = (
    "scc", "wave", "workgroup", "wave_in_group",
    "vm_issued", "vm_done", "ds_issued", "ds_done", "sm_issued", "sm_done",
)  # fmt: skip


class Group:
    """Waves at one program counter. Attributes in capitals are register files and their typed views."""

    __slots__ = (
        *_AXIS1, *_AXIS0, "E", "EX", "F", "H", "N", "fragments", "SF", "SI", "full", "hot", "machine", "n", "pc",
        "pending_ds",
        "pending_sm", "pending_vm", "unknown",
    )  # fmt: skip

    machine: Any
    n: int
    pc: int
    full: bool
    hot: set[int]
    fragments: dict[int, Any]
    unknown: set[int]
    pending_vm: set[int]
    pending_ds: set[int]
    pending_sm: set[int]
    E: NDArray[np.bool_]
    EX: NDArray[np.uint64]
    F: NDArray[np.float32]
    N: NDArray[np.int32]
    H: NDArray[np.float16]
    SF: NDArray[np.float32]
    SI: NDArray[np.int32]
    V: NDArray[np.uint32]
    S: NDArray[np.uint32]
    vector_known: NDArray[np.uint64]
    scalar_known: NDArray[np.bool_]
    vm_ticket: NDArray[np.int32]
    ds_ticket: NDArray[np.int32]
    sm_ticket: NDArray[np.int32]
    scc: NDArray[np.bool_]
    wave: NDArray[np.int64]
    workgroup: NDArray[np.int64]
    wave_in_group: NDArray[np.int64]
    vm_issued: NDArray[np.int32]
    vm_done: NDArray[np.int32]
    ds_issued: NDArray[np.int32]
    ds_done: NDArray[np.int32]
    sm_issued: NDArray[np.int32]
    sm_done: NDArray[np.int32]

    @classmethod
    def fresh(cls, rows: int, workgroup: Array, wave_in_group: Array) -> Group:
        """Waves at the first instruction, nothing initialised, all lanes on."""
        group = cls()
        group.machine = None
        n = len(workgroup)
        group.n, group.pc = n, 0
        group.V = np.zeros((rows, n, LANES), np.uint32)
        group.V[...] = 0x7FBADBAD  # a signalling NaN in every format wide enough to have one
        group.S = np.full((SCALARS, n), 0x7FBADBAD, np.uint32)
        group.vector_known = np.zeros((rows, n), np.uint64)
        group.scalar_known = np.zeros((SCALARS, n), np.bool_)
        group.vm_ticket = np.zeros((rows, n), np.int32)
        group.ds_ticket = np.zeros((rows, n), np.int32)
        group.sm_ticket = np.zeros((SCALARS, n), np.int32)
        group.scc = np.zeros(n, np.bool_)
        group.wave = np.arange(n)
        group.workgroup = np.asarray(workgroup)
        group.wave_in_group = np.asarray(wave_in_group)
        for name in ("vm", "ds", "sm"):
            setattr(group, f"{name}_issued", np.zeros(n, np.int32))
            setattr(group, f"{name}_done", np.zeros(n, np.int32))
        group.pending_vm, group.pending_ds, group.pending_sm = set(), set(), set()
        group.unknown = set(range(rows)) | {SCALAR + s for s in range(SCALARS)}
        group.hot = set(group.unknown)
        group._views()
        return group

    def _views(self) -> None:
        self.fragments = {}
        self.F = self.V.view(np.float32)
        self.N = self.V.view(np.int32)
        self.H = self.V.view(np.float16)
        self.SF = self.S.view(np.float32)
        self.SI = self.S.view(np.int32)
        self.refresh_exec()

    def refresh_exec(self) -> None:
        """Recompute what is derived from the EXEC registers; to be called after they change."""
        self.EX = self.scalar64(EXEC)
        self.E = unpack_mask(self.EX)
        self.full = bool((self.EX == ALL_LANES).all())

    def scalar64(self, row: int) -> Array:
        """Two scalar registers as uint64 [waves]."""
        return self.S[row].astype(np.uint64) | (self.S[row + 1].astype(np.uint64) << np.uint64(32))

    def set_scalar64(self, row: int, value: Array) -> None:
        self.S[row] = value & np.uint64(0xFFFFFFFF)
        self.S[row + 1] = value >> np.uint64(32)
        if row == EXEC:
            self.refresh_exec()

    def refresh_hot(self) -> None:
        """The rows whose reads need a closer look: not wholly initialised, or with a load on its way."""
        self.hot = self.unknown | self.pending_vm | self.pending_ds | {SCALAR + s for s in self.pending_sm}

    def define(self, rows: frozenset[int], whole: bool = False) -> None:
        """Mark rows as written in the active lanes (`whole`: in all lanes)."""
        settled = []
        for row in rows & self.unknown:
            if row >= SCALAR:
                self.scalar_known[row - SCALAR] = True
                settled.append(row)
            else:
                self.vector_known[row] |= ALL_LANES if whole else self.EX
                if (self.vector_known[row] == ALL_LANES).all():
                    settled.append(row)
        if settled:
            self.unknown.difference_update(settled)
            self.refresh_hot()

    def undefine(self, rows: dict[int, Array]) -> None:
        """Mark rows as unwritten in the given lanes (uint64 masks), as far as these are active."""
        for row, lanes in rows.items():
            if row >= SCALAR:
                self.scalar_known[row - SCALAR] &= lanes == 0
            else:
                self.vector_known[row] &= ~(lanes & self.EX)
        self.unknown.update(rows)
        self.refresh_hot()

    def take(self, mask: NDArray[np.bool_]) -> Group:
        """The waves where `mask` holds, as a group of its own."""
        return self._select(np.flatnonzero(mask))

    def _select(self, index: Array) -> Group:
        part = Group()
        where: Any = index
        if len(index) and index[-1] - index[0] + 1 == len(index):
            where = slice(int(index[0]), int(index[-1]) + 1)
        part.n, part.pc, part.machine = len(index), self.pc, self.machine
        for name in _AXIS1:
            setattr(part, name, getattr(self, name)[:, where])
        for name in _AXIS0:
            setattr(part, name, getattr(self, name)[where])
        part.pending_vm, part.pending_ds = set(self.pending_vm), set(self.pending_ds)
        part.pending_sm, part.unknown = set(self.pending_sm), set(self.unknown)
        part.refresh_hot()
        part._views()
        return part

    @staticmethod
    def merge(groups: list[Group]) -> Group:
        """One group of the waves of several, which must stand at one program counter."""
        whole = Group()
        whole.n, whole.pc = sum(g.n for g in groups), groups[0].pc
        whole.machine = groups[0].machine
        order = np.argsort(np.concatenate([g.wave for g in groups]), kind="stable")
        ordered = bool((order[1:] > order[:-1]).all())
        for name in _AXIS1:
            joined = np.concatenate([getattr(g, name) for g in groups], axis=1)
            setattr(whole, name, joined if ordered else joined[:, order])
        for name in _AXIS0:
            joined = np.concatenate([getattr(g, name) for g in groups])
            setattr(whole, name, joined if ordered else joined[order])
        whole.pending_vm = set().union(*(g.pending_vm for g in groups))
        whole.pending_ds = set().union(*(g.pending_ds for g in groups))
        whole.pending_sm = set().union(*(g.pending_sm for g in groups))
        whole.unknown = set().union(*(g.unknown for g in groups))
        whole.refresh_hot()
        whole._views()
        return whole
