"""What a GEMM does with its sums: D = act(alpha sums + beta C + bias) scale."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .gemm import Gemm
from .numerics import Array

__all__ = ["activated", "epilogue"]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def activated(name: str, x: Array) -> Array:
    """The activation of `x`, elementwise in its type; silu and gelu of -inf are 0, their limit."""
    if name == "none":
        return x
    if name == "relu":
        return np.where(x < 0, x.dtype.type(0), x)
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "silu":
            y = x / (1 + np.exp(-x))
        elif name == "gelu_tanh":
            y = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        else:
            y = 0.5 * x * (1 + _erf(x.astype(np.float64) / math.sqrt(2)))
    return np.where(np.isneginf(x), 0.0, y).astype(x.dtype)


def epilogue(op: Gemm, sums: Array, inputs: Mapping[str, Array], alpha: float, beta: float, scale: float) -> Array:
    """D of sums [batch, M, N], in their type and not yet rounded to that of D.

    `inputs` holds C [batch, M, N] and bias [batch, M or N] where the operator has them. alpha = 0 reads no sum and
    beta = 0 no C, whatever they hold.
    """
    kind = sums.dtype.type
    out = np.zeros_like(sums) if alpha == 0 else sums * kind(alpha)
    if op.has_c and beta != 0:
        out = out + inputs["C"].astype(sums.dtype) * kind(beta)
    if op.bias != "none":
        bias = inputs["bias"].astype(sums.dtype)
        out = out + (bias[:, :, None] if op.bias == "row" else bias[:, None, :])
    done: Array = activated(op.activation, out) * kind(scale)
    return done
