"""What attention must give, in float64: entry by entry of the batch, a part of the queries at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .attention import Attention
from .attention_logits import logits
from .numerics import Array

__all__ = ["Entry", "Reference", "attention_entries", "attention_reference", "entry_reference"]

#: Scores that are held in memory at a time.
SCORES_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class Reference:
    """Exact result `out` of the rounded inputs, and sums that its rounding errors scale with, of its shape.

    `size` is what an error is measured against: |D| of gemm, and P |V| of attention, the size of what it
    averages, which stays where the average itself cancels. `growth` is the part of the error that comes from
    rounding to the accumulator's type, in units of its roundoff. `lost` is the sum of |V| over the sum of
    exponentials: what a fixed error of every P comes to.
    """

    out: Array
    size: Array
    growth: Array
    lost: Array

    @classmethod
    def zeros(cls, *shape: int) -> Reference:
        """Results without any terms."""
        return cls(*(np.zeros(shape) for _ in fields(cls)))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the batch: q [heads, L_q, d], k [key heads, L_kv, d], v [key heads, L_kv, columns].

    bias [heads, L_q, L_kv] and slopes [heads] where the operator has them. `rows` are the numbers of the queries in q
    among all `L_q` of the entry.
    """

    q: Array
    k: Array
    v: Array
    bias: Array | None
    slopes: Array | None
    rows: Array
    L_q: int

    def of_rows(self, rows: slice | Array) -> Entry:
        """The same with some of the queries."""
        bias = None if self.bias is None else self.bias[:, rows]
        return replace(self, q=self.q[:, rows], bias=bias, rows=self.rows[rows])


def attention_entries(op: Attention, inputs: Mapping[str, Array]) -> list[Entry]:
    """The entries of a batch of inputs Q [batch, heads, L_q, d], K and V, bias, slopes, query_lengths, key_lengths."""
    found = []
    for i in range(op.batch):
        queries = int(inputs["query_lengths"][i]) if op.varlen else op.L_q
        keys = int(inputs["key_lengths"][i]) if op.varlen or op.key_lengths else op.L_kv
        bias = inputs["bias"][i, :, :queries, :keys] if op.bias else None
        q, k, v = (inputs[name][i, :, :n] for name, n in (("Q", queries), ("K", keys), ("V", keys)))
        found.append(Entry(q, k, v, bias, inputs.get("slopes"), np.arange(queries), queries))
    return found


def attention_reference(op: Attention, inputs: Mapping[str, Array]) -> tuple[Reference, Reference]:
    """O [batch, heads, L_q, columns] and the log-sum-exp [.., L_q, 1]; rows past an entry's give 0 and -inf."""
    out = Reference.zeros(op.batch, op.heads, op.L_q, op.columns)
    lse = Reference.zeros(op.batch, op.heads, op.L_q, 1)
    lse.out[...] = -np.inf
    for i, entry in enumerate(attention_entries(op, inputs)):
        for whole, part in zip((out, lse), entry_reference(op, entry), strict=True):
            for field in fields(Reference):
                getattr(whole, field.name)[i, :, : entry.L_q] = getattr(part, field.name)
    return out, lse


