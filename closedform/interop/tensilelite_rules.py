"""What TensileLite refuses of a solution's parameters, by their full names.

A parameter that is absent is unknown: no rule is broken by it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from .rules import Rule

__all__ = ["READ_VALID", "RULES", "VALID", "Solution", "invalid_values"]

_SOURCE = "rejections of TensileLite's SolutionStructs.py"
_TUNING = "rejections that dominate tuning logs of gfx942 and gfx950"
#: Waves of a workgroup that Stream-K kernels need.
STREAM_K_WAVES = 4
#: Bytes that one lane's access to memory or LDS moves at most.
ACCESS_BYTES = 16
ARCH_REGISTERS = 256
_READ_WIDTHS = (-2, -1, 1, 2, 3, 4, 6, 8, 16)
_WIDTHS = (-1, 1, 2, 3, 4, 6, 8)
#: Libraries hold any multiple of 64 bytes.
_PAD_BLOCKS = frozenset((-1, 0, *range(64, 4097, 64)))
_PADS = (-1, 0, 1, 2, 3, 4, 8, 16, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameters of a solution with what else the rules look at.

    `layout` are the column-major letters of A and B; `num_cus` the compute units of the target; `elem_bytes` the sizes
    of A and B as stored, empty where they are not known.
    """

    parameters: Mapping[str, Any]
    layout: str
    num_cus: int
    elem_bytes: tuple[float, ...] = ()

    def get(self, name: str) -> Any:
        return self.parameters.get(name)


def _along_k(solution: Solution, operand: int) -> bool:
    """Whether k is contiguous in the operand: A as T, B as N."""
    return solution.layout[operand] == "TN"[operand]


def _unroll_major(solution: Solution, operand: int) -> bool | None:
    """Whether the LDS image of the operand has k contiguous; None where TransposeLDS is unknown or left to the tool."""
    transpose = solution.get("TransposeLDS")
    if transpose is None or transpose < 0:
        return None
    return transpose == 2 or (transpose == 1 and _along_k(solution, operand))


def _direct(solution: Solution) -> tuple[bool, bool]:
    both = solution.get("DirectToLds") or 0
    if isinstance(both, str):
        return "A" in both, "B" in both
    return tuple(bool(both or solution.get(f"DirectToLds{name}")) for name in "AB")  # type: ignore[return-value]


def _direct_order(solution: Solution) -> bool:
    orders = (_unroll_major(solution, operand) for operand in range(2))
    return any(
        direct and order is not None and order == (not _along_k(solution, operand))
        for operand, (direct, order) in enumerate(zip(_direct(solution), orders, strict=True))
    )


def _waves(solution: Solution) -> int | None:
    group = solution.get("MIWaveGroup")
    return group[0] * group[1] if group else None


def _vector_widths(solution: Solution) -> bool:
    tile = solution.get("MIWaveTile")
    if not tile:
        return False
    widths = (solution.get("VectorWidthA") or 0, solution.get("VectorWidthB") or 0)
    return any(width > 0 and count % width for count, width in zip(tile, widths, strict=True))


def _wide(solution: Solution) -> bool:
    names = ("GlobalReadVectorWidthA", "GlobalReadVectorWidthB")
    sizes = solution.elem_bytes
    return any((solution.get(name) or 0) * size > ACCESS_BYTES for name, size in zip(names, sizes, strict=False))


def _chiplets(solution: Solution) -> bool:
    count, group = solution.get("WorkGroupMappingXCC"), solution.get("WorkGroupMappingXCCGroup")
    shared = solution.num_cus if group is None or group < 0 else group
    return count is not None and count > 0 and shared % count > 0


def _both_mappings(solution: Solution) -> bool:
    return (solution.get("WorkGroupMappingXCC") or 0) > 1 and (solution.get("StreamKXCCMapping") or 0) > 0


