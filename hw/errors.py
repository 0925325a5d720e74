"""Errors of the whole package: one base class, and `Infeasible`, which is also a plain value.

Every error class names the exit status that the command line returns for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "BadInput",
    "ClosedformError",
    "Infeasible",
    "InfeasibleError",
    "MissingDependency",
    "NoDevice",
    "near_names",
]


class ClosedformError(Exception):
    """Base of every error that closedform raises on purpose."""

    exit_status = 1


class BadInput(ClosedformError, ValueError):
    """The caller asked for something that does not exist or is malformed."""

    exit_status = 2


class MissingDependency(ClosedformError, ImportError):
    """An optional package is needed for this request and is not installed."""

    exit_status = 2


class NoDevice(ClosedformError):
    """A GPU is needed for this request and none was found."""

    exit_status = 3


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Why a request does not fit: the resource, the need, the limit, the place and the way out.

    >>> print(Infeasible("LDS", 73728, 65536, "B", "one workgroup", "use a smaller tile_kv"))
    one workgroup needs 73728 B of LDS, the limit is 65536 B: use a smaller tile_kv
    """

    resource: str
    needed: float
    limit: float
    unit: str
    where: str
    way_out: str

    def __str__(self) -> str:
        return (
            f"{self.where} needs {_number(self.needed)} {self.unit} of {self.resource}, "
            f"the limit is {_number(self.limit)} {self.unit}: {self.way_out}"
        )


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class InfeasibleError(ClosedformError):
    """Raised where a value is needed and only an `Infeasible` exists; it carries it as `reason`."""

    exit_status = 4

    def __init__(self, reason: Infeasible) -> None:
        super().__init__(str(reason))
        self.reason = reason


def near_names(name: str, known: Iterable[str]) -> str:
    """Text to end an "unknown name" message with: the near names, or else all known ones.

    >>> near_names("bf61", ["bf16", "i8"])
    'did you mean bf16?'
    >>> near_names("q", ["mi300x", "mi210"])
    'known: mi210, mi300x'
    """
    from difflib import get_close_matches

    names = sorted(set(known))
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
