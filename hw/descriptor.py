"""The hardware descriptor: what a tile derivation needs to know about one GPU. It needs no GPU to exist."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .atoms import MFMAAtom
from .dtypes import ALIASES, DType, dtype
from .errors import BadInput, near_names
from .limits import problems

__all__ = ["FIELD_KINDS", "HardwareDescriptor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareDescriptor:
    """Capacities and rates of one GPU, each with a source in `sources`.

    Peaks are not fields: `peak_tflops` computes them from CUs, clock and the best atom. Raises BadInput,
    naming every contradiction at once, if the values cannot belong to one device.
    """

    name: str
    gfx: str

    # The device and its rates.
    num_cus: int
    num_xcds: int
    clock_mhz: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    l2_bytes: int  # of one XCD
    l2_bytes_per_s: float  # of all XCDs together
    mall_bytes: int  # 0 without an Infinity Cache
    mall_bytes_per_s: float | None = None  # None where no source states it

    # Waves and workgroups.
    wavefront_size: int
    simds_per_cu: int
    waves_per_simd_max: int
    workgroup_max: int  # work-items
    workgroups_per_cu_max: int  # of more than one wave: each holds a barrier

    # LDS.
    lds_bytes: int  # of one CU
    lds_max_per_workgroup_bytes: int
    lds_granule_bytes: int  # allocation step
    lds_granule_encoded_bytes: int  # step of the register field; the two differ on gfx950
    lds_banks: int  # of 4 bytes
    lds_banks_wide_read: int  # for 8 and 16 byte reads
    lds_read_bytes_per_clk: int  # of one CU
    lds_write_bytes_per_clk: int

    # Registers, of 32 bits and per lane.
    vgpr_arch: int  # ArchVGPRs that a wave can address
    vgpr_acc: int  # AccVGPRs that a wave can address
    vgpr_unified: bool  # one file for both; otherwise each has its own of vgpr_file
    vgpr_file: int  # registers that the waves of a SIMD share
    vgpr_granule: int
    vgpr_arch_align: int  # in a unified file AccVGPRs start at a multiple of this
    vgpr_per_wave_max: int  # arch and acc together
    mfma_operand_align_bytes: int

    # Caches of a CU.
    l1_bytes: int
    l1_line_bytes: int
    l1_bytes_per_clk: int
    l2_line_bytes: int

    # Vector arithmetic, operations per clock and CU.
    vector_f32_flops_per_clk_cu: int
    vector_f64_flops_per_clk_cu: int

    # What emitted code may use.
    mfma_acc_only: bool  # C and D of an MFMA must be AccVGPRs
    fp8_flavour: str | None = None  # "fnuz", "ocp" or None
    direct_to_lds_bytes: tuple[int, ...]  # widths of a global load that writes LDS
    lds_transpose_read_bits: tuple[int, ...]  # element sizes that a transposing LDS read takes
    has_cvt_pk_bf16_f32: bool
    has_permlane32_swap: bool
    has_packed_f32: bool

    #: A peak that a text prints for this device and that `peak_tflops` does not reproduce; only shown.
    printed_peak_tflops_f32: float | None = None
    atoms: tuple[MFMAAtom, ...] = field(repr=False, hash=False)
    sources: Mapping[str, str] = field(repr=False, hash=False, compare=False)

    def __post_init__(self) -> None:
        found = problems({name: getattr(self, name) for name in FIELD_KINDS}, FIELD_KINDS)
        if found:
            raise BadInput(f"hardware descriptor {self.name}: " + "; ".join(found))

    def __str__(self) -> str:
        return f"{self.name} ({self.gfx}, {self.num_cus} CUs)"

    @property
    def cus_per_xcd(self) -> int:
        return -(-self.num_cus // self.num_xcds)

    def with_cus(self, num_cus: int) -> HardwareDescriptor:
        """The same device with another number of visible CUs, as partitions and cut-down parts have.

        XCDs are as many as hold that number, and the L2 rate goes with them; HBM stays whole.

        >>> from closedform.hw.catalogue import get
        >>> get("mi300x").with_cus(38).num_xcds
        1
        """
        if isinstance(num_cus, bool) or not isinstance(num_cus, int) or num_cus < 1:
            raise BadInput(f"the number of visible CUs must be a whole number of at least 1, not {num_cus!r}")
        num_xcds = -(-num_cus // self.cus_per_xcd)
        return dataclasses.replace(
            self,
            num_cus=num_cus,
            num_xcds=num_xcds,
            l2_bytes_per_s=self.l2_bytes_per_s * num_xcds / self.num_xcds,
            sources={**self.sources, "num_cus": "given by the caller"},
        )

    def resolve_dtype(self, name: str | DType) -> DType:
        """The type of that name on this GPU: "fp8" and "bf8" become its flavour.

        Raises BadInput for an unknown name and for a flavour that is not of this GPU.
        """
        if isinstance(name, str) and name in ALIASES:
            here = [t for t in ALIASES[name] if dtype(t).flavour == self.fp8_flavour]
            if not here:
                raise BadInput(f"{self.name} ({self.gfx}) has no {name}")
            return dtype(here[0])
        found = dtype(name)
        if found.flavour and found.flavour != self.fp8_flavour:
            own = [t for t in ALIASES[found.family] if dtype(t).flavour == self.fp8_flavour]
            way_out = f"use {own[0]}" if own else f"it has no {found.family}"
            raise BadInput(f"{found.name} is not a type of {self.name} ({self.gfx}): {way_out}")
        return found

    def atoms_for(self, name: str | DType, emittable: bool = True) -> tuple[MFMAAtom, ...]:
        """Atoms whose A and B both have the type, fastest first, then smallest m.

        Only those that can be emitted, unless `emittable` is false. Empty if there is none.
        """
        wanted = self.resolve_dtype(name)
        found = [
            atom
            for atom in self.atoms
            if atom.dtype_a == wanted and atom.dtype_b == wanted and (atom.emit is not None or not emittable)
        ]
        return tuple(sorted(found, key=lambda atom: (-atom.flops_per_clk_cu, atom.blocks, atom.m)))

    def atom(self, instruction: str, name: str | DType | None = None) -> MFMAAtom:
        """The atom of that mnemonic; `name` is the type of A and B where one mnemonic takes several."""
        named = [atom for atom in self.atoms if atom.instruction == instruction]
        if not named:
            raise BadInput(
                f"{self.name} has no instruction {instruction!r}: "
                f"{near_names(instruction, (atom.instruction for atom in self.atoms))}"
            )
        if name is not None:
            wanted = self.resolve_dtype(name)
            named = [atom for atom in named if atom.dtype_a == wanted and atom.dtype_b == wanted]
        if len(named) != 1:
            raise BadInput(f"{instruction} of {self.name} needs its type: {len(named)} atoms match")
        return named[0]

    def flops_per_clk_cu(self, name: str | DType) -> float:
        """Dense matrix operations per clock and CU: those of the best atom of one block.

        Raises BadInput where the GPU has no matrix instruction for the type.
        """
        rates = [a.flops_per_clk_cu for a in self.atoms_for(name, emittable=False) if a.blocks == 1]
        if not rates:
            kinds = sorted({atom.dtype_a.name for atom in self.atoms})
            raise BadInput(f"{self.name} has no matrix instruction for {name}; it has: {', '.join(kinds)}")
        return max(rates)

    def peak_tflops(self, name: str | DType) -> float:
        """Dense matrix peak: num_cus * clock * flops_per_clk_cu, in 1e12 operations per second.

        Raises BadInput as `flops_per_clk_cu` does.

        >>> from closedform.hw.catalogue import get
        >>> round(get("mi300x").peak_tflops("f16"), 1)  # 304 * 2100 MHz * 2048
        1307.4
        """
        return self.num_cus * self.clock_mhz * self.flops_per_clk_cu(name) / 1e6

    @property
    def f32_mfma_coexec_valu(self) -> bool | None:
        """Whether vector instructions run under an f32 MFMA of the same wave; None where no source says."""
        clocks = [atom.coexec_valu_clocks for atom in self.atoms_for("f32", emittable=False)]
        known = [c for c in clocks if c is not None]
        return any(c > 0 for c in known) if known else None

    def to_json(self) -> dict[str, Any]:
        """Everything as values that json.dumps takes; atoms by mnemonic, with the computed peaks."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        own["atoms"] = sorted({atom.instruction for atom in self.atoms})
        own["sources"] = dict(sorted(self.sources.items()))
        types = sorted({a.dtype_a.name for a in self.atoms if a.dtype_a == a.dtype_b and a.blocks == 1})
        own["peak_tflops"] = {t: round(self.peak_tflops(t), 3) for t in types}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in own.items()}


#: The annotation of each field, as text: how tables and files write it.
FIELD_KINDS: dict[str, str] = {f.name: str(f.type) for f in dataclasses.fields(HardwareDescriptor)}
