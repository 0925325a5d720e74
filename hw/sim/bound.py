"""The least clocks of a CU for what was executed: the busiest of its pipes, at the occupancy of the binary."""

from __future__ import annotations

from typing import Any

from ..occupancy import occupancy_of
from .counts import Counter
from .decode import Code
from .matrix import atom_of

__all__ = ["cu_bound"]

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
    kernel = code.kernel
    matrix = vector = serial = 0
    for op, times in zip(code.ops, counter.executed.tolist(), strict=True):
        if op.kind == "mfma":
            overlap = atom_of(op.ins, kernel.target).coexec_valu_clocks
            matrix += times * op.clocks
            vector += times * (op.clocks - overlap if overlap is not None else _ISSUE)
        elif op.kind == "valu":
            vector += times * op.clocks
        serial += times * (op.clocks if op.kind in ("mfma", "valu") else _ISSUE)
    sums = counter.region(slice(0, len(code.ops)))
    lines = sums["segments_64"] if hw.l1_line_bytes == 64 else sums["segments_128"]
    arch, acc = _registers(code)
    occupancy = occupancy_of(hw, waves_per_workgroup, arch, acc, lds_bytes)
    resident = max(occupancy.waves_per_simd, 1.0)
    pipes = {
        "matrix": matrix / hw.simds_per_cu,
        "valu": vector / hw.simds_per_cu,
        "lds": float(sums["lds_cycles"]),
        "memory": lines * hw.l1_line_bytes / hw.l1_bytes_per_clk,
    }
    each = {name: round(value / max(workgroups, 1), 1) for name, value in pipes.items()}
    lone = round(serial / hw.simds_per_cu / resident / max(workgroups, 1), 1)
    binds = max(each, key=lambda name: each[name])
    top = each[binds]
    return {
        "clocks_per_workgroup": each,
        "binds": binds,
        "bound_clocks": top,
        "matrix_share": round(each["matrix"] / top, 4) if top else 0.0,
        "serial_clocks_at_occupancy": lone,
        "workgroups_per_cu": occupancy.workgroups_per_cu,
        "waves_per_simd": occupancy.waves_per_simd,
        "occupancy_limit": occupancy.limit,
        "gpu": hw.name,
    }


def _registers(code: Code) -> tuple[int, int]:
    """ArchVGPRs and AccVGPRs of the binary, from its metadata."""
    fields = code.kernel.metadata
    total, acc = int(fields.get("vgpr_count", code.rows)), int(fields.get("agpr_count", 0))
    if code.kernel.target == "gfx908":
        return total, acc
    return max(total - acc, 1), acc
