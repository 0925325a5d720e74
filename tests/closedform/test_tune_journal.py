"""The journal under interrupts, kills and company, and budgets that count what it holds."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm
from closedform.tuning.candidate import Candidate, canonical
from closedform.tuning.journal import Journal, JournalError, Record
from closedform.tuning.measuring import Budget, Meter
from closedform.tuning.operator_space import OperatorSpace
from closedform.tuning.trajectory import Trajectory

from .tuning_child import Bowl, searched

MI300X = catalogue.get("mi300x")
PRODUCT = Gemm(4096, 4096, 4096, dtype="bf16")


def test_a_budget_counts_what_the_journal_holds(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    short = searched(Bowl(), Budget(evaluations=20), Journal(path))
    assert (short.measurements, short.stopped) == (20, "budget")
    again = searched(Bowl(), Budget(evaluations=20), Journal(path))
    assert (again.evaluated, again.measurements, again.best_us) == (0, 20, short.best_us)


def test_a_start_is_measured_twice() -> None:
    with pytest.raises(BadInput, match="at least 2"):
        searched(Bowl(), Budget(evaluations=1))


def test_a_time_budget_ends_the_search() -> None:
    found = searched(Bowl(seconds=0.01), Budget(seconds=0.05))
    assert found.stopped == "time"
    assert found.measurements < 10


@pytest.mark.parametrize("at", [1, 2, 7, 40, 66])
def test_an_interrupt_loses_nothing(tmp_path: Path, at: int) -> None:
    """Ctrl-C at any measurement; the next run measures the rest, and comes to the same end."""
    whole = searched(Bowl())
    path = tmp_path / "journal.jsonl"
    bowl = Bowl()
    measure = bowl.measure

    def interrupted(candidate: Candidate) -> float:
        if len(bowl.calls) + 1 == at:
            raise KeyboardInterrupt
        return measure(candidate)

    bowl.measure = interrupted  # type: ignore[method-assign]
    first = searched(bowl, journal=Journal(path))
    assert first.stopped == "interrupted"
    second_bowl = Bowl()
    second = searched(second_bowl, journal=Journal(path))
    assert Counter(bowl.calls) + Counter(second_bowl.calls) == Counter(measured(whole))
    assert (second.best, second.best_us, second.measurements) == (whole.best, whole.best_us, whole.measurements)
    assert [r.latency_us for r in second.rounds] == [r.latency_us for r in whole.rounds]


def measured(found: Trajectory) -> list[str]:
    bowl = Bowl()
    assert searched(bowl).best == found.best
    return bowl.calls


def child(journal: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("tuning_child.py")
    command = [sys.executable, str(script), str(journal), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_kill_9_loses_nothing(tmp_path: Path) -> None:
    """Killed in the middle, then resumed: all that was written is used, only what was under way is measured again."""
    journal, log = tmp_path / "journal.jsonl", tmp_path / "log"
    process = child(journal, log, 0.02)
    while not log.exists() or log.read_text().count("\n") < 12:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(Journal(journal))
    assert kept >= 11
    out, _ = child(journal, log, 0).communicate()
    whole = Bowl()
    found = searched(whole)
    assert out.split() == [canonical(found.best), str(found.best_us)]
    logged = Counter(log.read_text().split())
    assert sum((logged - Counter(whole.calls)).values()) <= 1
    assert len(Journal(journal)) == found.measurements


def test_two_processes_share_a_journal(tmp_path: Path) -> None:
    journal, log = tmp_path / "journal.jsonl", tmp_path / "log"
    both = [child(journal, log, 0.003) for _ in range(2)]
    ends = [process.communicate()[0] for process in both]
    found = searched(Bowl())
    assert ends == [f"{canonical(found.best)} {found.best_us}\n"] * 2
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    keys = [(line["task"], canonical(line["candidate"]), line["repeat"]) for line in lines if "candidate" in line]
    assert len(keys) == len(set(keys)) == found.measurements


FOREIGN = [
    ("", "empty"),
    ("hello\n", "line 1"),
    ('{"journal": "another"}\n', "first line"),
    ('{"journal":"closedform tune","version":1}\n{"task":"a"', "cut off"),
    ('{"journal":"closedform tune","version":1}\n{"task":"a"}\n', "line 2"),
    ('{"journal":"closedform tune","version":1}\n[]\n', "line 2"),
    ('{"journal":"closedform tune","version":2}\n', "first line"),
    *(
        (
            '{"journal":"closedform tune","version":1}\n'
            f'{{"task":"a","candidate":{{}},"repeat":0,"latency_us":{us},"failure":null}}\n',
            "is no time",
        )
        for us in ("-1", "0", "NaN", "Infinity", "true", '"5"')
    ),
    ('{"journal":"closedform tune","version":1}\n' + "[" * 100_000 + "\n", "nested too deep"),
]


@pytest.mark.parametrize(("text", "what"), FOREIGN)
def test_a_foreign_journal_is_left_alone(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    with pytest.raises(JournalError, match=what):
        Journal(path)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("harm", ["deleted", "emptied", "full"])
def test_a_journal_that_fails_ends_the_search_with_what_it_has(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    bowl = Bowl()
    measure = bowl.measure

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def harmed(candidate: Candidate) -> float:
        if len(bowl.calls) == 9:
            if harm == "deleted":
                path.unlink()
            elif harm == "emptied":
                path.write_text("")
            else:
                monkeypatch.setattr(os, "write", full)
        return measure(candidate)

    monkeypatch.setattr(bowl, "measure", harmed)
    found = searched(bowl, journal=Journal(path))
    assert (found.stopped, found.measurements) == ("journal", 9)
    assert found.best_us is not None
    if harm != "full":
        assert not path.exists() or path.read_text() == ""


def test_another_task_is_another_measurement(tmp_path: Path) -> None:
    """Nothing is taken from a task that differs in anything that can change a winner."""
    space = OperatorSpace(PRODUCT, MI300X)
    others = (
        OperatorSpace(dataclasses.replace(PRODUCT, ldb=8192), MI300X),
        OperatorSpace(dataclasses.replace(PRODUCT, layout="NT"), MI300X),
        OperatorSpace(dataclasses.replace(PRODUCT, dtype="f16"), MI300X),
        OperatorSpace(PRODUCT, MI300X.with_cus(80)),
        OperatorSpace(PRODUCT, catalogue.get("mi325x")),
    )
    tasks = {Meter(one, Bowl()).task for one in (space, *others)}
    assert len(tasks) == len(others) + 1


def test_records_are_found_by_value() -> None:
    journal, identity = Journal(), {"op": "x"}
    identity_map: Mapping[str, object] = identity
    kept = journal.add(Record("t", {"a": 1, "b": True}, 0, 2.0), identity_map)
    assert journal.find("t", {"b": True, "a": 1}, 0) is kept
    assert journal.find("t", {"b": 1, "a": 1}, 0) is None
