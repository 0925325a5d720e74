"""Emits the fragment-layout probe: one wave and one MFMA that show which lane holds which element.

The host packs A and B into registers as the catalogued maps say and reads the registers of C back raw. If
every element of C = A B is different, one wrong lane or register in any of the three maps shows. Every type passes
through memory as 32-bit words, so that the probe needs no type of the host.
"""

from __future__ import annotations

import re

from closedform.hw.atoms import MFMAAtom
from closedform.hw.dtypes import DType
from closedform.hw.errors import BadInput

from .emit_text import constants, docstring, join, piece

__all__ = ["emit_layout_probe"]

#: FlyDSL names of the types that its MMA atom takes, and of accumulators.
_ATOM_TYPES = {
    "f32": "Float32",
    "f16": "Float16",
    "bf16": "BFloat16",
    "i8": "Int8",
    "fp8_e4m3fnuz": "Float8E4M3FNUZ",
    "fp8_e4m3fn": "Float8E4M3FN",
}
_ACC_TYPES = {"f32": "Float32", "f64": "Float64", "i32": "Int32"}
#: Types whose rocdl operand is a vector of themselves; the others are packed into whole words.
_PLAIN_TYPES = {"f64": "Float64", "f32": "Float32", "xf32": "Float32", "f16": "Float16", "bf16": "BFloat16"}
#: Operand formats of the f8f6f4 instructions.
_FORMATS = {"fp8_e4m3fn": 0, "bf8_e5m2": 1, "fp6_e2m3": 2, "bf6_e3m2": 3, "fp4_e2m1": 4}

_IMPORTS = {
    "atom": """
import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir.dialects import fly
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import Vector as Vec
""",
    "rocdl": """
import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir import ir
from flydsl._mlir.dialects import rocdl as operations
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import Vector as Vec
""",
}

_KERNEL = '''
def fragment(words, count, kind):
    """Pointer to this lane's `count` words, as elements of `kind`."""
    alignment = 8 if kind in (fx.Int64, fx.Float64) else 4
    address = fx.Int64(fx.ptrtoint(fx.get_iter(words))) + fx.Int64(gpu.thread_idx.x) * (count * 4)
    return fx.inttoptr(fx.PointerType.get(kind.ir_type, fx.AddressSpace.Global, alignment), address)


def operand(words, count, kind, elements):
    """This lane's part of A or B: a vector, or a number where it is one element."""
    value = Vec(fx.ptr_load(fragment(words, count, kind), Vec.make_type(elements, kind)))
    return value[0].ir_value() if elements == 1 else value.ir_value()


def multiply(a, b, c):
    kind = Vec.make_type(C_ELEMENTS, ACC)
@multiply@


@flyc.kernel(known_block_size=[LANES, 1, 1])
def layout_probe_kernel(A: fx.Tensor, B: fx.Tensor, C: fx.Tensor):
    a = operand(A, A_WORDS, A_KIND, A_ELEMENTS)
    b = operand(B, B_WORDS, B_KIND, B_ELEMENTS)
    product = Vec(multiply(a, b, Vec.filled(C_ELEMENTS, @zero@, ACC).ir_value()))
    fx.ptr_store(product.ir_value(), fragment(C, C_WORDS, ACC))


@flyc.jit
def launch(A: fx.Tensor, B: fx.Tensor, C: fx.Tensor, stream: fx.Stream = fx.Stream(None)):
    layout_probe_kernel(A, B, C).launch(grid=(1, 1, 1), block=(LANES, 1, 1), stream=stream)
'''

_HOST = '''
def run(a, b):
    """Fragments of C [LANES, elements] from the words of A and B [LANES, words], int32, on the GPU."""
    c = torch.zeros(LANES, C_WORDS, dtype=torch.int32, device=a.device)
    launch(a.contiguous(), b.contiguous(), c, fx.Stream(torch.cuda.current_stream(a.device)))
    torch.cuda.synchronize(a.device)
    return c.view(TORCH_ACC)


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    launch(*(torch.zeros(LANES, words, dtype=torch.int32) for words in (A_WORDS, B_WORDS, C_WORDS)))
'''


