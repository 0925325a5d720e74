"""A search as text: the start, every round, the best and what it changed."""

from __future__ import annotations

from collections.abc import Mapping

from .trajectory import Trajectory

__all__ = ["trajectory_text"]

_HEADER = ("round", "enumerated", "legal", "measured", "reused", "failed", "us", "gain")


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value >= 10 else f"{value:.4f}"


def _rows(found: Trajectory) -> list[tuple[str, ...]]:
    rows = []
    before = found.start_us
    for r in found.rounds:
        gain = "-" if before is None or r.latency_us is None else f"{before / r.latency_us:.3f}"
        counts = (r.enumerated, r.legal, r.evaluated, r.reused, r.failed)
        name = r.name if r.sweep == 1 else f"{r.name}, sweep {r.sweep}"
        rows.append((name, *(str(count) for count in counts), _us(r.latency_us), gain))
        before = r.latency_us
    return rows


def _values(candidate: Mapping[str, object]) -> str:
    return "  ".join(f"{name}={value}" for name, value in candidate.items())


def trajectory_text(found: Trajectory, grid: Trajectory | None = None) -> str:
    """The table of rounds; where a grid was measured too, its result in the last line."""
    lines = []
    twice = "" if found.disagreement is None else f", two measurements within {found.disagreement:.2f}x"
    lines.append(f"start     {_us(found.start_us)} us{twice}")
    table = [_HEADER, *_rows(found)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEADER))]
    for row in table:
        first, *others = (
            cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join((first, *others)).rstrip())
    changed = {name: value for name, value in found.best.items() if found.start.get(name) != value}
    gain = "" if found.gain is None else f", {found.gain:.3f}x faster than the start"
    lines.append(f"best      {_us(found.best_us)} us{gain} by {found.evaluator}")
    lines.append(f"          {_values(found.best)}")
    lines.append(f"changed   {_values(changed) or 'nothing'}")
    lines.append(
        f"stopped   {found.stopped}: {found.measurements} measurements, {found.evaluated} of them new, "
        f"{found.seconds:.1f} s"
    )
    if grid is not None:
        lines.append(
            f"grid      {_us(grid.best_us)} us, one shot of {grid.measurements} measurements among "
            f"{grid.rounds[0].enumerated} combinations"
            + (": no more of those looked at can exist" if grid.stopped == "done" else "")
        )
    return "\n".join(lines)
