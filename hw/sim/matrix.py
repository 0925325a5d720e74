"""The matrix core: every dense MFMA of a target, through the fragment maps of its atom.

Rounding model: the products and their sum over the k of one instruction are binary32 (binary64 for f64), in the
order of the BLAS that numpy uses; adding the sum to C rounds once more. Products of 16-bit and smaller types are exact
in binary32, and so are the sums of integers, which wrap when added to C. EXEC is ignored. On gfx90a the 16-bit float
instructions flush denormal inputs and results, as AMD documents for that part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..atoms import F8F6F4_FORMATS, MFMAAtom, instructions
from .errors import UnknownInstruction
from .floats import bf16_value, decode_small, flush16, flush32
from .op import Op, make_op
from .operands import Context, Operand, bits_of
from .parse import Instruction
from .state import Group

__all__ = ["Fragment", "atom_of", "decode_matrix", "share_fragments"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: Operand matrices that a group keeps for later MFMAs of the same straight run of instructions.
KEPT_FRAGMENTS = 48


@cache
def _atoms(target: str) -> dict[str, list[MFMAAtom]]:
    found: dict[str, list[MFMAAtom]] = {}
    for atom in instructions(target, target == "gfx908"):
        found.setdefault(atom.instruction, []).append(atom)
    return found


def atom_of(ins: Instruction, target: str) -> MFMAAtom:
    """The atom of an MFMA; an f8f6f4 one is found by its cbsz and blgp. Raises UnknownInstruction."""
    name = ins.mnemonic.removesuffix("_e64")
    candidates = _atoms(target).get(name, [])
    if name.endswith("f8f6f4"):
        wanted = tuple(int(ins.modifiers.get(key, "0"), 0) for key in ("cbsz", "blgp"))
        candidates = [a for a in candidates if (_code(a.dtype_a.name), _code(a.dtype_b.name)) == wanted]
    elif any(int(ins.modifiers.get(key, "0"), 0) for key in ("cbsz", "abid", "blgp")):
        raise UnknownInstruction(ins.mnemonic, ins.line, target, "cbsz, abid and blgp")
    if not candidates:
        raise UnknownInstruction(ins.mnemonic, ins.line, target)
    return candidates[0]


def _code(dtype: str) -> int:
    return F8F6F4_FORMATS[dtype.split("_", maxsplit=1)[0]]


def _fragment_index(table: dict[str, Array], outer: tuple[str, ...], shape: tuple[int, ...]) -> Array:
    """Place in a [elements x 64 lanes] row of the matrix element at each coordinate, coordinates in order `outer`."""
    lanes, elements = table[outer[0]].shape
    index = np.zeros(shape, np.int64)
    lane, element = np.meshgrid(np.arange(lanes), np.arange(elements), indexing="ij")
    index[tuple(table[axis] for axis in outer)] = element * lanes + lane
    return index.reshape(-1)


def _elements(row: int, atom_dtype: str, bits: int, count: int, flush: bool) -> Callable[[Group], Array]:
    """Reader of an operand as float64 (or its integers) of shape [waves, elements * 64]."""
    registers = max(count * bits // 32, 1)

    def raw(g: Group) -> Array:
        return g.V[row : row + registers]

    if bits == 64:
        return lambda g: _pairs(raw(g)).view(np.float64)
    if bits == 32:
        return lambda g: raw(g).view(np.float32).transpose(1, 0, 2).reshape(g.n, -1)
    if bits in (16, 8):
        per = 32 // bits
        unsigned = np.dtype(f"u{bits // 8}")

        def narrow(g: Group) -> Array:
            parts = raw(g).view(unsigned).reshape(registers, g.n, 64, per)
            flat = parts.transpose(1, 0, 3, 2).reshape(g.n, -1)
            return _value(flat, atom_dtype, flush)

        return narrow

    def packed(g: Group) -> Array:
        words = np.ascontiguousarray(raw(g).transpose(1, 2, 0)).view(np.uint8)
        bit = np.unpackbits(words, axis=2, bitorder="little").reshape(g.n, 64, count, bits)
        code = (bit << np.arange(bits, dtype=np.uint8)).sum(axis=3, dtype=np.uint8)
        return decode_small(atom_dtype, code.transpose(0, 2, 1).reshape(g.n, -1))

    return packed


def _pairs(words: Array) -> Array:
    both = words[0::2].astype(np.uint64) | (words[1::2].astype(np.uint64) << np.uint64(32))
    return both.transpose(1, 0, 2).reshape(words.shape[1], -1)


@cache
def _halves() -> tuple[Array, Array]:
    """binary32 values of all binary16 codes, and with denormals flushed; a lookup is faster than the conversion."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return codes.astype(np.float32), flush16(codes).astype(np.float32)


