"""closedform derive: tiles and the constraint that binds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

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
    from closedform.operators.attention import Attention
    from closedform.visitors.derivation import Derivation

__all__ = ["derive", "report"]

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
@attention_options
@click.option(
    "--model",
    default="default",
    show_default=True,
    metavar="default|paper",
    help="default: of the kernels that we emit; paper: the closed-formula paper's own derivation.",
)
@override_options
@click.option(
    "--compare", is_flag=True, help="Compare with the same in three kernels: traffic, operations, rounds, time."
)
@common_options
@explain_option
def attention(
    model: str, compare: bool, hw: str | None, cus: int | None, as_json: bool, explain: bool, **values: Any
) -> None:
    """Derive fused attention.

    \b
    Examples:
      closedform derive attention --L 16384 --d 128 --hw mi300x --dtype f16 --explain
      closedform derive attention --L 16384 --d 128 --hw paper_a --model paper
      closedform derive attention --L 4096 --d 64 --heads 32 --hw mi300x --cus 38 --json
      closedform derive attention --L 16384 --d 128 --hw mi300x --compare
    """
    from closedform.visitors.feasibility import derive as derive_operator

    overrides = overrides_from(values)
    op = attention_from(values)
    if compare:
        if overrides or model != "default" or explain:
            raise click.UsageError("--compare takes the default tiles: leave out --model, --explain and tile options")
        _compare(op, hardware_from(hw, cus), as_json)
        return
    report(derive_operator(op, hardware_from(hw, cus), model=model, **overrides), as_json, explain)


@derive.command()
@gemm_options
@gemm_override_options
@click.option(
    "--model",
    default="default",
    show_default=True,
    metavar="default|paper",
    help="default: of the kernels that are emitted; paper: the closed-formula paper's derivation.",
)
@common_options
@explain_option
def gemm(model: str, hw: str | None, cus: int | None, as_json: bool, explain: bool, **values: Any) -> None:
    """Derive a matrix product D = act(alpha A B + beta C + bias).

    \b
    Examples:
      closedform derive gemm --M 4096 --N 4096 --K 4096 --hw paper_a --model paper --explain
      closedform derive gemm --M 512 --N 512 --K 512 --hw mi210 --dtype bf16 --json
      closedform derive gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype f16 --tile-m 128 --hw mi300x
    """
    from closedform.visitors.feasibility import derive as derive_operator

    descriptor = hardware_from(hw, cus)
    op = gemm_from(values, descriptor)
    report(derive_operator(op, descriptor, model=model, **overrides_from(values)), as_json, explain)


@derive.command()
@conv2d_options
@conv2d_override_options
@common_options
@explain_option
def conv2d(hw: str | None, cus: int | None, as_json: bool, explain: bool, **values: Any) -> None:
    """Derive a direct 2D convolution Y = act(W * X + bias).

    \b
    Examples:
      closedform derive conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16 --hw mi300x
      closedform derive conv2d --N 1 --IC 3 --IH 224 --IW 224 --OC 64 --KH 7 --KW 7 --stride 2 --pad 3 --explain
    """
    from closedform.visitors.feasibility import derive as derive_operator

    descriptor = hardware_from(hw, cus)
    op = conv2d_from(values, descriptor)
    report(derive_operator(op, descriptor, **overrides_from(values)), as_json, explain)


@derive.command()
@softmax_options
@softmax_override_options
@common_options
@explain_option
def softmax(hw: str | None, cus: int | None, as_json: bool, explain: bool, **values: Any) -> None:
    """Derive a softmax along the rows of a matrix.

    \b
    Examples:
      closedform derive softmax --rows 8192 --cols 4096 --hw mi300x --dtype bf16 --explain
      closedform derive softmax --rows 1 --cols 1000000 --hw mi210 --json
    """
    from closedform.visitors.feasibility import derive as derive_operator

    overrides = overrides_from(values)
    report(derive_operator(softmax_from(values), hardware_from(hw, cus), **overrides), as_json, explain)


def _compare(op: Attention, hw: HardwareDescriptor, as_json: bool) -> None:
    from closedform.comparison import compare_attention
    from closedform.comparison_report import comparison_text

    found = compare_attention(op, hw)
    if as_json:
        print_json(found.to_json())
    else:
        click.echo(comparison_text(found))


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
