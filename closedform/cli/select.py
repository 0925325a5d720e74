"""closedform select: the best legal configuration by the latency model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import attention_from, attention_options, common_options, gemm_from, gemm_options, hardware_from
from .output import print_json
from .predict import causal_option, constants_option, convolution_options, own_constants

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
@gemm_options
@count_option
@constants_option
@common_options
def gemm(hw: str | None, cus: int | None, as_json: bool, count: int, constants: str | None, **values: Any) -> None:
    """Select tiles, waves, stages and the split of K of a matrix product.

    \b
    Example:
      closedform select gemm --M 16 --N 8192 --K 4096 --hw mi325x --dtype bf16 --layout NT --json
    """
    from closedform.predict.gemm_answer import select_gemm

    gpu = hardware_from(hw, cus)
    own = own_constants(constants, gpu)
    _report(select_gemm(gemm_from(values, gpu), gpu, count, constants=own), as_json)


@select.command()
@attention_options
@causal_option
@count_option
@common_options
def attention(hw: str | None, cus: int | None, as_json: bool, count: int, causal: bool, **values: Any) -> None:
    """Select tiles, waves and stages of fused attention.

    \b
    Example:
      closedform select attention --L 2048 --d 64 --heads 16 --hw h200 --dtype bf16 --causal
    """
    from closedform.predict.attention_answer import select_attention

    gpu = hardware_from(hw, cus)
    _report(select_attention(attention_from(values), gpu, causal=causal, count=count), as_json)


@select.command()
@convolution_options
@count_option
@constants_option
@common_options
def conv2d(
    hw: str | None,
    cus: int | None,
    dtype: str | None,
    as_json: bool,
    count: int,
    constants: str | None,
    **shape: int,
) -> None:
    """Select tiles, waves, stages and the split of K of a convolution's product.

    \b
    Example:
      closedform select conv2d --N 1 --IC 512 --IH 56 --IW 56 --OC 512 --KH 3 --KW 3 --pad 1 --hw mi300x --dtype bf16
    """
    from closedform.predict.convolution import select_conv2d

    gpu = hardware_from(hw, cus)
    own = own_constants(constants, gpu)
    _report(select_conv2d(gpu, count, constants=own, dtype=dtype or "f32", **shape), as_json)


def _report(found: Selection, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
    else:
        from closedform.predict.report import selection_text

        click.echo(selection_text(found))
