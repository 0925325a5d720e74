"""The vector kernel of depthwise convolutions executed at any level."""

from __future__ import annotations

from typing import Any

import numpy as np

from closedform.operators.conv2d_reference import channels_first, convolved
from closedform.operators.depthwise import (
    WAVE,
    Depthwise,
    DepthwiseBlock,
    DepthwiseDevice,
    DepthwiseLanes,
    DepthwiseWave,
)
from closedform.operators.level import Level
from closedform.operators.numerics import Array, accumulator
from closedform.operators.view import Window

from .visitor import Visitor

__all__ = ["DepthwiseCompute"]


class DepthwiseCompute(Visitor):
    """Methods of the depthwise nodes. At the atom level a wave's outputs stay in registers [lane, output, channel]."""

    level: Level
    inputs: dict[str, Array]
    out: Array

    _strips: Array

    def visit_DepthwiseDevice(self, node: DepthwiseDevice) -> None:
        op = node.op
        if self.level is Level.DEVICE:
            y = convolved(op, channels_first(op, self.inputs["X"]), channels_first(op, self.inputs["W"]))
            channels_first(op, self.out)[...] = y
            return
        for block in node.children():
            self.visit(block)

    def visit_DepthwiseBlock(self, node: DepthwiseBlock) -> None:
        if self.level is Level.BLOCK:
            self._store_strips(node.work, node.image, node.items, self._strip_sums(node.work, node.image, node.items))
            return
        for wave in node.children():
            self.visit(wave)

    def visit_DepthwiseWave(self, node: DepthwiseWave) -> None:
        work = node.work
        if self.level is Level.WAVE:
            self._store_strips(work, node.image, node.items, self._strip_sums(work, node.image, node.items))
            return
        self._strips = np.zeros((WAVE, node.tiles.strip, node.tiles.vec), accumulator(node.op.dtype))
        for lanes in node.children():
            self.visit(lanes)
        self._store_strips(work, node.image, node.items, self._strips)

    def visit_DepthwiseLanes(self, node: DepthwiseLanes) -> None:
        """Registers of X by place and of the filter by tap; each pair that meets is multiplied once."""
        x, w = self._strip_places(node), self._strip_weights(node.work, node.items, node.line)
        for n, place in enumerate(node.work.strip.places):
            for output, tap in node.work.strip.meets(place):
                self._strips[:, output] += x[n] * w[tap]

    def _strip_places(self, node: DepthwiseLanes) -> Array:
        """X [place, lane, channel] of a line of taps, 0 past the edges and for lanes without a strip."""
        work, op = node.work, node.op
        chunk, strip, line = work.place(_numbers(node.items))
        length = (op.IH, op.IW)
        at_b = line * op.stride[work.b] - op.pad[2 * work.b] + node.line * op.dilation[work.b]
        first = strip * (work.tiles.strip * op.stride[work.a]) - op.pad[2 * work.a]
        at_a = first + np.array(work.strip.places)[:, None]
        there = _between(at_b, length[work.b]) & _between(at_a, length[work.a]) & _exist(node.items)
        at = [np.clip(at_a, 0, length[work.a] - 1), np.clip(at_b, 0, length[work.b] - 1)[None]]
        row, col = at if work.a == 0 else at[::-1]
        image = channels_first(op, self.inputs["X"])[node.image]
        read = image[_channels(work, chunk), row[..., None], col[..., None]]
        return np.where(there[..., None], read, 0.0).astype(accumulator(op.dtype))

    def _strip_weights(self, work: Depthwise, items: Window, line: int) -> Array:
        """W [tap, lane, channel] of a line of taps."""
        chunk, _, _ = work.place(_numbers(items))
        filters = channels_first(work.op, self.inputs["W"])[_channels(work, chunk), 0]
        return np.moveaxis(np.take(filters, line, axis=2 + work.b), 2, 0)

    def _strip_sums(self, work: Depthwise, image: int, items: Window) -> Array:
        """Y [thread, output, channel] of a window of threads, tap by tap of the whole filter."""
        op = work.op
        x = channels_first(op, self.inputs["X"])[image]
        chunk, _, _ = work.place(_numbers(items))
        channels = _channels(work, chunk)
        filters = channels_first(op, self.inputs["W"])[channels, 0]
        row, col, _ = self._strip_outputs(work, items)
        sums = np.zeros((*row.shape, work.tiles.vec), self.out.dtype)
        for i in range(op.KH):
            for j in range(op.KW):
                at_h = row * op.stride[0] - op.pad[0] + i * op.dilation[0]
                at_w = col * op.stride[1] - op.pad[2] + j * op.dilation[1]
                there = (_between(at_h, op.IH) & _between(at_w, op.IW))[..., None]
                at = (np.clip(at_h, 0, op.IH - 1)[..., None], np.clip(at_w, 0, op.IW - 1)[..., None])
                sums += np.where(there, x[(channels[:, None], *at)], 0.0) * filters[:, None, :, i, j]
        return sums

    def _strip_outputs(self, work: Depthwise, items: Window) -> tuple[Any, Any, Any]:
        """Rows and columns of Y [thread, output], clipped, and which of them exist."""
        _, strip, line = work.place(_numbers(items))
        along = strip[:, None] * work.tiles.strip + np.arange(work.tiles.strip)
        there = (along < work.outputs[work.a]) & _exist(items)[:, None]
        at = [np.minimum(along, work.outputs[work.a] - 1), np.broadcast_to(line[:, None], along.shape)]
        row, col = at if work.a == 0 else at[::-1]
        return row, col, there

    def _store_strips(self, work: Depthwise, image: int, items: Window, sums: Array) -> None:
        """Outputs that exist."""
        row, col, there = self._strip_outputs(work, items)
        chunk, _, _ = work.place(_numbers(items))
        thread, output = np.nonzero(there)
        y = channels_first(work.op, self.out)[image]
        at = (row[thread, output][:, None], col[thread, output][:, None])
        y[(_channels(work, chunk)[thread], *at)] = sums[thread, output]


def _exist(items: Window) -> Any:
    """Which threads of a window have a strip."""
    return np.arange(items.size) < items.extent


def _numbers(items: Window) -> Any:
    """Numbers of the threads of a window; that of the first one where there is no strip."""
    return np.where(_exist(items), items.start + np.arange(items.size), items.start)


def _channels(work: Depthwise, chunk: Any) -> Any:
    """Channels [thread, channel] of accesses."""
    return chunk[:, None] * work.tiles.vec + np.arange(work.tiles.vec)


def _between(place: Any, length: int) -> Any:
    """Whether places lie on an axis of that length."""
    return (place >= 0) & (place < length)
