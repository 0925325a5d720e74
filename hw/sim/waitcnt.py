"""s_waitcnt and the counters: which loads have arrived.

Each load takes a ticket: the number of its counter after it. A vector memory operation has arrived when the count of
operations known to be done reaches its ticket; these return in order, loads and stores alike. LDS operations return in
order among themselves. Scalar loads return in any order, so only lgkmcnt(0) says that one has arrived, and
a flat access needs both counters. The counters have 6 and 4 bits: at the largest number, the next operation is issued
when the oldest one is done, and compilers leave out waits that this makes needless.
"""

from __future__ import annotations

import re

import numpy as np

from .errors import UnknownInstruction
from .op import Op, make_op
from .operands import Context
from .parse import Instruction
from .state import Group

__all__ = ["LOCAL_MAX", "VECTOR_MAX", "decode_wait", "settle"]

#: Operations under way that vmcnt and lgkmcnt can count.
VECTOR_MAX, LOCAL_MAX = 63, 15

_FIELD = re.compile(r"(vmcnt|lgkmcnt|expcnt)(?:_sat)?\((\w+)\)")


def decode_wait(ins: Instruction, ctx: Context) -> Op | None:
    """The Op of s_waitcnt, written with names or as a bit field; None for another instruction."""
    if ins.mnemonic != "s_waitcnt":
        return None
    limits: dict[str, int] = {}
    for word in ins.operands:
        found = _FIELD.fullmatch(word)
        if found is not None:
            limits[found.group(1)] = int(found.group(2), 0)
        elif re.fullmatch(r"0x[0-9a-fA-F]+|\d+", word):
            field = int(word, 0)
            limits["vmcnt"] = (field & 0xF) | ((field >> 14) & 3) << 4
            limits["lgkmcnt"] = (field >> 8) & 0xF
        else:
            raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"operand {word}")
    vector = limits.get("vmcnt", VECTOR_MAX)
    local = limits.get("lgkmcnt", LOCAL_MAX)

    def run(g: Group) -> None:
        if vector < VECTOR_MAX:
            np.maximum(g.vm_done, g.vm_issued - vector, out=g.vm_done)
        if local < LOCAL_MAX:
            np.maximum(g.ds_done, g.ds_issued - local, out=g.ds_done)
            if local == 0:
                g.sm_done[...] = g.sm_issued
        settle(g)

    return make_op(ins, run, "wait", flow="wait")


def settle(g: Group) -> None:
    """Forget the pending rows that have arrived in every wave."""
    before = len(g.pending_vm) + len(g.pending_ds) + len(g.pending_sm)
    if not before:
        return
    g.pending_vm = {r for r in g.pending_vm if (g.vm_ticket[r] > g.vm_done).any()}
    g.pending_ds = {r for r in g.pending_ds if (g.ds_ticket[r] > g.ds_done).any()}
    g.pending_sm = {r for r in g.pending_sm if (g.sm_ticket[r] > g.sm_done).any()}
    if len(g.pending_vm) + len(g.pending_ds) + len(g.pending_sm) != before:
        g.refresh_hot()
