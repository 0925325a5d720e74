"""closedform hw: the catalogue."""

from __future__ import annotations

import click

from closedform.text import table

from .options import json_option
from .output import print_json

__all__ = ["hw"]


@click.group()
def hw() -> None:
    """The GPUs that closedform knows: capacities, peaks, matrix instructions.

    \b
    Examples:
      closedform hw list
      closedform hw show mi300x
      closedform hw atoms mi355x --dtype bf16
    """


@hw.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the catalogue.

    \b
    Examples:
      closedform hw list
      closedform hw list --json
    """
    from closedform.hardware_report import overview, overview_rows

    if as_json:
        print_json({"hardware": overview()})
    else:
        click.echo(table(*overview_rows()))


@hw.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show one GPU with the source of every number. NAME is a catalogue name or a TOML or JSON file.

    \b
    Examples:
      closedform hw show mi100
      closedform hw show my_gpu.toml --json
    """
    from closedform.hardware_report import description
    from closedform.hw import catalogue

    descriptor = catalogue.find(name)
    if as_json:
        print_json(descriptor.to_json())
    else:
        click.echo(description(descriptor))


@hw.command()
@click.argument("name")
@click.option("--dtype", metavar="NAME", help="Only atoms of this type; fp8 means the flavour of the GPU.")
@json_option
def atoms(name: str, dtype: str | None, as_json: bool) -> None:
    """List the matrix instructions of one GPU, and which of them emitted kernels can use.

    \b
    Examples:
      closedform hw atoms mi300x
      closedform hw atoms mi355x --dtype fp8 --json
    """
    from closedform.hardware_report import atom_json, atom_rows
    from closedform.hw import catalogue

    descriptor = catalogue.find(name)
    found = descriptor.atoms
    if dtype is not None:
        resolved = descriptor.resolve_dtype(dtype)
        found = tuple(atom for atom in found if resolved in (atom.dtype_a, atom.dtype_b))
    if as_json:
        listed = [atom_json(atom) for atom in found]
        print_json({"hw": descriptor.name, "gfx": descriptor.gfx, "atoms": listed})
    else:
        click.echo(table(*atom_rows(found)))
