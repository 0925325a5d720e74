"""Which keys a query sees, as an interval with sink tokens ahead of it: one definition for mask, tiles and kernel.

Query i of L_q stands at position i + L_kv - L_q of the keys: the last query at the last key (bottom-right aligned).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .view import Window

if TYPE_CHECKING:
    from .numerics import Array

__all__ = ["Visibility"]


@dataclass(frozen=True, slots=True)
class Visibility:
    """Visible keys of `L_q` queries among `L_kv` keys.

    causal: no key behind the query's position. window: only keys less than `window` away from it, 0 for all.
    sink: the first keys, which a window does not hide.

    >>> Visibility(2, 3, causal=True).mask().astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    >>> Visibility(1, 9, causal=True, window=4, sink=1).mask().astype(int).tolist()
    [[1, 0, 0, 0, 0, 1, 1, 1, 1]]
    """

    L_q: int
    L_kv: int
    causal: bool = False
    window: int = 0
    sink: int = 0

    @property
    def shift(self) -> int:
        """Position of query 0 among the keys; negative where queries outnumber keys."""
        return self.L_kv - self.L_q

    def mask(self) -> Array:
        """[L_q, L_kv] of booleans: True where the query sees the key."""
        import numpy as np

        return self.sees(np.arange(self.L_q)[:, None], np.arange(self.L_kv))

    def sees(self, query: Array, key: Array) -> Array:
        """Whether queries see keys, elementwise."""
        position = query + self.shift
        seen = (key < self.L_kv) & (query < self.L_q) & (key >= 0)
        if self.window:
            seen = seen & ((abs(key - position) < self.window) | (key < self.sink))
        return seen & (key <= position) if self.causal else seen

    @property
    def pairs(self) -> int:
        """How many pairs of a query and a key that it sees there are.

        >>> Visibility(3, 4, causal=True).pairs, Visibility(10, 10, causal=True, window=4, sink=1).pairs
        (9, 40)
        """
        n, keys, shift = self.L_q, self.L_kv, self.shift
        ends = _clamped_sum(n, shift + 1, 0, keys) if self.causal else n * keys
        if not self.window:
            return ends
        if not self.causal:
            ends = _clamped_sum(n, shift + self.window, 0, keys)
        begins = _clamped_sum(n, shift - self.window + 1, 0, keys)
        sinks = min(self.sink, keys)
        before = _clamped_sum(n, shift - self.window + 1, 0, sinks)
        behind = 0 if self.causal else n * sinks - _clamped_sum(n, shift + self.window, 0, sinks)
        return ends - begins + before + behind

    def span(self, rows: Window) -> tuple[int, int, int]:
        """(sinks, begin, end) of all that the queries `rows` may see: keys below `sinks`, and begin <= key < end."""
        first, last = rows.start + self.shift, rows.stop - 1 + self.shift
        reach = last + 1 if self.causal else self.L_kv
        end = min(reach, last + self.window) if self.window else reach
        begin = first - self.window + 1 if self.window else 0
        most = max(min(reach, self.L_kv), 0)
        return min(self.sink, most) if self.window else 0, max(begin, 0), max(min(end, self.L_kv), 0)

    def tiles(self, rows: Window, tile_kv: int, split: int = 0, splits: int = 1) -> Iterator[Window]:
        """The tiles of `tile_kv` keys that a workgroup with the queries `rows` visits; the others are hidden from all.

        Tiles of sinks come first, each tile once. Of `splits` workgroups that share them, number `split` takes an even
        run; the last ones may be left without any.
        """
        ahead, near = self._runs(rows, tile_kv)
        total = len(ahead) + len(near)
        share = -(-total // splits)
        whole = Window.whole(self.L_kv)
        for i in range(split * share, min(total, (split + 1) * share)):
            yield whole.tile(ahead[i] if i < len(ahead) else near[i - len(ahead)], tile_kv)

    def count(self, rows: Window, tile_kv: int) -> int:
        """How many tiles `tiles` yields."""
        return sum(len(run) for run in self._runs(rows, tile_kv))

    def _runs(self, rows: Window, tile_kv: int) -> tuple[range, range]:
        """Numbers of the tiles of sinks, and of the other tiles that the queries `rows` may see."""
        sinks, begin, end = self.span(rows)
        ahead = range(-(-sinks // tile_kv))
        first = max(begin // tile_kv, len(ahead))
        return ahead, range(first, max(-(-end // tile_kv), first))

    def is_full(self, rows: Window, keys: Window) -> bool:
        """Whether each of the queries sees each of the keys: the interval or the sink tokens of each have all."""
        if keys.is_clipped:
            return False
        first, last = rows.start + self.shift, rows.stop - 1 + self.shift
        if self.causal and keys.stop - 1 > first:
            return False
        near = not self.window or (keys.stop - 1 - first < self.window and last - keys.start < self.window)
        return near or keys.stop <= self.sink


def _clamped_sum(count: int, first: int, low: int, high: int) -> int:
    """Sum of first, first + 1, ... (`count` numbers), each brought between `low` and `high`.

    >>> _clamped_sum(5, -1, 0, 2)
    5
    """
    below = min(max(low - first, 0), count)
    above = min(max(first + count - high, 0), count - below)
    inside = count - below - above
    return below * low + above * high + inside * (first + below) + inside * (inside - 1) // 2
