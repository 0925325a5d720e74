"""Vector memory instructions: buffer, global, flat and scratch loads, stores and atomics, and loads straight to LDS."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomics import ATOMICS, apply_atomic
from .errors import UnknownInstruction
from .op import Op, make_op
from .operands import Context, Operand
from .parse import Instruction
from .scratch import SCRATCH_BASE
from .state import M0, SCALAR, Group
from .waitcnt import LOCAL_MAX, VECTOR_MAX

__all__ = ["decode_vector_memory", "fill_registers", "gather_registers", "issue_vm"]

Array = Any  # a numpy array; what its elements are is said where it matters

_NAME = re.compile(r"(buffer|global|flat|scratch)_(load|store|atomic)_(\w+?)$")

#: Suffix -> (bytes, how the value is placed): "words", or a sub-dword treatment.
WIDTHS: dict[str, tuple[int, str]] = {
    "dword": (4, "words"), "dwordx2": (8, "words"), "dwordx3": (12, "words"), "dwordx4": (16, "words"),
    "ubyte": (1, "zero"), "sbyte": (1, "sign"), "ushort": (2, "zero"), "sshort": (2, "sign"),
    "ubyte_d16": (1, "zero-low"), "ubyte_d16_hi": (1, "zero-high"),
    "sbyte_d16": (1, "sign-low"), "sbyte_d16_hi": (1, "sign-high"),
    "short_d16": (2, "zero-low"), "short_d16_hi": (2, "zero-high"),
    "byte": (1, "low"), "short": (2, "low"), "byte_d16_hi": (1, "high"),
}  # fmt: skip

#: Byte addresses, the lanes that access all of their bytes, and None or, where a range ends inside of a lane's
#: access, the number of its words that are in range.
Address = Callable[[Group], tuple[Array, Array, Array | None]]


def fill_registers(g: Group, row: int, data: NDArray[np.uint8], how: str) -> None:
    """Place loaded bytes [waves, 64, size] into the registers from `row` on."""
    if how == "words":
        words = np.ascontiguousarray(data).view(np.uint32)
        for k in range(words.shape[-1]):
            if g.full:
                g.V[row + k] = words[..., k]
            else:
                np.copyto(g.V[row + k], words[..., k], where=g.E)
        return
    raw = np.ascontiguousarray(data)
    unsigned = raw.view(np.dtype(f"u{raw.shape[-1]}"))[..., 0]
    if how.startswith("sign"):
        signed = unsigned.view(np.dtype(f"i{raw.shape[-1]}")).astype(np.int32)
        value = signed.view(np.uint32)
    else:
        value = unsigned.astype(np.uint32)
    if how.endswith("-low"):
        value = (value & np.uint32(0xFFFF)) | (g.V[row] & np.uint32(0xFFFF0000))
    elif how.endswith("-high"):
        value = (value << np.uint32(16)) | (g.V[row] & np.uint32(0xFFFF))
    np.copyto(g.V[row], value, where=g.E)


def gather_registers(g: Group, row: int, size: int, how: str) -> Array:
    """Bytes [waves, 64, size] of the registers from `row` on, as a store takes them."""
    if how == "words":
        return np.stack([g.V[row + k] for k in range(size // 4)], axis=-1).view(np.uint8)
    shift = np.uint32(16 if how == "high" else 0)
    part = (g.V[row] >> shift).astype(np.dtype(f"u{size}"))
    return part[..., None].view(np.uint8)


def issue_vm(g: Group, rows: range | None, flat: bool = False) -> None:
    """Count one vector memory operation; the rows that it will write wait for it."""
    g.vm_issued += 1
    np.maximum(g.vm_done, g.vm_issued - VECTOR_MAX, out=g.vm_done)
    if flat:
        g.ds_issued += 1
        np.maximum(g.ds_done, g.ds_issued - LOCAL_MAX, out=g.ds_done)
    if rows is not None:
        for row in rows:
            g.vm_ticket[row] = g.vm_issued
            if flat:
                g.ds_ticket[row] = g.ds_issued
        g.pending_vm.update(rows)
        g.hot.update(rows)
        if flat:
            g.pending_ds.update(rows)


def decode_vector_memory(ins: Instruction, ctx: Context) -> Op | None:
    """The Op of a vector memory instruction, None if it is not one."""
    found = _NAME.match(ins.mnemonic)
    if found is None:
        return None
    space, action, suffix = found.groups()
    to_lds = "lds" in ins.modifiers or suffix.startswith("lds_")
    suffix = suffix.removeprefix("lds_")
    operands = [ctx.operand(t, ins) for t in ins.operands]
    known = WIDTHS.get(suffix) if action != "atomic" else ATOMICS.get(suffix)
    if known is None:
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target)
    if set(ins.modifiers) & {"tfe", "addr64"}:
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "tfe and addr64")
    flat = space == "flat"
    if action == "atomic":
        return _atomic(ins, ctx, space, operands, suffix)
    size, how = WIDTHS[suffix]
    if to_lds:
        if size not in (1, 2, 4) and not (ctx.target == "gfx950" and size in (12, 16)):
            raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"{size}-byte load to LDS")
        address, reads = _address(ins, ctx, space, operands, size)
        return _load_to_lds(ins, ctx, address, reads, size)
    data = operands[1] if action == "store" and space != "buffer" else operands[0]
    rest = operands[1:]
    if action == "store" and space != "buffer":
        rest = [operands[0], *operands[2:]]
    if space == "scratch":
        return _scratch(ins, ctx, action, data, rest, size, how)
    address, reads = _address(ins, ctx, space, rest, size)
    count = (size + 3) // 4
    rows = range(data.row, data.row + count)
    if action == "load":
        return _load(ins, address, reads, data, rows, size, how, flat)

    def store(g: Group) -> None:
        where, mask, words = address(g)
        values = gather_registers(g, data.row, size, how)
        m = g.machine
        m.check_alignment(g, ins, where, mask, min(size, 4))
        m.memory.store(g, ins, where, mask, values)
        if words is not None:
            for k in range(size // 4):
                m.memory.store(g, ins, where + 4 * k, words > k, values[..., 4 * k : 4 * k + 4])
        m.count_global(g, ins, where, mask, size, True)
        issue_vm(g, None, flat)

    wide = frozenset(rows)
    return make_op(ins, store, "vmem", reads, (), extra_reads=wide)


def _load(
    ins: Instruction,
    address: Address,
    reads: list[Operand],
    data: Operand,
    rows: range,
    size: int,
    how: str,
    flat: bool,
) -> Op:
    def load(g: Group) -> None:
        values = _loaded(g, ins, address, size)
        fill_registers(g, data.row, values, how)
        issue_vm(g, rows, flat)

    return make_op(ins, load, "vmem", reads, (), extra_writes=frozenset(rows))


def _loaded(g: Group, ins: Instruction, address: Address, size: int) -> Array:
    """Bytes of a load, checked and counted; word by word where a range ends inside of it."""
    where, mask, words = address(g)
    m = g.machine
    m.check_alignment(g, ins, where, mask, min(size, 4))
    values = m.memory.load(g, ins, where, mask, size)
    if words is not None:
        for k in range(size // 4):
            values[..., 4 * k : 4 * k + 4] |= m.memory.load(g, ins, where + 4 * k, words > k, 4)
    m.count_global(g, ins, where, mask, size, False)
    return values


# --- addresses --------------------------------------------------------------------------------------------------
def _address(
    ins: Instruction, ctx: Context, space: str, operands: list[Operand], size: int
) -> tuple[Address, list[Operand]]:
    if space == "buffer":
        return _buffer_address(ins, ctx, operands, size)
    return _global_address(ins, ctx, operands)


def _offset(ins: Instruction) -> int:
    return int(ins.modifiers.get("offset", "0"), 0)


def _global_address(ins: Instruction, ctx: Context, operands: list[Operand]) -> tuple[Address, list[Operand]]:
    offset = np.int64(_offset(ins))
    vector = operands[0]
    scalar = operands[1] if len(operands) > 1 and operands[1].kind == "s" else None
    row = vector.row
    if scalar is not None:
        base = scalar.row

        def with_base(g: Group) -> tuple[Array, Array, Array | None]:
            lane = g.V[row].astype(np.int64) + offset
            return g.scalar64(base).astype(np.int64)[:, None] + lane, g.E, None

        return with_base, [vector, scalar]

    def plain(g: Group) -> tuple[Array, Array, Array | None]:
        low, high = g.V[row].astype(np.int64), g.V[row + 1].astype(np.int64)
        return (low | (high << 32)) + offset, g.E, None

    return plain, [vector]


def _buffer_address(
    ins: Instruction, ctx: Context, operands: list[Operand], size: int
) -> tuple[Address, list[Operand]]:
    """Descriptor arithmetic. What is out of range takes no part: a load gives 0, a store is dropped.

    An access must end within num_records, counting soffset and the instruction's offset; each word of a wide one is
    checked by itself. Only voffset plus the instruction's offset wraps, at 32 bits. With idxen and a stride the
    range is counted in records.
    """
    mods = ins.modifiers
    vector, resource = operands[0], operands[1]
    scalar = operands[2] if len(operands) > 2 else Operand("const", "0")
    offen, idxen = "offen" in mods, "idxen" in mods
    inst = _offset(ins)
    base_row, row = resource.row, vector.row

    def address(g: Group) -> tuple[Array, Array, Array | None]:
        s = g.S
        base = s[base_row].astype(np.int64) | ((s[base_row + 1] & np.uint32(0xFFFF)).astype(np.int64) << 32)
        stride = ((s[base_row + 1] >> np.uint32(16)) & np.uint32(0x3FFF)).astype(np.int64)
        records = s[base_row + 2].astype(np.int64)
        if (s[base_row + 1] >> np.uint32(31)).any() or ((s[base_row + 3] >> np.uint32(23)) & np.uint32(1)).any():
            if not idxen and (base == SCRATCH_BASE).all():
                return _private(g, scalar, inst, row if offen else None), g.E, None
            raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "swizzled or lane-indexed descriptor")
        start = s[scalar.row].astype(np.int64) if scalar.kind == "s" else np.int64(int(scalar.value))
        within = np.full(g.E.shape, inst, np.int64)
        index = np.zeros(g.E.shape, np.int64)
        if offen:
            within = (within + g.V[row + (1 if idxen else 0)]) & 0xFFFFFFFF
        if idxen:
            index += g.V[row]
        column = np.broadcast_to(start, (g.n,))[:, None]
        room = records[:, None] - column - within
        where = base[:, None] + column + within + stride[:, None] * index
        valid = room >= size
        if idxen and stride.any():
            return where, g.E & np.where(stride[:, None] == 0, valid, index < records[:, None]), None
        words = np.where(g.E & ~valid & (room >= 4), room // 4, 0) if size > 4 else None
        return where, g.E & valid, words if words is not None and words.any() else None

    reads = [resource]
    if vector.kind == "v" and (offen or idxen):
        reads.append(vector)
    if scalar.kind == "s":
        reads.append(scalar)
    return address, reads


def _private(g: Group, scalar: Operand, offset: int, row: int | None) -> Array:
    """Addresses through the private segment's descriptor: the scalar offset counts bytes of all 64 lanes."""
    start = g.S[scalar.row].astype(np.int64) // 64 if scalar.kind == "s" else np.int64(int(scalar.value))
    place = np.broadcast_to(start, (g.n,))[:, None] + offset
    return SCRATCH_BASE + np.broadcast_to(place + (g.V[row] if row is not None else 0), g.E.shape)


