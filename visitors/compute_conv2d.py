"""Conv2d executed at any level."""

from __future__ import annotations

from typing import Any

import numpy as np

from closedform.operators.conv2d import Conv2d, Conv2dAtom, Conv2dBlock, Conv2dDevice, Conv2dWave
from closedform.operators.conv2d_reference import channels_first, convolved
from closedform.operators.level import Level
from closedform.operators.numerics import Array, accumulator
from closedform.operators.view import Window

from .compute_mfma import LANES, mfma
from .visitor import Visitor

__all__ = ["Conv2dCompute"]


class Conv2dCompute(Visitor):
    """Methods of the conv2d nodes. At the atom level Y stays in the registers of the waves of a block."""

    level: Level
    inputs: dict[str, Array]
    out: Array

    _registers: dict[tuple[int, int], Array]
    _fragments: dict[tuple[str, int, int], Array]

    def visit_Conv2dDevice(self, node: Conv2dDevice) -> None:
        op = node.op
        if self.level is Level.DEVICE:
            y = convolved(op, channels_first(op, self.inputs["X"]), channels_first(op, self.inputs["W"]))
            self._y(op)[...] = y
            return
        for block in node.children():
            self.visit(block)

    def visit_Conv2dBlock(self, node: Conv2dBlock) -> None:
        channels = node.tiles.taps(node.op).channels
        pixels = Window.whole(node.tiles.pixels)
        if self.level is Level.BLOCK:
            for tap in range(node.tiles.taps(node.op).count):
                self._add_pixels(node, tap, node.ocs, pixels, Window.whole(channels))
            return
        self._registers = {}
        for wave in node.children():
            self.visit(wave)
        self._store_pixels(node)

    def visit_Conv2dWave(self, node: Conv2dWave) -> None:
        if self.level is Level.WAVE:
            self._add_pixels(node.block, node.tap, node.ocs, node.pixels, node.ics)
            return
        self._fragments = {}
        for atom in node.children():
            self.visit(atom)

    def visit_Conv2dAtom(self, node: Conv2dAtom) -> None:
        atom = node.tiles.atom
        place = (node.ocs.start, node.pixels.start)
        zero = np.zeros((LANES, atom.elements_c), accumulator(node.op.dtype))
        a, b = self._operand_fragment(node, "W", node.ocs), self._operand_fragment(node, "X", node.pixels)
        self._registers[place] = mfma(atom, a, b, self._registers.get(place, zero))

    def _add_pixels(self, block: Conv2dBlock, tap: int, ocs: Window, pixels: Window, ics: Window) -> None:
        """The part of one tap and of a window of channels, added to the pixels that exist."""
        n, h, w, exists = block.outputs(pixels)
        x = self._patch(block, tap, pixels, ics)[:, exists]
        product = self._filter(block, tap, ocs, ics)[: ocs.extent] @ x
        self._y(block.op)[n[exists], ocs.slice, h[exists], w[exists]] += product.T

    def _operand_fragment(self, node: Conv2dAtom, name: str, window: Window) -> Array:
        """Operand W or X of an atom in lanes and elements."""
        key = (name, window.start, node.ics.start)
        if key not in self._fragments:
            atom = node.tiles.atom
            if name == "W":
                held = atom.a.table()
                tile = self._filter(node.block, node.tap, node.ocs, node.ics)[held["m"], held["k"]]
            else:
                held = atom.b.table()
                tile = self._patch(node.block, node.tap, node.pixels, node.ics)[held["k"], held["n"]]
            self._fragments[key] = tile
        return self._fragments[key]

    def _filter(self, block: Conv2dBlock, tap: int, ocs: Window, ics: Window) -> Array:
        """W [ocs, ics] of a tap, 0 past the channels."""
        op = block.op
        stored = channels_first(op, self.inputs["W"])
        filters = block.tiles.taps(op).filters(stored[ocs.slice].transpose(0, 2, 3, 1))
        out = np.zeros((ocs.size, ics.size), accumulator(op.dtype))
        out[: ocs.extent, : ics.extent] = filters[:, tap, ics.slice]
        return out

    def _patch(self, block: Conv2dBlock, tap: int, pixels: Window, ics: Window) -> Array:
        """X [ics, pixels] at a tap, 0 past the channels, past the edges of the image and for pixels that Y lacks."""
        op, taps = block.op, block.tiles.taps(block.op)
        x = channels_first(op, self.inputs["X"])
        n, h, w, exists = block.outputs(pixels)
        channel = np.arange(ics.start, ics.start + ics.size)
        down, right, inside = taps.source(np.minimum(channel, taps.channels - 1))
        rows, cols = taps.offset(tap)
        at_h = h * op.stride[0] - op.pad[0] + rows + down[:, None]
        at_w = w * op.stride[1] - op.pad[2] + cols + right[:, None]
        of_tap = (channel < ics.stop) & taps.exists(tap, channel)
        there = exists & of_tap[:, None] & _between(at_h, op.IH) & _between(at_w, op.IW)
        image = np.minimum(n, op.N - 1)
        source = block.group * op.channels + inside
        read = x[image, source[:, None], np.clip(at_h, 0, op.IH - 1), np.clip(at_w, 0, op.IW - 1)]
        return np.where(there, read, 0.0).astype(accumulator(op.dtype))

    def _store_pixels(self, node: Conv2dBlock) -> None:
        """Registers of Y through the C map, clipped."""
        held = node.tiles.atom.c.table()
        for (oc, pixel), registers in self._registers.items():
            n, h, w, exists = node.outputs(Window(pixel, node.tiles.atom.n, node.tiles.atom.n))
            ocs = held["m"] + oc
            valid = exists[held["n"]] & (ocs < node.ocs.stop)
            at = held["n"][valid]
            self._y(node.op)[n[at], ocs[valid], h[at], w[at]] += registers[valid]

    def _y(self, op: Conv2d) -> Any:
        """Y as [N, OC, OH, OW], a view of the output."""
        return channels_first(op, self.out)


def _between(place: Any, length: int) -> Any:
    """Whether places lie on an axis of that length."""
    return (place >= 0) & (place < length)
