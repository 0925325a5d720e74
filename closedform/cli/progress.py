"""Progress of long runs, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .output import notice

if TYPE_CHECKING:
    from closedform.tuning.journal import Record

__all__ = ["tuning_progress", "workgroup_progress"]

#: Seconds between two lines where stderr is no terminal; shorter runs say nothing.
EVERY_S = 15.0


@contextmanager
def workgroup_progress() -> Iterator[Callable[[int, int], None]]:
    """A function to call with the workgroups done and to do."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("workgroups"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("workgroups", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines() -> Callable[[int, int], None]:
    begin = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done < total and now - last > EVERY_S:
            last = now
            notice(f"{done} of {total} workgroups, about {(now - begin) * (total - done) / done:.0f} s to go")

    return tell


@contextmanager
def tuning_progress(budget: int | None) -> Iterator[Callable[[Record, bool], None]]:
    """A function to call with each measurement and whether it was new; it tells their number and the fastest."""
    if not sys.stderr.isatty():
        yield _measurement_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measurements", total=budget)
        fastest = float("inf")

        def tell(record: Record, new: bool) -> None:
            nonlocal fastest
            fastest = min(fastest, record.latency_us or fastest)
            bar.update(task, advance=1, description=f"fastest {fastest:.2f} us")

        yield tell


def _measurement_lines() -> Callable[[Record, bool], None]:
    last = time.monotonic()
    count, fastest = 0, float("inf")

    def tell(record: Record, new: bool) -> None:
        nonlocal last, count, fastest
        count += 1
        fastest = min(fastest, record.latency_us or fastest)
        now = time.monotonic()
        if now - last > EVERY_S:
            last = now
            notice(f"{count} measurements, the fastest {fastest:.2f} us")

    return tell
