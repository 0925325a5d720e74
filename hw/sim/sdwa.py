"""Sub-dword addressing: sources that are a byte or word of a register, results placed in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import UnknownInstruction
from .operands import TYPES, Context, Operand, Reader, reader
from .parse import Instruction
from .state import Group

__all__ = ["sdwa_reader", "sdwa_writer"]

_PARTS = {
    **{f"BYTE_{k}": (8 * k, 8) for k in range(4)},
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    "DWORD": (0, 32),
}


def sdwa_reader(operand: Operand, kind: str, select: str, ctx: Context, ins: Instruction) -> Reader:
    """Reader of the selected part: zero-extended, or sign-extended under sext(), then read as `kind`."""
    if select not in _PARTS:
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"src_sel {select}")
    shift, width = _PARTS[select]
    if select == "DWORD" and not operand.sext:
        return reader(operand, kind, ctx, ins)
    plain = Operand(operand.kind, operand.text, operand.row, operand.count, operand.value)
    raw = reader(plain, "u32", ctx, ins)
    size, dtype = TYPES[kind]
    signed = operand.sext
    lift = np.uint32(32 - width - shift), np.uint32(32 - width)

    def read(g: Group) -> Any:
        value = np.asarray(raw(g))
        if signed:
            part = ((value << lift[0]).view(np.int32) >> lift[1].astype(np.int32)).view(np.uint32)
        else:
            part = (value << lift[0]) >> lift[1]
        if size == 32:
            return part.view(dtype)
        return part.astype(np.dtype(f"u{size // 8}")).view(dtype)

    if operand.abs or operand.neg:

        def modified(g: Group) -> Any:
            value = np.abs(read(g)) if operand.abs else read(g)
            return -value if operand.neg else value

        return modified
    return read


def sdwa_writer(
    operand: Operand, kind: str, mods: dict[str, str], ctx: Context, ins: Instruction
) -> Callable[[Group, Any], None]:
    """Writer into the selected part; the rest is zero, the sign, or preserved, as dst_unused says."""
    shift, width = _PARTS[mods["dst_sel"]]
    unused = mods.get("dst_unused", "UNUSED_PRESERVE")
    if unused not in ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"):
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"dst_unused {unused}")
    mask, row = np.uint32((1 << width) - 1), operand.row
    size, dtype = TYPES[kind]

    def write(g: Group, value: Any) -> None:
        raw = np.broadcast_to(np.asarray(value, dtype), g.E.shape)
        bits = np.ascontiguousarray(raw).view(np.dtype(f"u{size // 8}")).astype(np.uint32) & mask
        result = bits << np.uint32(shift)
        if unused == "UNUSED_PRESERVE":
            result |= g.V[row] & ~(mask << np.uint32(shift))
        elif unused == "UNUSED_SEXT":
            sign = (bits >> np.uint32(width - 1)) == 1
            high = np.uint32((0xFFFFFFFF << (shift + width)) & 0xFFFFFFFF)
            result = np.where(sign, result | high, result)
        np.copyto(g.V[row], result, where=g.E)

    return write
