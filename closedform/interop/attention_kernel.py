"""An attention kernel in the terms that tools share: queries of a workgroup, keys of a step, its waves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from .kernel import check_number, check_terms, known_fields

__all__ = ["AttentionKernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """One kernel of fused attention; lengths in elements. None is a value that its source does not say.

    block_q: query rows of a workgroup, which its `waves` share; tile_kv: keys of a step. `mfma` are rows, columns,
    depth and blocks of the instruction; `stages` counts tiles of K and V under way as the tool's own stages do.
    Raises BadInput for a count below 1, a type and an instruction that are none.
    """

    block_q: int
    tile_kv: int
    dtype: str | None = None
    mfma: tuple[int, int, int, int] | None = None
    mfma_m: int | None = None  # where only rows (and columns) of the instruction are known
    waves: int | None = None
    stages: int | None = None
    waves_per_simd: int | None = None

    given_up: ClassVar[tuple[str, ...]] = ("stages", "tile_kv")

    def __post_init__(self) -> None:
        for name in ("block_q", "tile_kv"):
            check_number(name, getattr(self, name))
        check_terms(self, ("mfma_m", "waves", "stages", "waves_per_simd"), ("dtype",), self.mfma)
        if self.mfma is not None and self.mfma_m is None:
            object.__setattr__(self, "mfma_m", self.mfma[0])

    @property
    def tile(self) -> str:
        """Queries and keys of the tile."""
        return f"{self.block_q}x{self.tile_kv}"

    def smaller(self, num_cus: int, whole: bool) -> Iterator[AttentionKernel]:
        """Unless it must stay `whole`, the kernel with fewer tiles under way, then with fewer keys of a step: the next
        powers of two, down to the rows of an instruction.
        """
        if whole:
            return
        keys = self.tile_kv
        while keys >= (self.mfma_m or 16):
            for stages in range(self.stages or 2, 0, -1):
                yield dataclasses.replace(self, tile_kv=keys, stages=stages)
            keys = 1 << (keys - 1).bit_length() - 1

    def only(self, names: tuple[str, ...]) -> AttentionKernel:
        """The kernel with what a format of those fields keeps of it."""
        kept = {name: getattr(self, name) for name in ("block_q", "tile_kv", *names)}
        return AttentionKernel(**kept)

    def to_json(self) -> dict[str, Any]:
        """Every field that is known."""
        return known_fields(self)
