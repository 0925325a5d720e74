"""Control flow of a kernel: basic blocks, and its natural loops with the path that every iteration takes."""

from __future__ import annotations

from dataclasses import dataclass

from .decode import Code

__all__ = ["NaturalLoop", "natural_loops"]


@dataclass(frozen=True, slots=True)
class NaturalLoop:
    """A header and what reaches one of its back edges without leaving through it.

    `always` and `all` are instruction numbers in the order of the code: of the blocks that dominate every back edge,
    which each iteration executes, and of the whole loop. `conditional_blocks` counts the other blocks.
    """

    label: str
    start: int
    always: tuple[int, ...]
    all: tuple[int, ...]
    innermost: bool
    conditional_blocks: int


def natural_loops(code: Code) -> list[NaturalLoop]:
    """Loops in the order of their headers. Those with one header count as one."""
    starts = _block_starts(code)
    stops = [*starts[1:], len(code.ops)]
    following = _successors(code, starts, stops)
    dominators = _dominators(following)
    back_edges: dict[int, list[int]] = {}
    for block, targets in enumerate(following):
        for header in targets:
            if block in dominators and header in dominators[block]:
                back_edges.setdefault(header, []).append(block)
    bodies = {header: _body(header, latches, following) for header, latches in back_edges.items()}
    names = {place: name for name, place in code.kernel.labels.items()}
    loops = []
    for header, body in sorted(bodies.items()):
        certain = set.intersection(*(dominators[latch] for latch in back_edges[header])) & body
        loops.append(
            NaturalLoop(
                label=names.get(starts[header], ""),
                start=starts[header],
                always=_instructions(certain, starts, stops),
                all=_instructions(body, starts, stops),
                innermost=not any(other != header and other in body for other in bodies),
                conditional_blocks=len(body) - len(certain),
            )
        )
    return loops


def _block_starts(code: Code) -> list[int]:
    leaders = {0} | {target for target in code.jump if 0 <= target < len(code.ops)}
    leaders |= {n + 1 for n, op in enumerate(code.ops) if op.flow in ("branch", "cbranch", "end")}
    return sorted(leaders - {len(code.ops)})


def _successors(code: Code, starts: list[int], stops: list[int]) -> list[list[int]]:
    number = {start: block for block, start in enumerate(starts)}
    found = []
    for stop in stops:
        last = code.ops[stop - 1]
        targets = [] if last.flow in ("branch", "end") else [stop]
        if last.flow in ("branch", "cbranch"):
            targets.append(code.jump[stop - 1])
        found.append([number[target] for target in targets if target in number])
    return found


def _dominators(following: list[list[int]]) -> dict[int, set[int]]:
    """For each block that the entry reaches, the blocks on every path to it, itself included."""
    reached, todo = {0}, [0]
    while todo:
        fresh = set(following[todo.pop()]) - reached
        reached |= fresh
        todo += fresh
    before: dict[int, list[int]] = {block: [] for block in reached}
    for block in reached:
        for target in following[block]:
            before[target].append(block)
    dominators = {block: set(reached) for block in reached}
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in sorted(reached - {0}):
            met = set.intersection(*(dominators[b] for b in before[block])) | {block}
            changed = changed or met != dominators[block]
            dominators[block] = met
    return dominators


def _body(header: int, latches: list[int], following: list[list[int]]) -> set[int]:
    body, todo = {header}, [latch for latch in latches if latch != header]
    while todo:
        block = todo.pop()
        if block not in body:
            body.add(block)
            todo += [b for b, targets in enumerate(following) if block in targets]
    return body


def _instructions(blocks: set[int], starts: list[int], stops: list[int]) -> tuple[int, ...]:
    return tuple(n for block in sorted(blocks) for n in range(starts[block], stops[block]))
