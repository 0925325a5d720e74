"""One decoded instruction: what it does to a group of waves, and what it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .operands import Context, Operand
from .parse import Instruction
from .state import EXEC, SCALAR, Group

__all__ = ["Builder", "Op", "make_op"]


@dataclass(frozen=True, slots=True)
class Op:
    """`kind` groups instructions for the counts; `reads` and `writes` are rows as in the sets of a Group.

    `flow` is empty for straight-line operations and names what the scheduler has to do otherwise.
    """

    ins: Instruction
    run: Callable[[Group], object]
    kind: str
    reads: frozenset[int]
    writes: frozenset[int]
    regs: frozenset[int]
    whole: bool = False
    flow: str = ""
    target: str = ""
    clocks: int = 4


Builder = Callable[[Instruction, Context], Op]
_EXEC_ROWS = frozenset({SCALAR + EXEC, SCALAR + EXEC + 1})


def make_op(
    ins: Instruction,
    run: Callable[[Group], object],
    kind: str,
    sources: list[Operand] | tuple[Operand, ...] = (),
    targets: list[Operand] | tuple[Operand, ...] = (),
    *,
    extra_reads: frozenset[int] = frozenset(),
    extra_writes: frozenset[int] = frozenset(),
    whole: bool = False,
    flow: str = "",
    target: str = "",
    clocks: int = 4,
) -> Op:
    """An Op whose register sets come from its operands."""
    reads = extra_reads.union(*(o.rows for o in sources)) - _EXEC_ROWS
    writes = extra_writes.union(*(o.rows for o in targets)) - _EXEC_ROWS
    return Op(ins, run, kind, reads, writes, reads | writes, whole, flow, target, clocks)
