"""The EmitVisitor's methods for gemm: the tree from device to atom becomes one FlyDSL file."""

from __future__ import annotations

from typing import Any

from closedform.hw.dtypes import dtype
from closedform.operators.gemm import Gemm, GemmAtom, GemmBlock, GemmDevice, GemmTiles, GemmWave

from . import emit_gemm_epilogue as epilogue_text
from . import emit_gemm_host as host_text
from . import emit_gemm_kernel as kernel_text
from . import emit_gemm_launch as launch_text
from . import emit_gemm_loop as loop_text
from . import emit_gemm_operand as operand_text
from . import emit_gemm_packed as packed_text
from . import emit_gemm_place as place_text
from .derivation import Derivation
from .emit_mfma import column_order, multiplication
from .emit_text import CEIL_DIV, constants, docstring, fill, join, piece
from .gemm_rules import IN_F32
from .gemm_shape import GRID_X, GemmShape
from .visitor import Visitor

__all__ = [
    "FLYDSL_TYPES",
    "IMPORTS",
    "LLVM",
    "TOLERANCES",
    "TORCH_TYPES",
    "GemmEmit",
    "gemm_name",
]

#: FlyDSL and torch names of the types of D; 8-bit floats are put together from words.
FLYDSL_TYPES = {"f64": "Float64", "f32": "Float32", "f16": "Float16", "bf16": "BFloat16", "i32": "Int32"}
TORCH_TYPES = {
    "f64": "float64",
    "f32": "float32",
    "xf32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "i32": "int32",
    "fp8_e4m3fnuz": "float8_e4m3fnuz",
    "bf8_e5m2fnuz": "float8_e5m2fnuz",
    "fp8_e4m3fn": "float8_e4m3fn",
    "bf8_e5m2": "float8_e5m2",
}
#: Error that main() accepts, relative to the largest value; the example's sums are exact.
TOLERANCES = {"f64": 1e-14, "f32": 1e-6, "f16": 1e-3, "bf16": 8e-3, "i32": 0.0}

IMPORTS = """
import math
import sys
@named@

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir import ir
@llvm@
from flydsl._mlir.dialects import rocdl as operations
from flydsl._mlir.dialects.rocdl import raw_ptr_buffer_store
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import T
from flydsl.expr.typing import Vector as Vec
"""


LLVM = "from flydsl._mlir.dialects import llvm"


