"""Rejection rules of other tools, as data: what no export may contain, and what an import is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from closedform.hw.errors import ClosedformError

__all__ = ["Refused", "Rule", "broken_rules"]

T = TypeVar("T")


class Refused(ClosedformError):
    """A kernel that the other tool does not take, with the rule that it breaks."""

    exit_status = 4


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """`broken` says whether a value breaks the rule; `text` what the tool wants, in its own words for things.

    `since` is the version from which the tool refuses, where only some do. `alone` says that the kernel and the GPU
    decide, without the product, and that what is unknown breaks nothing: then it holds for kernels that are read too.
    """

    name: str
    text: str
    source: str
    broken: Callable[[T], bool]
    since: str = ""
    alone: bool = False

    @property
    def described(self) -> str:
        return f"{self.name}: {self.text}" + (f" (from {self.since} on)" if self.since else "")


def broken_rules(rules: Iterable[Rule[T]], value: T) -> tuple[Rule[T], ...]:
    """The rules that the value breaks, in their order."""
    return tuple(rule for rule in rules if rule.broken(value))
