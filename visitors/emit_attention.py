"""The EmitVisitor's methods for attention: the tree from device to atom becomes one FlyDSL file."""

from __future__ import annotations

from math import gcd
from typing import Any

from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput
from closedform.hw.occupancy import waves_per_simd
from closedform.operators.attention import (
    Attention,
    AttentionBlock,
    AttentionDevice,
    AttentionStep,
    AttentionTiles,
    AttentionWave,
    ScoreAtom,
    ValueAtom,
)
from closedform.operators.policy import Pad

from . import emit_attention_atom as atom_text
from . import emit_attention_block as block_text
from . import emit_attention_entry as entry_text
from . import emit_attention_logits as logits_text
from . import emit_attention_mask as mask_text
from . import emit_attention_schedule as schedule_text
from . import emit_attention_softmax as softmax_text
from . import emit_attention_wave as wave_text
from .attention_grid import GRID_LIMIT
from .attention_schedule import early_pairs, keys_of_v_block, pair_slots
from .derivation import Derivation
from .emit_attention_form import Form
from .emit_attention_host import formula, host
from .emit_attention_host_options import host_with_options, logits_words
from .emit_text import CEIL_DIV, constants, docstring, join, piece
from .formula import round_up
from .visitor import Visitor

__all__ = ["AttentionEmit"]

#: Name, value and meaning of a constant.
Row = tuple[str, Any, str]

#: FlyDSL and torch names of the input types.
FLYDSL_TYPES = {"f32": "Float32", "f16": "Float16", "bf16": "BFloat16"}
#: Of 8-bit inputs, which the kernel moves as bytes: the type that the MFMA is told.
OPERAND_TYPES = {"fp8_e4m3fnuz": "Float8E4M3FNUZ", "fp8_e4m3fn": "Float8E4M3FN"}
TORCH_TYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3fnuz": "float8_e4m3fnuz",
    "fp8_e4m3fn": "float8_e4m3fn",
}
#: Error of one emitted kernel against float64 that main() accepts, relative to the row's largest value.
TOLERANCES = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2, "fp8_e4m3fnuz": 1e-1, "fp8_e4m3fn": 1e-1}

_IMPORTS = """
import math
import sys
from functools import partial

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl._mlir.dialects import fly
from flydsl._mlir.dialects.rocdl import raw_ptr_buffer_store
from flydsl.expr import gpu, range_constexpr, rocdl
from flydsl.expr.typing import T
from flydsl.expr.typing import Vector as Vec
"""


#: Work-items along x of a HIP grid.
WORK_ITEMS_LIMIT = 2**32


