"""Tile, instruction and waves of a TensileLite kernel, from what its name or its parameters say of each.

Rows are those of free index 0 (M contiguous), columns those of free index 1: column-major, as TensileLite counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from closedform.hw.atoms import MFMA_LANES, MFMAAtom

from .errors import Undecodable

__all__ = ["Nine", "Waves", "depth_of", "nine_of", "waves_of"]


@dataclass(frozen=True, slots=True)
class Nine:
    """The nine-element MatrixInstruction: instruction, blocks of it along the rows, tiles of a wave, waves."""

    m: int
    n: int
    k: int
    blocks: int
    blocks_m: int
    tile_m: int
    tile_n: int
    wave_m: int
    wave_n: int

    @property
    def macro_tile(self) -> tuple[int, int]:
        """Rows and columns of a workgroup's tile.

        >>> Nine(16, 16, 32, 1, 1, 8, 8, 2, 2).macro_tile
        (256, 256)
        """
        waves = self.wave_m * self.wave_n
        rows = self.blocks_m * self.wave_m
        along_m = min(rows, self.blocks)
        group_m = min(rows // along_m, waves)
        return (
            self.m * along_m * self.tile_m * group_m,
            self.n * (self.blocks // along_m) * self.tile_n * (waves // group_m),
        )


def nine_of(numbers: Sequence[object]) -> Nine:
    """The instruction from nine whole numbers; Undecodable for anything else."""
    if len(numbers) != len(Nine.__slots__) or not all(type(v) is int and v > 0 for v in numbers):
        raise Undecodable(f"MatrixInstruction {list(numbers)} is not nine positive numbers")
    return Nine(*numbers)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Waves:
    """Waves along the rows and columns, and tiles of the instruction that each has."""

    wave_m: int
    wave_n: int
    tile_m: int
    tile_n: int


def waves_of(
    macro_tile: tuple[int, int],
    instruction: tuple[int, int, int],
    wave_tile: tuple[int, ...] | None,
    work_group: tuple[int, ...] | None,
) -> Waves | None:
    """The wave grid of a workgroup; None where neither the tiles of a wave nor the lanes of the workgroup are known.

    `instruction` are rows, columns and blocks; blocks go along the rows as far as the waves' rows have room,
    min(rows, blocks). Raises Undecodable where the numbers contradict each other.

    >>> waves_of((64, 16), (16, 16, 1), (1, 1), None)
    Waves(wave_m=4, wave_n=1, tile_m=1, tile_n=1)
    """
    m, n, blocks = instruction
    rows, columns = _whole(macro_tile[0], m, "rows"), _whole(macro_tile[1], n, "columns")
    if work_group is not None:
        if (
            len(work_group) < 2
            or min(work_group) < 1
            or work_group[0] * work_group[1] % MFMA_LANES
            or work_group[0] % m
        ):
            raise Undecodable(f"WorkGroup {work_group}: not whole waves of the instruction's {m} rows")
        waves = work_group[0] * work_group[1] // MFMA_LANES
        along_m = min(work_group[0] // m, blocks)
        wave_m = min(work_group[0] // m // along_m, waves)
        wave_n = waves // wave_m
        found = Waves(
            wave_m,
            wave_n,
            _whole(rows, along_m * wave_m, "rows of waves"),
            _whole(columns, blocks // along_m * wave_n, "columns of waves"),
        )
        if wave_tile is not None and wave_tile != (found.tile_m, found.tile_n):
            raise Undecodable(f"MIWaveTile {wave_tile} and WorkGroup {work_group} contradict the tile {macro_tile}")
        return found
    if wave_tile is None:
        return None
    if len(wave_tile) != 2:
        raise Undecodable(f"MIWaveTile {wave_tile}: not two numbers")
    rows, columns = _whole(rows, wave_tile[0], "rows"), _whole(columns, wave_tile[1], "columns")
    along_m = min(rows, blocks)
    return Waves(
        _whole(rows, along_m, "rows of blocks"), _whole(columns, blocks // along_m, "columns of blocks"), *wave_tile
    )


def _whole(length: int, piece: int, what: str) -> int:
    if piece < 1 or length < 1 or length % piece:
        raise Undecodable(f"{length} {what} are not whole pieces of {piece}")
    return length // piece


def depth_of(
    atoms: Sequence[MFMAAtom],
    instruction: tuple[int, int, int],
    pair: tuple[str, str],
    depth_u: int,
    read_width: int | None,
) -> int | None:
    """k of the instruction of that shape and those families of types on a target, None where it has none.

    Of several the deepest whose lane holds no more than an LDS read of `read_width` elements gives it, and that a k
    step of `depth_u` holds whole: a name leaves k out where the type and the target once fixed it.
    """
    m, n, blocks = instruction
    depths = {
        atom.k
        for atom in atoms
        if (atom.m, atom.n, atom.blocks) == (m, n, blocks)
        and (atom.dtype_a.family, atom.dtype_b.family) == pair
        and depth_u % atom.k == 0
    }
    narrow = {k for k in depths if read_width is None or read_width < 1 or m * k * blocks // MFMA_LANES <= read_width}
    return max(narrow or depths, default=None)
