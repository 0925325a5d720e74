"""What an operator must give, in float64, with what its rounding errors are measured against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from closedform.hw.dtypes import dtype as dtype_of

from .attention import Attention
from .attention_reference import Reference, attention_reference
from .conv2d import Conv2d
from .conv2d_reference import channels_first, convolved, finished
from .gemm import Gemm
from .gemm_epilogue import epilogue
from .numerics import Array, rounded
from .operator import Operator
from .softmax import Softmax

__all__ = ["conv2d_reference", "gemm_reference", "input_dtype", "lse_reference", "reference", "softmax_reference"]

#: Types of inputs that are not the operator's.
INPUT_DTYPES = {"bias": "f32", "slopes": "f32", "mask": "i8", "query_lengths": "i32", "key_lengths": "i32"}
#: No activation is steeper.
STEEPEST = 1.13


def input_dtype(op: Operator, name: str) -> str:
    """Type of an input: the operator's, but C has that of D, bias is f32 and a mask holds bytes."""
    if isinstance(op, Gemm) and name == "C":
        return op.result
    return INPUT_DTYPES.get(name, op.dtype)


def reference(
    op: Operator,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    scale: float = 1.0,
    **inputs: Array,
) -> Reference:
    """The reference of the operator on inputs Q, K, V and what its options take, or A, B (as stored), C and bias, or X
    and mask, or X, W (as stored) and bias, rounded to their types.

    alpha, beta and scale are those of gemm's epilogue.
    """
    exact = {name: rounded(x, input_dtype(op, name)).astype(np.float64) for name, x in inputs.items()}
    with np.errstate(invalid="ignore", over="ignore"):
        if isinstance(op, Gemm):
            sums = gemm_reference(exact["A"], exact["B"], op.layout)
            return _finished(op, sums, exact, alpha, beta, scale)
        if isinstance(op, Softmax):
            return softmax_reference(op, exact["X"], exact.get("mask"))
        if isinstance(op, Conv2d):
            return conv2d_reference(op, exact["X"], exact["W"], exact.get("bias"))
        return attention_reference(op, exact)[0]


def lse_reference(op: Attention, **inputs: Array) -> Reference:
    """The log-sum-exp of each query of attention on an axis of its own, on the inputs of `reference`."""
    exact = {name: rounded(x, input_dtype(op, name)).astype(np.float64) for name, x in inputs.items()}
    return attention_reference(op, exact)[1]


def _finished(op: Gemm, sums: Reference, exact: dict[str, Array], alpha: float, beta: float, scale: float) -> Reference:
    """The reference behind the epilogue. Its terms each add a rounding."""
    out = _held(epilogue(op, sums.out, exact, alpha, beta, scale), op.result)
    if (op.has_c, op.bias, op.activation, alpha, scale) == (False, "none", "none", 1.0, 1.0):
        return replace(sums, out=out)
    terms = np.abs(alpha) * sums.size
    if op.has_c:
        terms = terms + np.abs(beta * exact["C"])
    if op.bias != "none":
        bias = np.abs(exact["bias"])
        terms = terms + (bias[:, :, None] if op.bias == "row" else bias[:, None, :])
    growth = (STEEPEST * (np.abs(alpha) * sums.growth + 8 * terms) + 8 * np.abs(out)) * np.abs(scale)
    return Reference(out, np.maximum(np.abs(out), terms * np.abs(scale)), growth, np.zeros_like(out))


def _held(out: Array, dtype: str) -> Array:
    """What memory of that type holds beyond its largest number: that number in 8 bits, infinity in wider floats."""
    return np.where(np.abs(out) > dtype_of(dtype).max_finite, rounded(out, dtype), out)


def gemm_reference(a: Array, b: Array, layout: str = "NN") -> Reference:
    """op(A) op(B) along the last two axes; `growth` is 2 sqrt(K) times the 2-norm and the size of each sum.

    The 2-norm bounds partial sums of terms in no particular order, as in `attention_reference`.
    """
    a = a if layout[0] == "N" else np.swapaxes(a, -1, -2)
    b = b if layout[1] == "N" else np.swapaxes(b, -1, -2)
    out = a @ b
    terms = np.sqrt(np.square(a) @ np.square(b))
    growth = 2 * np.sqrt(a.shape[-1]) * (np.abs(out) + terms)
    return Reference(out, np.abs(out), growth, np.zeros_like(out))


def softmax_reference(op: Softmax, x: Array, mask: Array | None = None) -> Reference:
    """Softmax or log-softmax along the last axis; `growth` in units of the f32 roundoff is

        p (5 (m - x) + 2 sqrt(cols) + 8)          exp: difference, product and scale in the exponent, the sum, 1 / l
        3 |x - m| + 2 sqrt(cols) + 2 |log l| + 4  log: the differences, the sum in its logarithm

    as for attention. Where p is 0 the exponent counts for nothing.
    """
    x = x if mask is None else np.where(mask != 0, x, -np.inf)
    with np.errstate(divide="ignore"):
        m = x.max(axis=-1, keepdims=True)
        safe = np.where(np.isneginf(m), 0.0, m)
        below = x - safe
        p = np.exp(below)
        total = p.sum(axis=-1, keepdims=True)
        empty = np.isneginf(m) & (op.empty == "zero")
        log_total = np.log(np.where(empty, 1.0, total))
        steps = 2 * np.sqrt(op.cols)
        if op.log:
            out = below - log_total
            far = np.where(np.isfinite(out), np.abs(below), 0.0)
            growth = 3 * far + steps + 2 * np.abs(log_total) + 4
        else:
            out = np.where(empty, 0.0, p / np.where(empty, 1.0, total))
            growth = np.where(p == 0, 0.0, out * (5 * np.where(p == 0, 0.0, np.abs(below)) + steps + 8))
    growth = np.where(np.isfinite(out), growth, 0.0)
    return Reference(out, np.abs(out), growth, np.zeros_like(out))


def conv2d_reference(op: Conv2d, x: Array, w: Array, bias: Array | None = None) -> Reference:
    """Y as stored of X and W as stored; `growth` as of a product, whose K are the taps and channels of a group."""
    x, w = channels_first(op, x), channels_first(op, w)
    last = (0, 2, 3, 1) if op.layout == "NHWC" else (0, 1, 2, 3)
    sums = convolved(op, x, w).transpose(last)
    terms = np.sqrt(convolved(op, np.square(x), np.square(w))).transpose(last)
    growth = 2 * np.sqrt(op.KH * op.KW * op.channels) * (np.abs(sums) + terms)
    if bias is None and op.activation == "none":
        return Reference(sums, np.abs(sums), growth, np.zeros_like(sums))
    out = finished(op, sums, bias)
    size = np.abs(sums)
    if bias is not None:
        size = size + np.abs(bias).reshape((-1, 1, 1) if op.layout == "NCHW" else (-1,))
    growth = STEEPEST * (growth + 8 * size) + 8 * np.abs(out)
    return Reference(out, np.maximum(np.abs(out), size), growth, np.zeros_like(out))
