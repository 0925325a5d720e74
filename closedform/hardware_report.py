"""What `closedform hw` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .hw import catalogue
from .hw.errors import BadInput

if TYPE_CHECKING:
    from .hw.atoms import MFMAAtom
    from .hw.descriptor import HardwareDescriptor

__all__ = ["atom_json", "atom_rows", "description", "overview", "overview_rows"]

_PEAK_TYPES = ("f64", "f32", "f16", "bf16", "fp8")


def _peak(hw: HardwareDescriptor, dtype: str) -> float | None:
    """TFLOPS of dense matrix instructions; None where the GPU has none for the type."""
    try:
        return round(hw.peak_tflops(dtype), 1)
    except BadInput:
        return None


def overview() -> list[dict[str, Any]]:
    """One entry per catalogued GPU; peaks in TFLOPS, computed from CUs, clock and the best atom."""
    return [
        {
            "name": hw.name,
            "gfx": hw.gfx,
            "num_cus": hw.num_cus,
            "lds_bytes": hw.lds_bytes,
            "vgpr_file": hw.vgpr_file,
            "vgpr_unified": hw.vgpr_unified,
            "clock_mhz": hw.clock_mhz,
            "hbm_bytes": hw.hbm_bytes,
            "hbm_bytes_per_s": hw.hbm_bytes_per_s,
            "peak_tflops": {dtype: _peak(hw, dtype) for dtype in _PEAK_TYPES},
        }
        for hw in map(catalogue.get, catalogue.names())
    ]


def overview_rows() -> tuple[list[str], list[list[str]]]:
    headers = ["name", "target", "CUs", "LDS KiB", "registers", "HBM TB/s", "matrix TFLOPS: f64"]
    headers += _PEAK_TYPES[1:]
    rows = []
    for entry in overview():
        halves = 1 if entry["vgpr_unified"] else 2
        registers = "+".join([str(entry["vgpr_file"])] * halves)
        peaks = ["-" if p is None else f"{p:.1f}" for p in entry["peak_tflops"].values()]
        memory = [f"{entry['lds_bytes'] // 1024}", registers, f"{entry['hbm_bytes_per_s'] / 1e12:.1f}"]
        rows.append([entry["name"], entry["gfx"], f"{entry['num_cus']}", *memory, *peaks])
    return headers, rows


def description(hw: HardwareDescriptor) -> str:
    """Every field with its value and source, then the computed peaks."""
    from .text import table

    shown = hw.to_json()
    sources: dict[str, str] = shown.pop("sources")
    peaks: dict[str, float] = shown.pop("peak_tflops")
    atoms: list[str] = shown.pop("atoms")
    known = {field: value for field, value in shown.items() if value is not None}
    rows = [[field, _text(value), sources.get(field, "")] for field, value in known.items()]
    how = f"computed: {hw.num_cus} CUs x {hw.clock_mhz} MHz x FLOP/clk of the atom"
    rows += [[f"peak_tflops {dtype}", f"{peak:.1f}", how] for dtype, peak in peaks.items()]
    rows.append(["atoms", str(len(atoms)), f"closedform hw atoms {hw.name}"])
    return table(["field", "value", "source"], rows)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def atom_json(atom: MFMAAtom) -> dict[str, Any]:
    """One instruction; clocks in cycles of the CU, registers of 32 bits per lane."""
    return {
        "instruction": atom.instruction,
        "m": atom.m,
        "n": atom.n,
        "k": atom.k,
        "blocks": atom.blocks,
        "dtype_a": atom.dtype_a.name,
        "dtype_b": atom.dtype_b.name,
        "dtype_acc": atom.dtype_acc.name,
        "cycles": atom.cycles,
        "passes": atom.passes,
        "latency": atom.latency,
        "registers_a": atom.registers_a,
        "registers_b": atom.registers_b,
        "registers_c": atom.registers_c,
        "flops_per_clk_cu": atom.flops_per_clk_cu,
        "acc_only": atom.acc_only,
        "emit": atom.emit,
        "emit_reason": atom.emit_reason or None,
        "source": atom.source,
        "note": atom.note or None,
    }


def atom_rows(atoms: Iterable[MFMAAtom]) -> tuple[list[str], list[list[str]]]:
    headers = [
        "instruction",
        "m n k",
        "blocks",
        "A",
        "B",
        "acc",
        "cycles",
        "A B C regs",
        "FLOP/clk/CU",
        "emitted",
    ]
    rows = [
        [
            atom.instruction,
            f"{atom.m} {atom.n} {atom.k}",
            *map(str, (atom.blocks, atom.dtype_a, atom.dtype_b, atom.dtype_acc, atom.cycles)),
            f"{atom.registers_a} {atom.registers_b} {atom.registers_c}",
            f"{atom.flops_per_clk_cu:.0f}",
            "yes" if atom.emit else f"no: {atom.emit_reason}",
        ]
        for atom in atoms
    ]
    return headers, rows