class GemmEmit(Visitor):
    """Writes one kernel file; every method returns the text of its level.

    The generic (interior) child of each node is visited: all children run the same code, and their clipped extents are
    the ends of buffer descriptors.
    """

    def __init__(self, derivation: Derivation) -> None:
        tiles, self.resources, self.grid = derivation.require()
        self.derivation = derivation
        self.gemm = GemmShape(derivation.op, tiles, derivation.hw)

    @property
    def _packed(self) -> str:
        """Names of the pre-shuffled operands, "" where there are none."""
        return "".join(self.gemm.op.packed)

    @property
    def _needs_llvm(self) -> bool:
        """Whether some operation is written in LLVM's own dialect."""
        return self.gemm.tiles.arrives or any(self._halves) or not self.gemm.hw.vgpr_unified

    @property
    def _scalars(self) -> tuple[str, ...]:
        """Numbers of the epilogue that run() takes."""
        return ("alpha", "beta", "scale") if self.gemm.scaled_out else ("alpha", "beta")

    @property
    def _work(self) -> str:
        """Type that the epilogue computes in: that of the sums, f64 where D holds whole numbers of 32 bits."""
        return "f64" if self.gemm.acc_type == "f64" or self.gemm.op.result == "i32" else "f32"

    @property
    def _halves(self) -> tuple[bool, bool]:
        """Whether LDS reads, and writes, take half a chunk."""
        tiles, half = self.gemm.tiles, 8 // self.gemm.elem_bytes
        return tiles.lds_read == half, tiles.lds_write == half

    @property
    def _orders(self) -> tuple[str, ...]:
        """Directions in which columns of B and image rows are looked up; rows of A keep theirs."""
        if "B" in self._packed:
            return ("natural", "packed")
        return ("natural", "forward", "inverse") if self.gemm.tiles.direct else ("natural", "forward")

    def visit_GemmDevice(self, node: GemmDevice) -> str:
        op, tiles = node.op, self.gemm.tiles
        extra = [name for name, there in (("C", op.has_c), ("bias", op.bias != "none")) if there]
        return (
            join(
                self._gemm_header(),
                fill(
                    piece(IMPORTS),
                    {
                        "named": "from typing import NamedTuple" if op.packed else "",
                        "llvm": LLVM if self._needs_llvm else "",
                    },
                ),
                self._gemm_constants(),
                piece(CEIL_DIV),
                place_text.place(tiles),
                self.visit(node.interior()[0]),
                kernel_text.partials(3 + len(extra), len(self._scalars), tiles),
                kernel_text.kernel(extra, self._scalars, self._packed, tiles),
                launch_text.launch(["A", "B", "D", *extra], self._scalars, tiles),
                host_text.host(op, self._scalars, tiles),
            )
            + "\n"
        )

    def visit_GemmBlock(self, node: GemmBlock) -> str:
        shape, op, tiles = self.gemm, node.op, node.tiles
        kinds = shape.kinds
        guarded = {kind: any(a.kind == kind and not a.divides for a in shape.operands) for kind in kinds}
        narrow = shape.narrow or (op.has_c and tiles.store * shape.out_bytes < 4)
        padded = tiles.pad > 0
        ways = (self._halves[1], tiles.stagger > 1)
        operands = []
        if "AlongK" in kinds:
            operands.append(operand_text.along_k(guarded["AlongK"], tiles.direct, *ways))
        if "AlongRows" in kinds:
            operands.append(operand_text.along_rows(shape.elem_bytes, guarded["AlongRows"], *ways, tiles.stream_k > 0))
        if "Packed" in kinds:
            operands.append(packed_text.packed(self._packed))
        through_lds = self._packed != "AB"
        return join(
            operand_text.resources(
                narrow, any(guarded.values()), through_lds, padded, self._halves, tiles.stream_k > 0
            ),
            column_order(shape.layout, *self._orders),
            operand_text.operand(padded, self._halves[0], tiles.stagger > 1) if through_lds else "",
            *operands,
            self.visit(node.interior()[0]),
        )

    def visit_GemmWave(self, node: GemmWave) -> str:
        shape, op, tiles = self.gemm, node.op, node.tiles
        a, b = shape.operands
        work = self._work
        plain_zeros = shape.hw.vgpr_unified or self._packed != ""  # beside packed chunks there is no room for others
        return join(
            self.visit(node.interior()[0]),
            loop_text.split("0" if shape.acc_type == "i32" else "0.0", self._packed, plain_zeros),
            loop_text.order(tiles.pinned, self._packed, tiles.direct),
            epilogue_text.conversions(op.has_c, op.bias, op.activation, op.result, work, shape.out_bytes, tiles.store),
            loop_text.block_class(a.kind, b.kind, tiles.buffers, tiles.direct, self._halves[0], tiles.stagger > 1),
            epilogue_text.output(op.has_c, op.bias, op.activation, self._scalars, shape.acc_type, work),
        )

    def visit_GemmAtom(self, node: GemmAtom) -> str:
        return multiplication(node.tiles.atom)

    def _gemm_header(self) -> str:
        d = self.derivation
        op, tiles, hw = d.op, self.gemm.tiles, d.hw
        unified = (
            "" if hw.vgpr_unified else f" ({self.resources.arch_registers} arch, {self.resources.acc_registers} acc)"
        )
        formula = "alpha A B" + (" + beta C" if op.has_c else "")
        formula += f" + bias ({op.bias})" if op.bias != "none" else ""
        formula = formula if op.activation == "none" else f"{op.activation}({formula})"
        if self.gemm.scaled_out:
            formula = f"{formula} scale" if op.activation != "none" else f"({formula}) scale"
        stored = f"A [{'M, K' if op.layout[0] == 'N' else 'K, M'}], B [{'K, N' if op.layout[1] == 'N' else 'N, K'}]"
        how = "straight to LDS" if tiles.direct else "through registers"
        ways = [f"rows padded by {tiles.pad}"] if tiles.pad else []
        ways += [f"{tiles.stagger} starts along k"] if tiles.stagger > 1 else []
        loads = ", ".join((how, f"{tiles.buffers} buffer(s) in LDS", *ways))
        if op.packed:
            loads = "" if self._packed == "AB" else f", {'A' if self._packed == 'B' else 'B'} {loads}"
            loads = f"pre-shuffled {' and '.join(op.packed)} straight to registers{loads}"
        return docstring(
            f"Matrix product D = {formula} for {hw.gfx}.",
            [
                ("shape", f"M {op.M}, N {op.N}, K {op.K}, batch {op.batch} (run-time), {stored}"),
                ("types", f"{op.dtype} in, {tiles.atom.dtype_acc} accumulation, {op.result} out"),
                ("target", f"{hw.name} ({hw.gfx}), atom {tiles.atom.instruction}"),
                (
                    "tiles",
                    f"{tiles.tile_m} x {tiles.tile_n} x {tiles.tile_k}, waves {tiles.wave_m} x {tiles.wave_n}",
                ),
                ("loads", loads),
                (
                    "registers",
                    f"at most {self.resources.registers} of {self.resources.register_budget} a lane{unified}, "
                    f"{tiles.waves_per_simd} wave(s) per SIMD",
                ),
                ("LDS", f"{self.resources.lds_bytes} of {self.resources.lds_limit_bytes} bytes"),
                ("grid", f"{self.grid.blocks} workgroups, {self.grid.rounds} round(s) on {self.grid.num_cus} CUs"),
                ("emitted by", "closedform; needs flydsl and torch"),
            ],
        )

    def _gemm_constants(self) -> str:
        shape = self.gemm
        op, tiles, layout, hw = shape.op, shape.tiles, shape.layout, shape.hw
        a, b = shape.operands
        row = f"of an image row in LDS, {tiles.pad} elements of pad" if tiles.pad else "of an image row in LDS"
        scalar = "Float64" if shape.acc_type == "f64" else "Float32"
        scalars = "alpha, beta and scale" if shape.scaled_out else "alpha and beta"
        out = op.result
        rows: list[tuple[str, Any, str]] = [
            ("TARGET", f'"{hw.gfx}"', ""),
            ("TORCH_DTYPE, ELEM_BYTES", f"torch.{TORCH_TYPES[op.dtype]}, {shape.elem_bytes}", ""),
            ("TORCH_OUT, OUT_BYTES", f"torch.{TORCH_TYPES[out]}, {shape.out_bytes}", ""),
            ("ACC_TYPE, SCALAR", f"fx.{FLYDSL_TYPES[shape.acc_type]}, fx.{scalar}", f"of sums, of {scalars}"),
            ("WORK", f"fx.{FLYDSL_TYPES[self._work]}", "of the epilogue"),
        ]
        if out in FLYDSL_TYPES:
            rows.append(("OUT", f"fx.{FLYDSL_TYPES[out]}", ""))
        else:
            rows.append(("OUT_MAX", dtype(out).max_finite, "largest number of the type of D"))
        rows += [
            ("TILE_M, TILE_N, TILE_K", f"{tiles.tile_m}, {tiles.tile_n}, {tiles.tile_k}", "of a workgroup"),
            ("WAVES_M, WAVES_N", f"{tiles.wave_m}, {tiles.wave_n}", ""),
            ("THREADS", f"WAVES_M * WAVES_N * {hw.wavefront_size}", ""),
            ("WAVES_PER_SIMD", tiles.waves_per_simd, "occupancy that the register budget aims at"),
            ("ATOM_MN", tiles.atom.m, tiles.atom.instruction),
            ("A_ATOMS, B_ATOMS", f"{shape.atoms_m}, {shape.atoms_n}", "of a wave"),
            ("GROUPS", layout.groups, "lane groups: lanes that share a row of an operand"),
            ("ACC", layout.acc, "elements of D in a lane"),
            ("VEC", layout.vec, "elements of a 16-byte chunk"),
            ("ROW_CHUNKS, ROW_WORDS", f"{layout.chunks}, {layout.row_bytes // 4}", row),
            ("STEPS, READS, MFMAS", f"{layout.steps}, {layout.reads}, {layout.mfmas}", "of a tile, operand, chunk"),
            ("MFMA_WORDS", shape.mfma_words, "of an MFMA operand"),
            *self._lds_constants(),
            ("COLUMN_RUN, COLUMN_SPAN", f"{layout.run}, {layout.span}", "consecutive columns of a lane, of its groups"),
            (
                "SPAN_ATOMS, PARTS",
                "COLUMN_SPAN // ATOM_MN, A_ATOMS * B_ATOMS * ATOM_MN // COLUMN_SPAN",
                "atoms of a part of D that is stored at a time",
            ),
            *self._carried_constants(),
            ("A_READ, B_READ, STORE", f"{tiles.read_a}, {tiles.read_b}, {tiles.store}", "elements of a global access"),
        ]
        if a.kind == "AlongK" or b.kind == "AlongK":
            rows.append(("A_TAIL, B_TAIL", f"{tiles.tail_a}, {tiles.tail_b}", "the same in the partial tile of k"))
        activation: list[tuple[str, Any, str]] = (
            [("LOG2_E", "math.log2(math.e)", "")] if op.activation in IN_F32 else []
        )
        if op.activation == "gelu":
            activation.append(("GELU_T", epilogue_text.GELU_T, ""))
            activation.append(("GELU_P", epilogue_text.GELU_P, "factors of t^0, t^1, ..."))
        if tiles.stagger > 1:
            rows.append(("STAGGER", tiles.stagger, "different tiles of k at which workgroups start"))
        rows += [
            ("GROUP_M", tiles.group_m, "rows of tiles that share columns"),
            *([("XCDS", tiles.xcds, "chiplets that tiles are dealt to")] if tiles.xcds > 1 else []),
            *self._split_constants(),
            ("GRID_X, BATCH_LIMIT", f"{GRID_X}, 65535", "workgroups along x, along z"),
            ("OFFSET_LIMIT", "2**31 - 16", "of byte offsets inside a tile"),
            ("OUT_OF_RANGE", "2**31 - 16", "offset past every extent"),
            ("MFMA, READ, WRITE, LOAD", "0x8, 0x100, 0x200, 0x20", "kinds of operations to the scheduler"),
            *activation,
            ("TOLERANCE", TOLERANCES.get(out, 0.13), "of main(), relative to the largest value"),
        ]
        return constants(rows)

    def _lds_constants(self) -> list[tuple[str, Any, str]]:
        """What passes through LDS: both operands, or the one that is not packed."""
        tiles, swizzle = self.gemm.tiles, self.gemm.layout.swizzle
        if self._packed == "AB":
            return []
        names = [name for name in "AB" if name not in self._packed]
        atoms = " + ".join(f"{name}_ATOMS" for name in names)
        rows = " + ".join(f"TILE_{'M' if name == 'A' else 'N'}" for name in names)
        both = ("({})" if len(names) > 1 else "{}").format
        shifts = f"{swizzle.first}, {swizzle.second}, {swizzle.mask}"
        images = f"images of {' and '.join(names)} in LDS"
        return [
            ("FRAGMENTS", f"READS * {both(atoms)}", "chunks that a step reads"),
            ("BUFFERS, BUFFER_WORDS", f"{tiles.buffers}, {both(rows)} * ROW_WORDS", images),
            *([] if tiles.pad else [("SWIZZLE_FIRST, SWIZZLE_SECOND, SWIZZLE_MASK", shifts, "XOR of chunk and row")]),
        ]

    def _carried_constants(self) -> list[tuple[str, Any, str]]:
        """Loads under way from one tile to the next."""
        shape = self.gemm
        if not self._packed:
            staged = f"{shape.operands[0].registers_loads}, {shape.carried}"
            return [("A_STAGED, CARRIED", staged, "loads that a thread keeps under way")]
        chunks = "chunks of a tile that a lane holds of packed operands"
        if self._packed == "AB":
            return [("PACKED", "STEPS * READS * (A_ATOMS + B_ATOMS)", chunks)]
        return [
            ("PACKED", f"STEPS * READS * {self._packed}_ATOMS", chunks),
            ("CARRIED", shape.carried, "loads that a thread keeps under way on their way to LDS"),
        ]

    def _split_constants(self) -> list[tuple[str, Any, str]]:
        tiles, shape = self.gemm.tiles, self.gemm
        if not tiles.splits:
            return []
        split = (
            ("STREAM_K", tiles.stream_k, "persistent workgroups")
            if tiles.stream_k
            else ("SPLIT_K", tiles.split_k, "parts of the sum over k")
        )
        words = 2 if shape.acc_type == "f64" else 1
        factors = [("FACTOR_WORDS", words, "registers of alpha or beta")] if tiles.stream_k else []
        return [
            split,
            *factors,
            ("ACC_CHUNKS", shape.layout.acc * shape.acc_bytes // 16, "16-byte chunks of an accumulator"),
            ("SLOT_BYTES", f"TILE_M * TILE_N * {shape.acc_bytes}", "partial sums of a tile"),
        ]


def gemm_name(op: Gemm, tiles: GemmTiles) -> list[str]:
    """Parts of the file name: layout, tiles, and what else tells a kernel from its neighbours."""
    vec = 16 // op.elem_bytes
    parts = [op.layout.lower(), f"{tiles.tile_m}x{tiles.tile_n}x{tiles.tile_k}"]
    parts.append(f"w{tiles.wave_m}x{tiles.wave_n}b{tiles.buffers}{'d' if tiles.direct else ''}")
    parts.append(f"a{tiles.read_a}b{tiles.read_b}d{tiles.store}")
    parts += [f"packed{op.preshuffled.lower()}"] if op.packed else []
    if tiles.stream_k:
        parts.append(f"stream{tiles.stream_k}")
    elif tiles.split_k > 1:
        parts.append(f"k{tiles.split_k}{tiles.split_algorithm[0]}")
    parts += [f"pad{tiles.pad}"] if tiles.pad else []
    parts += [f"lds{tiles.lds_read}x{tiles.lds_write}"] if min(tiles.lds_read, tiles.lds_write) < vec else []
    parts += [f"stagger{tiles.stagger}"] if tiles.stagger > 1 else []
    parts += [op.result] if op.result != op.dtype else []
    parts += ["c"] if op.has_c else []
    parts += [f"bias{op.bias}"] if op.bias != "none" else []
    parts += [op.activation] if op.activation != "none" else []
    return parts
