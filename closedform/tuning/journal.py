"""Every measurement, kept: a file of JSON lines that several processes may share.

A line is written by one call under a lock and synced, so that it is there whole or not at all. The first line names the
format; a task's identity is one line, and its measurements refer to it by its digest.

What a process measures now it has claimed: one byte of an empty file beside the journal, chosen by the measurement, is
locked. The system frees it when the process ends, however that is, so that no claim outlives its process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closedform.hw.errors import BadInput
from closedform.interop.tool import is_time

from .candidate import Candidate, canonical

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

__all__ = ["Journal", "JournalError", "Record", "task_digest"]

#: Hexadecimal digits of a digest that choose the byte of a claim: an offset of 60 bits.
CLAIM_DIGITS = 15

_HEADER = {"journal": "closedform tune", "version": 1}


class JournalError(BadInput):
    """A file that is no journal of ours, or one that was cut off; it is left as it is."""


@dataclass(frozen=True, slots=True)
class Record:
    """One measurement: microseconds, or the reason why there are none. `repeat` counts independent measurements."""

    task: str
    candidate: Candidate
    repeat: int
    latency_us: float | None
    failure: str | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.task, canonical(self.candidate), self.repeat


def task_digest(identity: Mapping[str, object]) -> str:
    """Short name of a task.

    >>> task_digest({"op": "gemm"}) == task_digest({"op": "gemm"})
    True
    """
    return hashlib.sha256(canonical(identity).encode()).hexdigest()[:16]


class Journal:
    """Measurements by task, candidate and repeat; without a path they are kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        """Open, or create whole. Raises JournalError for a foreign or truncated file, which stays untouched."""
        self.path = path
        self._records: dict[tuple[str, str, int], Record] = {}
        self._tasks: dict[str, Any] = {}
        self._read_bytes = 0
        self._lines = 0
        self._claims: int | None = None
        if path is None:
            return
        try:
            _create(path)
            self.refresh()
        except OSError as error:
            raise JournalError(f"cannot open {path}: {error.strerror}") from None
        if not self._lines:
            raise JournalError(f"{path}: empty, not even the first line of a journal; the file is left as it is")

    def __len__(self) -> int:
        return len(self._records)

    def find(self, task: str, candidate: Candidate, repeat: int) -> Record | None:
        """The measurement, where this process or another one has written it."""
        return self._records.get((task, canonical(candidate), repeat))

    def of_task(self, task: str) -> tuple[Record, ...]:
        """Measurements of a task in the order in which they were read."""
        return tuple(record for record in self._records.values() if record.task == task)

    def add(self, record: Record, identity: Mapping[str, object]) -> Record:
        """Write the measurement; if another process was faster, its measurement is the one that counts."""
        if self.path is None:
            return self._records.setdefault(record.key, record)
        with self._held(self.path) as handle:
            self._take(handle)
            if record.key not in self._records:
                lines = b""
                if record.task not in self._tasks:
                    lines += _line({"task": record.task, "identity": dict(identity)})
                lines += _line(
                    {
                        "task": record.task,
                        "candidate": dict(record.candidate),
                        "repeat": record.repeat,
                        "latency_us": record.latency_us,
                        "failure": record.failure,
                    }
                )
                _append(handle, lines)
                self._take(handle)
        return self._records[record.key]

    def refresh(self) -> None:
        """Read what other processes have written since."""
        if self.path is not None:
            with self._held(self.path) as handle:
                self._take(handle)

    @contextlib.contextmanager
    def claimed(self, task: str, candidate: Candidate, repeat: int, wait: bool) -> Iterator[bool]:
        """Whether no other process measures this until the end: with `wait` it is waited for, else False at once.

        Always True where there is no file, or where the system has no such locks.
        """
        handle = self._claims_file()
        if handle is None or fcntl is None:
            yield True
            return
        key = " ".join(map(str, Record(task, candidate, repeat, None).key))
        place = int(hashlib.sha256(key.encode()).hexdigest()[:CLAIM_DIGITS], 16)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks of bytes
            yield True
            return
        try:
            yield True
        finally:
            fcntl.lockf(handle, fcntl.LOCK_UN, 1, place)

    def _claims_file(self) -> int | None:
        """The open file whose bytes are claims: opened once, since closing it anywhere would free all claims."""
        if self._claims is None and self.path is not None:
            with contextlib.suppress(OSError):
                handle = os.open(self.path.with_name(f".{self.path.name}.claims"), os.O_RDWR | os.O_CREAT, 0o666)
                self._claims = handle
                weakref.finalize(self, os.close, handle)
        return self._claims

    @contextlib.contextmanager
    def _held(self, path: Path) -> Iterator[int]:
        """The locked file; JournalError for what the system refuses."""
        try:
            with _locked(path) as handle:
                yield handle
        except OSError as error:
            raise JournalError(f"cannot use {path}: {error.strerror}") from None

    def _take(self, handle: int) -> None:
        """Read the lines behind those that are known."""
        if os.lseek(handle, 0, os.SEEK_END) < self._read_bytes:
            raise JournalError(f"{self.path}: shorter than it was: another program has emptied or cut it")
        os.lseek(handle, self._read_bytes, os.SEEK_SET)
        with os.fdopen(os.dup(handle), "rb") as stream:
            data = stream.read()
        if data and not data.endswith(b"\n"):
            raise JournalError(f"{self.path}: the last line is cut off; the file is left as it is")
        for line in data.splitlines():
            self._lines += 1
            self._parse(line)
        self._read_bytes += len(data)

    def _parse(self, line: bytes) -> None:
        try:
            values = json.loads(line)
            if self._lines == 1:
                if values != _HEADER:
                    raise ValueError("not the first line of a journal of this version")
            elif "identity" in values:
                self._tasks[values["task"]] = values["identity"]
            else:
                record = Record(**values)
                if type(record.repeat) is not int or not isinstance(record.candidate, dict):
                    raise ValueError("not a measurement")
                if record.latency_us is not None and not is_time(record.latency_us):
                    raise ValueError(f"latency_us {record.latency_us!r} is no time")
                self._records.setdefault(record.key, record)
        except RecursionError:
            raise JournalError(f"{self.path}, line {self._lines}: nested too deep; the file is left as it is") from None
        except KeyError as error:
            raise JournalError(f"{self.path}, line {self._lines}: no {error}; the file is left as it is") from None
        except TypeError:
            raise JournalError(
                f"{self.path}, line {self._lines}: neither a task nor a measurement; the file is left as it is"
            ) from None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise JournalError(f"{self.path}, line {self._lines}: no JSON; the file is left as it is") from None
        except ValueError as error:
            raise JournalError(f"{self.path}, line {self._lines}: {error}; the file is left as it is") from None


def _append(handle: int, lines: bytes) -> None:
    """Write the lines at the end and sync them; OSError, and the file as it was, where not all of them fit."""
    end = os.lseek(handle, 0, os.SEEK_END)
    try:
        if os.write(handle, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(handle, end)
        raise
    os.fsync(handle)


def _line(values: dict[str, Any]) -> bytes:
    return (canonical(values) + "\n").encode()


def _create(path: Path) -> None:
    """The file with its first line, unless it exists: written under another name and linked, so never without it."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(_line(_HEADER))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The open file, held against other processes."""
    handle = os.open(path, os.O_RDWR)
    try:
        if fcntl is not None:  # else not a POSIX system: lines are written by one call each
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
