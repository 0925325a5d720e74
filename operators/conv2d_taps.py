"""The taps of a convolution, and how taps become channels where there are few of those.

Replication by (f_h, f_w) gives every pixel the channels of its f_h x f_w neighbours, `dilation` apart, and leaves every
f-th tap:

    x'[n, h, w, (a f_w + b) C + c] = x[n, h + a dilation_h, w + b dilation_w, c]
    w'[oc, i, j, (a f_w + b) C + c] = w[oc, i f_h + a, j f_w + b, c], 0 past the last tap

so the sum over i, j and c' of w' x' is the same convolution, with ceil(K / f) taps, f dilations apart. (1, 1) changes
nothing. Where memory has the columns next to each other, not the channels, the order is (c f_h + a) f_w + b: in both
ways new channels lie in runs that are contiguous in X, which one access may load.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

__all__ = ["Taps"]

Array = Any  # a numpy array


@dataclass(frozen=True, slots=True)
class Taps:
    """Taps of a filter `kernel` = (KH, KW) of `channels_of_one` channels, replicated by `factors`.

    `channels_last`: X has the channels of a pixel next to each other, otherwise the columns of a row. `grouped`: a
    pixel has channels of other groups, too.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation_of_one: tuple[int, int]
    channels_of_one: int
    factors: tuple[int, int] = (1, 1)
    channels_last: bool = True
    grouped: bool = False

    @property
    def rows(self) -> int:
        """Taps along the rows."""
        return -(-self.kernel[0] // self.factors[0])

    @property
    def cols(self) -> int:
        return -(-self.kernel[1] // self.factors[1])

    @property
    def count(self) -> int:
        """Taps of a channel.

        >>> Taps((7, 7), (2, 2), (1, 1), 3).count, Taps((7, 7), (2, 2), (1, 1), 3, (2, 2)).count
        (49, 16)
        """
        return self.rows * self.cols

    @property
    def channels(self) -> int:
        """Channels of a tap: IC 3 becomes 12 with the factors (2, 2)."""
        return self.factors[0] * self.factors[1] * self.channels_of_one

    @property
    def dilation(self) -> tuple[int, int]:
        """Elements from a tap to the next."""
        return self.dilation_of_one[0] * self.factors[0], self.dilation_of_one[1] * self.factors[1]

    @property
    def runs(self) -> bool:
        """Whether new channels of neighbouring pixels lie next to each other in memory, too."""
        return self.dilation_of_one[1] == 1 and not (self.channels_last and self.grouped)

    def access(self, vec: int, left: int, width: int) -> int:
        """Elements, at most `vec`, that one access of replicated X may load: new channels that lie next to each other.

        Their runs, pixels, and the edges of a row of `width` pixels, `left` of them padding, are multiples of it apart.

        >>> Taps((16, 16), (16, 16), (1, 1), 3, (16, 16)).access(8, 0, 224)
        8
        >>> Taps((7, 7), (2, 2), (1, 1), 3, (7, 7)).access(8, 3, 224)
        1
        """
        unit = self.channels_of_one if self.channels_last else 1
        if not self.runs:
            return gcd(vec, unit)
        return gcd(vec, unit * self.factors[1], self.stride[1] * unit, left * unit, width * unit)

    @property
    def whole(self) -> bool:
        """Every tap has all of its channels: the factors divide the kernel."""
        return self.kernel[0] % self.factors[0] == 0 and self.kernel[1] % self.factors[1] == 0

    def exists(self, tap: Any, channel: Any) -> Any:
        """Whether a channel of a tap is one of the filter's, and not past its last row or column; of numbers and of
        arrays. What is not must not be multiplied, not even by 0: infinities and NaN would stay.

        >>> [Taps((3, 3), (1, 1), (1, 1), 1, (2, 2)).exists(tap, 3) for tap in range(4)]
        [True, False, False, False]
        """
        down, right = self._neighbour(channel)
        rows, cols = tap // self.cols * self.factors[0], tap % self.cols * self.factors[1]
        return (rows + down < self.kernel[0]) & (cols + right < self.kernel[1])

    def _neighbour(self, channel: Any) -> tuple[Any, Any]:
        """(rows, columns) from a pixel to the neighbour whose channel it is, in factors of the dilation."""
        count = self.factors[0] * self.factors[1]
        neighbour = channel // self.channels_of_one if self.channels_last else channel % count
        return neighbour // self.factors[1], neighbour % self.factors[1]

    def offset(self, tap: Any) -> tuple[Any, Any]:
        """Rows and columns of X from a pixel's first element to those of a tap; of numbers and of arrays."""
        return tap // self.cols * self.dilation[0], tap % self.cols * self.dilation[1]

    def source(self, channel: Any) -> tuple[Any, Any, Any]:
        """(rows, columns, channel) of X that a channel of a tap comes from."""
        one, count = self.channels_of_one, self.factors[0] * self.factors[1]
        inside = channel % one if self.channels_last else channel // count
        row, col = self._neighbour(channel)
        return row * self.dilation_of_one[0], col * self.dilation_of_one[1], inside

    def filters(self, w: Array) -> Array:
        """[OC, taps, channels] of a filter [OC, KH, KW, C], with zeros for taps past its last one."""
        import numpy as np

        (height, width), (tall, wide) = self.kernel, self.factors
        padded = np.zeros((len(w), self.rows * tall, self.cols * wide, self.channels_of_one), w.dtype)
        padded[:, :height, :width] = w
        parts = padded.reshape(len(w), self.rows, tall, self.cols, wide, self.channels_of_one)
        order = (0, 1, 3, 2, 4, 5) if self.channels_last else (0, 1, 3, 5, 2, 4)
        return parts.transpose(order).reshape(len(w), self.count, self.channels)

    def unfiltered(self, filters: Array) -> Array:
        """The filter [OC, KH, KW, C] that `filters` made [OC, taps, channels] of."""
        (height, width), (tall, wide) = self.kernel, self.factors
        one = self.channels_of_one
        if self.channels_last:
            parts = filters.reshape(-1, self.rows, self.cols, tall, wide, one).transpose(0, 1, 3, 2, 4, 5)
        else:
            parts = filters.reshape(-1, self.rows, self.cols, one, tall, wide).transpose(0, 1, 4, 2, 5, 3)
        whole = parts.reshape(-1, self.rows * tall, self.cols * wide, self.channels_of_one)
        return whole[:, :height, :width]
