"""The EmitVisitor's methods for the vector kernel of depthwise convolutions: the tree becomes one FlyDSL file."""

from __future__ import annotations

from typing import Any

from closedform.hw.dtypes import dtype
from closedform.operators.conv2d import Conv2d
from closedform.operators.depthwise import (
    Depthwise,
    DepthwiseBlock,
    DepthwiseDevice,
    DepthwiseLanes,
    DepthwiseTiles,
    DepthwiseWave,
)

from . import emit_depthwise_kernel as kernel_text
from . import emit_gemm_epilogue as epilogue_text
from .derivation import Derivation
from .emit_conv2d_host import Side, formula_of, host_of
from .emit_gemm import FLYDSL_TYPES, TOLERANCES, TORCH_TYPES
from .emit_softmax import IMPORTS
from .emit_text import CEIL_DIV, constants, docstring, join, piece
from .gemm_rules import IN_F32
from .gemm_shape import GRID_X
from .visitor import Visitor

__all__ = ["DepthwiseEmit", "depthwise_name"]

_EXACT = """
if (C, OC) != (1, IC):
    raise ValueError(f"{C} channels of a group, {OC} filters: this kernel has one filter for each of {IC} channels")
if OC % VEC:
    raise ValueError(f"{OC} channels: this kernel is built for multiples of {VEC}")
"""

_OFFSETS = '''
def check_offsets(x, y, w):
    """What there is of an image, and the filter, must lie within 31-bit byte offsets."""
    for t, size in ((x, ELEM_BYTES), (y, OUT_BYTES)):
        last = sum((t.shape[axis] - 1) * t.stride(axis) for axis in (1, 2, 3))
        if (last + 1) * size > OFFSET_LIMIT:
            raise ValueError(f"an image of {tuple(t.shape)} does not lie within 2 GiB")
    if w.numel() * ELEM_BYTES > OFFSET_LIMIT:
        raise ValueError(f"the filter {tuple(w.shape)} does not lie within 2 GiB")
'''

_BY_TAPS = '''
def by_taps(w):
    """The filter [@taps@, channels]."""
    w = w.permute(@axes@, AXES[0], AXES[1])
    return w.reshape(w.shape[0], w.shape[1], w.shape[2])
'''


