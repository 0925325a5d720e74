"""closedform profile: what compiled instructions cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from closedform.simulation_case import How

from .files import FileGroup, blocks_option, file_options, seed_option
from .operators import ATTENTION, CONV2D, GEMM, SOFTMAX, Request, takes
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
      closedform profile gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype bf16 --hw mi300x
      closedform profile conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16 --hw mi300x
      closedform profile kernel.s
      closedform profile kernel.s --grid 4,1,1 --arg normal:f16:64x64 --arg out:f32:64x64 --arg i32:64
    """


@profile.command()
@takes(ATTENTION)
@blocks_option(SAMPLE)
@seed_option
def attention(request: Request, *, blocks: int, seed: int) -> None:
    """Profile the emitted fused attention.

    \b
    Examples:
      closedform profile attention --L 16384 --d 128 --dtype bf16 --hw mi300x
      closedform profile attention --L 512 --d 64 --heads 2 --hw mi355x --dtype f16 --blocks 0 --json
    """
    _profile(request, How(blocks or None, False, seed))


@profile.command()
@takes(GEMM)
@blocks_option(SAMPLE)
@seed_option
def gemm(request: Request, *, blocks: int, seed: int) -> None:
    """Profile the emitted matrix product; of a split sum the kernel that multiplies.

    \b
    Examples:
      closedform profile gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype bf16 --hw mi300x
      closedform profile gemm --M 512 --N 512 --K 512 --hw mi210 --tile-m 64 --tile-n 64 --blocks 0 --json
    """
    _profile(request, How(blocks or None, False, seed))


@profile.command()
@takes(SOFTMAX)
@blocks_option(SAMPLE)
@seed_option
def softmax(request: Request, *, blocks: int, seed: int) -> None:
    """Profile the emitted softmax; of a row that several workgroups share the kernel of its states.

    \b
    Example:
      closedform profile softmax --rows 8192 --cols 4096 --dtype bf16 --hw mi300x
    """
    _profile(request, How(blocks or None, False, seed))


@profile.command()
@takes(CONV2D)
@blocks_option(SAMPLE)
@seed_option
def conv2d(request: Request, *, blocks: int, seed: int) -> None:
    """Profile the emitted convolution.

    \b
    Example:
      closedform profile conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16 --hw mi300x
    """
    _profile(request, How(blocks or None, False, seed))


def _profile(request: Request, how: How) -> None:
    from closedform.profiling import profile_derivation
    from closedform.visitors.feasibility import derive

    derivation = derive(request.op, request.hw, model="default", **request.overrides)
    _, _, verdict = derivation.require()
    warn_of_length(request.op, verdict.blocks, how.blocks)
    with workgroup_progress() as progress:
        found = profile_derivation(derivation, replace(how, progress=progress))
    _print(found, request.as_json)


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
