"""A plot of the incumbent's latency, round by round."""

from __future__ import annotations

from pathlib import Path

from closedform.plotting import plot

from .trajectory import Trajectory

__all__ = ["trajectory_plot"]


def trajectory_plot(found: Trajectory, path: str | Path, grid: Trajectory | None = None) -> None:
    """Write the plot; raises as `plot` does."""
    points = [("start", found.start_us), *((f"{r.name} {r.sweep}", r.latency_us) for r in found.rounds)]
    measured = [(name, us) for name, us in points if us is not None]
    places = range(len(measured))
    with plot(path, (7, 4)) as axes:
        axes.step(places, [us for _, us in measured], where="post", label="rounds")
        axes.plot(places, [us for _, us in measured], "o", color="C0")
        axes.set_xticks(places, [name for name, _ in measured], rotation=45, ha="right")
        if grid is not None and grid.best_us is not None:
            axes.axhline(grid.best_us, linestyle="--", color="C1", label="one-shot grid")
        axes.set_ylabel(f"us by {found.evaluator}")
        axes.legend()