def _accumulators(solution: Solution) -> bool:
    tile, instruction = solution.get("MIWaveTile"), solution.get("MatrixInstruction")
    if not tile or not instruction:
        return False
    m, n, _, blocks = instruction[:4]
    return bool(tile[0] * tile[1] * m * n * blocks // 64 > ARCH_REGISTERS)


#: Values that TensileLite takes, of parameters that an export or a tuning round sets.
VALID: Mapping[str, frozenset[Any]] = {
    "1LDSBuffer": frozenset((-1, 0, 1)),
    "DepthU": frozenset(range(2, 1025)),
    "DirectToLds": frozenset((0, 1)),
    "GlobalReadVectorWidthA": frozenset(_READ_WIDTHS),
    "GlobalReadVectorWidthB": frozenset(_READ_WIDTHS),
    "GlobalSplitU": frozenset(range(1025)),
    "GlobalSplitUAlgorithm": frozenset(("SingleBuffer", "MultipleBuffer", "MultipleBufferSingleKernel")),
    "LdsBlockSizePerPadA": _PAD_BLOCKS,
    "LdsBlockSizePerPadB": _PAD_BLOCKS,
    "LdsPadA": frozenset(_PADS),
    "LdsPadB": frozenset(_PADS),
    "LocalReadVectorWidth": frozenset((-1, *range(1, 17))),
    "PrefetchGlobalRead": frozenset((0, 1, 2)),
    "PrefetchLocalRead": frozenset(range(129)),
    "ScheduleIterAlg": frozenset((0, 1, 2, 3)),
    "SourceSwap": frozenset((0, 1)),
    "StaggerU": frozenset((0, 2, 4, 8, 16, 32, 64)),
    "StoreVectorWidth": frozenset(_WIDTHS),
    "StreamK": frozenset(range(6)),
    "TransposeLDS": frozenset((-1, 0, 1, 2)),
    "VectorWidthA": frozenset(_WIDTHS),
    "VectorWidthB": frozenset(_WIDTHS),
    "WorkGroupMapping": frozenset(range(-1024, 1025)),
    "WorkGroupMappingXCC": frozenset((1, 2, 4, 8, 16, 32)),
}


#: The same of kernels that are read: libraries have some that deal tiles to every compute unit.
READ_VALID: Mapping[str, frozenset[Any]] = {**VALID, "WorkGroupMappingXCC": frozenset(range(1, 1025))}


def invalid_values(parameters: Mapping[str, Any], valid: Mapping[str, frozenset[Any]] = VALID) -> tuple[str, ...]:
    """Parameters whose value TensileLite does not take, among those that `valid` knows."""
    known = ((name, value) for name, value in parameters.items() if name in valid and value is not None)
    return tuple(name for name, value in known if not isinstance(value, Hashable) or value not in valid[name])


RULES: tuple[Rule[Solution], ...] = (
    Rule(
        "split without code",
        "GlobalSplitU 0 needs StreamK other than 0",
        _TUNING,
        lambda s: s.get("GlobalSplitU") == 0 and s.get("StreamK") == 0,
        since="2026",
    ),
    Rule(
        "one buffer and direct loads",
        "DirectToLds needs 1LDSBuffer 0",
        _TUNING,
        lambda s: s.get("1LDSBuffer") == 1 and any(_direct(s)),
        since="2026",
    ),
    Rule(
        "transposed LDS of NT",
        "TransposeLDS 1 needs an operand with k contiguous",
        _TUNING,
        lambda s: s.get("TransposeLDS") == 1 and s.layout == "NT",
    ),
    Rule(
        "direct loads against the order of LDS",
        "DirectToLds needs an LDS image in the order of memory: TLU other than UnrollMajorLDS",
        _TUNING,
        _direct_order,
    ),
    Rule("chiplets", "WorkGroupMappingXCC must divide its group, the compute units for -1", _SOURCE, _chiplets),
    Rule("one mapping", "WorkGroupMappingXCC and StreamKXCCMapping exclude each other", _SOURCE, _both_mappings),
    Rule(
        "Stream-K and a split",
        "StreamK needs GlobalSplitU 0",
        _SOURCE,
        lambda s: (s.get("StreamK") or 0) > 0 and (s.get("GlobalSplitU") or 0) > 0,
    ),
    Rule(
        "waves of Stream-K",
        f"StreamK needs {STREAM_K_WAVES} waves",
        _SOURCE,
        lambda s: (s.get("StreamK") or 0) > 0 and (_waves(s) or STREAM_K_WAVES) != STREAM_K_WAVES,
    ),
    Rule("vector widths", "MIWaveTile must be whole VectorWidths", _SOURCE, _vector_widths),
    Rule("global reads", f"a global read has at most {ACCESS_BYTES} bytes", _SOURCE, _wide),
    Rule("accumulators", f"a wave has at most {ARCH_REGISTERS} accumulators a lane", _SOURCE, _accumulators),
)
