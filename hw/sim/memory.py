"""Global memory: buffers at addresses with gaps between them, and what is known of each byte."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from .errors import AssemblyError
from .parse import Instruction
from .scratch import SCRATCH_BASE
from .state import Group

__all__ = ["Buffer", "Memory", "shadow"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: Linux: pages are set aside when they are touched, not before.
_NO_RESERVE = 0x4000
_FIRST = 0x10_0000_0000
_GAP = 1 << 33  # 8 GiB between buffers: an overrun or a saturated descriptor never reaches the next one


@dataclass(slots=True)
class Buffer:
    """Bytes at an address. `known` is None where every byte has a value from the start."""

    name: str
    base: int
    data: NDArray[np.uint8]
    words: NDArray[np.uint32] | None
    array: Array
    known: NDArray[np.bool_] | None = None
    writer: NDArray[np.int32] | None = None
    track: bool = True
    partial: bool = False

    @property
    def size(self) -> int:
        return len(self.data)

    def missing(self) -> Array:
        """Places, in bytes from the start, of the bytes of the array that were never stored."""
        if self.known is None or not self.size:
            return np.zeros(0, np.int64)
        array = self.array
        of_array = as_strided(self.known, (*array.shape, array.itemsize), (*array.strides, 1))
        if of_array.all():
            return np.zeros(0, np.int64)
        return np.argwhere(~of_array) @ np.array([*array.strides, 1])


def shadow(size: int, dtype: Any) -> Array:
    """`size` zeros of which only what is touched takes memory, however far apart the strides of an array reach."""
    length = max(size * np.dtype(dtype).itemsize, 1)
    if sys.platform == "linux":
        pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    else:
        pages = mmap.mmap(-1, length)
    return np.frombuffer(pages, dtype, size)


class Memory:
    """The address space of a launch."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._next = _FIRST

    def add(self, name: str, array: Array, *, output: bool = False, track: bool = True) -> Buffer:
        """Place an array, used in place with its strides: the buffer spans its first to its last byte.

        A read-only array is copied. Raises AssemblyError for negative strides.
        """
        if any(s < 0 for s in array.strides):
            raise AssemblyError(f"{name}: negative strides")
        placed = array if array.flags.writeable else array.copy()
        span = 0
        if array.size:
            span = sum((n - 1) * s for n, s in zip(array.shape, placed.strides, strict=True)) + array.itemsize
        first = placed[(slice(0, 1),) * array.ndim].reshape(-1).view(np.uint8)
        data = as_strided(first, (span,), (1,))
        words = data.view(np.uint32) if span % 4 == 0 and data.ctypes.data % 4 == 0 else None
        buffer = Buffer(name, self._next, data, words, placed, track=track)
        if output:
            buffer.known = shadow(span, np.bool_)
        self._next += ((span >> 21) + 1 << 21) + _GAP
        self.buffers.append(buffer)
        return buffer

    def _spans(self, address: Array, size: int) -> list[tuple[Buffer, Any]]:
        """Buffers touched and, for each, the places in `address` (None for all of them)."""
        low, high = int(address.min()), int(address.max())
        for buffer in self.buffers:
            if buffer.base <= low and high + size <= buffer.base + buffer.size:
                return [(buffer, None)]
        found = []
        for buffer in self.buffers:
            inside = (address >= buffer.base) & (address + size <= buffer.base + buffer.size)
            if inside.any():
                found.append((buffer, inside))
        return found

    def load(self, g: Group, ins: Instruction, address: Array, mask: Array, size: int) -> Array:
        """Bytes [waves, 64, size] at uint64 addresses [waves, 64], zero where `mask` is off."""
        result = np.zeros((*mask.shape, size), np.uint8)
        active = np.asarray(address[mask], np.int64)
        if not len(active):
            return result
        if int(active.min()) >= SCRATCH_BASE:
            return g.machine.scratch.load(g, ins, address - SCRATCH_BASE, size)
        sanitize = g.machine.sanitize
        values = np.zeros((len(active), size), np.uint8)
        covered = np.zeros(len(active), np.bool_)
        for buffer, inside in self._spans(active, size):
            offset = (active if inside is None else active[inside]) - buffer.base
            part = self._gather(buffer, offset, size)
            if inside is None:
                values, covered = part, np.ones(len(active), np.bool_)
            else:
                values[inside] = part
                covered |= inside
            if sanitize and buffer.known is not None:
                bad = ~buffer.known[offset[:, None] + np.arange(size)].all(axis=1)
                if bad.any():
                    flags = np.zeros(len(active), np.bool_)
                    flags[slice(None) if inside is None else inside] = bad
                    self._report(g, ins, "uninitialised-global", mask, flags, address, f"a load of {buffer.name}")
        if not covered.all():
            self._report(g, ins, "out-of-bounds", mask, ~covered, address, f"a load of {size} bytes")
        result[mask] = values
        return result

    @staticmethod
    def _gather(buffer: Buffer, offset: Array, size: int) -> Array:
        if size % 4 == 0 and buffer.words is not None and not (offset & 3).any():
            index = (offset >> 2)[:, None] + np.arange(size // 4)
            return buffer.words.take(index).view(np.uint8)
        return buffer.data.take(offset[:, None] + np.arange(size))

    def store(self, g: Group, ins: Instruction, address: Array, mask: Array, data: NDArray[np.uint8]) -> None:
        """Store bytes [waves, 64, size] in the lanes of `mask`; of two lanes at one address the last one wins."""
        active = np.asarray(address[mask], np.int64)
        if not len(active):
            return
        size = data.shape[-1]
        if int(active.min()) >= SCRATCH_BASE:
            g.machine.scratch.store(g, ins, address - SCRATCH_BASE, data)
            return
        values = data[mask]
        covered = np.zeros(len(active), np.bool_)
        for buffer, inside in self._spans(active, size):
            part = active if inside is None else active[inside]
            covered |= True if inside is None else inside
            index = (part - buffer.base)[:, None] + np.arange(size)
            if size % 4 == 0 and buffer.words is not None and not (part & 3).any():
                words = np.ascontiguousarray(values if inside is None else values[inside]).view(np.uint32)
                buffer.words[((part - buffer.base) >> 2)[:, None] + np.arange(size // 4)] = words
            else:
                buffer.data[index] = values if inside is None else values[inside]
            if buffer.known is not None:
                buffer.known[index] = True
            if g.machine.sanitize and buffer.track:
                self._track(g, ins, buffer, index, mask, inside, address)
        if not covered.all():
            self._report(g, ins, "out-of-bounds", mask, ~covered, address, f"a store of {size} bytes")

    def _track(
        self,
        g: Group,
        ins: Instruction,
        buffer: Buffer,
        index: Array,
        mask: Array,
        inside: Any,
        address: Array,
    ) -> None:
        """Remember which workgroup wrote each byte and report a second one."""
        if buffer.writer is None:
            buffer.writer = shadow(buffer.size, np.int32)
        number = g.machine.reporter.numbers[g.workgroup] + 1
        group = np.broadcast_to(number[:, None], mask.shape)[mask].astype(np.int32)
        if inside is not None:
            group = group[inside]
        old = buffer.writer[index]
        clash = ((old != 0) & (old != group[:, None])).any(axis=1)
        buffer.writer[index] = group[:, None]
        clash |= (buffer.writer[index] != group[:, None]).any(axis=1)  # two workgroups in this very instruction
        if clash.any():
            flags = np.zeros(int(mask.sum()), np.bool_)
            flags[slice(None) if inside is None else inside] = clash
            self._report(g, ins, "global-race", mask, flags, address, f"{buffer.name} was written by another workgroup")

    @staticmethod
    def _report(g: Group, ins: Instruction, kind: str, mask: Array, flags: Array, address: Array, message: str) -> None:
        where = np.zeros(mask.shape, np.bool_)
        where[mask] = flags
        g.machine.reporter.add(kind, ins, g, where, message, address)

    def atomic(
        self,
        g: Group,
        ins: Instruction,
        address: Array,
        mask: Array,
        operand: NDArray[np.uint8],
        expected: NDArray[np.uint8] | None,
        suffix: str,
        update: Any,
    ) -> Array:
        """Update lane after lane; returns the old bytes [waves, 64, size]."""
        size = operand.shape[-1]
        old = np.zeros(operand.shape, np.uint8)
        outside = np.zeros(mask.shape, np.bool_)
        for wave, lane in np.argwhere(mask):
            place = int(address[wave, lane])
            for buffer in self.buffers:
                if buffer.base <= place and place + size <= buffer.base + buffer.size:
                    offset = place - buffer.base
                    cell = buffer.data[offset : offset + size]
                    old[wave, lane] = cell
                    wanted = None if expected is None else expected[wave, lane]
                    cell[...] = update(suffix, cell.copy(), operand[wave, lane], wanted)
                    if buffer.known is not None:
                        if g.machine.sanitize and not buffer.known[offset : offset + size].all():
                            where = np.zeros(mask.shape, np.bool_)
                            where[wave, lane] = True
                            g.machine.reporter.add(
                                "uninitialised-global", ins, g, where, f"an atomic on {buffer.name}", address
                            )
                        buffer.known[offset : offset + size] = True
                    break
            else:
                outside[wave, lane] = True
        if outside.any():
            g.machine.reporter.add("out-of-bounds", ins, g, outside, f"an atomic of {size} bytes", address)
        return old
