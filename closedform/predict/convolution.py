"""2D convolution as the product its kernels compute: [N OH OW, IC KH KW] x [IC KH KW, OC], for each group."""

from __future__ import annotations

import dataclasses

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm

from .answer import Prediction
from .operators import predict_gemm

__all__ = ["predict_conv2d"]


def _out(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


def predict_conv2d(
    hw: HardwareDescriptor,
    *,
    N: int,
    IC: int,
    IH: int,
    IW: int,
    OC: int,
    KH: int,
    KW: int,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
    dtype: str = "f32",
) -> Prediction:
    """Latency of a convolution; the image is read once, so the compulsory bytes are those of image, filter and result.

    Raises BadInput where groups do not divide the channels or nothing is left of the image.
    """
    if groups < 1 or IC % groups or OC % groups:
        raise BadInput(f"groups={groups} must divide IC={IC} and OC={OC}")
    OH, OW = _out(IH, KH, stride, pad, dilation), _out(IW, KW, stride, pad, dilation)
    if OH < 1 or OW < 1:
        raise BadInput(f"a kernel of {KH} x {KW} does not fit in an image of {IH} x {IW} with pad {pad}")
    gemm = Gemm(M=N * OH * OW, N=OC // groups, K=IC // groups * KH * KW, dtype=dtype, batch=groups)
    found = predict_gemm(gemm, hw)
    moved = gemm.elem_bytes * (N * IC * IH * IW + OC * IC // groups * KH * KW) + gemm.elem_bytes * N * OC * OH * OW
    note = f"as a product of {gemm.M} x {gemm.N} x {gemm.K}"
    return dataclasses.replace(found, op="conv2d", hbm_bytes=float(moved), notes=(note, *found.notes))
