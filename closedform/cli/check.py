"""closedform check: the tree executed on the CPU against float64."""

from __future__ import annotations

import click

from .files import seed_option
from .operators import ATTENTION, CONV2D, GEMM, SOFTMAX, Request, takes
from .output import print_json

__all__ = ["check"]

level_option = click.option(
    "--level",
    default="atom",
    show_default=True,
    metavar="device|block|wave|atom",
    help="Where the tree is executed; atom works on 64 lanes x registers through the fragment maps.",
)


@click.group()
def check() -> None:
    """Execute the tree of an operator on this CPU and compare it with float64.

    \b
    Example:
      closedform check attention --L 300 --d 64 --hw mi300x --dtype f16
    """


@check.command()
@takes(ATTENTION)
@level_option
@seed_option
def attention(request: Request, *, level: str, seed: int) -> None:
    """Check fused attention. The CPU visits every tile: choose a length of some hundreds.

    \b
    Examples:
      closedform check attention --L 300 --d 64 --hw mi300x --dtype f16
      closedform check attention --L 77 --Lkv 200 --d 40 --hw mi100 --level wave --json
    """
    _report(request, level, seed)


@check.command()
@takes(GEMM)
@level_option
@seed_option
def gemm(request: Request, *, level: str, seed: int) -> None:
    """Check a matrix product, with the tiles that are derived or fixed.

    \b
    Examples:
      closedform check gemm --M 200 --N 150 --K 70 --hw mi210
      closedform check gemm --M 64 --N 64 --K 2048 --split-k 3 --dtype bf16 --hw mi300x --level block
    """
    _report(request, level, seed)


@check.command()
@takes(CONV2D)
@level_option
@seed_option
def conv2d(request: Request, *, level: str, seed: int) -> None:
    """Check a direct 2D convolution, with the tiles that are derived or fixed.

    \b
    Example:
      closedform check conv2d --N 1 --IC 5 --IH 9 --IW 8 --OC 7 --KH 3 --KW 3 --pad 1 --hw mi210 --dtype f16
    """
    _report(request, level, seed)


@check.command()
@takes(SOFTMAX)
@level_option
@seed_option
def softmax(request: Request, *, level: str, seed: int) -> None:
    """Check a softmax along the rows of a matrix.

    \b
    Example:
      closedform check softmax --rows 20 --cols 1001 --dtype f16 --hw mi300x --mask
    """
    _report(request, level, seed)


def _report(request: Request, level: str, seed: int) -> None:
    from closedform.api import check as check_operator

    result = check_operator(request.op, request.hw, level, seed=seed, **request.overrides)
    if request.as_json:
        print_json(result.to_json())
    else:
        click.echo(str(result))
    if not result.ok:
        click.echo("error: the tree disagrees with float64: this is a bug in closedform", err=True)
        raise click.exceptions.Exit(1)
