"""Static MFMA share: how much of the main loop's time the matrix core works, before anything runs.

llvm-mca's model of an AMDGPU counts issue slots of one wave; on CDNA a slot is 4 clocks, since a wave of 64 lanes takes
4 clocks on 16 lanes (the matrix calculator's cycles are exactly 4 times LLVM's throughput for every MFMA of gfx908,
gfx90a and gfx942). The share is the MFMAs' clocks over those of llvm-mca, for the blocks that every iteration of the
loop executes. It holds for a lone wave whose memory answers in llvm-mca's fixed latencies; llvm-mca knows no
bandwidth, no bank conflicts and no cost of branches.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .hw.errors import BadInput
from .hw.sim.bound import issue_clocks
from .hw.sim.decode import Code
from .hw.sim.flow import NaturalLoop, natural_loops
from .hw.sim.matrix import atom_of

__all__ = ["SLOT_CLOCKS", "Path", "StaticShare", "find_mca", "main_loop", "static_share"]

#: Clocks of one llvm-mca cycle.
SLOT_CLOCKS = 4
#: Iterations of the first run; the second has twice as many, and their difference is free of fill and drain.
ITERATIONS = 100
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Path:
    """One way through the loop, clocks of a SIMD for an iteration of one wave.

    matrix_clocks: of its MFMAs; issue_clocks: of vector instructions and of MFMAs that keep them out; mca_clocks:
    llvm-mca's, None without it. share = matrix / mca; multiwave_share = matrix / max(matrix, issue), what many waves
    that overlap perfectly come to.
    """

    instructions: int
    mfmas: int
    matrix_clocks: int
    issue_clocks: int
    mca_clocks: float | None
    share: float | None
    multiwave_share: float


@dataclass(frozen=True, slots=True)
class StaticShare:
    """The loop with the most MFMA work. `always` leaves conditional blocks out, `all_blocks` has them."""

    loop: str
    line: int
    conditional_blocks: int
    always: Path
    all_blocks: Path
    mca: str | None
    note: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def find_mca() -> str | None:
    """llvm-mca: $LLVM_MCA, llvm-mca-22 or llvm-mca; None where there is none.

    Raises BadInput where $LLVM_MCA names no program.
    """
    if wanted := os.environ.get("LLVM_MCA"):
        if (found := shutil.which(wanted)) is None:
            raise BadInput(f"LLVM_MCA={wanted} is not a program")
        return found
    return shutil.which("llvm-mca-22") or shutil.which("llvm-mca")


def main_loop(code: Code) -> NaturalLoop | None:
    """The innermost loop with the most MFMA work; None where no loop has an MFMA."""

    def flops(loop: NaturalLoop) -> int:
        ops = [code.ops[n] for n in loop.all if code.ops[n].kind == "mfma"]
        return sum(atom_of(op.ins, code.kernel.target).flops for op in ops)

    best = max((loop for loop in natural_loops(code) if loop.innermost), key=flops, default=None)
    return best if best is not None and flops(best) else None


def static_share(code: Code) -> StaticShare | None:
    """The static MFMA share of the main loop; None for a kernel without one."""
    loop = main_loop(code)
    if loop is None:
        return None
    mca = find_mca()
    note = None if mca is not None else "llvm-mca is not installed: install LLVM's tools, or set LLVM_MCA"
    always, complaint = _path(code, loop.always, mca)
    whole = always
    if loop.conditional_blocks:
        whole, other = _path(code, loop.all, mca)
        complaint = complaint or other
    line = code.ops[loop.start].ins.line
    return StaticShare(loop.label, line, loop.conditional_blocks, always, whole, mca, note or complaint)


def _path(code: Code, numbers: Sequence[int], mca: str | None) -> tuple[Path, str | None]:
    ops = [code.ops[n] for n in numbers]
    matrix = sum(op.clocks for op in ops if op.kind == "mfma")
    issue = sum(issue_clocks(op, code.kernel.target) for op in ops)
    clocks, note = (None, None) if mca is None else _mca_clocks(mca, code, numbers)
    path = Path(
        instructions=len(ops),
        mfmas=sum(op.kind == "mfma" for op in ops),
        matrix_clocks=matrix,
        issue_clocks=issue,
        mca_clocks=clocks,
        share=None if not clocks else round(matrix / clocks, 4),
        multiwave_share=round(matrix / max(matrix, issue, 1), 4),
    )
    return path, note


def _mca_clocks(mca: str, code: Code, numbers: Sequence[int]) -> tuple[float | None, str | None]:
    """Clocks of one iteration in the steady state, and what has to be said about them."""
    text = _mca_text(code, numbers)
    first, note = _mca_cycles(mca, code.kernel.target, text, ITERATIONS)
    second, _ = _mca_cycles(mca, code.kernel.target, text, 2 * ITERATIONS)
    if first is None or second is None:
        return None, note
    return round((second - first) / ITERATIONS * SLOT_CLOCKS, 1), note


def _mca_text(code: Code, numbers: Sequence[int]) -> str:
    """The instructions without branches, waits of s_nop written out.

    LLVM times an f8f6f4 MFMA as if its operands had 4 bits. One that takes twice as long is followed by a copy that
    adds to zero: the matrix core's time is then right, and users of the result wait for the copy.
    """
    lines = []
    for op in (code.ops[n] for n in numbers):
        if op.flow in ("branch", "cbranch", "end"):
            continue
        if op.ins.mnemonic == "s_nop":
            lines += ["s_nop 0"] * (int(op.ins.operands[0], 0) + 1)
            continue
        lines.append(op.ins.text)
        if op.ins.mnemonic.removesuffix("_e64").endswith("f8f6f4"):
            atom = atom_of(op.ins, code.kernel.target)
            if {atom.dtype_a.bits, atom.dtype_b.bits} & {8}:
                lines.append(_with_zero(op.ins.text))
    return "\n".join(lines) + "\n"


def _with_zero(text: str) -> str:
    """The MFMA with C = 0."""
    parts = text.split(",")
    parts[3] = re.sub(r"^\s*\S+", " 0", parts[3])
    return ",".join(parts)


def _mca_cycles(mca: str, target: str, text: str, iterations: int) -> tuple[int | None, str | None]:
    """Total cycles, and the first complaint; what the assembler refuses is left out in a second try."""
    command = [mca, "-mtriple=amdgcn", f"-mcpu={target}", f"-iterations={iterations}"]
    command += ["-instruction-info=0", "-resource-pressure=0"]
    complaint = None
    for extra in ([], ["-skip-unsupported-instructions=parse-failure"]):
        try:
            done = subprocess.run(
                [*command, *extra], input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"llvm-mca failed: {error}"
        total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
        if total is not None:
            return int(total.group(1)), complaint
        complaint = f"llvm-mca: {(done.stderr.strip().splitlines() or ['no cycles'])[0]}"
    return None, complaint
