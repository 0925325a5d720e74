"""Scalar instructions: arithmetic with SCC, bit fields, compares, moves, EXEC masks, branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import UnknownInstruction
from .op import Op, copies, make_op
from .operands import Context, scalar_reader, scalar_writer
from .parse import Instruction
from .state import EXEC, SCALAR, VCC, Group

__all__ = ["decode_scalar"]

Array = Any  # a numpy array; what its elements are is said where it matters
U32, U64, I64 = np.uint32, np.uint64, np.int64


# --- two sources: name -> (type of result, types of sources, function, SCC of (result, a, b) or None) ----------
def _add_carry(r: Array, a: Array, b: Array) -> Array:
    return r < a


def _borrow(r: Array, a: Array, b: Array) -> Array:
    return a < b


def _add_overflow(r: Array, a: Array, b: Array) -> Array:
    return ((a ^ r) & (b ^ r)) < 0


def _sub_overflow(r: Array, a: Array, b: Array) -> Array:
    return ((a ^ b) & (a ^ r)) < 0


def _bfe(width: int, signed: bool) -> Callable[[Array, Array], Array]:
    def run(a: Array, b: Array) -> Array:
        offset = (b & (width - 1)).astype(np.int64)
        size = np.minimum(((b >> 16) & 0x7F).astype(np.int64), width)
        unsigned = a.astype(U64)
        field = (unsigned >> offset.astype(U64)) & np.where(
            size >= 64, ~U64(0), (U64(1) << size.astype(U64) % U64(64)) - U64(1)
        )
        top = np.minimum(offset + size, width)
        if signed:
            shift = np.clip(64 - (top - offset), 0, 63).astype(np.int64)
            value = (field.astype(np.int64) << shift) >> shift
            field = np.where(size == 0, 0, value).astype(U64)
        return field.astype(a.dtype)

    return run


def _shift_left(mask: int) -> Callable[[Array, Array], Array]:
    return lambda a, b: a << (b & mask).astype(a.dtype)


def _shift_right(mask: int) -> Callable[[Array, Array], Array]:
    return lambda a, b: a >> (b & mask).astype(a.dtype)


def _bfm(width: int, dtype: Any) -> Callable[[Array, Array], Array]:
    one = dtype(1)
    return lambda a, b: ((one << (a & (width - 1)).astype(dtype)) - one) << (b & (width - 1)).astype(dtype)


def _add_shift(n: int) -> tuple[str, str, str, Callable[..., Array], Callable[..., Array]]:
    def run(a: Array, b: Array) -> Array:
        return (a << U32(n)) + b

    def carry(r: Array, a: Array, b: Array) -> Array:
        return ((np.asarray(a).astype(U64) << U64(n)) + np.asarray(b).astype(U64)) >> U64(32) != 0

    return ("u32", "u32", "u32", run, carry)


def _mul_hi(dtype: Any) -> Callable[[Array, Array], Array]:
    return lambda a, b: ((a.astype(dtype) * b.astype(dtype)) >> dtype(32)).astype(U32 if dtype is U64 else np.int32)


SOP2: dict[str, tuple[str, str, str, Callable[..., Any], Callable[..., Any] | None]] = {
    "s_add_u32": ("u32", "u32", "u32", np.add, _add_carry),
    "s_sub_u32": ("u32", "u32", "u32", np.subtract, _borrow),
    "s_add_i32": ("i32", "i32", "i32", np.add, _add_overflow),
    "s_sub_i32": ("i32", "i32", "i32", np.subtract, _sub_overflow),
    "s_mul_i32": ("i32", "i32", "i32", np.multiply, None),
    "s_mul_hi_u32": ("u32", "u32", "u32", _mul_hi(U64), None),
    "s_mul_hi_i32": ("i32", "i32", "i32", _mul_hi(I64), None),
    "s_lshl_b32": ("u32", "u32", "u32", _shift_left(31), lambda r, a, b: r != 0),
    "s_lshl_b64": ("u64", "u64", "u32", _shift_left(63), lambda r, a, b: r != 0),
    "s_lshr_b32": ("u32", "u32", "u32", _shift_right(31), lambda r, a, b: r != 0),
    "s_lshr_b64": ("u64", "u64", "u32", _shift_right(63), lambda r, a, b: r != 0),
    "s_ashr_i32": ("i32", "i32", "u32", _shift_right(31), lambda r, a, b: r != 0),
    "s_ashr_i64": ("i64", "i64", "u32", _shift_right(63), lambda r, a, b: r != 0),
    "s_bfe_u32": ("u32", "u32", "u32", _bfe(32, False), lambda r, a, b: r != 0),
    "s_bfe_i32": ("i32", "u32", "u32", _bfe(32, True), lambda r, a, b: r != 0),
    "s_bfe_u64": ("u64", "u64", "u32", _bfe(64, False), lambda r, a, b: r != 0),
    "s_bfe_i64": ("i64", "u64", "u32", _bfe(64, True), lambda r, a, b: r != 0),
    "s_bfm_b32": ("u32", "u32", "u32", _bfm(32, U32), None),
    "s_bfm_b64": ("u64", "u32", "u32", _bfm(64, U64), None),
    "s_min_i32": ("i32", "i32", "i32", np.minimum, lambda r, a, b: a < b),
    "s_min_u32": ("u32", "u32", "u32", np.minimum, lambda r, a, b: a < b),
    "s_max_i32": ("i32", "i32", "i32", np.maximum, lambda r, a, b: a > b),
    "s_max_u32": ("u32", "u32", "u32", np.maximum, lambda r, a, b: a > b),
    "s_absdiff_i32": (
        "u32", "i32", "i32", lambda a, b: np.abs(np.int32(1) * (a - b)).view(U32), lambda r, a, b: r != 0,
    ),
    "s_pack_ll_b32_b16": ("u32", "u32", "u32", lambda a, b: (a & U32(0xFFFF)) | (b << U32(16)), None),
    "s_pack_lh_b32_b16": ("u32", "u32", "u32", lambda a, b: (a & U32(0xFFFF)) | (b & U32(0xFFFF0000)), None),
    "s_pack_hh_b32_b16": ("u32", "u32", "u32", lambda a, b: (a >> U32(16)) | (b & U32(0xFFFF0000)), None),
    **{f"s_lshl{n}_add_u32": _add_shift(n) for n in (1, 2, 3, 4)},
}  # fmt: skip
_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
for _name, _function in _LOGIC.items():
    for _bits in (32, 64):
        _kind = f"u{_bits}"
        SOP2[f"s_{_name}_b{_bits}"] = (_kind, _kind, _kind, _function, lambda r, a, b: r != 0)


# --- one source -------------------------------------------------------------------------------------------------
def _bitcount(a: Array) -> Array:
    raw = np.ascontiguousarray(np.atleast_1d(a))
    return np.unpackbits(raw.view(np.uint8).reshape(len(raw), -1), axis=1).sum(1).astype(U32)


def _reverse(a: Array) -> Array:
    raw = np.ascontiguousarray(np.atleast_1d(a))
    bits = np.unpackbits(raw.view(np.uint8).reshape(len(raw), -1), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(raw.dtype).reshape(len(raw))


def _first_one(a: Array) -> Array:
    value = np.atleast_1d(a).astype(U64)
    lowest = value & (~value + U64(1))
    return np.where(value == 0, -1, np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.int32)).astype(np.int32)


def _leading(width: int) -> Callable[[Array], Array]:
    def run(a: Array) -> Array:
        value = np.atleast_1d(a).astype(U64)
        result = np.full(value.shape, -1, np.int32)
        for bit in range(width):
            result = np.where((value >> U64(bit)) & U64(1) == 1, width - 1 - bit, result)
        return result.astype(np.int32)

    return run


def _leading_sign(width: int) -> Callable[[Array], Array]:
    unsigned = _leading(width)

    def run(a: Array) -> Array:
        value = np.atleast_1d(a)
        return unsigned((value ^ (value >> (width - 1))).view(np.dtype(f"u{width // 8}")))

    return run


def _whole_quad(a: Array) -> Array:
    value = np.atleast_1d(a).astype(U64)
    quads = value | (value >> U64(1))
    quads = (quads | (quads >> U64(2))) & U64(0x1111111111111111)
    return quads * U64(15)


SOP1: dict[str, tuple[str, str, Callable[..., Any], bool]] = {
    "s_mov_b32": ("u32", "u32", lambda a: a, False),
    "s_mov_b64": ("u64", "u64", lambda a: a, False),
    "s_not_b32": ("u32", "u32", np.bitwise_not, True),
    "s_not_b64": ("u64", "u64", np.bitwise_not, True),
    "s_wqm_b64": ("u64", "u64", _whole_quad, True),
    "s_brev_b32": ("u32", "u32", _reverse, False),
    "s_brev_b64": ("u64", "u64", _reverse, False),
    "s_bcnt1_i32_b32": ("u32", "u32", _bitcount, True),
    "s_bcnt1_i32_b64": ("u32", "u64", _bitcount, True),
    "s_bcnt0_i32_b32": ("u32", "u32", lambda a: _bitcount(~np.asarray(a)), True),
    "s_bcnt0_i32_b64": ("u32", "u64", lambda a: _bitcount(~np.asarray(a)), True),
    "s_ff1_i32_b32": ("i32", "u32", _first_one, False),
    "s_ff1_i32_b64": ("i32", "u64", _first_one, False),
    "s_ff0_i32_b32": ("i32", "u32", lambda a: _first_one(~np.asarray(a)), False),
    "s_ff0_i32_b64": ("i32", "u64", lambda a: _first_one(~np.asarray(a)), False),
    "s_flbit_i32_b32": ("i32", "u32", _leading(32), False),
    "s_flbit_i32_b64": ("i32", "u64", _leading(64), False),
    "s_flbit_i32": ("i32", "i32", _leading_sign(32), False),
    "s_flbit_i32_i64": ("i32", "i64", _leading_sign(64), False),
    "s_sext_i32_i8": ("i32", "u32", lambda a: np.asarray(a).astype(np.int8).astype(np.int32), False),
    "s_sext_i32_i16": ("i32", "u32", lambda a: np.asarray(a).astype(np.int16).astype(np.int32), False),
    "s_abs_i32": ("i32", "i32", np.abs, True),
}

_COMPARES: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "lg": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip

_SAVEEXEC: dict[str, Callable[[Array, Array], Array]] = {
    **{k: v for k, v in _LOGIC.items() if k not in ("andn2", "orn2")},
    "andn2": lambda s, e: s & ~e,
    "orn2": lambda s, e: s | ~e,
    "andn1": lambda s, e: ~s & e,
    "orn1": lambda s, e: ~s | e,
}

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
    if name.startswith("s_cmp_") and parts[2] in _COMPARES and len(parts) == 4:
        compare = _COMPARES[parts[2]]
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
        return _saveexec(ins, ctx, operands, _SAVEEXEC[parts[1]])
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
        a, compare = scalar_reader(operands[0], kind, ctx, ins), _COMPARES[test]
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
