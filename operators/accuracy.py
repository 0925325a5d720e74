"""How far a result is from its reference, and how far rounding alone may take it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from closedform.hw.dtypes import dtype as dtype_of

from .attention import Attention
from .attention_reference import Reference
from .numerics import Array
from .operator import Operator
from .softmax import Softmax

__all__ = ["Accuracy", "compare", "compare_lse", "error_bound", "relative_error"]


def relative_error(out: Array, reference: Array, size: Array | None = None) -> Array:
    """Largest error of each row (last axis), relative to the row's largest `size`, by default |reference|.

    Where the reference is not finite the result must be the same NaN or infinity, else the error is infinite;
    such elements count for nothing otherwise. A row of zeros must be met exactly.

    >>> relative_error(np.array([[1.0, 4.5]]), np.array([[1.0, 4.0]])).tolist()
    [0.125]
    """
    out, reference = np.asarray(out, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(reference)
    with np.errstate(invalid="ignore"):
        same = (out == reference) | (np.isnan(out) & np.isnan(reference))
        error = np.where(same, 0.0, np.where(finite & np.isfinite(out), np.abs(out - reference), np.inf))
    size = np.abs(reference) if size is None else size
    return _by_row(error.max(axis=-1), np.where(finite, size, 0.0).max(axis=-1))


def error_bound(op: Operator, reference: Reference) -> Array:
    """Bound of `relative_error` for each row, from the roundings that the computation makes.

    To first order an element may be off by

        u |out|           rounding of the result to the dtype, roundoff u
      + u size            rounding of P to the dtype (attention of 16-bit types: f32 keeps its P)
      + v growth          everything that is computed in the accumulator's type, roundoff v
      + tiny (1 + lost)   half a step of the dtype below its normal numbers: of the result, and of each P

      + 1/2             of a whole number, where the result is none

    and a row's bound is its largest element's, relative to the largest `size`. Attention of n keys in f32
    thus stays near sqrt(d) roundoffs, of 16-bit types within 2 and a little.

    `growth` takes roundings to be independent. Inputs whose terms are all alike repeat one rounding, and may
    exceed it.
    """
    kind = dtype_of(op.dtype if isinstance(op, Softmax) else op.result)
    v = dtype_of("f64" if op.dtype == "f64" else "f32").unit_roundoff
    u = kind.unit_roundoff
    tiny = kind.min_normal * u
    bound = u * np.abs(reference.out) + v * reference.growth
    if isinstance(op, Attention) and op.elem_bytes < 4:
        p = dtype_of(op.p_dtype)
        step = p.min_normal * p.unit_roundoff / 2.0**op.peak
        bound = bound + p.unit_roundoff * reference.size + step * reference.lost
    if u == 0:  # whole numbers
        bound = bound + np.where(reference.out == np.rint(reference.out), 0.0, 0.5)
    bound = np.where(bound == 0, 0.0, bound + tiny)  # a sum without terms is rounded nowhere
    finite = np.isfinite(reference.out)
    bound, size = (np.where(finite, x, 0.0).max(axis=-1) for x in (bound, reference.size))
    return _by_row(bound, size)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Verdict on a result: its largest relative error, that row's bound, and whether all rows keep theirs.

    `share` is the largest error as a share of its own row's bound: 1 would use the bound up.
    """

    max_rel_error: float
    bound: float
    share: float
    ok: bool


def compare(op: Operator, out: Array, reference: Reference) -> Accuracy:
    """Every row of `out` against its own bound."""
    error = relative_error(out, reference.out, reference.size).ravel()
    bound = error_bound(op, reference).ravel()
    share = _by_row(error, bound)
    worst = int(error.argmax())
    return Accuracy(float(error[worst]), float(bound[worst]), float(share.max()), bool((error <= bound).all()))


def compare_lse(op: Attention, lse: Array, reference: Reference) -> Accuracy:
    """The log-sum-exp of attention, [batch, heads, L_q], against its own bound: f32 whatever the type of the inputs."""
    return compare(replace(op, dtype="f32"), lse[..., None], reference)


def _by_row(error: Array, size: Array) -> Array:
    """error / size, with 0 / 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / size)
