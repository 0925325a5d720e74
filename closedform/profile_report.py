"""Profiles as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .simulation_report import cost_lines, sample_text
from .text import wrapped

if TYPE_CHECKING:
    from .profiling import Binary, Profile
    from .static_share import StaticShare

__all__ = ["loop_rows", "profile_text"]


def profile_text(profile: Profile) -> str:
    """The binary, the static MFMA share, and what was executed: in all and for each loop."""
    from .text import table

    lines = [f"{profile.name}: {profile.kernel} on {profile.gfx}, a CU of {profile.gpu}", *_binary(profile.binary)]
    lines += _static(profile.static)
    if (done := profile.executed) is None:
        return wrapped("\n".join([*lines, "executed  nothing: give --grid and --arg for counts"]), indent=10)
    counts, bound = done.result.counts, done.result.bound
    lines.append(f"executed  {sample_text(done)}, {counts['waves']} waves")
    lines += cost_lines(counts, bound)
    return wrapped("\n".join(lines), indent=10) + "\n\n" + table(*loop_rows(counts, bound))


def _binary(binary: Binary) -> list[str]:
    lines = [
        f"binary    {binary.arch_registers} arch and {binary.acc_registers} acc registers, {binary.sgprs} scalar, "
        f"{binary.vgpr_spills + binary.sgpr_spills} spills, {binary.lds_bytes} B of LDS, "
        f"{binary.scratch_bytes} B of scratch"
    ]
    if (occupancy := binary.occupancy) is not None:
        lines.append(
            f"occupancy {binary.waves_per_workgroup} waves a workgroup, {occupancy.workgroups_per_cu} workgroups on a "
            f"CU, {occupancy.waves_per_simd:g} waves per SIMD, limited by {occupancy.limit}"
        )
    return lines


def _static(static: StaticShare | None) -> list[str]:
    if static is None:
        return ["static    no loop with MFMAs"]
    always = static.always
    lines = [
        f"main loop {static.loop or 'unnamed'} at line {static.line}: {always.mfmas} MFMAs, {always.matrix_clocks} "
        f"matrix clocks and {always.issue_clocks} of vector issue in {always.instructions} instructions an iteration"
    ]
    if always.share is not None:
        other = static.all_blocks
        conditional = ""
        if static.conditional_blocks and other.share is not None:
            conditional = f"; with its {static.conditional_blocks} conditional blocks {other.share:.1%}"
        lines.append(
            f"static    MFMA share {always.share:.1%} of {always.mca_clocks:.0f} clocks by llvm-mca, one wave"
            f"{conditional}; many waves at most {always.multiwave_share:.1%}"
        )
    if static.note is not None:
        lines.append(f"static    MFMA share {'unknown' if always.share is None else 'uncertain'}: {static.note}")
    return lines


def loop_rows(counts: dict[str, Any], bound: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: each loop, nested ones included, and the whole kernel."""
    header = ["loop", "line", "per wave", "instructions", "MFMA cycles", "LDS cycles", "conflicts", "global B"]
    header += ["barriers", "binds", "matrix"]
    rows = []
    loops = [(loop["label"], str(loop["line"]), f"{loop['entries_per_wave']:g}", loop) for loop in counts["loops"]]
    named = [*zip(loops, bound["loops"], strict=True), (("kernel", "-", "1", counts), bound)]
    for (label, line, entries, part), pipes in named:
        cells = [
            sum(part["instructions"].values()),
            part["mfma_cycles"],
            part["lds_cycles"],
            part["lds_bank_conflict_cycles"],
            part["global_load_bytes"] + part["global_store_bytes"],
            part["instructions"].get("barrier", 0),
        ]
        shown = [f"{cell:,}" for cell in cells]
        rows.append([label, line, entries, *shown, pipes["binds"], f"{pipes['matrix_share']:.1%}"])
    return header, rows
