"""Operands as written to functions that read and write them for a group of waves.

A reader is a function of a Group that returns something that broadcasts to [waves, 64]: a register row, a
column of scalar registers, or a constant.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UnknownInstruction
from .parse import Instruction
from .state import EXEC, FLAT_SCRATCH, M0, SCALAR, VCC, Group, unpack_mask

__all__ = [
    "Context",
    "Operand",
    "Reader",
    "bits_of",
    "lane_mask",
    "reader",
    "scalar_reader",
    "scalar_writer",
    "writer",
]

Array = Any  # a numpy array; what its elements are is said where it matters
Reader = Callable[[Group], Any]

_REGISTER = re.compile(r"([vsa]|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])$")
_NAMED = {
    "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1),
    "flat_scratch": (FLAT_SCRATCH, 2), "flat_scratch_lo": (FLAT_SCRATCH, 1), "flat_scratch_hi": (FLAT_SCRATCH + 1, 1),
    "xnack_mask": (104, 2), "xnack_mask_lo": (104, 1), "xnack_mask_hi": (105, 1),
}  # fmt: skip
_TTMP = 108


@dataclass(frozen=True, slots=True)
class Operand:
    """kind: "v" (vector row), "s" (scalar row), "const", "scc", "off" or "word" (anything else, in `text`)."""

    kind: str
    text: str
    row: int = 0
    count: int = 1
    value: float | int = 0
    neg: bool = False
    abs: bool = False
    sext: bool = False

    @property
    def rows(self) -> frozenset[int]:
        """Rows as kept in the sets of a Group."""
        if self.kind == "v":
            return frozenset(range(self.row, self.row + self.count))
        if self.kind == "s":
            return frozenset(range(SCALAR + self.row, SCALAR + self.row + self.count))
        return frozenset()


@dataclass(frozen=True, slots=True)
class Context:
    """What decoding needs to know of the kernel: target, first AccVGPR row, float modes."""

    target: str
    acc_base: int
    denormals32: bool = True
    denormals16: bool = True
    index: Operand | None = None  # scalar that s_set_gpr_idx_on adds to register numbers
    index_flags: str = ""

    def operand(self, text: str, ins: Instruction) -> Operand:
        """Parse one operand; raises UnknownInstruction for what has no model."""
        word, neg, absolute, sext = text.strip(), False, False, False
        if word.startswith("-") and not re.match(r"-[\d.]", word):
            word, neg = word[1:], True
        if m := re.fullmatch(r"neg\((.*)\)", word):
            word, neg = m.group(1), True
        if (m := re.fullmatch(r"\|(.*)\|", word)) or (m := re.fullmatch(r"abs\((.*)\)", word)):
            word, absolute = m.group(1), True
        if m := re.fullmatch(r"sext\((.*)\)", word):
            word, sext = m.group(1), True
        if m := _REGISTER.match(word):
            first = int(m.group(2) or m.group(3))
            count = int(m.group(4)) - first + 1 if m.group(4) else 1
            kind = m.group(1)
            if kind in "va":
                row = first + (self.acc_base if kind == "a" else 0)
                return Operand("v", word, row, count, neg=neg, abs=absolute, sext=sext)
            row = first + (_TTMP if kind == "ttmp" else 0)
            return Operand("s", word, row, count, neg=neg, abs=absolute, sext=sext)
        if word in _NAMED:
            row, count = _NAMED[word]
            return Operand("s", word, row, count, neg=neg, abs=absolute)
        if word in ("scc", "src_scc"):
            return Operand("scc", word)
        if word == "off":
            return Operand("off", word)
        value = _constant(word)
        if value is not None:
            return Operand("const", word, value=value, neg=neg, abs=absolute)
        if re.fullmatch(r"[A-Za-z_.][\w.$@()+\-*: ,&|\[\]]*", word):
            return Operand("word", word)
        raise UnknownInstruction(ins.mnemonic, ins.line, self.target, f"operand {text}")


def _constant(word: str) -> int | float | None:
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|0b[01]+|\d+)", word):
        return int(word, 0)
    if re.fullmatch(r"-?\d+\.\d*(e[-+]?\d+)?", word):
        return float(word)
    return None


def bits_of(operand: Operand, width: int, is_float: bool) -> int:
    """Bit pattern that a constant has as a source of `width` bits.

    Written floats are of the operand's format. Integers are bit patterns: a 64-bit float source takes a 32-bit
    literal as its high half, any other 64-bit source sign-extends an inline integer and zero-extends a literal.
    """
    value = operand.value
    if isinstance(value, float):
        if width == 64 and is_float:
            return int(struct.unpack("<Q", struct.pack("<d", value))[0])
        if width == 16:
            return int(np.float16(value).view(np.uint16))
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    if width == 64 and is_float and not -16 <= value <= 64:
        return (value & 0xFFFFFFFF) << 32 if value <= 0xFFFFFFFF else value
    return value & ((1 << width) - 1)


#: type -> (bits, numpy type)
TYPES: dict[str, tuple[int, Any]] = {
    "u8": (8, np.uint8), "i8": (8, np.int8),
    "u16": (16, np.uint16), "i16": (16, np.int16), "f16": (16, np.float16),
    "u32": (32, np.uint32), "i32": (32, np.int32), "f32": (32, np.float32),
    "u64": (64, np.uint64), "i64": (64, np.int64), "f64": (64, np.float64),
}  # fmt: skip


def reader(operand: Operand, kind: str, ctx: Context, ins: Instruction, high: bool = False) -> Reader:
    """Reader of one source as `kind`; `high` takes the upper half of a 32-bit register as a 16-bit source."""
    width, dtype = TYPES[kind]
    row = operand.row
    read: Reader
    if operand.kind == "const":
        pattern = bits_of(operand, width, kind[0] == "f")
        if high:  # an inline integer is sign-extended to 32 bits, an inline float stands in the low half only
            whole = bits_of(operand, 16 if isinstance(operand.value, float) else 32, False)
            pattern = (whole >> 16) & 0xFFFF
        constant = np.array(pattern, np.dtype(f"u{width // 8}")).view(dtype)
        read = lambda g: constant  # noqa: E731
    elif operand.kind == "v":
        read = _vector(row, width, dtype, high)
    elif operand.kind == "s":
        scalar = _scalar(row, width, dtype, high)
        read = lambda g: scalar(g)[:, None]  # noqa: E731
    elif operand.kind == "scc" and width == 32:
        read = lambda g: g.scc.astype(dtype)[:, None]  # noqa: E731
    else:
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, f"source {operand.text} as {kind}")
    return _modified(operand, read, kind)


def _modified(operand: Operand, read: Reader, kind: str) -> Reader:
    if operand.abs and operand.neg:
        return lambda g: -np.abs(read(g))
    if operand.abs:
        return lambda g: np.abs(read(g))
    if operand.neg:
        if kind[0] != "f":
            flip = TYPES[kind][1](1 << (TYPES[kind][0] - 1)) if kind[0] == "u" else None
            return (lambda g: read(g) ^ flip) if flip is not None else (lambda g: -read(g))
        return lambda g: -read(g)
    return read


def _vector(row: int, width: int, dtype: Any, high: bool) -> Reader:
    if width == 32:
        if dtype is np.uint32:
            return lambda g: g.V[row]
        if dtype is np.int32:
            return lambda g: g.N[row]
        return lambda g: g.F[row]
    if width == 64:
        return lambda g: (g.V[row].astype(np.uint64) | (g.V[row + 1].astype(np.uint64) << np.uint64(32))).view(dtype)
    if width == 16:
        start = 1 if high else 0
        return lambda g: g.H[row][:, start::2].view(dtype)
    return lambda g: g.V[row].astype(np.uint8).view(dtype)


def _scalar(row: int, width: int, dtype: Any, high: bool = False) -> Reader:
    if width == 32:
        if dtype is np.uint32:
            return lambda g: g.S[row]
        if dtype is np.int32:
            return lambda g: g.SI[row]
        return lambda g: g.SF[row]
    if width == 64:
        return lambda g: g.scalar64(row).view(dtype)
    shift = np.uint32(16 if high else 0)
    unsigned = np.uint16 if width == 16 else np.uint8
    return lambda g: (g.S[row] >> shift).astype(unsigned).view(dtype)


def scalar_reader(operand: Operand, kind: str, ctx: Context, ins: Instruction) -> Reader:
    """Reader of a source of a scalar instruction: shape [waves] or a constant."""
    if operand.kind == "s":
        return _scalar(operand.row, *TYPES[kind])
    if operand.kind == "scc":
        dtype = TYPES[kind][1]
        return lambda g: g.scc.astype(dtype)
    return reader(operand, kind, ctx, ins)


def scalar_writer(operand: Operand, kind: str) -> Callable[[Group, Any], None]:
    """Writer of a scalar destination; derived lane masks follow a write to EXEC."""
    row, width = operand.row, TYPES[kind][0]
    if width == 64:
        return lambda g, value: g.set_scalar64(row, np.asarray(value).astype(np.uint64, copy=False))
    if row in (EXEC, EXEC + 1):

        def write_exec(g: Group, value: Any) -> None:
            g.S[row] = value
            g.refresh_exec()

        return write_exec
    if kind == "i32":
        return lambda g, value: g.SI[row].__setitem__(..., value)
    if kind == "f32":
        return lambda g, value: g.SF[row].__setitem__(..., value)
    return lambda g, value: g.S[row].__setitem__(..., value)


def writer(operand: Operand, kind: str, keep_high: bool = False, high: bool = False) -> Callable[[Group, Any], None]:
    """Writer of a vector destination in the active lanes.

    A 16-bit result clears the upper half of the register, unless `keep_high`; `high` writes the upper half.
    """
    row, (width, dtype) = operand.row, TYPES[kind]
    if width == 64:

        def write64(g: Group, value: Any) -> None:
            raw = np.asarray(value, dtype).view(np.uint64)
            low, top = raw.astype(np.uint32), (raw >> np.uint64(32)).astype(np.uint32)
            np.copyto(g.V[row], low, where=g.E)
            np.copyto(g.V[row + 1], top, where=g.E)

        return write64
    if width == 16:
        if keep_high or high:
            start = 1 if high else 0

            def write16(g: Group, value: Any) -> None:
                np.copyto(g.H[row][:, start::2].view(dtype), value, where=g.E, casting="unsafe")

            return write16

        def write16_clear(g: Group, value: Any) -> None:
            raw = np.asarray(value).astype(dtype, copy=False).view(np.uint16)
            np.copyto(g.V[row], raw, where=g.E)

        return write16_clear
    view = {np.uint32: "V", np.int32: "N", np.float32: "F"}[dtype]

    def write32(g: Group, value: Any) -> None:
        target = getattr(g, view)[row]
        if g.full:
            target[...] = value
        else:
            np.copyto(target, value, where=g.E, casting="unsafe")

    return write32


def lane_mask(operand: Operand) -> Reader:
    """Reader of a pair of scalar registers as a mask of shape [waves, 64]."""
    row = operand.row
    if operand.kind == "const":
        word = np.array([int(operand.value) & 0xFFFFFFFFFFFFFFFF], np.uint64)
        return lambda g: unpack_mask(word)
    return lambda g: unpack_mask(g.scalar64(row))
