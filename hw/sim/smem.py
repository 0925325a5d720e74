"""Scalar memory loads. They return in any order: only lgkmcnt(0) says that one has arrived."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UnknownInstruction
from .op import Op, make_op
from .operands import Context, Operand
from .parse import Instruction
from .state import SCALAR, Group

__all__ = ["decode_scalar_memory"]

_NAME = re.compile(r"s_(buffer_)?load_dword(x2|x4|x8|x16)?$")


def decode_scalar_memory(ins: Instruction, ctx: Context) -> Op | None:
    """The Op of a scalar load, None if it is not one; scalar stores have no model."""
    found = _NAME.match(ins.mnemonic)
    if found is None:
        return None
    words = int((found.group(2) or "x1")[1:])
    operands = [ctx.operand(t, ins) for t in ins.operands]
    target, base, places = operands[0].row, operands[1].row, operands[2:]
    constant = int(ins.modifiers.get("offset", "0"), 0)
    if target + words > 124 or any(o.kind not in ("const", "s") for o in places):
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "operands of a scalar load")
    descriptor = found.group(1) is not None

    def offset(g: Group) -> Any:
        total: Any = np.int64(constant)
        for operand in places:
            total = total + (
                np.int64(int(operand.value)) if operand.kind == "const" else g.S[operand.row].astype(np.int64)
            )
        return total

    def run(g: Group) -> None:
        address = g.scalar64(base).astype(np.int64)
        mask = np.ones((g.n, 1), np.bool_)
        if descriptor:
            address &= (1 << 48) - 1
            inside = np.broadcast_to(offset(g), (g.n,)) + 4 * words <= g.S[base + 2].astype(np.int64)
            mask = inside[:, None]
        where: NDArray[np.int64] = ((address + offset(g)) & ~np.int64(3))[:, None]
        data = g.machine.memory.load(g, ins, where, mask, 4 * words)
        values = np.ascontiguousarray(data).view(np.uint32)[:, 0, :]
        for k in range(words):
            g.S[target + k] = values[:, k]
        g.sm_issued += 1
        rows = range(target, target + words)
        for row in rows:
            g.sm_ticket[row] = g.sm_issued
        g.pending_sm.update(rows)
        g.hot.update(SCALAR + row for row in rows)

    size = 4 if descriptor else 2
    sources = [Operand("s", "", base, size), *places]
    return make_op(ins, run, "smem", sources, [Operand("s", "", target, words)])
