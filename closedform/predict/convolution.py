"""2D convolution as the product its kernels compute: [N OH OW, IC KH KW] x [IC KH KW, OC], for each group."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype as dtype_named
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm
from closedform.operators.node import check_extent

from .answer import Prediction, Selection
from .constants import Constants
from .gemm_answer import predict_gemm, select_gemm

__all__ = ["Convolution", "predict_conv2d", "select_conv2d"]


@dataclass(frozen=True, slots=True)
class Convolution:
    """Extents of image [N, IC, IH, IW] and filter [OC, IC / groups, KH, KW].

    Raises BadInput for an extent below 1, a negative pad, groups that do not divide the channels, and a filter that is
    larger than the padded image.
    """

    N: int
    IC: int
    IH: int
    IW: int
    OC: int
    KH: int
    KW: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1
    dtype: str = "f32"

    def __post_init__(self) -> None:
        for name in ("N", "IC", "IH", "IW", "OC", "KH", "KW", "stride", "dilation", "groups"):
            check_extent(name, getattr(self, name))
        if self.pad < 0:
            raise BadInput(f"pad={self.pad} must be at least 0")
        if self.IC % self.groups or self.OC % self.groups:
            raise BadInput(f"groups={self.groups} must divide IC={self.IC} and OC={self.OC}")
        if min(self.OH, self.OW) < 1:
            raise BadInput(
                f"a filter of {self.KH} x {self.KW} does not fit in an image of {self.IH} x {self.IW} "
                f"with pad {self.pad}"
            )

    def _out(self, size: int, kernel: int) -> int:
        return (size + 2 * self.pad - self.dilation * (kernel - 1) - 1) // self.stride + 1

    @property
    def OH(self) -> int:
        return self._out(self.IH, self.KH)

    @property
    def OW(self) -> int:
        return self._out(self.IW, self.KW)

    @property
    def product(self) -> Gemm:
        """The product of one group, batched over groups."""
        k = self.IC // self.groups * self.KH * self.KW
        return Gemm(M=self.N * self.OH * self.OW, N=self.OC // self.groups, K=k, dtype=self.dtype, batch=self.groups)

    @property
    def hbm_bytes(self) -> float:
        """Compulsory traffic: image and filter read once, the result written once."""
        read = self.N * self.IC * self.IH * self.IW + self.OC * self.IC // self.groups * self.KH * self.KW
        written = self.N * self.OC * self.OH * self.OW
        return read * self.product.elem_bytes + written * dtype_named(self.product.result).bits / 8


def _convolution(hw: HardwareDescriptor, shape: dict[str, Any]) -> Convolution:
    return Convolution(**{**shape, "dtype": hw.resolve_dtype(shape.get("dtype", "f32")).name})


def predict_conv2d(
    hw: HardwareDescriptor, *, constants: Constants | None = None, config: dict[str, int] | None = None, **shape: Any
) -> Prediction:
    """Latency of a convolution (the fields of `Convolution`), with a GEMM configuration or the selected one."""
    op = _convolution(hw, shape)
    gemm = op.product
    found = predict_gemm(gemm, hw, constants=constants, **(config or {}))
    note = f"as a product of {gemm.M} x {gemm.N} x {gemm.K}"
    return dataclasses.replace(found, op="conv2d", hbm_bytes=op.hbm_bytes, notes=(note, *found.notes))


def select_conv2d(
    hw: HardwareDescriptor, count: int = 4, *, constants: Constants | None = None, **shape: Any
) -> Selection:
    """The fastest legal configuration of the product by the model, and `count` - 1 runners-up."""
    found = select_gemm(_convolution(hw, shape).product, hw, count, constants=constants)
    return dataclasses.replace(found, op="conv2d")
