"""Memory of GEMM tests, where every operand lies among NaN, and what a GEMM must give in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from closedform.operators.gemm import Gemm

#: Words that mean NaN in types that numpy lacks; whole numbers have none: their largest value stands out.
NANS = {"bf16": 0x7FC0, "fp8_e4m3fnuz": 0x80, "bf8_e5m2fnuz": 0x80, "fp8_e4m3fn": 0x7F, "bf8_e5m2": 0x7F}


def nan_word(dtype: str, words: Any) -> Any:
    """NaN as memory of the type holds it."""
    if dtype in NANS:
        return NANS[dtype]
    return np.nan if words.kind == "f" else np.iinfo(words).max


def surrounded(values: Any, dtype: str, leading: int = 0) -> tuple[Any, Any]:
    """(view, allocation): [batch, rows, columns] words with NaN before, behind and between the rows.

    `leading` elements are between rows; with 0 whole accesses of 16 elements, more than a row is long.
    """
    batch, rows, columns = values.shape
    leading = leading or columns // 16 * 16 + 32
    base = np.full((batch, rows + 2, leading), nan_word(dtype, values.dtype), values.dtype)
    view = base[:, 1 : rows + 1, :columns]
    view[...] = values
    return view, base


def untouched(view: Any, base: Any, dtype: str) -> bool:
    """Whether everything of the allocation but the view still is NaN."""
    kept = base.copy()
    kept[:, 1 : view.shape[1] + 1, : view.shape[2]] = word = nan_word(dtype, base.dtype)
    return kept.tobytes() == np.full_like(base, word).tobytes()


def phi(x: Any) -> Any:
    """The normal distribution function, accurate in both tails."""
    return np.vectorize(lambda v: math.erfc(-v / math.sqrt(2.0)) / 2, otypes=[np.float64])(x)


def activated(name: str, x: Any) -> Any:
    """The activation in float64; at -inf the limit."""
    with np.errstate(all="ignore"):
        if name == "relu":
            return np.where(x < 0, 0.0, x)
        low = np.isneginf(x)
        if name == "silu":
            return np.where(low, 0.0, x / (1 + np.exp(-x)))
        if name == "gelu_tanh":
            return np.where(low, 0.0, x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
        return np.where(low, 0.0, x * phi(x)) if name == "gelu" else x


def expected(op: Gemm, a: Any, b: Any, c: Any, bias: Any, alpha: float, beta: float, scale: float) -> Any:
    """act(alpha op(A) op(B) + beta C + bias) scale in float64, as whole numbers where D holds such; a factor of 0
    leaves its term out.
    """
    left = a if op.layout[0] == "N" else np.swapaxes(a, 1, 2)
    right = b if op.layout[1] == "N" else np.swapaxes(b, 1, 2)
    with np.errstate(all="ignore"):
        out = alpha * (left @ right) if alpha else np.zeros((*left.shape[:2], right.shape[2]))
        if c is not None and beta:
            out = out + beta * c
        if bias is not None:
            out = out + (np.swapaxes(bias, 1, 2) if op.bias == "row" else bias)
        out = activated(op.activation, out) * scale
        return np.clip(np.rint(out), -(2.0**31), 2.0**31 - 1) if op.result == "i32" else out
