"""Vector instructions with a carry, a borrow or a second destination: 64-bit sums, wide multiplies, division steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from .crosslane import dpp_source
from .floats import fma32, fma64
from .op import Op, halves, make_op
from .operands import Context, Operand, lane_mask, reader, writer
from .parse import Instruction
from .sdwa import sdwa_reader
from .state import VCC, Group, pack_mask

__all__ = ["decode_carry"]

Array = Any  # a numpy array; what its elements are is said where it matters
_VCC = Operand("s", "vcc", VCC, 2)

#: name -> (sign of each source, uses a carry in)
_SUMS = {
    "v_add_co_u32": (1, 1, False), "v_sub_co_u32": (1, -1, False), "v_subrev_co_u32": (-1, 1, False),
    "v_addc_co_u32": (1, 1, True), "v_subb_co_u32": (1, -1, True), "v_subbrev_co_u32": (-1, 1, True),
}  # fmt: skip


def decode_carry(ins: Instruction, ctx: Context, name: str, operands: list[Operand]) -> Op | None:
    """The Op of an instruction of this room, None if it is not one."""
    if name in _SUMS:
        return _sum(ins, ctx, operands, *_SUMS[name])
    if name in ("v_mad_u64_u32", "v_mad_i64_i32"):
        return _mad64(ins, ctx, operands, "u" if "u64" in name else "i")
    if name in ("v_div_scale_f32", "v_div_scale_f64"):
        return _div_scale(ins, ctx, operands, name[-3:])
    if name in ("v_div_fmas_f32", "v_div_fmas_f64"):
        return _div_fmas(ins, ctx, operands, name[-3:])
    if name in ("v_div_fixup_f32", "v_div_fixup_f64", "v_div_fixup_f16"):
        return _div_fixup(ins, ctx, operands, name[-3:])
    return None


def _sum(ins: Instruction, ctx: Context, operands: list[Operand], sign_a: int, sign_b: int, carry_in: bool) -> Op:
    put = writer(operands[0], "u32")
    mods = ins.modifiers
    if "src0_sel" in mods:
        a, b = (sdwa_reader(o, "u32", mods[f"src{i}_sel"], ctx, ins) for i, o in enumerate(operands[2:4]))
    else:
        a = dpp_source(ins, ctx, operands[2], reader(operands[2], "u32", ctx, ins))
        b = reader(operands[3], "u32", ctx, ins)
    sources = list(operands[2:4])
    carry = None
    if carry_in:
        source = operands[4] if len(operands) > 4 else _VCC
        carry = lane_mask(source)
        sources.append(source)
    row = operands[1].row
    sign_carry = 1 if sign_a == sign_b else -1

    def run(g: Group) -> None:
        total = sign_a * a(g).astype(np.int64) + sign_b * b(g).astype(np.int64)
        if carry is not None:
            total = total + sign_carry * carry(g).astype(np.int64)
        out = np.logical_and((total >> 32) != 0, g.E)
        put(g, total.astype(np.uint32))
        g.set_scalar64(row, pack_mask(out))

    return make_op(ins, run, "valu", sources, operands[:2])


def _all(sources: list[Operand], target: Operand) -> dict[int, tuple[int, ...]]:
    """Soft sources that reach the whole result."""
    return {row: tuple(target.rows) for source in sources for row in source.rows}


def _mad64(ins: Instruction, ctx: Context, operands: list[Operand], sign: str) -> Op:
    put = writer(operands[0], f"{sign}64")
    a, b = (reader(o, f"{sign}32", ctx, ins) for o in operands[2:4])
    c = reader(operands[4], f"{sign}64", ctx, ins)
    row, dtype = operands[1].row, np.uint64 if sign == "u" else np.int64

    def run(g: Group) -> None:
        product = a(g).astype(dtype) * b(g).astype(dtype)
        addend = c(g)
        total = product + addend
        over = total < product if sign == "u" else ((product ^ total) & (addend ^ total)) < 0
        put(g, np.broadcast_to(total, g.E.shape))
        g.set_scalar64(row, pack_mask(np.logical_and(over, g.E)))

    return make_op(
        ins,
        run,
        "valu",
        operands[2:],
        operands[:2],
        clocks=16,
        soft={**_all(operands[2:], operands[0]), **halves(operands[4:], operands[0])},
    )


def _exponent(value: Array, bias: int) -> Array:
    """Biased exponent field: 0 for denormals and zero."""
    true = np.frexp(value.astype(np.float64))[1] - 1 + bias
    return np.where(value == 0, 0, np.where(np.isfinite(value), np.maximum(true, 0), 2 * bias + 1))


def _div_scale(ins: Instruction, ctx: Context, operands: list[Operand], kind: str) -> Op:
    """Scale the numerator (source 2) or denominator (source 1) of a division so that no step over- or underflows."""
    put, row = writer(operands[0], kind), operands[1].row
    a, b, c = (reader(o, kind, ctx, ins) for o in operands[2:5])
    bias, span, scale = (127, 96, 64) if kind == "f32" else (1023, 768, 128)
    lowest = 23 if kind == "f32" else 53
    dtype = np.float32 if kind == "f32" else np.float64

    def run(g: Group) -> None:
        source, denominator, numerator = (np.broadcast_to(f(g), g.E.shape) for f in (a, b, c))
        up, down = dtype(2.0**scale), dtype(2.0**-scale)
        exp_d, exp_n = _exponent(denominator, bias), _exponent(numerator, bias)
        is_denominator = source == denominator
        inverse = 1.0 / denominator.astype(np.float64)
        quotient = numerator.astype(np.float64) / denominator.astype(np.float64)
        tiny = 2.0 ** (1 - bias)
        result, flag = source.copy(), np.zeros(g.E.shape, np.bool_)
        zero = (denominator == 0) | (numerator == 0)
        rules: list[tuple[Array, Array, Any]] = [
            (zero, np.full_like(source, np.nan), False),
            (exp_n - exp_d >= span, np.where(is_denominator, source * up, source), True),
            (exp_d == 0, source * up, False),
            (
                (np.abs(inverse) < tiny) & (np.abs(quotient) < tiny),
                np.where(is_denominator, source * down, source),
                True,
            ),
            (np.abs(inverse) < tiny, source * down, False),
            (np.abs(quotient) < tiny, np.where(source == numerator, source * up, source), True),
            (exp_n <= lowest, source * up, False),
        ]
        done = np.zeros(g.E.shape, np.bool_)
        for when, value, mark in rules:
            now = when & ~done
            result = np.where(now, value, result)
            flag |= now & mark
            done |= when
        put(g, result)
        g.set_scalar64(row, pack_mask(flag & g.E))

    return make_op(ins, run, "valu", operands[2:], operands[:2])


def _div_fmas(ins: Instruction, ctx: Context, operands: list[Operand], kind: str) -> Op:
    """a * b + c, scaled back where VCC says that v_div_scale scaled one side only.

    The factor is 2^64 (2^128 for f64) for a quotient c above 1 and its inverse below: with it the sequence that
    compilers emit gives the nearest quotient at both ends of the range.
    """
    put = writer(operands[0], kind)
    a, b, c = (reader(o, kind, ctx, ins) for o in operands[1:4])
    mask = lane_mask(_VCC)
    bias = 127 if kind == "f32" else 1023
    dtype, function, scale = (np.float32, fma32, 2.0**64) if kind == "f32" else (np.float64, fma64, 2.0**128)

    def run(g: Group) -> None:
        addend = c(g)
        result = function(a(g), b(g), addend)
        factor = np.where(_exponent(np.asarray(addend), bias) > bias, dtype(scale), dtype(1 / scale))
        put(g, np.where(mask(g), (result * factor).astype(dtype), result))

    return make_op(ins, run, "valu", [*operands[1:4], _VCC], operands[:1])


def _div_fixup(ins: Instruction, ctx: Context, operands: list[Operand], kind: str) -> Op:
    """The quotient (source 0), or what division by denominator (1) of numerator (2) gives in the special cases."""
    put = writer(operands[0], kind, keep_high=kind == "f16")
    q, d, n = (reader(o, kind, ctx, ins) for o in operands[1:4])
    dtype: Any = {"f32": np.float32, "f16": np.float16, "f64": np.float64}[kind]

    def run(g: Group) -> None:
        quotient, denominator, numerator = q(g), d(g), n(g)
        negative = np.signbit(denominator) ^ np.signbit(numerator)
        size = np.where(np.isnan(quotient), dtype(np.inf), np.abs(quotient))  # the steps overflowed
        signed = np.where(negative, -size, size)
        special = (
            np.isnan(denominator) | np.isnan(numerator) | np.isinf(denominator) | np.isinf(numerator)
            | (denominator == 0) | (numerator == 0)
        )  # fmt: skip
        exact = (numerator / denominator).astype(dtype)
        put(g, np.where(special, exact, signed).astype(dtype))

    return make_op(ins, run, "valu", operands[1:], operands[:1])
