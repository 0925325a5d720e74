"""Emits the fragment-layout probe: one wave and one MFMA that show which lane holds which element.

The host fills the fragments of A and B as the catalogued maps say and reads the fragments of C back raw. If A
and B are such that every element of C = A B is different, one wrong lane or register in any of the three maps
shows.
"""

from __future__ import annotations

from closedform.hw.atoms import MFMAAtom
from closedform.hw.errors import BadInput

from .emit_text import constants, docstring, join, piece

__all__ = ["emit_layout_probe", "probe_matrices"]

_FLYDSL_TYPES = {
    "f32": "Float32",
    "f16": "Float16",
    "bf16": "BFloat16",
    "i8": "Int8",
    "i32": "Int32",
    "fp8_e4m3fnuz": "Float8E4M3FNUZ",
    "bf8_e5m2fnuz": "Float8E5M2FNUZ",
    "fp8_e4m3fn": "Float8E4M3FN",
    "bf8_e5m2": "Float8E5M2",
}
_TORCH_TYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "i32": "int32",
    "fp8_e4m3fnuz": "float8_e4m3fnuz",
    "bf8_e5m2fnuz": "float8_e5m2fnuz",
    "fp8_e4m3fn": "float8_e4m3fn",
    "bf8_e5m2": "float8_e5m2",
}

_IMPORTS = """
import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir.dialects import fly
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import Vector as Vec
"""

_KERNEL = '''
def address(tensor, elements, elem_bytes):
    """Address of this lane's fragment in a [LANES, elements] tensor."""
    offset = fx.Int64(gpu.thread_idx.x) * (elements * elem_bytes)
    return fx.Int64(fx.ptrtoint(fx.get_iter(tensor))) + offset


def pointer(where, kind, elem_bytes):
    return fx.inttoptr(fx.PointerType.get(kind.ir_type, fx.AddressSpace.Global, elem_bytes), where)


def operand(tensor, elements):
    """This lane's elements of A or B: a vector, or a number where a lane holds one."""
    source = pointer(address(tensor, elements, ELEM_BYTES), DTYPE, ELEM_BYTES)
    fragment = Vec(fx.ptr_load(source, Vec.make_type(elements, DTYPE)))
    return @operand@


@flyc.kernel(known_block_size=[LANES, 1, 1])
def layout_probe_kernel(A: fx.Tensor, B: fx.Tensor, C: fx.Tensor):
    atom = fx.make_mma_atom(rocdl.MFMA(M, N, K, DTYPE, elem_ty_acc=ACC_DTYPE))
    zero = Vec.filled(C_ELEMENTS, @zero@, ACC_DTYPE).ir_value()
    kind = Vec.make_type(C_ELEMENTS, ACC_DTYPE)
    result = Vec(fly.mma_atom_call_ssa([kind], atom, operand(A, A_ELEMENTS), operand(B, B_ELEMENTS), zero))
    fx.ptr_store(result.ir_value(), pointer(address(C, C_ELEMENTS, ACC_BYTES), ACC_DTYPE, ACC_BYTES))


@flyc.jit
def launch(A: fx.Tensor, B: fx.Tensor, C: fx.Tensor, stream: fx.Stream = fx.Stream(None)):
    layout_probe_kernel(A, B, C).launch(grid=(1, 1, 1), block=(LANES, 1, 1), stream=stream)
'''

_HOST = '''
def run(a, b):
    """Fragments of C [LANES, C_ELEMENTS] from those of A and B, each [LANES, elements], on the GPU."""
    c = torch.zeros(LANES, C_ELEMENTS, dtype=TORCH_ACC_DTYPE, device=a.device)
    launch(a.contiguous(), b.contiguous(), c, fx.Stream(torch.cuda.current_stream(a.device)))
    torch.cuda.synchronize(a.device)
    return c


def compile_only():
    """Compiles the kernel for TARGET without a GPU (COMPILE_ONLY=1 FLYDSL_GPU_ARCH=<target>)."""
    a = torch.zeros(LANES, A_ELEMENTS, dtype=TORCH_DTYPE)
    b = torch.zeros(LANES, B_ELEMENTS, dtype=TORCH_DTYPE)
    launch(a, b, torch.zeros(LANES, C_ELEMENTS, dtype=TORCH_ACC_DTYPE))
'''


