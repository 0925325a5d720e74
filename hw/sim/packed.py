"""Packed instructions (two 16-bit or 32-bit halves), mixed-precision multiply-add, dot products, fp8 conversions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .errors import UnknownInstruction
from .floats import bf16_value, decode_small, encode_small, flush16, flush32, fma16, fma32
from .op import Op, make_op
from .operands import Context, Operand, Reader, reader, writer
from .parse import Instruction
from .state import Group
from .valu_common import max_num, min_num, saturating
from .valu_table import VALU

__all__ = ["decode_packed"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: Halves of 16 bits: name -> (type, number of sources, function).
_PK16: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "v_pk_add_f16": ("f16", 2, np.add),
    "v_pk_mul_f16": ("f16", 2, np.multiply),
    "v_pk_fma_f16": ("f16", 3, fma16),
    "v_pk_min_f16": ("f16", 2, min_num),
    "v_pk_max_f16": ("f16", 2, max_num),
    "v_pk_add_u16": ("u16", 2, np.add),
    "v_pk_sub_u16": ("u16", 2, np.subtract),
    "v_pk_add_i16": ("i16", 2, np.add),
    "v_pk_sub_i16": ("i16", 2, np.subtract),
    "v_pk_mul_lo_u16": ("u16", 2, np.multiply),
    "v_pk_mad_u16": ("u16", 3, lambda a, b, c: a * b + c),
    "v_pk_mad_i16": ("i16", 3, lambda a, b, c: a * b + c),
    "v_pk_min_u16": ("u16", 2, np.minimum),
    "v_pk_max_u16": ("u16", 2, np.maximum),
    "v_pk_min_i16": ("i16", 2, np.minimum),
    "v_pk_max_i16": ("i16", 2, np.maximum),
    "v_pk_lshlrev_b16": ("u16", 2, VALU["v_lshlrev_b16"][2]),
    "v_pk_lshrrev_b16": ("u16", 2, VALU["v_lshrrev_b16"][2]),
    "v_pk_ashrrev_i16": ("i16", 2, lambda n, a: a >> (n & 15)),
    "v_pk_minimum3_f16": ("f16", 3, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_pk_maximum3_f16": ("f16", 3, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
}
#: Halves of 32 bits, in register pairs.
_PK32: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "v_pk_add_f32": ("f32", 2, np.add),
    "v_pk_mul_f32": ("f32", 2, np.multiply),
    "v_pk_fma_f32": ("f32", 3, fma32),
}
_FP8_TARGETS = {
    "gfx942": {"fp8": "fp8_e4m3fnuz", "bf8": "bf8_e5m2fnuz"},
    "gfx950": {"fp8": "fp8_e4m3fn", "bf8": "bf8_e5m2"},
}


def _flags(mods: dict[str, str], key: str, count: int, default: int = 0) -> list[bool]:
    text = mods.get(key)
    if text is None:
        return [bool(default)] * count
    values = [c == "1" for c in text.strip("[]").split(",")]
    return values + [bool(default)] * (count - len(values))


def decode_packed(ins: Instruction, ctx: Context, name: str, operands: list[Operand]) -> Op | None:
    """The Op of an instruction of this room, None if it is not one."""
    if name in _PK16:
        return _packed16(ins, ctx, operands, *_PK16[name])
    if name in _PK32:
        return _packed32(ins, ctx, operands, *_PK32[name])
    if name == "v_pk_mov_b32":
        return _packed_move(ins, ctx, operands)
    if name in (
        "v_fma_mix_f32",
        "v_fma_mixlo_f16",
        "v_fma_mixhi_f16",
        "v_mad_mix_f32",
        "v_mad_mixlo_f16",
        "v_mad_mixhi_f16",
    ):
        return _mix(ins, ctx, operands, name)
    if name in _DOTS:
        return _dot(ins, ctx, operands, name)
    if name.startswith("v_cvt_") and name.endswith(("_fp8", "_bf8", "fp8_f32", "bf8_f32")):
        return _convert8(ins, ctx, operands, name)
    return None


def _half_modifiers(
    mods: dict[str, str], n: int
) -> tuple[tuple[list[bool], list[bool]], tuple[list[bool], list[bool]]]:
    """(take the upper half, negate) of the n sources, each for the low and for the high half of the result."""
    select = _flags(mods, "op_sel", n), _flags(mods, "op_sel_hi", n, 1)
    return select, (_flags(mods, "neg_lo", n), _flags(mods, "neg_hi", n))


def _half_reader(operand: Operand, kind: str, ctx: Context, ins: Instruction, high: bool, negate: bool) -> Reader:
    plain = Operand(operand.kind, operand.text, operand.row, operand.count, operand.value)
    read = reader(plain, kind, ctx, ins, high=high)
    if kind == "f16" and not ctx.denormals16:
        flushed = read
        read = lambda g: flush16(flushed(g))  # noqa: E731
    return (lambda g: -read(g)) if negate else read


def _packed16(
    ins: Instruction, ctx: Context, operands: list[Operand], kind: str, n: int, function: Callable[..., Any]
) -> Op:
    mods, sources = ins.modifiers, operands[1:]
    select, negate = _half_modifiers(mods, n)
    low, high = (
        [_half_reader(o, kind, ctx, ins, select[half][i], negate[half][i]) for i, o in enumerate(sources)]
        for half in (0, 1)
    )
    clamp = "clamp" in mods
    if clamp and kind != "f16" and function in (np.add, np.subtract):
        function, clamp = saturating(function, kind), False
    if clamp and kind != "f16":
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "clamp of an integer result")
    row = operands[0].row

    def one(g: Group, readers: list[Reader]) -> Array:
        result = np.asarray(function(*(r(g) for r in readers)))
        if clamp:
            result = np.clip(np.where(np.isnan(result), np.float16(0), result), np.float16(0), np.float16(1))
        if kind == "f16" and not ctx.denormals16:
            result = flush16(result)
        return result.view(np.uint16).astype(np.uint32)

    def run(g: Group) -> None:
        value = one(g, low) | (one(g, high) << np.uint32(16))
        np.copyto(g.V[row], value, where=g.E)

    return make_op(ins, run, "valu", sources, operands[:1])


def _pair(operand: Operand, high: bool, negate: bool, ctx: Context, ins: Instruction) -> Reader:
    """One 32-bit half of a register pair. A constant has a low half only."""
    if operand.kind == "const":
        if high and operand.value != 0:
            raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "upper half of a constant")
        half = Operand("const", operand.text, value=operand.value)
    else:
        half = Operand(operand.kind, operand.text, operand.row + (1 if high else 0))
    read = reader(half, "f32", ctx, ins)
    if not ctx.denormals32:
        flushed = read
        read = lambda g: flush32(flushed(g))  # noqa: E731
    return (lambda g: -read(g)) if negate else read


def _picked(sources: list[Operand], halves: Iterable[tuple[int, bool]]) -> frozenset[int]:
    """Rows that an operation on register pairs reads, given the source and half of each access."""
    rows: set[int] = set()
    for place, high in halves:
        ordered = sorted(sources[place].rows)
        rows.update(ordered[high : high + 1] if len(ordered) == 2 else ordered)
    return frozenset(rows)


def _packed32(
    ins: Instruction, ctx: Context, operands: list[Operand], kind: str, n: int, function: Callable[..., Any]
) -> Op:
    mods, sources = ins.modifiers, operands[1:]
    select, negate = _half_modifiers(mods, n)
    low, high = (
        [_pair(o, select[half][i], negate[half][i], ctx, ins) for i, o in enumerate(sources)] for half in (0, 1)
    )
    row = operands[0].row
    puts = writer(Operand("v", "", row), kind), writer(Operand("v", "", row + 1), kind)
    clamp, flush = "clamp" in mods, not ctx.denormals32

    soft: dict[int, tuple[int, ...]] = {}
    for half in (0, 1):
        for place, operand in enumerate(sources):
            if operand.kind == "v" and operand.count == 2:
                source = operand.row + int(select[half][place])
                soft[source] = (*soft.get(source, ()), row + half)

    def finish(result: Any) -> Any:
        if clamp:
            result = np.clip(np.where(np.isnan(result), np.float32(0), result), np.float32(0), np.float32(1))
        return flush32(np.asarray(result)) if flush else result

    def run(g: Group) -> None:
        first = finish(function(*(r(g) for r in low)))
        second = finish(function(*(r(g) for r in high)))
        puts[0](g, first)
        puts[1](g, second)

    picked = _picked(sources, ((i, select[half][i]) for half in (0, 1) for i in range(n)))
    return make_op(ins, run, "valu", (), operands[:1], soft=soft, extra_reads=picked)


def _packed_move(ins: Instruction, ctx: Context, operands: list[Operand]) -> Op:
    """Low result from source 0, high result from source 1; op_sel picks the half of each."""
    select = _flags(ins.modifiers, "op_sel", 2)
    sources = []
    for place, operand in enumerate(operands[1:]):
        high = select[place]
        if operand.kind == "const":
            sources.append(reader(operand, "u32", ctx, ins))
        else:
            sources.append(
                reader(Operand(operand.kind, operand.text, operand.row + (1 if high else 0)), "u32", ctx, ins)
            )
    row = operands[0].row
    puts = [writer(Operand("v", "", row + k), "u32") for k in (0, 1)]
    soft: dict[int, tuple[int, ...]] = {}
    for place, operand in enumerate(operands[1:]):
        if operand.kind == "v":
            source = operand.row + int(select[place])
            soft[source] = (*soft.get(source, ()), row + place)

    def run(g: Group) -> None:
        first, second = np.array(sources[0](g)), np.array(sources[1](g))
        puts[0](g, first)
        puts[1](g, second)

    picked = _picked(operands[1:], ((i, select[i]) for i in (0, 1)))
    return make_op(ins, run, "valu", (), operands[:1], soft=soft, extra_reads=picked)


def _widened(read: Reader) -> Reader:
    return lambda g: np.asarray(read(g)).astype(np.float32)


def _mix(ins: Instruction, ctx: Context, operands: list[Operand], name: str) -> Op:
    """a * b + c in binary32 where each source is f32 (op_sel_hi 0) or a half of a register as f16."""
    mods, sources = ins.modifiers, operands[1:]
    is_half, select = _flags(mods, "op_sel_hi", 3), _flags(mods, "op_sel", 3)
    readers: list[Reader] = []
    for place, operand in enumerate(sources):
        if is_half[place]:
            half = reader(operand, "f16", ctx, ins, high=select[place])
            readers.append(_widened(half))
        else:
            readers.append(reader(operand, "f32", ctx, ins))
    a, b, c = readers
    clamp = "clamp" in mods
    fused = "fma" in name
    if name.endswith("f32"):
        put = writer(operands[0], "f32")
    else:
        put = writer(operands[0], "f16", keep_high=True, high="mixhi" in name)

    def run(g: Group) -> None:
        result = fma32(a(g), b(g), c(g)) if fused else a(g) * b(g) + c(g)
        if clamp:
            result = np.clip(np.where(np.isnan(result), np.float32(0), result), np.float32(0), np.float32(1))
        put(g, result)

    return make_op(ins, run, "valu", sources, operands[:1])


def _lanes_of(value: Array, bits: int, signed: bool) -> list[Array]:
    """The 32 / bits parts of a register as int64."""
    parts = []
    for k in range(32 // bits):
        part = (np.asarray(value).astype(np.int64) >> (bits * k)) & ((1 << bits) - 1)
        parts.append(np.where(part >> (bits - 1) == 1, part - (1 << bits), part) if signed else part)
    return parts


def _halves(value: Array) -> list[Array]:
    raw = np.asarray(value)
    return [(raw >> np.uint32(s)).astype(np.uint16).view(np.float16).astype(np.float32) for s in (0, 16)]


#: name -> kind of parts: f16, bf16 or (bits, signed a, signed b); the "c" forms accumulate in the destination.
_DOTS: dict[str, Any] = {
    "v_dot2_f32_f16": "f16", "v_dot2c_f32_f16": "f16", "v_dot2_f32_bf16": "bf16", "v_dot2c_f32_bf16": "bf16",
    "v_dot2_i32_i16": (16, True, True), "v_dot2_u32_u16": (16, False, False), "v_dot2c_i32_i16": (16, True, True),
    "v_dot4_i32_i8": (8, True, True), "v_dot4_u32_u8": (8, False, False), "v_dot4c_i32_i8": (8, True, True),
    "v_dot8_i32_i4": (4, True, True), "v_dot8_u32_u4": (4, False, False), "v_dot8c_i32_i4": (4, True, True),
}  # fmt: skip


def _dot(ins: Instruction, ctx: Context, operands: list[Operand], name: str) -> Op:
    if any(k in ins.modifiers for k in ("clamp", "neg_lo", "neg_hi", "op_sel")):
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "modifiers of a dot product")
    parts = _DOTS[name]
    is_float = isinstance(parts, str)
    accumulate = operands[3] if len(operands) > 3 else operands[0]
    a, b = (reader(o, "u32", ctx, ins) for o in operands[1:3])
    c = reader(accumulate, "f32" if is_float else "u32", ctx, ins)
    put = writer(operands[0], "f32" if is_float else "u32")

    def run(g: Group) -> None:
        if is_float:
            split = _halves if parts == "f16" else lambda v: [bf16_value(v), bf16_value(np.asarray(v) >> np.uint32(16))]
            (a0, a1), (b0, b1) = split(a(g)), split(b(g))
            total = np.multiply(a0, b0, dtype=np.float64) + np.multiply(a1, b1, dtype=np.float64) + c(g)
            put(g, total.astype(np.float32))
        else:
            bits, signed_a, signed_b = parts
            pairs = zip(_lanes_of(a(g), bits, signed_a), _lanes_of(b(g), bits, signed_b), strict=True)
            total = c(g).astype(np.int64) + sum(x * y for x, y in pairs)
            put(g, total.astype(np.uint32))

    return make_op(ins, run, "valu", [*operands[1:3], accumulate], operands[:1])


def _convert8(ins: Instruction, ctx: Context, operands: list[Operand], name: str) -> Op:
    """Conversions from and to the 8-bit floats of the target."""
    if ctx.target not in _FP8_TARGETS:
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "the target has no 8-bit floats")
    formats, mods = _FP8_TARGETS[ctx.target], ins.modifiers
    row = operands[0].row
    if name in ("v_cvt_f32_fp8", "v_cvt_f32_bf8", "v_cvt_pk_f32_fp8", "v_cvt_pk_f32_bf8"):
        form, source = formats[name[-3:]], reader(operands[1], "u32", ctx, ins)
        select = mods.get("src0_sel", "BYTE_0" if "pk" not in name else "WORD_0").replace("DWORD", "BYTE_0")
        start = 8 * int(select[-1]) if "BYTE" in select else 16 * int(select[-1])
        wide = "_pk_" in name
        puts = [writer(Operand("v", "", row + k), "f32") for k in range(2 if wide else 1)]

        def expand(g: Group) -> None:
            raw = np.array(source(g))
            for k, put in enumerate(puts):
                put(g, decode_small(form, (raw >> np.uint32(start + 8 * k)) & np.uint32(0xFF)))

        return make_op(ins, expand, "valu", operands[1:], operands[:1])
    if name in ("v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32"):
        form = formats[name[9:12]]
        a, b = (reader(o, "f32", ctx, ins) for o in operands[1:3])
        high = _flags(mods, "op_sel", 3)[2]
        put = writer(operands[0], "u16", keep_high=True, high=high)

        def pack(g: Group) -> None:
            codes = encode_small(form, a(g), False) | (encode_small(form, b(g), False) << np.uint32(8))
            put(g, codes.astype(np.uint16))

        return make_op(ins, pack, "valu", operands[1:], operands[:1])
    return None  # type: ignore[return-value]
