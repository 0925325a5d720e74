"""Closed formulas: one pure function gives the value, the sympy expression and the printed text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Any

__all__ = [
    "Formula",
    "FormulaValue",
    "align_down",
    "ceil_div",
    "floor_sqrt",
    "maximum",
    "minimum",
    "power_of_two",
    "round_up",
]


def _library(*operands: Any) -> str:
    """Which arithmetic the operands ask for: "int", "numpy" or "sympy"."""
    for operand in operands:
        module = type(operand).__module__
        if module.startswith("sympy"):
            return "sympy"
        if module.startswith("numpy"):
            return "numpy"
    return "int"


def ceil_div(a: Any, b: Any) -> Any:
    """ceil(a / b) on int, numpy arrays and sympy symbols.

    >>> ceil_div(16384, 120)
    137
    """
    if type(a) is not int and _library(a, b) == "sympy":
        import sympy

        return sympy.ceiling(a / b)
    return -(-a // b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller one, elementwise on numpy arrays, Min(a, b) on symbols."""
    library = "int" if type(a) is type(b) is int else _library(a, b)
    if library == "sympy":
        import sympy

        return sympy.Min(a, b)
    if library == "numpy":
        import numpy as np

        return np.minimum(a, b)
    return a if a < b else b


def maximum(a: Any, b: Any) -> Any:
    """The larger one, elementwise on numpy arrays, Max(a, b) on symbols.

    >>> maximum(3, 4)
    4
    """
    library = "int" if type(a) is type(b) is int else _library(a, b)
    if library == "sympy":
        import sympy

        return sympy.Max(a, b)
    if library == "numpy":
        import numpy as np

        return np.maximum(a, b)
    return a if a > b else b


def power_of_two(value: Any) -> Any:
    """The least power of two that is not below `value`, which is at least 1.

    >>> power_of_two(24), power_of_two(32)
    (32, 32)
    """
    library = _library(value)
    if library == "sympy":
        import sympy

        return 2 ** sympy.ceiling(sympy.log(value, 2))
    if library == "numpy":
        import numpy as np

        return 1 << np.ceil(np.log2(value)).astype(np.int64)
    return 1 << (value - 1).bit_length()


def align_down(value: Any, step: Any) -> Any:
    """The largest multiple of `step` that is not above `value`.

    >>> align_down(85, 16)
    80
    """
    return value // step * step


def floor_sqrt(value: Any) -> Any:
    """floor(sqrt(value)).

    >>> floor_sqrt(16384)
    128
    """
    library = _library(value)
    if library == "sympy":
        import sympy

        return sympy.floor(sympy.sqrt(value))
    if library == "numpy":
        import numpy as np

        return np.floor(np.sqrt(value)).astype(np.int64)
    return isqrt(value)


def round_up(value: Any, step: Any) -> Any:
    """The least multiple of `step` that is not below `value`.

    >>> round_up(40, 32)
    64
    """
    return ceil_div(value, step) * step


@dataclass(frozen=True, slots=True)
class Formula:
    """A named closed formula.

    `function` takes its inputs by name and uses only arithmetic that int, numpy arrays and sympy symbols share
    (// % + - * and the helpers of this module), so the number and the printed expression cannot drift apart.
    """

    symbol: str
    name: str
    unit: str
    source: str
    function: Callable[..., Any]

    def __call__(self, **inputs: Any) -> FormulaValue:
        return FormulaValue(self, inputs, self.function(**inputs))

    def expression(self) -> Any:
        """The formula as a sympy expression in its own parameter names."""
        import sympy

        names = inspect.signature(self.function).parameters
        return self.function(**{n: sympy.Symbol(n, integer=True, positive=True) for n in names})

    @property
    def text(self) -> str:
        """The formula as printed by --explain, e.g. "t_KV = floor(lds_bytes/(2*d*elem_bytes))"."""
        return f"{self.symbol} = {self.expression()}"


@dataclass(frozen=True, slots=True)
class FormulaValue:
    """A formula with the numbers put in; `binds` marks the capacity that fixed a tile."""

    formula: Formula
    inputs: dict[str, Any]
    value: Any
    binds: bool = False

    def binding(self) -> FormulaValue:
        return FormulaValue(self.formula, self.inputs, self.value, True)

    def to_json(self) -> dict[str, Any]:
        return {
            "symbol": self.formula.symbol,
            "name": self.formula.name,
            "formula": self.formula.text,
            "inputs": dict(self.inputs),
            "value": self.value,
            "unit": self.formula.unit,
            "binds": self.binds,
            "source": self.formula.source,
        }
