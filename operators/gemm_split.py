"""Who adds which tiles of k to which tile of D: the parts of split-K and the shares of Stream-K.

A tile of D takes `depth` tiles of k. Split-K cuts that run into as many parts for every tile. Stream-K gives each
of its persistent workgroups whole tiles in rounds; the last tiles, between one and two for each workgroup, form one run
of tiles of k that is cut evenly, wherever that falls within a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Run", "Segment", "StreamK", "even_runs"]


@dataclass(frozen=True, slots=True)
class Run:
    """The steps from `start` on, `count` of them."""

    start: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.count


def even_runs(steps: int, parts: int) -> Iterator[Run]:
    """`steps` in `parts` runs whose lengths differ by one at most, the longer ones first.

    >>> [(run.start, run.count) for run in even_runs(7, 3)]
    [(0, 3), (3, 2), (5, 2)]
    """
    each, more = divmod(steps, parts)
    for part in range(parts):
        yield Run(part * each + min(part, more), each + (part < more))


@dataclass(frozen=True, slots=True)
class Segment:
    """What a workgroup adds to one tile of D: tiles of k [steps.start, steps.stop) of `tile`.

    contributors: workgroups that add to the tile; leader: the first of them; shared: number of the tile among those
    that are cut, 0 for whole ones.
    """

    workgroup: int
    tile: int
    steps: Run
    contributors: int = 1
    leader: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class StreamK:
    """The shares of `workgroups` persistent workgroups of `tiles` tiles of D, `depth` tiles of k each (at least 1)."""

    tiles: int
    depth: int
    workgroups: int

    @property
    def rounds(self) -> int:
        """Whole tiles of every workgroup."""
        full, rest = divmod(self.tiles, self.workgroups)
        return max(0, full - (rest > 0))

    def owner(self, step: int) -> int:
        """The workgroup whose run holds a step of the tiles that are cut."""
        each, more = divmod((self.tiles - self.rounds * self.workgroups) * self.depth, self.workgroups)
        long = more * (each + 1)
        return step // (each + 1) if step < long else more + (step - long) // max(1, each)

    def segments(self) -> Iterator[Segment]:
        """Every share, workgroup after workgroup.

        >>> [(s.workgroup, s.tile, s.steps.start, s.steps.count) for s in StreamK(3, 4, 2).segments()]
        [(0, 0, 0, 4), (0, 1, 0, 2), (1, 1, 2, 2), (1, 2, 0, 4)]
        """
        whole = self.rounds * self.workgroups
        for workgroup, run in enumerate(even_runs((self.tiles - whole) * self.depth, self.workgroups)):
            for number in range(self.rounds):
                yield Segment(workgroup, number * self.workgroups + workgroup, Run(0, self.depth), leader=workgroup)
            step = run.start
            while step < run.stop:
                shared, first = divmod(step, self.depth)
                count = min(self.depth - first, run.stop - step)
                leader, last = self.owner(shared * self.depth), self.owner((shared + 1) * self.depth - 1)
                steps = Run(first, count)
                yield Segment(workgroup, whole + shared, steps, last - leader + 1, leader, shared)
                step += count
