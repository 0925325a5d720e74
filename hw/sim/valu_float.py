"""Vector instructions on floats that are plain functions, and conversions from and to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .floats import bf16_bits, flush32, fma16, fma32, fma64
from .valu_common import Array, Entry, max_num, min_num, pack16, wide

__all__ = ["FLOATS"]

U16, U32, I32, F32, F64 = np.uint16, np.uint32, np.int32, np.float32, np.float64


def _clamped(low: float, high: float, dtype: Any) -> Callable[[Array], Array]:
    """Float to integer: towards zero, out of range to the nearest bound, NaN to 0."""

    def run(a: Array) -> Array:
        value = np.trunc(wide(a, F64))
        return np.where(np.isnan(value), 0, np.clip(value, low, high)).astype(dtype)

    return run


def _fract(a: Array) -> Array:
    one = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    return np.minimum(a - np.floor(a), one)


def _median(a: Array, b: Array, c: Array) -> Array:
    """The middle one of three; with a NaN the smallest number, as the ISA has it."""
    middle = max_num(min_num(a, b), min_num(max_num(a, b), c))
    if np.asarray(a).dtype.kind == "f":
        nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
        return np.where(nan, min_num(min_num(a, b), c), middle)
    return middle


def _frexp_exponent(a: Array) -> Array:
    return np.asarray(np.where(np.isfinite(a), np.frexp(a)[1], 0), I32)


def _frexp_mantissa(a: Array) -> Array:
    return np.asarray(np.where(np.isfinite(a), np.frexp(a)[0], a), np.asarray(a).dtype)


def _ldexp32(a: Array, e: Array) -> Array:
    return np.ldexp(wide(a, F64), np.clip(e, -400, 400)).astype(F32)


def _ldexp64(a: Array, e: Array) -> Array:
    return np.ldexp(a, np.clip(e, -4000, 4000))


def _transcendental(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """binary32 function computed in binary64 and rounded once; the unit flushes denormals on both sides."""
    return lambda a: flush32(np.asarray(function(wide(flush32(a), F64)).astype(F32)))


def _half(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda a: function(wide(a, F64)).astype(np.float16)


def _reciprocal(a: Array) -> Array:
    return 1.0 / a


def _rsqrt(a: Array) -> Array:
    return 1.0 / np.sqrt(a)


def _sin(a: Array) -> Array:
    return np.where(np.isfinite(a), np.sin(2 * np.pi * np.fmod(a, 1.0)), np.nan)


def _cos(a: Array) -> Array:
    return np.where(np.isfinite(a), np.cos(2 * np.pi * np.fmod(a, 1.0)), np.nan)


def _toward_zero16(a: Array) -> Array:
    near = np.asarray(a, F32).astype(np.float16)
    over = np.abs(wide(near, F64)) > np.abs(wide(a, F64))
    bits = near.view(U16)
    return np.where(over, bits - U16(1), bits).astype(U16).view(np.float16)


def _norm16(top: float, dtype: Any) -> Callable[[Array], Array]:
    low = -1.0 if dtype is np.int16 else 0.0
    return lambda a: np.rint(np.where(np.isnan(a), 0, np.clip(wide(a, F64), low, 1.0)) * top).astype(dtype)


def _legacy_mul(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), F32(0), a * b)


def _byte(k: int) -> Callable[[Array], Array]:
    return lambda a: wide((a >> U32(8 * k)) & U32(0xFF), F32)


_PARTS: dict[str, Callable[..., Any]] = {
    "trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint, "fract": _fract,
    "frexp_mant": _frexp_mantissa,
}  # fmt: skip


_F32_2: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "subrev": lambda a, b: b - a, "mul": np.multiply, "min": min_num, "max": max_num,
}  # fmt: skip


FLOATS: dict[str, Entry] = {
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
    **{f"v_{k}_f{w}": (f"f{w}", (f"f{w}",), f) for w in (16, 32, 64) for k, f in _PARTS.items()},
    "v_frexp_exp_i32_f32": ("i32", ("f32",), _frexp_exponent),
    "v_frexp_exp_i32_f64": ("i32", ("f64",), _frexp_exponent),
    "v_frexp_exp_i16_f16": ("i16", ("f16",), _frexp_exponent),
    "v_ldexp_f32": ("f32", ("f32", "i32"), _ldexp32),
    "v_ldexp_f64": ("f64", ("f64", "i32"), _ldexp64),
    "v_ldexp_f16": ("f16", ("f16", "i16"), lambda a, e: np.ldexp(wide(a, F64), wide(e, I32)).astype(np.float16)),
    # conversions
    "v_cvt_f32_f16": ("f32", ("f16",), lambda a: wide(a, F32)),
    "v_cvt_f16_f32": ("f16", ("f32",), lambda a: wide(a, np.float16)),
    "v_cvt_f32_f64": ("f32", ("f64",), lambda a: wide(a, F32)),
    "v_cvt_f64_f32": ("f64", ("f32",), lambda a: wide(a, F64)),
    "v_cvt_f32_i32": ("f32", ("i32",), lambda a: wide(a, F32)),
    "v_cvt_f32_u32": ("f32", ("u32",), lambda a: wide(a, F32)),
    "v_cvt_f64_i32": ("f64", ("i32",), lambda a: wide(a, F64)),
    "v_cvt_f64_u32": ("f64", ("u32",), lambda a: wide(a, F64)),
    "v_cvt_i32_f32": ("i32", ("f32",), _clamped(-(2**31), 2**31 - 1, I32)),
    "v_cvt_u32_f32": ("u32", ("f32",), _clamped(0, 2**32 - 1, U32)),
    "v_cvt_i32_f64": ("i32", ("f64",), _clamped(-(2**31), 2**31 - 1, I32)),
    "v_cvt_u32_f64": ("u32", ("f64",), _clamped(0, 2**32 - 1, U32)),
    "v_cvt_f16_u16": ("f16", ("u16",), lambda a: wide(wide(a, F32), np.float16)),
    "v_cvt_f16_i16": ("f16", ("i16",), lambda a: wide(a, F32).astype(np.float16)),
    "v_cvt_u16_f16": ("u16", ("f16",), _clamped(0, 65535, U16)),
    "v_cvt_i16_f16": ("i16", ("f16",), _clamped(-32768, 32767, np.int16)),
    "v_cvt_rpi_i32_f32": ("i32", ("f32",), lambda a: _clamped(-(2**31), 2**31 - 1, I32)(np.floor(wide(a, F64) + 0.5))),
    "v_cvt_flr_i32_f32": ("i32", ("f32",), lambda a: _clamped(-(2**31), 2**31 - 1, I32)(np.floor(wide(a, F64)))),
    **{f"v_cvt_f32_ubyte{k}": ("f32", ("u32",), _byte(k)) for k in range(4)},
    "v_cvt_pkrtz_f16_f32": ("u32", ("f32", "f32"), lambda a, b: pack16(_toward_zero16(a), _toward_zero16(b))),
    "v_cvt_pk_f16_f32": ("u32", ("f32", "f32"), lambda a, b: pack16(wide(a, np.float16), wide(b, np.float16))),
    "v_cvt_pk_bf16_f32": ("u32", ("f32", "f32"), lambda a, b: bf16_bits(a) | (bf16_bits(b) << U32(16))),
    "v_cvt_pknorm_i16_f32": (
        "u32", ("f32", "f32"), lambda a, b: pack16(_norm16(32767, np.int16)(a), _norm16(32767, np.int16)(b)),
    ),
    "v_cvt_pknorm_u16_f32": (
        "u32", ("f32", "f32"), lambda a, b: pack16(_norm16(65535, U16)(a), _norm16(65535, U16)(b)),
    ),
    "v_cvt_pk_u16_u32": (
        "u32", ("u32", "u32"), lambda a, b: np.minimum(a, U32(0xFFFF)) | (np.minimum(b, U32(0xFFFF)) << U32(16)),
    ),
    "v_cvt_pk_i16_i32": (
        "u32", ("i32", "i32"),
        lambda a, b: pack16(np.clip(a, -32768, 32767).astype(np.int16), np.clip(b, -32768, 32767).astype(np.int16)),
    ),
}  # fmt: skip
