"""Commands that take an operator or an assembly file in its place, and the options of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .options import json_option, stack

__all__ = ["FileGroup", "Triple", "blocks_option", "file_options", "seed_option"]

F = TypeVar("F", bound=Callable[..., Any])


class FileGroup(click.Group):
    """A group whose command may also be the path of an assembly file: then its command `file` runs with that path."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        first = args[0]
        if first not in self.commands and (Path(first).suffix or Path(first).exists()):
            return first, self.commands["file"], args
        return super().resolve_command(ctx, args)


class Triple(click.ParamType[tuple[int, int, int]]):
    """One to three positive sizes joined by commas, as (x, y, z)."""

    name = "X,Y,Z"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if len(words) > 3 or not all(word.isdecimal() and 0 < int(word) < 1 << 31 for word in words):
            self.fail(f"{value!r} is not one to three positive sizes joined by commas, such as 16,8,1", param, ctx)
        x, y, z = [int(word) for word in words] + [1] * (3 - len(words))
        return x, y, z


seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of the random inputs."
)


def blocks_option(default: int | None) -> Callable[[F], F]:
    """--blocks with the default of the command."""
    left_out = "left out: all" if default is None else "0: all"
    return click.option(
        "--blocks",
        type=click.IntRange(1 if default is None else 0),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=f"Run only N workgroups, spread over the grid; {left_out}.",
    )


#: FILE and the options of a launch.
file_options = stack(
    click.argument("file", metavar="FILE", type=click.Path(path_type=Path)),
    click.option("--kernel", metavar="NAME", help="Which kernel, where the file has several."),
    click.option("--grid", type=Triple(), metavar="X,Y,Z", help="Workgroups along x, y and z."),
    click.option(
        "--block", type=Triple(), metavar="X,Y,Z", help="Work-items of a workgroup, where the file does not say."
    ),
    click.option(
        "--arg",
        "arguments",
        multiple=True,
        metavar="WHAT",
        help="An argument, in order: i32:128, f32:0.5, zeros:f16:2x3x64, normal:f16:2x3x64, out:f32:4x4 (must be "
        "stored), partial:f32:4x4 (may be), npy:PATH.",
    ),
    click.option("--flydsl", is_flag=True, help="Pass FlyDSL's shape and stride structs behind buffers."),
    click.option(
        "--dynamic-lds", type=click.IntRange(0), default=0, metavar="N", help="Bytes of LDS given at the launch."
    ),
    seed_option,
    json_option,
)
