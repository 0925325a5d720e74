"""The node of an operator tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from closedform.hw.errors import BadInput

from .level import Level
from .policy import Pad
from .view import View

__all__ = ["AtomNode", "Node", "check_extent"]


class Node(ABC):
    """One node: an operator, its tile policy (`tiles`, None while still open) and where it stands.

    Nothing is built before it is asked for: `children` is a generator.
    """

    __slots__ = ()

    level: ClassVar[Level]
    #: Boundary policy of each matrix that the operator touches.
    boundary: ClassVar[Mapping[str, Pad]]
    op: Any
    tiles: Any

    @property
    @abstractmethod
    def views(self) -> Mapping[str, View]:
        """Windows that this node works on, by matrix name."""

    @abstractmethod
    def children(self) -> Iterator[Node]:
        """The nodes one level down, in execution order, clipped to the valid extent."""

    @abstractmethod
    def interior(self) -> tuple[Node, ...]:
        """One unclipped child of each kind: children of a kind share one code and differ in extents only."""

    def require_tiles(self) -> Any:
        """The tile policy; BadInput on an open tree."""
        if self.tiles is None:
            raise BadInput(f"{type(self).__name__} is open: its tiles have not been derived yet")
        return self.tiles


class AtomNode(Node):
    """One MFMA: the leaf of a tree."""

    __slots__ = ()

    level: ClassVar[Level] = Level.ATOM

    def children(self) -> Iterator[Node]:
        return iter(())

    def interior(self) -> tuple[Node, ...]:
        return ()


def check_extent(name: str, value: object, most: int | None = None, least: int = 1) -> None:
    """BadInput unless `value` is an int of at least `least` and at most `most`.

    >>> check_extent("L", 0)
    Traceback (most recent call last):
    closedform.hw.errors.BadInput: L=0 must be at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name}={value!r} must be a whole number")
    if value < least:
        raise BadInput(f"{name}={value} must be at least {least}")
    if most is not None and value > most:
        raise BadInput(f"{name}={value} is above the limit of {most}")
