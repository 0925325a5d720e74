"""A candidate: a value for each knob, and the text that stands for it in journals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Candidate", "Round", "Value", "canonical"]

Value = int | bool | str
Candidate = Mapping[str, Value]


def canonical(values: Mapping[str, object]) -> str:
    """One text for equal mappings: JSON with sorted names.

    >>> canonical({"b": 1, "a": True})
    '{"a":true,"b":1}'
    """
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class Round:
    """Knobs that one mechanism ties together, with the values that are tried beside the incumbent's.

    reseed: knobs outside of the round follow from the opened ones by formula instead of being held. most: measurements
    that the round may take, its best by the model first; 0 for no limit of its own. fixed: values that every candidate
    of the round has.
    """

    name: str
    text: str
    axes: Mapping[str, tuple[Value, ...]]
    reseed: bool = False
    most: int = 0
    fixed: tuple[tuple[str, Value], ...] = ()
