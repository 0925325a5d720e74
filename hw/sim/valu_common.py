"""Small helpers that the tables of vector instructions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Array", "Entry", "max_num", "min_num", "pack16", "saturating", "wide"]

Array = Any  # a numpy array; what its elements are is said where it matters
#: Type of the result, types of the sources, function.
Entry = tuple[str, tuple[str, ...], Callable[..., Any]]

min_num, max_num = np.fmin, np.fmax  # IEEE 754-2008 minNum and maxNum: a NaN loses against a number


def wide(a: Array, dtype: Any) -> Array:
    """The array as another type."""
    return np.asarray(a).astype(dtype)


def pack16(low: Array, high: Array) -> Array:
    """Two 16-bit arrays as one of uint32."""
    return wide(np.asarray(low).view(np.uint16), np.uint32) | (
        wide(np.asarray(high).view(np.uint16), np.uint32) << np.uint32(16)
    )


def saturating(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """An integer sum or difference that stops at the bounds of its type, as the clamp modifier asks."""
    bounds = np.iinfo({"u": "uint", "i": "int"}[kind[0]] + kind[1:])

    def run(a: Array, b: Array) -> Array:
        exact = function(np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64))
        return np.clip(exact, bounds.min, bounds.max).astype(bounds.dtype)

    return run
