"""closedform predict: latency by the calibrated model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .operators import ATTENTION, CONV2D, GEMM, SOFTMAX, Request, takes
from .options import F
from .output import print_json

if TYPE_CHECKING:
    from closedform.hw.descriptor import HardwareDescriptor
    from closedform.predict.answer import Prediction
    from closedform.predict.constants import Constants

__all__ = ["constants_option", "own_constants", "predict"]

plot_option = click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Write a roofline plot (needs matplotlib)."
)
constants_option = click.option(
    "--constants",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Constants that `closedform fit --out` wrote.",
)


def own_constants(path: str | None, hw: HardwareDescriptor) -> Constants | None:
    """The GPU's GEMM constants in a user's file, where one is given."""
    if path is None:
        return None
    from closedform.predict.constants import constants_from
    from closedform.predict.families import gemm_family

    return constants_from(path, hw, gemm_family(hw))


def config_options(*names: str) -> Callable[[F], F]:
    """An option of each name that fixes a number of the configuration."""

    def apply(command: F) -> F:
        for name in reversed(names):
            flag = f"--{name.replace('_', '-')}"
            command = click.option(flag, name, type=int, metavar="N", help="Instead of the selected number.")(command)
        return command

    return apply


def config_from(values: dict[str, Any], *names: str) -> dict[str, int]:
    """The numbers that were given; takes them out of `values`."""
    given = {name: values.pop(name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


TILES = ("tile_m", "tile_n", "tile_k", "waves", "stages", "split_k")
ATTENTION_TILES = ("tile_q", "tile_kv", "waves", "stages")


@click.group()
def predict() -> None:
    """Predict an operator's latency, with a band and what binds it; needs no GPU.

    \b
    Examples:
      closedform predict gemm --M 4096 --N 4096 --K 4096 --hw mi325x --dtype bf16
      closedform predict attention --L 4096 --d 128 --heads 32 --hw h200 --dtype bf16 --causal
    """


@predict.command()
@takes(GEMM, knobs=False)
@config_options(*TILES)
@constants_option
@plot_option
def gemm(request: Request, *, plot: str | None, constants: str | None, **values: Any) -> None:
    """Predict a matrix product with the selected configuration or a given one.

    \b
    Example:
      closedform predict gemm --M 4096 --N 8192 --K 4096 --hw mi325x --dtype bf16 --layout NT --json
    """
    from closedform.predict.gemm_answer import predict_gemm

    config = config_from(values, *TILES)
    own = own_constants(constants, request.hw)
    _report(request, predict_gemm(request.op, request.hw, constants=own, **config), plot)


@predict.command()
@takes(ATTENTION, knobs=False)
@config_options(*ATTENTION_TILES)
@plot_option
def attention(request: Request, *, plot: str | None, **values: Any) -> None:
    """Predict fused attention with the selected configuration or a given one.

    \b
    Example:
      closedform predict attention --L 8192 --d 128 --heads 16 --hw h200 --dtype bf16
    """
    from closedform.predict.attention_answer import predict_attention

    config = config_from(values, *ATTENTION_TILES)
    _report(request, predict_attention(request.op, request.hw, **config), plot)


@predict.command()
@takes(SOFTMAX, knobs=False)
@plot_option
def softmax(request: Request, *, plot: str | None) -> None:
    """Predict a softmax over rows.

    \b
    Example:
      closedform predict softmax --rows 16384 --cols 4096 --hw mi300x --dtype bf16
    """
    from closedform.predict.softmax import predict_softmax

    _report(request, predict_softmax(request.op, request.hw), plot)


@predict.command()
@takes(CONV2D, knobs=False)
@config_options(*TILES)
@constants_option
@plot_option
def conv2d(request: Request, *, plot: str | None, constants: str | None, **values: Any) -> None:
    """Predict a convolution, as the product that its kernels compute.

    \b
    Example:
      closedform predict conv2d --N 1 --IC 512 --IH 56 --IW 56 --OC 512 --KH 3 --KW 3 --pad 1 --hw mi300x --dtype bf16
    """
    from closedform.predict.convolution import predict_conv2d

    config = config_from(values, *TILES)
    own = own_constants(constants, request.hw)
    _report(request, predict_conv2d(request.op, request.hw, constants=own, **config), plot)


def _report(request: Request, found: Prediction, plot: str | None) -> None:
    if plot:
        from closedform.predict.plot import roofline_plot

        roofline_plot(found, request.hw, request.op.dtype, plot)
    if request.as_json:
        print_json(found.to_json())
    else:
        from closedform.predict.report import prediction_text

        click.echo(prediction_text(found))
