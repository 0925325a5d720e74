"""Boundary policy: what an element outside the valid extent counts as."""

from __future__ import annotations

from enum import Enum

__all__ = ["Pad"]


class Pad(Enum):
    """The identity of the operation that consumes the element, so that padding never changes a result.

    A sum takes 0. A maximum takes -inf, which is also what makes the online softmax weigh a padded key with
    exactly 0: no finite stand-in does, because a true logit may lie below it.
    """

    ZERO = 0.0
    MAX_IDENTITY = float("-inf")
