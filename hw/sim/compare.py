"""Vector compares: v_cmp and v_cmpx of every type, and the float class tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .crosslane import dpp_enabled, dpp_source
from .floats import flush16, flush32
from .op import Op, make_op
from .operands import TYPES, Context, Operand, reader
from .parse import Instruction
from .sdwa import sdwa_reader
from .state import EXEC, Group, pack_mask

__all__ = ["decode_compare"]

Array = Any  # a numpy array; what its elements are is said where it matters


def _ordered(a: Array, b: Array) -> Array:
    return ~(np.isnan(a) | np.isnan(b))


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


_BOTH: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_FLOAT: dict[str, Callable[[Array, Array], Array]] = {
    **_BOTH,
    "f": lambda a, b: np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b)), np.bool_),
    "tru": lambda a, b: np.ones(np.broadcast_shapes(np.shape(a), np.shape(b)), np.bool_),
    "lg": lambda a, b: (a < b) | (a > b),
    "o": _ordered,
    "u": _unordered,
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
}
_INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    **_BOTH,
    "ne": np.not_equal,
    "f": _FLOAT["f"],
    "t": _FLOAT["tru"],
}


def _class(kind: str) -> Callable[[Array, Array], Array]:
    """Test of the ten float classes: bits signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0, ... +inf."""
    width = TYPES[kind][0]
    mantissa = {16: 10, 32: 23, 64: 52}[width]
    dtype = np.dtype(f"u{width // 8}").type

    def run(value: Array, mask: Array) -> Array:
        bits = np.asarray(value).view(dtype)
        exponent_mask = ((1 << (width - 1)) - 1) ^ ((1 << mantissa) - 1)
        exponent, fraction = bits & dtype(exponent_mask), bits & dtype((1 << mantissa) - 1)
        negative = bits >> dtype(width - 1) == 1
        top = exponent == exponent_mask
        quiet = fraction >> dtype(mantissa - 1) == 1
        magnitude = np.where(top, 0, np.where(exponent != 0, 1, np.where(fraction != 0, 2, 3)))
        index = np.where(top & (fraction != 0), np.where(quiet, 1, 0), np.where(negative, 2 + magnitude, 9 - magnitude))
        return (np.asarray(mask).astype(np.uint32) >> index.astype(np.uint32)) & np.uint32(1) == 1

    return run


def _flushed(
    compare: Callable[[Array, Array], Array], flush: Callable[[Array], Array]
) -> Callable[[Array, Array], Array]:
    return lambda x, y: compare(flush(x), flush(y))


def decode_compare(ins: Instruction, ctx: Context, name: str, operands: list[Operand]) -> Op | None:
    """The Op of a vector compare, None if it is not one."""
    parts = name.split("_")
    if parts[:2] not in (["v", "cmp"], ["v", "cmpx"]) or len(parts) != 4:
        return None
    test, kind = parts[2], parts[3]
    if kind not in TYPES:
        return None
    kind_b = kind
    if test == "class":
        function, kind_b = _class(kind), "u32"
    else:
        table = _FLOAT if kind[0] == "f" else _INTEGER
        if test not in table:
            return None
        function = table[test]
    mods = ins.modifiers
    sources = operands[1:]
    if "src0_sel" in mods:
        a, b = (
            sdwa_reader(o, k, mods[f"src{i}_sel"], ctx, ins)
            for i, (o, k) in enumerate(zip(sources, (kind, kind_b), strict=True))
        )
    else:
        select = [c == "1" for c in mods.get("op_sel", "[0,0]").strip("[]").split(",")]
        a = dpp_source(ins, ctx, sources[0], reader(sources[0], kind, ctx, ins, high=select[0]))
        b = reader(sources[1], kind_b, ctx, ins, high=select[1])
    flush = (
        flush32 if kind == "f32" and not ctx.denormals32 else flush16 if kind == "f16" and not ctx.denormals16 else None
    )
    if flush is not None and test != "class":
        function = _flushed(function, flush)
    row, to_exec, enabled = operands[0].row, parts[1] == "cmpx", dpp_enabled(ins)

    def run(g: Group) -> None:
        mask = g.E if enabled is None else g.E & enabled(g)
        bits = pack_mask(np.logical_and(function(a(g), b(g)), mask))
        g.set_scalar64(row, bits)
        if to_exec:
            g.set_scalar64(EXEC, bits)

    return make_op(ins, run, "valu", sources, operands[:1])
