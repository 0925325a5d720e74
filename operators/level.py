"""The four levels of the machine that a tree is cut into."""

from __future__ import annotations

from enum import IntEnum

from closedform.hw.errors import BadInput, near_names

__all__ = ["Level", "level"]


class Level(IntEnum):
    """Device (all compute units), block (one workgroup on one), wave (64 lanes), atom (one MFMA).

    Ordered from the outside in: Level.DEVICE < Level.ATOM.
    """

    DEVICE = 0
    BLOCK = 1
    WAVE = 2
    ATOM = 3


def level(name: str | Level) -> Level:
    """The level of that name, in any case; BadInput otherwise.

    >>> level("atom")
    <Level.ATOM: 3>
    """
    if isinstance(name, Level):
        return name
    found = Level.__members__.get(name.upper())
    if found is None:
        raise BadInput(f"unknown level {name!r}: {near_names(name, (n.lower() for n in Level.__members__))}")
    return found
