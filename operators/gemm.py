"""General matrix multiply, D = act(alpha op(A) op(B) + beta C + bias), as a lazy tree.

Device -> block (tile_m x tile_n of D, one workgroup) -> wave (its part of the block's tile, one tile_k of
the sum) -> atom (one MFMA). Layout letters are row-major: N means stored as written, T stored transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from closedform.hw.atoms import MFMAAtom
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, near_names

from .gemm_split import StreamK, even_runs
from .knob import Knob, knobs_of
from .level import Level
from .node import AtomNode, Node, check_extent
from .policy import Pad
from .view import View, Window

__all__ = [
    "ACTIVATIONS",
    "BIASES",
    "DTYPES",
    "KNOBS",
    "LAYOUTS",
    "OUT_DTYPES",
    "PRESHUFFLED",
    "SPLIT_ALGORITHMS",
    "Gemm",
    "GemmAtom",
    "GemmBlock",
    "GemmDevice",
    "GemmTiles",
    "GemmWave",
]

DTYPES = (
    "f64",
    "f32",
    "xf32",
    "f16",
    "bf16",
    "fp8_e4m3fnuz",
    "bf8_e5m2fnuz",
    "fp8_e4m3fn",
    "bf8_e5m2",
    "i8",
)
OUT_DTYPES = ("f64", "f32", "f16", "bf16", "i32", "fp8_e4m3fnuz", "bf8_e5m2fnuz", "fp8_e4m3fn", "bf8_e5m2")
LAYOUTS = ("NN", "NT", "TN", "TT")
BIASES = ("none", "row", "column")
SPLIT_ALGORITHMS = ("workspace", "single")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
PRESHUFFLED = ("none", "A", "B", "AB")

BOUNDARY: Mapping[str, Pad] = {"A": Pad.ZERO, "B": Pad.ZERO, "D": Pad.ZERO}


@dataclass(frozen=True, slots=True)
class Gemm:
    """The operator. D is [M, N]; A is stored [M, K] (N) or [K, M] (T), B is stored [K, N] (N) or [N, K] (T).

    `out_dtype` is the type of D (and C); empty, it is the dtype, f32 for types that sums do not fit (8 bits, xf32) and
    i32 for i8. `lda`, `ldb` and `ldd` are leading dimensions in elements, 0 for tight rows; `has_c` asks for beta C,
    `bias` for a vector along the rows (length M) or columns (length N). alpha and beta are run-time arguments. K = 0 is
    a sum without terms: D = act(beta C + bias). D of an 8-bit float is act(...) scale, saturated; scale is a run-time
    argument too. `activation`: gelu is x Phi(x) with the error function, gelu_tanh its tanh form.
    `preshuffled` operands lie in memory as a lane's fragments (gemm_pack); they are packed from what the layout says.

    Raises BadInput for an extent below 1 (K: below 0), an unknown name, or a leading dimension shorter than a row or of
    an operand that is pre-shuffled and so has none.
    """

    M: int
    N: int
    K: int
    dtype: str = "f32"
    batch: int = 1
    layout: str = "NN"
    out_dtype: str = ""
    lda: int = 0
    ldb: int = 0
    ldd: int = 0
    has_c: bool = False
    bias: str = "none"
    activation: str = "none"
    preshuffled: str = "none"

    name: ClassVar[str] = "gemm"

    def __post_init__(self) -> None:
        for name, least in (("M", 1), ("N", 1), ("K", 0), ("batch", 1)):
            check_extent(name, getattr(self, name), least=least)
        named = (
            ("dtype", DTYPES),
            ("layout", LAYOUTS),
            ("out_dtype", ("", *OUT_DTYPES)),
            ("bias", BIASES),
            ("activation", ACTIVATIONS),
            ("preshuffled", PRESHUFFLED),
        )
        for name, known in named:
            value = getattr(self, name)
            if value not in known:
                near = near_names(str(value), known)
                raise BadInput(f"{name}={value!r} is not offered for gemm: {near}")
        rows = (("lda", self.shape_a[1]), ("ldb", self.shape_b[1]), ("ldd", self.N))
        for name, row in rows:
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or (given and given < row) or given < 0:
                raise BadInput(f"{name}={given!r} must be 0 or at least the row length {row}")
            if given and name[-1].upper() in self.packed:
                raise BadInput(f"{name}={given}: a pre-shuffled operand has no leading dimension, leave it 0")

    @property
    def result(self) -> str:
        """Type of D: `out_dtype`, or what follows from the dtype."""
        if self.out_dtype:
            return self.out_dtype
        kind = dtype(self.dtype)
        if kind.name == "i8":
            return "i32"
        return "f32" if kind.bits == 8 or kind.name == "xf32" else kind.name

    @property
    def leading(self) -> tuple[int, int, int]:
        """Elements between rows of A, B and D as stored."""
        return self.lda or self.shape_a[1], self.ldb or self.shape_b[1], self.ldd or self.N

    @property
    def packed(self) -> tuple[str, ...]:
        """Operands that are pre-shuffled: "A", "B"."""
        return () if self.preshuffled == "none" else tuple(self.preshuffled)

    @property
    def elem_bytes(self) -> int:
        return dtype(self.dtype).bytes

    @property
    def shape_a(self) -> tuple[int, int]:
        """A as stored."""
        return (self.M, self.K) if self.layout[0] == "N" else (self.K, self.M)

    @property
    def shape_b(self) -> tuple[int, int]:
        """B as stored."""
        return (self.K, self.N) if self.layout[1] == "N" else (self.N, self.K)

    def tree(self, tiles: GemmTiles | None = None) -> GemmDevice:
        """The tree of this operator, open without `tiles`."""
        return GemmDevice(self, tiles)


@dataclass(frozen=True, slots=True)
class GemmTiles:
    """Tile policy: tile_m x tile_n x tile_k per workgroup, cut among a grid of wave_m x wave_n waves.

    Each field is a knob of emitted kernels: one line here makes it an override of `derive` and an option.

    Raises BadInput where a wave's part is not whole atoms.
    """

    tile_m: Annotated[int, Knob("tile", "rows of D of a workgroup")]
    tile_n: Annotated[int, Knob("tile", "columns of D of a workgroup")]
    tile_k: Annotated[int, Knob("tile", "depth of a tile in LDS")]
    wave_m: Annotated[int, Knob("tile", "waves along the rows")]
    wave_n: Annotated[int, Knob("tile", "waves along the columns")]
    atom: Annotated[MFMAAtom, Knob("tile", "MFMA shape, or an instruction", ("32x32", "16x16"))]
    buffers: Annotated[int, Knob("LDS", "tiles in LDS at a time, 1 or 2")] = 1
    direct: Annotated[bool, Knob("LDS", "loads that bypass the registers")] = False
    pad: Annotated[int, Knob("LDS", "elements between image rows, 0 swizzles their chunks instead", least=0)] = 0
    lds_read: Annotated[int, Knob("LDS", "elements of an LDS read, 16 or 8 bytes")] = 1
    lds_write: Annotated[int, Knob("LDS", "elements of an LDS write, 16 or 8 bytes")] = 1
    read_a: Annotated[int, Knob("global reads", "elements of a read of A")] = 1
    read_b: Annotated[int, Knob("global reads", "elements of a read of B")] = 1
    tail_a: Annotated[int, Knob("global reads", "elements of a read of A in the partial tile of k")] = 1
    tail_b: Annotated[int, Knob("global reads", "elements of a read of B in the partial tile of k")] = 1
    stagger: Annotated[
        int, Knob("mapping", "tiles of k at which workgroups start, 0 or 1 for all at the first", least=0)
    ] = 0
    store: Annotated[int, Knob("stores", "elements of a store to D")] = 1
    group_m: Annotated[int, Knob("mapping", "rows of tiles that share columns")] = 1
    xcds: Annotated[int, Knob("mapping", "chiplets that tiles are dealt to")] = 1
    pinned: Annotated[bool, Knob("schedule", "the written order of MFMAs, reads and loads is kept")] = True
    waves_per_simd: Annotated[int, Knob("tile", "waves that the register budget lets share a SIMD")] = 1
    split_k: Annotated[int, Knob("split", "workgroups that share the sum of a tile over k")] = 1
    split_algorithm: Annotated[
        str, Knob("split", "who adds the parts: a second kernel, or the last workgroup of one", SPLIT_ALGORITHMS)
    ] = "workspace"
    stream_k: Annotated[int, Knob("split", "persistent workgroups that share the tiles of k, 0 for none", least=0)] = 0

    def __post_init__(self) -> None:
        for name in ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n", "split_k"):
            check_extent(name, getattr(self, name))
        if self.split_algorithm not in SPLIT_ALGORITHMS:
            near = near_names(str(self.split_algorithm), SPLIT_ALGORITHMS)
            raise BadInput(f"split_algorithm={self.split_algorithm!r} is not offered for gemm: {near}")
        wholes = (
            ("tile_m", self.tile_m, self.wave_m * self.atom.m),
            ("tile_n", self.tile_n, self.wave_n * self.atom.n),
            ("tile_k", self.tile_k, self.atom.k),
        )
        for name, tile, whole in wholes:
            if tile % whole:
                raise BadInput(f"{name}={tile} is not a multiple of {whole}, the atoms of its waves")
        if self.atom.blocks != 1:
            raise BadInput(f"{self.atom} works on {self.atom.blocks} blocks: gemm takes single-block atoms")

    @property
    def waves(self) -> int:
        """Waves of one workgroup."""
        return self.wave_m * self.wave_n

    @property
    def splits(self) -> bool:
        """Whether the sum of a tile over k may come from several workgroups."""
        return self.split_k > 1 or self.stream_k > 0

    @property
    def arrives(self) -> bool:
        """Whether the last workgroup that adds to a tile finishes it, in the same kernel."""
        return self.stream_k > 0 or (self.split_k > 1 and self.split_algorithm == "single")

    @property
    def wave_tile(self) -> tuple[int, int]:
        """Rows and columns of D that one wave owns."""
        return self.tile_m // self.wave_m, self.tile_n // self.wave_n


KNOBS = knobs_of(GemmTiles)


@dataclass(frozen=True, slots=True)
class GemmDevice(Node):
    """The whole operator."""

    op: Gemm
    tiles: GemmTiles | None = None

    level: ClassVar[Level] = Level.DEVICE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    def __post_init__(self) -> None:
        if self.tiles is None:
            return
        atom = self.tiles.atom
        if (atom.dtype_a.name, atom.dtype_b.name) != (self.op.dtype, self.op.dtype):
            raise BadInput(f"{atom} does not take {self.op.dtype}")

    @property
    def views(self) -> Mapping[str, View]:
        return _views(Window.whole(self.op.M), Window.whole(self.op.N), Window.whole(self.op.K))

    @property
    def grid(self) -> tuple[int, int, int]:
        """Workgroups along (N, M, batch)."""
        tiles: GemmTiles = self.require_tiles()
        blocks_n = Window.whole(self.op.N).count(tiles.tile_n)
        return blocks_n, Window.whole(self.op.M).count(tiles.tile_m), self.op.batch

    def children(self) -> Iterator[GemmBlock]:
        tiles: GemmTiles = self.require_tiles()
        grid_n, grid_m, _ = self.grid
        depth = Window.whole(self.op.K).count(tiles.tile_k)
        if tiles.stream_k:
            shares = StreamK(grid_n * grid_m * self.op.batch, max(1, depth), tiles.stream_k)
            runs = ((segment.tile, segment.steps) for segment in shares.segments())
        else:
            numbers = range(grid_n * grid_m * self.op.batch)
            runs = ((tile, steps) for tile in numbers for steps in even_runs(depth, tiles.split_k))
        for tile, steps in runs:
            batch, inside = divmod(tile, grid_n * grid_m)
            row, column = divmod(inside, grid_n)
            start, stop = (min(step * tiles.tile_k, self.op.K) for step in (steps.start, steps.stop))
            yield GemmBlock(
                self.op,
                tiles,
                batch,
                Window.whole(self.op.M).tile(row, tiles.tile_m),
                Window.whole(self.op.N).tile(column, tiles.tile_n),
                Window(start, stop - start, stop - start),
            )

    def interior(self) -> tuple[GemmBlock]:
        tiles: GemmTiles = self.require_tiles()
        rows, cols, ks = (Window.whole(size) for size in (tiles.tile_m, tiles.tile_n, tiles.tile_k))
        return (GemmBlock(self.op, tiles, 0, rows, cols, ks),)


@dataclass(frozen=True, slots=True)
class GemmBlock(Node):
    """One workgroup: a tile of D, or its part of the sum over k of one. For each tile_k, its waves each add theirs."""

    op: Gemm
    tiles: GemmTiles
    batch: int
    rows: Window
    cols: Window
    ks: Window

    level: ClassVar[Level] = Level.BLOCK
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.rows, self.cols, self.ks)

    def children(self) -> Iterator[GemmWave]:
        height, width = self.tiles.wave_tile
        for ks in self.ks.tiles(self.tiles.tile_k):
            for rows in self.rows.tiles(height):
                for cols in self.cols.tiles(width):
                    yield GemmWave(self.op, self.tiles, self.batch, rows, cols, ks)

    def interior(self) -> tuple[GemmWave]:
        height, width = self.tiles.wave_tile
        ks = Window.whole(self.tiles.tile_k)
        return (GemmWave(self.op, self.tiles, self.batch, Window.whole(height), Window.whole(width), ks),)


@dataclass(frozen=True, slots=True)
class GemmWave(Node):
    """One wave and one tile_k: it adds A[rows, ks] B[ks, cols] to its registers of D."""

    op: Gemm
    tiles: GemmTiles
    batch: int
    rows: Window
    cols: Window
    ks: Window

    level: ClassVar[Level] = Level.WAVE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.rows, self.cols, self.ks)

    def children(self) -> Iterator[GemmAtom]:
        atom = self.tiles.atom
        for ks in self.ks.tiles(atom.k):
            for rows in self.rows.tiles(atom.m):
                for cols in self.cols.tiles(atom.n):
                    yield GemmAtom(self.op, self.tiles, self.batch, rows, cols, ks)

    def interior(self) -> tuple[GemmAtom]:
        atom = self.tiles.atom
        windows = (Window.whole(atom.m), Window.whole(atom.n), Window.whole(atom.k))
        return (GemmAtom(self.op, self.tiles, self.batch, *windows),)


@dataclass(frozen=True, slots=True)
class GemmAtom(AtomNode):
    """One MFMA."""

    op: Gemm
    tiles: GemmTiles
    batch: int
    rows: Window
    cols: Window
    ks: Window

    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.rows, self.cols, self.ks)


def _views(rows: Window, cols: Window, ks: Window) -> Mapping[str, View]:
    return {"A": View(rows, ks), "B": View(ks, cols), "D": View(rows, cols)}
