"""Vector instructions that are plain functions: name -> (type of result, types of sources, function).

Functions get arrays that broadcast to [waves, 64], in the types that the entry names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .floats import bf16_bits, flush32, fma16, fma32, fma64

__all__ = ["CLOCKS16", "KEEPS_HIGH", "VALU", "max_num", "min_num"]

Array = NDArray[Any]
Entry = tuple[str, tuple[str, ...], Callable[..., Any]]
U16, U32, U64, I32, I64, F32, F64 = (
    np.uint16,
    np.uint32,
    np.uint64,
    np.int32,
    np.int64,
    np.float32,
    np.float64,
)

min_num, max_num = np.fmin, np.fmax  # IEEE 754-2008 minNum and maxNum: a NaN loses against a number


def _wide(a: Array, dtype: Any) -> Array:
    return np.asarray(a).astype(dtype)


def _high(dtype: Any, bits: int = 32) -> Callable[[Array, Array], Array]:
    return lambda a, b: ((_wide(a, dtype) * _wide(b, dtype)) >> dtype(bits)).astype(
        U32 if dtype is U64 else I32
    )


def _clamped(low: float, high: float, dtype: Any) -> Callable[[Array], Array]:
    """Float to integer: towards zero, out of range to the nearest bound, NaN to 0."""

    def run(a: Array) -> Array:
        value = np.trunc(_wide(a, F64))
        return np.where(np.isnan(value), 0, np.clip(value, low, high)).astype(dtype)

    return run


def _fract(a: Array) -> Array:
    one = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    return np.minimum(a - np.floor(a), one)


def _bfe(signed: bool) -> Callable[[Array, Array, Array], Array]:
    def run(value: Array, offset: Array, width: Array) -> Array:
        shift, size = offset & U32(31), width & U32(31)
        top = np.minimum(shift + size, U32(32))
        left = (U32(32) - top) & U32(31)
        right = (U32(32) - (top - shift)) & U32(31)
        moved = np.asarray(value << left)
        out = moved.view(I32) >> right.astype(I32) if signed else moved >> right
        return np.where(size == 0, 0, out).astype(I32 if signed else U32)

    return run


def _perm(a: Array, b: Array, selector: Array) -> Array:
    """Each byte of the selector picks a byte of {a, b} (b holds bytes 0 to 3), a sign or a constant."""
    both = (_wide(a, U64) << U64(32)) | _wide(b, U64)
    result: Any = U32(0)
    for byte in range(4):
        code = (np.asarray(selector) >> U32(8 * byte)) & U32(0xFF)
        picked = (both >> (np.minimum(code, U32(7)).astype(U64) * U64(8))) & U64(0xFF)
        if (code > 7).any():
            sign_at = (np.clip(code, 8, 11).astype(U64) - U64(8)) * U64(16) + U64(15)
            sign = np.where((both >> sign_at) & U64(1) == 1, 0xFF, 0)
            picked = np.where(code > 7, np.where(code < 12, sign, np.where(code == 12, 0, 0xFF)), picked)
        result = result | (picked.astype(U32) << U32(8 * byte))
    return np.asarray(result)


def _sad(width: int) -> Callable[[Array, Array, Array], Array]:
    def run(a: Array, b: Array, c: Array) -> Array:
        total = _wide(c, I64)
        mask = (1 << width) - 1
        for part in range(32 // width):
            x = (_wide(a, I64) >> (width * part)) & mask
            y = (_wide(b, I64) >> (width * part)) & mask
            total = total + np.abs(x - y)
        return total.astype(U32)

    return run


def _median(a: Array, b: Array, c: Array) -> Array:
    """The middle one of three; with a NaN the smallest number, as the ISA has it."""
    middle = max_num(min_num(a, b), min_num(max_num(a, b), c))
    if np.asarray(a).dtype.kind == "f":
        nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
        return np.where(nan, min_num(min_num(a, b), c), middle)
    return middle


def _bits(a: Array) -> Array:
    return np.asarray(a).view(U32)


def _reverse(a: Array) -> Array:
    value = np.asarray(a)
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        value = ((value >> U32(shift)) & U32(mask)) | ((value & U32(mask)) << U32(shift))
    return (value >> U32(16)) | (value << U32(16))


def _popcount(a: Array) -> Array:
    value = np.asarray(a)
    value = value - ((value >> U32(1)) & U32(0x55555555))
    value = (value & U32(0x33333333)) + ((value >> U32(2)) & U32(0x33333333))
    return (((value + (value >> U32(4))) & U32(0x0F0F0F0F)) * U32(0x01010101)) >> U32(24)


def _find_high(a: Array) -> Array:
    """Number of zeros above the first one, -1 without a one."""
    exponent = np.frexp(_wide(a, F64))[1]
    return np.where(np.asarray(a) == 0, -1, 32 - exponent).astype(I32)


def _find_low(a: Array) -> Array:
    value = np.asarray(a)
    lowest = value & (~value + U32(1))
    return np.where(value == 0, -1, np.frexp(_wide(lowest, F64))[1] - 1).astype(I32)


def _find_high_signed(a: Array) -> Array:
    return _find_high(_bits(np.asarray(a) ^ (np.asarray(a) >> 31)))


def _frexp_exponent(a: Array) -> Array:
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(I32)


def _frexp_mantissa(a: Array) -> Array:
    return np.where(np.isfinite(a), np.frexp(a)[0], a).astype(np.asarray(a).dtype)


def _ldexp32(a: Array, e: Array) -> Array:
    return np.ldexp(_wide(a, F64), np.clip(e, -400, 400)).astype(F32)


def _ldexp64(a: Array, e: Array) -> Array:
    return np.ldexp(a, np.clip(e, -4000, 4000))


def _transcendental(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """binary32 function computed in binary64 and rounded once; the unit flushes denormals on both sides."""
    return lambda a: flush32(np.asarray(function(_wide(flush32(a), F64)).astype(F32)))


def _half(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda a: function(_wide(a, F64)).astype(np.float16)


def _reciprocal(a: Array) -> Array:
    return 1.0 / a


def _rsqrt(a: Array) -> Array:
    return 1.0 / np.sqrt(a)


def _sin(a: Array) -> Array:
    return np.where(np.isfinite(a), np.sin(2 * np.pi * np.fmod(a, 1.0)), np.nan)


def _cos(a: Array) -> Array:
    return np.where(np.isfinite(a), np.cos(2 * np.pi * np.fmod(a, 1.0)), np.nan)


def _pack16(low: Array, high: Array) -> Array:
    return _wide(np.asarray(low).view(U16), U32) | (_wide(np.asarray(high).view(U16), U32) << U32(16))


def _toward_zero16(a: Array) -> Array:
    near = np.asarray(a, F32).astype(np.float16)
    over = np.abs(_wide(near, F64)) > np.abs(_wide(a, F64))
    bits = near.view(U16)
    return np.where(over, bits - U16(1), bits).astype(U16).view(np.float16)


def _norm16(top: float, dtype: Any) -> Callable[[Array], Array]:
    low = -1.0 if dtype is np.int16 else 0.0
    return lambda a: np.rint(np.where(np.isnan(a), 0, np.clip(_wide(a, F64), low, 1.0)) * top).astype(dtype)


def _alignbit(shift_unit: int) -> Callable[[Array, Array, Array], Array]:
    def run(a: Array, b: Array, c: Array) -> Array:
        both = (_wide(a, U64) << U64(32)) | _wide(b, U64)
        amount = (_wide(c, U64) & U64(31 if shift_unit == 1 else 3)) * U64(shift_unit)
        return (both >> amount).astype(U32)

    return run


def _legacy_mul(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), F32(0), a * b)


def _i24(a: Array) -> Array:
    return np.asarray(a << 8) >> 8


def _u24(a: Array) -> Array:
    return a & U32(0xFFFFFF)


def _shift(left: bool, mask: int) -> Callable[[Array, Array], Array]:
    """Reversed operands: the amount comes first."""
    if left:
        return lambda n, a: a << (n & n.dtype.type(mask)).astype(a.dtype)
    return lambda n, a: a >> (n & n.dtype.type(mask)).astype(a.dtype)


_F32_2: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "subrev": lambda a, b: b - a, "mul": np.multiply, "min": min_num, "max": max_num,
}  # fmt: skip
VALU: dict[str, Entry] = {
    **{f"v_{k}_f32": ("f32", ("f32", "f32"), f) for k, f in _F32_2.items()},
    **{f"v_{k}_f16": ("f16", ("f16", "f16"), f) for k, f in _F32_2.items()},
    **{f"v_{k}_f64": ("f64", ("f64", "f64"), f) for k, f in _F32_2.items() if "sub" not in k},
    "v_mul_legacy_f32": ("f32", ("f32", "f32"), _legacy_mul),
    "v_fma_f32": ("f32", ("f32",) * 3, fma32),
    "v_fma_f16": ("f16", ("f16",) * 3, fma16),
    "v_fma_f64": ("f64", ("f64",) * 3, fma64),
    "v_fma_legacy_f16": ("f16", ("f16",) * 3, fma16),
    "v_mad_f32": ("f32", ("f32",) * 3, lambda a, b, c: flush32(flush32(flush32(a) * flush32(b)) + flush32(c))),
    "v_mad_f16": ("f16", ("f16",) * 3, lambda a, b, c: a * b + c),
    "v_max3_f32": ("f32", ("f32",) * 3, lambda a, b, c: max_num(max_num(a, b), c)),
    "v_min3_f32": ("f32", ("f32",) * 3, lambda a, b, c: min_num(min_num(a, b), c)),
    "v_med3_f32": ("f32", ("f32",) * 3, _median),
    "v_max3_f16": ("f16", ("f16",) * 3, lambda a, b, c: max_num(max_num(a, b), c)),
    "v_min3_f16": ("f16", ("f16",) * 3, lambda a, b, c: min_num(min_num(a, b), c)),
    "v_med3_f16": ("f16", ("f16",) * 3, _median),
    # transcendentals and roots
    "v_exp_f32": ("f32", ("f32",), _transcendental(np.exp2)),
    "v_log_f32": ("f32", ("f32",), _transcendental(np.log2)),
    "v_rcp_f32": ("f32", ("f32",), _transcendental(_reciprocal)),
    "v_rcp_iflag_f32": ("f32", ("f32",), _transcendental(_reciprocal)),
    "v_rsq_f32": ("f32", ("f32",), _transcendental(_rsqrt)),
    "v_sqrt_f32": ("f32", ("f32",), _transcendental(np.sqrt)),
    "v_sin_f32": ("f32", ("f32",), _transcendental(_sin)),
    "v_cos_f32": ("f32", ("f32",), _transcendental(_cos)),
    "v_exp_legacy_f32": ("f32", ("f32",), _transcendental(np.exp2)),
    "v_log_legacy_f32": ("f32", ("f32",), _transcendental(np.log2)),
    "v_exp_f16": ("f16", ("f16",), _half(np.exp2)),
    "v_log_f16": ("f16", ("f16",), _half(np.log2)),
    "v_rcp_f16": ("f16", ("f16",), _half(_reciprocal)),
    "v_rsq_f16": ("f16", ("f16",), _half(_rsqrt)),
    "v_sqrt_f16": ("f16", ("f16",), _half(np.sqrt)),
    "v_rcp_f64": ("f64", ("f64",), _reciprocal),
    "v_rsq_f64": ("f64", ("f64",), _rsqrt),
    "v_sqrt_f64": ("f64", ("f64",), np.sqrt),
    # rounding and parts
    **{
        f"v_{k}_f{w}": (f"f{w}", (f"f{w}",), f)
        for w in (16, 32, 64)
        for k, f in {
            "trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint, "fract": _fract,
            "frexp_mant": _frexp_mantissa,
        }.items()
    },
    "v_frexp_exp_i32_f32": ("i32", ("f32",), _frexp_exponent),
    "v_frexp_exp_i32_f64": ("i32", ("f64",), _frexp_exponent),
    "v_frexp_exp_i16_f16": ("i16", ("f16",), _frexp_exponent),
    "v_ldexp_f32": ("f32", ("f32", "i32"), _ldexp32),
    "v_ldexp_f64": ("f64", ("f64", "i32"), _ldexp64),
    "v_ldexp_f16": ("f16", ("f16", "i16"), lambda a, e: np.ldexp(_wide(a, F64), _wide(e, I32)).astype(np.float16)),
    # conversions
    "v_cvt_f32_f16": ("f32", ("f16",), lambda a: _wide(a, F32)),
    "v_cvt_f16_f32": ("f16", ("f32",), lambda a: _wide(a, np.float16)),
    "v_cvt_f32_f64": ("f32", ("f64",), lambda a: _wide(a, F32)),
    "v_cvt_f64_f32": ("f64", ("f32",), lambda a: _wide(a, F64)),
    "v_cvt_f32_i32": ("f32", ("i32",), lambda a: _wide(a, F32)),
    "v_cvt_f32_u32": ("f32", ("u32",), lambda a: _wide(a, F32)),
    "v_cvt_f64_i32": ("f64", ("i32",), lambda a: _wide(a, F64)),
    "v_cvt_f64_u32": ("f64", ("u32",), lambda a: _wide(a, F64)),
    "v_cvt_i32_f32": ("i32", ("f32",), _clamped(-(2**31), 2**31 - 1, I32)),
    "v_cvt_u32_f32": ("u32", ("f32",), _clamped(0, 2**32 - 1, U32)),
    "v_cvt_i32_f64": ("i32", ("f64",), _clamped(-(2**31), 2**31 - 1, I32)),
    "v_cvt_u32_f64": ("u32", ("f64",), _clamped(0, 2**32 - 1, U32)),
    "v_cvt_f16_u16": ("f16", ("u16",), lambda a: _wide(_wide(a, F32), np.float16)),
    "v_cvt_f16_i16": ("f16", ("i16",), lambda a: _wide(a, F32).astype(np.float16)),
    "v_cvt_u16_f16": ("u16", ("f16",), _clamped(0, 65535, U16)),
    "v_cvt_i16_f16": ("i16", ("f16",), _clamped(-32768, 32767, np.int16)),
    "v_cvt_rpi_i32_f32": ("i32", ("f32",), lambda a: _clamped(-(2**31), 2**31 - 1, I32)(np.floor(_wide(a, F64) + 0.5))),
    "v_cvt_flr_i32_f32": ("i32", ("f32",), lambda a: _clamped(-(2**31), 2**31 - 1, I32)(np.floor(_wide(a, F64)))),
    **{
        f"v_cvt_f32_ubyte{k}": ("f32", ("u32",), (lambda s: lambda a: _wide((a >> s) & U32(0xFF), F32))(U32(8 * k)))
        for k in range(4)
    },
    "v_cvt_pkrtz_f16_f32": ("u32", ("f32", "f32"), lambda a, b: _pack16(_toward_zero16(a), _toward_zero16(b))),
    "v_cvt_pk_f16_f32": ("u32", ("f32", "f32"), lambda a, b: _pack16(_wide(a, np.float16), _wide(b, np.float16))),
    "v_cvt_pk_bf16_f32": ("u32", ("f32", "f32"), lambda a, b: bf16_bits(a) | (bf16_bits(b) << U32(16))),
    "v_cvt_pknorm_i16_f32": (
        "u32", ("f32", "f32"), lambda a, b: _pack16(_norm16(32767, np.int16)(a), _norm16(32767, np.int16)(b)),
    ),
    "v_cvt_pknorm_u16_f32": ("u32", ("f32", "f32"), lambda a, b: _pack16(_norm16(65535, U16)(a), _norm16(65535, U16)(b))),
    "v_cvt_pk_u16_u32": ("u32", ("u32", "u32"), lambda a, b: np.minimum(a, 0xFFFF) | (np.minimum(b, U32(0xFFFF)) << U32(16))),
    "v_cvt_pk_i16_i32": (
        "u32", ("i32", "i32"),
        lambda a, b: _pack16(np.clip(a, -32768, 32767).astype(np.int16), np.clip(b, -32768, 32767).astype(np.int16)),
    ),
    "v_pack_b32_f16": ("u32", ("f16", "f16"), _pack16),
    "v_bfrev_b32": ("u32", ("u32",), _reverse),
    "v_ffbh_u32": ("i32", ("u32",), _find_high),
    "v_ffbh_i32": ("i32", ("i32",), _find_high_signed),
    "v_ffbl_b32": ("i32", ("u32",), _find_low),
    "v_bcnt_u32_b32": ("u32", ("u32", "u32"), lambda a, b: _popcount(a) + b),
    # moves and logic
    "v_mov_b32": ("u32", ("u32",), lambda a: a),
    "v_mov_b64": ("u64", ("u64",), lambda a: a),
    "v_accvgpr_read_b32": ("u32", ("u32",), lambda a: a),
    "v_accvgpr_write_b32": ("u32", ("u32",), lambda a: a),
    "v_accvgpr_mov_b32": ("u32", ("u32",), lambda a: a),
    "v_not_b32": ("u32", ("u32",), np.bitwise_not),
    "v_and_b32": ("u32", ("u32", "u32"), np.bitwise_and),
    "v_or_b32": ("u32", ("u32", "u32"), np.bitwise_or),
    "v_xor_b32": ("u32", ("u32", "u32"), np.bitwise_xor),
    "v_xnor_b32": ("u32", ("u32", "u32"), lambda a, b: ~(a ^ b)),
    "v_and_or_b32": ("u32", ("u32",) * 3, lambda a, b, c: (a & b) | c),
    "v_or3_b32": ("u32", ("u32",) * 3, lambda a, b, c: a | b | c),
    "v_bfi_b32": ("u32", ("u32",) * 3, lambda a, b, c: (a & b) | (~a & c)),
    "v_bfe_u32": ("u32", ("u32",) * 3, _bfe(False)),
    "v_bfe_i32": ("i32", ("u32",) * 3, _bfe(True)),
    "v_bfm_b32": ("u32", ("u32", "u32"), lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31))),
    "v_perm_b32": ("u32", ("u32",) * 3, _perm),
    "v_alignbit_b32": ("u32", ("u32",) * 3, _alignbit(1)),
    "v_alignbyte_b32": ("u32", ("u32",) * 3, _alignbit(8)),
    "v_lshlrev_b32": ("u32", ("u32", "u32"), _shift(True, 31)),
    "v_lshrrev_b32": ("u32", ("u32", "u32"), _shift(False, 31)),
    "v_ashrrev_i32": ("i32", ("u32", "i32"), _shift(False, 31)),
    "v_lshlrev_b64": ("u64", ("u32", "u64"), _shift(True, 63)),
    "v_lshrrev_b64": ("u64", ("u32", "u64"), _shift(False, 63)),
    "v_ashrrev_i64": ("i64", ("u32", "i64"), _shift(False, 63)),
    "v_lshlrev_b16": ("u16", ("u16", "u16"), _shift(True, 15)),
    "v_lshrrev_b16": ("u16", ("u16", "u16"), _shift(False, 15)),
    "v_ashrrev_i16": ("i16", ("u16", "i16"), _shift(False, 15)),
    "v_lshl_or_b32": ("u32", ("u32",) * 3, lambda a, b, c: (a << (b & U32(31))) | c),
    "v_lshl_add_u32": ("u32", ("u32",) * 3, lambda a, b, c: (a << (b & U32(31))) + c),
    "v_add_lshl_u32": ("u32", ("u32",) * 3, lambda a, b, c: (a + b) << (c & U32(31))),
    "v_xad_u32": ("u32", ("u32",) * 3, lambda a, b, c: (a ^ b) + c),
    "v_lshl_add_u64": ("u64", ("u64", "u32", "u64"), lambda a, b, c: (a << (b & U32(7)).astype(U64)) + c),
    # integers
    **{
        f"v_{k}_u32": ("u32", ("u32", "u32"), f)
        for k, f in {"add": np.add, "sub": np.subtract, "subrev": lambda a, b: b - a, "min": np.minimum, "max": np.maximum}.items()
    },
    "v_add_i32": ("i32", ("i32", "i32"), np.add),
    "v_sub_i32": ("i32", ("i32", "i32"), np.subtract),
    "v_min_i32": ("i32", ("i32", "i32"), np.minimum),
    "v_max_i32": ("i32", ("i32", "i32"), np.maximum),
    **{
        f"v_{k}3_{t}": (t, (t,) * 3, f)
        for t in ("i32", "u32", "i16", "u16")
        for k, f in {
            "min": lambda a, b, c: np.minimum(np.minimum(a, b), c),
            "max": lambda a, b, c: np.maximum(np.maximum(a, b), c),
            "med": lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)),
        }.items()
    },
    "v_add3_u32": ("u32", ("u32",) * 3, lambda a, b, c: a + b + c),
    "v_mul_lo_u32": ("u32", ("u32", "u32"), np.multiply),
    "v_mul_hi_u32": ("u32", ("u32", "u32"), _high(U64)),
    "v_mul_hi_i32": ("i32", ("i32", "i32"), _high(I64)),
    "v_mul_u32_u24": ("u32", ("u32", "u32"), lambda a, b: _u24(a) * _u24(b)),
    "v_mul_i32_i24": ("i32", ("i32", "i32"), lambda a, b: _i24(a) * _i24(b)),
    "v_mul_hi_u32_u24": ("u32", ("u32", "u32"), lambda a, b: _high(U64)(_u24(a), _u24(b))),
    "v_mul_hi_i32_i24": ("i32", ("i32", "i32"), lambda a, b: _high(I64)(_i24(a), _i24(b))),
    "v_mad_u32_u24": ("u32", ("u32",) * 3, lambda a, b, c: _u24(a) * _u24(b) + c),
    "v_mad_i32_i24": ("i32", ("i32",) * 3, lambda a, b, c: _i24(a) * _i24(b) + c),
    "v_sad_u8": ("u32", ("u32",) * 3, _sad(8)),
    "v_sad_u16": ("u32", ("u32",) * 3, _sad(16)),
    "v_sad_u32": ("u32", ("u32",) * 3, _sad(32)),
    **{
        f"v_{k}_{t}": (t, (t, t), f)
        for t in ("u16", "i16")
        for k, f in {"min": np.minimum, "max": np.maximum}.items()
    },
    "v_add_u16": ("u16", ("u16", "u16"), np.add),
    "v_sub_u16": ("u16", ("u16", "u16"), np.subtract),
    "v_subrev_u16": ("u16", ("u16", "u16"), lambda a, b: b - a),
    "v_add_i16": ("i16", ("i16", "i16"), np.add),
    "v_sub_i16": ("i16", ("i16", "i16"), np.subtract),
    "v_mul_lo_u16": ("u16", ("u16", "u16"), np.multiply),
    "v_mad_u16": ("u16", ("u16",) * 3, lambda a, b, c: a * b + c),
    "v_mad_i16": ("i16", ("i16",) * 3, lambda a, b, c: a * b + c),
    "v_mad_legacy_u16": ("u16", ("u16",) * 3, lambda a, b, c: a * b + c),
    "v_mad_u32_u16": ("u32", ("u16", "u16", "u32"), lambda a, b, c: _wide(a, U32) * _wide(b, U32) + c),
    "v_mad_i32_i16": ("i32", ("i16", "i16", "i32"), lambda a, b, c: _wide(a, I32) * _wide(b, I32) + c),
}  # fmt: skip

#: 16-bit results that leave the upper half of the register alone (all other 16-bit results clear it).
KEEPS_HIGH = frozenset(
    [
        "v_mad_f16",
        "v_fma_f16",
        "v_mad_u16",
        "v_mad_i16",
        "v_div_fixup_f16",
        "v_add_i16",
        "v_sub_i16",
        "v_min3_f16",
        "v_max3_f16",
        "v_med3_f16",
        "v_min3_i16",
        "v_max3_i16",
        "v_med3_i16",
        "v_min3_u16",
        "v_max3_u16",
        "v_med3_u16",
    ]
)

#: Quarter-rate instructions: 16 clocks for a wave where the others take 4.
CLOCKS16 = frozenset(
    name
    for name in VALU
    if name.split("_")[1] in ("exp", "log", "rcp", "rsq", "sqrt", "sin", "cos")
    or name in ("v_mul_lo_u32", "v_mul_hi_u32", "v_mul_hi_i32")
)
