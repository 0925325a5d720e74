"""Atomic operations on bytes in place, lane after lane: the order of lanes is the order of the updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ATOMICS", "apply_atomic"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: Suffix of the instruction -> (type, compares first).
ATOMICS: dict[str, tuple[str, bool]] = {
    "add": ("u32", False), "sub": ("u32", False), "smin": ("i32", False), "smax": ("i32", False),
    "umin": ("u32", False), "umax": ("u32", False), "and": ("u32", False), "or": ("u32", False),
    "xor": ("u32", False), "inc": ("u32", False), "dec": ("u32", False), "swap": ("u32", False),
    "cmpswap": ("u32", True), "add_f32": ("f32", False), "pk_add_f16": ("pkf16", False),
    "pk_add_bf16": ("pkbf16", False), "add_x2": ("u64", False), "sub_x2": ("u64", False),
    "smin_x2": ("i64", False), "smax_x2": ("i64", False), "umin_x2": ("u64", False), "umax_x2": ("u64", False),
    "and_x2": ("u64", False), "or_x2": ("u64", False), "xor_x2": ("u64", False), "swap_x2": ("u64", False),
    "cmpswap_x2": ("u64", True), "add_f64": ("f64", False), "min_f64": ("f64", False), "max_f64": ("f64", False),
}  # fmt: skip

_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "sub": lambda old, new: old - new,
    "smin": min, "smax": max, "umin": min, "umax": max, "min": min, "max": max,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "inc": lambda old, new: old.dtype.type(0) if old >= new else old + old.dtype.type(1),
    "dec": lambda old, new: new if old == 0 or old > new else old - old.dtype.type(1),
    "swap": lambda old, new: new,
}  # fmt: skip


def _packed_add(kind: str, old: Array, new: Array) -> Array:
    if kind == "pkf16":
        return (old.view(np.float16) + new.view(np.float16)).view(np.uint8)
    from .floats import bf16_bits, bf16_value

    total = bf16_value(old.view(np.uint16)) + bf16_value(new.view(np.uint16))
    return bf16_bits(total).astype(np.uint16).view(np.uint8)


def apply_atomic(
    suffix: str, old: NDArray[np.uint8], new: NDArray[np.uint8], expected: NDArray[np.uint8] | None
) -> Array:
    """Bytes after one update of `old` (the bytes at the address) with `new`."""
    kind, _ = ATOMICS[suffix]
    if kind.startswith("pk"):
        return _packed_add(kind, old, new)
    if expected is not None:
        return new if bytes(old) == bytes(expected) else old
    dtype = np.dtype({"u": "u", "i": "i", "f": "f"}[kind[0]] + str(int(kind[1:]) // 8))
    operation = suffix.removesuffix("_x2").removesuffix("_f32").removesuffix("_f64")
    value = _UPDATES[operation](old.view(dtype)[0], new.view(dtype)[0])
    return np.array([value], dtype).view(np.uint8)
