"""closedform emit: kernel source, manifest, assembly."""

from __future__ import annotations

from pathlib import Path

import click

from .derive import explain_option
from .operators import ATTENTION, CONV2D, GEMM, SOFTMAX, Request, takes
from .options import stack
from .output import notice, print_json

__all__ = ["emit"]


@click.group()
def emit() -> None:
    """Write a kernel in FlyDSL, compiled for its target and checked against the derivation.

    \b
    Example:
      closedform emit attention --L 16384 --d 128 --dtype bf16 --hw mi300x --isa
    """


#: Where files go and whether they are compiled.
file_options = stack(
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("kernels_out"),
        show_default=True,
        metavar="DIR",
        help="Folder for the files; made where missing.",
    ),
    click.option("--isa", is_flag=True, help="Write the assembly of the compiled kernel too."),
    click.option(
        "--compile/--no-compile",
        "compile_",
        default=None,
        help="Compile for the target, or not; left out: compile where FlyDSL and torch are installed.",
    ),
)


@emit.command()
@takes(ATTENTION)
@click.option("--unfused", is_flag=True, help="Three kernels with S in memory: product, softmax, product.")
@file_options
@explain_option
def attention(request: Request, *, unfused: bool, explain: bool, out: Path, isa: bool, compile_: bool | None) -> None:
    """Write fused attention: the kernel (.py), its manifest (.json) and, with --isa, its assembly (.s).

    The kernel is compiled for its target on this machine, no GPU needed; registers, spills and LDS of the
    binary are checked against the derivation. Nothing is written on failure.

    \b
    Examples:
      closedform emit attention --L 16384 --d 128
      closedform emit attention --L 16384 --d 128 --dtype bf16 --hw mi355x --isa --explain
      closedform emit attention --L 1000 --Lkv 3000 --d 80 --heads 16 --hw mi210 --no-compile --json
      closedform emit attention --L 4096 --d 128 --heads 16 --hw mi300x --unfused
    """
    if unfused:
        if request.overrides or explain:
            raise click.UsageError("--unfused takes the default tiles: leave out --explain and tile options")
        _write_unfused(request, out, isa, compile_)
        return
    _write(request, explain, out, isa, compile_)


@emit.command()
@takes(GEMM)
@file_options
@explain_option
def gemm(request: Request, *, explain: bool, out: Path, isa: bool, compile_: bool | None) -> None:
    """Write a matrix product: the kernel (.py), its manifest (.json) and, with --isa, its assembly (.s).

    \b
    Examples:
      closedform emit gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype bf16 --hw mi300x --isa
      closedform emit gemm --M 4096 --N 4096 --K 4096 --dtype fp8 --layout NT --hw mi355x --activation silu
    """
    _write(request, explain, out, isa, compile_)


@emit.command()
@takes(CONV2D)
@file_options
@explain_option
def conv2d(request: Request, *, explain: bool, out: Path, isa: bool, compile_: bool | None) -> None:
    """Write a direct 2D convolution: the kernel (.py), its manifest (.json) and, with --isa, its assembly (.s).

    \b
    Example:
      closedform emit conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16 --hw mi300x
    """
    _write(request, explain, out, isa, compile_)


@emit.command()
@takes(SOFTMAX)
@file_options
@explain_option
def softmax(request: Request, *, explain: bool, out: Path, isa: bool, compile_: bool | None) -> None:
    """Write a softmax along rows: the kernel (.py), its manifest (.json) and, with --isa, its assembly (.s).

    \b
    Examples:
      closedform emit softmax --rows 8192 --cols 4096 --dtype bf16 --hw mi300x --isa
      closedform emit softmax --rows 1 --cols 1000000 --log --lse --hw mi210 --no-compile
    """
    _write(request, explain, out, isa, compile_)


def _write_unfused(request: Request, out: Path, isa: bool, compile_: bool | None) -> None:
    from closedform.explain import emission_summary
    from closedform.unfused import emit_unfused

    emission = emit_unfused(request.op, request.hw, out, compile=compile_, isa=isa)
    for reason in {part.resources["compiled_reason"] for part in emission.parts.values()} - {None}:
        notice(f"not compiled: {reason}")
    if request.as_json:
        print_json(emission.to_json())
        return
    for part in emission.parts.values():
        click.echo(emission_summary(part))
    click.echo(f"wrote     {emission.kernel}\nwrote     {emission.manifest}")


def _write(request: Request, explain: bool, out: Path, isa: bool, compile_: bool | None) -> None:
    """Derive, emit and print what was written."""
    from closedform.emission import emit_to
    from closedform.visitors.feasibility import derive

    derivation = derive(request.op, request.hw, model="default", **request.overrides)
    emission = emit_to(derivation, out, compile=compile_, isa=isa)
    reason = emission.resources["compiled_reason"]
    if reason is not None:
        notice(f"not compiled: {reason}")
    if request.as_json:
        result = emission.to_json()
        if explain:
            result["derivation"] = derivation.to_json()
        print_json(result)
        return
    from closedform.explain import emission_summary, explanation

    if explain:
        click.echo(explanation(derivation))
        click.echo()
    click.echo(emission_summary(emission))
