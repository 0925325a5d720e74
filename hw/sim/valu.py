"""Vector ALU instructions: modifiers (abs, neg, clamp, omod, op_sel), SDWA, DPP, and those with lane masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .compare import decode_compare
from .crosslane import decode_cross_lane, dpp_enabled, dpp_source
from .errors import UnknownInstruction
from .floats import flush16, flush32, fma16, fma32, fma64
from .op import Op, copies, halves, make_op
from .operands import Context, Operand, Reader, reader, writer
from .packed import decode_packed
from .parse import Instruction
from .sdwa import sdwa_reader, sdwa_writer
from .state import Group
from .valu_carry import decode_carry
from .valu_common import saturating
from .valu_table import CLOCKS16, KEEPS_HIGH, VALU

__all__ = ["base_name", "decode_vector"]

Array = Any  # a numpy array; what its elements are is said where it matters

_SUFFIXES = ("_e32", "_e64", "_sdwa", "_dpp")

#: Fused accumulations: the destination is the last source.
_ACCUMULATE: dict[str, tuple[str, Callable[..., Any]]] = {
    "v_fmac_f32": ("f32", fma32),
    "v_fmac_f16": ("f16", fma16),
    "v_fmac_f64": ("f64", fma64),
    "v_mac_f32": ("f32", VALU["v_mad_f32"][2]),
    "v_mac_f16": ("f16", VALU["v_mad_f16"][2]),
}
#: With a literal: name -> (type, function, place of the literal among a, b, c).
_LITERAL: dict[str, tuple[str, Callable[..., Any]]] = {
    "v_fmaak_f32": ("f32", fma32),
    "v_fmaak_f16": ("f16", fma16),
    "v_madak_f32": ("f32", VALU["v_mad_f32"][2]),
    "v_madak_f16": ("f16", VALU["v_mad_f16"][2]),
    "v_fmamk_f32": ("f32", fma32),
    "v_fmamk_f16": ("f16", fma16),
    "v_madmk_f32": ("f32", VALU["v_mad_f32"][2]),
    "v_madmk_f16": ("f16", VALU["v_mad_f16"][2]),
}
_OUTPUT_MODS = {"mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}


def base_name(mnemonic: str) -> str:
    """The mnemonic without its encoding suffix."""
    name = mnemonic
    for _ in range(2):
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
    return name


def decode_vector(ins: Instruction, ctx: Context) -> Op | None:
    """The Op of a vector ALU instruction, None if it is not one."""
    name = base_name(ins.mnemonic)
    operands = [ctx.operand(t, ins) for t in ins.operands]
    if name in VALU:
        kind, kinds, function = VALU[name]
        return _plain(ins, ctx, name, operands[0], operands[1:], kind, kinds, function)
    if name in _ACCUMULATE:
        kind, function = _ACCUMULATE[name]
        sources = [*operands[1:], operands[0]]
        return _plain(ins, ctx, name, operands[0], sources, kind, (kind,) * 3, function)
    if name in _LITERAL:
        kind, function = _LITERAL[name]
        return _plain(ins, ctx, name, operands[0], operands[1:], kind, (kind,) * 3, function)
    if name in ("v_bitop3_b32", "v_bitop3_b16"):
        kind = f"u{name[-2:]}"
        return _plain(ins, ctx, name, operands[0], operands[1:], kind, (kind,) * 3, _bit_table(ins))
    for decoder in (decode_compare, decode_packed, decode_carry, decode_cross_lane):
        op = decoder(ins, ctx, name, operands)
        if op is not None:
            return op
    return None


def _bit_table(ins: Instruction) -> Callable[..., Any]:
    """Any function of three bits: bit 4a + 2b + c of the table is the result for bits a, b, c."""
    table = int(ins.modifiers.get("bitop3", "0"), 0)

    def run(a: Array, b: Array, c: Array) -> Array:
        result: Any = 0 * (a & b & c)
        for index in range(8):
            if (table >> index) & 1:
                term = (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
                result = result | term
        return np.asarray(result)

    return run


def _plain(
    ins: Instruction,
    ctx: Context,
    name: str,
    target: Operand,
    sources: list[Operand],
    kind: str,
    kinds: tuple[str, ...],
    function: Callable[..., Any],
) -> Op:
    if len(sources) != len(kinds):
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"{len(sources)} sources")
    mods = ins.modifiers
    select = _op_sel(mods.get("op_sel"), len(sources))
    readers: list[Reader] = []
    for place, (source, source_kind) in enumerate(zip(sources, kinds, strict=True)):
        if "src0_sel" in mods or "src1_sel" in mods:
            read = sdwa_reader(source, source_kind, mods.get(f"src{place}_sel", "DWORD"), ctx, ins)
        else:
            read = reader(source, source_kind, ctx, ins, high=select[place])
            if place == 0:
                read = dpp_source(ins, ctx, source, read)
        readers.append(_flushing(read, source_kind, ctx) if name not in _RAW else read)
    if "dst_sel" in mods and mods["dst_sel"] != "DWORD":
        put = sdwa_writer(target, kind, mods, ctx, ins)
    else:
        put = writer(target, kind, keep_high=name in KEEPS_HIGH, high=select[-1])
    if "clamp" in mods and function in (np.add, np.subtract) and kind[0] in "ui":
        function, mods = saturating(function, kind), {k: v for k, v in mods.items() if k != "clamp"}
    finish = _finish(kind, mods, ctx, ins)
    if finish is not None:
        function = _compose(finish, function)
    dpp = _dpp_mask(ins)
    run = _runner(readers, function, put)
    if dpp is not None:
        run = dpp(run)
    clocks = 16 if name in CLOCKS16 else 8 if kind == "f64" and ctx.target == "gfx908" else 4
    soft = copies(sources[0], target) if name in _COPIES else None
    if name in _CARRY_UP:
        whole = {row: tuple(target.rows) for source in sources for row in source.rows}
        soft = {**whole, **halves([s for s in sources if len(s.rows) == 2], target)}
    return make_op(ins, run, "valu", sources, [target], clocks=clocks, soft=soft)


_COPIES = frozenset(("v_mov_b32", "v_mov_b64", "v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"))
#: 64-bit operations whose low half does not depend on the upper halves.
_CARRY_UP = frozenset(("v_lshl_add_u64", "v_lshlrev_b64"))
#: Moves of bits, which no denormal mode touches.
_RAW = frozenset({"v_pack_b32_f16", "v_cndmask_b32"})


def _flushing(read: Reader, kind: str, ctx: Context) -> Reader:
    if kind == "f32" and not ctx.denormals32:
        return lambda g: flush32(read(g))
    if kind == "f16" and not ctx.denormals16:
        return lambda g: flush16(read(g))
    return read


def _runner(
    readers: list[Reader], function: Callable[..., Any], put: Callable[[Group, Any], None]
) -> Callable[[Group], None]:
    if len(readers) == 1:
        a = readers[0]
        return lambda g: put(g, function(a(g)))
    if len(readers) == 2:
        a, b = readers
        return lambda g: put(g, function(a(g), b(g)))
    a, b, c = readers
    return lambda g: put(g, function(a(g), b(g), c(g)))


def _compose(outer: Callable[[Any], Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: outer(inner(*args))


def _op_sel(text: str | None, sources: int) -> list[bool]:
    """One flag for each source and one for the destination."""
    flags = [c == "1" for c in (text or "").strip("[]").split(",") if c] if text else []
    full = flags + [False] * (sources + 1 - len(flags))
    return full[: sources + 1]


def _finish(kind: str, mods: dict[str, str], ctx: Context, ins: Instruction) -> Callable[[Any], Any] | None:
    """Output modifiers and denormal flushing of a float result; integer saturation is refused."""
    steps: list[Callable[[Any], Any]] = []
    dtype: Any = {"f32": np.float32, "f16": np.float16, "f64": np.float64}.get(kind)
    for key in ("mul", "div"):
        if key in mods:
            factor = _OUTPUT_MODS[f"{key}:{mods[key]}"]
            steps.append(_scaled(dtype, factor))
    if "clamp" in mods:
        if dtype is None:
            raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "clamp of this integer result")
        steps.append(lambda r: np.where(np.isnan(r), dtype(0), np.clip(r, dtype(0), dtype(1))))
    if kind == "f32" and not ctx.denormals32:
        steps.append(lambda r: flush32(np.asarray(r, np.float32)))
    if kind == "f16" and not ctx.denormals16:
        steps.append(lambda r: flush16(np.asarray(r, np.float16)))
    if not steps:
        return None

    def run(result: Any) -> Any:
        for step in steps:
            result = step(result)
        return result

    return run


def _scaled(dtype: Any, factor: float) -> Callable[[Any], Any]:
    return lambda r: (np.asarray(r) * dtype(factor)).astype(dtype)


def _dpp_mask(ins: Instruction) -> Callable[[Callable[[Group], None]], Callable[[Group], None]] | None:
    """Wraps an operation so that only lanes that DPP enables are written."""
    enabled = dpp_enabled(ins)
    if enabled is None:
        return None

    def wrap(run: Callable[[Group], None]) -> Callable[[Group], None]:
        def masked(g: Group) -> None:
            mask, full = g.E, g.full
            g.E, g.full = mask & enabled(g), False
            run(g)
            g.E, g.full = mask, full

        return masked

    return wrap
