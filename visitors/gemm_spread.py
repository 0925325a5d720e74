"""How a GEMM's tiles cover the compute units: as they are, with k split for every tile, or as even shares of all k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .formula import minimum

__all__ = ["SPLIT_DEPTH", "Spread", "SpreadCosts"]

#: Tiles of k of a part, at least: a shorter loop is mostly its prologue and the sums.
SPLIT_DEPTH = 16
#: A split must take less than this share of the time without: what its sums cost has not been measured on a GPU.
GAIN = 0.85
#: Clocks from the end of one kernel to the start of the next one in a stream, 2 us at 2 GHz; an assumption.
LAUNCH_CLOCKS = 4000


@dataclass(frozen=True, slots=True)
class Spread:
    """A way to cover the CUs."""

    split_k: int = 1
    algorithm: str = "workspace"
    stream_k: int = 0


@dataclass(frozen=True, slots=True)
class SpreadCosts:
    """Clocks of one block tile on `cus` CUs, each of which takes `together` workgroups of it at a time.

    clocks: of one tile of k; sums: of writing or reading the accumulators of a tile once; start: of a workgroup outside
    of its loop. Times are those of the busiest CU:

        plain     ceil(blocks / cus) (depth clocks + start)
        split-K   parts = min(cus // blocks, depth // 16); ceil(depth / parts) clocks + start + sums, then the less of
                  a second kernel (launch + start + sums) and a last workgroup of each tile, which reads parts sums
        Stream-K  ceil(blocks depth / workgroups) clocks a workgroup, one more start, and 3 sums of a tile it shares
    """

    cus: int
    together: int
    clocks: float
    sums: float
    start: float

    def plain(self, blocks: Any, depth: Any) -> Any:
        return -(-blocks // self.cus) * (depth * self.clocks + self.start)

    def parts(self, blocks: Any, depth: Any) -> Any:
        """Parts of split-K: CUs for every tile, of at least SPLIT_DEPTH tiles of k; 0 where there are not so many."""
        return minimum(self.cus // blocks, depth // SPLIT_DEPTH)

    def algorithm(self, parts: int) -> str:
        """A second kernel where the last workgroup would read more than that costs."""
        return "single" if parts * self.sums <= self._second else "workspace"

    @property
    def _second(self) -> float:
        return LAUNCH_CLOCKS + self.start + self.sums

    def split(self, parts: Any, depth: Any) -> Any:
        """Clocks with so many parts of every tile."""
        adding = minimum(parts * self.sums, self._second)
        return -(-depth // parts) * self.clocks + self.start + self.sums + adding

    def stream(self, blocks: Any, depth: Any) -> Any:
        """Clocks with persistent workgroups."""
        share = -(-blocks * depth // (self.cus * self.together))
        starts = -(-blocks // self.cus) + 1
        return share * self.together * self.clocks + starts * self.start + 3 * self.sums

    def few(self, blocks: Any, depth: Any) -> Any:
        """Whether two parts or more of every tile find a CU."""
        return (2 * blocks <= self.cus) & (depth >= 2 * SPLIT_DEPTH)

    def uneven(self, blocks: Any, depth: Any) -> Any:
        """Whether rounds leave CUs idle that persistent workgroups would use."""
        rounds = -(-blocks // self.cus)
        return (blocks < GAIN * rounds * self.cus) & (blocks * depth >= SPLIT_DEPTH * self.cus * self.together)

    def split_k(self, blocks: int, depth: int) -> Spread:
        """Split-K as far as it goes, one part where it does not."""
        parts = self.parts(blocks, depth)
        if parts < 2:
            return Spread()
        return Spread(parts, self.algorithm(parts))

    def least(self, blocks: int, depth: int) -> float:
        """Clocks of the best way; a split only for a gain that its uncertainty leaves."""
        plain: float = self.plain(blocks, depth)
        if self.few(blocks, depth):
            other = self.split(self.parts(blocks, depth), depth)
        elif self.uneven(blocks, depth):
            other = self.stream(blocks, depth)
        else:
            return plain
        return other if other < GAIN * plain else plain

    def best(self, blocks: int, depth: int) -> Spread:
        """The way that takes the least clocks."""
        if self.least(blocks, depth) == self.plain(blocks, depth):
            return Spread()
        if self.few(blocks, depth):
            return self.split_k(blocks, depth)
        return Spread(stream_k=self.cus * self.together)

    def ways_of(self, blocks: Any, depth: Any) -> tuple[Any, Any, Any]:
        """`least` and `best` for arrays of problems: (clocks, split_k, stream_k)."""
        import numpy as np

        plain, few = self.plain(blocks, depth), self.few(blocks, depth)
        parts = np.maximum(1, self.parts(blocks, depth))
        uneven = np.where(self.uneven(blocks, depth), self.stream(blocks, depth), plain)
        other = np.where(few, self.split(parts, depth), uneven)
        gains = other < GAIN * plain
        split_k = np.where(gains & few, parts, 1)
        return np.where(gains, other, plain), split_k, np.where(gains & ~few, self.cus * self.together, 0)
