"""closedform profile: what compiled instructions cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from closedform.simulation_case import How

from .files import FileGroup, blocks_option, file_options, seed_option
from .options import (
    attention_from,
    attention_options,
    common_options,
    conv2d_from,
    conv2d_options,
    conv2d_override_options,
    gemm_from,
    gemm_options,
    gemm_override_options,
    hardware_from,
    override_options,
    overrides_from,
    softmax_from,
    softmax_options,
    softmax_override_options,
)
from .output import notice, print_json
from .progress import workgroup_progress
from .simulate import warn_of_length

if TYPE_CHECKING:
    from closedform.hw.descriptor import HardwareDescriptor
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
    overrides = overrides_from(values)
    op = attention_from(values)
    _profile(op, hardware_from(hw, cus), overrides, How(blocks or None, False, seed), as_json)


@profile.command()
@gemm_options
@gemm_override_options
@common_options
@blocks_option(SAMPLE)
@seed_option
def gemm(*, hw: str | None, cus: int | None, as_json: bool, blocks: int, seed: int, **values: Any) -> None:
    """Profile the emitted matrix product; of a split sum the kernel that multiplies.

    \b
    Examples:
      closedform profile gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype bf16 --hw mi300x
      closedform profile gemm --M 512 --N 512 --K 512 --hw mi210 --tile-m 64 --tile-n 64 --blocks 0 --json
    """
    overrides = overrides_from(values)
    descriptor = hardware_from(hw, cus)
    op = gemm_from(values, descriptor)
    _profile(op, descriptor, overrides, How(blocks or None, False, seed), as_json)


@profile.command()
@softmax_options
@softmax_override_options
@common_options
@blocks_option(SAMPLE)
@seed_option
def softmax(*, hw: str | None, cus: int | None, as_json: bool, blocks: int, seed: int, **values: Any) -> None:
    """Profile the emitted softmax; of a row that several workgroups share the kernel of its states.

    \b
    Example:
      closedform profile softmax --rows 8192 --cols 4096 --dtype bf16 --hw mi300x
    """
    overrides = overrides_from(values)
    op = softmax_from(values)
    _profile(op, hardware_from(hw, cus), overrides, How(blocks or None, False, seed), as_json)


@profile.command()
@conv2d_options
@conv2d_override_options
@common_options
@blocks_option(SAMPLE)
@seed_option
def conv2d(*, hw: str | None, cus: int | None, as_json: bool, blocks: int, seed: int, **values: Any) -> None:
    """Profile the emitted convolution.

    \b
    Example:
      closedform profile conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16 --hw mi300x
    """
    descriptor = hardware_from(hw, cus)
    op = conv2d_from(values, descriptor)
    _profile(op, descriptor, overrides_from(values), How(blocks or None, False, seed), as_json)


def _profile(op: Any, hw: HardwareDescriptor, overrides: dict[str, Any], how: How, as_json: bool) -> None:
    from closedform.profiling import profile_derivation
    from closedform.visitors.feasibility import derive

    derivation = derive(op, hw, model="default", **overrides)
    _, _, verdict = derivation.require()
    warn_of_length(op, verdict.blocks, how.blocks)
    with workgroup_progress() as progress:
        found = profile_derivation(derivation, replace(how, progress=progress))
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
