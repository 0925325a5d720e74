"""closedform export: kernels for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .operators import GEMM, Request, takes
from .options import stack
from .output import notice, print_json

__all__ = ["export"]


@click.group()
def export() -> None:
    """Write the closed form's kernel, or a ranked list, in the format of another tuner or compiler.

    \b
    Examples:
      closedform export gemm --M 4096 --N 4096 --K 4096 --dtype bf16 --hw mi300x --to triton
      closedform export gemm --M 4096 --N 4096 --K 4096 --dtype bf16 --hw mi300x --to tensilelite --out tuning
    """


_to_options = stack(
    click.option(
        "--to",
        required=True,
        metavar="TOOL",
        help="triton, inductor, flydsl, tilelang, tensilelite, hipblaslt, ck, iree, aiter, nvmatmul or json.",
    ),
    click.option("--form", metavar="py|json|csv", help="Of triton (py, json), flydsl (json, py), aiter (csv, json)."),
    click.option(
        "--count",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="N",
        help="So many kernels of the model's ranking; 0: the closed form's one.",
    ),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Write the file there; without it the text goes to stdout.",
    ),
    click.option(
        "--round",
        "round_name",
        metavar="NAME",
        help="Of tensilelite, open a tuning round's grid: split, mapping, reads, stores or stream_k.",
    ),
    click.option("--artifact", default="", metavar="NAME", help="Of flydsl, the tuned function's artifact_name."),
    click.option("--device-name", default="", metavar="NAME", help="Of flydsl, the GPU's name in torch."),
    click.option(
        "--listing",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Of hipblaslt, what hipblaslt-bench --algo_method all --print_kernel_info printed.",
    ),
    click.option("--git-version", default="", metavar="STAMP", help="Of hipblaslt, the build."),
)


@export.command()
@takes(GEMM)
@_to_options
def gemm(
    request: Request,
    *,
    to: str,
    form: str | None,
    count: int,
    out: Path | None,
    round_name: str | None,
    artifact: str,
    device_name: str,
    listing: Path | None,
    git_version: str,
) -> None:
    """Export tiles of a matrix product.

    Only what the tool takes leaves: its own rules decide, and what had to change is said. Tools that count column-major
    get M and N exchanged.

    \b
    Examples:
      closedform export gemm --M 4096 --N 4096 --K 4096 --dtype bf16 --hw mi300x --to triton --count 4
      closedform export gemm --M 4096 --N 4096 --K 4096 --dtype f16 --hw mi355x --to flydsl --out configs
    """
    from closedform.interop.exporting import Place, export_gemm

    text = None if listing is None else listing.read_text(encoding="utf-8", errors="replace")
    place = Place(artifact, device_name, text, git_version)
    options: dict[str, Any] = {"form": form, "count": count, "round_name": round_name, "place": place}
    made = export_gemm(request.op, request.hw, to, **options, **request.overrides)
    for note in made.notes:
        notice(note)
    path = None if out is None else made.write(out)
    if request.as_json:
        print_json(made.to_json(path))
    elif path is None:
        click.echo(made.text, nl=False)
    else:
        click.echo(f"wrote     {path}")
