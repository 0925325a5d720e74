"""Atom level of emitted kernels: one MFMA, and the order of columns that its map of C asks for."""

from __future__ import annotations

from closedform.hw.atoms import F8F6F4_FORMATS, MFMAAtom
from closedform.operators.gemm_layout import GemmLayout

from .emit_text import join, piece

__all__ = ["column_order", "multiplication"]

#: Element types of MFMA operands, by their MLIR name.
OPERAND_TYPES = {
    "f64": "Float64",
    "f32": "Float32",
    "f16": "Float16",
    "bf16": "BFloat16",
    "i64": "Int64",
    "i32": "Int32",
    "i16": "Int16",
}


def multiplication(atom: MFMAAtom) -> str:
    """mma_operand() and mma() of an atom."""
    kind = atom.rocdl_operand
    vector = kind.startswith("vector<")
    element = kind.removeprefix("vector<").removesuffix(">").split("x", 1)[-1] if vector else kind
    cast = f"chunk_of(parts).bitcast(fx.{OPERAND_TYPES[element]})"
    value = f"{cast}.ir_value()" if vector else f"{cast}[0].ir_value()"
    if kind == "i32":
        value = "parts[0].ir_value()"
    elif kind == "f32":
        value = "parts[0].bitcast(fx.Float32).ir_value()"
    if atom.instruction.endswith("f8f6f4"):
        formats = f"{F8F6F4_FORMATS[atom.dtype_a.family]}, {F8F6F4_FORMATS[atom.dtype_b.family]}"
        multiply = (
            "no_scale = fx.Int32(0).ir_value()\n"
            f"    operands = [a, b, c.ir_value(), {formats}, 0, no_scale, 0, no_scale]\n"
            f"    return Vec(rocdl.{atom.rocdl_op}(Vec.make_type(ACC, ACC_TYPE), operands))"
        )
    else:
        modifier = "mfma_neg_modifier" if atom.dtype_a.name == "f64" else "mfma_perm_b"
        multiply = (
            f'plain = ir.Attribute.parse("#rocdl<{modifier} none>")\n'
            "    kind = Vec.make_type(ACC, ACC_TYPE)\n"
            f"    return Vec(operations.{atom.rocdl_op}(kind, a, b, c.ir_value(), 0, 0, plain).result)"
        )
    return join(
        f'def mma_operand(parts):\n    """Words as {atom.instruction} takes them."""\n    return {value}',
        f'def mma(a, b, c):\n    """C + A B of one MFMA on fragments."""\n    {multiply}',
    )


_NATURAL = """
def natural(row):
    return row
"""


def column_order(layout: GemmLayout, *orders: str) -> str:
    """Image row of a column of B, "forward", and back, "inverse" or for a "packed" B, as bit permutations; "natural" is
    the order of A.
    """
    bits = layout.column_bits
    moved = [(source, to) for to, source in enumerate(bits) if source != to]
    kept = sum(1 << source for source, _ in moved)

    def permuted(name: str, pairs: list[tuple[int, int]]) -> str:
        if not pairs:
            return name
        terms = [f"({name} & ~{kept:#x})"]
        for source, to in pairs:
            shift = f"<< {to - source}" if to > source else f">> {source - to}"
            terms.append(f"(({name} & {1 << source:#x}) {shift})")
        return " | ".join(terms)

    forward = f'''
def column_row(column):
    """Image row of a column of op(B): the order that leaves each lane COLUMN_RUN consecutive columns of D."""
    return {permuted("column", moved)}
'''
    inverse = f'''
def row_column(row):
    """Column of op(B) in an image row@why@."""
    return {permuted("row", [(to, source) for source, to in moved])}
'''
    why = ": the order that leaves each lane COLUMN_RUN consecutive columns of D" if "packed" in orders else ""
    return join(
        piece(_NATURAL) if "natural" in orders else "",
        piece(forward) if "forward" in orders else "",
        piece(inverse).replace("@why@", why) if {"inverse", "packed"} & set(orders) else "",
    )
