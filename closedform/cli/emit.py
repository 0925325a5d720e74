"""closedform emit: kernel source, manifest, assembly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .derive import explain_option
from .options import (
    attention_from,
    attention_options,
    common_options,
    hardware_from,
    override_options,
    overrides_from,
)
from .output import notice, print_json

__all__ = ["emit"]


@click.group()
def emit() -> None:
    """Write a kernel in FlyDSL, compiled for its target and checked against the derivation.

    \b
    Example:
      closedform emit attention --L 16384 --d 128 --dtype bf16 --hw mi300x --isa
    """


@emit.command()
@attention_options
@override_options
@common_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("kernels_out"),
    show_default=True,
    metavar="DIR",
    help="Folder for the files; made where missing.",
)
@click.option("--isa", is_flag=True, help="Write the assembly of the compiled kernel too.")
@click.option(
    "--compile/--no-compile",
    "compile_",
    default=None,
    help="Compile for the target, or not; left out: compile where FlyDSL and torch are installed.",
)
@explain_option
def attention(
    *,
    hw: str | None,
    cus: int | None,
    as_json: bool,
    explain: bool,
    out: Path,
    isa: bool,
    compile_: bool | None,
    **values: Any,
) -> None:
    """Write fused attention: the kernel (.py), its manifest (.json) and, with --isa, its assembly (.s).

    The kernel is compiled for its target on this machine, no GPU needed; registers, spills and LDS of the
    binary are checked against the derivation. Nothing is written on failure.

    \b
    Examples:
      closedform emit attention --L 16384 --d 128
      closedform emit attention --L 16384 --d 128 --dtype bf16 --hw mi355x --isa --explain
      closedform emit attention --L 1000 --Lkv 3000 --d 80 --heads 16 --hw mi210 --no-compile --json
    """
    from closedform.emission import emit_to
    from closedform.visitors.feasibility import derive

    overrides = overrides_from(values)
    derivation = derive(attention_from(values), hardware_from(hw, cus), model="default", **overrides)
    emission = emit_to(derivation, out, compile=compile_, isa=isa)
    reason = emission.resources["compiled_reason"]
    if reason is not None:
        notice(f"not compiled: {reason}")
    if as_json:
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
