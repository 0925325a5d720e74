"""Plots written to files, the same bytes for the same numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .hw.errors import BadInput, MissingDependency

__all__ = ["check_plot", "plot"]


def check_plot(path: str | Path) -> None:
    """That a plot of that path can be made: raises as `plot` does, without one."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise MissingDependency("--plot needs matplotlib: pip install 'closedform[plot]'") from None
    known = FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".") not in known:
        raise BadInput(f"no plot of the kind {Path(path).name}: suffixes are {', '.join(sorted(known))}")
    place = Path(path) if Path(path).exists() else Path(path).parent
    if not os.access(place, os.W_OK):
        raise BadInput(f"cannot write {path}: {place} is no folder or file that may be written")


@contextmanager
def plot(path: str | Path, size: tuple[float, float]) -> Iterator[Any]:
    """Axes of matplotlib of `size` inches, written to `path` at the end; the suffix is the format.

    Raises MissingDependency without matplotlib, BadInput for a suffix that it cannot write or a file that it may not.
    """
    check_plot(path)
    import matplotlib

    vector = str(path).endswith(".svg")
    matplotlib.use("svg" if vector else "agg")
    matplotlib.rcParams["svg.hashsalt"] = "closedform"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=size)
    try:
        yield axes
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None} if vector else None)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)
