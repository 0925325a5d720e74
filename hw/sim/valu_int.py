"""Vector instructions on integers and bits that are plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .valu_common import Array, Entry, pack16, wide

__all__ = ["INTEGERS"]

U32, U64, I32, I64, F64 = np.uint32, np.uint64, np.int32, np.int64, np.float64


def _high(dtype: Any, bits: int = 32) -> Callable[[Array, Array], Array]:
    return lambda a, b: ((wide(a, dtype) * wide(b, dtype)) >> dtype(bits)).astype(U32 if dtype is U64 else I32)


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
    both = (wide(a, U64) << U64(32)) | wide(b, U64)
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
        total = wide(c, I64)
        mask = (1 << width) - 1
        for part in range(32 // width):
            x = (wide(a, I64) >> (width * part)) & mask
            y = (wide(b, I64) >> (width * part)) & mask
            total = total + np.abs(x - y)
        return total.astype(U32)

    return run


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
    exponent = np.frexp(wide(a, F64))[1]
    return np.asarray(np.where(np.asarray(a) == 0, -1, 32 - exponent), I32)


def _find_low(a: Array) -> Array:
    value = np.asarray(a)
    lowest = value & (~value + U32(1))
    return np.where(value == 0, -1, np.frexp(wide(lowest, F64))[1] - 1).astype(I32)


def _find_high_signed(a: Array) -> Array:
    return _find_high(_bits(np.asarray(a) ^ (np.asarray(a) >> 31)))


def _alignbit(shift_unit: int) -> Callable[[Array, Array, Array], Array]:
    def run(a: Array, b: Array, c: Array) -> Array:
        both = (wide(a, U64) << U64(32)) | wide(b, U64)
        amount = (wide(c, U64) & U64(31 if shift_unit == 1 else 3)) * U64(shift_unit)
        return (both >> amount).astype(U32)

    return run


def _i24(a: Array) -> Array:
    return np.asarray(a << 8) >> 8


def _u24(a: Array) -> Array:
    return a & U32(0xFFFFFF)


def _shift(left: bool, mask: int) -> Callable[[Array, Array], Array]:
    """Reversed operands: the amount comes first."""
    if left:
        return lambda n, a: a << (n & n.dtype.type(mask)).astype(a.dtype)
    return lambda n, a: a >> (n & n.dtype.type(mask)).astype(a.dtype)


_UNSIGNED: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "subrev": lambda a, b: b - a, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


_THREE: dict[str, Callable[..., Any]] = {
    "min": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "max": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "med": lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)),
}


INTEGERS: dict[str, Entry] = {
    "v_pack_b32_f16": ("u32", ("f16", "f16"), pack16),
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
    **{f"v_{k}_u32": ("u32", ("u32", "u32"), f) for k, f in _UNSIGNED.items()},
    "v_add_i32": ("i32", ("i32", "i32"), np.add),
    "v_sub_i32": ("i32", ("i32", "i32"), np.subtract),
    "v_min_i32": ("i32", ("i32", "i32"), np.minimum),
    "v_max_i32": ("i32", ("i32", "i32"), np.maximum),
    **{f"v_{k}3_{t}": (t, (t,) * 3, f) for t in ("i32", "u32", "i16", "u16") for k, f in _THREE.items()},
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
    "v_mad_u32_u16": ("u32", ("u16", "u16", "u32"), lambda a, b, c: wide(a, U32) * wide(b, U32) + c),
    "v_mad_i32_i16": ("i32", ("i16", "i16", "i32"), lambda a, b, c: wide(a, I32) * wide(b, I32) + c),
}  # fmt: skip
