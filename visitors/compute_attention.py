"""Attention executed at the levels device, block and wave."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from closedform.operators.attention import (
    Attention,
    AttentionBlock,
    AttentionDevice,
    AttentionStep,
    AttentionWave,
    ScoreAtom,
    ValueAtom,
)
from closedform.operators.level import Level
from closedform.operators.monoid import SoftmaxState, log2_scale, power
from closedform.operators.numerics import Array, rounded

from .compute_attention_machine import AttentionMachine
from .visitor import Visitor

__all__ = ["AttentionCompute"]


class AttentionCompute(Visitor):
    """Methods of the attention nodes; each level computes what its node covers and stops there.

    At the atom level all waves of a block run in lockstep, as they do between two barriers: the tree is
    walked along its first wave, whose code every wave shares, on the registers of all of them.
    """

    level: Level
    inputs: dict[str, Array]
    out: Array
    #: log-sum-exp of each query, beside the result.
    lse: Array

    machine_class: ClassVar[type[AttentionMachine]] = AttentionMachine
    _state: SoftmaxState
    _sum: Array
    _machine: AttentionMachine

    def visit_AttentionDevice(self, node: AttentionDevice) -> None:
        self.lse = np.empty(self.out.shape[:-1], np.float32)
        if self.level is Level.DEVICE:
            k, v = (np.repeat(self.inputs[name], node.op.group, axis=1) for name in "KV")
            self.out[...], self.lse[...] = one_shot(node.op, self.inputs["Q"], k, v)
            return
        for block in node.children():
            self.visit(block)

    def visit_AttentionBlock(self, node: AttentionBlock) -> None:
        head, rows = (node.batch, node.head), node.rows.slice
        if self.level is Level.BLOCK:
            q, k, v = self._of_head(node)
            self.out[head][rows], self.lse[head][rows] = one_shot(node.op, q[rows], k, v)
        elif self.level is Level.ATOM:
            self._lockstep(tuple(node.children()))
        else:
            for wave in node.children():
                self.visit(wave)

    def visit_AttentionWave(self, node: AttentionWave) -> None:
        self._state = SoftmaxState.identity((node.rows.extent,))
        self._sum = np.zeros((node.rows.extent, node.op.d), np.float32)
        for step in node.children():
            self.visit(step)
        place = (node.batch, node.head, node.rows.slice)
        self.out[place] = self._sum * self._state.inverse()[:, None]
        self.lse[place] = self._state.lse(node.op.scale)

    def visit_AttentionStep(self, node: AttentionStep) -> None:
        if self.level is Level.ATOM:
            self._machine_step(node)
            return
        q, k, v = self._of_head(node)
        keys, c = node.keys.slice, log2_scale(node.op.scale)
        self._state, p, rescale = self._state.absorb_lazily(q[node.rows.slice] @ k[keys].T, c)
        self._sum = self._sum * rescale[:, None] + rounded(p, node.op.p_dtype) @ v[keys]

    def visit_ScoreAtom(self, node: ScoreAtom) -> None:
        self._machine.score(node)

    def visit_ValueAtom(self, node: ValueAtom) -> None:
        self._machine.value(node)

    def _of_head(self, node: AttentionBlock | AttentionWave | AttentionStep) -> tuple[Array, Array, Array]:
        """Q, K and V [length, d] that a node works on."""
        keys = (node.batch, node.head // node.op.group)
        return self.inputs["Q"][node.batch, node.head], self.inputs["K"][keys], self.inputs["V"][keys]

    def _lockstep(self, waves: tuple[AttentionWave, ...]) -> None:
        first = waves[0]
        head = (first.batch, first.head)
        self._machine = self.machine_class(waves, *self._of_head(first))
        for step in first.children():
            self.visit(step)
        for wave, rows, lse in zip(waves, self._machine.output(), self._machine.lse(), strict=True):
            self.out[head][wave.rows.slice] = rows
            self.lse[head][wave.rows.slice] = lse

    def _machine_step(self, node: AttentionStep) -> None:
        self._machine.load(node)
        for score in node.score_atoms():
            self.visit(score)
        self._machine.softmax(node)
        for value in node.value_atoms():
            self.visit(value)
        self._machine.scalar_values()


def one_shot(op: Attention, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """All keys at once for queries [..., L_q, d]: f32 sums, P rounded to the type of the second product; O and lse."""
    c = log2_scale(op.scale)
    scores = q @ np.swapaxes(k, -1, -2)
    state = SoftmaxState.of(scores, c)
    p = rounded(power(scores, state.m[..., None], c), op.p_dtype)
    return np.asarray((p @ v) * state.inverse()[..., None]), state.lse(op.scale)
