"""closedform simulate: the compiled instructions executed on this CPU."""

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

if TYPE_CHECKING:
    from closedform.simulation import Simulation

__all__ = ["simulate", "warn_of_length"]

#: Seconds of a run from which on a warning comes first.
LONG_S = 60.0

sanitizers_option = click.option(
    "--sanitizers/--no-sanitizers",
    default=True,
    help="Look for races, uninitialised and out-of-bounds accesses, missing waits and stores; on by default.",
)


@click.group(cls=FileGroup, subcommand_metavar="OP|FILE [OPTIONS]...")
def simulate() -> None:
    """Execute compiled CDNA instructions on this CPU, with sanitizers and counts; no GPU needed.

    For an operator: derive, emit, compile, execute on random inputs and compare with float64. For an assembly
    file (FlyDSL's or LLVM's, gfx908, gfx90a, gfx942, gfx950): execute a kernel of it on the arguments given.

    \b
    Examples:
      closedform simulate attention --L 512 --d 128 --hw mi300x
      closedform simulate attention --L 16384 --d 128 --hw mi300x --dtype bf16 --blocks 2
      closedform simulate gemm --M 300 --N 200 --K 500 --layout NT --dtype bf16 --hw mi300x
      closedform simulate kernel.s --grid 4,1,1 --arg normal:f16:64x64 --arg out:f32:64x64 --arg i32:64
      closedform simulate kernel.s --help

    Exit status: 0 only if the result is right and nothing is reported.
    """


@simulate.command()
@takes(ATTENTION)
@click.option("--unfused", is_flag=True, help="The three kernels of `emit attention --unfused`, one after the other.")
@blocks_option(None)
@sanitizers_option
@seed_option
def attention(request: Request, *, unfused: bool, blocks: int | None, sanitizers: bool, seed: int) -> None:
    """Simulate the emitted fused attention. Choose a length of some hundreds, or a sample with --blocks.

    \b
    Examples:
      closedform simulate attention --L 512 --d 128 --hw mi300x
      closedform simulate attention --L 77 --Lkv 200 --d 40 --hw mi100 --dtype f16 --heads 2 --json
      closedform simulate attention --L 16384 --d 128 --heads 16 --dtype bf16 --hw mi355x --blocks 2
      closedform simulate attention --L 130 --d 64 --dtype f16 --hw mi300x --unfused
    """
    if unfused:
        if request.overrides or blocks is not None:
            raise click.UsageError("--unfused runs the default tiles, all of them: leave out --blocks and tile options")
        _simulate_unfused(request, How(None, sanitizers, seed))
        return
    _simulate(request, How(blocks, sanitizers, seed))


@simulate.command()
@takes(GEMM)
@click.option("--alpha", type=float, default=1.0, show_default=True, help="Factor of A B; with 0 neither is read.")
@click.option("--beta", type=float, default=1.0, show_default=True, help="Factor of C; with 0 it is not read.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Factor of D where it has 8-bit floats.")
@blocks_option(None)
@sanitizers_option
@seed_option
def gemm(
    request: Request, *, blocks: int | None, sanitizers: bool, seed: int, alpha: float, beta: float, scale: float
) -> None:
    """Simulate the emitted matrix product, host side and all kernels of a split sum included.

    With --blocks whole tiles are run, with every part of their sums.

    \b
    Examples:
      closedform simulate gemm --M 300 --N 200 --K 500 --layout NT --dtype bf16 --hw mi300x
      closedform simulate gemm --M 64 --N 64 --K 4096 --split-k 4 --dtype f16 --hw mi210 --json
      closedform simulate gemm --M 8192 --N 8192 --K 1024 --dtype bf16 --hw mi355x --blocks 2
    """
    _simulate(request, How(blocks, sanitizers, seed), alpha=alpha, beta=beta, scale=scale)


