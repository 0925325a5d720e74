"""Scalar instructions: arithmetic with SCC, bit fields, compares, moves, EXEC masks, branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import UnknownInstruction
from .op import Op, copies, make_op
from .operands import Context, scalar_reader, scalar_writer
from .parse import Instruction
from .salu_table import COMPARES, SAVEEXEC, SOP1, SOP2
from .state import EXEC, SCALAR, VCC, Group

__all__ = ["decode_scalar"]

Array = Any  # a numpy array; what its elements are is said where it matters
U32, U64 = np.uint32, np.uint64

BRANCHES: dict[str, Callable[[Group], Array]] = {
    "s_cbranch_scc0": lambda g: ~g.scc,
    "s_cbranch_scc1": lambda g: g.scc,
    "s_cbranch_vccz": lambda g: g.scalar64(VCC) == 0,
    "s_cbranch_vccnz": lambda g: g.scalar64(VCC) != 0,
    "s_cbranch_execz": lambda g: g.EX == 0,
    "s_cbranch_execnz": lambda g: g.EX != 0,
}
_VCC_ROWS = frozenset({SCALAR + VCC, SCALAR + VCC + 1})

#: Scalar instructions that change nothing that the simulator models (hints, caches, priorities, traps off).
NO_EFFECT = frozenset(
    [
        "s_nop",
        "s_setprio",
        "s_sleep",
        "s_inst_prefetch",
        "s_icache_inv",
        "s_dcache_inv",
        "s_dcache_wb",
        "s_dcache_inv_vol",
        "s_dcache_wb_vol",
        "s_ttracedata",
        "s_incperflevel",
        "s_decperflevel",
        "s_sethalt",
        "s_code_end",
        "buffer_wbl2",
        "buffer_inv",
        "buffer_wbinvl1",
        "buffer_wbinvl1_vol",
        "buffer_gl0_inv",
        "buffer_gl1_inv",
        "s_wakeup",
    ]
)


def decode_scalar(ins: Instruction, ctx: Context) -> Op | None:
    """The Op of a scalar ALU or control instruction, None if it is not one."""
    name = ins.mnemonic
    if name in NO_EFFECT:
        return make_op(ins, _nothing, "other")
    if name in BRANCHES or name == "s_branch":
        reads = _VCC_ROWS if "vcc" in name else frozenset()
        run = BRANCHES.get(name, _nothing)
        flow = "branch" if name == "s_branch" else "cbranch"
        return make_op(ins, run, "branch", flow=flow, target=ins.operands[0], extra_reads=reads)
    if name == "s_endpgm":
        return make_op(ins, _nothing, "branch", flow="end")
    if name == "s_barrier":
        return make_op(ins, _nothing, "barrier", flow="barrier")
    operands = [ctx.operand(t, ins) for t in ins.operands]
    if name in SOP2:
        kind, kind_a, kind_b, function, scc = SOP2[name]
        a, b = (scalar_reader(o, k, ctx, ins) for o, k in zip(operands[1:3], (kind_a, kind_b), strict=True))
        put = scalar_writer(operands[0], kind)

        def run2(g: Group) -> None:
            x, y = np.asarray(a(g)), np.asarray(b(g))
            result = function(x, y)
            if scc is not None:
                g.scc[...] = scc(result, x, y)
            put(g, result)

        return make_op(ins, run2, "salu", operands[1:], operands[:1])
    if name in SOP1:
        kind, kind_a, function, sets_scc = SOP1[name]
        a = scalar_reader(operands[1], kind_a, ctx, ins)
        put = scalar_writer(operands[0], kind)

        def run1(g: Group) -> None:
            result = function(a(g))
            if sets_scc:
                g.scc[...] = np.asarray(result) != 0
            put(g, result)

        soft = copies(operands[1], operands[0]) if name.startswith("s_mov_") else {}
        return make_op(ins, run1, "salu", operands[1:], operands[:1], soft=soft)
    return _decode_special(ins, ctx, operands)


def _nothing(g: Group) -> None:
    return None


def _decode_special(ins: Instruction, ctx: Context, operands: list[Any]) -> Op | None:
    name = ins.mnemonic
    parts = name.split("_")
    if name.startswith("s_cmp_") and parts[2] in COMPARES and len(parts) == 4:
        compare = COMPARES[parts[2]]
        a, b = (scalar_reader(o, parts[3], ctx, ins) for o in operands)
        return make_op(ins, lambda g: g.scc.__setitem__(..., compare(a(g), b(g))), "salu", operands)
    if name.startswith("s_bitcmp"):
        kind = f"u{parts[2][1:]}"
        a, b = scalar_reader(operands[0], kind, ctx, ins), scalar_reader(operands[1], "u32", ctx, ins)
        want, mask = int(name[8]), int(parts[2][1:]) - 1

        def bitcmp(g: Group) -> None:
            value = np.asarray(a(g))
            g.scc[...] = (value >> (np.asarray(b(g)) & mask).astype(value.dtype)) & value.dtype.type(1) == want

        return make_op(ins, bitcmp, "salu", operands)
    if name.endswith("_saveexec_b64"):
        return _saveexec(ins, ctx, operands, SAVEEXEC[parts[1]])
    if name in ("s_cselect_b32", "s_cselect_b64"):
        kind = "u32" if name.endswith("32") else "u64"
        a, b = (scalar_reader(o, kind, ctx, ins) for o in operands[1:])
        put = scalar_writer(operands[0], kind)
        return make_op(ins, lambda g: put(g, np.where(g.scc, a(g), b(g))), "salu", operands[1:], operands[:1])
    if name in ("s_cmov_b32", "s_cmov_b64"):
        kind = "u32" if name.endswith("32") else "u64"
        a, old = scalar_reader(operands[1], kind, ctx, ins), scalar_reader(operands[0], kind, ctx, ins)
        put = scalar_writer(operands[0], kind)
        return make_op(ins, lambda g: put(g, np.where(g.scc, a(g), old(g))), "salu", operands, operands[:1])
    if name in ("s_addc_u32", "s_subb_u32"):
        return _carry(ins, ctx, operands, name == "s_addc_u32")
    if name in ("s_movk_i32", "s_addk_i32", "s_mulk_i32", "s_cmovk_i32") or name.startswith("s_cmpk_"):
        return _with_constant(ins, ctx, operands)
    if name in ("s_bitset0_b32", "s_bitset1_b32"):
        a, old = scalar_reader(operands[1], "u32", ctx, ins), scalar_reader(operands[0], "u32", ctx, ins)
        put, on = scalar_writer(operands[0], "u32"), name[8] == "1"

        def bitset(g: Group) -> None:
            bit = U32(1) << (np.asarray(a(g)) & U32(31))
            put(g, old(g) | bit if on else old(g) & ~bit)

        return make_op(ins, bitset, "salu", operands, operands[:1])
    return _decode_system(ins, ctx, operands)


def _decode_system(ins: Instruction, ctx: Context, operands: list[Any]) -> Op | None:
    name = ins.mnemonic
    if name == "s_getreg_b32":
        return _getreg(ins, operands)
    if name in ("s_setreg_b32", "s_setreg_imm32_b32"):
        raise UnknownInstruction(name, ins.line, ctx.target, "writes to hardware registers have no model")
    if name in ("s_memtime", "s_memrealtime"):
        put = scalar_writer(operands[0], "u64")
        return make_op(ins, lambda g: put(g, np.full(g.n, g.pc, U64)), "salu", (), operands[:1])
    return None


def _getreg(ins: Instruction, operands: list[Any]) -> Op | None:
    """Only the identity of the XCC and CU can be read: every wave reports XCC 0, as on a one-XCC part."""
    if "HW_REG_XCC_ID" not in operands[1].text and "HW_REG_HW_ID" not in operands[1].text:
        return None
    put = scalar_writer(operands[0], "u32")
    return make_op(ins, lambda g: put(g, U32(0)), "salu", (), operands[:1])


def _saveexec(ins: Instruction, ctx: Context, operands: list[Any], function: Callable[..., Array]) -> Op:
    a, put = scalar_reader(operands[1], "u64", ctx, ins), scalar_writer(operands[0], "u64")

    def run(g: Group) -> None:
        source = np.broadcast_to(np.asarray(a(g), U64), g.EX.shape)
        saved = g.EX
        result = function(source, saved)
        put(g, saved)
        g.set_scalar64(EXEC, result)
        g.scc[...] = result != 0

    return make_op(ins, run, "salu", operands[1:], operands[:1])


def _carry(ins: Instruction, ctx: Context, operands: list[Any], add: bool) -> Op:
    a, b = (scalar_reader(o, "u32", ctx, ins) for o in operands[1:])
    put = scalar_writer(operands[0], "u32")

    def run(g: Group) -> None:
        x, y = np.asarray(a(g)).astype(np.int64), np.asarray(b(g)).astype(np.int64)
        total = x + y + g.scc if add else x - y - g.scc
        g.scc[...] = (total >> 32) != 0
        put(g, total.astype(U32))

    return make_op(ins, run, "salu", operands[1:], operands[:1])


def _with_constant(ins: Instruction, ctx: Context, operands: list[Any]) -> Op:
    """Instructions with a 16-bit constant, sign-extended (zero-extended for unsigned compares)."""
    name = ins.mnemonic
    raw = int(operands[1].value) & 0xFFFF
    signed = np.int32(raw - 0x10000 if raw & 0x8000 else raw)
    if name.startswith("s_cmpk_"):
        _, _, test, kind = name.split("_")
        a, compare = scalar_reader(operands[0], kind, ctx, ins), COMPARES[test]
        constant = U32(raw) if kind == "u32" else signed
        return make_op(ins, lambda g: g.scc.__setitem__(..., compare(a(g), constant)), "salu", operands[:1])
    put, old = scalar_writer(operands[0], "i32"), scalar_reader(operands[0], "i32", ctx, ins)
    if name == "s_movk_i32":
        return make_op(ins, lambda g: put(g, signed), "salu", (), operands[:1])
    if name == "s_mulk_i32":
        return make_op(ins, lambda g: put(g, old(g) * signed), "salu", operands[:1], operands[:1])
    if name == "s_cmovk_i32":
        return make_op(ins, lambda g: put(g, np.where(g.scc, signed, old(g))), "salu", operands[:1], operands[:1])

    def addk(g: Group) -> None:
        x = old(g)
        result = x + signed
        g.scc[...] = ((x ^ result) & (signed ^ result)) < 0
        put(g, result)

    return make_op(ins, addk, "salu", operands[:1], operands[:1])
