"""Host functions of an emitted GEMM that pre-shuffle its operands, and what run() says of them."""

from __future__ import annotations

from closedform.operators.gemm import Gemm

from .emit_text import fill, join, piece

__all__ = ["host_parts", "pack_functions"]

_PACK_FUNCTIONS = '''
class PackedOperand(NamedTuple):
    """An operand in the order of its fragments; any kernel of the same order of rows takes it.

    data: [batch, blocks, reads, lanes, VEC], zeros past its `rows` (columns of op(B)) and past its `k`; order: the row
    that lies in each place of a span.
    """

    data: torch.Tensor
    rows: int
    k: int
    order: tuple


@packers@


def pre_shuffled(t, span, row_of):
    """[batch, rows, k] in blocks of ATOM_MN rows of that order; a read is VEC elements of k of each of 64 lanes."""
    t = batched(t)
    batch, rows, k = t.shape
    blocks, reads, lanes, vec = packed_shape(rows, k, span)
    padded = raw(t).new_zeros(batch, blocks * ATOM_MN, reads * GROUPS * vec)
    padded[:, :rows, :k] = raw(t)
    image = padded[:, row_of(torch.arange(blocks * ATOM_MN, device=t.device))]
    parts = image.view(batch, blocks, ATOM_MN, reads, GROUPS, vec).permute(0, 1, 3, 4, 2, 5)
    data = parts.reshape(batch, blocks, reads, lanes, vec).view(TORCH_DTYPE)
    return PackedOperand(data, rows, k, tuple(row_of(row) for row in range(span)))


def packed_shape(rows, k, span):
    """Blocks, reads, lanes and elements: rows in whole spans, k in whole tiles."""
    blocks, reads = ceil_div(rows, span) * span // ATOM_MN, ceil_div(k, TILE_K) * (TILE_K // (GROUPS * VEC))
    return blocks, reads, GROUPS * ATOM_MN, VEC


def packed_tensor(t, span, row_of, lines):
    """The packed operand with data [batch, blocks, elements of a block], which the kernel reads in place."""
    if isinstance(t, torch.Tensor) or t.order != tuple(row_of(row) for row in range(span)):
        raise ValueError("this kernel takes the operand pre-shuffled by its own pack function or one of the same order")
    shape = packed_shape(t.rows, t.k, span)
    if t.data.dtype != TORCH_DTYPE or tuple(t.data.shape[1:]) != shape:
        want = f"[batch, {', '.join(map(str, shape))}] {TORCH_DTYPE}"
        raise ValueError(f"{t.rows} x {t.k} is packed as {want}, not {tuple(t.data.shape)} {t.data.dtype}")
    data = t.data.contiguous().flatten(2)
    if data.numel() and not addressable(data, VEC, lines // ATOM_MN, ELEM_BYTES):
        raise ValueError(f"{tuple(t.data.shape)}: {lines} rows must lie below 2 GiB, 16-byte aligned")
    return PackedOperand(data, t.rows, t.k, t.order)
'''

_PACKER = '''
def pack_@low@(@low@):
    """@low@ @shape@ of TORCH_DTYPE, with a leading batch axis or without, as run() takes it."""
    return pre_shuffled(@low@@turn@, @span@, @row_of@)
'''

#: Span and order of the rows of an operand.
_ORDER = {"A": ("ATOM_MN", "natural"), "B": ("COLUMN_SPAN", "row_column")}


def pack_functions(op: Gemm) -> str:
    """Packing of the pre-shuffled operands of `op`."""
    packers = []
    for name in op.packed:
        span, row_of = _ORDER[name]
        values = {"low": name.lower(), "span": span, "row_of": row_of, "shape": _stored(op, name)}
        packers.append(fill(piece(_PACKER), {**values, "turn": "" if _along_k(op, name) else ".mT"}))
    return fill(piece(_PACK_FUNCTIONS), {"packers": join(*packers)})


def host_parts(op: Gemm) -> dict[str, str]:
    """What run(), problem() and main() say of A and B, packed or as stored.

    Of each: `a` its tensor, `normal_a` how it is normalised, `extents_a` and `shown_a` its extents, in errors too.
    """
    out: dict[str, str] = {}
    for name, rows in (("A", "TILE_M"), ("B", "TILE_N")):
        low, along_k = name.lower(), _along_k(op, name)
        if name in op.packed:
            out[low], out[f"shown_{low}"] = f"{low}.data", f"{{{low}.rows}} x {{{low}.k}}"
            out[f"normal_{low}"] = f"{low} = packed_tensor({low}, {', '.join(_ORDER[name])}, {rows})"
            out[f"extents_{low}"] = "(a.rows, a.k)" if name == "A" else "(b.k, b.rows)"
        else:
            out[low], out[f"shown_{low}"] = low, f"{{tuple({low}.shape)}}"
            out[f"normal_{low}"] = f"{low} = operand_tensor({low}, {name}_READ, {rows if along_k else 'TILE_K'})"
            out[f"extents_{low}"] = f"{low}.shape[1:]" + ("" if along_k == (name == "A") else "[::-1]")
    out["takes"] = " and ".join(f"{name.lower()} {_stored(op, name)}" for name in "AB" if name not in op.packed)
    out["takes"] += " of TORCH_DTYPE" if out["takes"] else ""
    out["each"] = "; tensors" if op.packed else ", each"
    made = ", ".join(f"{name.lower()} from pack_{name.lower()}()" for name in op.packed)
    out["takes"] = ", ".join(part for part in (out["takes"], made) if part)
    small = 'example("cpu", 16, 16, 16, 1)'
    packed = [f"pack_{name}({name})" if name.upper() in op.packed else name for name in "ab"]
    if op.packed:
        flat = ", ".join(f"{text}.data.flatten(2)" if "(" in text else text for text in packed)
        out["small"] = f"a, b, *rest = {small}\ninputs = [raw(t) for t in ({flat}, *rest)]"
        out["pack"] = f"a, b, *rest = inputs\ngiven = [{', '.join(packed)}, *rest]"
    else:
        out["small"], out["pack"] = f"inputs = [raw(t) for t in {small}]", ""
    out["inputs"] = "given" if op.packed else "inputs"
    return out


def _along_k(op: Gemm, name: str) -> bool:
    """Whether k is contiguous in the operand as stored."""
    return op.layout["AB".index(name)] == ("N" if name == "A" else "T")


def _stored(op: Gemm, name: str) -> str:
    rows = "M" if name == "A" else "N"
    return f"[{rows}, K]" if _along_k(op, name) else f"[K, {rows}]"
