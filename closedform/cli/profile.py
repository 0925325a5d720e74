"""closedform profile: what compiled instructions cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .files import FileGroup, blocks_option, file_options, seed_option
from .options import (
    attention_from,
    attention_options,
    common_options,
    hardware_from,
    override_options,
    overrides_from,
)
from .output import notice, print_json
from .progress import workgroup_progress
from .simulate import warn_of_length

if TYPE_CHECKING:
    from closedform.profiling import Profile

__all__ = ["profile"]

#: Workgroups that are executed unless --blocks says otherwise: the first and the last.
SAMPLE = 2


@click.group(cls=FileGroup, subcommand_metavar="OP|FILE [OPTIONS]...")
def profile() -> None:
    """Say what a kernel costs, without a GPU: counts, clocks of each pipe of a CU, what binds, occupancy.

    Instructions are executed on this CPU, by default those of two workgroups, and counted with their real
    addresses, per loop. The static MFMA share of the main loop comes from llvm-mca, where installed ($LLVM_MCA,
    llvm-mca-22 or llvm-mca). For an assembly file without --grid only the static part is given.

    \b
    Examples:
      closedform profile attention --L 16384 --d 128 --dtype bf16 --hw mi300x
      closedform profile kernel.s
      closedform profile kernel.s --grid 4,1,1 --arg normal:f16:64x64 --arg out:f32:64x64 --arg i32:64
    """


@profile.command()
@attention_options
@override_options
@common_options
@blocks_option(SAMPLE)
@seed_option
def attention(*, hw: str | None, cus: int | None, as_json: bool, blocks: int, seed: int, **values: Any) -> None:
    """Profile the emitted fused attention.

    \b
    Examples:
      closedform profile attention --L 16384 --d 128 --dtype bf16 --hw mi300x
      closedform profile attention --L 512 --d 64 --heads 2 --hw mi355x --dtype f16 --blocks 0 --json
    """
    from closedform.profiling import profile_derivation
    from closedform.visitors.feasibility import derive

    overrides = overrides_from(values)
    op = attention_from(values)
    derivation = derive(op, hardware_from(hw, cus), model="default", **overrides)
    _, _, verdict = derivation.require()
    warn_of_length(op, verdict.blocks, blocks or None)
    with workgroup_progress() as progress:
        found = profile_derivation(derivation, blocks=blocks or None, seed=seed, progress=progress)
    _print(found, as_json)


@profile.command("file", hidden=True)
@file_options
@blocks_option(SAMPLE)
def file_(*, file: Path, as_json: bool, blocks: int, grid: tuple[int, int, int] | None, **values: Any) -> None:
    """Profile a kernel of an assembly file; what needs execution only with --grid and --arg.

    \b
    Examples:
      closedform profile kernel.s
      closedform profile flydsl.s --flydsl --grid 4,8,1 --arg normal:bf16:8x512x64 --arg out:bf16:8x512x64
    """
    from closedform.profiling import profile_file

    if grid is None:
        notice("nothing is executed without --grid: counts, LDS and memory stay unknown")
    with workgroup_progress() as progress:
        found = profile_file(file, grid=grid, blocks=blocks or None, progress=progress, **values)
    _print(found, as_json)


def _print(found: Profile, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
        return
    from closedform.profile_report import profile_text

    click.echo(profile_text(found))
