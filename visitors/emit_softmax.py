"""The EmitVisitor's methods for softmax: the tree from device to lanes becomes one FlyDSL file."""

from __future__ import annotations

from typing import Any

from closedform.hw.errors import BadInput
from closedform.operators.policy import Pad
from closedform.operators.softmax import (
    COLS_MAX,
    ROWS_MAX,
    Softmax,
    SoftmaxBlock,
    SoftmaxDevice,
    SoftmaxLanes,
    SoftmaxTiles,
    SoftmaxWave,
)

from . import emit_softmax_host as host_text
from . import emit_softmax_kernel as kernel_text
from . import emit_softmax_row as row_text
from . import emit_softmax_state as state_text
from .derivation import Derivation
from .emit_attention import FLYDSL_TYPES, TORCH_TYPES
from .emit_text import CEIL_DIV, constants, docstring, join, piece
from .gemm_shape import GRID_X
from .visitor import Visitor

__all__ = ["IMPORTS", "SoftmaxEmit", "softmax_name"]

#: Error of main() against float64, relative to the row's largest value.
TOLERANCES = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
#: Control words of the DPP moves that pair lanes 1, 2, 4 and 8 apart: two permutes of four lanes, and the mirrors of
#: half a row of 16 lanes and of a whole one.
DPP = {1: 0xB1, 2: 0x4E, 4: 0x141, 8: 0x140}

IMPORTS = """
import math
import sys

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir.dialects.rocdl import raw_ptr_buffer_store
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import T
from flydsl.expr.typing import Vector as Vec
"""


class SoftmaxEmit(Visitor):
    """Writes one kernel file; every method returns the text of its level.

    The generic (interior) child of each node is visited: all children run the same code, and what of an access does
    not exist is the tree's padding.
    """

    def __init__(self, derivation: Derivation) -> None:
        tiles: SoftmaxTiles
        tiles, self.resources, self.grid = derivation.require()
        self.tiles = tiles
        self.op: Softmax = derivation.op
        self.hw = derivation.hw

    def visit_SoftmaxDevice(self, node: SoftmaxDevice) -> str:
        return (
            join(
                self._header(),
                piece(IMPORTS),
                self._constants(),
                piece(CEIL_DIV),
                self.visit(node.interior()[0]),
                kernel_text.kernels(self.op, self.tiles),
                host_text.host(self.op, self.tiles),
            )
            + "\n"
        )

    def visit_SoftmaxBlock(self, node: SoftmaxBlock) -> str:
        op, tiles = self.op, self.tiles
        return join(
            row_text.rows(tiles.ends, op.elem_bytes < 4, op.mask, tiles.splits > 1), self.visit(node.interior()[0])
        )

    def visit_SoftmaxWave(self, node: SoftmaxWave) -> str:
        return str(self.visit(node.interior()[0]))

    def visit_SoftmaxLanes(self, node: SoftmaxLanes) -> str:
        """The monoid on lanes. Its identity must be what absent elements are in the tree."""
        if node.boundary["X"] is not Pad.MAX_IDENTITY:
            raise BadInput(f"an absent logit is the identity of the maximum, not {node.boundary['X']}")
        op, tiles = self.op, self.tiles
        return state_text.state(
            log=op.log,
            lse=op.lse,
            zero=op.empty == "zero",
            combines=tiles.passes == 2 or tiles.row_waves > 1,
            waves=tiles.row_waves > 1,
            absorbs=tiles.passes == 2,
        )

    def _header(self) -> str:
        op, tiles, promised, grid = self.op, self.tiles, self.resources, self.grid
        what = "O = X - lse(X)" if op.log else "O = exp(X - lse(X))"
        read = "once: it stays in registers" if tiles.passes == 1 else "twice"
        shared = f", {tiles.splits} workgroups a row" if tiles.splits > 1 else f", {tiles.block_rows} rows a workgroup"
        options = [name for name in ("mask", "lse") if getattr(op, name)]
        return docstring(
            f"Softmax along rows, {what}, for {self.hw.gfx}.",
            [
                ("shape", f"{op.rows} rows of {op.cols}; run-time, as is the row stride"),
                ("types", f"{op.dtype} in and out, f32 arithmetic"),
                *([("options", ", ".join(options))] if options else []),
                ("target", f"{self.hw.name} ({self.hw.gfx})"),
                ("tiles", f"{tiles.lanes} lanes a row, {tiles.chunks} accesses of {tiles.vec} elements a lane{shared}"),
                ("reads", f"each row {read}"),
                ("registers", f"at most {promised.registers} of {promised.register_budget} a lane"),
                ("LDS", f"{promised.lds_bytes} of {promised.lds_limit_bytes} bytes"),
                (
                    "grid",
                    f"{' x '.join(map(str, grid.grid))} workgroups, {grid.rounds} round(s) on {grid.num_cus} CUs",
                ),
                ("emitted by", "closedform; needs flydsl and torch"),
            ],
        )

    def _constants(self) -> str:
        op, tiles = self.op, self.tiles
        rows: list[tuple[str, Any, str]] = [
            ("TARGET", f'"{self.hw.gfx}"', ""),
            (
                "DTYPE, TORCH_DTYPE, ELEM_BYTES",
                f"fx.{FLYDSL_TYPES[op.dtype]}, torch.{TORCH_TYPES[op.dtype]}, {op.elem_bytes}",
                "",
            ),
            ("VEC", tiles.vec, "elements of a 16-byte access"),
            ("LANES, GROUP", f"{tiles.lanes}, {tiles.group}", "that share a row: of a workgroup, of a wave"),
            ("CHUNKS", tiles.chunks, "accesses of a lane in a step"),
            ("ROWS", tiles.block_rows, "of a workgroup"),
            *([("SPLITS", tiles.splits, "workgroups that share a row")] if tiles.splits > 1 else []),
            ("THREADS", "LANES * ROWS", ""),
            ("WAVES_PER_SIMD", tiles.waves_per_simd, "occupancy asked of the compiler"),
        ]
        if tiles.row_waves > 1:
            rows.append(("ROW_WAVES, WAVES", "LANES // GROUP, THREADS // GROUP", "waves of a row, of a workgroup"))
        rows += [
            ("DPP", DPP, "control words by distance of the lanes"),
            ('NEG_INF', 'float("-inf")', "what an absent element counts as"),
            ("LOG2_E", "math.log2(math.e)", ""),
            *([("LN_2", "math.log(2.0)", "")] if op.log or op.lse else []),
            ("GRID_X", GRID_X, "workgroups along x"),
            ("OUT_OF_RANGE", "2**31 - 16", "offset past every extent"),
            ("ROWS_LIMIT, COLS_MAX", f"{ROWS_MAX}, {COLS_MAX}", "of a launch, of byte offsets"),
            *([("COLS_LIMIT", "LANES * CHUNKS * VEC", "of one pass")] if tiles.passes == 1 else []),
            ("TOLERANCE", TOLERANCES[op.dtype], "of main(), relative to the row's largest value"),
        ]
        return constants(rows)


def softmax_name(op: Softmax, tiles: SoftmaxTiles) -> list[str]:
    """Parts of the file name: tiles, and what else tells a kernel from its neighbours."""
    parts = [f"l{tiles.lanes}c{tiles.chunks}r{tiles.block_rows}"]
    parts += [f"p{tiles.passes}"] if tiles.passes > 1 else []
    parts += [f"s{tiles.splits}"] if tiles.splits > 1 else []
    parts += ["ends"] if tiles.ends else []
    parts += [name for name in ("log", "mask", "lse") if getattr(op, name)]
    parts += ["nan"] if op.empty == "nan" else []
    return parts
