"""Softmax along the rows of a matrix, by the online-softmax monoid, as a lazy tree.

Device -> block (some rows, or a part of one row, of one workgroup) -> wave (its share of the columns) -> lanes (what
the 64 lanes of a wave hold of it at a time). Every node brings a state (maximum, sum of exponentials) up, and the
states of the nodes next to each other are combined; an absent column is the identity of that monoid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, near_names

from .knob import Knob, knobs_of
from .level import Level
from .node import AtomNode, Node, check_extent
from .policy import Pad
from .view import View, Window

__all__ = [
    "ACCESS_BYTES",
    "COLS_MAX",
    "DTYPES",
    "EMPTY",
    "KNOBS",
    "LANES_MAX",
    "ROWS_MAX",
    "WAVE",
    "Softmax",
    "SoftmaxBlock",
    "SoftmaxDevice",
    "SoftmaxLanes",
    "SoftmaxTiles",
    "SoftmaxWave",
]

DTYPES = ("f32", "f16", "bf16")
#: What a row without a finite logit gives: zeros, or NaN as torch does.
EMPTY = ("zero", "nan")
#: Rows and workgroups, those past the last one too, are counted in 31 bits.
ROWS_MAX = 2**30
#: Byte offsets inside of a row are counted in 31 bits.
COLS_MAX = 2**28
#: Bytes of one access of a lane.
ACCESS_BYTES = 16
#: Lanes of a wave, and the most that share a row.
WAVE, LANES_MAX = 64, 1024

BOUNDARY: Mapping[str, Pad] = {"X": Pad.MAX_IDENTITY, "O": Pad.ZERO}


@dataclass(frozen=True, slots=True)
class Softmax:
    """The operator. X and O are [rows, cols]; O = exp(X - lse(X)) along each row, or X - lse(X) with `log`.

    `mask` asks for a mask [rows, cols]: a logit counts where it is not 0, and is -inf elsewhere. `lse` asks for the
    log of the sum of exponentials of each row, in f32. `empty` says what a row without a finite logit gives. `ld` is
    the leading dimension of X and O in elements, 0 for tight rows.
    Raises BadInput for an extent out of range, an unknown name or a leading dimension shorter than a row.
    """

    rows: int
    cols: int
    dtype: str = "f32"
    log: bool = False
    mask: bool = False
    lse: bool = False
    empty: str = "zero"
    ld: int = 0

    name: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        check_extent("rows", self.rows, most=ROWS_MAX)
        check_extent("cols", self.cols, most=COLS_MAX)
        check_extent("ld", self.ld, least=0, most=COLS_MAX)
        for name, known in (("dtype", DTYPES), ("empty", EMPTY)):
            value = getattr(self, name)
            if value not in known:
                raise BadInput(f"{name}={value!r} is not offered for softmax: {near_names(str(value), known)}")
        for name in ("log", "mask", "lse"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"{name}={getattr(self, name)!r} must be True or False")
        if 0 < self.ld < self.cols:
            raise BadInput(f"ld={self.ld} is shorter than a row of {self.cols}")

    @property
    def elem_bytes(self) -> int:
        return dtype(self.dtype).bytes

    @property
    def vec(self) -> int:
        """Elements of an access."""
        return ACCESS_BYTES // self.elem_bytes

    @property
    def row_stride(self) -> int:
        """Elements from row to row."""
        return self.ld or self.cols

    @property
    def ends(self) -> bool:
        """Whether some row has elements beside its whole accesses, each of which starts at a multiple of 4 bytes.

        >>> Softmax(8, 4096).ends, Softmax(8, 4095).ends, Softmax(8, 4096, "f16", ld=4097).ends
        (False, True, True)
        """
        return self.cols % self.vec != 0 or (self.rows > 1 and self.row_stride * self.elem_bytes % 4 != 0)

    def tree(self, tiles: SoftmaxTiles | None = None) -> SoftmaxDevice:
        """The tree of this operator, open without `tiles`."""
        return SoftmaxDevice(self, tiles)


@dataclass(frozen=True, slots=True)
class SoftmaxTiles:
    """Tile policy: `lanes` lanes share a row, each with `chunks` accesses of `vec` elements in a step.

    With one pass a row is one step and stays in registers; with two it is read once for its state and once for its
    result. `ends`: rows have elements beside whole accesses.
    """

    vec: int
    ends: bool
    lanes: Annotated[int, Knob("mapping", "lanes that share a row: a power of two")]
    chunks: Annotated[int, Knob("tile", "16-byte accesses of a lane in a step")]
    block_rows: Annotated[int, Knob("tile", "rows of a workgroup: a power of two")]
    passes: Annotated[int, Knob("schedule", "times that a row is read: 1 keeps it in registers")]
    splits: Annotated[int, Knob("split", "workgroups that share a row")]
    waves_per_simd: int

    def __post_init__(self) -> None:
        for name in ("vec", "lanes", "chunks", "block_rows", "passes", "splits", "waves_per_simd"):
            check_extent(name, getattr(self, name))
        for name in ("lanes", "block_rows"):
            value = getattr(self, name)
            if value & (value - 1):
                raise BadInput(f"{name}={value} is not a power of two")
        if not self.vec <= self.lanes <= LANES_MAX:
            raise BadInput(f"lanes={self.lanes}: from {self.vec} to {LANES_MAX} lanes share a row")
        if not WAVE <= self.lanes * self.block_rows <= LANES_MAX:
            shape = f"{self.block_rows} rows of {self.lanes} lanes"
            raise BadInput(f"{shape}: a workgroup has {WAVE} to {LANES_MAX} work-items")
        if self.passes > 2:
            raise BadInput(f"passes={self.passes}: a row is read once or twice")
        if self.splits > 1 and (self.passes, self.block_rows) != (2, 1):
            raise BadInput("workgroups that share a row read it twice and have no other: use passes=2, block_rows=1")

    @property
    def waves(self) -> int:
        """Waves of a workgroup."""
        return self.lanes * self.block_rows // WAVE

    @property
    def group(self) -> int:
        """Lanes of one wave that share a row."""
        return min(self.lanes, WAVE)

    @property
    def row_waves(self) -> int:
        """Waves that share a row."""
        return self.lanes // self.group

    @property
    def wave_rows(self) -> int:
        """Rows of one wave."""
        return WAVE // self.group

    @property
    def wave_cols(self) -> int:
        """Columns of a row that a wave holds at a time."""
        return self.group * self.chunks * self.vec

    @property
    def step_cols(self) -> int:
        """Columns of a row that a workgroup holds at a time."""
        return self.lanes * self.chunks * self.vec

    def steps_of_part(self, cols: int) -> int:
        """Steps of each of the parts that a row of that many columns is cut into."""
        steps = -(-cols // self.step_cols)
        return max(1, -(-steps // self.splits))


#: What a caller may fix of the tile policy.
KNOBS = knobs_of(SoftmaxTiles)


def _clipped(outer: Window, number: int, size: int) -> Window:
    """Tile `number` of `outer`, empty where nothing of it is valid."""
    start = outer.start + number * size
    return Window(start, size, max(0, min(size, outer.stop - start)))


def _views(rows: Window, cols: Window) -> Mapping[str, View]:
    return {"X": View(rows, cols), "O": View(rows, cols)}


@dataclass(frozen=True, slots=True)
class SoftmaxDevice(Node):
    """The whole operator."""

    op: Softmax
    tiles: SoftmaxTiles | None = None

    level: ClassVar[Level] = Level.DEVICE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    def __post_init__(self) -> None:
        tiles, op = self.tiles, self.op
        if tiles is None:
            return
        if tiles.vec != op.vec:
            raise BadInput(f"accesses of {tiles.vec} elements: {op.dtype} has {op.vec}")
        if op.ends and not tiles.ends:
            raise BadInput(f"rows of {op.cols}, {op.row_stride} apart, have elements beside whole accesses")
        if tiles.passes == 1 and op.cols > tiles.step_cols:
            raise BadInput(f"one pass holds rows of {tiles.step_cols} columns, not of {op.cols}")

    @property
    def views(self) -> Mapping[str, View]:
        return _views(Window.whole(self.op.rows), Window.whole(self.op.cols))

    @property
    def blocks(self) -> int:
        """Workgroups."""
        tiles: SoftmaxTiles = self.require_tiles()
        return Window.whole(self.op.rows).count(tiles.block_rows) * tiles.splits

    def children(self) -> Iterator[SoftmaxBlock]:
        tiles: SoftmaxTiles = self.require_tiles()
        whole = Window.whole(self.op.cols // tiles.vec * tiles.vec)
        size = tiles.steps_of_part(self.op.cols) * tiles.step_cols
        for rows in Window.whole(self.op.rows).tiles(tiles.block_rows):
            for part in range(tiles.splits):
                yield SoftmaxBlock(self.op, tiles, rows, _clipped(whole, part, size), part)

    def interior(self) -> tuple[SoftmaxBlock]:
        tiles: SoftmaxTiles = self.require_tiles()
        size = tiles.steps_of_part(self.op.cols) * tiles.step_cols
        return (SoftmaxBlock(self.op, tiles, Window.whole(tiles.block_rows), Window.whole(size), 0),)


@dataclass(frozen=True, slots=True)
class SoftmaxBlock(Node):
    """One workgroup: `rows`, and of each the whole accesses in `cols`; part 0 of a row has its last elements, too."""

    op: Softmax
    tiles: SoftmaxTiles
    rows: Window
    cols: Window
    part: int

    level: ClassVar[Level] = Level.BLOCK
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def ends(self) -> Window:
        """The last elements of a row, fewer than an access."""
        vec, cols = self.tiles.vec, self.op.cols
        start = cols // vec * vec
        return Window(start, vec, cols - start if self.part == 0 else 0)

    @property
    def views(self) -> Mapping[str, View]:
        return {**_views(self.rows, self.cols), "ends": View(self.rows, self.ends)}

    def children(self) -> Iterator[SoftmaxWave]:
        none = Window(self.ends.start, self.tiles.vec, 0)
        for rows in self.rows.tiles(self.tiles.wave_rows):
            for number in range(self.tiles.row_waves):
                ends = self.ends if number == 0 else none
                yield SoftmaxWave(self.op, self.tiles, rows, self.cols, ends, number)

    def interior(self) -> tuple[SoftmaxWave]:
        rows, cols = Window.whole(self.tiles.wave_rows), Window.whole(self.cols.size)
        return (SoftmaxWave(self.op, self.tiles, rows, cols, self.ends, 0),)


@dataclass(frozen=True, slots=True)
class SoftmaxWave(Node):
    """One wave: `rows` of a workgroup, and number `number` of the waves that share each of them.

    Of every step of the workgroup's `cols` it has a run of columns; the first wave has the `ends` of the row.
    """

    op: Softmax
    tiles: SoftmaxTiles
    rows: Window
    cols: Window
    ends: Window
    number: int

    level: ClassVar[Level] = Level.WAVE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return {**_views(self.rows, self.cols), "ends": View(self.rows, self.ends)}

    def children(self) -> Iterator[SoftmaxLanes]:
        tiles = self.tiles
        for step in range(self.cols.count(tiles.step_cols)):
            run = _clipped(self.cols, step * tiles.row_waves + self.number, tiles.wave_cols)
            yield SoftmaxLanes(self.op, tiles, self.rows, run)

    def interior(self) -> tuple[SoftmaxLanes]:
        return (SoftmaxLanes(self.op, self.tiles, self.rows, Window.whole(self.tiles.wave_cols)),)


@dataclass(frozen=True, slots=True)
class SoftmaxLanes(AtomNode):
    """What the lanes of a wave hold at a time: of each row a run of columns, `chunks` accesses a lane.

    Access i of the lane with place l among those of the row has the elements from (i * group + l) * vec on.
    """

    op: Softmax
    tiles: SoftmaxTiles
    rows: Window
    cols: Window

    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.rows, self.cols)
