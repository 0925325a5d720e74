"""Number formats: fused multiply-add with one rounding, bf16, the fp8 flavours, fp6, fp4 and denormal flushing."""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SMALL_FORMATS",
    "bf16_bits",
    "bf16_value",
    "decode_small",
    "encode_small",
    "flush16",
    "flush32",
    "fma16",
    "fma32",
    "fma64",
]

Array = Any  # a numpy array; what its elements are is said where it matters

_HALF32 = np.uint64(0x10000000)  # the bit below the last one that binary32 keeps of a binary64
_LOW32 = np.uint64(0x1FFFFFFF)
_HALF16 = np.uint64(1 << 41)
_LOW16 = np.uint64((1 << 42) - 1)


def _round_to_odd(product: Array, addend: Array, total: Array) -> Array:
    """`product + addend` rounded to odd, given its value rounded to nearest; binary64 throughout."""
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(np.uint64)
    even = (bits & np.uint64(1)) == 0
    fix = even & (error != 0) & np.isfinite(total)
    # towards zero if the true value is smaller in magnitude, else away; either way the last bit becomes odd
    inward = (error > 0) != (total > 0)
    step = np.where(inward, np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(1))
    return np.where(fix, bits + step, bits).view(np.float64)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in binary32, rounded once.

    The product is exact in binary64. The sum is rounded there first, which changes the result only where that
    sum lies halfway between two binary32 numbers (or is denormal): those are rounded to odd first.

    >>> float(fma32(np.float32(3), np.float32(2), np.float32(1)))
    7.0
    """
    product = np.asarray(np.multiply(a, b, dtype=np.float64))
    total = np.asarray(product + c)
    low = total.view(np.uint64) & _LOW32
    doubtful = (low == _HALF32) | (np.abs(total) < 1.2e-38)
    if doubtful.any():
        total = _round_to_odd(product, np.asarray(c, dtype=np.float64), total)
    return total.astype(np.float32)


def fma16(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in binary16, rounded once."""
    product = np.asarray(np.multiply(a, b, dtype=np.float64))
    total = np.asarray(product + c)
    low = total.view(np.uint64) & _LOW16
    if ((low == _HALF16) | (np.abs(total) < 6.2e-5)).any():
        total = _round_to_odd(product, np.asarray(c, dtype=np.float64), total)
    return total.astype(np.float16)


@lru_cache(maxsize=1)
def _libm_fma() -> Any:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.fma.restype = ctypes.c_double
    library.fma.argtypes = [ctypes.c_double] * 3
    return np.frompyfunc(library.fma, 3, 1)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in binary64, rounded once, by the C library (rare in kernels, so speed does not matter)."""
    return np.asarray(_libm_fma()(a, b, c)).astype(np.float64)


def flush32(value: Array) -> Array:
    """Denormal binary32 numbers become zeros of their sign."""
    bits = np.asarray(value).view(np.uint32)
    return np.where(bits & np.uint32(0x7F800000) == 0, bits & np.uint32(0x80000000), bits).view(np.float32)


def flush16(value: Array) -> Array:
    """Denormal binary16 numbers become zeros of their sign."""
    bits = np.asarray(value).view(np.uint16)
    return np.where(bits & np.uint16(0x7C00) == 0, bits & np.uint16(0x8000), bits).view(np.float16)


def bf16_value(bits: Array) -> Array:
    """binary32 values of bf16 bit patterns (any unsigned integer type, low 16 bits)."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_bits(value: Array) -> Array:
    """bf16 bit patterns (uint32, low 16 bits) of binary32 values: nearest even, NaNs quieted.

    >>> hex(int(bf16_bits(np.float32(1.0))))
    '0x3f80'
    """
    bits = np.asarray(value, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded)


#: name -> (exponent bits, mantissa bits, bias, kind of specials, bits)
SMALL_FORMATS = {
    "fp8_e4m3fnuz": (4, 3, 8, "fnuz", 8),
    "bf8_e5m2fnuz": (5, 2, 16, "fnuz", 8),
    "fp8_e4m3fn": (4, 3, 7, "fn", 8),
    "bf8_e5m2": (5, 2, 15, "ieee", 8),
    "fp6_e2m3": (2, 3, 1, "none", 6),
    "bf6_e3m2": (3, 2, 3, "none", 6),
    "fp4_e2m1": (2, 1, 1, "none", 4),
}


@cache
def _values(name: str) -> NDArray[np.float32]:
    exponent_bits, mantissa_bits, bias, kind, width = SMALL_FORMATS[name]
    values = np.zeros(1 << width, dtype=np.float32)
    top = (1 << exponent_bits) - 1
    for code in range(1 << width):
        sign = -1.0 if code >> (width - 1) else 1.0
        exponent = (code >> mantissa_bits) & top
        mantissa = code & ((1 << mantissa_bits) - 1)
        if exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        if kind == "fnuz" and code == 1 << (width - 1):
            value, sign = float("nan"), 1.0
        elif kind == "fn" and code & 0x7F == 0x7F:
            value = float("nan")
        elif kind == "ieee" and exponent == top:
            value = float("inf") if mantissa == 0 else float("nan")
        values[code] = sign * value
    return values


def decode_small(name: str, codes: Array) -> Array:
    """binary32 values of the codes of an 8, 6 or 4 bit format.

    >>> float(decode_small("fp8_e4m3fn", np.uint8(0x7E)))
    448.0
    """
    return _values(name)[codes]


def encode_small(name: str, value: Array, saturate: bool) -> Array:
    """Codes (uint32) of binary32 values, nearest even.

    With `saturate` a finite overflow gives the largest number, else NaN (infinity where the format has one).
    """
    _, mantissa_bits, bias, kind, width = SMALL_FORMATS[name]
    sign_bit = 1 << (width - 1)
    table = _values(name)[:sign_bit].astype(np.float64)
    finite = int(np.isfinite(table).sum())
    bits = np.asarray(value, dtype=np.float32).view(np.uint32)
    magnitude = np.abs(np.asarray(value, dtype=np.float32)).astype(np.float64)
    exponent = np.maximum(np.frexp(np.where(np.isfinite(magnitude), magnitude, 0))[1] - 1, 1 - bias)
    quantum = np.ldexp(1.0, exponent - mantissa_bits)
    rounded = np.rint(magnitude / quantum) * quantum
    codes = np.searchsorted(table[:finite], np.where(np.isfinite(rounded), rounded, 0)).astype(np.uint32)
    overflow = (rounded > table[finite - 1]) & ~np.isnan(magnitude)
    nan_code = {"fnuz": sign_bit, "fn": 0x7F, "ieee": 0x7F, "none": finite - 1}[kind]
    over_code = {"fnuz": sign_bit, "fn": 0x7F, "ieee": 0x7C, "none": finite - 1}[kind]
    clip = np.uint32(finite - 1) if saturate else np.uint32(over_code)
    codes = np.where(overflow, clip, codes)
    if saturate and kind == "ieee":
        codes = np.where(np.isinf(magnitude), np.uint32(0x7C), codes)
    codes = np.where(np.isnan(magnitude), np.uint32(nan_code), codes).astype(np.uint32)
    sign = (bits >> np.uint32(31)) << np.uint32(width - 1)
    if kind == "fnuz":  # the code of minus zero is the NaN
        sign = np.where((codes == 0) | (codes == sign_bit), np.uint32(0), sign)
    return codes | sign