@simulate.command()
@takes(CONV2D)
@blocks_option(None)
@sanitizers_option
@seed_option
def conv2d(request: Request, *, blocks: int | None, sanitizers: bool, seed: int) -> None:
    """Simulate the emitted direct 2D convolution, host side included.

    \b
    Example:
      closedform simulate conv2d --N 1 --IC 16 --IH 12 --IW 12 --OC 16 --KH 3 --KW 3 --pad 1 --dtype f16 --hw mi300x
    """
    _simulate(request, How(blocks, sanitizers, seed))


@simulate.command()
@takes(SOFTMAX)
@blocks_option(None)
@sanitizers_option
@seed_option
def softmax(request: Request, *, blocks: int | None, sanitizers: bool, seed: int) -> None:
    """Simulate the emitted softmax, host side and both kernels of a split row included.

    \b
    Examples:
      closedform simulate softmax --rows 100 --cols 1001 --dtype f16 --hw mi300x --mask --lse
      closedform simulate softmax --rows 8193 --cols 4096 --hw mi210 --blocks 3
    """
    _simulate(request, How(blocks, sanitizers, seed))


def _simulate_unfused(request: Request, how: How) -> None:
    from closedform.simulate_unfused import simulate_unfused
    from closedform.visitors.unfused import derive_unfused

    _finish(request, simulate_unfused(derive_unfused(request.op, request.hw), how))


def _finish(request: Request, done: Simulation) -> None:
    _print(done, request.as_json)
    if not done.ok:
        click.echo("error: the compiled kernel is wrong: this is a bug in closedform", err=True)
        raise click.exceptions.Exit(1)


def _simulate(request: Request, how: How, **scalars: float) -> None:
    """Derive, compile, execute and print; exit status 1 where the kernel is wrong."""
    from closedform.simulation import compiled_kernel, simulate_derivation
    from closedform.visitors.feasibility import derive

    derivation = derive(request.op, request.hw, model="default", **request.overrides)
    _, _, verdict = derivation.require()
    warn_of_length(request.op, verdict.blocks, how.blocks)
    compiled = compiled_kernel(derivation)
    with workgroup_progress() as progress:
        done = simulate_derivation(derivation, replace(how, progress=progress), compiled=compiled, scalars=scalars)
    _finish(request, done)


@simulate.command("file", hidden=True)
@file_options
@blocks_option(None)
@sanitizers_option
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the buffers that changed to DIR as argN.npy, N from 0.",
)
def file_(*, file: Path, as_json: bool, grid: tuple[int, int, int] | None, **values: Any) -> None:
    """Simulate a kernel of an assembly file.

    \b
    Examples:
      closedform simulate kernel.s --grid 64 --arg npy:a.npy --arg out:f32:4096 --arg i32:4096 --save results
      closedform simulate flydsl.s --flydsl --grid 4,8,1 --arg normal:bf16:8x512x64 --arg out:bf16:8x512x64
    """
    from closedform.simulation import simulate_file

    if grid is None:
        raise click.UsageError("say how many workgroups to run: --grid X,Y,Z")
    with workgroup_progress() as progress:
        done = simulate_file(file, grid=grid, progress=progress, **values)
    _print(done, as_json)
    if not done.ok:
        raise click.exceptions.Exit(1)


def warn_of_length(op: Any, workgroups: int, blocks: int | None) -> None:
    """A notice before a run that takes minutes."""
    from closedform.simulation import estimated_seconds

    share = 1.0 if blocks is None else min(blocks / workgroups, 1.0)
    seconds = estimated_seconds(op) * share
    if seconds > LONG_S:
        shorter = "--blocks N runs a sample" if blocks is None else "a smaller --blocks, --Lkv or --K is faster"
        notice(f"{workgroups * share:.0f} workgroups take about {_duration(seconds)} here; {shorter}")


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _print(done: Simulation, as_json: bool) -> None:
    if as_json:
        print_json(done.to_json())
        return
    from closedform.simulation_report import simulation_text

    click.echo(simulation_text(done))
