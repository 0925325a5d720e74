"""The taps of a convolution, and how taps become channels where there are few of those.

Replication by (f_h, f_w) gives every pixel the channels of its f_h x f_w neighbours, `dilation` apart, and leaves every
f-th tap:

    x'[n, h, w, (a f_w + b) C + c] = x[n, h + a dilation_h, w + b dilation_w, c]
    w'[oc, i, j, (a f_w + b) C + c] = w[oc, i f_h + a, j f_w + b, c], 0 past the last tap

so the sum over i, j and c' of w' x' is the same convolution, with ceil(K / f) taps, f dilations apart. (1, 1) changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Taps"]

Array = Any  # a numpy array


@dataclass(frozen=True, slots=True)
class Taps:
    """Taps of a filter `kernel` = (KH, KW) of `channels_of_one` channels, replicated by `factors`."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation_of_one: tuple[int, int]
    channels_of_one: int
    factors: tuple[int, int] = (1, 1)

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

    def offset(self, tap: Any) -> tuple[Any, Any]:
        """Rows and columns of X from a pixel's first element to those of a tap; of numbers and of arrays."""
        return tap // self.cols * self.dilation[0], tap % self.cols * self.dilation[1]

    def source(self, channel: Any) -> tuple[Any, Any, Any]:
        """(rows, columns, channel) of X that a channel of a tap comes from."""
        neighbour, inside = channel // self.channels_of_one, channel % self.channels_of_one
        row, col = neighbour // self.factors[1], neighbour % self.factors[1]
        return row * self.dilation_of_one[0], col * self.dilation_of_one[1], inside

    def filters(self, w: Array) -> Array:
        """[OC, taps, channels] of a filter [OC, KH, KW, C], with zeros for taps past its last one."""
        import numpy as np

        (height, width), (tall, wide) = self.kernel, self.factors
        padded = np.zeros((len(w), self.rows * tall, self.cols * wide, self.channels_of_one), w.dtype)
        padded[:, :height, :width] = w
        parts = padded.reshape(len(w), self.rows, tall, self.cols, wide, self.channels_of_one)
        return parts.transpose(0, 1, 3, 2, 4, 5).reshape(len(w), self.count, self.channels)

    def unfiltered(self, filters: Array) -> Array:
        """The filter [OC, KH, KW, C] that `filters` made [OC, taps, channels] of."""
        (height, width), (tall, wide) = self.kernel, self.factors
        parts = filters.reshape(-1, self.rows, self.cols, tall, wide, self.channels_of_one).transpose(0, 1, 3, 2, 4, 5)
        whole = parts.reshape(-1, self.rows * tall, self.cols * wide, self.channels_of_one)
        return whole[:, :height, :width]
