"""The EmitVisitor's methods for conv2d: the tree from device to atom becomes one FlyDSL file."""

from __future__ import annotations

from typing import Any

from closedform.operators.conv2d import Conv2d, Conv2dAtom, Conv2dBlock, Conv2dDevice, Conv2dTiles, Conv2dWave

from . import emit_conv2d_host as host_text
from . import emit_conv2d_loop as conv_text
from . import emit_conv2d_patch as patch_text
from . import emit_gemm_epilogue as epilogue_text
from . import emit_gemm_loop as loop_text
from . import emit_gemm_operand as operand_text
from .conv2d_shape import Conv2dShape
from .derivation import Derivation
from .emit_gemm import FLYDSL_TYPES, IMPORTS, TOLERANCES, TORCH_TYPES
from .emit_mfma import column_order, multiplication
from .emit_text import CEIL_DIV, constants, docstring, fill, join, piece
from .gemm_rules import IN_F32
from .gemm_shape import GRID_X
from .visitor import Visitor

__all__ = ["Conv2dEmit", "conv2d_name"]


class Conv2dEmit(Visitor):
    """Writes one kernel file; every method returns the text of its level.

    The generic (interior) child of each node is visited: all children run the same code, and what they lack past an
    edge is loaded as 0 and not stored.
    """

    def __init__(self, derivation: Derivation) -> None:
        tiles, self.resources, self.grid = derivation.require()
        self.derivation = derivation
        self.shape = Conv2dShape(derivation.op, tiles, derivation.hw)

    def visit_Conv2dDevice(self, node: Conv2dDevice) -> str:
        op, shape = node.op, self.shape
        return (
            join(
                self._header(),
                fill(piece(IMPORTS), {"named": "from typing import NamedTuple" if op.prepacked else "", "llvm": ""}),
                self._constants(),
                piece(CEIL_DIV),
                patch_text.place(shape),
                self.visit(node.interior()[0]),
                conv_text.kernel(shape.channels_last, op.bias, shape.unrolled, op.prepacked),
                host_text.host(op, shape),
            )
            + "\n"
        )

    def visit_Conv2dBlock(self, node: Conv2dBlock) -> str:
        shape = self.shape
        narrow = shape.loads_x.narrow or shape.loads_w.narrow
        guarded = not (shape.loads_x.divides and shape.loads_w.divides)
        return join(
            operand_text.resources(
                narrow, guarded, not shape.op.prepacked, False, (False, False), False, strided=False
            ),
            column_order(shape.layout, "packed" if shape.op.prepacked else "forward"),
            "" if shape.op.prepacked else operand_text.operand(False, False, False),
            patch_text.patch_class(shape),
            patch_text.filter_class(shape),
            self.visit(node.interior()[0]),
        )

    def visit_Conv2dWave(self, node: Conv2dWave) -> str:
        shape, op, tiles = self.shape, node.op, node.tiles
        return join(
            self.visit(node.interior()[0]),
            loop_text.carried("0" if shape.acc_type == "i32" else "0.0"),
            loop_text.order(True, "B" if op.prepacked else "", False),
            epilogue_text.conversions(
                False, "none", op.activation, op.result, shape.work, shape.out_bytes, tiles.store, tiled=False
            ),
            conv_text.block_class(shape.channels_last, shape.unrolled, op.prepacked, shape.single, shape.taps.whole),
            conv_text.output(op.bias, op.activation, shape.acc_type == "i32", shape.work == "f64"),
        )

    def visit_Conv2dAtom(self, node: Conv2dAtom) -> str:
        return multiplication(node.tiles.atom)

    def _header(self) -> str:
        d = self.derivation
        op, tiles, hw = d.op, self.shape.tiles, d.hw
        taps = self.shape.taps
        unified = (
            "" if hw.vgpr_unified else f" ({self.resources.arch_registers} arch, {self.resources.acc_registers} acc)"
        )
        formula = host_text.formula_of(op)
        facts = [
            ("shape", f"X {op.N} x {op.IC} x {op.IH} x {op.IW}, Y {op.N} x {op.OC} x {op.OH} x {op.OW} (run-time)"),
            (
                "filter",
                f"{op.KH} x {op.KW}, stride {op.stride[0]} x {op.stride[1]}, dilation {op.dilation[0]} x "
                f"{op.dilation[1]}, {op.groups} group(s), pads {op.pad} (run-time)",
            ),
            ("layout", op.layout),
            ("types", f"{op.dtype} in, {tiles.atom.dtype_acc} accumulation, {op.result} out"),
            ("target", f"{hw.name} ({hw.gfx}), atom {tiles.atom.instruction}"),
            (
                "tiles",
                f"{tiles.tile_oc} channels x {tiles.tile_n} x {tiles.tile_h} x {tiles.tile_w} pixels x "
                f"{tiles.tile_ic} channels, waves {tiles.wave_oc} x {tiles.wave_px}",
            ),
        ]
        if self.shape.replicated:
            facts.append(("taps", f"{taps.rows} x {taps.cols}, of {taps.channels} channels from {op.channels}"))
        facts += [
            (
                "registers",
                f"at most {self.resources.registers} of {self.resources.register_budget} a lane{unified}, "
                f"{tiles.waves_per_simd} wave(s) per SIMD",
            ),
            ("LDS", f"{self.resources.lds_bytes} of {self.resources.lds_limit_bytes} bytes"),
            ("grid", f"{self.grid.blocks} workgroups, {self.grid.rounds} round(s) on {self.grid.num_cus} CUs"),
            ("emitted by", "closedform; needs flydsl and torch"),
        ]
        return docstring(f"Direct 2D convolution Y = {formula} for {hw.gfx}.", facts)

    def _filter_constants(self) -> list[tuple[str, Any, str]]:
        """Where the filter passes through, LDS or packed to registers, and what of it and of X is under way."""
        shape, staged = self.shape, self.shape.staged_x
        if shape.op.prepacked:
            return [
                ("FRAGMENTS", "READS * A_ATOMS", "chunks that a step reads"),
                ("PATCH_WORDS", shape.patch_bytes // 4, ""),
                ("ATOM_BYTES, SLICE_BYTES", "STEPS * READS * 1024, TILE_OC * TILE_IC * ELEM_BYTES", "of the filter"),
                ("PATCH_STAGED", staged, "chunks of X that a thread keeps under way"),
                ("FILTER_STAGED", "STEPS * READS * B_ATOMS", "chunks of the filter that a lane holds"),
            ]
        swizzle = shape.layout.swizzle
        shifts = f"{swizzle.first}, {swizzle.second}, {swizzle.mask}"
        return [
            ("FRAGMENTS", "READS * (A_ATOMS + B_ATOMS)", "chunks that a step reads"),
            ("SWIZZLE_FIRST, SWIZZLE_SECOND, SWIZZLE_MASK", shifts, "XOR of chunk and row of the filter"),
            ("PATCH_WORDS, FILTER_WORDS", f"{shape.patch_bytes // 4}, TILE_OC * ROW_WORDS", ""),
            (
                "PATCH_STAGED, FILTER_STAGED",
                f"{staged}, {shape.loads_w.units_a_thread}",
                "chunks under way of a thread",
            ),
        ]

    def _constants(self) -> str:
        shape = self.shape
        op, tiles, layout, hw, patch, taps = shape.op, shape.tiles, shape.layout, shape.hw, shape.patch, shape.taps
        out = op.result
        last = op.layout == "NHWC"
        rows: list[tuple[str, Any, str]] = [
            ("TARGET", f'"{hw.gfx}"', ""),
            ("TORCH_DTYPE, ELEM_BYTES", f"torch.{TORCH_TYPES[op.dtype]}, {shape.elem_bytes}", ""),
            ("TORCH_OUT, OUT_BYTES", f"torch.{TORCH_TYPES[out]}, {shape.out_bytes}", ""),
            (
                "ACC_TYPE, WORK, OUT",
                ", ".join(f"fx.{FLYDSL_TYPES[name]}" for name in (shape.acc_type, shape.work, out)),
                "of sums, epilogue, Y",
            ),
            ("KERNEL, STRIDE, DILATION", f"{taps.kernel}, {op.stride}, {op.dilation}", "rows, columns"),
            ("PAD, GROUPS_OF_CHANNELS", f"{op.pad}, {op.groups}", "defaults of run(): above, below, left, right"),
            ("AXES", "(0, 3, 1, 2)" if last else "(0, 1, 2, 3)", "of images, channels, rows, columns"),
            ("TILE_OC, TILE_IC", f"{tiles.tile_oc}, {tiles.tile_ic}", "channels of a workgroup, of a slice"),
            ("TILE_N, TILE_H, TILE_W", f"{tiles.tile_n}, {tiles.tile_h}, {tiles.tile_w}", "pixels of a workgroup"),
            ("WAVES_OC, WAVES_PX", f"{tiles.wave_oc}, {tiles.wave_px}", ""),
            ("THREADS", f"WAVES_OC * WAVES_PX * {hw.wavefront_size}", ""),
            ("WAVES_PER_SIMD", tiles.waves_per_simd, "occupancy that the register budget aims at"),
            ("ATOM_MN", tiles.atom.m, tiles.atom.instruction),
            ("A_ATOMS, B_ATOMS", f"{shape.atoms_px}, {shape.atoms_oc}", "of pixels and of channels of a wave"),
            ("GROUPS", layout.groups, "lanes that share a pixel, or a row of the filter"),
            ("ACC", layout.acc, "elements of Y in a lane"),
            ("VEC", layout.vec, "elements of a 16-byte chunk"),
            ("ROW_CHUNKS, ROW_WORDS", f"{layout.chunks}, {layout.row_bytes // 4}", "of an image row of the filter"),
            ("STEPS, READS, MFMAS", f"{layout.steps}, {layout.reads}, {layout.mfmas}", "of a tap, operand, chunk"),
            ("MFMA_WORDS", shape.mfma_words, "of an MFMA operand"),
            ("COLUMN_RUN, COLUMN_SPAN", f"{layout.run}, {layout.span}", "channels of a lane in a row, of its groups"),
            ("SPAN_ATOMS", "COLUMN_SPAN // ATOM_MN", "atoms whose channels are stored together"),
            ("TAP_COLS, TAPS", f"{taps.cols}, {taps.count}", ""),
            ("STRIDE_H, STRIDE_W", f"{taps.stride[0]}, {taps.stride[1]}", ""),
            ("DILATION_H, DILATION_W", f"{taps.dilation[0]}, {taps.dilation[1]}", "elements between taps"),
            ("ROW_PHASES, ROW_SPAN", f"{patch.rows.phases}, {patch.rows.span}", "rows of the patch, by phase"),
            ("COL_PHASES, COL_SPAN", f"{patch.cols.phases}, {patch.cols.span}", ""),
            ("PATCH_ROWS, PATCH_COLS", "ROW_PHASES * ROW_SPAN, COL_PHASES * COL_SPAN", ""),
            ("ROW_PIXELS, PIXELS", f"{patch.row_pixels}, {patch.pixels}", "that are written: of a row, of the patch"),
            ("PIXEL_WORDS, PITCH, IMAGE", f"{patch.pixel_bytes // 4}, {patch.pitch}, {patch.image}", "in LDS"),
            *self._filter_constants(),
            ("PATCH_UNITS", shape.loads_x.units_a_thread, "chunks of the patch of a thread"),
            ("X_READ, W_READ, STORE", f"{tiles.read_x}, {tiles.read_w}, {tiles.store}", "elements of an access"),
            ("CHANNELS", shape.channel_step, "that exist or do not together"),
        ]
        if shape.replicated:
            rows += [
                ("ONE, REPLICATE_H, REPLICATE_W", f"{op.channels}, {taps.factors[0]}, {taps.factors[1]}", "channels"),
                ("ONE_DILATION_H, ONE_DILATION_W", f"{op.dilation[0]}, {op.dilation[1]}", "between neighbours"),
            ]
        reach = tuple(axis.element(axis.extent - 1) + 1 for axis in (patch.rows, patch.cols))
        rows += [
            ("ROW_REACH, COL_REACH", f"{op.reach[0]} + {reach[0]}, {op.reach[1]} + {reach[1]}", "of a tile, at most"),
            ("GRID_X", GRID_X, "workgroups along x"),
            ("OFFSET_LIMIT", "2**31 - 16", "of byte offsets inside a tile"),
            ("OUT_OF_RANGE", "2**31 - 16", "offset past every extent"),
            ("MFMA, READ, WRITE, LOAD", "0x8, 0x100, 0x200, 0x20", "kinds of operations to the scheduler"),
        ]
        if op.activation in IN_F32:
            rows.append(("LOG2_E", "math.log2(math.e)", ""))
        if op.activation == "gelu":
            rows.append(("GELU_T", epilogue_text.GELU_T, ""))
            rows.append(("GELU_P", epilogue_text.GELU_P, "factors of t^0, t^1, ..."))
        rows.append(("TOLERANCE", TOLERANCES[out], "of main(), relative to the largest value"))
        return constants(rows)


def conv2d_name(op: Conv2d, tiles: Conv2dTiles) -> list[str]:
    """Parts of the file name: layout, filter, tiles, and what else tells a kernel from its neighbours."""
    parts = [op.layout.lower(), f"{op.KH}x{op.KW}"]
    parts += [f"s{op.stride[0]}x{op.stride[1]}"] if op.stride != (1, 1) else []
    parts += [f"l{op.dilation[0]}x{op.dilation[1]}"] if op.dilation != (1, 1) else []
    parts.append(f"oc{tiles.tile_oc}_px{tiles.tile_n}x{tiles.tile_h}x{tiles.tile_w}_ic{tiles.tile_ic}")
    parts.append(f"w{tiles.wave_oc}x{tiles.wave_px}")
    parts.append(f"x{tiles.read_x}w{tiles.read_w}y{tiles.store}")
    if (tiles.replicate_h, tiles.replicate_w) != (1, 1):
        parts.append(f"c{op.channels}r{tiles.replicate_h}x{tiles.replicate_w}")
    parts += [op.result] if op.result != op.dtype else []
    parts += ["packed"] if op.prepacked else []
    parts += ["bias"] if op.bias else []
    parts += [op.activation] if op.activation != "none" else []
    return parts