def emit_layout_probe(atom: MFMAAtom) -> str:
    """Source of the probe of one atom. Raises BadInput for an atom that emitted code cannot use."""
    if atom.emit is None:
        raise BadInput(f"{atom} cannot be emitted: {atom.emit_reason}")
    lanes = atom.c.lanes
    kernel = piece(_KERNEL)
    kernel = kernel.replace("@operand@", "fragment[0].ir_value() if elements == 1 else fragment.ir_value()")
    kernel = kernel.replace("@zero@", "0" if atom.dtype_acc.name == "i32" else "0.0")
    return (
        join(
            docstring(
                f"Fragment layout of one {atom.instruction}: C = A B by a single wave.",
                [
                    ("A", f"[{atom.m}, {atom.k}] {atom.dtype_a}, {atom.elements_a} elements a lane"),
                    ("B", f"[{atom.k}, {atom.n}] {atom.dtype_b}, {atom.elements_b} elements a lane"),
                    ("C", f"[{atom.m}, {atom.n}] {atom.dtype_acc}, {atom.elements_c} elements a lane"),
                    ("target", atom.gfx),
                ],
            ),
            piece(_IMPORTS),
            constants(
                [
                    ("TARGET", f'"{atom.gfx}"', ""),
                    ("DTYPE", f"fx.{_FLYDSL_TYPES[atom.dtype_a.name]}", "of A and B"),
                    ("TORCH_DTYPE", f"torch.{_TORCH_TYPES[atom.dtype_a.name]}", ""),
                    ("ELEM_BYTES", atom.dtype_a.bytes, ""),
                    ("ACC_DTYPE", f"fx.{_FLYDSL_TYPES[atom.dtype_acc.name]}", "of C"),
                    ("TORCH_ACC_DTYPE", f"torch.{_TORCH_TYPES[atom.dtype_acc.name]}", ""),
                    ("ACC_BYTES", atom.dtype_acc.bytes, ""),
                    ("M, N, K", f"{atom.m}, {atom.n}, {atom.k}", ""),
                    ("LANES", lanes, ""),
                    ("A_ELEMENTS", atom.elements_a, "per lane"),
                    ("B_ELEMENTS", atom.elements_b, ""),
                    ("C_ELEMENTS", atom.elements_c, ""),
                ]
            ),
            kernel,
            piece(_HOST),
        )
        + "\n"
    )


def probe_matrices(atom: MFMAAtom) -> tuple[list[list[int]], list[list[int]]]:
    """A [m, k] and B [k, n] of small whole numbers, exact in every type; C[i][j] = n * i + j, all different.

    Two terms of the sum carry it, n * i and 1 * j. With four or more, i and j are split into digits of 4, so
    that no factor needs more than three significant bits:
    64 * 2 (i // 4) + 32 (i % 4) + 4 (j // 4) + j % 4 for 32 columns. The terms sit on the last k of each
    lane group first, so that a wrong k map shows too.

    Raises BadInput for several blocks, and for fewer than two terms.
    """
    if atom.blocks != 1 or atom.k < 2:
        raise BadInput(f"{atom} is not one block with at least two terms")
    a = [[0] * atom.k for _ in range(atom.m)]
    b = [[0] * atom.n for _ in range(atom.k)]
    fine = atom.k >= 4
    places = [atom.k - 1 - (t * atom.k) // 4 for t in range(4)] if fine else [0, 1]
    for i in range(atom.m):
        terms = (2 * (i // 4), i % 4, 1, 1) if fine else (i, 1)
        for place, value in zip(places, terms, strict=True):
            a[i][place] = value
    for j in range(atom.n):
        terms = (2 * atom.n, atom.n, 4 * (j // 4), j % 4) if fine else (atom.n, j)
        for place, value in zip(places, terms, strict=True):
            b[place][j] = value
    return a, b
