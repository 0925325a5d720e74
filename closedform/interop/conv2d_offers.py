"""Kernels of 2D convolution to export, as the product that other tools compute: pixels by channels.

Rows of the product are output pixels, columns output channels, and the depth of a tile input channels of one tap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.conv2d import Conv2d, Conv2dTiles
from closedform.predict.convolution import product_of

from .kernel import Kernel, check_number
from .rules import Refused
from .tool import Format, Proposal

__all__ = [
    "Conv2dKernel",
    "Conv2dOffer",
    "Conv2dTool",
    "conv2d_kernel_of",
    "conv2d_offer",
    "pixels_of",
    "ranked_conv2d",
]

#: Tiles under way: one in LDS and one in registers.
STAGES = 2
#: A tile of a ranked kernel may have as many channels, or these bytes of them, even where a tap has fewer.
DEPTH_ALWAYS, DEPTH_ALWAYS_BYTES = 32, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv2dKernel(Kernel):
    """A Kernel of the convolution's product.

    pixels: images, rows and columns of its tile, together tile_m; replicate: rows and columns of taps that become
    channels. Raises BadInput for pixels that are not tile_m together, beside what a Kernel does.
    """

    pixels: tuple[int, int, int] | None = None
    replicate: tuple[int, int] | None = None

    given_up: ClassVar[tuple[str, ...]] = ("stages", "tile_k")

    def __post_init__(self) -> None:
        Kernel.__post_init__(self)
        for name, count in (("pixels", 3), ("replicate", 2)):
            values = getattr(self, name)
            if values is None:
                continue
            if not isinstance(values, tuple) or len(values) != count:
                raise BadInput(f"{name}={values!r} must be {count} counts")
            for value in values:
                check_number(name, value)
        if self.pixels is not None and prod(self.pixels) != self.tile_m:
            raise BadInput(f"pixels={self.pixels} are {prod(self.pixels)} together, not tile_m={self.tile_m}")

    def smaller(self, num_cus: int, whole: bool) -> Iterator[Conv2dKernel]:
        """As of a Kernel; these have no chiplets that tiles are dealt to."""
        for kernel in Kernel.smaller(self, num_cus, whole):
            yield dataclasses.replace(kernel, xcds=self.xcds)


class Conv2dOffer(Proposal[Conv2d, Conv2dKernel]):
    """A kernel for a convolution; its predicted time is that of the product."""

    __slots__ = ()

    def timed(self, kernel: Conv2dKernel) -> float | None:
        from .offers import predicted_us

        return predicted_us(product_of(self.op), self.hw, kernel)


class Conv2dTool(Format[Conv2dOffer, Conv2dKernel]):
    """A tool's format for 2D convolutions."""

    __slots__ = ()
    noun = "convolution"
    tile = ("tile_m", "tile_n", "tile_k", "kernel")
    field_of_knob: ClassVar[Mapping[str, str]] = {
        **{"tile_oc": "tile_n", "tile_ic": "tile_k", "wave_oc": "wave_n", "wave_px": "wave_m", "atom": "mfma"},
        **dict.fromkeys(("tile_n", "tile_h", "tile_w"), "pixels"),
        **dict.fromkeys(("replicate_h", "replicate_w"), "replicate"),
    }

    def bare(self, kernel: Conv2dKernel, hw: HardwareDescriptor) -> Conv2dOffer:
        return Conv2dOffer(Conv2d(1, 1, 1, 1, 1, 1, 1), hw, kernel)

    def parts(self, op: Conv2d) -> Mapping[str, bool]:
        return {"bias": op.bias, "activation": op.activation != "none", "prepacked": op.prepacked}


def conv2d_kernel_of(op: Conv2d, tiles: Conv2dTiles) -> Conv2dKernel:
    """The kernel of a derivation: its atoms' rows are channels, those of the product are pixels."""
    atom = tiles.atom
    taken = (tiles.replicate_h, tiles.replicate_w)
    return Conv2dKernel(
        tile_m=tiles.pixels,
        tile_n=tiles.tile_oc,
        tile_k=tiles.tile_ic,
        dtype=op.dtype,
        out_dtype=op.result,
        mfma=(atom.n, atom.m, atom.k, atom.blocks),
        wave_m=tiles.wave_px,
        wave_n=tiles.wave_oc,
        stages=STAGES,
        waves_per_simd=tiles.waves_per_simd,
        pixels=(tiles.tile_n, tiles.tile_h, tiles.tile_w),
        replicate=None if taken == (1, 1) else taken,
    )


def conv2d_offer(op: Conv2d, hw: HardwareDescriptor, **overrides: Any) -> Conv2dOffer:
    """The closed form's kernel with those knobs. Raises BadInput and InfeasibleError as the derivation does, and
    Refused for the kernel of depthwise convolutions, which has no tile of a product.
    """
    from closedform.visitors.feasibility import derive

    tiles, _, _ = derive(op, hw, **overrides).require()
    if not isinstance(tiles, Conv2dTiles):
        raise Refused(
            "this depthwise convolution is computed without matrix instructions, and no tool's file has a place for "
            "such a kernel: choose the other one with kernel=mfma (--kernel mfma)"
        )
    offer = Conv2dOffer(op, hw, conv2d_kernel_of(op, tiles), None, overrides)
    return dataclasses.replace(offer, predicted_us=offer.timed(offer.kernel))


def pixels_of(op: Conv2d, count: int) -> tuple[int, int, int]:
    """Images, rows and columns of a tile of `count` pixels: a row of the output first, then rows, then images.

    >>> pixels_of(Conv2d(8, 64, 56, 56, 64, 1, 1), 256)
    (1, 4, 64)
    """
    columns = min(count, 1 << (op.OW - 1).bit_length())
    while count % columns:
        columns //= 2
    rows = min(count // columns, 1 << (op.OH - 1).bit_length())
    while count // columns % rows:
        rows //= 2
    return count // columns // rows, rows, columns


def ranked_conv2d(op: Conv2d, hw: HardwareDescriptor) -> Iterator[Conv2dOffer]:
    """The kernels of the product that the model ranks first, best first: those with whole sums that are not much deeper
    than the channels of a tap. None of a depthwise one, whose product is a column of one channel.
    """
    from .offers import ranked_offers

    if op.depthwise:
        return
    deepest = max(DEPTH_ALWAYS, DEPTH_ALWAYS_BYTES // op.elem_bytes, 1 << (op.channels - 1).bit_length())
    for offer in ranked_offers(product_of(op), hw):
        k = offer.kernel
        if (k.split_k or 1) > 1 or k.stream_k or k.tile_k > deepest:
            continue
        kernel = Conv2dKernel(
            tile_m=k.tile_m,
            tile_n=k.tile_n,
            tile_k=k.tile_k,
            dtype=op.dtype,
            out_dtype=op.result,
            mfma=k.mfma,
            wave_m=k.wave_m,
            wave_n=k.wave_n,
            stages=k.stages,
            waves_per_simd=k.waves_per_simd,
            pixels=pixels_of(op, k.tile_m),
        )
        yield Conv2dOffer(op, hw, kernel, offer.predicted_us)
