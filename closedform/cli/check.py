"""closedform check: the tree executed on the CPU against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .files import seed_option
from .options import (
    attention_from,
    attention_options,
    common_options,
    conv2d_from,
    conv2d_options,
    conv2d_override_options,
    gemm_from,
    gemm_options,
    gemm_override_options,
    hardware_from,
    override_options,
    overrides_from,
    softmax_from,
    softmax_options,
    softmax_override_options,
)
from .output import print_json

if TYPE_CHECKING:
    from closedform.hw.descriptor import HardwareDescriptor

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
@attention_options
@level_option
@seed_option
@override_options
@common_options
def attention(level: str, seed: int, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> None:
    """Check fused attention. The CPU visits every tile: choose a length of some hundreds.

    \b
    Examples:
      closedform check attention --L 300 --d 64 --hw mi300x --dtype f16
      closedform check attention --L 77 --Lkv 200 --d 40 --hw mi100 --level wave --json
    """
    overrides = overrides_from(values)
    op, descriptor = attention_from(values), hardware_from(hw, cus)
    _report(op, hw=descriptor, level=level, seed=seed, as_json=as_json, overrides=overrides)


@check.command()
@gemm_options
@level_option
@seed_option
@gemm_override_options
@common_options
def gemm(level: str, seed: int, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> None:
    """Check a matrix product, with the tiles that are derived or fixed.

    \b
    Examples:
      closedform check gemm --M 200 --N 150 --K 70 --hw mi210
      closedform check gemm --M 64 --N 64 --K 2048 --split-k 3 --dtype bf16 --hw mi300x --level block
    """
    overrides = overrides_from(values)
    descriptor = hardware_from(hw, cus)
    op = gemm_from(values, descriptor)
    _report(op, hw=descriptor, level=level, seed=seed, as_json=as_json, overrides=overrides)


@check.command()
@conv2d_options
@level_option
@seed_option
@conv2d_override_options
@common_options
def conv2d(level: str, seed: int, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> None:
    """Check a direct 2D convolution, with the tiles that are derived or fixed.

    \b
    Example:
      closedform check conv2d --N 1 --IC 5 --IH 9 --IW 8 --OC 7 --KH 3 --KW 3 --pad 1 --hw mi210 --dtype f16
    """
    descriptor = hardware_from(hw, cus)
    op = conv2d_from(values, descriptor)
    _report(op, hw=descriptor, level=level, seed=seed, as_json=as_json, overrides=overrides_from(values))


@check.command()
@softmax_options
@level_option
@seed_option
@softmax_override_options
@common_options
def softmax(level: str, seed: int, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> None:
    """Check a softmax along the rows of a matrix.

    \b
    Example:
      closedform check softmax --rows 20 --cols 1001 --dtype f16 --hw mi300x --mask
    """
    overrides = overrides_from(values)
    op, descriptor = softmax_from(values), hardware_from(hw, cus)
    _report(op, hw=descriptor, level=level, seed=seed, as_json=as_json, overrides=overrides)


def _report(
    op: Any,
    /,
    *,
    hw: HardwareDescriptor,
    level: str,
    seed: int,
    as_json: bool,
    overrides: dict[str, Any],
) -> None:
    from closedform.api import check as check_operator

    result = check_operator(op, hw, level, seed=seed, **overrides)
    if as_json:
        print_json(result.to_json())
    else:
        click.echo(str(result))
    if not result.ok:
        click.echo("error: the tree disagrees with float64: this is a bug in closedform", err=True)
        raise click.exceptions.Exit(1)
