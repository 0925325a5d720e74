"""A GEMM kernel in the terms that tools share: the tile of a workgroup, its waves, its instruction, its mapping."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar, TypeVar

from closedform.hw.dtypes import DTYPES
from closedform.hw.errors import BadInput, near_names
from closedform.operators.gemm import LAYOUTS

__all__ = ["Kernel", "check_number", "check_terms", "known_fields", "transposed_layout"]

KernelT = TypeVar("KernelT", bound="Kernel")


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

    #: What `smaller` changes.
    given_up: ClassVar[tuple[str, ...]] = ("xcds", "stages", "tile_k")

    def __post_init__(self) -> None:
        for name in ("tile_m", "tile_n", "tile_k", "wave_k"):
            check_number(name, getattr(self, name))
        if self.stream_k is not None:
            check_number("stream_k", self.stream_k, least=0)
        check_terms(self, _COUNTS, ("dtype", "out_dtype"), self.mfma)
        if self.layout is not None and self.layout not in LAYOUTS:
            raise BadInput(f"layout={self.layout!r} must be one of {', '.join(LAYOUTS)}")
        if self.mfma is not None and self.mfma_m is None:
            object.__setattr__(self, "mfma_m", self.mfma[0])
        if self.wave_m is not None and self.wave_n is not None and self.waves is None:
            object.__setattr__(self, "waves", self.wave_m * self.wave_n * self.wave_k)

    @property
    def tile(self) -> str:
        """Rows, columns and depth of the tile."""
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k}"

    def smaller(self: KernelT, num_cus: int, whole: bool) -> Iterator[KernelT]:
        """The kernel on chiplets of equal shares, then on a power of two of them, which every tool deals to; unless it
        must stay `whole`, then with fewer tiles under way, then with half of their depth, and so on.
        """
        shares = gcd(self.xcds or 1, num_cus)
        yield dataclasses.replace(self, xcds=shares)
        dealt = dataclasses.replace(self, xcds=shares & -shares)
        yield dealt
        if whole:
            return
        least = 1 if self.mfma is None else self.mfma[2]
        depth = self.tile_k
        while depth >= least and depth % least == 0:
            for stages in range(self.stages or 2, 1, -1):
                yield dataclasses.replace(dealt, tile_k=depth, stages=stages)
            if depth % 2:
                return
            depth //= 2

    def transposed(self: KernelT) -> KernelT:
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

    def only(self: KernelT, names: tuple[str, ...]) -> KernelT:
        """The kernel with what a format of those fields keeps of it."""
        kept = {name: getattr(self, name) for name in ("tile_m", "tile_n", "tile_k", *names)}
        return type(self)(**kept)

    def to_json(self) -> dict[str, Any]:
        """Every field that is known."""
        return known_fields(self)


#: Fields that are counts of at least 1 where they are known.
_COUNTS = ("mfma_m", "wave_m", "wave_n", "waves", "stages", "split_k", "group_m", "waves_per_simd")


def known_fields(kernel: Any) -> dict[str, Any]:
    """Fields of a kernel whose values are known, as JSON has them."""
    values = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(kernel)}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None
    }


def check_terms(kernel: Any, counts: tuple[str, ...], types: tuple[str, ...], mfma: object) -> None:
    """Raises BadInput for a known count below 1, an unknown type and an instruction that is not four counts."""
    for name in counts:
        if getattr(kernel, name) is not None:
            check_number(name, getattr(kernel, name))
    if mfma is not None:
        if not isinstance(mfma, tuple) or len(mfma) != 4:
            raise BadInput(f"mfma={mfma!r} must be rows, columns, depth and blocks")
        for value in mfma:
            check_number("mfma", value)
    for name in types:
        value = getattr(kernel, name)
        if value is not None and (not isinstance(value, str) or value not in DTYPES):
            raise BadInput(f"{name}={value!r} is no type: {near_names(str(value), DTYPES)}")


def check_number(name: str, value: object, least: int = 1) -> None:
    """Raises BadInput for what is no whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name}={value!r} must be a whole number of at least {least}")


def transposed_layout(layout: str) -> str:
    """Letters of the same product in the other storage order.

    A^T as stored is A read by the other order, so that an operand keeps its letter and the two change places.

    >>> transposed_layout("NT"), transposed_layout("NN")
    ('TN', 'NN')
    """
    return layout[1] + layout[0]
