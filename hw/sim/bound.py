"""The least clocks of a CU for what was executed: the busiest of its pipes, at the occupancy of the binary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..occupancy import occupancy_of
from .counts import Counter
from .decode import Code
from .flow import natural_loops
from .matrix import atom_of
from .op import Op

__all__ = ["cu_bound", "issue_clocks", "registers_of"]

#: Clocks that one wave keeps its SIMD's issue for an instruction that is not a vector one.
_ISSUE = 4


def cu_bound(code: Code, counter: Counter, workgroups: int, waves_per_workgroup: int, lds_bytes: int) -> dict[str, Any]:
    """Clocks per workgroup of each pipe of a CU, if pipes overlap perfectly, and which one binds.

    matrix: MFMA cycles / SIMDs. valu: vector issue / SIMDs, with the clocks for which an MFMA of the same
    SIMD keeps it out. lds: LDS cycles from the addresses. memory: lines of the L1 / its rate.
    `serial_clocks_at_occupancy` is the other extreme: a wave overlaps nothing of its own, and the waves that a SIMD
    holds at once overlap perfectly.
    """
    hw = counter.hw
    serial = sum(
        times * (op.clocks if op.kind in ("mfma", "valu") else _ISSUE)
        for op, times in zip(code.ops, counter.executed.tolist(), strict=True)
    )
    arch, acc = registers_of(code)
    occupancy = occupancy_of(hw, waves_per_workgroup, arch, acc, lds_bytes)
    resident = max(occupancy.waves_per_simd, 1.0)
    lone = round(serial / hw.simds_per_cu / resident / max(workgroups, 1), 1)
    return {
        **_busiest(code, counter, range(len(code.ops)), workgroups),
        "serial_clocks_at_occupancy": lone,
        "workgroups_per_cu": occupancy.workgroups_per_cu,
        "waves_per_simd": occupancy.waves_per_simd,
        "occupancy_limit": occupancy.limit,
        "gpu": hw.name,
        "loops": [
            {"label": loop.label, **_busiest(code, counter, loop.all, workgroups)} for loop in natural_loops(code)
        ],
    }


def issue_clocks(op: Op, target: str) -> int:
    """Clocks for which an instruction keeps vector issue of its SIMD: its own, or those of an MFMA without overlap."""
    if op.kind == "mfma":
        overlap = atom_of(op.ins, target).coexec_valu_clocks
        return op.clocks - overlap if overlap is not None else _ISSUE
    return op.clocks if op.kind == "valu" else 0


def _busiest(code: Code, counter: Counter, where: Sequence[int], workgroups: int) -> dict[str, Any]:
    """Clocks per workgroup that some instructions takes on each pipe, and the busiest pipe."""
    hw = counter.hw
    sums = counter.region(where)
    times = ((code.ops[n], int(counter.executed[n])) for n in where)
    lines = sums["segments_64"] if hw.l1_line_bytes == 64 else sums["segments_128"]
    pipes = {
        "matrix": sums["mfma_cycles"] / hw.simds_per_cu,
        "valu": sum(n * issue_clocks(op, code.kernel.target) for op, n in times if n) / hw.simds_per_cu,
        "lds": float(sums["lds_cycles"]),
        "memory": lines * hw.l1_line_bytes / hw.l1_bytes_per_clk,
    }
    each = {name: round(value / max(workgroups, 1), 1) for name, value in pipes.items()}
    binds = max(each, key=lambda name: each[name])
    return {
        "clocks_per_workgroup": each,
        "binds": binds,
        "bound_clocks": each[binds],
        "matrix_share": round(each["matrix"] / each[binds], 4) if each[binds] else 0.0,
    }


def registers_of(code: Code) -> tuple[int, int]:
    """ArchVGPRs and AccVGPRs of the binary, from its metadata."""
    fields = code.kernel.metadata
    total, acc = int(fields.get("vgpr_count", code.rows)), int(fields.get("agpr_count", 0))
    if code.kernel.target == "gfx908":
        return total, acc
    return max(total - acc, 1), acc
