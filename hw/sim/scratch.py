"""Scratch: memory of each lane, where spilled registers go."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parse import Instruction
from .state import LANES, Group

__all__ = ["SCRATCH_BASE", "Scratch"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: Where the private segment stands in the address space; each lane sees its own bytes there.
SCRATCH_BASE = 0x7E00_0000_0000


class Scratch:
    """`size` bytes for every lane of `waves` waves."""

    def __init__(self, waves: int, size: int) -> None:
        self.size = size
        self.data = np.zeros((waves, LANES, size), np.uint8)
        self.known = np.zeros((waves, LANES, size), np.bool_)

    def _index(self, g: Group, ins: Instruction, offset: Array, size: int) -> tuple[Array, Array, Array]:
        outside = g.E & ((offset < 0) | (offset + size > self.size))
        g.machine.reporter.add("out-of-bounds", ins, g, outside, f"scratch of {self.size} bytes a lane", offset)
        wave, lane = np.nonzero(g.E & ~outside)
        return wave, lane, offset[wave, lane][:, None] + np.arange(size)

    def load(self, g: Group, ins: Instruction, offset: Array, size: int) -> NDArray[np.uint8]:
        """Bytes [waves, 64, size], zero in lanes that are off."""
        wave, lane, index = self._index(g, ins, offset, size)
        result = np.zeros((*g.E.shape, size), np.uint8)
        slot = g.wave[wave][:, None]
        result[wave, lane] = self.data[slot, lane[:, None], index]
        if g.machine.sanitize:
            bad = np.zeros(g.E.shape, np.bool_)
            bad[wave, lane] = ~self.known[slot, lane[:, None], index].all(axis=1)
            g.machine.reporter.add("uninitialised-scratch", ins, g, bad, "read before any write", offset)
        return result

    def store(self, g: Group, ins: Instruction, offset: Array, data: NDArray[np.uint8]) -> None:
        wave, lane, index = self._index(g, ins, offset, data.shape[-1])
        slot = g.wave[wave][:, None]
        self.data[slot, lane[:, None], index] = data[wave, lane]
        self.known[slot, lane[:, None], index] = True
