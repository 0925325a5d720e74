"""Names of TensileLite, hipBLASLt and rocBLAS kernels, read into their parameters.

    [Custom_]<problem>_MT<m>x<n>x<depth>[_MI<m>x<n>[x<k>]x<blocks>][_CMS][_SN|_SE](_<abbreviation><value>)*

A name is a minimal one: it has the parameters in which the kernels of a library differ, so what is absent is unknown,
not a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .errors import Undecodable
from .matrix_instruction import Waves, waves_of
from .parameters import Value, parameters_of
from .problem_name import ProblemName, problem_of

__all__ = ["SolutionName", "is_solution_name", "solution_of"]

_NAME = re.compile(
    r"(?P<problem>C[ijkl]+_A.+?)_MT(?P<m>\d{1,9})x(?P<n>\d{1,9})x(?P<k>\d{1,9})"
    r"(?:_MI(?P<mi>\d{1,9}(?:x\d{1,9}){2,3}))?(?P<schedule>_CMS)?(?:_S[NE])?(?:_(?P<tail>.+))?"
)
_SHORT = re.compile(r"_shortname\d+")


@dataclass(frozen=True, slots=True)
class SolutionName:
    """A name's contents, column-major as TensileLite counts.

    `instruction` is (m, n, blocks) and `instruction_k` its depth where the name says it; both None for a kernel of
    vector instructions. `waves` is None where the name does not settle it. `parameters` has full parameter names.
    """

    text: str
    problem: ProblemName
    macro_tile: tuple[int, int]
    depth_u: int
    instruction: tuple[int, int, int] | None
    instruction_k: int | None
    custom_schedule: bool
    waves: Waves | None
    parameters: Mapping[str, Value]

    def number(self, parameter: str) -> int | None:
        """A whole number that the name gives for the parameter."""
        value = self.parameters.get(parameter)
        return value if isinstance(value, int) else None

    @property
    def local_split_u(self) -> int | None:
        """Groups of waves that share a k step, the third number of WorkGroup."""
        group = self.parameters.get("WorkGroup")
        return None if not isinstance(group, tuple) else group[2] if len(group) > 2 else 1


def is_solution_name(text: str) -> bool:
    """Whether the text is meant as such a name, well-formed or not."""
    return re.match(r"(Custom_)?C[ijkl]+_A[ijkl]+_B[ijkl]+", text) is not None


def solution_of(text: str) -> SolutionName:
    """The contents of a name. Raises Undecodable with the part that is not understood.

    >>> name = solution_of("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_GSU4_MIWT1_1_WGMn8")
    >>> name.macro_tile, name.depth_u, name.waves.wave_m, name.parameters["WorkGroupMapping"]
    ((64, 16), 64, 4, -8)
    """
    if text.startswith("Custom_") or _SHORT.search(text):
        raise Undecodable(f"{text}: a custom kernel, whose name is a label; decode the YAML file that lists it")
    match = _NAME.fullmatch(text)
    if match is None:
        raise Undecodable(f"{text[:200]!r} is not <problem>_MT<m>x<n>x<k>[_MI..]_SN_<parameters>")
    problem = problem_of(match["problem"])
    parameters = parameters_of(match["tail"]) if match["tail"] else {}
    tile = (int(match["m"]), int(match["n"]))
    depth_u = int(match["k"])
    if min(*tile, depth_u) < 1:
        raise Undecodable(f"MT{match['m']}x{match['n']}x{match['k']}: a tile without elements")
    instruction, deep = _instruction(match["mi"], parameters)
    waves = None
    if instruction is not None:
        waves = waves_of(tile, instruction, _tuple(parameters, "MIWaveTile"), _tuple(parameters, "WorkGroup"))
    return SolutionName(
        text,
        problem,
        tile,
        depth_u,
        instruction,
        deep,
        match["schedule"] is not None,
        waves,
        MappingProxyType(parameters),
    )


def _instruction(text: str | None, parameters: Mapping[str, Value]) -> tuple[tuple[int, int, int] | None, int | None]:
    """Rows, columns and blocks, and the depth where four numbers are given, in front of SN or behind it."""
    named = [] if text is None else [tuple(int(v) for v in text.split("x"))]
    named += [again for again in [_tuple(parameters, "MatrixInstruction")] if again is not None]
    if not named:
        return None, None
    if min(min(numbers) for numbers in named) < 1:
        raise Undecodable(f"MI{named[0]}: not three or four positive numbers")
    shapes = {(numbers[0], numbers[1], numbers[-1]) for numbers in named}
    depths = {numbers[2] for numbers in named if len(numbers) == 4}
    if len(shapes) > 1 or len(depths) > 1:
        raise Undecodable(f"MI{text} and MatrixInstruction {named[-1]} contradict each other")
    return shapes.pop(), depths.pop() if depths else None


def _tuple(parameters: Mapping[str, Value], name: str) -> tuple[int, ...] | None:
    value = parameters.get(name)
    return value if isinstance(value, tuple) else None
