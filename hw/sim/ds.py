"""LDS instructions: reads and writes of all widths, transposing reads, lane permutes through LDS, atomics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .atomics import ATOMICS, apply_atomic
from .errors import UnknownInstruction
from .op import Op, make_op
from .operands import Context, Operand
from .parse import Instruction
from .state import Group
from .vmem import fill_registers, gather_registers
from .waitcnt import LOCAL_MAX

__all__ = ["decode_lds"]

Array = Any  # a numpy array; what its elements are is said where it matters

_READS: dict[str, tuple[int, str]] = {
    "b32": (4, "words"), "b64": (8, "words"), "b96": (12, "words"), "b128": (16, "words"),
    "u8": (1, "zero"), "i8": (1, "sign"), "u16": (2, "zero"), "i16": (2, "sign"),
    "u8_d16": (1, "zero-low"), "u8_d16_hi": (1, "zero-high"), "i8_d16": (1, "sign-low"),
    "i8_d16_hi": (1, "sign-high"), "u16_d16": (2, "zero-low"), "u16_d16_hi": (2, "zero-high"),
}  # fmt: skip
_WRITES: dict[str, tuple[int, str]] = {
    "b32": (4, "words"), "b64": (8, "words"), "b96": (12, "words"), "b128": (16, "words"),
    "b8": (1, "low"), "b16": (2, "low"), "b8_d16_hi": (1, "high"), "b16_d16_hi": (2, "high"),
}  # fmt: skip
_TRANSPOSING = {"b64_tr_b16": (8, 16), "b64_tr_b8": (8, 8), "b64_tr_b4": (8, 4), "b96_tr_b6": (12, 6)}
_ALIGNMENT = {1: 1, 2: 2, 4: 4, 8: 8, 12: 4, 16: 16}
_ATOMIC = re.compile(r"ds_(add|sub|rsub|inc|dec|min|max|and|or|xor|wrxchg|cmpst)(_rtn)?_([uifb])(32|64)$")


def decode_lds(ins: Instruction, ctx: Context) -> Op | None:
    """The Op of an LDS instruction, None if it is not one."""
    name = ins.mnemonic
    if not name.startswith("ds_"):
        return None
    operands = [ctx.operand(t, ins) for t in ins.operands]
    if "gds" in ins.modifiers:
        raise UnknownInstruction(name, ins.line, ctx.target, "GDS")
    found = re.match(r"ds_(read|write)(2?)(st64)?_(\w+)$", name)
    if found is not None:
        action, two, far, suffix = found.groups()
        if action == "read" and suffix in _TRANSPOSING and ctx.target == "gfx950":
            return _transposing(ins, operands, *_TRANSPOSING[suffix])
        table = _READS if action == "read" else _WRITES
        if suffix in table:
            size, how = table[suffix]
            if two:
                step = size * (64 if far else 1)
                offsets = tuple(int(ins.modifiers.get(f"offset{k}", "0"), 0) * step for k in (0, 1))
            else:
                offsets = (int(ins.modifiers.get("offset", "0"), 0),)
            build = _read if action == "read" else _write
            return build(ins, operands, offsets, size, how)
    if name in ("ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32"):
        return _permute(ins, ctx, operands)
    if name == "ds_nop":
        return make_op(ins, lambda g: None, "lds")
    if (atomic := _ATOMIC.match(name)) is not None or name in ("ds_pk_add_f16", "ds_pk_add_bf16"):
        return _atomic(ins, ctx, operands, atomic)
    return None


def issue_ds(g: Group, rows: range | None) -> None:
    """Count one LDS operation; the rows that it will write wait for it."""
    g.ds_issued += 1
    np.maximum(g.ds_done, g.ds_issued - LOCAL_MAX, out=g.ds_done)
    if rows is not None:
        for row in rows:
            g.ds_ticket[row] = g.ds_issued
        g.pending_ds.update(rows)
        g.hot.update(rows)


def _address(g: Group, row: int, offset: int) -> Array:
    """The sum wraps at 32 bits: the compiler folds constants into offsets of negative bases."""
    return (g.V[row].astype(np.int64) + offset) & 0xFFFFFFFF


def _read(ins: Instruction, operands: list[Operand], offsets: tuple[int, ...], size: int, how: str) -> Op:
    target, row = operands[0].row, operands[1].row
    step = (size + 3) // 4
    rows = range(target, target + step * len(offsets))

    def run(g: Group) -> None:
        m = g.machine
        parts = []
        for offset in offsets:
            address = _address(g, row, offset)
            m.check_alignment(g, ins, address, g.E, _ALIGNMENT[size])
            parts.append(m.lds.load(g, ins, address, size))
            m.count_lds(g, ins, address, g.E, size, False)
        for k, part in enumerate(parts):
            fill_registers(g, target + k * step, part, how)
        issue_ds(g, rows)

    return make_op(ins, run, "lds", operands[1:2], (), extra_writes=frozenset(rows))


def _write(ins: Instruction, operands: list[Operand], offsets: tuple[int, ...], size: int, how: str) -> Op:
    row, data = operands[0].row, operands[1 : 1 + len(offsets)]
    reads = frozenset().union(*(range(d.row, d.row + (size + 3) // 4) for d in data))

    def run(g: Group) -> None:
        m = g.machine
        for offset, source in zip(offsets, data, strict=True):
            address = _address(g, row, offset)
            m.check_alignment(g, ins, address, g.E, _ALIGNMENT[size])
            m.lds.store(g, ins, address, g.E, gather_registers(g, source.row, size, how))
            m.count_lds(g, ins, address, g.E, size, True)
        issue_ds(g, None)

    return make_op(ins, run, "lds", operands[:1], (), extra_reads=reads)


def _transposing(ins: Instruction, operands: list[Operand], size: int, bits: int) -> Op:
    """Transposing read: in each block of 16 lanes the bytes read form rows of 16 elements, and lane i gets column i.

    With 8 bytes a lane, row j of 16-bit elements lies in lanes 4j to 4j+3, of 8-bit ones in lanes 2j and 2j+1, and
    one of 4-bit (or, with 12 bytes, 6-bit) elements in lane j.
    """
    target, row = operands[0].row, operands[1].row
    offset = int(ins.modifiers.get("offset", "0"), 0)
    rows = range(target, target + size // 4)

    def run(g: Group) -> None:
        m = g.machine
        address = _address(g, row, offset)
        m.check_alignment(g, ins, address, g.E, 8)
        data = m.lds.load(g, ins, address, size)
        m.count_lds(g, ins, address, g.E, size, False)
        bit = np.unpackbits(np.ascontiguousarray(data), axis=2, bitorder="little")
        elements = bit.reshape(g.n, 4, -1, 16, bits)  # block of lanes, row, column
        turned = elements.swapaxes(2, 3).reshape(g.n, 64, -1)
        fill_registers(g, target, np.packbits(turned, axis=2, bitorder="little"), "words")
        issue_ds(g, rows)

    return make_op(ins, run, "lds", operands[1:2], (), extra_writes=frozenset(rows))


def _swizzle_lanes(ins: Instruction, ctx: Context) -> Array:
    """Source lane of every lane, from the offset field of ds_swizzle or its written form."""
    lane = np.arange(64)
    text = ins.modifiers.get("offset", "0")
    found = re.fullmatch(r"swizzle\((\w+),(.*)\)", text.replace(" ", ""))
    if found is None:
        code = int(text, 0)
        if code & 0x8000:
            quad = np.array([(code >> (2 * k)) & 3 for k in range(4)])
            return (lane & ~3) + quad[lane & 3]
        and_mask, or_mask, xor_mask = code & 31, (code >> 5) & 31, (code >> 10) & 31
        return (lane & 32) | ((((lane & 31) & and_mask) | or_mask) ^ xor_mask)
    mode, values = found.group(1), found.group(2)
    if mode == "QUAD_PERM":
        quad = np.array([int(x) for x in values.split(",")])
        return (lane & ~3) + quad[lane & 3]
    if mode == "SWAP":
        return lane ^ int(values)
    if mode == "REVERSE":
        size = int(values)
        return (lane & ~(size - 1)) + size - 1 - (lane & (size - 1))
    if mode == "BROADCAST":
        size, which = (int(x) for x in values.split(","))
        return (lane & ~(size - 1)) + which
    if mode == "BITMASK_PERM":
        pattern = values.strip('"')
        result = lane & 32
        for place, char in enumerate(reversed(pattern)):
            bit = (lane >> place) & 1
            result |= {"0": bit * 0, "1": bit * 0 + 1, "p": bit, "i": 1 - bit}[char] << place
        return result
    raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"offset {text}")


def _permute(ins: Instruction, ctx: Context, operands: list[Operand]) -> Op:
    """Lane permutes through the LDS network; a lane that is off gives 0."""
    target = operands[0].row
    rows = range(target, target + 1)
    name = ins.mnemonic
    if name == "ds_swizzle_b32":
        lanes, source = _swizzle_lanes(ins, ctx), operands[1].row

        def move(g: Group) -> Array:
            return np.where(g.E[:, lanes], g.V[source][:, lanes], np.uint32(0))

    else:
        index, source = operands[1].row, operands[2].row
        offset = int(ins.modifiers.get("offset", "0"), 0)

        def move(g: Group) -> Array:
            lane = ((g.V[index].astype(np.int64) + offset) >> 2) & 63
            if name == "ds_bpermute_b32":
                value = np.take_along_axis(g.V[source], lane, axis=1)
                return np.where(np.take_along_axis(g.E, lane, axis=1), value, np.uint32(0))
            result = np.zeros_like(g.V[source])
            wave = np.broadcast_to(np.arange(g.n)[:, None], lane.shape)
            result[wave[g.E], lane[g.E]] = g.V[source][g.E]
            return result

    def run(g: Group) -> None:
        np.copyto(g.V[target], move(g), where=g.E)
        issue_ds(g, rows)

    return make_op(ins, run, "lds", operands[1:], operands[:1])


def _atomic(ins: Instruction, ctx: Context, operands: list[Operand], found: Any) -> Op:
    if found is None:
        suffix, returns = ins.mnemonic.removeprefix("ds_"), False
    else:
        operation, rtn, sign, width = found.groups()
        returns = rtn is not None or operation == "wrxchg"
        if operation == "cmpst":  # LDS compares with the first data operand, memory atomics with the second
            operation = "cmpswap"
        if operation in ("min", "max") and sign in "ui":
            operation = {"u": "u", "i": "s"}[sign] + operation
        suffix = {"wrxchg": "swap"}.get(operation, operation)
        if sign == "f":
            suffix = f"{suffix}_f{width}"
        elif width == "64":
            suffix += "_x2"
    if suffix not in ATOMICS or suffix.startswith("rsub"):
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target)
    offset = int(ins.modifiers.get("offset", "0"), 0)
    shift = 1 if returns else 0
    kind, compares = ATOMICS[suffix]
    size = 8 if kind.endswith("64") else 4
    row, data = operands[shift].row, [o.row for o in operands[shift + 1 :]]
    rows = range(operands[0].row, operands[0].row + size // 4)
    reads = frozenset().union(*(range(d, d + size // 4) for d in data))
    new_row = data[1] if compares else data[0]

    def run(g: Group) -> None:
        m = g.machine
        address = _address(g, row, offset)
        m.check_alignment(g, ins, address, g.E, size)
        new = gather_registers(g, new_row, size, "words")
        wanted = gather_registers(g, data[0], size, "words") if compares else None
        old = m.lds.atomic(g, ins, address, new, wanted, _update(suffix))
        m.count_lds(g, ins, address, g.E, size, True)
        if returns:
            fill_registers(g, rows.start, old, "words")
        issue_ds(g, rows if returns else None)

    writes = frozenset(rows) if returns else frozenset()
    return make_op(ins, run, "lds", operands[shift : shift + 1], (), extra_reads=reads, extra_writes=writes)


def _update(suffix: str) -> Callable[..., Any]:
    return lambda old, new, wanted: apply_atomic(suffix, old, new, wanted)
