"""General matrix multiply, D = op(A) op(B), as a lazy tree.

Device -> block (tile_m x tile_n of D, one workgroup) -> wave (its part of the block's tile, one tile_k of
the sum) -> atom (one MFMA). Layout letters are row-major: N means stored as written, T stored transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from closedform.hw.atoms import MFMAAtom
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, near_names

from .level import Level
from .node import Node, check_extent
from .policy import Pad
from .view import View, Window

__all__ = ["DTYPES", "LAYOUTS", "Gemm", "GemmAtom", "GemmBlock", "GemmDevice", "GemmTiles", "GemmWave"]

DTYPES = ("f64", "f32", "f16", "bf16")
LAYOUTS = ("NN", "NT", "TN", "TT")

BOUNDARY: Mapping[str, Pad] = {"A": Pad.ZERO, "B": Pad.ZERO, "D": Pad.ZERO}


@dataclass(frozen=True, slots=True)
class Gemm:
    """The operator. D is [M, N]; A is stored [M, K] (N) or [K, M] (T), B is stored [K, N] (N) or [N, K] (T).

    Raises BadInput for an extent below 1, an unknown dtype or an unknown layout.
    """

    M: int
    N: int
    K: int
    dtype: str = "f32"
    batch: int = 1
    layout: str = "NN"

    name: ClassVar[str] = "gemm"

    def __post_init__(self) -> None:
        for name in ("M", "N", "K", "batch"):
            check_extent(name, getattr(self, name))
        for name, known in (("dtype", DTYPES), ("layout", LAYOUTS)):
            value = getattr(self, name)
            if value not in known:
                near = near_names(str(value), known)
                raise BadInput(f"{name}={value!r} is not offered for gemm: {near}")

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

    Raises BadInput where a wave's part is not whole atoms.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    wave_m: int
    wave_n: int
    atom: MFMAAtom

    def __post_init__(self) -> None:
        for name in ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n"):
            check_extent(name, getattr(self, name))
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
    def wave_tile(self) -> tuple[int, int]:
        """Rows and columns of D that one wave owns."""
        return self.tile_m // self.wave_m, self.tile_n // self.wave_n


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
        for batch in range(self.op.batch):
            for rows in Window.whole(self.op.M).tiles(tiles.tile_m):
                for cols in Window.whole(self.op.N).tiles(tiles.tile_n):
                    yield GemmBlock(self.op, tiles, batch, rows, cols)

    def interior(self) -> tuple[GemmBlock]:
        tiles: GemmTiles = self.require_tiles()
        rows, cols = Window.whole(tiles.tile_m), Window.whole(tiles.tile_n)
        return (GemmBlock(self.op, tiles, 0, rows, cols),)


@dataclass(frozen=True, slots=True)
class GemmBlock(Node):
    """One workgroup: a tile of D. For each tile_k, its waves each add their part."""

    op: Gemm
    tiles: GemmTiles
    batch: int
    rows: Window
    cols: Window

    level: ClassVar[Level] = Level.BLOCK
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.rows, self.cols, Window.whole(self.op.K))

    def children(self) -> Iterator[GemmWave]:
        height, width = self.tiles.wave_tile
        for ks in Window.whole(self.op.K).tiles(self.tiles.tile_k):
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
class GemmAtom(Node):
    """One MFMA."""

    op: Gemm
    tiles: GemmTiles
    batch: int
    rows: Window
    cols: Window
    ks: Window

    level: ClassVar[Level] = Level.ATOM
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.rows, self.cols, self.ks)

    def children(self) -> Iterator[Node]:
        return iter(())

    def interior(self) -> tuple[Node, ...]:
        return ()


def _views(rows: Window, cols: Window, ks: Window) -> Mapping[str, View]:
    return {"A": View(rows, ks), "B": View(ks, cols), "D": View(rows, cols)}
