"""Scalar instructions that are plain functions: tables from mnemonic to types, function and SCC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["COMPARES", "SAVEEXEC", "SOP1", "SOP2"]

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

COMPARES: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "lg": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip

SAVEEXEC: dict[str, Callable[[Array, Array], Array]] = {
    **{k: v for k, v in _LOGIC.items() if k not in ("andn2", "orn2")},
    "andn2": lambda s, e: s & ~e,
    "orn2": lambda s, e: s | ~e,
    "andn1": lambda s, e: ~s & e,
    "orn1": lambda s, e: ~s | e,
}