def _value(codes: Array, dtype: str, flush: bool) -> Array:
    if dtype == "f16":
        return _halves()[1 if flush else 0].take(codes)
    if dtype == "bf16":
        single = bf16_value(codes)
        return flush32(single) if flush else single
    if dtype == "i8":
        return codes.view(np.int8)
    return decode_small(dtype, codes)


def _xf32(value: Array) -> Array:
    """binary32 rounded to the 10 mantissa bits of xf32, nearest even."""
    bits = value.view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(value), rounded.view(np.float32), value)


def decode_matrix(ins: Instruction, ctx: Context) -> Op | None:
    """The Op of an MFMA, None for another instruction."""
    name = ins.mnemonic
    if name.startswith("v_smfmac"):
        raise UnknownInstruction(name, ins.line, ctx.target, "sparse matrix instructions")
    if not name.startswith("v_mfma"):
        return None
    scaled = name.startswith("v_mfma_scale")
    if "neg_lo" in ins.modifiers or len(ins.operands) != (6 if scaled else 4):
        raise UnknownInstruction(name, ins.line, ctx.target, f"{len(ins.operands)} operands")
    atom = atom_of(ins, ctx.target)
    target, a, b, c, *scales = (ctx.operand(t, ins) for t in ins.operands)
    product, fragments = _product(atom, a, b, ctx.target)
    if scaled:
        product = _scaled(product, scales, ins, ctx)
    count = atom.elements_c
    flush = _flushes(atom, ctx.target)
    run = _accumulate(atom, product, target, c, count, flush)
    return make_op(ins, run, "mfma", [a, b, c, *scales], [target], whole=True, clocks=atom.cycles, fragments=fragments)


def _scaled(
    product: Callable[[Group], Array], scales: list[Operand], ins: Instruction, ctx: Context
) -> Callable[[Group], Array]:
    """The product times 2**(scale - 127) of A and of B, byte 0 of the scale operands; 255 is NaN.

    Sources disagree on which k a lane's scale covers, so a wave whose lanes differ is refused, and so is another byte.
    """
    if any(word in ins.modifiers for word in ("op_sel", "op_sel_hi")):
        raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "scales of another byte than the first")

    def factor(g: Group, operand: Operand) -> Array:
        if operand.kind != "v":
            codes = np.full((g.n, 1), bits_of(operand, 32, False) & 0xFF)
        else:
            codes = g.V[operand.row] & np.uint32(0xFF)
            if (codes != codes[:, :1]).any():
                raise UnknownInstruction(ins.mnemonic, ins.line, ctx.target, "scales that differ between lanes")
        return np.where(codes[:, 0] == 255, np.nan, np.exp2(codes[:, 0].astype(np.float64) - 127))

    def run(g: Group) -> Array:
        both = factor(g, scales[0]) * factor(g, scales[1])
        return (product(g) * both[:, None, None]).astype(np.float32)

    return run


def _flushes(atom: MFMAAtom, target: str) -> bool:
    return target == "gfx90a" and atom.dtype_a.name in ("f16", "bf16")


class Fragment:
    """One operand of an MFMA as matrices, float32 or float64 of shape [waves, blocks, ., .].

    `token` is set by `share_fragments` where several MFMAs read the same registers unchanged: the first one keeps
    its matrices in the group for the others.
    """

    __slots__ = ("dtype", "index", "read", "rounded", "rows", "shape", "signature", "token")

    def __init__(
        self, atom: MFMAAtom, side: str, operand: Operand, index: Array, shape: tuple[int, ...], dtype: Any, target: str
    ) -> None:
        kind = atom.dtype_a if side == "a" else atom.dtype_b
        count = atom.elements_a if side == "a" else atom.elements_b
        self.read = _elements(operand.row, kind.name, kind.bits, count, _flushes(atom, target))
        self.index, self.shape, self.dtype = index, shape, dtype
        self.rounded = kind.name == "xf32"
        self.rows = operand.rows
        self.signature = (side, atom.instruction, kind.name, operand.row)
        self.token = 0

    def __call__(self, g: Group) -> Array:
        if self.token and (known := g.fragments.get(self.token)) is not None:
            return known
        value = self.read(g).astype(self.dtype, copy=False).take(self.index, axis=1)
        if self.rounded:
            value = _xf32(value)
        value = value.reshape(g.n, *self.shape)
        if self.token:
            if len(g.fragments) >= KEPT_FRAGMENTS:
                del g.fragments[next(iter(g.fragments))]
            g.fragments[self.token] = value
        return value


