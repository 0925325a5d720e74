"""closedform doctor: what works on this machine."""

from __future__ import annotations

import click

from .options import json_option
from .output import print_json

__all__ = ["doctor"]


@click.command()
@click.option("--compile/--no-compile", "compile_", default=True, help="Compile a tiny kernel for each target, or not.")
@json_option
def doctor(compile_: bool, as_json: bool) -> None:
    """Say what is installed, which targets compile here and whether a GPU is present.

    \b
    Examples:
      closedform doctor
      closedform doctor --no-compile --json
    """
    from closedform.doctor import diagnose, report

    diagnosis = diagnose(compile_)
    if as_json:
        print_json(diagnosis)
    else:
        click.echo(report(diagnosis))
