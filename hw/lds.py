"""LDS bank conflicts: which lanes share a cycle, and how many cycles an access takes.

An access of a wave is served in phases. The lanes of a phase go together unless two of them want different
words of one bank; a word that several lanes want is read once. Which lanes form a phase depends on the target
and on the width of the access, and is a fact where it was measured or stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from .descriptor import HardwareDescriptor
from .errors import BadInput
from .tables import read_facts

__all__ = ["LdsCycles", "LdsPhases", "lds_cycles", "lds_phases", "read_slots"]

WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class LdsPhases:
    """The phases of one kind of access: lanes by phase, and the banks, of 4 bytes, that they meet in.

    `source` is empty for an assumption: consecutive lanes, as many as fill the banks once.
    """

    banks: int
    groups: tuple[tuple[int, ...], ...]
    source: str

    def cycles(self, addresses: Sequence[int], access_bytes: int) -> int:
        """Cycles for lanes that access `access_bytes` at these byte addresses, one address a lane."""
        total = 0
        for group in self.groups:
            words = {
                address // WORD_BYTES + word
                for address in (addresses[lane] for lane in group)
                for word in range(access_bytes // WORD_BYTES)
            }
            loads = [0] * self.banks
            for word in words:
                loads[word % self.banks] += 1
            total += max(loads)
        return total


@dataclass(frozen=True, slots=True)
class LdsCycles:
    """Cycles of one access of a wave: `expected`, by the worst known grouping, and without conflicts."""

    expected: int
    worst: int
    ideal: int
    source: str

    @property
    def conflicts(self) -> int:
        """Cycles lost to bank conflicts."""
        return self.expected - self.ideal


@cache
def _known() -> dict[tuple[str, str, int], LdsPhases]:
    rows = read_facts("lds_phases.csv", key=("gfx", "access", "access_bytes"))
    return {
        (row["gfx"], row["access"], int(row["access_bytes"])): LdsPhases(
            int(row["banks"]), tuple(_lanes(group) for group in row["groups"].split(";")), row["source"]
        )
        for row in rows
    }


def _lanes(text: str) -> tuple[int, ...]:
    """Lanes of "0-3 20-23"."""
    spans = (span.split("-") for span in text.split())
    return tuple(lane for first, last in spans for lane in range(int(first), int(last) + 1))


def lds_phases(hw: HardwareDescriptor, access: str, access_bytes: int) -> LdsPhases:
    """Phases of a "read" or "write" of 4, 8, 12 or 16 bytes a lane: the fact, or the assumption.

    >>> from closedform.hw.catalogue import get
    >>> lds_phases(get("mi300x"), "read", 16).groups[0]
    (0, 1, 2, 3, 20, 21, 22, 23)
    """
    if access not in ("read", "write") or access_bytes not in (4, 8, 12, 16):
        raise BadInput(f"an LDS access is a read or write of 4, 8, 12 or 16 bytes a lane, not {access} {access_bytes}")
    known = _known().get((hw.gfx, access, access_bytes))
    if known is not None:
        return known
    lanes = 32 * WORD_BYTES // (16 if access_bytes == 12 else access_bytes)
    groups = tuple(tuple(range(first, first + lanes)) for first in range(0, hw.wavefront_size, lanes))
    return LdsPhases(hw.lds_banks, groups, "")


def read_slots(gfx: str) -> int:
    """16-byte slots side by side in the banks that a read of 16 bytes a lane meets: 8 of 32 banks, 16 of 64.

    >>> read_slots("gfx942"), read_slots("gfx950")
    (8, 16)
    """
    known = _known().get((gfx, "read", 16))
    return (known.banks if known is not None else 32) * WORD_BYTES // 16


def lds_cycles(hw: HardwareDescriptor, access: str, access_bytes: int, addresses: Sequence[int]) -> LdsCycles:
    """Cycles of one access of a wave at these byte addresses, one a lane.

    Where no fact says which lanes share a cycle, `worst` is the largest count over the groupings of that
    width known for any target; with a fact it equals `expected`.
    """
    if len(addresses) != hw.wavefront_size or any(a % WORD_BYTES or a < 0 for a in addresses):
        raise BadInput(f"expected {hw.wavefront_size} byte addresses, multiples of {WORD_BYTES}")
    phases = lds_phases(hw, access, access_bytes)
    expected = phases.cycles(addresses, access_bytes)
    others = [] if phases.source else [p for (_, _, width), p in _known().items() if width == access_bytes]
    worst = max([expected, *(LdsPhases(phases.banks, p.groups, "").cycles(addresses, access_bytes) for p in others)])
    return LdsCycles(expected, worst, len(phases.groups), phases.source)
