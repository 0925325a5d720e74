"""Configurations as arrays: what `select` ranks, one column an attribute, lengths in elements."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["Configs", "configs"]


@dataclass(frozen=True, slots=True, eq=False)
class Configs:
    """Workgroup tiles, the wave grid, pipeline stages, the rows of the matrix instruction and the split of K.

    `wave_k` waves share a k step of the same tile. Every field is a float64 array of the same shape.
    """

    tile_m: Array
    tile_n: Array
    tile_k: Array
    wave_m: Array
    wave_n: Array
    wave_k: Array
    stages: Array
    mfma_m: Array
    split_k: Array

    @property
    def waves(self) -> Array:
        return self.wave_m * self.wave_n * self.wave_k

    def __len__(self) -> int:
        return len(self.tile_m)

    def take(self, where: Any) -> Configs:
        """The configurations at those indices or under that mask."""
        return Configs(*(getattr(self, f.name)[where] for f in fields(self)))

    def at(self, index: int) -> dict[str, int]:
        """One configuration with plain numbers."""
        row = {f.name: int(getattr(self, f.name)[index]) for f in fields(self)}
        return {**row, "waves": row["wave_m"] * row["wave_n"] * row["wave_k"]}


def configs(
    tile_m: Any,
    tile_n: Any,
    tile_k: Any,
    *,
    waves: Any = 4,
    wave_m: Any = None,
    wave_n: Any = None,
    wave_k: Any = 1,
    stages: Any = 2,
    mfma_m: Any = 16,
    split_k: Any = 1,
) -> Configs:
    """Configurations from numbers and arrays, broadcast together.

    Without a wave grid, waves go along m until each has 16 rows, then along n.
    """
    import numpy as np

    columns = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, float)) for v in (tile_m, tile_n, tile_k, waves, wave_k, stages, mfma_m, split_k))
    )
    t_m, t_n, t_k, count, share_k, depth, rows, split = (np.ascontiguousarray(c) for c in columns)
    if wave_m is None or wave_n is None:
        along_m = np.clip(t_m / 16, 1, count)
        along_n = count / along_m
    else:
        along_m, along_n = (np.broadcast_to(np.asarray(v, float), t_m.shape).copy() for v in (wave_m, wave_n))
    return Configs(t_m, t_n, t_k, along_m, along_n, share_k, depth, rows, split)
