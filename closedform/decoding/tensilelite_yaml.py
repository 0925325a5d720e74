"""TensileLite YAML read back: logic files, single solutions and benchmark files. Fields win over names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.interop.tensilelite import load_yaml, pinned
from closedform.interop.tensilelite_types import family_of

from .decoded import Decoded
from .errors import Undecodable
from .matrix_instruction import Waves, nine_of, waves_of
from .problem_name import ProblemName
from .solution_name import SolutionName, solution_of
from .tensilelite import decoded_solution, same_target

__all__ = ["decoded_yaml"]

#: Types by the words and by the numbers that logic files hold; other numbers change their meaning between versions.
_SPELT = {"Float": "S", "Double": "D", "Half": "H", "BFloat16": "B", "Int8": "I8", "Int32": "I", "XFloat32": "X"}
_NUMBERED = {0: "S", 1: "D", 2: "C", 3: "Z", 4: "H", 6: "I", 7: "B", 8: "I8"}
#: Letters of two 8-bit floats; N says FNUZ.
_BOTH = re.compile("([FB]8N?)([FB]8N?)")
#: Places in the list form of a logic file.
_ARCHITECTURE, _PROBLEM, _SOLUTIONS = 2, 4, 5


def decoded_yaml(text: str, hw: HardwareDescriptor) -> list[Decoded]:
    """Every solution of the file, in its order. Raises Undecodable for another kind of file."""
    body = load_yaml(text)
    if isinstance(body, list) and len(body) > _SOLUTIONS and isinstance(body[_SOLUTIONS], list):
        gfx = _architecture(body[_ARCHITECTURE])
        return [_one(solution, body[_PROBLEM], hw, gfx) for solution in body[_SOLUTIONS]]
    if isinstance(body, dict) and "BenchmarkProblems" in body:
        gfx = (body.get("LibraryLogic") or {}).get("ArchitectureName")
        return [_one(own, problem, hw, gfx) for problem, own in pinned(body)]
    if isinstance(body, dict) and ("MacroTile0" in body or "MatrixInstruction" in body):
        return [_one(body, body.get("ProblemType"), hw, None)]
    raise Undecodable("not a logic file, a benchmark file or a solution of TensileLite")


def _architecture(place: Any) -> str | None:
    found = place.get("Architecture") if isinstance(place, dict) else place
    return found if isinstance(found, str) and found.startswith("gfx") else None


def _one(own: Mapping[str, Any], problem: Any, hw: HardwareDescriptor, gfx: str | None) -> Decoded:
    """A solution from its fields; what is a label stays a label."""
    problem = own.get("ProblemType") or problem
    named = _named(own)
    waves, tile, instruction, depth = _geometry(own)
    name = SolutionName(
        text=_label(own),
        problem=_problem(problem, named),
        macro_tile=tile,
        depth_u=_positive(own, "DepthU"),
        instruction=instruction,
        instruction_k=depth,
        custom_schedule=bool(own.get("UseCustomMainLoopSchedule")),
        waves=waves,
        parameters={name: tuple(v) if isinstance(v, list) else v for name, v in own.items() if name != "ProblemType"},
    )
    found = decoded_solution(name, dict(name.parameters), hw, _target(own.get("ISA")) or gfx)
    if own.get("CustomKernelName"):
        return dataclasses.replace(found, notes=(*found.notes, "a custom kernel: its name is a label"))
    return found


def _target(isa: Any) -> str | None:
    """The target of a solution's ISA, which is major, minor and stepping.

    >>> _target([9, 0, 10]), _target([9, 4, 2])
    ('gfx90a', 'gfx942')
    """
    if not isinstance(isa, (list, tuple)) or len(isa) != 3 or not all(type(v) is int and v >= 0 for v in isa):
        return None
    return same_target(f"gfx{isa[0]}{isa[1]}{isa[2]:x}") if sum(isa) else None


def _label(own: Mapping[str, Any]) -> str:
    for key in ("CustomKernelName", "SolutionNameMin", "KernelNameMin"):
        if own.get(key):
            return str(own[key])
    return ""


def _named(own: Mapping[str, Any]) -> ProblemName | None:
    """The problem that the solution's own name says, where the name is no label."""
    text = str(own.get("SolutionNameMin") or own.get("KernelNameMin") or "")
    try:
        return solution_of(text).problem
    except Undecodable:
        return None


