"""Simulations as text: verdict, reports, counts and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["cost_lines", "simulation_text"]


def simulation_text(done: Simulation) -> str:
    """Some ten lines: what ran, whether it is right, what the sanitizers found, counts and the bound of a CU."""
    result = done.result
    total = done.grid[0] * done.grid[1] * done.grid[2]
    ran = f"{result.workgroups} workgroups"
    if result.sampled:
        ran = f"a sample of {result.workgroups} of {total} workgroups, so outputs are partial"
    what = " ".join(filter(None, (done.name, done.dtype, done.hw and f"for {done.hw}")))
    lines = [
        f"{what}: {result.kernel} on {result.target}",
        f"executed  {ran}, {result.counts['waves']} waves, {result.seconds:.1f} s",
    ]
    if done.accuracy is not None:
        verdict = "agrees with float64" if done.accuracy.ok else "DISAGREES with float64"
        error, bound = done.accuracy.max_rel_error, done.accuracy.bound
        lines.append(f"result    {verdict}: max relative error {error:.3e}, bound from rounding {bound:.3e}")
    found = f"{len(result.reports)} finding(s)" if result.reports else "nothing to report"
    lines.append(f"checks    {found}")
    lines += [f"  {report}" for report in result.reports]
    lines += cost_lines(result.counts, result.bound)
    lines += [f"wrote     {path}" for path in done.saved]
    return "\n".join(lines)


def cost_lines(counts: dict[str, Any], bound: dict[str, Any]) -> list[str]:
    """Instructions by class, memory traffic, and the clocks of each pipe of a CU; sums over what was executed."""
    kinds = sorted(counts["instructions"].items(), key=lambda item: -item[1])
    pipes = bound["clocks_per_workgroup"]
    conflicts, cycles = counts["lds_bank_conflict_cycles"], counts["lds_cycles"]
    return [
        "counted   " + ", ".join(f"{number:,} {kind}" for kind, number in kinds if number),
        f"matrix    {counts['mfma_cycles']:,} cycles of MFMAs",
        f"LDS       {counts['lds_read_bytes']:,} B read, {counts['lds_write_bytes']:,} B written, {cycles:,} cycles, "
        f"{conflicts:,} of them bank conflicts",
        f"global    {counts['global_load_bytes']:,} B loaded, {counts['global_store_bytes']:,} B stored, "
        f"{counts['segments_64']:,} segments of 64 B, {counts['segments_128']:,} of 128 B",
        f"occupancy {bound['workgroups_per_cu']} workgroups on a CU, {bound['waves_per_simd']:g} waves per SIMD, "
        f"limited by {bound['occupancy_limit']}",
        "bound     "
        + ", ".join(f"{name} {clocks:,.0f}" for name, clocks in pipes.items())
        + f" clocks per workgroup: {bound['binds']} binds, matrix share at most {bound['matrix_share']:.1%}",
    ]
