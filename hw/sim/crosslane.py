"""Instructions that move data between lanes or between lanes and scalars: DPP, readlane, writelane, swaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import UnknownInstruction
from .op import Op, make_op
from .operands import Context, Operand, Reader, lane_mask, reader, scalar_reader, writer
from .parse import Instruction
from .state import LANES, VCC, Group, unpack_mask

__all__ = ["decode_cross_lane", "dpp_enabled", "dpp_source"]

Array = Any  # a numpy array; what its elements are is said where it matters
_LANE = np.arange(LANES)
_ROW, _IN_ROW = _LANE & ~15, _LANE & 15


def _shifted(target: Array, valid: Array) -> Array:
    return np.where(valid, target, -1)


_DPP_LANES: dict[str, Callable[[int], Array]] = {
    "row_shl": lambda n: _shifted(_LANE + n, _IN_ROW + n < 16),
    "row_shr": lambda n: _shifted(_LANE - n, _IN_ROW - n >= 0),
    "row_ror": lambda n: _ROW + ((_IN_ROW - n) & 15),
    "wave_shl": lambda n: _shifted(_LANE + n, _LANE + n < LANES),
    "wave_shr": lambda n: _shifted(_LANE - n, _LANE - n >= 0),
    "wave_rol": lambda n: (_LANE + n) % LANES,
    "wave_ror": lambda n: (_LANE - n) % LANES,
    "row_newbcast": lambda n: _ROW + n,
}


def _dpp_lanes(mods: dict[str, str]) -> Array | None:
    """Source lane of every lane, -1 where there is none; None if the instruction has no DPP control."""
    if "quad_perm" in mods:
        quad = np.array([int(x) for x in mods["quad_perm"].strip("[]").split(",")])
        return (_LANE & ~3) + quad[_LANE & 3]
    if "row_mirror" in mods:
        return _ROW + 15 - _IN_ROW
    if "row_half_mirror" in mods:
        return (_LANE & ~7) + 7 - (_LANE & 7)
    for key, lanes in _DPP_LANES.items():
        if key in mods:
            return lanes(int(mods[key], 0))
    if "row_bcast" in mods:
        if int(mods["row_bcast"]) == 15:
            return _shifted(_ROW - 1, _LANE >= 16)
        return _shifted((_LANE & ~31) - 1, _LANE >= 32)
    return None


def _zero_fill(mods: dict[str, str]) -> bool:
    """The assembler writes the BOUND_CTRL bit as bound_ctrl:0 (older) or bound_ctrl:1."""
    return "bound_ctrl" in mods


def dpp_source(ins: Instruction, ctx: Context, operand: Operand, read: Reader) -> Reader:
    """The reader of source 0, permuted if the instruction has a DPP control."""
    lanes = _dpp_lanes(ins.modifiers)
    if lanes is None:
        if ins.mnemonic.endswith("_dpp"):
            raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"DPP control {ins.modifiers}")
        return read
    safe, outside = np.maximum(lanes, 0), lanes < 0

    def permuted(g: Group) -> Any:
        value = np.broadcast_to(read(g), g.E.shape)[:, safe]
        active = unpack_mask(g.EX)  # not g.E, which may be narrowed to the lanes that are written
        return np.where(outside | ~active[:, safe], value.dtype.type(0), value)

    return permuted


def dpp_enabled(ins: Instruction) -> Callable[[Group], Array] | None:
    """Lanes that a DPP instruction may write, None for an instruction without DPP."""
    mods = ins.modifiers
    lanes = _dpp_lanes(mods)
    if lanes is None:
        return None
    rows, banks = int(mods.get("row_mask", "0xf"), 0), int(mods.get("bank_mask", "0xf"), 0)
    static = (((rows >> (_LANE // 16)) & 1) & ((banks >> ((_LANE // 4) & 3)) & 1)).astype(np.bool_)
    if _zero_fill(mods):
        return lambda g: static
    safe, inside = np.maximum(lanes, 0), lanes >= 0
    return lambda g: static & inside & g.E[:, safe]


def decode_cross_lane(ins: Instruction, ctx: Context, name: str, operands: list[Operand]) -> Op | None:
    """The Op of an instruction of this room, None if it is not one."""
    if name == "v_readfirstlane_b32":
        return _read_first(ins, operands)
    if name == "v_readlane_b32":
        return _read_lane(ins, ctx, operands)
    if name == "v_writelane_b32":
        return _write_lane(ins, ctx, operands)
    if name == "v_cndmask_b32":
        return _select(ins, ctx, operands)
    if name in ("v_permlane16_swap_b32", "v_permlane32_swap_b32"):
        return _permlane_swap(ins, operands, 16 if "16" in name else 32)
    if name == "v_swap_b32":
        return _swap(ins, operands)
    if name in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"):
        return _mask_count(ins, ctx, operands, "lo" in name)
    if name == "v_nop":
        return make_op(ins, lambda g: None, "valu")
    return None


def _first_lanes(g: Group) -> Array:
    return np.argmax(g.E, axis=1)  # lane 0 if no lane is on


def _read_first(ins: Instruction, operands: list[Operand]) -> Op:
    target, row = operands[0].row, operands[1].row
    if operands[1].kind == "s":
        return make_op(ins, lambda g: g.S[target].__setitem__(..., g.S[row]), "valu", operands[1:], operands[:1])

    def run(g: Group) -> None:
        lanes = _first_lanes(g)
        g.machine.lane_read(g, ins, row, lanes)
        g.S[target] = g.V[row][np.arange(g.n), lanes]

    return make_op(ins, run, "valu", (), operands[:1])


def _read_lane(ins: Instruction, ctx: Context, operands: list[Operand]) -> Op:
    target, row = operands[0].row, operands[1].row
    lane = scalar_reader(operands[2], "u32", ctx, ins)

    def run(g: Group) -> None:
        lanes = np.broadcast_to(lane(g) & np.uint32(63), (g.n,))
        g.machine.lane_read(g, ins, row, lanes)
        g.S[target] = g.V[row][np.arange(g.n), lanes]

    return make_op(ins, run, "valu", operands[2:], operands[:1])


def _write_lane(ins: Instruction, ctx: Context, operands: list[Operand]) -> Op:
    row = operands[0].row
    value, lane = scalar_reader(operands[1], "u32", ctx, ins), scalar_reader(operands[2], "u32", ctx, ins)

    def run(g: Group) -> None:
        lanes = np.broadcast_to(lane(g) & np.uint32(63), (g.n,))
        g.V[row][np.arange(g.n), lanes] = value(g)
        g.vector_known[row] |= np.uint64(1) << lanes.astype(np.uint64)

    return make_op(ins, run, "valu", operands[1:])


def _select(ins: Instruction, ctx: Context, operands: list[Operand]) -> Op:
    """v_cndmask: source 1 where the mask has a one. Without a written mask it is VCC."""
    from .sdwa import sdwa_reader, sdwa_writer

    mods = ins.modifiers
    mask_operand = operands[3] if len(operands) > 3 else Operand("s", "vcc", VCC, 2)
    kind = "f32" if any(o.neg or o.abs for o in operands[1:3]) else "u32"
    if "src0_sel" in mods:
        a, b = (sdwa_reader(o, kind, mods[f"src{i}_sel"], ctx, ins) for i, o in enumerate(operands[1:3]))
    else:
        a = dpp_source(ins, ctx, operands[1], reader(operands[1], kind, ctx, ins))
        b = reader(operands[2], kind, ctx, ins)
    if mods.get("dst_sel", "DWORD") != "DWORD":
        put = sdwa_writer(operands[0], kind, mods, ctx, ins)
    else:
        put = writer(operands[0], kind)
    mask, enabled = lane_mask(mask_operand), dpp_enabled(ins)

    def run(g: Group) -> None:
        chosen = np.where(mask(g), b(g), a(g))
        if enabled is None:
            put(g, chosen)
        else:
            lanes, full = g.E, g.full
            g.E, g.full = lanes & enabled(g), False
            put(g, chosen)
            g.E, g.full = lanes, full

    values = {row: tuple(operands[0].rows) for o in operands[1:3] for row in o.rows}
    return make_op(ins, run, "valu", [*operands[1:3], mask_operand], operands[:1], soft=values)


def _permlane_swap(ins: Instruction, operands: list[Operand], width: int) -> Op:
    """Odd rows of the first register change places with even rows of the second (rows of 16 or 32 lanes)."""
    first, second = operands[0].row, operands[1].row
    odd = (_LANE // width) % 2 == 1
    upper, lower = _LANE[odd], _LANE[~odd]

    def run(g: Group) -> None:
        a, b = g.V[first][:, upper], g.V[second][:, lower]
        on_a, on_b = g.E[:, upper], g.E[:, lower]
        g.V[first][:, upper] = np.where(on_a, b, a)
        g.V[second][:, lower] = np.where(on_b, a, b)

    return make_op(ins, run, "valu", operands, operands, soft={})


def _swap(ins: Instruction, operands: list[Operand]) -> Op:
    first, second = operands[0].row, operands[1].row

    def run(g: Group) -> None:
        a, b = g.V[first].copy(), g.V[second].copy()
        np.copyto(g.V[first], b, where=g.E)
        np.copyto(g.V[second], a, where=g.E)

    return make_op(ins, run, "valu", operands, operands, soft={})


def _mask_count(ins: Instruction, ctx: Context, operands: list[Operand], low: bool) -> Op:
    """Ones of the mask below this lane, within its low or high word, plus source 1."""
    mask, base, put = (
        reader(operands[1], "u32", ctx, ins),
        reader(operands[2], "u32", ctx, ins),
        writer(operands[0], "u32"),
    )
    below = [(1 << min(lane, 32)) - 1 if low else (1 << max(lane - 32, 0)) - 1 for lane in range(LANES)]
    window = np.array(below, np.uint32)
    from .valu_table import VALU

    count = VALU["v_bcnt_u32_b32"][2]
    return make_op(ins, lambda g: put(g, count(mask(g) & window, base(g))), "valu", operands[1:], operands[:1])
