"""Attention on the simulator: inputs of the sampled workgroups, one launch, their rows against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .hw.sim import Out, flydsl_args, parse_file, run
from .simulation_case import Array, Executed, How, sampled, worst_of

if TYPE_CHECKING:
    from .operators.accuracy import Accuracy
    from .visitors.compile import Compiled
    from .visitors.derivation import Derivation

__all__ = ["simulate_attention"]


def simulate_attention(derivation: Derivation, compiled: Compiled, how: How) -> Executed:
    """Attention on normal random inputs; with a sample only the rows of sampled workgroups are compared."""
    from .simulate_attention_options import simulate_options
    from .visitors.emit_attention_form import Form

    tiles, _, verdict = derivation.require()
    if Form(derivation.op, tiles).has_options:
        return simulate_options(derivation, compiled, how)
    numbers = sampled(verdict.blocks, how.blocks)
    launch = _Launch(derivation.op, tiles.block_q, verdict.grid, numbers, how.seed)
    program = parse_file(compiled.isa)
    arguments = flydsl_args(program.kernel(), launch.arguments)
    result = run(program, arguments, verdict.grid, blocks=numbers, **how.run_options)
    return Executed((result,), launch.accuracy(), verdict.grid)


class _Launch:
    """Inputs and output of attention in memory, of which only what the sampled workgroups touch is filled.

    A workgroup (x, y, z) has queries x * block_q and on of head y of batch z.
    """

    def __init__(self, op: Any, block_q: int, grid: tuple[int, int, int], numbers: Array, seed: int) -> None:
        from .hw.sim.memory import shadow
        from .operators.numerics import rounded

        self.op, self.block_q, self.numbers = op, block_q, numbers
        x, y, z = numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1])
        self.rows: dict[tuple[int, int], list[int]] = {}
        for block, head, batch in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
            self.rows.setdefault((batch, head), []).append(block)
        word = np.uint16 if op.dtype == "bf16" else np.dtype({"f32": np.float32, "f16": np.float16}[op.dtype])
        queries, keys = (op.batch, op.heads, op.L_q, op.d), (op.batch, op.key_heads, op.L_kv, op.d)
        shapes = (queries, keys, keys, queries)
        self.q, self.k, self.v, self.out = (shadow(int(np.prod(s)), word).reshape(s) for s in shapes)
        self.lse = shadow(int(np.prod(queries[:3])), np.float32).reshape(queries[:3])
        random = np.random.default_rng(seed)
        for batch, head in self.rows:
            kv_head = head // op.group
            for array, place in ((self.q, head), (self.k, kv_head), (self.v, kv_head)):
                values = rounded(random.standard_normal(array.shape[2:], np.float32), op.dtype)
                array[batch, place] = (values.view(np.uint32) >> 16) if op.dtype == "bf16" else values

    @property
    def arguments(self) -> list[Any]:
        """The kernel's arguments in FlyDSL's order."""
        op = self.op
        outputs = [Out(self.out), *([Out(self.lse)] if op.lse else [])]
        return [self.q, self.k, self.v, *outputs, op.L_q, op.L_kv, np.float32(op.scale)]

    def accuracy(self) -> Accuracy:
        """Every row of the workgroups that ran, against float64 on the values that memory holds."""
        from .operators.accuracy import compare, compare_lse
        from .operators.reference import lse_reference, reference

        op = self.op
        parts: list[Accuracy] = []
        for (batch, head), blocks in self.rows.items():
            starts = (np.array(blocks)[:, None] * self.block_q + np.arange(self.block_q)).ravel()
            rows = starts[starts < op.L_q]
            q, out = self.q[batch, head][rows], self.out[batch, head][rows]
            rowwise = replace(op, L_q=len(rows), batch=1, heads=1, kv_heads=0)
            kv_head = head // op.group
            words = zip("QKV", (q, self.k[batch, kv_head], self.v[batch, kv_head]), strict=True)
            inputs = {name: self._values(a)[None, None] for name, a in words}
            with np.errstate(all="ignore"):
                parts.append(compare(rowwise, self._values(out)[None, None], reference(rowwise, **inputs)))
            if op.lse:
                exact = lse_reference(rowwise, **inputs)
                parts.append(compare_lse(rowwise, self.lse[batch, head][rows][None, None], exact))
        return worst_of(parts)

    def _values(self, words: Array) -> Array:
        """float64 of what memory holds."""
        if self.op.dtype == "bf16":
            return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return words.astype(np.float64)
