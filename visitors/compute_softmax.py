"""Softmax executed at every level: each node brings the state of its columns up, and neighbours are combined."""

from __future__ import annotations

import numpy as np

from closedform.operators.level import Level
from closedform.operators.monoid import SoftmaxState, log2_scale, power
from closedform.operators.numerics import Array
from closedform.operators.softmax import Softmax, SoftmaxBlock, SoftmaxDevice, SoftmaxLanes, SoftmaxTiles, SoftmaxWave
from closedform.operators.view import Window

from .visitor import Visitor

__all__ = ["SoftmaxCompute"]

C = log2_scale(1.0)


class SoftmaxCompute(Visitor):
    """Methods of the softmax nodes; a node returns the state of its rows over its columns.

    At the atom level the lanes of a wave hold what the kernel's do, and absent elements are -inf.
    """

    level: Level
    inputs: dict[str, Array]
    out: Array

    #: log-sum-exp of each row, beside the result.
    lse: Array
    _logits: Array
    _lanes: SoftmaxState

    def visit_SoftmaxDevice(self, node: SoftmaxDevice) -> None:
        op = node.op
        mask = self.inputs.get("mask")
        self._logits = self.inputs["X"] if mask is None else np.where(mask != 0, self.inputs["X"], np.float32(-np.inf))
        if self.level is Level.DEVICE:
            state = SoftmaxState.of(self._logits, C)
        else:
            state = SoftmaxState.identity((op.rows,))
            for block in node.children():
                rows = block.rows.slice
                here = SoftmaxState(state.m[rows], state.l[rows]).combine(self.visit(block), C)
                state.m[rows], state.l[rows] = here.m, here.l
        self.lse = state.lse()
        self.out[...] = _result(op, self._logits, state)

    def visit_SoftmaxBlock(self, node: SoftmaxBlock) -> SoftmaxState:
        if self.level is Level.BLOCK:
            return self._both(node.rows, node.cols, node.ends)
        state = SoftmaxState.identity((node.rows.extent,))
        for wave in node.children():
            rows = slice(wave.rows.start - node.rows.start, wave.rows.stop - node.rows.start)
            here = SoftmaxState(state.m[rows], state.l[rows]).combine(self.visit(wave), C)
            state.m[rows], state.l[rows] = here.m, here.l
        return state

    def visit_SoftmaxWave(self, node: SoftmaxWave) -> SoftmaxState:
        rows, tiles = node.rows, node.tiles
        if self.level is not Level.ATOM:
            state = self._of(rows, node.ends)
            for lanes in node.children():
                state = state.absorb(self._logits[rows.slice, lanes.cols.slice], C)[0]
            return state
        self._lanes = SoftmaxState.identity((rows.extent, tiles.group))
        ends = np.full((rows.extent, tiles.group, 1), -np.inf, np.float32)
        ends[:, : node.ends.extent, 0] = self._logits[rows.slice, node.ends.slice]
        self._lanes = self._lanes.absorb(ends, C)[0]
        for lanes in node.children():
            self.visit(lanes)
        return _across(self._lanes, tiles)

    def visit_SoftmaxLanes(self, node: SoftmaxLanes) -> None:
        """Access i of a lane has vec elements from (i * group + lane) * vec on."""
        tiles = node.tiles
        held = np.full((node.rows.extent, node.cols.size), -np.inf, np.float32)
        held[:, : node.cols.extent] = self._logits[node.rows.slice, node.cols.slice]
        shaped = held.reshape(-1, tiles.chunks, tiles.group, tiles.vec).swapaxes(1, 2)
        registers = shaped.reshape(node.rows.extent, tiles.group, tiles.chunks * tiles.vec)
        self._lanes = self._lanes.absorb(registers, C)[0]

    def _of(self, rows: Window, cols: Window) -> SoftmaxState:
        return SoftmaxState.of(self._logits[rows.slice, cols.slice], C)

    def _both(self, rows: Window, cols: Window, ends: Window) -> SoftmaxState:
        return self._of(rows, cols).combine(self._of(rows, ends), C)


def _across(lanes: SoftmaxState, tiles: SoftmaxTiles) -> SoftmaxState:
    """The lanes of each row combined: their maximum, then sums of lanes 1, 2, 4, ... apart, as in a wave."""
    m = np.fmax.reduce(lanes.m, axis=1)
    sums = lanes.l * power(lanes.m, m[:, None], C)
    place, distance = np.arange(tiles.group), 1
    while distance < tiles.group:
        sums = sums + sums[:, place ^ distance]
        distance *= 2
    return SoftmaxState(m, sums[:, 0])


def _result(op: Softmax, logits: Array, state: SoftmaxState) -> Array:
    m, total = state.m[:, None], state.l[:, None]
    if op.empty == "nan":
        weight = np.where(np.isposinf(total), np.nan, 1 / total)
        log_weight = np.log(total)
    else:
        weight = state.inverse()[:, None]
        log_weight = np.log(np.where(total == 0, 1, total))
    if not op.log:
        return power(logits, m, C) * weight
    safe = np.where(np.isinf(m), np.zeros_like(m), m)
    return np.asarray((logits - safe) - np.where(np.isposinf(total), np.nan, log_weight))
