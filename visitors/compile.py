"""Compile emitted source with FlyDSL for a target, without a GPU and without a linker.

Every compilation runs in a process of its own: LLVM reports some errors by ending the process. The pipeline stops at
the assembly text, which carries the kernel descriptor and the resource metadata.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from closedform.hw.errors import ClosedformError, MissingDependency

__all__ = ["CompileError", "Compiled", "compile_source", "installed_version", "missing_dependency", "parse_isa"]

#: Seconds until a compilation counts as stuck.
TIMEOUT_S = 300.0


class CompileError(ClosedformError):
    """FlyDSL or LLVM refused the source; the message ends with what they printed last."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Assembly and the resources that its metadata states.

    vgpr_total is the metadata's vgpr_count: arch and acc together on a unified file, the larger one on a split file;
    agpr the AccVGPRs of it. Spills are counts of registers, lds_bytes and scratch_bytes per workgroup and lane.
    """

    isa: str
    kernel_name: str
    gfx: str
    vgpr: int
    agpr: int
    vgpr_total: int
    sgpr: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    threads: int


def installed_version(package: str) -> str | None:
    """The version of an installed package, read without importing it; None where it is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_dependency() -> str | None:
    """What has to be installed before anything compiles, as an install line; None when all is there."""
    if importlib.util.find_spec("flydsl") is None:
        return "flydsl is not installed: pip install flydsl==0.5.0"
    if importlib.util.find_spec("torch") is None:
        return (
            "torch, which flydsl imports, is not installed: pip install torch==2.13.0 "
            "(the CPU build compiles; on a GPU machine install ROCm's build of torch instead)"
        )
    return None


def compile_source(text: str, gfx: str, timeout_s: float = TIMEOUT_S) -> Compiled:
    """Assembly and resources of an emitted file for the target.

    Raises MissingDependency without flydsl or torch, CompileError when the compiler refuses, dies or hangs.
    """
    missing = missing_dependency()
    if missing is not None:
        raise MissingDependency(missing)
    with tempfile.TemporaryDirectory(prefix="closedform-") as folder:
        source, isa, log = (Path(folder) / name for name in ("kernel.py", "kernel.s", "log"))
        source.write_text(text, encoding="utf-8")
        environment = dict(os.environ, COMPILE_ONLY="1", FLYDSL_GPU_ARCH=gfx, ARCH=gfx)
        environment |= {"FLYDSL_RUNTIME_ENABLE_CACHE": "0", "HOME": folder}
        request = {"source": str(source), "output": str(isa), "log": str(log), "environment": environment}
        try:
            status = _compiler().ask(request, timeout_s)
        except TimeoutError:
            raise CompileError(f"compiling for {gfx} took more than {timeout_s:g} s") from None
        if status != 0 or not isa.exists():
            raise CompileError(f"compiling for {gfx} failed: {_last_words(log, status)}")
        return parse_isa(isa.read_text(encoding="utf-8"))


class _Compiler:
    """The child process that forks for each compilation; one of a process, used by one thread at a time."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        child = Path(__file__).with_name("compile_child.py")
        # Idle threads of a BLAS would not survive the fork.
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", COMPILE_ONLY="1")
        self.process = subprocess.Popen(
            [sys.executable, str(child)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self.lock = threading.Lock()
        atexit.register(self.end)

    @property
    def usable(self) -> bool:
        return self.parent == os.getpid() and self.process.poll() is None

    def ask(self, request: Mapping[str, object], timeout_s: float) -> int:
        """Exit status of the fork, negative for a signal. TimeoutError; an answer that nobody waits for ends it all."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.lock:
            try:
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
                if not select.select([self.process.stdout], [], [], timeout_s)[0]:
                    raise TimeoutError
                return int(self.process.stdout.readline() or self.process.wait() or 1)
            except BaseException as error:
                self.end()
                if isinstance(error, BrokenPipeError):
                    return self.process.returncode or 1
                raise

    def end(self) -> None:
        """End the child and whatever it has forked."""
        if self.parent != os.getpid():
            return
        atexit.unregister(self.end)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


_running: list[_Compiler] = []
_starting = threading.Lock()


def _compiler() -> _Compiler:
    """The compiler of this process, started where there is none that lives."""
    with _starting:
        if not (_running and _running[-1].usable):
            for dead in _running:
                dead.end()
            _running[:] = [_Compiler()]
        return _running[-1]


def _last_words(log: Path, status: int) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"error|LLVM ERROR|Error:", line, re.IGNORECASE)]
    words = (named or lines)[-1:] or [f"exit status {status}"]
    return words[0][:400]


def parse_isa(isa: str) -> Compiled:
    """Resources of the kernels of an AMDGPU assembly text, from its metadata: of several, the most that one takes.

    `kernel_name` is the first one's.
    """
    metadata = isa[isa.find("amdhsa.kernels:") :]

    def most(key: str, of: Callable[[list[int]], int] = max) -> int:
        found = [int(value) for value in re.findall(rf"^\s*-?\s*\.{key}:\s*(\d+)", metadata, re.MULTILINE)]
        if not found:
            raise CompileError(f"the assembly has no {key} in its metadata")
        return of(found)

    name = re.search(r"^    \.name:\s*(\S+)", metadata, re.MULTILINE)
    target = re.search(r"amdgcn-amd-amdhsa-\w*-(gfx\w+)", isa)
    if name is None or target is None:
        raise CompileError("the assembly names no kernel or no target")
    total, agpr = most("vgpr_count"), most("agpr_count")
    unified = re.search(r"\.amdhsa_accum_offset", isa) is not None
    return Compiled(
        isa=isa,
        kernel_name=name.group(1),
        gfx=target.group(1),
        vgpr=total - agpr if unified else total,
        agpr=agpr,
        vgpr_total=total,
        sgpr=most("sgpr_count"),
        vgpr_spills=most("vgpr_spill_count", sum),
        sgpr_spills=most("sgpr_spill_count", sum),
        lds_bytes=most("group_segment_fixed_size"),
        scratch_bytes=most("private_segment_fixed_size"),
        threads=most("max_flat_workgroup_size"),
    )
