"""closedform select: the best legal configuration by the latency model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .operators import ATTENTION, CONV2D, GEMM, Request, takes
from .output import print_json
from .predict import constants_option, own_constants

if TYPE_CHECKING:
    from closedform.predict.answer import Selection

__all__ = ["select"]

count_option = click.option(
    "--count", type=click.IntRange(1), default=4, show_default=True, metavar="N", help="Answers."
)


@click.group()
def select() -> None:
    """Rank the legal configurations of an operator by predicted latency; `derive` stays formula-only.

    \b
    Examples:
      closedform select gemm --M 4096 --N 4096 --K 4096 --hw h200 --dtype bf16
      closedform select attention --L 4096 --d 128 --heads 32 --hw h200 --dtype bf16
    """


@select.command()
@takes(GEMM, knobs=False)
@count_option
@constants_option
def gemm(request: Request, *, count: int, constants: str | None) -> None:
    """Select tiles, waves, stages and the split of K of a matrix product.

    \b
    Example:
      closedform select gemm --M 16 --N 8192 --K 4096 --hw mi325x --dtype bf16 --layout NT --json
    """
    from closedform.predict.gemm_answer import select_gemm

    own = own_constants(constants, request.hw)
    _report(request, select_gemm(request.op, request.hw, count, constants=own))


@select.command()
@takes(ATTENTION, knobs=False)
@count_option
def attention(request: Request, *, count: int) -> None:
    """Select tiles, waves and stages of fused attention.

    \b
    Example:
      closedform select attention --L 2048 --d 64 --heads 16 --hw h200 --dtype bf16 --causal
    """
    from closedform.predict.attention_answer import select_attention

    _report(request, select_attention(request.op, request.hw, count=count))


@select.command()
@takes(CONV2D, knobs=False)
@count_option
@constants_option
def conv2d(request: Request, *, count: int, constants: str | None) -> None:
    """Select tiles, waves, stages and the split of K of a convolution's product.

    \b
    Example:
      closedform select conv2d --N 1 --IC 512 --IH 56 --IW 56 --OC 512 --KH 3 --KW 3 --pad 1 --hw mi300x --dtype bf16
    """
    from closedform.predict.convolution import select_conv2d

    own = own_constants(constants, request.hw)
    _report(request, select_conv2d(request.op, request.hw, count, constants=own))


def _report(request: Request, found: Selection) -> None:
    if request.as_json:
        print_json(found.to_json())
    else:
        from closedform.predict.report import selection_text

        click.echo(selection_text(found))
