"""Simulations as text: verdict, reports, counts and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .text import wrapped

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["cost_lines", "sample_text", "simulation_text"]


def simulation_text(done: Simulation) -> str:
    """What ran, whether it is right, what the sanitizers found, counts and the bound of a CU: 100 columns."""
    result = done.result
    what = " ".join(filter(None, (done.name, done.dtype, done.hw and f"for {done.hw}")))
    lines = [
        f"{what}: {result.kernel} on {result.target}",
        f"executed  {sample_text(done)}, {result.counts['waves']} waves",
        *(f"then      {later.kernel}, {later.workgroups} workgroups" for later in done.later),
    ]
    if done.accuracy is not None:
        verdict = "agrees with float64" if done.accuracy.ok else "DISAGREES with float64"
        verdict += " in the part of the sample" if result.sampled else ""
        error, bound = done.accuracy.max_rel_error, done.accuracy.bound
        lines.append(f"result    {verdict}: max relative error {error:.3e}, bound from rounding {bound:.3e}")
    elif done.tiles is not None:
        lines.append("result    not compared: the sample finished nothing; take more with --blocks")
    found = f"{len(done.reports)} finding(s)" if done.reports else "nothing to report"
    checks = [f"checks    {found}", *(f"  {report}" for report in done.reports)]
    costs = [
        *cost_lines(result.counts, result.bound),
        f"occupancy {result.bound['workgroups_per_cu']} workgroups on a CU, {result.bound['waves_per_simd']:g} waves "
        f"per SIMD, limited by {result.bound['occupancy_limit']}",
        *(f"wrote     {path}" for path in done.saved),
    ]
    # Findings are not wrapped: each stays one line for grep.
    return "\n".join([wrapped("\n".join(lines), 10), *checks, wrapped("\n".join(costs), 10)])


def sample_text(done: Simulation) -> str:
    """How many workgroups ran, and of how many where they are a sample."""
    total = done.grid[0] * done.grid[1] * done.grid[2]
    if done.result.sampled:
        return f"a sample, {done.result.workgroups} of {total} workgroups"
    return f"all {total} workgroups"


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
        "bound     "
        + ", ".join(f"{name} {clocks:,.0f}" for name, clocks in pipes.items())
        + f" clocks per workgroup: {bound['binds']} binds, matrix share at most {bound['matrix_share']:.1%}",
    ]
