"""Windows onto the axes of a matrix: a nominal tile and the part of it that exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["View", "Window"]


@dataclass(frozen=True, slots=True)
class Window:
    """An interval of one axis, in elements: nominal `size` from `start` on, `extent` of them valid.

    The tile policy decides `size`; the shape decides `extent`. What stands in the invalid part is up to the
    boundary policy and not known here.

    >>> [(w.start, w.extent) for w in Window.whole(70).tiles(32)]
    [(0, 32), (32, 32), (64, 6)]
    """

    start: int
    size: int
    extent: int

    def __post_init__(self) -> None:
        assert self.start >= 0, self
        assert 0 <= self.extent <= self.size, self

    @classmethod
    def whole(cls, length: int) -> Window:
        """The full axis of that length."""
        return cls(0, length, length)

    @property
    def stop(self) -> int:
        """End of the valid part."""
        return self.start + self.extent

    @property
    def is_clipped(self) -> bool:
        return self.extent < self.size

    @property
    def slice(self) -> slice:
        """The valid part as an index."""
        return slice(self.start, self.stop)

    def tiles(self, size: int) -> Iterator[Window]:
        """Tiles of nominal `size` from the start on, the last clipped; none where nothing is valid."""
        for start in range(self.start, self.stop, size):
            yield self.tile((start - self.start) // size, size)

    def tile(self, number: int, size: int) -> Window:
        """The tile of that number of `tiles(size)`."""
        start = self.start + number * size
        return Window(start, size, min(size, self.stop - start))

    def count(self, size: int) -> int:
        """How many tiles `tiles(size)` yields: ceil(extent / size)."""
        return -(-self.extent // size)


@dataclass(frozen=True, slots=True)
class View:
    """A window onto a matrix: rows x cols."""

    rows: Window
    cols: Window

    @property
    def shape(self) -> tuple[int, int]:
        """Valid rows and columns."""
        return self.rows.extent, self.cols.extent

    @property
    def is_clipped(self) -> bool:
        return self.rows.is_clipped or self.cols.is_clipped
