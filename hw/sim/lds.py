"""LDS of all resident workgroups, with the shadow state that finds races, unwritten bytes and missing waits.

Each byte has two tags that last from barrier to barrier: the wave that wrote it, and the wave that read it (255 if
several did). A wave that meets the tag of another one has found a race, if one of the two accesses writes.
Bytes that a load straight to LDS will bring stay marked as arriving until the loading wave has waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parse import Instruction
from .state import Group

__all__ = ["Lds"]

Array = Any  # a numpy array; what its elements are is said where it matters
_EVERY_BYTE = np.uint32(0x01010101)


@dataclass(slots=True)
class _Event:
    """LDS writes of one instruction that may still be on their way.

    `places` are the first bytes of units of `width` bytes, a row for each lane; `counts[k]` rows are of wave k.
    """

    wave: Array
    ticket: Array
    places: Array
    counts: Array
    width: int
    direct: bool
    alive: Array


class Lds:
    """Byte memory of `workgroups` workgroups of `size` bytes each."""

    def __init__(self, size: int, group_of_wave: Array, wave_in_group: Array, sanitize: bool) -> None:
        workgroups, waves = int(group_of_wave.max()) + 1, len(group_of_wave)
        self.group_of_wave, self.tag_of_wave = group_of_wave, wave_in_group + 1
        self.size = size
        self.stride = max((size + 15) // 16 * 16, 16)
        self.sanitize = sanitize
        total = workgroups * self.stride
        self.data = np.full(total, 0xAD, np.uint8)
        self.words = self.data.view(np.uint32)
        shadow = total if sanitize else 0
        self.known, self.writer, self.readers, self.arriving = (np.zeros(shadow, np.uint8) for _ in range(4))
        self.dirty = np.zeros(workgroups, np.bool_)
        self.events: list[_Event] = []
        self.vm_done = np.zeros(waves, np.int32)
        self.ds_done = np.zeros(waves, np.int32)

    # --- access ---------------------------------------------------------------------------------------------------
    def _places(self, g: Group, ins: Instruction, address: Array, mask: Array, size: int) -> tuple[Array, Array]:
        """Lanes that access, and their byte places in `data`; lanes out of the LDS are reported and dropped."""
        outside = ((address < 0) | (address + size > self.size)) & mask
        if outside.any():
            g.machine.reporter.add(
                "out-of-bounds", ins, g, outside, f"{size} bytes of an LDS of {self.size} bytes", address
            )
            mask = mask & ~outside
        place = (g.workgroup * self.stride)[:, None] + address
        if mask.all():
            return mask, place.reshape(-1)
        return mask, place[mask]

    def load(self, g: Group, ins: Instruction, address: Array, size: int, mask: Array | None = None) -> Array:
        """Bytes [waves, 64, size]; zero in lanes that do not take part."""
        mask, place = self._places(g, ins, address, g.E if mask is None else mask, size)
        whole = len(place) == mask.size
        if size % 4 == 0 and not (place & 3).any():
            index = (place >> 2)[:, None] + np.arange(size // 4)
            values = self.words.take(index).view(np.uint8)
            if self.sanitize and len(place):
                self._read(g, ins, mask, address, index, np.uint32)
        else:
            index = place[:, None] + np.arange(size)
            values = self.data.take(index)
            if self.sanitize and len(place):
                self._read(g, ins, mask, address, index, np.uint8)
        if whole:
            return values.reshape(*mask.shape, size)
        result = np.zeros((*mask.shape, size), np.uint8)
        result[mask] = values
        return result

    def store(
        self,
        g: Group,
        ins: Instruction,
        address: Array,
        mask: Array,
        data: NDArray[np.uint8],
        arriving: bool = False,
    ) -> None:
        """Store bytes [waves, 64, size] in the lanes of `mask`."""
        size = data.shape[-1]
        mask, place = self._places(g, ins, address, mask, size)
        values = np.ascontiguousarray(data.reshape(-1, size) if len(place) == mask.size else data[mask])
        unit: Any = np.uint32 if size % 4 == 0 and not (place & 3).any() else np.uint8
        width = np.dtype(unit).itemsize
        index = (place // width)[:, None] + np.arange(size // width)
        self.data.view(unit)[index] = values.view(unit)
        if self.sanitize and len(place):
            self._write(g, ins, mask, address, index, unit)
            self._remember(g, mask, index * width, width, arriving)

    # --- shadow state ---------------------------------------------------------------------------------------------
    @staticmethod
    def _tags(g: Group, mask: Array, unit: Any) -> Array:
        """Tag of each accessing lane: wave in group + 1, in every byte of the unit; shape [lanes, 1]."""
        one = _EVERY_BYTE if unit is np.uint32 else np.uint8(1)
        tag = (g.wave_in_group + 1).astype(unit) * one
        spread = np.broadcast_to(tag[:, None], mask.shape)
        return (spread.reshape(-1) if mask.all() else spread[mask])[:, None]

    def _mine(self, tags: Array, mine: Array, unit: Any) -> Array:
        """Bad places: some byte has a tag that is neither 0 nor mine."""
        bad = (tags != 0) & (tags != mine)
        if unit is np.uint32 and bad.any():
            parts = tags[bad].view(np.uint8).reshape(-1, 4)
            own = np.broadcast_to(mine, tags.shape)[bad].view(np.uint8).reshape(-1, 4)
            bad[bad] = ((parts != 0) & (parts != own)).any(axis=1)
        return bad

    def _read(self, g: Group, ins: Instruction, mask: Array, address: Array, index: Array, unit: Any) -> None:
        full = _EVERY_BYTE if unit is np.uint32 else np.uint8(1)
        known = self.known.view(unit).take(index)
        if (known != full).any():
            self._report(g, ins, "uninitialised-lds", mask, known != full, address, "read before any write")
        if self.events:
            late = self.arriving.view(unit).take(index) != 0
            if late.any():
                self._report(g, ins, "missing-wait", mask, late, address, "a load to LDS has not arrived here")
        mine = self._tags(g, mask, unit)
        writer = self._mine(self.writer.view(unit).take(index), mine, unit)
        if writer.any():
            self._report(
                g,
                ins,
                "lds-race",
                mask,
                writer,
                address,
                "read after a write of another wave, no barrier between",
            )
        readers = self.readers.view(unit)
        before = readers.take(index)
        every = unit(0xFFFFFFFF if unit is np.uint32 else 0xFF)
        after = np.where((before == 0) | (before == mine), mine, every)
        readers[index] = after
        lost = readers.take(index) != after
        if lost.any():
            readers[index[lost]] = every
        self.dirty[g.workgroup] = True

    def _write(self, g: Group, ins: Instruction, mask: Array, address: Array, index: Array, unit: Any) -> None:
        mine = self._tags(g, mask, unit)
        readers = self._mine(self.readers.view(unit).take(index), mine, unit)
        if readers.any():
            self._report(
                g,
                ins,
                "lds-race",
                mask,
                readers,
                address,
                "write after a read of another wave, no barrier between",
            )
        tags = self.writer.view(unit)
        writer = self._mine(tags.take(index), mine, unit)
        tags[index] = mine
        writer |= tags.take(index) != mine
        if writer.any():
            self._report(g, ins, "lds-race", mask, writer, address, "two waves write, no barrier between")
        self.known.view(unit)[index] = _EVERY_BYTE if unit is np.uint32 else 1
        self.dirty[g.workgroup] = True

    @staticmethod
    def _report(g: Group, ins: Instruction, kind: str, mask: Array, bad: Array, address: Array, message: str) -> None:
        where = np.zeros(mask.shape, np.bool_)
        where[mask] = bad.any(axis=1)
        g.machine.reporter.add(kind, ins, g, where, message, address)

    # --- waiting --------------------------------------------------------------------------------------------------
    def _remember(self, g: Group, mask: Array, places: Array, width: int, direct: bool) -> None:
        """Note what was written, until the writing wave has waited for it."""
        ticket = g.vm_issued.copy() if direct else g.ds_issued + 1
        event = _Event(g.wave, ticket, places, mask.sum(axis=1), width, direct, np.ones(g.n, np.bool_))
        if direct:
            self.arriving[self._bytes(event, event.alive)] = 1
        self.events.append(event)

    @staticmethod
    def _bytes(event: _Event, which: Array) -> Array:
        """Byte places that the waves `which` of an event write."""
        flat = event.places[np.repeat(which, event.counts)]
        return (flat[..., None] + np.arange(event.width)).reshape(-1)

    def waited(self, g: Group) -> None:
        """Called after a wait of the group: writes that have arrived are forgotten."""
        if not self.events:
            return
        self.vm_done[g.wave] = g.vm_done
        self.ds_done[g.wave] = g.ds_done
        left = []
        for event in self.events:
            done = (self.vm_done if event.direct else self.ds_done)[event.wave] >= event.ticket
            if event.direct and (now := done & event.alive).any():
                self.arriving[self._bytes(event, now)] = 0
            event.alive &= ~done
            if event.alive.any():
                left.append(event)
        self.events = left

    def barrier(self, workgroups: Array) -> None:
        """All waves of these workgroups have met: tags go, but for writes that nobody has waited for."""
        if not self.sanitize:
            return
        stale = workgroups[self.dirty[workgroups]]
        if len(stale) == len(self.dirty):
            self.writer[...] = 0
            self.readers[...] = 0
        elif len(stale):
            shape = (-1, self.stride)
            self.writer.reshape(shape)[stale] = 0
            self.readers.reshape(shape)[stale] = 0
        self.dirty[stale] = False
        for event in self.events:
            late = event.alive & np.isin(self.group_of_wave[event.wave], workgroups)
            for k in np.flatnonzero(late):
                which = np.zeros(len(late), np.bool_)
                which[k] = True
                self.writer[self._bytes(event, which)] = self.tag_of_wave[event.wave[k]]
                self.dirty[self.group_of_wave[event.wave[k]]] = True

    # --- atomics --------------------------------------------------------------------------------------------------
    def atomic(
        self, g: Group, ins: Instruction, address: Array, new: Array, wanted: Array | None, update: Any
    ) -> Array:
        """Update lane after lane; returns the old bytes. Atomics of several waves do not race with each other."""
        size = new.shape[-1]
        mask, _ = self._places(g, ins, address, g.E, size)
        old = np.zeros(new.shape, np.uint8)
        strange = np.zeros(mask.shape, np.bool_)
        for wave, lane in np.argwhere(mask):
            start = int(g.workgroup[wave]) * self.stride + int(address[wave, lane])
            cell = self.data[start : start + size]
            old[wave, lane] = cell
            cell[...] = update(cell.copy(), new[wave, lane], None if wanted is None else wanted[wave, lane])
            if self.sanitize:
                strange[wave, lane] = not self.known[start : start + size].all()
        if strange.any():
            g.machine.reporter.add("uninitialised-lds", ins, g, strange, "an atomic before any write", address)
        return old