def entry_reference(op: Attention, entry: Entry) -> tuple[Reference, Reference]:
    """softmax(logits) V and the log-sum-exp of the queries of an entry; a query that sees no key gives 0 and -inf.

    `growth` collects, for each weight p_j, the errors that reach its exponent in units of the f32 roundoff:

        e_j = 2 sqrt(d) (|s_j| + t_j) + 5 |x_j - m| + 2 + what the options add

    s_j is the scaled score, t_j the 2-norm of its d terms and x_j the logit. A partial sum of terms in no particular
    order stays near |s_j| + t_j, and d rounding errors of such sums add up like sqrt(d) (Higham and Mary, "A new
    approach to probabilistic rounding error analysis", 2019; the factor 2 is their lambda). 5 |x_j - m| is the
    difference, the product and the three roundings in the scale; 2 is exp2's unit in the last place. A soft cap adds
    12 of the capped score: its tanh by a polynomial, or by an exponential, a reciprocal and a difference; bias and
    ALiBi add 5 |x_j| and 3 of the score before them: products, sums and the sum of the logit. The weights enter
    numerator and denominator, and the sums over keys themselves add 2 sqrt(L) to both.
    """
    k, v = (np.repeat(x, op.group, axis=0) for x in (entry.k, entry.v))
    heads, queries = entry.q.shape[:2]
    if k.shape[1] == 0:
        lse = Reference.zeros(heads, queries, 1)
        lse.out[...] = -np.inf
        return Reference.zeros(heads, queries, op.columns), lse
    step = max(1, SCORES_AT_ONCE // (heads * k.shape[1]))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        parts = [_of_rows(op, entry.of_rows(slice(i, i + step)), k, v) for i in range(0, max(queries, 1), step)]
    return _joined([part[0] for part in parts]), _joined([part[1] for part in parts])


def _joined(parts: list[Reference]) -> Reference:
    values: list[Any] = [
        np.concatenate([getattr(p, field.name) for p in parts], axis=-2) for field in fields(Reference)
    ]
    return Reference(*values)


def _of_rows(op: Attention, entry: Entry, k: Array, v: Array) -> tuple[Reference, Reference]:
    q, d, keys = entry.q, entry.q.shape[-1], k.shape[-2]
    kt = np.swapaxes(k, -1, -2)
    raw = q @ kt
    slopes = None if entry.slopes is None else entry.slopes[:, None, None]
    seen = replace(op.visibility, L_q=entry.L_q, L_kv=keys)
    s = logits(op, raw, seen, entry.rows[:, None], np.arange(keys), entry.bias, slopes) * op.logit_scale
    m = s.max(axis=-1, keepdims=True)
    m = np.where(np.isneginf(m), 0.0, m)
    p = np.exp(s - m)
    total = p.sum(axis=-1, keepdims=True)
    scores = np.abs(raw) * op.scale
    terms = np.sqrt(np.square(q) @ np.square(kt)) * op.scale
    exponent = 2 * np.sqrt(d) * (scores + terms) + 5 * np.abs(s - m) + 2
    below = scores if op.softcap is None else np.minimum(scores, op.softcap)
    if op.softcap is not None:
        exponent = exponent + 12 * below
    if op.bias or op.alibi:
        exponent = exponent + 5 * np.abs(s) + 3 * below
    exponent = np.where(p == 0, 0.0, exponent)
    return _output(p, total, exponent, v), _log_sum(s, m, p, total, exponent)


def _output(p: Array, total: Array, exponent: Array, v: Array) -> Reference:
    keys = v.shape[-2]
    total = np.where(total == 0, 1.0, total)
    p = p / total
    out = p @ v
    size = p @ np.abs(v)
    weighted = np.where(p == 0, 0.0, p * exponent)
    growth = weighted @ np.abs(v) + weighted.sum(axis=-1, keepdims=True) * np.abs(out)
    growth = growth + 2 * np.sqrt(keys) * (size + np.abs(out)) + 4 * np.abs(out)
    lost = np.abs(v).sum(axis=-2, keepdims=True) / total
    return Reference(out, size, growth, np.broadcast_to(lost, out.shape))


def _log_sum(s: Array, m: Array, p: Array, total: Array, exponent: Array) -> Reference:
    """log sum exp; `growth` has the errors of the exponents, weighted by p_j, those of the sum, its logarithm, and the
    reference logit. `size` stays at 1 where the logarithm vanishes."""
    top = np.where(np.isposinf(m), 0.0, m)
    out = np.where(np.isposinf(m), np.inf, m + np.log(total))
    growth = np.where(p == 0, 0.0, p / total * exponent).sum(axis=-1, keepdims=True)
    growth = growth + 2 * np.sqrt(s.shape[-1]) + 4 * (np.abs(top) + np.abs(out) + 1)
    growth = np.where(np.isfinite(out), growth, 0.0)
    return Reference(out, np.maximum(np.abs(out), 1.0), growth, np.zeros_like(out))
