"""Emitted attention kernels for tests: derived, compiled once in a child process, simulated on demand.

The workers of a parallel run compile side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from closedform.hw import catalogue
from closedform.operators.accuracy import Accuracy, compare, compare_lse
from closedform.operators.attention import Attention
from closedform.operators.numerics import rounded
from closedform.operators.reference import lse_reference, reference
from closedform.simulation_case import worst_of
from closedform.visitors.compile import Compiled, compile_source
from closedform.visitors.compute import input_shapes
from closedform.visitors.derivation import Derivation
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

TARGETS = ("mi100", "mi210", "mi300x", "mi355x")


@dataclass(frozen=True)
class Case:
    """One kernel: the operator that decides its tiles, the GPU, and overrides."""

    hw: str
    dtype: str
    d: int
    variant: str = "chained"
    L: int = 4096
    heads: int = 32
    fixed: tuple[tuple[str, Any], ...] = field(default=())
    features: tuple[tuple[str, Any], ...] = field(default=())

    def __str__(self) -> str:
        extra = "".join(f"-{k}{v}" for k, v in (*self.fixed, *self.features))
        return f"{self.hw}-{self.dtype}-d{self.d}-{self.variant}-L{self.L}-h{self.heads}{extra}"

    def operator(self) -> Attention:
        return Attention(
            self.L, self.L, self.d, heads=self.heads, dtype=self.dtype, variant=self.variant, **dict(self.features)
        )

    def derivation(self) -> Derivation:
        return derive(self.operator(), catalogue.get(self.hw), "default", **dict(self.fixed))


@cache
def compiled(case: Case) -> Compiled:
    derivation = case.derivation()
    return compile_source(emit_source(derivation), derivation.hw.gfx)


def stored(values: Any, dtype: str) -> Any:
    """Values as the kernel's memory holds them: bf16 as the 16-bit words of rounded f32."""
    exact = rounded(np.asarray(values, np.float32), dtype)
    if dtype == "bf16":
        return (exact.view(np.uint32) >> 16).astype(np.uint16)
    return exact.astype({"f32": np.float32, "f16": np.float16}[dtype])


def loaded(words: Any, dtype: str) -> Any:
    """float64 of what memory holds."""
    if dtype == "bf16":
        return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return words.astype(np.float64)


def simulate(
    case: Case, L_q: int, L_kv: int, *, heads: int = 1, batch: int = 1, inputs: Any = None, **options: Any
) -> tuple[Any, Accuracy, Any]:
    """Runs the compiled instructions on these lengths: (simulator's result, accuracy against float64, output).

    The accuracy is the worse one of output and log-sum-exp where there are both.
    """
    from closedform.hw.sim import Out, flydsl_args, parse_file, run

    derivation = case.derivation()
    kept = case.operator()
    op = replace(kept, L_q=L_q, L_kv=L_kv, batch=batch, heads=heads, kv_heads=heads // kept.group)
    if inputs is None:
        random = np.random.default_rng(L_q * 1000 + L_kv)
        shapes = input_shapes(op)
        inputs = [random.standard_normal(shapes[name]) for name in "QKV"]
    q, k, v = (stored(x, case.dtype) for x in inputs)
    out, lse = np.zeros_like(q), np.zeros(q.shape[:3], np.float32)
    program = parse_file(compiled(case).isa)
    outputs = [Out(out), *([Out(lse)] if op.lse else [])]
    arguments = flydsl_args(program.kernel(), [q, k, v, *outputs, L_q, L_kv, np.float32(op.scale)])
    tiles = derivation.tiles
    result = run(program, arguments, grid=(-(-L_q // tiles.block_q), heads, batch), **options)
    with np.errstate(all="ignore"):
        exact = {n: loaded(x, case.dtype) for n, x in zip("QKV", (q, k, v), strict=True)}
        parts = [compare(op, loaded(out, case.dtype), reference(op, **exact))]
        if op.lse:
            parts.append(compare_lse(op, lse, lse_reference(op, **exact)))
        return result, worst_of(parts), loaded(out, case.dtype)
