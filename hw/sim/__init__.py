"""A functional simulator of CDNA code: AMDGPU assembly in, results, reports and counts out.

>>> from closedform.hw.sim import parse_file, run  # doctest: +SKIP
>>> result = run(parse_file("kernel.s"), [a, b, Out(c)], grid=(16, 1, 1))  # doctest: +SKIP
"""

from __future__ import annotations

from .errors import AssemblyError, SimulationError, UnknownInstruction
from .kernarg import Out, flydsl_args, tensor_descriptor
from .parse import Kernel, Program, parse_file, parse_text
from .report import Report, Result
from .run import run

__all__ = [
    "AssemblyError",
    "Kernel",
    "Out",
    "Program",
    "Report",
    "Result",
    "SimulationError",
    "UnknownInstruction",
    "flydsl_args",
    "parse_file",
    "parse_text",
    "run",
    "tensor_descriptor",
]
