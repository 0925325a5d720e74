"""The strip of outputs that a thread of a depthwise convolution has, and the places of X that it reaches, each once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Strip"]


@dataclass(frozen=True, slots=True)
class Strip:
    """`outputs` next to each other on one axis, under `taps` that are `dilation` apart; outputs step by `stride`. Of
    `lines` such lines of taps the loads come together.

    Output j reads place j stride + k dilation with tap k, counted from the first output's first tap.
    """

    outputs: int
    taps: int
    stride: int
    dilation: int
    lines: int = 1

    @property
    def places(self) -> tuple[int, ...]:
        """Places that some output reads with some tap, in order.

        >>> Strip(4, 3, 1, 1).places, Strip(2, 2, 3, 1).places
        ((0, 1, 2, 3, 4, 5), (0, 1, 3, 4))
        """
        return _places(self.outputs, self.taps, self.stride, self.dilation)

    def meets(self, place: int) -> Iterator[tuple[int, int]]:
        """(output, tap) that read a place.

        >>> list(Strip(4, 3, 1, 1).meets(2))
        [(0, 2), (1, 1), (2, 0)]
        """
        for j in range(self.outputs):
            k, rest = divmod(place - j * self.stride, self.dilation)
            if rest == 0 and 0 <= k < self.taps:
                yield j, k

    def groups(self, size: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        """(line of taps, place) in the order in which they are loaded, `size` at a time.

        >>> Strip(1, 3, 1, 1, lines=2).groups(4)
        (((0, 0), (0, 1), (0, 2), (1, 0)), ((1, 1), (1, 2)))
        """
        reads = [(line, place) for line in range(self.lines) for place in self.places]
        return tuple(tuple(reads[first : first + size]) for first in range(0, len(reads), size))

    def held(self, size: int) -> int:
        """The most weights that are kept at once where loads come `size` at a time: those between the first and the
        last place of their tap.

        >>> Strip(4, 3, 1, 1).held(6), Strip(2, 31, 1, 1).held(8), Strip(4, 3, 1, 1, lines=3).held(18)
        (3, 9, 9)
        """
        return _held(self, size)


@lru_cache(maxsize=4096)
def _places(outputs: int, taps: int, stride: int, dilation: int) -> tuple[int, ...]:
    return tuple(sorted({j * stride + k * dilation for j in range(outputs) for k in range(taps)}))


@lru_cache(maxsize=4096)
def _held(strip: Strip, size: int) -> int:
    last = (strip.outputs - 1) * strip.stride
    spans = [
        ((line, k * strip.dilation), (line, k * strip.dilation + last))
        for line in range(strip.lines)
        for k in range(strip.taps)
    ]
    return max(sum(first <= group[-1] and group[0] <= end for first, end in spans) for group in strip.groups(size))