def share_fragments(ops: list[Op], joins: set[int]) -> None:
    """Find operands that several MFMAs of a straight run of instructions read unchanged, and give them one token."""
    uses: dict[tuple[Any, ...], list[Fragment]] = {}
    written: dict[int, int] = {}
    block = 0
    for place, op in enumerate(ops):
        if place in joins or (op.flow and op.flow != "wait") or op.kind == "indexed":
            block, written = place, {}
        for fragment in op.fragments:
            since = max((written.get(row, -1) for row in fragment.rows), default=-1)
            uses.setdefault((fragment.signature, block, since), []).append(fragment)
        for row in op.writes:
            written[row] = place
    for token, shared in enumerate(uses.values(), 1):
        for fragment in shared:
            fragment.token = token if len(shared) > 1 else 0


def _row_order(table: dict[str, Array], m: int, n: int) -> Array | None:
    """Rows of A for which the product comes out in the element order of C, None if no order of rows does it.

    It does where the column is the lane modulo n and the row follows from the element and the lane's group of n.
    """
    lanes, elements = table["m"].shape
    groups = lanes // n
    row = (table["block"] * m + table["m"]).reshape(groups, n, elements)
    column = table["n"].reshape(groups, n, elements)
    if (row != row[:, :1]).any() or (column != np.arange(n)[None, :, None]).any():
        return None
    return row[:, 0].T.reshape(-1)


def _product(
    atom: MFMAAtom, a: Operand, b: Operand, target: str
) -> tuple[Callable[[Group], Array], tuple[Fragment, Fragment]]:
    """A B of every wave and block in the element order of C, shape [waves, elements, 64], and its two operands."""
    m, n, k, blocks = atom.m, atom.n, atom.k, atom.blocks
    index_a = _fragment_index(atom.a.table(), ("block", "m", "k"), (blocks, m, k))
    index_b = _fragment_index(atom.b.table(), ("block", "k", "n"), (blocks, k, n))
    table_c = atom.c.table()
    order = _row_order(table_c, m, n)
    if order is not None and (order // m == np.repeat(np.arange(blocks), m)).all():
        index_a = index_a.reshape(blocks * m, k)[order].reshape(-1)
        index_c = None
    else:
        index_c = ((table_c["block"] * m + table_c["m"]) * n + table_c["n"]).T.reshape(-1)
    dtype = np.float64 if atom.dtype_acc.name == "f64" else np.float32
    left = Fragment(atom, "a", a, index_a, (blocks, m, k), dtype, target)
    right = Fragment(atom, "b", b, index_b, (blocks, k, n), dtype, target)

    def run(g: Group) -> Array:
        whole = (left(g) @ right(g)).reshape(g.n, -1)
        return (whole if index_c is None else whole.take(index_c, axis=1)).reshape(g.n, -1, 64)

    return run, (left, right)


def _accumulate(
    atom: MFMAAtom, product: Callable[[Group], Array], target: Operand, c: Operand, count: int, flush: bool
) -> Callable[[Group], None]:
    row, first = target.row, c.row
    kind = atom.dtype_acc.name
    if kind == "f64":
        constant = np.array(bits_of(c, 64, True), np.uint64).view(np.float64)

        def run64(g: Group) -> None:
            old: Any = constant
            if c.kind == "v":
                old = _pairs(g.V[first : first + 2 * count]).view(np.float64).reshape(g.n, count, 64)
            total = np.ascontiguousarray((product(g) + old).transpose(1, 0, 2)).view(np.uint64)
            g.V[row : row + 2 * count : 2] = total.astype(np.uint32)
            g.V[row + 1 : row + 2 * count : 2] = total >> np.uint64(32)

        return run64
    word = np.array(bits_of(c, 32, kind == "f32"), np.uint32)

    def run(g: Group) -> None:
        part = product(g).transpose(1, 0, 2)
        if kind == "f32":
            old: Any = g.F[first : first + count] if c.kind == "v" else word.view(np.float32)
            result = g.F[row : row + count]
            np.add(part, old, out=result)
            if flush:
                result[...] = flush32(result)
        else:
            start: Any = g.N[first : first + count] if c.kind == "v" else word.view(np.int32)
            g.N[row : row + count] = part.astype(np.int32) + start

    return run
