"""A GEMM kernel in the terms that tools share: the tile of a workgroup, its waves, its instruction, its mapping."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from closedform.hw.dtypes import DTYPES
from closedform.hw.errors import BadInput, near_names
from closedform.operators.gemm import LAYOUTS

__all__ = ["Kernel", "transposed_layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, row-major as `Gemm` counts: D [M, N] with N contiguous; lengths in elements.

    None is a value that its source does not say. `mfma` are rows, columns, depth and blocks of the instruction; `waves`
    are those of a workgroup where no grid of them is known; `wave_k` groups of waves share a k step; `stages` counts
    tiles under way as the tool's own stages do; `split_k` and `stream_k` workgroups share the sum of a tile, 0 of the
    latter for none; `group_m` rows of tiles share columns; tiles are dealt to `xcds` chiplets.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    dtype: str | None = None
    out_dtype: str | None = None
    layout: str | None = None
    mfma: tuple[int, int, int, int] | None = None
    mfma_m: int | None = None  # where only rows (and columns) of the instruction are known
    wave_m: int | None = None
    wave_n: int | None = None
    wave_k: int = 1
    waves: int | None = None
    stages: int | None = None
    split_k: int | None = None
    stream_k: int | None = None
    group_m: int | None = None
    xcds: int | None = None
    waves_per_simd: int | None = None

    def __post_init__(self) -> None:
        for name in ("tile_m", "tile_n", "tile_k", "wave_k"):
            _check_number(name, getattr(self, name))
        for name in _COUNTS:
            if getattr(self, name) is not None:
                _check_number(name, getattr(self, name), least=int(name != "stream_k"))
        if self.mfma is not None:
            if not isinstance(self.mfma, tuple) or len(self.mfma) != 4:
                raise BadInput(f"mfma={self.mfma!r} must be rows, columns, depth and blocks")
            for value in self.mfma:
                _check_number("mfma", value)
        for name in ("dtype", "out_dtype"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or value not in DTYPES):
                raise BadInput(f"{name}={value!r} is no type: {near_names(str(value), DTYPES)}")
        if self.layout is not None and self.layout not in LAYOUTS:
            raise BadInput(f"layout={self.layout!r} must be one of {', '.join(LAYOUTS)}")
        if self.mfma is not None and self.mfma_m is None:
            object.__setattr__(self, "mfma_m", self.mfma[0])
        if self.wave_m is not None and self.wave_n is not None and self.waves is None:
            object.__setattr__(self, "waves", self.wave_m * self.wave_n * self.wave_k)

    def transposed(self) -> Kernel:
        """The kernel of the same product as the other storage order sees it: D^T = op(B)^T op(A)^T.

        M and N are exchanged with everything that counts along them, and the letters of A and B with each other.
        What `group_m` groups has no name in the other order's terms and stays: rows of tiles remain those that the
        tool walks first.
        """
        mfma = self.mfma and (self.mfma[1], self.mfma[0], *self.mfma[2:])
        return dataclasses.replace(
            self,
            tile_m=self.tile_n,
            tile_n=self.tile_m,
            wave_m=self.wave_n,
            wave_n=self.wave_m,
            mfma=mfma,
            mfma_m=self.mfma_m if mfma is None else mfma[0],
            layout=self.layout and transposed_layout(self.layout),
        )

    def only(self, names: tuple[str, ...]) -> Kernel:
        """The kernel with what a format of those fields keeps of it."""
        kept = {name: getattr(self, name) for name in ("tile_m", "tile_n", "tile_k", *names)}
        return Kernel(**kept)

    def to_json(self) -> dict[str, Any]:
        """Every field that is known."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }


#: Fields that are counts where they are known.
_COUNTS = ("mfma_m", "wave_m", "wave_n", "waves", "stages", "split_k", "stream_k", "group_m", "waves_per_simd")


def _check_number(name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name}={value!r} must be a whole number of at least {least}")


def transposed_layout(layout: str) -> str:
    """Letters of the same product in the other storage order.

    A^T as stored is A read by the other order, so that an operand keeps its letter and the two change places.

    >>> transposed_layout("NT"), transposed_layout("NN")
    ('TN', 'NN')
    """
    return layout[1] + layout[0]
