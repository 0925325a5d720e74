"""One decoded instruction: what it does to a group of waves, and what it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .operands import Operand
from .parse import Instruction
from .state import EXEC, SCALAR, Group

__all__ = ["Op", "copies", "halves", "make_op"]


@dataclass(frozen=True, slots=True)
class Op:
    """`kind` groups instructions for the counts; `reads` and `writes` are rows as in the sets of a Group.

    `flow` is empty for straight-line operations and names what the scheduler has to do otherwise.
    `soft` lists sources that may be unwritten as long as nobody looks at what comes of them, since compilers feed
    undefined registers to operations whose result, or the half concerned, goes unused. The written rows that depend on
    such a source count as unwritten in turn. Vector arithmetic is soft; addresses, stored data, matrix operands,
    lane masks and scalars are not.
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
    soft: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    fragments: tuple[Any, ...] = ()


_EXEC_ROWS = frozenset({SCALAR + EXEC, SCALAR + EXEC + 1})


def halves(operands: Sequence[Operand], target: Operand) -> dict[int, tuple[int, ...]]:
    """Soft sources of an operation on register pairs whose upper halves reach only the upper half of the result."""
    high = tuple(row for row in target.rows if row == max(target.rows))
    return {max(o.rows): high for o in operands if len(o.rows) == 2}


def copies(source: Operand, target: Operand) -> dict[int, tuple[int, ...]]:
    """Soft sources of a move: each row reaches its own copy."""
    if len(source.rows) != len(target.rows):
        return {}
    return {a: (b,) for a, b in zip(sorted(source.rows), sorted(target.rows), strict=True)}


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
    soft: Mapping[int, tuple[int, ...]] | None = None,
    fragments: tuple[Any, ...] = (),
) -> Op:
    """An Op whose register sets come from its operands."""
    reads = extra_reads.union(*(o.rows for o in sources)) - _EXEC_ROWS
    writes = extra_writes.union(*(o.rows for o in targets)) - _EXEC_ROWS
    if kind == "valu" and soft is None and all(row < SCALAR for row in writes):
        soft = {row: tuple(writes) for row in reads}
    return Op(ins, run, kind, reads, writes, reads | writes, whole, flow, target, clocks, soft or {}, fragments)