def length_limit(tiles: AttentionTiles) -> int:
    """Longest sequence: row numbers of whole blocks fit 31 bits, the work-items of the grid fit 32."""
    rows = (WORK_ITEMS_LIMIT // 64 - tiles.waves) * tiles.tile_q
    return min(2**31 - 65536, rows)


class AttentionEmit(Visitor):
    """Writes one kernel file; every method returns the text of its level.

    The generic (interior) child of each node is visited: all children run the same code, and their clipped extents
    appear in it as buffer bounds and as the mask of the last tile.
    """

    def __init__(self, derivation: Derivation) -> None:
        tiles: AttentionTiles
        tiles, self.resources, self.grid = derivation.require()
        self.tiles = tiles
        self.op: Attention = derivation.op
        self.hw = derivation.hw
        op = self.op
        self.boundary = op.tree(tiles).boundary
        self._check_boundary()
        self._check_launch()
        self.elem_bytes = tiles.atom.dtype_a.bits // 8
        self.layout = tiles.layout(op)
        self.packed = self.elem_bytes < 4
        self.threads = tiles.waves * self.hw.wavefront_size
        self.v_keys = keys_of_v_block(tiles.tile_kv, self.layout.dv_pad, self.layout.dv_run, self.threads)
        self.columns = -(-tiles.d_pad // self.hw.wavefront_size)
        covered = self.columns * self.hw.wavefront_size if op.variant == "fma" else tiles.d_pad
        self.form = Form(op, tiles)
        self.padded = max(covered, tiles.d_pad) != op.d or self.layout.dv_pad != op.columns

    # --- device -------------------------------------------------------------------------------------------------

    def visit_AttentionDevice(self, node: AttentionDevice) -> str:
        op = self.op
        return (
            join(
                self._header(),
                piece(_IMPORTS),
                self._constants(),
                piece(CEIL_DIV),
                self.visit(node.interior()[0]),
                wave_text.kernel(self.form),
                wave_text.merge(self.form),
                host_with_options(self.form) if self.form.has_options else host(op),
            )
            + "\n"
        )

    # --- block --------------------------------------------------------------------------------------------------

    def visit_AttentionBlock(self, node: AttentionBlock) -> str:
        even = {units: count % self.threads == 0 for units, count in (("k", self._k_units), ("v", self._v_units))}
        return join(
            block_text.resources(self.padded, self.form.own_columns, self.form.narrow),
            entry_text.functions(self.form),
            block_text.lds_images(
                self.packed,
                self._key_permutation(),
                self.op.variant == "fma",
                self.form.own_columns,
                self.form.narrow,
            ),
            block_text.cooperative_loads(
                self.packed,
                even["k"],
                even["v"],
                block_text.v_row(self.padded, self.form.own_columns),
                self.form.own_columns,
                self.form.small_pages,
                self.form.narrow,
            ),
            self.visit(node.interior()[0]),
        )

    # --- wave ---------------------------------------------------------------------------------------------------

    def visit_AttentionWave(self, node: AttentionWave) -> str:
        convert = "none"
        if self.packed and self.op.p_dtype == self.op.dtype:
            by_hand = self.op.dtype == "bf16" and not self.hw.has_cvt_pk_bf16_f32
            convert = "bytes" if self.form.narrow else "bits" if by_hand else "round"
        softmax = softmax_text.softmax(convert, mask_text.masked(self.form), self.form.keeps_lse)
        return join(softmax, logits_text.functions(self.form), self.visit(node.interior()[0]))

    def visit_AttentionStep(self, node: AttentionStep) -> str:
        atoms = [self.visit(atom) for atom in node.interior()]
        return join(*atoms, self._wave_class())

    # --- atom ---------------------------------------------------------------------------------------------------

    def visit_ScoreAtom(self, node: ScoreAtom) -> str:
        return atom_text.matrix_multiply(self.form.narrow)

    def visit_ValueAtom(self, node: ValueAtom) -> str:
        return atom_text.output_columns(self.packed)

    def _wave_class(self) -> str:
        scalar = self.op.variant == "fma"
        through_lds = self.op.variant != "chained"
        return join(
            atom_text.p_image() if through_lds else "",
            atom_text.accumulators(scalar),
            atom_text.row_sum(),
            atom_text.result_offset(self.form),
            schedule_text.order(),
            atom_text.scalar_product(self.packed) if scalar else "",
            wave_text.wave(
                self.form,
                self.packed and not through_lds,
                atom_text.values(self.form, self.packed, self.padded),
                "fx.Float32" if scalar else "Vec",
            ),
        )

    # --- facts of the file --------------------------------------------------------------------------------------

    @property
    def _k_units(self) -> int:
        return self.tiles.tile_kv * (self.tiles.d_pad // self.layout.vec)

    @property
    def _v_units(self) -> int:
        if not self.packed:
            return self.tiles.tile_kv * (self.layout.dv_pad // self.layout.vec)
        return self.tiles.tile_kv // self.v_keys * (self.layout.dv_pad // self.layout.dv_run)

    @property
    def _v_vectors(self) -> int:
        return -(-self._v_units // self.threads) * (self.v_keys if self.packed else 1)

    def _occupancy(self) -> int:
        """Waves per SIMD that the compiler is asked for: what the promise allows with a quarter to spare."""
        if self.op.variant == "fma":
            return self.tiles.waves_per_simd
        arch, acc = (n * 5 // 4 for n in (self.resources.arch_registers, self.resources.acc_registers))
        return max(self.tiles.waves_per_simd, waves_per_simd(self.hw, arch, acc))

    def _check_boundary(self) -> None:
        """The tree's pad policy must be what the kernel does at its edges: buffer reads past the end give 0."""
        read = {name: pad for name, pad in self.boundary.items() if name in ("Q", "K", "V")}
        odd = [name for name, pad in read.items() if pad is not Pad.ZERO]
        if odd:
            raise BadInput(f"{', '.join(odd)}: a buffer pads with 0 and with nothing else")

    def _check_launch(self) -> None:
        """BadInput for a shape that one launch of the kernel cannot cover."""
        longest = length_limit(self.tiles)
        for name, limit in (("L_q", longest), ("L_kv", longest), ("heads", GRID_LIMIT), ("batch", GRID_LIMIT)):
            value = getattr(self.op, name)
            if value > limit:
                raise BadInput(f"{name}={value} is above {limit}, the most that one launch of the kernel covers")

    def _key_permutation(self) -> str:
        """LDS row of `key` as an expression, empty where keys stay in natural order."""
        if self.layout.is_identity:
            return ""
        bits = self.layout.row_of_key_bits
        if bits is None:
            raise AssertionError("the row permutation of K is not a bit permutation")
        moved = [(source, to) for to, source in enumerate(bits) if source != to]
        kept = sum(1 << source for source, _ in moved)
        terms = [f"(key & ~{kept:#x})"]
        for source, to in moved:
            shift = f"<< {to - source}" if to > source else f">> {source - to}"
            terms.append(f"((key & {1 << source:#x}) {shift})")
        return " | ".join(terms)

    def _header(self) -> str:
        op, tiles, promised, grid = self.op, self.tiles, self.resources, self.grid
        unified = "" if self.hw.vgpr_unified else f" ({promised.arch_registers} arch, {promised.acc_registers} acc)"
        how = {
            "chained": "S stays in registers: the second MFMA consumes the first one's result",
            "lds": "P goes through LDS between the two MFMAs",
            "fma": "P goes through LDS, the second product is scalar FMA",
        }[op.variant]
        heads = f"{op.heads} on {op.key_heads} of K and V" if op.group > 1 else str(op.heads)
        what = "softmax(logits) V" if self.form.has_options else formula(op)
        return docstring(
            f"Fused attention O = {what} for {self.hw.gfx}: {how}.",
            [
                (
                    "shape",
                    f"batch {op.batch}, heads {heads}, L_q {op.L_q}, L_kv {op.L_kv}, d {op.d}; run-time but d",
                ),
                *([("logits", logits_words(op).removeprefix("logits = "))] if self.form.has_options else []),
                ("types", f"{op.dtype} in and out, f32 accumulation{', f32 log-sum-exp' if op.lse else ''}"),
                ("target", f"{self.hw.name} ({self.hw.gfx}), atom {tiles.atom.instruction}"),
                (
                    "tiles",
                    f"{tiles.tile_q} queries a wave, {tiles.waves} waves a workgroup, {tiles.tile_kv} keys a step",
                ),
                (
                    "registers",
                    f"at most {promised.registers} of {promised.register_budget} a lane{unified}",
                ),
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
        rows = [*self._tile_rows(), *self._image_rows(), *self._loop_rows(), *self._option_rows()]
        rows += [
            ("TOLERANCE", TOLERANCES[op.dtype], "against float64, relative to the row's largest value"),
            (
                "OFFSET_LIMIT, LENGTH_LIMIT, GRID_LIMIT",
                f"2**31, {length_limit(tiles)}, {GRID_LIMIT}",
                "of tile offsets, lengths, grid y and z",
            ),
        ]
        return constants(rows)

    def _tile_rows(self) -> list[Row]:
        """Sizes of tiles and of the atom, and which key a register has."""
        op, tiles, lay = self.op, self.tiles, self.layout
        key = [lay.key_of_c(0, r // lay.acc, r % lay.acc) for r in range(lay.registers)]
        key_group = lay.key_of_c(1, 0, 0) - lay.key_of_c(0, 0, 0)
        columns = self.form.v_dim
        own: list[Row] = []
        if self.form.own_columns:
            own = [
                (
                    "V_DIM, V_DIM_PADDED",
                    f"{op.columns}, {lay.dv_pad}",
                    "columns of V and O, and with zeros up to atoms",
                ),
                (
                    "V_ACCESS",
                    gcd(op.columns, lay.vec),
                    "elements of a global access that never straddles its rows' end",
                ),
            ]
        return [
            ("TARGET", f'"{self.hw.gfx}"', ""),
            (
                "DTYPE, TORCH_DTYPE, ELEM_BYTES",
                f"fx.{FLYDSL_TYPES.get(op.dtype, 'Int8')}, torch.{TORCH_TYPES[op.dtype]}, {self.elem_bytes}",
                "",
            ),
            (
                "HEAD_DIM, HEAD_DIM_PADDED",
                f"{op.d}, {tiles.d_pad}",
                "d, and d filled with zeros up to whole atoms",
            ),
            *own,
            ("TILE_Q", tiles.tile_q, "query rows of a wave"),
            ("TILE_KV", tiles.tile_kv, "keys of a step"),
            ("WAVES", tiles.waves, "waves of a workgroup"),
            (
                "WAVES_PER_SIMD",
                self._occupancy(),
                "occupancy asked of the compiler",
            ),
            ("THREADS", f"WAVES * {self.hw.wavefront_size}", ""),
            (
                "ATOM_M, ATOM_N, ATOM_K",
                f"{tiles.atom.m}, {tiles.atom.n}, {tiles.atom.k}",
                tiles.atom.instruction,
            ),
            ("GROUPS", lay.groups, "lane groups: lanes that share a column of C"),
            ("AB", lay.ea, "elements of A and of B in a lane"),
            ("ACC", lay.acc, "elements of C in a lane"),
            ("VEC", lay.vec, "elements of a 16-byte access"),
            ("ACCESS", gcd(op.d, lay.vec), "elements of a global access that never straddles a row's end"),
            ("CHUNK", "GROUPS * VEC", "elements that one access of every lane group covers"),
            ("Q_TILES, KEY_TILES, D_TILES", f"TILE_Q // ATOM_N, TILE_KV // ATOM_M, {columns}_PADDED // ATOM_M", ""),
            ("D_CHUNKS, KEY_CHUNKS", "HEAD_DIM_PADDED // CHUNK, TILE_KV // CHUNK", ""),
            ("KEY", tuple(key), "key of each score register in lane group 0, from the C map"),
            ("KEY_GROUP", key_group, "keys between neighbouring lane groups"),
        ]

    def _image_rows(self) -> list[Row]:
        """Columns of a lane, and the images of K, V and P in LDS."""
        op, tiles, lay = self.op, self.tiles, self.layout
        c_rows = [lay.c_row(0, r) for r in range(lay.acc)]
        dv_group = lay.dv_of(0, lay.c_row(1, 0)) - lay.dv_of(0, lay.c_row(0, 0))
        columns, rows = self.form.v_dim, list[Row]()
        if op.variant != "fma":
            rows += [
                ("C_ROW", tuple(c_rows), "row of each C register in lane group 0"),
                ("DV_GROUP", dv_group, "columns of O between neighbouring lane groups"),
            ]
        else:
            rows.append(("COLUMNS", self.columns, "columns of O that a lane owns"))
        if op.variant != "chained":
            p_vec = 16 // op.p_lds_bytes
            chunks = gcd(tiles.tile_kv // p_vec, lay.slots)
            rows += [
                ("P_TYPE, P_VEC", f"fx.{FLYDSL_TYPES[op.p_dtype]}, {p_vec}", "type of P in LDS, elements of 16 bytes"),
                ("C_RUN", c_row_run(c_rows), "consecutive rows in consecutive C registers"),
                ("P_SWIZZLE_CHUNKS, P_SWIZZLE_ROWS", f"{chunks}, {lay.slots // chunks}", ""),
            ]
        rows += [
            ("V_COLS", lay.dv_run, "consecutive columns of V and O that a lane handles"),
            ("ROW_CHUNKS", "HEAD_DIM_PADDED // VEC", "16-byte chunks of a row"),
            ("K_UNITS", "TILE_KV * ROW_CHUNKS", ""),
        ]
        if self.form.own_columns and not self.packed:
            rows += [("V_ROW_CHUNKS", "V_DIM_PADDED // VEC", ""), ("V_UNITS", "TILE_KV * V_ROW_CHUNKS", "")]
        if self.packed:
            rows += [
                ("V_ROW_UNITS", f"{columns}_PADDED // V_COLS", ""),
                ("V_KEYS", self.v_keys, "keys of the block of V that a thread transposes"),
                ("V_SHARES", "VEC // V_KEYS", "of these blocks side by side in LDS"),
                ("V_UNITS", "TILE_KV // V_KEYS * V_ROW_UNITS", "blocks of V_KEYS keys x V_COLS columns"),
            ]
        return rows

    def _loop_rows(self) -> list[Row]:
        """What the loop is written with."""
        op, tiles, lay = self.op, self.tiles, self.layout
        narrow: list[Row] = []
        if self.form.narrow:
            narrow = [
                ("OPERAND", f"fx.{OPERAND_TYPES[op.dtype]}", "what the bytes are to an MFMA"),
                ("PEAK", op.peak, "powers of two by which exponentials are raised before they are rounded"),
            ]
        if self.form.own_result:
            kind = op.result
            narrow.append(("RESULT, TORCH_RESULT", f"fx.{FLYDSL_TYPES[kind]}, torch.{TORCH_TYPES[kind]}", "type of O"))
            stored = 4 if self.form.split else dtype(kind).bytes
            narrow.append(("RESULT_BYTES, O_BYTES", f"{stored}, {dtype(kind).bytes}", "of what is stored first, of O"))
        return [
            ("V_VECTORS", self._v_vectors, "row vectors of V that a thread keeps under way"),
            (
                "SWIZZLE_CHUNKS, SWIZZLE_ROWS",
                f"{lay.swizzle_group}, {lay.slots // lay.swizzle_group}",
                "XOR swizzle of K in LDS",
            ),
            ("READ, WRITE, MFMA", "0x100, 0x200, 0x8", "kinds of instructions that the scheduler knows"),
            ("VMEM_READ, TRANS, SHUFFLE, FREE", "0x20, 0x400, 0x80, 0", "loads, powers, permutes, any others"),
            ("PAIR_SLOTS", pair_slots(op, self.hw), "instructions for the exponentials of two scores"),
            ("EARLY_PAIRS", early_pairs(op, tiles), "of them under the first product"),
            ("HEADROOM", op.headroom, "powers of two that a score may lie above the running maximum"),
            ("NEG_INF", f'float("{self.boundary["S"].value}")', "what a key past the end scores"),
            *narrow,
            ("LOG2_E", "math.log2(math.e)", ""),
            ("MAX_RECORDS", "0xFFFFFFFF", "largest extent of a buffer descriptor, bytes"),
        ]

    def _option_rows(self) -> list[Row]:
        """What the options add."""
        op, tiles, lay, rows = self.op, self.tiles, self.layout, list[Row]()
        if self.form.keeps_lse:
            rows.append(("LN_2", "math.log(2.0)", ""))
        if self.padded or self.form.keeps_lse or self.form.own_result:
            rows.append(("OUT_OF_RANGE", -1, "offset past every extent"))
        if op.window:
            rows.append(("WINDOW", op.window, "a query sees keys less than so far from its position"))
        if op.sink:
            rows.append(("SINK", op.sink, "first keys, which the window does not hide"))
        if self.form.own_result:
            rows.append(("RESULT_ACCESS", gcd(op.columns, 4), "elements of a store"))
        if self.form.split:
            threads = round_up(op.columns, self.hw.wavefront_size)
            rows += [
                (
                    "SPLITS",
                    tiles.splits,
                    "workgroups that share the keys of a query block, unless run() is told others",
                ),
                ("MERGE_THREADS", threads, "a column each"),
            ]
        if self.form.small_pages:
            rows.append(("PAGES_LIMIT", 2**32 - 4096, "bytes of a cache whose pages are less than a tile"))
            rows.append(("NOWHERE", -4096 // self.elem_bytes, "element past that limit, with the columns of a row"))
        if op.page:
            rows.append(("PAGE", op.page, "keys of a page"))
        if op.bias:
            rows.append(("BIAS_RUN", min(lay.vec, 4), "consecutive keys of a lane, loaded together"))
        if op.softcap is not None:
            rows.append(("CAP", repr(float(op.softcap)), "of the logits, unless run() is given another"))
        if op.group > 1:
            rows.append(("HEADS_PER_KV", op.group, "neighbouring heads of Q that share a head of K and V"))
        if op.softmax_scale is not None:
            rows.append(("SCALE", repr(op.scale), "factor of the logits, unless run() is given another"))
        return rows


def c_row_run(rows: list[int]) -> int:
    """Consecutive rows that consecutive registers of a lane hold, e.g. 4.

    >>> c_row_run([0, 1, 2, 3, 8, 9, 10, 11])
    4
    """
    run = 1
    while run < len(rows) and rows[run] == rows[0] + run:
        run += 1
    return run
