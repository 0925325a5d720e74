"""closedform export: kernels for other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .operators import ATTENTION, CONV2D, GEMM, Request, takes
from .options import stack
from .output import notice, print_json

if TYPE_CHECKING:
    from closedform.interop.exporting import Export

__all__ = ["export"]


@click.group()
def export() -> None:
    """Write the closed form's kernel, or a ranked list, in the format of another tuner or compiler.

    \b
    Examples:
      closedform export gemm --M 4096 --N 4096 --K 4096 --dtype bf16 --hw mi300x --to triton
      closedform export gemm --M 4096 --N 4096 --K 4096 --dtype bf16 --hw mi300x --to tensilelite --out tuning
      closedform export attention --L 4096 --d 128 --heads 16 --dtype bf16 --hw mi300x --to inductor
    """


_OUT = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the file there; without it the text goes to stdout.",
)


def _to_options(tools: str, forms: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options of every operator; the tools that take it, and those that have several forms."""
    return stack(
        click.option("--to", required=True, metavar="TOOL", help=f"{tools}."),
        click.option("--form", metavar="py|json|csv", help=f"Of {forms}."),
        click.option(
            "--count",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            metavar="N",
            help="So many kernels of the model's ranking; 0: the closed form's one.",
        ),
        _OUT,
        click.option("--artifact", default="", metavar="NAME", help="Of flydsl, the tuned function's artifact_name."),
        click.option("--device-name", default="", metavar="NAME", help="Of flydsl, the GPU's name in torch."),
    )


_gemm_options = stack(
    _to_options(
        "triton, inductor, flydsl, tilelang, tensilelite, hipblaslt, ck, iree, aiter, nvmatmul or json",
        "triton (py, json), flydsl (json, py), aiter (csv, json)",
    ),
    click.option(
        "--round",
        "round_name",
        metavar="NAME",
        help="Of tensilelite, open a tuning round's grid: split, mapping, reads, stores or stream_k.",
    ),
    click.option(
        "--listing",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Of hipblaslt, what hipblaslt-bench --algo_method all --print_kernel_info printed.",
    ),
    click.option("--git-version", default="", metavar="STAMP", help="Of hipblaslt, the build."),
)
_FORMS = "triton (py, json), flydsl (json, py)"


@export.command()
@takes(GEMM)
@_gemm_options
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
    _report(request, export_gemm(request.op, request.hw, to, **options, **request.overrides), out)


@export.command()
@takes(ATTENTION)
@_to_options("triton, inductor, flydsl, tilelang, aiter or json", _FORMS)
def attention(request: Request, **values: Any) -> None:
    """Export tiles of fused attention: queries of a workgroup, keys of a step, waves.

    Options of the operator that a tool's file does not say are notes; plain JSON says all.

    \b
    Examples:
      closedform export attention --L 4096 --d 128 --heads 16 --dtype bf16 --hw mi300x --to triton --count 4
      closedform export attention --L 4096 --d 128 --heads 16 --dtype bf16 --hw mi300x --to inductor
    """
    _export(request, **values)


@export.command()
@takes(CONV2D)
@_to_options("triton, inductor, flydsl, iree or json", _FORMS)
def conv2d(request: Request, **values: Any) -> None:
    """Export tiles of a convolution, as the product that tools compute: pixels by output channels.

    \b
    Example:
      closedform export conv2d --N 8 --IC 64 --IH 56 --IW 56 --OC 64 --KH 3 --KW 3 --dtype f16 --hw mi300x --to inductor
    """
    _export(request, **values)


def _export(
    request: Request, *, to: str, form: str | None, count: int, out: Path | None, artifact: str, device_name: str
) -> None:
    from closedform.interop.exporting import Place, export_operator

    options: dict[str, Any] = {"form": form, "count": count, "place": Place(artifact, device_name)}
    _report(request, export_operator(request.op, request.hw, to, **options, **request.overrides), out)


def _report(request: Request, made: Export, out: Path | None) -> None:
    for note in made.notes:
        notice(note)
    path = None if out is None else made.write(out)
    if request.as_json:
        print_json(made.to_json(path))
    elif path is None:
        click.echo(made.text, nl=False)
    else:
        click.echo(f"wrote     {path}")
