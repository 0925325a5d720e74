"""Counts of a run: executions of every instruction, bytes and segments of memory, LDS cycles from the real addresses.

An access of a wave to LDS costs the cycles that `hw.lds` derives from its 64 addresses. They do not change when a
multiple of a word is added to all addresses, so each pattern of differences is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..catalogue import get
from ..descriptor import HardwareDescriptor
from ..lds import lds_cycles
from .decode import Code
from .flow import natural_loops

__all__ = ["Counter", "reference_gpu"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: The GPU whose descriptor stands for a target.
_GPU = {"gfx908": "mi100", "gfx90a": "mi210", "gfx942": "mi300x", "gfx950": "mi355x"}
#: Columns of the per-instruction sums.
COLUMNS = (
    "global_load_bytes", "global_store_bytes", "segments_64", "segments_128",
    "lds_read_bytes", "lds_write_bytes", "lds_cycles", "lds_cycles_worst", "lds_cycles_ideal",
)  # fmt: skip
_AT = {name: place for place, name in enumerate(COLUMNS)}


def reference_gpu(target: str) -> HardwareDescriptor:
    """The descriptor that stands for a target: LDS phases, rates and register file are those of its family."""
    return get(_GPU[target])


class Counter:
    """Sums by instruction over all waves; with `addresses` off only executions are counted."""

    def __init__(self, code: Code, addresses: bool = True) -> None:
        self.code = code
        self.addresses = addresses
        self.hw = reference_gpu(code.kernel.target)
        self.executed = np.zeros(len(code.ops), np.int64)
        self.sums = np.zeros((len(code.ops), len(COLUMNS)), np.int64)
        self._last: dict[tuple[int, str], tuple[Array, Array]] = {}
        self._patterns: dict[tuple[str, int, bytes], Array] = {}

    # --- memory -----------------------------------------------------------------------------------------------
    def global_access(self, index: int, address: Array, mask: Array, size: int, store: bool) -> None:
        """One vector memory instruction of a group: bytes of the active lanes and segments that they touch."""
        if not self.addresses:
            return
        row = self.sums[index]
        row[_AT["global_store_bytes" if store else "global_load_bytes"]] += int(np.count_nonzero(mask)) * size
        anchored = _fill(address, mask)
        offset = anchored - (anchored[:, :1] & ~127)
        alive = int(mask.any(axis=1).sum())
        costs = self._costs(index, offset, size, "segments")
        row[_AT["segments_64"]] += (
            int(costs[:, 0].sum()) if alive == len(mask) else int(costs[mask.any(axis=1), 0].sum())
        )
        row[_AT["segments_128"]] += (
            int(costs[:, 1].sum()) if alive == len(mask) else int(costs[mask.any(axis=1), 1].sum())
        )

    def lds_access(self, index: int, address: Array, mask: Array, size: int, store: bool) -> None:
        """One LDS access of a group: bytes of the active lanes and cycles."""
        if not self.addresses:
            return
        row = self.sums[index]
        row[_AT["lds_write_bytes" if store else "lds_read_bytes"]] += int(np.count_nonzero(mask)) * size
        words = _fill(address, mask) & ~3
        costs = self._costs(index, words - words[:, :1], max(size, 4), "write" if store else "read")
        alive = mask.any(axis=1)
        total = costs.sum(axis=0) if alive.all() else costs[alive].sum(axis=0)
        row[_AT["lds_cycles"] : _AT["lds_cycles_ideal"] + 1] += total

    def _costs(self, index: int, offset: Array, size: int, what: str) -> Array:
        """Costs of each wave's pattern of offsets: rows (segments of 64 B, of 128 B) or (expected, worst, ideal)."""
        known = self._last.get((index, what))
        if known is not None and (offset == known[0]).all():
            return np.broadcast_to(known[1], (len(offset), len(known[1])))
        found = [self._pattern(row, size, what) for row in np.ascontiguousarray(offset)]
        self._last[index, what] = (offset[0].copy(), found[0])
        return np.stack(found)

    def _pattern(self, row: Array, size: int, what: str) -> Array:
        key = (what, size, row.tobytes())
        cost = self._patterns.get(key)
        if cost is None:
            if what == "segments":
                cost = np.array([_segments(row, size, 6), _segments(row, size, 7)], np.int64)
            else:
                cycles = lds_cycles(self.hw, what, size, _shifted(row))
                cost = np.array([cycles.expected, cycles.worst, cycles.ideal], np.int64)
            self._patterns[key] = cost
        return cost

    # --- results ------------------------------------------------------------------------------------------------
    def summary(self) -> dict[str, Any]:
        """Totals and loops as plain values."""
        loops = [
            {
                "label": loop.label,
                "line": self.code.ops[loop.start].ins.line,
                "source": self.code.ops[loop.start].ins.source,
                "innermost": loop.innermost,
                "entries_per_wave": self._per_wave(loop.start),
                **self.region(loop.all),
            }
            for loop in natural_loops(self.code)
        ]
        return {**self.region(range(len(self.code.ops))), "waves": int(self.executed[0]), "loops": loops}

    def _per_wave(self, index: int) -> float:
        return round(float(self.executed[index] / max(self.executed[0], 1)), 3)

    def region(self, where: Sequence[int]) -> dict[str, Any]:
        """Counts of some instructions by their numbers, summed over all waves."""
        kinds: dict[str, int] = {}
        clocks = {"mfma": 0, "valu": 0}
        for op, times in zip((self.code.ops[n] for n in where), self.executed[list(where)].tolist(), strict=True):
            kinds[op.kind] = kinds.get(op.kind, 0) + times
            if op.kind in clocks:
                clocks[op.kind] += times * op.clocks
        sums = dict(zip(COLUMNS, (int(v) for v in self.sums[list(where)].sum(axis=0)), strict=True))
        return {
            "instructions": kinds,
            "lane_instructions": 64 * sum(kinds.values()),
            "mfma_cycles": clocks["mfma"],
            "valu_cycles": clocks["valu"],
            "lds_bank_conflict_cycles": sums["lds_cycles"] - sums["lds_cycles_ideal"],
            **sums,
        }


def _fill(address: Array, mask: Array) -> Array:
    """Addresses with those of inactive lanes replaced by the first active lane's."""
    if mask.all():
        return address
    first = np.argmax(mask, axis=1)
    return np.where(mask, address, address[np.arange(len(address)), first][:, None])


def _segments(row: Array, size: int, shift: int) -> int:
    return len(np.unique(np.concatenate([row >> shift, (row + size - 1) >> shift])))


def _shifted(row: Array) -> Sequence[int]:
    values: list[int] = (row - min(int(row.min()), 0)).tolist()
    return values
