"""Progress of long runs, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .output import notice

__all__ = ["workgroup_progress"]

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
