"""closedform derive: tiles and the constraint that binds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .operators import ATTENTION, CONV2D, GEMM, SOFTMAX, Request, takes
from .output import print_json

if TYPE_CHECKING:
    from closedform.visitors.derivation import Derivation

__all__ = ["derive", "report"]

model_option = click.option(
    "--model",
    default="default",
    show_default=True,
    metavar="default|paper",
    help="default: of the kernels that we emit; paper: the closed-formula paper's own derivation.",
)
explain_option = click.option(
    "--explain", is_flag=True, help="Print every formula with the numbers put in, and which capacity binds."
)


@click.group()
def derive() -> None:
    """Derive the tile sizes of an operator; writes nothing.

    \b
    Examples:
      closedform derive attention --L 16384 --d 128
      closedform derive gemm --M 4096 --N 4096 --K 4096
      closedform derive softmax --rows 8192 --cols 4096
    """


@derive.command()
@takes(ATTENTION)
@model_option
@click.option(
    "--compare", is_flag=True, help="Compare with the same in three kernels: traffic, operations, rounds, time."
)
@explain_option
def attention(request: Request, *, model: str, compare: bool, explain: bool) -> None:
    """Derive fused attention.

    \b
    Examples:
      closedform derive attention --L 16384 --d 128 --hw mi300x --dtype f16 --explain
      closedform derive attention --L 16384 --d 128 --hw paper_a --model paper
      closedform derive attention --L 4096 --d 64 --heads 32 --hw mi300x --cus 38 --json
      closedform derive attention --L 16384 --d 128 --hw mi300x --compare
    """
    if compare:
        if request.overrides or model != "default" or explain:
            raise click.UsageError("--compare takes the default tiles: leave out --model, --explain and tile options")
        _compare(request)
        return
    _derive(request, explain, model)


@derive.command()
@takes(GEMM)
@model_option
@explain_option
def gemm(request: Request, *, model: str, explain: bool) -> None:
    """Derive a matrix product D = act(alpha A B + beta C + bias).

    \b
    Examples:
      closedform derive gemm --M 4096 --N 4096 --K 4096 --hw paper_a --model paper --explain
      closedform derive gemm --M 512 --N 512 --K 512 --hw mi210 --dtype bf16 --json
      closedform derive gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype f16 --tile-m 128 --hw mi300x
    """
    _derive(request, explain, model)


@derive.command()
@takes(CONV2D)
@explain_option
def conv2d(request: Request, *, explain: bool) -> None:
    """Derive a direct 2D convolution Y = act(W * X + bias).

    \b
    Examples:
      closedform derive conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16 --hw mi300x
      closedform derive conv2d --N 1 --IC 3 --IH 224 --IW 224 --OC 64 --KH 7 --KW 7 --stride 2 --pad 3 --explain
    """
    _derive(request, explain)


@derive.command()
@takes(SOFTMAX)
@explain_option
def softmax(request: Request, *, explain: bool) -> None:
    """Derive a softmax along the rows of a matrix.

    \b
    Examples:
      closedform derive softmax --rows 8192 --cols 4096 --hw mi300x --dtype bf16 --explain
      closedform derive softmax --rows 1 --cols 1000000 --hw mi210 --json
    """
    _derive(request, explain)


def _compare(request: Request) -> None:
    from closedform.comparison import compare_attention
    from closedform.comparison_report import comparison_text

    found = compare_attention(request.op, request.hw)
    if request.as_json:
        print_json(found.to_json())
    else:
        click.echo(comparison_text(found))


def _derive(request: Request, explain: bool, model: str = "default") -> None:
    from closedform.visitors.feasibility import derive as derive_operator

    report(derive_operator(request.op, request.hw, model=model, **request.overrides), request.as_json, explain)


def report(derivation: Derivation, as_json: bool, explain: bool) -> None:
    """Print the derivation; an infeasible one ends with status 4, its JSON object with an "error" member."""
    from closedform.hw.errors import InfeasibleError

    from .root import error_object

    reason = derivation.infeasible
    if as_json:
        result = derivation.to_json()
        if reason is not None:
            result |= error_object(InfeasibleError(reason), InfeasibleError.exit_status)
        print_json(result)
    else:
        from closedform.explain import explanation, summary

        click.echo(explanation(derivation) if explain else summary(derivation))
    if reason is not None:
        click.echo(f"error: {reason}", err=True)
        raise click.exceptions.Exit(InfeasibleError.exit_status)
