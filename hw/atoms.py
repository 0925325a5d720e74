"""MFMA atoms: one dense matrix instruction of one target, with the fragment maps of its operands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .dtypes import DTYPES, DType
from .errors import BadInput
from .fragments import FragmentMap, fragment_map
from .tables import read_facts

__all__ = ["F8F6F4_FORMATS", "MFMA_LANES", "MFMAAtom", "instructions"]

#: Lanes that take part in one MFMA, and SIMDs of a CU that can each run one; the same on every CDNA target.
MFMA_LANES = 64
MFMA_UNITS_PER_CU = 4
#: One pass of the matrix core takes 4 clocks; a result is ready 4 passes after the last one (LLVM 22 model).
CLOCKS_PER_PASS = 4
RESULT_DELAY_PASSES = 4

#: How an f8f6f4 instruction names the type of A (cbsz) and of B (blgp), by family; read in compiled code.
F8F6F4_FORMATS = {"fp8": 0, "bf8": 1, "fp6": 2, "bf6": 3, "fp4": 4}


@dataclass(frozen=True, slots=True)
class MFMAAtom:
    """D = A B + C with A [m, k], B [k, n], C and D [m, n], for each of `blocks` independent blocks.

    `cycles` counts clocks in which the matrix core is busy. `coexec_valu_clocks` is how many of them can
    overlap vector instructions of the same wave, None where no source says. `acc_only` means that C and D
    must be AccVGPRs.

    `emit` says how FlyDSL 0.5.0 emits the instruction, and `emit_source` how that is known: "atom" through
    `flydsl.expr.rocdl.MFMA`, "rocdl" only through the operation `rocdl_op` of the ROCDL dialect, None not at
    all, and then `emit_reason` says why. The operation, which exists for "atom" too, takes A and B as the
    MLIR type `rocdl_operand`. An f8f6f4 operation is the one with scales, both the constant 0, and takes the
    types of A and B as `F8F6F4_FORMATS`.
    """

    instruction: str
    gfx: str
    m: int
    n: int
    k: int
    blocks: int
    dtype_a: DType
    dtype_b: DType
    dtype_acc: DType
    cycles: int
    coexec_valu_clocks: int | None
    acc_only: bool
    map_a: str
    map_b: str
    map_c: str
    source: str
    note: str
    emit: str | None
    emit_reason: str
    emit_source: str
    rocdl_op: str
    rocdl_operand: str

    def __str__(self) -> str:
        same = self.dtype_a == self.dtype_b
        types = self.dtype_a.name if same else f"{self.dtype_a} x {self.dtype_b}"
        blocks = f" x{self.blocks}" if self.blocks > 1 else ""
        return f"{self.instruction} ({types} {self.m}x{self.n}x{self.k}{blocks}, {self.gfx})"

    @property
    def a(self) -> FragmentMap:
        return fragment_map(self.map_a, "a")

    @property
    def b(self) -> FragmentMap:
        return fragment_map(self.map_b, "b")

    @property
    def c(self) -> FragmentMap:
        return fragment_map(self.map_c, "c")

    @property
    def elements_a(self) -> int:
        """Elements of A that each lane holds."""
        return self.m * self.k * self.blocks // MFMA_LANES

    @property
    def elements_b(self) -> int:
        return self.n * self.k * self.blocks // MFMA_LANES

    @property
    def elements_c(self) -> int:
        return self.m * self.n * self.blocks // MFMA_LANES

    @property
    def registers_a(self) -> int:
        """32-bit registers of A per lane."""
        return self.elements_a * self.dtype_a.bits // 32

    @property
    def registers_b(self) -> int:
        return self.elements_b * self.dtype_b.bits // 32

    @property
    def registers_c(self) -> int:
        return self.elements_c * self.dtype_acc.bits // 32

    @property
    def passes(self) -> int:
        return self.cycles // CLOCKS_PER_PASS

    @property
    def latency(self) -> int:
        """Clocks until a dependent instruction may read D: 4 * (passes + 4)."""
        return CLOCKS_PER_PASS * (self.passes + RESULT_DELAY_PASSES)

    @property
    def flops(self) -> int:
        """Operations of one instruction: 2 m n k blocks."""
        return 2 * self.m * self.n * self.k * self.blocks

    @property
    def flops_per_clk_cu(self) -> float:
        """Operations per clock of a CU with all its matrix cores busy: 4 * flops / cycles.

        >>> from closedform.hw.catalogue import get
        >>> get("mi300x").atom("v_mfma_f32_32x32x8_f16").flops_per_clk_cu  # 4 * 16384 / 32
        2048.0
        """
        return MFMA_UNITS_PER_CU * self.flops / self.cycles


@cache
def _rows() -> list[dict[str, str]]:
    return read_facts("mfma.csv", key=("gfx", "instruction", "dtype_a", "dtype_b"))


@cache
def instructions(gfx: str, acc_only: bool) -> tuple[MFMAAtom, ...]:
    """Every dense MFMA of the target, in the order of the table; BadInput where the table has none.

    A row whose types are alternatives ("x|y") gives one atom for each pair of types.
    """
    atoms = tuple(
        _atom(row, DTYPES[a], DTYPES[b], acc_only)
        for row in _rows()
        if row["gfx"] == gfx
        for a in row["dtype_a"].split("|")
        for b in row["dtype_b"].split("|")
    )
    if not atoms:
        known = ", ".join(sorted({row["gfx"] for row in _rows()}))
        raise BadInput(f"no matrix instruction of {gfx!r} is known; targets: {known}")
    return atoms


def _atom(row: dict[str, str], dtype_a: DType, dtype_b: DType, acc_only: bool) -> MFMAAtom:
    if not row["emit_source" if row["emit"] else "emit_reason"]:
        missing = "is emitted without a source" if row["emit"] else "is not emitted and gives no reason"
        raise BadInput(f"mfma.csv: {row['instruction']} of {row['gfx']} {missing}")
    return MFMAAtom(
        instruction=row["instruction"],
        gfx=row["gfx"],
        m=int(row["m"]),
        n=int(row["n"]),
        k=int(row["k"]),
        blocks=int(row["blocks"]),
        dtype_a=dtype_a,
        dtype_b=dtype_b,
        dtype_acc=DTYPES[row["dtype_acc"]],
        cycles=int(row["cycles"]),
        coexec_valu_clocks=int(row["coexec_valu_clocks"]) if row["coexec_valu_clocks"] else None,
        acc_only=acc_only,
        map_a=row["map_a"],
        map_b=row["map_b"],
        map_c=row["map_c"],
        source=row["source"],
        note=row["note"],
        emit=row["emit"] or None,
        emit_reason=row["emit_reason"],
        emit_source=row["emit_source"],
        rocdl_op=row["rocdl_op"],
        rocdl_operand=row["rocdl_operand"],
    )
