"""Fragment maps: which lane and which of its elements hold which element of a matrix operand.

A map is a list of mixed-radix digits. The lane number is written with the digits of the "lane" source, least
significant first, and the element number of a lane with those of the "elem" source; each digit is worth
`stride` on one axis of the matrix. Because a map is digits and nothing else, its inverse is computed, and
both directions are // and % on whole numbers: they run on int, numpy arrays and sympy symbols.

Axes are (m, k, block) for A, (n, k, block) for B and (m, n, block) for C and D.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import BadInput
from .tables import read_facts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Digit", "FragmentMap", "fragment_map", "parse_digits"]

#: Axes of the operands a, b and c.
OPERAND_AXES = {"a": ("m", "k", "block"), "b": ("n", "k", "block"), "c": ("m", "n", "block")}

_TOKEN = re.compile(r"(m|n|k|r|block)(\d+)(?:\*(\d+))?")


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit: `extent` values taken from `source` ("lane" or "elem"), each worth `stride` on `axis`."""

    source: str
    extent: int
    axis: str
    stride: int = 1


@dataclass(frozen=True, slots=True)
class FragmentMap:
    """Bijection between (lane, element of the lane) and the coordinates of one matrix operand.

    Raises BadInput unless the digits of every axis tile it exactly: sorted by stride, each stride must be the
    product of the extents before it. That makes the map a bijection onto the box of `shape`.

    >>> c = FragmentMap("16x16", ("m", "n", "block"), parse_digits("lane n16 m4*4; elem m4"))
    >>> c.coords(17, 2)
    {'m': 6, 'n': 1, 'block': 0}
    >>> c.owner(m=6, n=1)
    (17, 2)
    """

    name: str
    axes: tuple[str, ...]
    digits: tuple[Digit, ...]

    def __post_init__(self) -> None:
        for digit in self.digits:
            if digit.source not in ("lane", "elem") or digit.axis not in self.axes:
                raise BadInput(f"fragment map {self.name}: {digit} is not on the axes {self.axes}")
            if digit.extent < 1:
                raise BadInput(f"fragment map {self.name}: {digit} has no values")
        for axis in self.axes:
            expected = 1
            for digit in sorted((d for d in self.digits if d.axis == axis), key=lambda d: (d.stride, d.extent)):
                if digit.stride != expected:
                    raise BadInput(
                        f"fragment map {self.name}: axis {axis} is not tiled exactly: a digit of extent "
                        f"{digit.extent} has stride {digit.stride}, expected {expected}"
                    )
                expected *= digit.extent

    @property
    def shape(self) -> dict[str, int]:
        """Extent of each axis, in elements."""
        extents = dict.fromkeys(self.axes, 1)
        for digit in self.digits:
            extents[digit.axis] *= digit.extent
        return extents

    @property
    def lanes(self) -> int:
        return self._extent("lane")

    @property
    def elements(self) -> int:
        """Elements that each lane holds."""
        return self._extent("elem")

    def _extent(self, source: str) -> int:
        extent = 1
        for digit in self.digits:
            if digit.source == source:
                extent *= digit.extent
        return extent

    def coords(self, lane: Any, elem: Any) -> dict[str, Any]:
        """Coordinates, by axis, of element `elem` of `lane`; both may be int, array or symbol.

        The arguments must lie in range(lanes) and range(elements): symbols cannot be checked, so nothing is.
        """
        place: dict[str, Any] = dict.fromkeys(self.axes, 0)
        source = {"lane": lane, "elem": elem}
        weight = {"lane": 1, "elem": 1}
        size = {"lane": self.lanes, "elem": self.elements}
        for digit in self.digits:
            value = _digit(source[digit.source], weight[digit.source], digit.extent, size[digit.source])
            weight[digit.source] *= digit.extent
            place[digit.axis] = place[digit.axis] + digit.stride * value
        return place

    def owner(self, **coords: Any) -> tuple[Any, Any]:
        """(lane, element) that holds the matrix element at these coordinates; an axis left out counts 0."""
        unknown = sorted(set(coords) - set(self.axes))
        if unknown:
            raise BadInput(f"fragment map {self.name} has no axis {', '.join(unknown)}: its axes are {self.axes}")
        place: dict[str, Any] = {"lane": 0, "elem": 0}
        weight = {"lane": 1, "elem": 1}
        size = self.shape
        for digit in self.digits:
            value = _digit(coords.get(digit.axis, 0), digit.stride, digit.extent, size[digit.axis])
            place[digit.source] = place[digit.source] + weight[digit.source] * value
            weight[digit.source] *= digit.extent
        return place["lane"], place["elem"]

    def table(self) -> dict[str, NDArray[np.int64]]:
        """The whole map: one array of shape [lanes, elements] for each axis."""
        import numpy as np

        lane = np.arange(self.lanes)[:, None]
        elem = np.arange(self.elements)[None, :]
        full = (self.lanes, self.elements)
        return {axis: np.broadcast_to(v, full).copy() for axis, v in self.coords(lane, elem).items()}


def _digit(number: Any, weight: int, extent: int, size: int) -> Any:
    """The digit of `number` at `weight`, without the // and % that do nothing for a number below `size`."""
    if extent == 1:
        return 0
    shifted = number // weight if weight > 1 else number
    return shifted % extent if weight * extent < size else shifted


def parse_digits(text: str, row: str = "m") -> tuple[Digit, ...]:
    """Digits from their written form; `r` stands for the axis `row` (m of A, n of B).

    "lane r16 k4*4; elem k4" reads: the lane's lowest digit has 16 values and is the row, the next has 4
    values worth 4 each on k; the element has one digit of 4 values on k.
    """
    digits = []
    for part in text.split(";"):
        source, *tokens = part.split()
        for token in tokens:
            match = _TOKEN.fullmatch(token)
            if match is None:
                raise BadInput(f"cannot read the digit {token!r} in {text!r}: expected axis, extent, *stride")
            axis, extent, stride = match.groups(default="1")
            digits.append(Digit(source, int(extent), row if axis == "r" else axis, int(stride)))
    return tuple(digits)


@cache
def _written_maps() -> dict[str, str]:
    return {row["name"]: row["digits"] for row in read_facts("fragment_maps.csv", key=("name",))}


@cache
def fragment_map(name: str, operand: str) -> FragmentMap:
    """The catalogued map `name` as the operand "a", "b" or "c" of an instruction."""
    text = _written_maps().get(name)
    if text is None:
        raise BadInput(f"no fragment map is called {name!r}")
    axes = OPERAND_AXES[operand]
    return FragmentMap(name, axes, parse_digits(text, row=axes[0]))