class DepthwiseEmit(Visitor):
    """Writes one kernel file; every method returns the text of its level.

    The generic (interior) child of each node is visited: all children run the same code, and what they lack past an
    edge is loaded as 0 and not stored.
    """

    def __init__(self, derivation: Derivation) -> None:
        self.tiles: DepthwiseTiles
        self.tiles, self.resources, self.grid = derivation.require()
        self.op: Conv2d = derivation.op
        self.hw = derivation.hw
        self.work = Depthwise(self.op, self.tiles)
        self.out_bytes = dtype(self.op.result).bytes

    def visit_DepthwiseDevice(self, node: DepthwiseDevice) -> str:
        work = node.work
        return (
            join(
                self._header(),
                piece(IMPORTS),
                self._constants(),
                piece(CEIL_DIV),
                self.visit(node.interior()[0]),
                kernel_text.kernel(work),
                self._host(node.op),
            )
            + "\n"
        )

    def visit_DepthwiseBlock(self, node: DepthwiseBlock) -> str:
        return join(kernel_text.work(node.work), self.visit(node.interior()[0]))

    def visit_DepthwiseWave(self, node: DepthwiseWave) -> str:
        op, vec = node.op, node.tiles.vec
        return join(
            self.visit(node.interior()[0]),
            epilogue_text.conversions(False, "none", op.activation, op.result, "f32", self.out_bytes, vec, tiled=False),
            kernel_text.output(node.work),
        )

    def visit_DepthwiseLanes(self, node: DepthwiseLanes) -> str:
        return kernel_text.image(node.work)

    def _host(self, op: Conv2d) -> str:
        work = self.work
        names, axes = ("KH", "KW"), ("AXES[2]", "AXES[3]")
        by_taps = piece(_BY_TAPS).replace("@taps@", f"{names[work.b]}, {names[work.a]}")
        side = Side(
            sizes=f"N, IH, IW, OC, OH, OW, pad[0], pad[2], TAPS_{'HW'[work.b]}",
            count=9,
            grid="N, OC, OH, OW",
            exact=piece(_EXACT),
            offsets=piece(_OFFSETS),
            filter="w = aligned(by_taps(w))",
            functions=(by_taps.replace("@axes@", f"{axes[work.b]}, {axes[work.a]}"),),
        )
        return host_of(op, side)

    def _header(self) -> str:
        op, tiles, hw, promised = self.op, self.tiles, self.hw, self.resources
        formula = formula_of(op)
        facts = [
            ("shape", f"X {op.N} x {op.IC} x {op.IH} x {op.IW}, Y {op.N} x {op.OC} x {op.OH} x {op.OW} (run-time)"),
            (
                "filter",
                f"{op.KH} x {op.KW} for each channel, stride {op.stride[0]} x {op.stride[1]}, dilation "
                f"{op.dilation[0]} x {op.dilation[1]}, pads {op.pad} (run-time)",
            ),
            ("layout", op.layout),
            ("types", f"{op.dtype} in, f32 accumulation, {op.result} out"),
            ("target", f"{hw.name} ({hw.gfx}), vector instructions"),
            ("tiles", f"{tiles.strip} outputs x {tiles.vec} channels a thread, {tiles.waves} wave(s)"),
            (
                "registers",
                f"at most {promised.registers} of {promised.register_budget} a lane, "
                f"{tiles.waves_per_simd} wave(s) per SIMD",
            ),
            ("grid", f"{self.grid.blocks} workgroups, {self.grid.rounds} round(s) on {self.grid.num_cus} CUs"),
            ("emitted by", "closedform; needs flydsl and torch"),
        ]
        return docstring(f"Depthwise 2D convolution Y = {formula} for {hw.gfx}.", facts)

    def _constants(self) -> str:
        op, tiles, hw, work = self.op, self.tiles, self.hw, self.work
        a = "HW"[work.a]
        rows: list[tuple[str, Any, str]] = [
            ("TARGET", f'"{hw.gfx}"', ""),
            (
                "DTYPE, TORCH_DTYPE, ELEM_BYTES",
                f"fx.{FLYDSL_TYPES[op.dtype]}, torch.{TORCH_TYPES[op.dtype]}, {op.elem_bytes}",
                "",
            ),
            ("TORCH_OUT, OUT_BYTES", f"torch.{TORCH_TYPES[op.result]}, {self.out_bytes}", ""),
            ("WORK, OUT", f"fx.Float32, fx.{FLYDSL_TYPES[op.result]}", "of sums and epilogue, of Y"),
            ("KERNEL, STRIDE, DILATION", f"{work.kernel}, {op.stride}, {op.dilation}", "rows, columns"),
            ("PAD, GROUPS_OF_CHANNELS", f"{op.pad}, {op.groups}", "defaults of run(): above, below, left, right"),
            ("AXES", "(0, 3, 1, 2)" if op.layout == "NHWC" else "(0, 1, 2, 3)", "of images, channels, rows, columns"),
            ("STRIP, VEC", f"{tiles.strip}, {tiles.vec}", "outputs of a thread next to each other, their channels"),
            ("THREADS", tiles.threads, "of a workgroup"),
            ("WAVES_PER_SIMD", tiles.waves_per_simd, "occupancy that the register budget aims at"),
            ("TAPS_H, TAPS_W", "KERNEL", ""),
            ("STRIDE_H, STRIDE_W", "STRIDE", "elements between outputs"),
            ("DILATION_H, DILATION_W", "DILATION", "elements between taps"),
            (
                "PLACES",
                f"sorted({{j * STRIDE_{a} + k * DILATION_{a} for j in range(STRIP) for k in range(TAPS_{a})}})",
                "of X",
            ),
            ("LINES, TOGETHER", f"{tiles.lines}, {tiles.together}", "lines of taps in an iteration, loads under way"),
            ("READS", "[(line, place) for line in range(LINES) for place in PLACES]", ""),
            ("GROUPS", "[READS[first : first + TOGETHER] for first in range(0, len(READS), TOGETHER)]", ""),
            ("X_READ, STORE", "VEC, VEC", "elements of an access"),
            *([("XCDS", tiles.xcds, "chiplets that workgroups are dealt to")] if tiles.xcds > 1 else []),
            ("GRID_X", GRID_X, "workgroups along x"),
            ("OFFSET_LIMIT", "2**31 - 16", "of byte offsets inside an image"),
            ("OUT_OF_RANGE", "2**31 - 16", "offset past every extent"),
        ]
        if op.activation in IN_F32:
            rows.append(("LOG2_E", "math.log2(math.e)", ""))
        if op.activation == "gelu":
            rows.append(("GELU_T", epilogue_text.GELU_T, ""))
            rows.append(("GELU_P", epilogue_text.GELU_P, "factors of t^0, t^1, ..."))
        rows.append(("TOLERANCE", TOLERANCES[op.result], "of main(), relative to the largest value"))
        return constants(rows)


def depthwise_name(op: Conv2d, tiles: DepthwiseTiles) -> list[str]:
    """Parts of the file name: layout, filter, tiles, and what else tells a kernel from its neighbours."""
    parts = [op.layout.lower(), f"{op.KH}x{op.KW}"]
    parts += [f"s{op.stride[0]}x{op.stride[1]}"] if op.stride != (1, 1) else []
    parts += [f"l{op.dilation[0]}x{op.dilation[1]}"] if op.dilation != (1, 1) else []
    parts.append(f"depthwise_t{tiles.strip}c{tiles.vec}l{tiles.lines}p{tiles.together}w{tiles.waves}")
    parts += [op.result] if op.result != op.dtype else []
    parts += ["bias"] if op.bias else []
    parts += [op.activation] if op.activation != "none" else []
    return parts