def _positive(own: Mapping[str, Any], key: str) -> int:
    value = own.get(key)
    if type(value) is not int or value < 1:
        raise Undecodable(f"{key}: {value!r} is no positive number")
    return value


def _geometry(
    own: Mapping[str, Any],
) -> tuple[Waves | None, tuple[int, int], tuple[int, int, int] | None, int | None]:
    """Waves, tile, instruction and its depth, from nine elements or from four with tile and waves beside them."""
    numbers = own.get("MatrixInstruction") or []
    if len(numbers) > 4:
        nine = nine_of(numbers)
        tile = nine.macro_tile
        grid = (nine.m, nine.n, nine.blocks)
        waves = waves_of(tile, grid, (nine.tile_m, nine.tile_n), None)
        made = {"MacroTile0": tile[0], "MacroTile1": tile[1], "MIWaveTile": [nine.tile_m, nine.tile_n]}
        for key, value in made.items():
            if own.get(key, value) != value:
                raise Undecodable(f"{key} {own[key]} and MatrixInstruction {list(numbers)} contradict each other")
        return waves, tile, grid, nine.k
    tile = (_positive(own, "MacroTile0"), _positive(own, "MacroTile1"))
    if len(numbers) != 4:
        return None, tile, None, None
    m, n, k, blocks = numbers
    wave_tile, group = own.get("MIWaveTile"), own.get("WorkGroup")
    return (
        waves_of(tile, (m, n, blocks), tuple(wave_tile) if wave_tile else None, tuple(group) if group else None),
        tile,
        (m, n, blocks),
        k,
    )


def _problem(problem: Any, named: ProblemName | None) -> ProblemName:
    """From the ProblemType; of types by numbers that are not known the name's."""
    if not isinstance(problem, dict):
        if named is None:
            raise Undecodable("no ProblemType and no name that says the types")
        return named
    keys = ("DataType", "DataTypeA", "DataTypeB", "DestDataType", "ComputeDataType")
    kind, a, b, out, compute = letters = list(_letters(problem, keys))
    if unknown := [key for key, known in zip(keys, letters, strict=True) if known is None and key in problem]:
        if named is None:
            raise Undecodable(f"{unknown[0]} {problem[unknown[0]]!r} is not known and no name says the types")
        return named
    if kind is None:
        raise Undecodable("a ProblemType without DataType")
    layout = "NT"[bool(problem.get("TransposeA"))] + "NT"[bool(problem.get("TransposeB"))]
    pair = _pair(kind)
    if problem.get("F32XdlMathOp") in ("X", 9, 10):
        pair = ("xf32", "xf32")
    stored = (pair if a is None else _pair(a))[0], (pair if b is None else _pair(b))[-1]
    total = "f32" if compute is None else family_of(compute)
    return ProblemName(
        layout, True, *stored, pair, pair[0] if out is None else family_of(out), total, _epilogue(problem)
    )


def _epilogue(problem: Mapping[str, Any]) -> tuple[str, ...]:
    """What is done with the sums, a bias by the words of names: FDN along the tool's columns, FDMN either way."""
    found = {1: ("Bias",), 2: ("Bias", "FDN"), 3: ("Bias", "FDMN")}.get(int(problem.get("UseBias") or 0), ())
    kind = problem.get("ActivationType", "none")
    return (*found, f"Activation {kind}") if isinstance(kind, str) and kind != "none" else found


def _letters(problem: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[str | None]:
    for value in map(problem.get, keys):
        known = _NUMBERED.get(value) if type(value) is int else None
        yield _SPELT.get(value, value) if isinstance(value, str) else known


def _pair(letters: str) -> tuple[str, str]:
    """Families of A and B: of two 8-bit floats both are in the letters."""
    both = _BOTH.fullmatch(letters)
    first, second = both.groups() if both is not None else (letters, letters)
    return family_of(first), family_of(second)
