"""What an operator must give, in float64, with what its rounding errors are measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from closedform.hw.dtypes import dtype as dtype_of

from .attention import Attention
from .conv2d import Conv2d
from .conv2d_reference import channels_first, convolved, finished
from .gemm import Gemm
from .gemm_epilogue import epilogue
from .numerics import Array, rounded
from .operator import Operator
from .softmax import Softmax

__all__ = [
    "Reference",
    "attention_reference",
    "conv2d_reference",
    "gemm_reference",
    "input_dtype",
    "lse_reference",
    "reference",
    "softmax_reference",
]

#: Scores that are held in memory at a time.
SCORES_AT_ONCE = 2**22
#: No activation is steeper.
STEEPEST = 1.13


@dataclass(frozen=True, slots=True)
class Reference:
    """Exact result `out` of the rounded inputs, and sums that its rounding errors scale with, of its shape.

    `size` is what an error is measured against: |D| of gemm, and P |V| of attention, the size of what it
    averages, which stays where the average itself cancels. `growth` is the part of the error that comes from
    rounding to the accumulator's type, in units of its roundoff. `lost` is the sum of |V| over the sum of
    exponentials: what a fixed error of every P comes to.
    """

    out: Array
    size: Array
    growth: Array
    lost: Array


def input_dtype(op: Operator, name: str) -> str:
    """Type of an input: the operator's, but C has that of D, bias is f32 and a mask holds bytes."""
    if isinstance(op, Gemm) and name == "C":
        return op.result
    return {"bias": "f32", "mask": "i8"}.get(name, op.dtype)


def reference(
    op: Operator,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    scale: float = 1.0,
    **inputs: Array,
) -> Reference:
    """The reference of the operator on inputs Q, K, V, or A, B (as stored), C and bias, or X and mask, or X, W (as
    stored) and bias, rounded to their types.

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
        k, v = (np.repeat(exact[name], op.group, axis=1) for name in "KV")
        return attention_reference(exact["Q"], k, v, op.scale)


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


def attention_reference(q: Array, k: Array, v: Array, scale: float) -> Reference:
    """softmax(Q K^T scale) V along the last two axes; a row whose logits are all -inf gives 0.

    `growth` collects, for each weight p_j, the errors that reach its exponent in units of the f32 roundoff:

        e_j = 2 sqrt(d) (|s_j| + t_j) + 5 |s_j - m| + 2

    s_j is the scaled logit and t_j the 2-norm of its d terms. A partial sum of terms in no particular order
    stays near |s_j| + t_j, and d rounding errors of such sums add up like sqrt(d) (Higham and Mary, "A new
    approach to probabilistic rounding error analysis", 2019; the factor 2 is their lambda). 5 |s_j - m| is
    the difference, the product and the three roundings in the scale; 2 is exp2's unit in the last place.
    The weights enter numerator and denominator, and the sums over keys themselves add 2 sqrt(L) to both.
    """
    return _by_rows(lambda part: _attention_rows(part, k, v, scale), q, k)


def lse_reference(op: Attention, q: Array, k: Array) -> Reference:
    """log sum exp(Q K^T scale) of each query on an axis of its own, [batch, heads, L_q, 1]; -inf without visible keys.

    `growth` has the errors e_j of `attention_reference`, weighted by p_j, those of the sum, its logarithm, and the
    reference logit. `size` stays at 1 where the logarithm vanishes.
    """
    q, k = (rounded(x, op.dtype).astype(np.float64) for x in (q, k))
    k = np.repeat(k, op.group, axis=1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return _by_rows(lambda part: _lse_rows(part, k, op.scale), q, k)


def _lse_rows(q: Array, k: Array, scale: float) -> Reference:
    kt = np.swapaxes(k, -1, -2)
    s = q @ kt * scale
    m = s.max(axis=-1, keepdims=True)
    m = np.where(np.isinf(m), 0.0, m)
    p = np.exp(s - m)
    total = p.sum(axis=-1, keepdims=True)
    out = m + np.log(total)
    terms = np.sqrt(np.square(q) @ np.square(kt)) * scale
    exponent = 2 * np.sqrt(q.shape[-1]) * (np.abs(s) + terms) + 5 * np.abs(s - m) + 2
    growth = np.where(p == 0, 0.0, p / total * np.where(p == 0, 0.0, exponent)).sum(axis=-1, keepdims=True)
    growth = growth + 2 * np.sqrt(k.shape[-2]) + 4 * (np.abs(m) + np.abs(out) + 1)
    growth = np.where(np.isfinite(out), growth, 0.0)
    return Reference(out, np.maximum(np.abs(out), 1.0), growth, np.zeros_like(out))


def _by_rows(compute: Callable[[Array], Reference], q: Array, k: Array) -> Reference:
    """`compute` of so many queries at a time that their scores fit in memory."""
    rows = max(1, SCORES_AT_ONCE // (k.size // k.shape[-1]))
    if q.shape[-2] <= rows:
        return compute(q)
    parts = [compute(q[..., start : start + rows, :]) for start in range(0, q.shape[-2], rows)]
    joined = (np.concatenate([getattr(part, field) for part in parts], axis=-2) for field in Reference.__slots__)
    return Reference(*joined)


def _attention_rows(q: Array, k: Array, v: Array, scale: float) -> Reference:
    d, keys = q.shape[-1], k.shape[-2]
    kt = np.swapaxes(k, -1, -2)
    s = q @ kt * scale
    m = s.max(axis=-1, keepdims=True)
    m = np.where(np.isneginf(m), 0.0, m)
    p = np.exp(s - m)
    total = p.sum(axis=-1, keepdims=True)
    total = np.where(total == 0, 1.0, total)
    p = p / total
    out = p @ v
    size = p @ np.abs(v)
    terms = np.sqrt(np.square(q) @ np.square(kt)) * scale
    exponent = 2 * np.sqrt(d) * (np.abs(s) + terms) + 5 * np.abs(s - m) + 2
    weighted = np.where(p == 0, 0.0, p * np.where(p == 0, 0.0, exponent))
    growth = weighted @ np.abs(v) + weighted.sum(axis=-1, keepdims=True) * np.abs(out)
    growth = growth + 2 * np.sqrt(keys) * (size + np.abs(out)) + 4 * np.abs(out)
    lost = np.abs(v).sum(axis=-2, keepdims=True) / total
    return Reference(out, size, growth, lost)


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
