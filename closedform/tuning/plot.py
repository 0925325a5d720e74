"""A plot of the incumbent's latency, round by round."""

from __future__ import annotations

from pathlib import Path

from closedform.hw.errors import BadInput, MissingDependency

from .trajectory import Trajectory

__all__ = ["trajectory_plot"]


def trajectory_plot(found: Trajectory, path: str | Path, grid: Trajectory | None = None) -> None:
    """Write the plot; the suffix is the format.

    Raises MissingDependency without matplotlib, BadInput for a suffix that it cannot write or a file that it may not.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency("--plot needs matplotlib: pip install 'closedform[plot]'") from None
    matplotlib.use("svg" if str(path).endswith(".svg") else "agg")
    matplotlib.rcParams["svg.hashsalt"] = "closedform"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    known = figure.canvas.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".") not in known:
        pyplot.close(figure)
        raise BadInput(f"no plot of the kind {Path(path).name}: suffixes are {', '.join(sorted(known))}")
    points = [("start", found.start_us), *((f"{r.name} {r.sweep}", r.latency_us) for r in found.rounds)]
    measured = [(name, us) for name, us in points if us is not None]
    places = range(len(measured))
    axes.step(places, [us for _, us in measured], where="post", label="rounds")
    axes.plot(places, [us for _, us in measured], "o", color="C0")
    axes.set_xticks(places, [name for name, _ in measured], rotation=45, ha="right")
    if grid is not None and grid.best_us is not None:
        axes.axhline(grid.best_us, linestyle="--", color="C1", label="one-shot grid")
    axes.set_ylabel(f"us by {found.evaluator}")
    axes.legend()
    figure.tight_layout()
    try:
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)
