"""2D convolution as the product its kernels compute: [N OH OW, IC KH KW] x [IC KH KW, OC], for each group."""

from __future__ import annotations

import dataclasses

from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm

from .answer import Prediction, Selection
from .constants import Constants
from .gemm_answer import predict_gemm, select_gemm

__all__ = ["predict_conv2d", "product_of", "select_conv2d"]


def product_of(op: Conv2d) -> Gemm:
    """The product of one group, batched over groups."""
    depth = op.channels * op.KH * op.KW
    rows = op.N * op.OH * op.OW
    return Gemm(M=rows, N=op.filters, K=depth, batch=op.groups, dtype=op.dtype, out_dtype=op.result)


def predict_conv2d(
    op: Conv2d, hw: HardwareDescriptor, *, constants: Constants | None = None, **config: int
) -> Prediction:
    """Latency of a convolution, with a GEMM configuration or the selected one."""
    gemm = product_of(op)
    found = predict_gemm(gemm, hw, constants=constants, **config)
    note = f"as a product of {gemm.M} x {gemm.N} x {gemm.K}"
    return dataclasses.replace(found, op="conv2d", hbm_bytes=float(op.compulsory_bytes), notes=(note, *found.notes))


def select_conv2d(
    op: Conv2d, hw: HardwareDescriptor, count: int = 4, *, constants: Constants | None = None
) -> Selection:
    """The fastest legal configuration of the product by the model, and `count` - 1 runners-up."""
    found = select_gemm(product_of(op), hw, count, constants=constants)
    return dataclasses.replace(found, op="conv2d")
