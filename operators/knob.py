"""Knobs: what a derivation chooses and a caller may fix instead, as data on the fields of a tile policy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from closedform.hw.errors import BadInput, near_names

from .node import check_extent

__all__ = ["MECHANISMS", "Knob", "KnobRow", "knobs_of"]

#: What a knob or a rule steers, in the order in which help and documents list them.
MECHANISMS = ("tile", "split", "mapping", "global reads", "LDS", "stores", "schedule", "types")


@dataclass(frozen=True, slots=True)
class Knob:
    """Marks a field of a tile policy, `name: Annotated[kind, Knob(...)]`, as open to callers.

    `values` names what a field takes that is neither a number nor a flag; `least` is the smallest number.
    """

    mechanism: str
    text: str
    values: tuple[str, ...] = ()
    least: int = 1

    def __post_init__(self) -> None:
        assert self.mechanism in MECHANISMS, self.mechanism


@dataclass(frozen=True, slots=True)
class KnobRow:
    """A knob with the field that it marks: its name and its kind (int, bool or another type)."""

    name: str
    kind: type
    mechanism: str
    text: str
    values: tuple[str, ...]
    least: int

    def check(self, value: object) -> None:
        """BadInput for a value of another kind, a number below the least or an unknown word.

        What names of other kinds mean, such as that of an atom, is not looked at.
        """
        if self.kind is int:
            check_extent(self.name, value, least=self.least)
        elif self.kind is bool and not isinstance(value, bool):
            raise BadInput(f"{self.name}={value!r} must be True or False")
        elif self.kind is str and value not in self.values:
            raise BadInput(f"{self.name}={value!r} is not offered: {near_names(str(value), self.values)}")


def knobs_of(policy: type[Any]) -> tuple[KnobRow, ...]:
    """The knobs of a tile policy, by mechanism and then in the order of its fields."""
    hints = get_type_hints(policy, include_extras=True)
    rows = []
    for field in fields(policy):
        for mark in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(mark, Knob):
                kind = hints[field.name].__origin__
                rows.append(KnobRow(field.name, kind, mark.mechanism, mark.text, mark.values, mark.least))
    return tuple(sorted(rows, key=lambda row: MECHANISMS.index(row.mechanism)))
