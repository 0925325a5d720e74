"""The online-softmax monoid: running maximum and running sum of exponentials.

(m_a, l_a) + (m_b, l_b) = (m, l_a 2^((m_a - m) c) + l_b 2^((m_b - m) c)) with m = max(m_a, m_b) and identity
(-inf, 0). Here m is a raw logit, and c = scale * log2(e) turns differences of logits into powers of two.
The difference is formed before the scaling: s c - m c by one fused multiply-add would leave the rounding
error of m c in the exponent, which overflows once |m c| is past 2^31, and at the maximum it must be exactly
0.

Source of the recurrence: Milakov and Gimelshein, arXiv 1805.02867.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .numerics import Array

__all__ = ["LOG2_E", "SoftmaxState", "log2_scale", "merged", "power", "raised"]

LOG2_E = 1.4426950408889634


def log2_scale(scale: float) -> np.float32:
    """c = scale * log2(e), in f32 as a kernel computes it."""
    return np.float32(np.float32(scale) * np.float32(LOG2_E))


def power(x: Array, m: Array, c: np.float32) -> Array:
    """2^((x - m) c), with 0 in place of an infinite maximum: no difference of infinities is formed.

    Where m is -inf nothing was visible, every x is -inf too and the result is exactly 0. Where it is +inf, so is the
    result for that x, and with it the sum: a sum of +inf says that a logit is, a sum of NaN that one is NaN.

    >>> power(np.float32([-np.inf, 3.0]), np.float32([-np.inf, 3.0]), np.float32(1.0)).tolist()
    [0.0, 1.0]
    """
    safe = np.where(np.isinf(m), np.zeros_like(m), m)
    return np.asarray(np.exp2((x - safe) * c))


def raised(m: Array, top: Array, c: np.float32, axes: tuple[int, ...], headroom: float) -> Array:
    """The maximum that a wave goes on with: fmax(m, top) if that of one row grew past the headroom, m otherwise.

    `axes` are those of the rows of a wave, which decide together. Any finite maximum gives the same quotient of sums;
    it is one of the logits so far, so the largest exponential is at least 1 and none is above 2^headroom.

    >>> raised(np.float32([-np.inf, 0.0]), np.float32([2.0, 1.0]), np.float32(1.0), (0,), 8.0).tolist()
    [2.0, 1.0]
    >>> raised(np.float32([0.0, 0.0]), np.float32([8.0, 1.0]), np.float32(1.0), (0,), 8.0).tolist()
    [0.0, 0.0]
    """
    grown = ((top - m) * c > headroom).any(axis=axes, keepdims=True)
    return np.where(grown, np.fmax(m, top), m)


@dataclass(frozen=True, slots=True)
class SoftmaxState:
    """Maximum `m` (raw logits) and sum `l` of a set of keys, for every row.

    A maximum ignores NaN, as the hardware's does; NaN reaches the sum through the exponentials.
    """

    m: Array
    l: Array  # noqa: E741

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> SoftmaxState:
        """No key seen: (-inf, 0)."""
        return cls(np.full(shape, -np.inf, np.float32), np.zeros(shape, np.float32))

    @classmethod
    def of(cls, scores: Array, c: np.float32) -> SoftmaxState:
        """The state of the keys along the last axis of `scores`."""
        m = _top(scores)
        return cls(m, power(scores, m[..., None], c).sum(axis=-1))

    def combine(self, other: SoftmaxState, c: np.float32) -> SoftmaxState:
        """The state of both sets of keys."""
        m = np.fmax(self.m, other.m)
        return SoftmaxState(m, self.l * power(self.m, m, c) + other.l * power(other.m, m, c))

    def absorb(self, scores: Array, c: np.float32) -> tuple[SoftmaxState, Array, Array]:
        """One online step: adds the keys along the last axis of `scores`.

        Returns the new state, the exponentials of the scores relative to its maximum, and the factor by
        which everything summed so far must be rescaled. The state equals `combine` with `of(scores)` up to
        rounding.
        """
        return self._relative_to(np.fmax(self.m, _top(scores)), scores, c)

    def absorb_lazily(self, scores: Array, c: np.float32, headroom: float) -> tuple[SoftmaxState, Array, Array]:
        """`absorb` for the rows of one wave, which raise their maxima together and only when that is due."""
        return self._relative_to(raised(self.m, _top(scores), c, (0,), headroom), scores, c)

    def _relative_to(self, m: Array, scores: Array, c: np.float32) -> tuple[SoftmaxState, Array, Array]:
        p, rescale = power(scores, m[..., None], c), power(self.m, m, c)
        return SoftmaxState(m, self.l * rescale + p.sum(axis=-1)), p, rescale

    def inverse(self) -> Array:
        """1 / l; 0 where no key was visible: such a row has the finite value 0; NaN where a logit is +inf."""
        empty = self.l == 0
        inverse = np.where(empty, 0, 1 / np.where(empty, 1, self.l))
        return np.asarray(np.where(np.isposinf(self.l), np.nan, inverse), dtype=self.l.dtype)

    def lse(self, scale: float = 1.0) -> Array:
        """m scale + log l, the logarithm of the sum of exponentials of the scaled scores, c = scale log2(e); -inf of
        none."""
        m = np.where(np.isinf(self.m), np.zeros_like(self.m), self.m)
        return np.asarray(m * np.float32(scale) + np.log(self.l))


def merged(outs: Array, lses: Array) -> tuple[Array, Array]:
    """Results [splits, ..., columns] and log-sum-exps [splits, ...] of disjoint sets of keys as those of their union.

    O = sum w_s O_s / sum w_s with w_s = exp(lse_s - max lse); 0 and -inf where no set had a visible key.

    >>> [x.tolist() for x in merged(np.array([[[2.0]], [[4.0]]]), np.log(np.array([[1.0], [3.0]])))]
    [[[3.5]], [1.3862943611198906]]
    """
    top = np.fmax.reduce(lses, axis=0)
    finite = np.where(np.isneginf(top), 0, top)
    weights = np.exp(lses - finite)
    total = weights.sum(axis=0)
    inverse = np.where(total == 0, 0, 1 / np.where(total == 0, 1, total))
    lse = np.where(np.isposinf(top), top, finite + np.log(total))
    return (outs * weights[..., None]).sum(axis=0) * inverse[..., None], lse


def _top(scores: Array) -> Array:
    """Largest score of each row; -inf of none."""
    return np.asarray(np.fmax.reduce(scores, axis=-1, initial=np.float32(-np.inf)))