# --- straight to LDS --------------------------------------------------------------------------------------------
def _load_to_lds(ins: Instruction, ctx: Context, address: Address, reads: list[Operand], size: int) -> Op:
    """Lane l writes `size` bytes at M0 + instruction offset + l * max(size, 4) of its workgroup's LDS.

    M0 counts with 16 bits, on gfx950 with the 18 that its LDS needs.
    """
    offset, step = _offset(ins), max(size, 4)
    lanes = np.arange(64) * step
    limit = np.uint32(0x3FFFF if ctx.target == "gfx950" else 0xFFFF)

    def load(g: Group) -> None:
        m = g.machine
        values = _loaded(g, ins, address, size)
        if size < 4:
            values = np.concatenate([values, np.zeros((*values.shape[:2], 4 - size), np.uint8)], axis=2)
        target = (g.S[M0] & limit).astype(np.int64)[:, None] + offset + lanes
        issue_vm(g, None)
        m.lds.store(g, ins, target, g.E, values, arriving=True)
        m.count_lds(g, ins, target, g.E, values.shape[-1], True)

    return make_op(ins, load, "vmem", reads, (), extra_reads=frozenset({SCALAR + M0}))


# --- scratch ----------------------------------------------------------------------------------------------------
def _scratch(
    ins: Instruction, ctx: Context, action: str, data: Operand, rest: list[Operand], size: int, how: str
) -> Op:
    """scratch_load and scratch_store: an offset into the lane's own memory."""
    vector = rest[0] if rest[0].kind == "v" else None
    scalar = next((o for o in rest if o.kind == "s"), None)
    offset = _offset(ins)
    rows = range(data.row, data.row + (size + 3) // 4)

    def place(g: Group) -> Array:
        where = np.full(g.E.shape, offset, np.int64)
        if vector is not None:
            where += g.V[vector.row]
        if scalar is not None:
            where += g.S[scalar.row][:, None]
        return where

    def load(g: Group) -> None:
        values = g.machine.scratch.load(g, ins, place(g), size)
        fill_registers(g, data.row, values, how)
        issue_vm(g, rows)

    def store(g: Group) -> None:
        g.machine.scratch.store(g, ins, place(g), gather_registers(g, data.row, size, how))
        issue_vm(g, None)

    reads = [o for o in (vector, scalar) if o is not None]
    if action == "load":
        return make_op(ins, load, "scratch", reads, (), extra_writes=frozenset(rows))
    return make_op(ins, store, "scratch", reads, (), extra_reads=frozenset(rows))


# --- atomics ----------------------------------------------------------------------------------------------------
def _atomic(ins: Instruction, ctx: Context, space: str, operands: list[Operand], suffix: str) -> Op:
    """Atomics of one or two registers; with glc or sc0 the old value comes back."""
    kind, compare = ATOMICS[suffix]
    size = 8 if kind.endswith("64") else 4
    returns = bool({"glc", "sc0"} & set(ins.modifiers))
    if space == "buffer":
        data, rest, target = operands[0], operands[1:], operands[0]
    elif returns:
        target, data, rest = operands[0], operands[2], [operands[1], *operands[3:]]
    else:
        target, data, rest = operands[1], operands[1], [operands[0], *operands[2:]]
    address, reads = _address(ins, ctx, space, rest, size)
    count = size // 4
    rows = range(target.row, target.row + count)
    read_rows = frozenset(range(data.row, data.row + count * (2 if compare else 1)))

    def run(g: Group) -> None:
        where, mask, _ = address(g)  # atomics are in range as a whole or not at all
        m = g.machine
        m.check_alignment(g, ins, where, mask, size)
        operand = gather_registers(g, data.row, size, "words")
        expected = gather_registers(g, data.row + count, size, "words") if compare else None
        old = m.memory.atomic(g, ins, where, mask, operand, expected, suffix, apply_atomic)
        m.count_global(g, ins, where, mask, size, True)
        if returns:
            fill_registers(g, target.row, old, "words")
        issue_vm(g, rows if returns else None, space == "flat")

    writes = frozenset(rows) if returns else frozenset()
    return make_op(ins, run, "vmem", reads, (), extra_reads=read_rows, extra_writes=writes)
