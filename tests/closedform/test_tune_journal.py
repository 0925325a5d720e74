"""The journal under interrupts, kills and company, and budgets that count what it holds."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from closedform.hw import catalogue
from closedform.hw.errors import BadInput, ClosedformError, NoDevice
from closedform.operators.gemm import Gemm
from closedform.tuning.candidate import Candidate, canonical
from closedform.tuning.descent import descend
from closedform.tuning.grid import one_shot
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


@pytest.mark.skipif(importlib.util.find_spec("fcntl") is None, reason="no locks of bytes here")
def test_processes_on_one_journal_share_the_work(tmp_path: Path) -> None:
    """Nothing is measured twice, and both measure: none follows the other candidate by candidate."""
    journal, logs = tmp_path / "journal.jsonl", [tmp_path / "log0", tmp_path / "log1"]
    both = [child(journal, log, 0.02) for log in logs]
    ends = [process.communicate()[0] for process in both]
    whole = Bowl()
    found = searched(whole)
    assert ends == [f"{canonical(found.best)} {found.best_us}\n"] * 2
    logged = [Counter(log.read_text().split()) if log.exists() else Counter() for log in logs]
    assert logged[0] + logged[1] == Counter(whole.calls)
    assert min(counter.total() for counter in logged) >= found.measurements // 4


def test_a_claim_is_of_one_process_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    here = Journal(path)
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom closedform.tuning.journal import Journal\n"
        "with Journal(Path(sys.argv[1])).claimed('t', {'a': 1}, 0, wait=False) as mine:\n"
        "    print(mine, flush=True)\n    time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    with here.claimed("t", {"a": 1}, 0, wait=False) as mine:
        assert not mine
    with here.claimed("t", {"a": 2}, 0, wait=False) as mine:
        assert mine
    other.send_signal(signal.SIGKILL)
    with here.claimed("t", {"a": 1}, 0, wait=True) as mine:
        assert mine
    other.communicate()


def test_what_another_process_measures_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a budget too: the first candidates are those that it is spent on, in whichever order."""
    journal, tried = Journal(tmp_path / "journal.jsonl"), []

    @contextlib.contextmanager
    def claimed(task: str, candidate: Candidate, repeat: int, wait: bool) -> Iterator[bool]:
        tried.append((candidate, wait))
        yield wait or candidate["a"] != 1

    monkeypatch.setattr(journal, "claimed", claimed)
    bowl, alone = Bowl(), Bowl()
    found = searched(bowl, Budget(20), journal)
    other = searched(alone, Budget(20))
    assert sorted(bowl.calls) == sorted(alone.calls)
    assert (found.best, found.best_us, found.stopped) == (other.best, other.best_us, "budget")
    assert [candidate["a"] for candidate, wait in tried[2:] if wait] == [1] * 8


@pytest.mark.parametrize("error", [NoDevice("the GPU is gone"), BadInput("the client changed")])
@pytest.mark.parametrize("grid", [False, True])
def test_an_evaluator_that_ends_half_way_ends_the_search_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ClosedformError, grid: bool
) -> None:
    bowl = Bowl()
    measure = bowl.measure

    def gone(candidate: Candidate) -> float:
        if len(bowl.calls) == 9:
            raise error
        return measure(candidate)

    monkeypatch.setattr(bowl, "measure", gone)
    meter = Meter(bowl, bowl, Journal(tmp_path / "journal.jsonl"))
    found = one_shot(meter) if grid else descend(meter)
    assert (found.stopped, found.measurements) == ("evaluator", 9)
    assert meter.broken is error
    assert found.best_us is not None


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
