"""Gemm executed at any level."""

from __future__ import annotations

import numpy as np

from closedform.operators.gemm import Gemm, GemmAtom, GemmBlock, GemmDevice, GemmWave
from closedform.operators.level import Level
from closedform.operators.numerics import Array, accumulator
from closedform.operators.view import View

from .compute_mfma import LANES, mfma
from .visitor import Visitor

__all__ = ["GemmCompute"]


class GemmCompute(Visitor):
    """Methods of the gemm nodes. At the atom level D stays in the registers of the waves of a block."""

    level: Level
    inputs: dict[str, Array]
    out: Array

    _registers: dict[tuple[int, int], Array]
    _fragments: dict[tuple[str, int, int], Array]

    def visit_GemmDevice(self, node: GemmDevice) -> None:
        if self.level is Level.DEVICE:
            self.out[...] = operand(node.op, self.inputs, "A") @ operand(node.op, self.inputs, "B")
            return
        for block in node.children():
            self.visit(block)

    def visit_GemmBlock(self, node: GemmBlock) -> None:
        if self.level is Level.BLOCK:
            self._add(node)
            return
        self._registers = {}
        for wave in node.children():
            self.visit(wave)
        self._store(node)

    def visit_GemmWave(self, node: GemmWave) -> None:
        if self.level is Level.WAVE:
            self._add(node)
            return
        self._fragments = {}
        for atom in node.children():
            self.visit(atom)

    def visit_GemmAtom(self, node: GemmAtom) -> None:
        atom, views = node.tiles.atom, node.views
        place = (node.rows.start, node.cols.start)
        zero = np.zeros((LANES, atom.elements_c), accumulator(node.op.dtype))
        a, b = self._fragment(node, "A", views["A"]), self._fragment(node, "B", views["B"])
        self._registers[place] = mfma(atom, a, b, self._registers.get(place, zero))

    def _add(self, node: GemmBlock | GemmWave) -> None:
        views = node.views
        a, b = (operand(node.op, self.inputs, name)[node.batch][_window(views[name])] for name in "AB")
        self.out[node.batch][_window(views["D"])] += a @ b

    def _fragment(self, node: GemmAtom, name: str, view: View) -> Array:
        """Operand A or B in lanes and elements; what lies past the valid extent reads 0."""
        key = (name, view.rows.start, view.cols.start)
        if key not in self._fragments:
            tile = np.zeros((view.rows.size, view.cols.size), accumulator(node.op.dtype))
            rows, cols = view.shape
            tile[:rows, :cols] = operand(node.op, self.inputs, name)[node.batch][_window(view)]
            atom = node.tiles.atom
            held = (atom.a if name == "A" else atom.b).table()
            place = (held["m"], held["k"]) if name == "A" else (held["k"], held["n"])
            self._fragments[key] = tile[place]
        return self._fragments[key]

    def _store(self, node: GemmBlock) -> None:
        """Registers of D, added to what other workgroups have of the same tile, through the C map, clipped."""
        held = node.tiles.atom.c.table()
        for (row, col), registers in self._registers.items():
            rows, cols = held["m"] + row, held["n"] + col
            valid = (rows < node.rows.stop) & (cols < node.cols.stop)
            self.out[node.batch][rows[valid], cols[valid]] += registers[valid]


def operand(op: Gemm, inputs: dict[str, Array], name: str) -> Array:
    """A as [batch, M, K] or B as [batch, K, N], however stored."""
    stored = inputs[name]
    return stored if op.layout["AB".index(name)] == "N" else np.swapaxes(stored, -1, -2)


def _window(view: View) -> tuple[slice, slice]:
    return view.rows.slice, view.cols.slice
