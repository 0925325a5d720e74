"""Instructions that change how the following ones are read: float modes, and registers indexed by a scalar.

Compilers write them around a few instructions of straight-line code, so they are followed while decoding. A label in
between would make the mode depend on the way taken: that is refused.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from .errors import UnknownInstruction
from .op import Op, make_op
from .operands import Context, Operand
from .parse import Instruction
from .state import Group

__all__ = ["changed_mode", "indexed_move", "is_mode"]

_MODE = re.compile(r"hwreg\(HW_REG_MODE,\s*(\d+),\s*(\d+)\)")


def is_mode(ins: Instruction) -> bool:
    """Whether `changed_mode` handles the instruction."""
    return ins.mnemonic in ("s_setreg_imm32_b32", "s_set_gpr_idx_on", "s_set_gpr_idx_off")


def changed_mode(ins: Instruction, ctx: Context) -> Context:
    """The context after the instruction."""
    name = ins.mnemonic
    if name == "s_set_gpr_idx_off":
        return replace(ctx, index=None, index_flags="")
    if name == "s_set_gpr_idx_on":
        found = re.fullmatch(r"gpr_idx\(([A-Z0-9, ]+)\)", ins.operands[1])
        if found is None or set(found.group(1).replace(" ", "").split(",")) - {"SRC0", "DST"}:
            raise UnknownInstruction(name, ins.line, ctx.target, ins.operands[1])
        return replace(ctx, index=ctx.operand(ins.operands[0], ins), index_flags=found.group(1))
    found = _MODE.fullmatch(ins.operands[0])
    if found is None:
        raise UnknownInstruction(name, ins.line, ctx.target, ins.operands[0])
    first, size, value = int(found.group(1)), int(found.group(2)), int(ins.operands[1], 0)
    for bit in range(0, 8, 2):  # rounding of f32, of f16 and f64, denormals of f32, of f16 and f64
        if not first <= bit < first + size:
            continue
        setting = (value >> (bit - first)) & 3
        if (bit < 4 and setting != 0) or (bit >= 4 and setting not in (0, 3)):
            raise UnknownInstruction(name, ins.line, ctx.target, f"float mode {setting} at bit {bit}")
        if bit == 4:
            ctx = replace(ctx, denormals32=setting == 3)
        elif bit == 6:
            ctx = replace(ctx, denormals16=setting == 3)
    return ctx


def indexed_move(ins: Instruction, ctx: Context) -> Op:
    """v_mov_b32 whose source or destination register number has the index added. Reads are not checked."""
    index = ctx.index
    if index is None or not ins.mnemonic.startswith("v_mov_b32") or ins.modifiers:
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "under s_set_gpr_idx_on")
    target, source = (ctx.operand(t, ins) for t in ins.operands)
    to_index, from_index = "DST" in ctx.index_flags, "SRC0" in ctx.index_flags
    scalar = index.row
    highest = ctx.acc_base - 1

    def run(g: Group) -> None:
        shift = g.S[scalar].astype(np.int64) if index.kind == "s" else np.full(g.n, int(index.value))
        rows = source.row + (shift if from_index else 0 * shift), target.row + (shift if to_index else 0 * shift)
        if max(int(r.max()) for r in rows) > highest:
            raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"register index beyond v{highest}")
        waves = np.arange(g.n)
        if source.kind == "v":
            value = g.V[rows[0], waves]
            known = g.vector_known[rows[0], waves]
        else:
            value = g.S[source.row][:, None] if source.kind == "s" else np.uint32(int(source.value) & 0xFFFFFFFF)
            known = np.full(g.n, ~np.uint64(0))
        g.V[rows[1], waves] = np.where(g.E, value, g.V[rows[1], waves])
        g.vector_known[rows[1], waves] |= g.EX & known
        g.unknown.update(int(r) for r in np.unique(rows[1]))
        g.refresh_hot()

    sources: list[Operand] = [o for o in (index, source) if o.kind == "s"]
    return make_op(ins, run, "indexed", sources, soft={})
