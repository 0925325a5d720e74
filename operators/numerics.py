"""Rounding to the input types on numpy arrays. Values of a 16-bit type are kept in float32 arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closedform.hw.dtypes import DType
from closedform.hw.dtypes import dtype as dtype_of
from closedform.hw.errors import BadInput

__all__ = ["Array", "accumulator", "rounded"]

#: A real array; its type is the type that its values are computed in.
Array = NDArray[Any]


def accumulator(dtype: str) -> type[np.floating[Any]]:
    """Type of sums: float64 for f64, float32 for the others."""
    return np.float64 if dtype == "f64" else np.float32


def rounded(x: Any, dtype: str, peak: float = 0.0) -> Array:
    """`x` rounded to `dtype`, to nearest with ties to even, as an array of the accumulator's type.

    With a `peak` it is the product with 2^peak that is rounded: small numbers keep more digits. Overflow gives
    infinity, as on the machine. BadInput for a type without a rounding here.

    >>> float(rounded(1.01, "bf16"))
    1.0078125
    """
    if peak:
        factor = accumulator(dtype)(2.0**peak)
        return np.asarray(rounded(x * factor, dtype) / factor)
    if dtype == "f64":
        return np.asarray(x, dtype=np.float64)
    with np.errstate(over="ignore"):
        if dtype == "f32":
            return np.asarray(x).astype(np.float32)
        if dtype == "f16":
            return np.asarray(x).astype(np.float16).astype(np.float32)
        if dtype == "bf16":
            return _bf16(np.asarray(x).astype(np.float32))
        if dtype == "i8":
            return np.asarray(np.clip(np.rint(np.asarray(x)), -128, 127), np.float32)
        if dtype == "i32":
            return np.asarray(np.rint(np.asarray(x)), np.float32)
        kind = dtype_of(dtype)
        if dtype == "xf32" or kind.bits == 8:
            return _narrow(np.asarray(x, dtype=np.float64), kind).astype(np.float32)
    raise BadInput(f"no rounding to {dtype!r} is known here")


def _bf16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Upper 16 bits after adding half a unit less one, plus the last kept bit: nearest, ties to even."""
    bits = x.view(np.uint32)
    with np.errstate(over="ignore"):
        kept = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, kept.view(np.float32)).astype(np.float32)


def _narrow(x: NDArray[np.float64], kind: DType) -> NDArray[np.float64]:
    """To the spacing of a float of `precision` bits, ties to even; what exceeds the largest number is clamped to it."""
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    least = np.frexp(kind.min_normal)[1]
    step = np.ldexp(1.0, np.maximum(exponent, least) - kind.precision)
    return np.where(np.isnan(x), x, np.clip(np.rint(x / step) * step, -kind.max_finite, kind.max_finite))
