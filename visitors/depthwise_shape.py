"""The counts of an emitted depthwise convolution that follow from its tiles."""

from __future__ import annotations

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.conv2d import Conv2d
from closedform.operators.depthwise import Depthwise, DepthwiseTiles

__all__ = ["DepthwiseShape"]


class DepthwiseShape:
    """Derived counts of one emitted depthwise convolution."""

    def __init__(self, op: Conv2d, tiles: DepthwiseTiles, hw: HardwareDescriptor) -> None:
        self.op, self.tiles, self.hw = op, tiles, hw
        self.work = Depthwise(op, tiles)
        self.out_bytes = dtype(op.result).bytes
