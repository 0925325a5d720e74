"""Comparisons of fused and unfused attention as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .comparison import LONGEST, SHORTEST
from .text import wrapped

if TYPE_CHECKING:
    from .comparison import Comparison, Side

__all__ = ["comparison_text"]


def comparison_text(found: Comparison) -> str:
    """Both ways side by side, the crossover, and what decides it: 100 columns."""
    op = found.op
    shape = f"L_q={op.L_q} L_kv={op.L_kv} d={op.d} batch={op.batch} heads={op.heads} dtype={op.dtype}"
    lines = [
        f"attention: {shape} on {found.hw}",
        f"{'':22}{'fused':>16}{'unfused':>22}",
        _row("kernels", found, lambda side: str(side.kernels)),
        _row("HBM traffic, MB", found, lambda side: f"{side.hbm_bytes / 1e6:.1f}"),
        _row("operations, GFLOP", found, lambda side: f"{side.flops / 1e9:.2f}"),
        _row("workgroups", found, lambda side: " + ".join(map(str, side.workgroups))),
        _row("rounds", found, lambda side: str(side.rounds)),
        _row("slots used", found, lambda side: f"{side.utilisation:.1%}"),
        _row("predicted time, us", found, lambda side: f"{side.latency_us:.1f}"),
    ]
    parts = ", ".join(f"{name} {us:.1f}" for name, us in found.parts_us.items())
    faster, slower = sorted((found.fused, found.unfused), key=lambda side: side.latency_us)
    name = "fused" if faster is found.fused else "unfused"
    texts = [
        f"The three kernels take {parts} us. {name} is {slower.latency_us / faster.latency_us:.2f} times as fast.",
        f"Crossover: with {_heads(op.heads)}, fused is faster {_from(found.crossover)}; with {found.heads_filled} "
        f"heads, which fill every CU, {_from(found.crossover_filled)}.",
        f"Why: S is {found.savings:.3g} times the compulsory traffic (L / (4 d)), which fusion saves four times over; "
        f"but the fused kernel has one workgroup for a block of queries only, and each of its rounds walks all keys: "
        f"{found.fused.rounds} round(s) here, with {found.fused.utilisation:.1%} of the slots in use, whereas the "
        f"products of the unfused one spread S over all CUs. The time of a round grows with L and the number of rounds "
        f"jumps when the slots are full, so the crossover is where rounds are used well, not at a value of L / (4 d).",
    ]
    return "\n".join(["\n".join(lines), *(wrapped(text) for text in texts)])


def _row(label: str, found: Comparison, text: Callable[[Side], str]) -> str:
    return f"{label:22}{text(found.fused):>16}  {text(found.unfused):>20}"


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def _from(length: int | None) -> str:
    if length is None:
        return f"at no length up to {LONGEST}"
    return "at every length" if length <= SHORTEST else f"from L = {length} on"
