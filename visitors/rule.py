"""A rule that knob settings of an emitted kernel must satisfy, as data: a name, a mechanism, a need and a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from closedform.hw.errors import Infeasible

__all__ = ["COUNT_LIMIT", "OFFSET_LIMIT", "Rule", "broken_rule"]

#: Byte offsets inside a tile that one buffer descriptor reaches.
OFFSET_LIMIT = 2**31 - 16
#: What kernels count in whole numbers of 32 bits.
COUNT_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rule:
    """`measure` of an emitted kernel's shape gives (needed, limit); the rule holds while needed <= limit."""

    name: str
    mechanism: str
    unit: str
    way_out: str
    measure: Callable[[Any], tuple[int, int]]

    def broken(self, shape: Any) -> Infeasible | None:
        """What is missing, or None; `shape` has the operator as `op`."""
        needed, limit = self.measure(shape)
        if needed <= limit:
            return None
        where = f"the {self.mechanism} of this {shape.op.name}"
        return Infeasible(self.name, needed, limit, self.unit, where, self.way_out)


def broken_rule(rules: Iterable[Rule], shape: Any) -> Infeasible | None:
    """The first rule that the setting breaks, or None."""
    return next((broken for rule in rules if (broken := rule.broken(shape)) is not None), None)
