"""Depthwise convolution, a filter for every channel, on vector instructions: the tree of that kernel.

Device -> block (some strips of one image, one workgroup) -> wave (64 of them) -> lanes (one line of taps: each lane
adds to its strip). A strip is some outputs next to each other of `vec` channels. With channels last it lies along the
columns, channels next to each other in one access; with channels first it lies along the rows, so that lanes, which
follow the columns, read next to each other, too. The taps along the other axis come one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Annotated, Any, ClassVar

from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput

from .conv2d import BOUNDARY, Conv2d
from .depthwise_strip import Strip
from .knob import Knob, knobs_of
from .level import Level
from .node import AtomNode, Node, check_extent
from .policy import Pad
from .view import View, Window

__all__ = [
    "DTYPES",
    "KNOBS",
    "WAVE",
    "Depthwise",
    "DepthwiseBlock",
    "DepthwiseDevice",
    "DepthwiseLanes",
    "DepthwiseTiles",
    "DepthwiseWave",
]

#: Types that the vector instructions multiply, in f32.
DTYPES = ("f32", "f16", "bf16")
#: Lanes of a wave, and bytes of their longest accesses.
WAVE, ACCESS_BYTES = 64, 16


@dataclass(frozen=True, slots=True)
class DepthwiseTiles:
    """Tile policy: a thread has `strip` outputs of `vec` channels. In an iteration it works on `lines` lines of taps,
    and loads `together` places of X at a time.
    """

    strip: Annotated[int, Knob("tile", "vector kernel: outputs of a thread next to each other")]
    vec: Annotated[int, Knob("global reads", "vector kernel: channels of a thread, in one access")]
    together: Annotated[int, Knob("schedule", "vector kernel: places of X whose loads are under way at once")]
    lines: Annotated[int, Knob("schedule", "vector kernel: lines of taps in an iteration")]
    waves: Annotated[int, Knob("tile", "vector kernel: waves of a workgroup")]
    xcds: Annotated[int, Knob("mapping", "vector kernel: chiplets that workgroups are dealt to")] = 1
    waves_per_simd: Annotated[int, Knob("tile", "waves that the register budget lets share a SIMD")] = 1
    kernel: Annotated[str, Knob("mapping", "instructions that multiply", ("mfma", "vector"))] = "vector"

    def __post_init__(self) -> None:
        for name in ("strip", "vec", "together", "lines", "waves", "xcds", "waves_per_simd"):
            check_extent(name, getattr(self, name))
        assert self.kernel == "vector", self.kernel

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.waves * WAVE


#: What a caller may fix of the tile policy.
KNOBS = knobs_of(DepthwiseTiles)


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A depthwise convolution as its strips see it: `a` is the axis along a strip, `b` the other one (0 rows, 1
    columns).
    """

    op: Conv2d
    tiles: DepthwiseTiles

    @property
    def a(self) -> int:
        return 1 if self.op.layout == "NHWC" else 0

    @property
    def b(self) -> int:
        return 1 - self.a

    @property
    def kernel(self) -> tuple[int, int]:
        """Taps along the rows and the columns."""
        return self.op.KH, self.op.KW

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of Y."""
        return self.op.OH, self.op.OW

    @property
    def strip(self) -> Strip:
        a = self.a
        return Strip(self.tiles.strip, self.kernel[a], self.op.stride[a], self.op.dilation[a], self.tiles.lines)

    @property
    def widest(self) -> int:
        """The most channels of an access: what 16 bytes of X and of Y hold and the channels are a multiple of; 1 where
        channels do not lie next to each other.
        """
        op = self.op
        held = ACCESS_BYTES // max(op.elem_bytes, dtype(op.result).bytes)
        return gcd(op.IC, held) if op.layout == "NHWC" else 1

    @property
    def chunks(self) -> int:
        """Accesses of the channels of a pixel."""
        return self.op.IC // self.tiles.vec

    @property
    def strips(self) -> int:
        """Strips of a line of outputs."""
        return -(-self.outputs[self.a] // self.tiles.strip)

    @property
    def items(self) -> int:
        """Strips of an image: threads that it takes."""
        return self.chunks * self.strips * self.outputs[self.b]

    def place(self, item: Any) -> tuple[Any, Any, Any]:
        """(chunk of channels, strip of its line, line) of a thread's number in an image; of numbers and of arrays.

        Neighbours lie next to each other in memory: channels first of all where these are last, else columns.
        """
        if self.op.layout == "NHWC":
            rest = item // self.chunks
            return item % self.chunks, rest % self.strips, rest // self.strips
        rest = item // self.outputs[self.b]
        return rest // self.strips, rest % self.strips, item % self.outputs[self.b]


@dataclass(frozen=True, slots=True)
class DepthwiseDevice(Node):
    """The whole operator. Raises BadInput for one that this kernel does not compute."""

    op: Conv2d
    tiles: DepthwiseTiles

    level: ClassVar[Level] = Level.DEVICE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    def __post_init__(self) -> None:
        if not self.op.depthwise or self.op.dtype not in DTYPES or self.op.prepacked:
            raise BadInput(
                f"kernel='vector' is for a filter of each channel, not packed, of {', '.join(DTYPES)}: not for "
                f"{self.op.channels} channels and {self.op.filters} filters a group of {self.op.dtype}"
            )
        if self.work.widest % self.tiles.vec:
            widest = self.work.widest
            raise BadInput(f"vec={self.tiles.vec} does not divide {widest}, the channels that an access can have here")
        taps = self.work.kernel[self.work.b]
        if taps % self.tiles.lines:
            raise BadInput(f"lines={self.tiles.lines} does not divide {taps} lines of taps")
        reads = len(self.work.strip.places) * self.tiles.lines
        if self.tiles.lines > 1 and self.tiles.together < reads:
            raise BadInput(
                f"together={self.tiles.together}: {self.tiles.lines} lines of taps load {reads} places at once"
            )

    @property
    def work(self) -> Depthwise:
        return Depthwise(self.op, self.tiles)

    @property
    def views(self) -> Mapping[str, View]:
        op = self.op
        channels = Window.whole(op.IC)
        return {
            "W": View(channels, Window.whole(op.KH * op.KW)),
            "X": View(channels, Window.whole(op.N * op.IH * op.IW)),
            "Y": View(channels, Window.whole(op.N * op.OH * op.OW)),
        }

    def children(self) -> Iterator[DepthwiseBlock]:
        for image in range(self.op.N):
            for items in Window.whole(self.work.items).tiles(self.tiles.threads):
                yield DepthwiseBlock(self.op, self.tiles, image, items)

    def interior(self) -> tuple[DepthwiseBlock]:
        return (DepthwiseBlock(self.op, self.tiles, 0, Window.whole(self.tiles.threads)),)


def _views(work: Depthwise, items: Window, taps: int) -> Mapping[str, View]:
    """A row for every thread: weights, places of X and outputs of its strip, of each channel of its access."""
    strip = work.strip
    return {
        "W": View(items, Window.whole(taps)),
        "X": View(items, Window.whole(len(strip.places))),
        "Y": View(items, Window.whole(strip.outputs)),
    }


@dataclass(frozen=True, slots=True)
class DepthwiseBlock(Node):
    """One workgroup: the strips of an image with the numbers `items`."""

    op: Conv2d
    tiles: DepthwiseTiles
    image: int
    items: Window

    level: ClassVar[Level] = Level.BLOCK
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def work(self) -> Depthwise:
        return Depthwise(self.op, self.tiles)

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.work, self.items, self.op.KH * self.op.KW)

    def children(self) -> Iterator[DepthwiseWave]:
        for items in self.items.tiles(WAVE):
            yield DepthwiseWave(self.op, self.tiles, self.image, items)

    def interior(self) -> tuple[DepthwiseWave]:
        return (DepthwiseWave(self.op, self.tiles, 0, Window.whole(WAVE)),)


@dataclass(frozen=True, slots=True)
class DepthwiseWave(Node):
    """One wave: a strip for each of its lanes, all taps."""

    op: Conv2d
    tiles: DepthwiseTiles
    image: int
    items: Window

    level: ClassVar[Level] = Level.WAVE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def work(self) -> Depthwise:
        return Depthwise(self.op, self.tiles)

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.work, self.items, self.op.KH * self.op.KW)

    def children(self) -> Iterator[DepthwiseLanes]:
        for line in range(self.work.kernel[self.work.b]):
            yield DepthwiseLanes(self.op, self.tiles, self.image, self.items, line)

    def interior(self) -> tuple[DepthwiseLanes]:
        return (DepthwiseLanes(self.op, self.tiles, 0, Window.whole(WAVE), 0),)


@dataclass(frozen=True, slots=True)
class DepthwiseLanes(AtomNode):
    """The lanes of a wave and one line of taps: every place of X and every weight in registers once."""

    op: Conv2d
    tiles: DepthwiseTiles
    image: int
    items: Window
    line: int

    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def work(self) -> Depthwise:
        return Depthwise(self.op, self.tiles)

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.work, self.items, self.work.strip.taps)
