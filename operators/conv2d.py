"""Direct 2D convolution, Y = act(W * X + bias), as a lazy tree: a sum over taps of small matrix products.

Device -> block (tile_oc x tile_n x tile_h x tile_w of Y, one workgroup) -> wave (its part of the block's tile, one tap
and one tile of channels of the sum) -> atom (one MFMA). No im2col matrix exists: operand B of an atom, [channels,
pixels], is read from the patch of X that the block's outputs reach, at the place of each pixel and tap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from closedform.hw.atoms import MFMAAtom
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, near_names

from .conv2d_taps import Taps
from .gemm import ACTIVATIONS
from .knob import Knob, knobs_of
from .level import Level
from .node import AtomNode, Node, check_extent
from .policy import Pad
from .view import View, Window

if TYPE_CHECKING:
    from .depthwise import DepthwiseDevice, DepthwiseTiles

__all__ = [
    "BOUNDARY",
    "DTYPES",
    "KNOBS",
    "LAYOUTS",
    "OUT_DTYPES",
    "Conv2d",
    "Conv2dAtom",
    "Conv2dBlock",
    "Conv2dDevice",
    "Conv2dTiles",
    "Conv2dWave",
    "taps_of",
]

DTYPES = ("f32", "f16", "bf16", "fp8_e4m3fnuz", "bf8_e5m2fnuz", "fp8_e4m3fn", "bf8_e5m2", "i8")
OUT_DTYPES = ("f32", "f16", "bf16", "i32")
LAYOUTS = ("NCHW", "NHWC")

BOUNDARY: Mapping[str, Pad] = {"W": Pad.ZERO, "X": Pad.ZERO, "Y": Pad.ZERO}


@dataclass(frozen=True, slots=True)
class Conv2d:
    """The operator. X is [N, IC, IH, IW] and Y [N, OC, OH, OW], or with the channels last (layout NHWC).

    The filter is stored [OC, IC / groups, KH, KW], with NHWC [OC, KH, KW, IC / groups]. `stride` and `dilation` are
    one number or (rows, columns); `pad` counts zeros, one number, (rows, columns) or (top, bottom, left, right).
    `bias` adds a vector of f32 along the output channels, `out_dtype` is the type of Y; where empty the dtype, f32 of
    8-bit floats, i32 of i8. Sums are f32, of i8 i32. A `prepacked` filter lies in memory as a lane's fragments
    (conv2d_pack), packed from what the layout says. N, the image, the channels, pads and strides in memory are
    run-time arguments of the emitted kernel.

    Raises BadInput for an extent below 1, an unknown name, groups that do not divide the channels, or a kernel that
    is larger than the padded image, which leaves no output.
    """

    N: int
    IC: int
    IH: int
    IW: int
    OC: int
    KH: int
    KW: int
    stride: Any = 1
    pad: Any = 0
    dilation: Any = 1
    groups: int = 1
    layout: str = "NHWC"
    dtype: str = "f32"
    out_dtype: str = ""
    bias: bool = False
    activation: str = "none"
    prepacked: bool = False

    name: ClassVar[str] = "conv2d"

    def __post_init__(self) -> None:
        for name in ("N", "IC", "IH", "IW", "OC", "KH", "KW", "groups"):
            check_extent(name, getattr(self, name))
        object.__setattr__(self, "stride", _pair("stride", self.stride, 1))
        object.__setattr__(self, "dilation", _pair("dilation", self.dilation, 1))
        object.__setattr__(self, "pad", _sides(self.pad))
        named = (
            ("dtype", DTYPES),
            ("out_dtype", ("", *OUT_DTYPES)),
            ("layout", LAYOUTS),
            ("activation", ACTIVATIONS),
        )
        for name, known in named:
            value = getattr(self, name)
            if value not in known:
                raise BadInput(f"{name}={value!r} is not offered for conv2d: {near_names(str(value), known)}")
        if self.result == "i32" and self.dtype != "i8":
            raise BadInput(f"out_dtype='i32' is not offered for {self.dtype}: only sums of i8 are whole, use f32")
        if self.result == "i32" and self.activation not in ("none", "relu"):
            raise BadInput(f"activation={self.activation!r} is computed in f32: use relu for i32 outputs, or f32")
        for name in ("bias", "prepacked"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"{name}={getattr(self, name)!r} must be True or False")
        for name in ("IC", "OC"):
            if getattr(self, name) % self.groups:
                raise BadInput(f"groups={self.groups} does not divide {name}={getattr(self, name)}")
        if min(self.OH, self.OW) < 1:
            raise BadInput(
                f"the kernel reaches over {self.reach[0]} x {self.reach[1]} elements, the padded image is "
                f"{self.IH + self.pad[0] + self.pad[1]} x {self.IW + self.pad[2] + self.pad[3]}: no output is left"
            )

    @property
    def result(self) -> str:
        """Type of Y: `out_dtype`, or what follows from the dtype."""
        if self.out_dtype or dtype(self.dtype).bits > 8:
            return self.out_dtype or self.dtype
        return "i32" if self.dtype == "i8" else "f32"

    @property
    def elem_bytes(self) -> int:
        return dtype(self.dtype).bytes

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns from the first to the last element that the kernel touches: (K - 1) dilation + 1."""
        return (self.KH - 1) * self.dilation[0] + 1, (self.KW - 1) * self.dilation[1] + 1

    @property
    def OH(self) -> int:
        """Rows of Y: (IH + pads - reach) // stride + 1."""
        return int((self.IH + self.pad[0] + self.pad[1] - self.reach[0]) // self.stride[0] + 1)

    @property
    def OW(self) -> int:
        """Columns of Y."""
        return int((self.IW + self.pad[2] + self.pad[3] - self.reach[1]) // self.stride[1] + 1)

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.IC // self.groups

    @property
    def filters(self) -> int:
        """Output channels of a group."""
        return self.OC // self.groups

    @property
    def depthwise(self) -> bool:
        """Whether each channel has one filter of its own."""
        return self.channels == self.filters == 1

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each output, tap and channel of its group."""
        return 2 * self.N * self.OH * self.OW * self.OC * self.KH * self.KW * self.channels

    @property
    def compulsory_bytes(self) -> int:
        """What any kernel must move: X and the filter read once, Y written once."""
        read = self.N * self.IC * self.IH * self.IW + self.OC * self.channels * self.KH * self.KW
        written = self.N * self.OC * self.OH * self.OW
        return (read * dtype(self.dtype).bits + written * dtype(self.result).bits) // 8

    @property
    def shape_x(self) -> tuple[int, int, int, int]:
        """X as stored."""
        return self._stored(self.N, self.IC, self.IH, self.IW)

    @property
    def shape_w(self) -> tuple[int, int, int, int]:
        """The filter as stored."""
        return self._stored(self.OC, self.channels, self.KH, self.KW)

    @property
    def shape_y(self) -> tuple[int, int, int, int]:
        """Y as stored."""
        return self._stored(self.N, self.OC, self.OH, self.OW)

    def _stored(self, first: int, channels: int, rows: int, cols: int) -> tuple[int, int, int, int]:
        return (first, channels, rows, cols) if self.layout == "NCHW" else (first, rows, cols, channels)

    def tree(self, tiles: Conv2dTiles | DepthwiseTiles | None = None) -> Conv2dDevice | DepthwiseDevice:
        """The tree of this operator: that of the kernel that the tiles are of, open without `tiles`."""
        if tiles is None or isinstance(tiles, Conv2dTiles):
            return Conv2dDevice(self, tiles)
        from .depthwise import DepthwiseDevice

        return DepthwiseDevice(self, tiles)


def _pair(name: str, value: Any, least: int) -> tuple[int, int]:
    """(rows, columns) of one number or two."""
    both = (value, value) if isinstance(value, int) else value
    if not isinstance(both, (tuple, list)) or len(both) != 2:
        raise BadInput(f"{name}={value!r} must be one number or two, (rows, columns)")
    for number in both:
        check_extent(name, number, least=least)
    return both[0], both[1]


def _sides(value: Any) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of one number, two or four."""
    if isinstance(value, (tuple, list)) and len(value) == 4:
        for number in value:
            check_extent("pad", number, least=0)
        return value[0], value[1], value[2], value[3]
    if isinstance(value, (tuple, list)) and len(value) != 2:
        raise BadInput(f"pad={value!r} must be one number, (rows, columns) or (top, bottom, left, right)")
    rows, cols = _pair("pad", value, 0)
    return rows, rows, cols, cols


def taps_of(op: Conv2d, factors: tuple[int, int]) -> Taps:
    """The taps of the filter where `factors` of them become channels."""
    return Taps((op.KH, op.KW), op.stride, op.dilation, op.channels, factors, op.layout == "NHWC", op.groups > 1)


@dataclass(frozen=True, slots=True)
class Conv2dTiles:
    """Tile policy: tile_oc channels of tile_n x tile_h x tile_w pixels a workgroup, cut among wave_oc x wave_px waves.

    The sum goes over tiles of tile_ic channels and, inside of each, over the taps. Each field is a knob.

    Raises BadInput where a wave's part is not whole atoms, or the tile of pixels not powers of two.
    """

    tile_oc: Annotated[int, Knob("tile", "output channels of a workgroup")]
    tile_n: Annotated[int, Knob("tile", "images of a workgroup")]
    tile_h: Annotated[int, Knob("tile", "output rows of a workgroup")]
    tile_w: Annotated[int, Knob("tile", "output columns of a workgroup")]
    tile_ic: Annotated[int, Knob("tile", "input channels of a tile in LDS")]
    wave_oc: Annotated[int, Knob("tile", "waves along the output channels")]
    wave_px: Annotated[int, Knob("tile", "waves along the pixels")]
    atom: Annotated[MFMAAtom, Knob("tile", "MFMA shape, or an instruction", ("32x32", "16x16"))]
    replicate_h: Annotated[int, Knob("tile", "rows of taps that become channels")] = 1
    replicate_w: Annotated[int, Knob("tile", "columns of taps that become channels")] = 1
    gap: Annotated[int, Knob("LDS", "elements between the pixels of the patch", least=0)] = 0
    pitch: Annotated[int, Knob("LDS", "pixels from a row of the patch to the next")] = 1
    image: Annotated[int, Knob("LDS", "pixels from an image of the patch to the next")] = 1
    read_x: Annotated[int, Knob("global reads", "elements of a read of X")] = 1
    read_w: Annotated[int, Knob("global reads", "elements of a read of the filter")] = 1
    store: Annotated[int, Knob("stores", "elements of a store to Y")] = 1
    waves_per_simd: Annotated[int, Knob("tile", "waves that the register budget lets share a SIMD")] = 1
    kernel: Annotated[str, Knob("mapping", "instructions that multiply", ("mfma", "vector"))] = "mfma"

    def __post_init__(self) -> None:
        assert self.kernel == "mfma", self.kernel
        for name in ("tile_oc", "tile_n", "tile_h", "tile_w", "tile_ic", "wave_oc", "wave_px"):
            check_extent(name, getattr(self, name))
        for name in ("tile_n", "tile_h", "tile_w"):
            value = getattr(self, name)
            if value & (value - 1):
                raise BadInput(f"{name}={value} is not a power of two")
        wholes = (
            ("tile_oc", self.tile_oc, self.wave_oc * self.atom.m),
            ("tile_n x tile_h x tile_w", self.pixels, self.wave_px * self.atom.n),
            ("tile_ic", self.tile_ic, self.atom.k),
        )
        for name, tile, whole in wholes:
            if tile % whole:
                raise BadInput(f"{name}={tile} is not a multiple of {whole}, the atoms of its waves")
        if self.atom.blocks != 1:
            raise BadInput(f"{self.atom} works on {self.atom.blocks} blocks: conv2d takes single-block atoms")

    @property
    def waves(self) -> int:
        """Waves of one workgroup."""
        return self.wave_oc * self.wave_px

    @property
    def pixels(self) -> int:
        """Outputs of one channel of a workgroup."""
        return self.tile_n * self.tile_h * self.tile_w

    @property
    def wave_tile(self) -> tuple[int, int]:
        """Output channels and pixels that one wave owns."""
        return self.tile_oc // self.wave_oc, self.pixels // self.wave_px

    def taps(self, op: Conv2d) -> Taps:
        """The taps of the filter, and the channels of each, that these tiles walk over."""
        return taps_of(op, (self.replicate_h, self.replicate_w))

    def place(self, pixel: Any) -> tuple[Any, Any, Any]:
        """Image, row and column inside the tile of a pixel's number; of numbers and of arrays."""
        return pixel // (self.tile_h * self.tile_w), pixel // self.tile_w % self.tile_h, pixel % self.tile_w


KNOBS = knobs_of(Conv2dTiles)


@dataclass(frozen=True, slots=True)
class Conv2dDevice(Node):
    """The whole operator."""

    op: Conv2d
    tiles: Conv2dTiles | None = None

    level: ClassVar[Level] = Level.DEVICE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    def __post_init__(self) -> None:
        if self.tiles is not None and self.tiles.atom.dtype_a.name != self.op.dtype:
            raise BadInput(f"{self.tiles.atom} does not take {self.op.dtype}")

    @property
    def views(self) -> Mapping[str, View]:
        op = self.op
        return _views(Window.whole(op.OC), Window.whole(op.N * op.OH * op.OW), Window.whole(op.channels))

    def children(self) -> Iterator[Conv2dBlock]:
        op, tiles = self.op, self.require_tiles()
        for images in Window.whole(op.N).tiles(tiles.tile_n):
            for rows in Window.whole(op.OH).tiles(tiles.tile_h):
                for cols in Window.whole(op.OW).tiles(tiles.tile_w):
                    for group in range(op.groups):
                        for ocs in Window(group * op.filters, op.filters, op.filters).tiles(tiles.tile_oc):
                            yield Conv2dBlock(op, tiles, group, ocs, images, rows, cols)

    def interior(self) -> tuple[Conv2dBlock]:
        tiles: Conv2dTiles = self.require_tiles()
        sizes = (tiles.tile_oc, tiles.tile_n, tiles.tile_h, tiles.tile_w)
        return (Conv2dBlock(self.op, tiles, 0, *(Window.whole(size) for size in sizes)),)


@dataclass(frozen=True, slots=True)
class Conv2dBlock(Node):
    """One workgroup: a tile of Y. For each tile of channels and each tap, its waves each add theirs.

    Pixels are numbered inside of the tile, column by column, row by row, image by image; those past an edge of Y exist
    and count for nothing.
    """

    op: Conv2d
    tiles: Conv2dTiles
    group: int
    ocs: Window
    images: Window
    rows: Window
    cols: Window

    level: ClassVar[Level] = Level.BLOCK
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        channels = self.tiles.taps(self.op).channels
        return _views(self.ocs, Window.whole(self.tiles.pixels), Window.whole(channels))

    def outputs(self, pixels: Window) -> tuple[Any, Any, Any, Any]:
        """Image, row and column of Y of a window of pixels, and which of them exist: numpy arrays."""
        import numpy as np

        inside = self.tiles.place(np.arange(pixels.start, pixels.start + pixels.size))
        windows = (self.images, self.rows, self.cols)
        n, h, w = (place + window.start for place, window in zip(inside, windows, strict=True))
        return n, h, w, (n < self.images.stop) & (h < self.rows.stop) & (w < self.cols.stop)

    def children(self) -> Iterator[Conv2dWave]:
        taps, (height, width) = self.tiles.taps(self.op), self.tiles.wave_tile
        for ics in Window.whole(taps.channels).tiles(self.tiles.tile_ic):
            for tap in range(taps.count):
                for ocs in self.ocs.tiles(height):
                    for pixels in Window.whole(self.tiles.pixels).tiles(width):
                        yield Conv2dWave(self, tap, ocs, pixels, ics)

    def interior(self) -> tuple[Conv2dWave]:
        height, width = self.tiles.wave_tile
        ics = Window.whole(self.tiles.tile_ic)
        return (Conv2dWave(self, 0, Window.whole(height), Window.whole(width), ics),)


@dataclass(frozen=True, slots=True)
class Conv2dWave(Node):
    """One wave, one tap and one tile of channels: it adds W[ocs, ics] X[ics, pixels at the tap] to its registers."""

    block: Conv2dBlock
    tap: int
    ocs: Window
    pixels: Window
    ics: Window

    level: ClassVar[Level] = Level.WAVE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def op(self) -> Conv2d:
        return self.block.op

    @property
    def tiles(self) -> Conv2dTiles:
        return self.block.tiles

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.ocs, self.pixels, self.ics)

    def children(self) -> Iterator[Conv2dAtom]:
        atom = self.tiles.atom
        for ics in self.ics.tiles(atom.k):
            for ocs in self.ocs.tiles(atom.m):
                for pixels in self.pixels.tiles(atom.n):
                    yield Conv2dAtom(self.block, self.tap, ocs, pixels, ics)

    def interior(self) -> tuple[Conv2dAtom]:
        atom = self.tiles.atom
        return (Conv2dAtom(self.block, 0, Window.whole(atom.m), Window.whole(atom.n), Window.whole(atom.k)),)


@dataclass(frozen=True, slots=True)
class Conv2dAtom(AtomNode):
    """One MFMA: output channels are the rows of its first operand, pixels the columns of its second one."""

    block: Conv2dBlock
    tap: int
    ocs: Window
    pixels: Window
    ics: Window

    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def op(self) -> Conv2d:
        return self.block.op

    @property
    def tiles(self) -> Conv2dTiles:
        return self.block.tiles

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.ocs, self.pixels, self.ics)


def _views(ocs: Window, pixels: Window, ics: Window) -> Mapping[str, View]:
    return {"W": View(ocs, ics), "X": View(ics, pixels), "Y": View(ocs, pixels)}
