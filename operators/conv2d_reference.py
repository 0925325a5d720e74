"""Convolutions of numpy arrays: a sum over taps of matrix products, channels first."""

from __future__ import annotations

import numpy as np

from .conv2d import Conv2d
from .gemm_epilogue import activated
from .numerics import Array

__all__ = ["channels_first", "convolved", "finished"]


def channels_first(op: Conv2d, array: Array) -> Array:
    """X, W or Y, as the operator's layout stores it, with channels on the second axis: a view."""
    return array if op.layout == "NCHW" else np.moveaxis(array, 3, 1)


def convolved(op: Conv2d, x: Array, w: Array) -> Array:
    """Sums [N, OC, OH, OW] of x [N, IC, IH, IW] and w [OC, IC / groups, KH, KW], in their type."""
    top, bottom, left, right = op.pad
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    out = np.zeros((op.N, op.groups, op.filters, op.OH, op.OW), x.dtype)
    for i in range(op.KH):
        for j in range(op.KW):
            rows = i * op.dilation[0] + np.arange(op.OH) * op.stride[0]
            cols = j * op.dilation[1] + np.arange(op.OW) * op.stride[1]
            at_tap = padded[:, :, rows[:, None], cols].reshape(op.N, op.groups, op.channels, -1)
            filters = w[:, :, i, j].reshape(op.groups, op.filters, op.channels)
            out += (filters @ at_tap).reshape(out.shape)
    return out.reshape(op.N, op.OC, op.OH, op.OW)


def finished(op: Conv2d, sums: Array, bias: Array | None) -> Array:
    """Y as stored of sums as stored: act(sums + bias), in their type."""
    out = sums
    if bias is not None:
        shape = (1, -1, 1, 1) if op.layout == "NCHW" else (-1,)
        out = out + bias.astype(sums.dtype).reshape(shape)
    return activated(op.activation, out)