def emit_layout_probe(atom: MFMAAtom) -> str:
    """Source of the probe of one atom. Raises BadInput for an atom that emitted code cannot use."""
    if atom.emit is None:
        raise BadInput(f"{atom} cannot be emitted: {atom.emit_reason}")
    kernel = piece(_KERNEL).replace("@multiply@", _multiply(atom))
    kernel = kernel.replace("@zero@", "0.0" if atom.dtype_acc.is_float else "0")
    (a_kind, a_elements), (b_kind, b_elements) = (
        _operand(atom, dtype, elements, words)
        for dtype, elements, words in (
            (atom.dtype_a, atom.elements_a, atom.registers_a),
            (atom.dtype_b, atom.elements_b, atom.registers_b),
        )
    )
    head = docstring(
        f"Fragment layout of one {atom.instruction}: C = A B by a single wave.",
        [
            ("A", f"[{atom.m}, {atom.k}] {atom.dtype_a}, {atom.elements_a} elements a lane"),
            ("B", f"[{atom.k}, {atom.n}] {atom.dtype_b}, {atom.elements_b} elements a lane"),
            ("C", f"[{atom.m}, {atom.n}] {atom.dtype_acc}, {atom.elements_c} elements a lane"),
            ("target", atom.gfx),
        ],
    )
    names = constants(
        [
            ("TARGET", f'"{atom.gfx}"', ""),
            ("LANES", atom.c.lanes, ""),
            (
                "A_WORDS, B_WORDS, C_WORDS",
                f"{atom.registers_a}, {atom.registers_b}, {atom.registers_c}",
                "per lane",
            ),
            ("A_KIND, A_ELEMENTS", f"fx.{a_kind}, {a_elements}", "as the instruction takes them"),
            ("B_KIND, B_ELEMENTS", f"fx.{b_kind}, {b_elements}", ""),
            ("ACC, C_ELEMENTS", f"fx.{_ACC_TYPES[atom.dtype_acc.name]}, {atom.elements_c}", ""),
            ("TORCH_ACC", f"torch.{_ACC_TYPES[atom.dtype_acc.name].lower()}", ""),
        ]
    )
    return join(head, piece(_IMPORTS[atom.emit]), names, kernel, piece(_HOST)) + "\n"


def _operand(atom: MFMAAtom, dtype: DType, elements: int, words: int) -> tuple[str, int]:
    """Element type and count of an operand as FlyDSL wants it."""
    if atom.emit == "atom":
        return _ATOM_TYPES[dtype.name], elements
    if dtype.name in _PLAIN_TYPES:
        return _PLAIN_TYPES[dtype.name], elements
    return ("Int64", 1) if words == 2 else ("Int32", words)


def _multiply(atom: MFMAAtom) -> str:
    """The statement that does C = A B + C."""
    if atom.emit == "atom":
        mfma = f"rocdl.MFMA({atom.m}, {atom.n}, {atom.k}, A_KIND, elem_ty_acc=ACC)"
        return f"    return fly.mma_atom_call_ssa([kind], fx.make_mma_atom({mfma}), a, b, c)"
    operation = atom.instruction.removeprefix("v_")
    if operation.endswith("f8f6f4"):
        scaled = operation.replace("mfma_f32", "mfma_scale_f32")
        formats = f"{_FORMATS[atom.dtype_a.name]}, {_FORMATS[atom.dtype_b.name]}"
        return (
            "    no_scale = fx.Int32(0).ir_value()\n"
            f"    return rocdl.{scaled}(kind, [a, b, c, {formats}, 0, no_scale, 0, no_scale])"
        )
    operation = re.sub(r"_(f64|f32|f16)$", r"\1", operation)  # the dialect keeps the older spelling
    modifier = "mfma_neg_modifier" if atom.dtype_a.name == "f64" else "mfma_perm_b"
    return (
        f'    plain = ir.Attribute.parse("#rocdl<{modifier} none>")\n'
        f"    return operations.{operation}(kind, a, b, c, 0, 0, plain).result"
    )
