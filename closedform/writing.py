"""Files that appear whole or not at all: written under another name first, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["write_together"]


def write_together(folder: Path, files: Mapping[str, bytes], stale: tuple[str, ...] = ()) -> None:
    """Write each file under a temporary name in `folder`, then rename all of them under the folder's lock.

    `stale` are files of an earlier set that no longer belong to it: they are removed with the renames. Makes the
    folder where it is missing. Raises OSError; then no file has changed unless a rename itself failed.
    """
    token = f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, data in files.items():
            (folder / f".{name}{token}").write_bytes(data)
        with _locked(folder):
            for name in files:
                (folder / f".{name}{token}").replace(folder / name)
            for name in stale:
                (folder / name).unlink(missing_ok=True)
    finally:
        for name in files:
            (folder / f".{name}{token}").unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other writers, so that files that belong together stay one set."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: the renames are atomic one by one
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
