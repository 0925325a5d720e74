"""The compiler's process: what ends, hangs or prints there is that compilation's alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from closedform.hw import catalogue
from closedform.operators.softmax import Softmax
from closedform.visitors import compile as compiling
from closedform.visitors.compile import CompileError, compile_source, missing_dependency
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency())),
]


def source(hw: str) -> str:
    return emit_source(derive(Softmax(4, 64), catalogue.get(hw)))


def works() -> None:
    assert compile_source(source("mi300x"), "gfx942").gfx == "gfx942"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('of its own')", "ValueError: of its own"),
        ("os.abort()", "exit status -6"),
        ("print('LLVM ERROR: out of registers'); os.abort()", "LLVM ERROR: out of registers"),
        ("os._exit(0)", "exit status 0"),
        ("print(0); print(0, file=sys.stderr)", "the source compiled no kernel"),
        ("sys.exit('enough')", "enough"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_compilation_that_fails_is_an_error_and_the_next_one_works(body: str, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        compile_source(f"import os, sys\ndef compile_only():\n    {body}\n", "gfx942")
    works()


def test_what_hangs_is_ended(tmp_path: Path) -> None:
    works()
    note = tmp_path / "pid"
    body = f"open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(CompileError, match=r"took more than 2 s"):
        compile_source(f"import os, time\ndef compile_only():\n    {body}\n", "gfx942", timeout_s=2)
    status = Path(f"/proc/{note.read_text()}/status")
    for _ in range(100):  # until the kernel has taken notice
        if not status.exists() or "zombie" in status.read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("it sleeps on")
    works()


def test_a_compiler_that_has_died_is_replaced() -> None:
    works()
    process = compiling._compiler().process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    works()
    assert compiling._compiler().process is not process


def test_an_interrupted_compilation_answers_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiling.select, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            works()
    works()


def test_the_environment_is_that_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os\ndef compile_only():\n    raise ValueError(os.environ.get('CLOSEDFORM_TEST'))\n"
    for value in ("first", "second"):
        monkeypatch.setenv("CLOSEDFORM_TEST", value)
        with pytest.raises(CompileError, match=f"ValueError: {value}"):
            compile_source(text, "gfx942")


def test_targets_in_turn_give_what_each_gives_alone() -> None:
    first = {hw: compile_source(source(hw), catalogue.get(hw).gfx).isa for hw in ("mi100", "mi355x", "mi300x")}
    compiling._compiler().end()
    for hw in ("mi300x", "mi100", "mi355x"):
        assert compile_source(source(hw), catalogue.get(hw).gfx).isa == first[hw]


def test_threads_take_turns() -> None:
    targets = ("mi100", "mi210", "mi300x", "mi355x")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda hw: compile_source(source(hw), catalogue.get(hw).gfx).gfx, targets))
    assert found == [catalogue.get(hw).gfx for hw in targets]


def test_a_fork_has_a_compiler_of_its_own_and_none_outlives_its_process() -> None:
    program = f"""
import os
from closedform.visitors import compile as compiling
text = {source("mi300x")!r}
first = compiling.compile_source(text, "gfx942").isa
if not (fork := os.fork()):
    assert compiling.compile_source(text, "gfx942").isa == first
    os._exit(0)
assert os.waitpid(fork, 0)[1] == 0
assert compiling.compile_source(text, "gfx942").isa == first
print(compiling._compiler().process.pid)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
    assert done.stderr == ""
