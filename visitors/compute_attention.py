"""Attention executed at the levels device, block and wave."""

from __future__ import annotations

from dataclasses import replace
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
from closedform.operators.attention_logits import logits
from closedform.operators.attention_reference import attention_entries
from closedform.operators.level import Level
from closedform.operators.monoid import SoftmaxState, log2_scale, merged, power
from closedform.operators.numerics import Array, rounded
from closedform.operators.view import Window

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
        self.lse = np.full(self.out.shape[:-1], -np.inf, np.float32)
        if not (node.op.key_lengths or node.op.varlen):
            self._entries(node)
            return
        inputs, out, lse = self.inputs, self.out, self.lse
        for i, entry in enumerate(attention_entries(node.op, inputs)):
            rows = slice(0, entry.L_q)
            if entry.q.size and entry.k.size:
                op = replace(
                    node.op, L_q=entry.L_q, L_kv=entry.k.shape[1], batch=1, key_lengths=False, varlen=False, page=0
                )
                shaped = {"Q": entry.q, "K": entry.k, "V": entry.v, "bias": entry.bias}
                self.inputs = {name: x[None] for name, x in shaped.items() if x is not None}
                self.inputs |= {"slopes": inputs["slopes"]} if op.alibi else {}
                self.out, self.lse = out[i : i + 1, :, rows], lse[i : i + 1, :, rows]
                self._entries(replace(node, op=op))
        self.inputs, self.out, self.lse = inputs, out, lse

    def _entries(self, node: AttentionDevice) -> None:
        """Entries of one length: as a whole, or block by block and merged where the keys are split."""
        op = node.op
        if self.level is Level.DEVICE:
            k, v = (np.repeat(self.inputs[name], op.group, axis=1) for name in "KV")
            slopes = self.inputs["slopes"][:, None, None] if op.alibi else None
            rows = np.arange(op.L_q)[:, None]
            of = (self.inputs["Q"], k, v, rows, Window.whole(op.L_kv), self.inputs.get("bias"), slopes)
            self.out[...], self.lse[...] = one_shot(op, *of)
            return
        out, lse = self.out, self.lse
        parts = [np.zeros((node.require_tiles().splits, *x.shape), np.float32) for x in (out, lse)]
        for block in node.children():
            self.out, self.lse = (part[block.split] for part in parts)
            self.visit(block)
        self.out, self.lse = out, lse
        out[...], lse[...] = merged(*parts)

    def visit_AttentionBlock(self, node: AttentionBlock) -> None:
        head, rows = (node.batch, node.head), node.rows.slice
        if self.level is Level.BLOCK:
            q, k, v = self._of_head(node)
            steps = [step.keys for step in next(node.children()).children()]
            picked = np.concatenate([np.arange(keys.start, keys.stop) for keys in steps] or [np.zeros(0, int)])
            queries = np.arange(node.rows.start, node.rows.stop)[:, None]
            bias = self._bias(node)
            of = (q[rows], k[picked], v[picked], queries, picked, None if bias is None else bias[queries, picked])
            self.out[head][rows], self.lse[head][rows] = one_shot(node.op, *of, self._slope(node))
        elif self.level is Level.ATOM:
            self._lockstep(tuple(node.children()))
        else:
            for wave in node.children():
                self.visit(wave)

    def visit_AttentionWave(self, node: AttentionWave) -> None:
        self._state = SoftmaxState.identity((node.rows.extent,))
        self._sum = np.zeros((node.rows.extent, node.op.columns), np.float32)
        for step in node.children():
            self.visit(step)
        place = (node.batch, node.head, node.rows.slice)
        self.out[place] = self._sum * self._state.inverse()[:, None]
        self.lse[place] = self._state.lse(node.op.logit_scale)

    def visit_AttentionStep(self, node: AttentionStep) -> None:
        if self.level is Level.ATOM:
            self._machine_step(node)
            return
        op, keys = node.op, node.keys.slice
        q, k, v = self._of_head(node)
        queries, numbers = np.arange(node.rows.start, node.rows.stop)[:, None], np.arange(keys.start, keys.stop)
        bias = self._bias(node)
        added = None if bias is None else bias[node.rows.slice, keys]
        scores = q[node.rows.slice] @ k[keys].T
        x = logits(op, scores, op.visibility, queries, numbers, added, self._slope(node))
        self._state, p, rescale = self._state.absorb_lazily(x, log2_scale(op.logit_scale), op.headroom)
        self._sum = self._sum * rescale[:, None] + rounded(p, op.p_dtype, op.peak) @ v[keys]

    def visit_ScoreAtom(self, node: ScoreAtom) -> None:
        self._machine.score(node)

    def visit_ValueAtom(self, node: ValueAtom) -> None:
        self._machine.value(node)

    def _of_head(self, node: AttentionBlock | AttentionWave | AttentionStep) -> tuple[Array, Array, Array]:
        """Q, K and V [length, d] that a node works on."""
        keys = (node.batch, node.head // node.op.group)
        return self.inputs["Q"][node.batch, node.head], self.inputs["K"][keys], self.inputs["V"][keys]

    def _bias(self, node: AttentionBlock | AttentionWave | AttentionStep) -> Array | None:
        """[L_q, L_kv] that the logits of a head are added."""
        return self.inputs["bias"][node.batch, node.head] if node.op.bias else None

    def _slope(self, node: AttentionBlock | AttentionWave | AttentionStep) -> Array | None:
        return self.inputs["slopes"][node.head] if node.op.alibi else None

    def _lockstep(self, waves: tuple[AttentionWave, ...]) -> None:
        first = waves[0]
        head = (first.batch, first.head)
        self._machine = self.machine_class(waves, *self._of_head(first), self._bias(first), self._slope(first))
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


def one_shot(
    op: Attention,
    q: Array,
    k: Array,
    v: Array,
    queries: Array,
    keys: Array | Window,
    bias: Array | None,
    slopes: Array | None,
) -> tuple[Array, Array]:
    """All keys at once for queries [..., L_q, d]: f32 sums, P rounded to the type of the second product; O and lse.

    `queries` and `keys` are their numbers, `bias` and `slopes` as for `logits`.
    """
    numbers = np.arange(keys.start, keys.stop) if isinstance(keys, Window) else keys
    c = log2_scale(op.logit_scale)
    x = logits(op, q @ np.swapaxes(k, -1, -2), op.visibility, queries, numbers, bias, slopes)
    state = SoftmaxState.of(x, c)
    p = rounded(power(x, state.m[..., None], c), op.p_dtype, op.peak)
    return np.asarray((p @ v) * state.inverse()[..., None]), state.lse(op.logit_scale)
