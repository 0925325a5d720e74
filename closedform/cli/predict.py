"""closedform predict: latency by the calibrated model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import attention_from, attention_options, common_options, gemm_from, gemm_options, hardware_from, stack
from .output import print_json

if TYPE_CHECKING:
    from closedform.hw.descriptor import HardwareDescriptor
    from closedform.predict.answer import Prediction
    from closedform.predict.constants import Constants

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["causal_option", "constants_option", "convolution_options", "own_constants", "predict"]

plot_option = click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Write a roofline plot (needs matplotlib)."
)
constants_option = click.option(
    "--constants",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Constants that `closedform fit --out` wrote.",
)
causal_option = click.option("--causal", is_flag=True, help="Mask keys after the query.")


convolution_options = stack(
    click.option("--N", "N", type=int, required=True, metavar="N", help="Images."),
    click.option("--IC", "IC", type=int, required=True, metavar="N", help="Channels of the image."),
    click.option("--IH", "IH", type=int, required=True, metavar="N", help="Height of the image."),
    click.option("--IW", "IW", type=int, required=True, metavar="N", help="Width of the image."),
    click.option("--OC", "OC", type=int, required=True, metavar="N", help="Channels of the result."),
    click.option("--KH", "KH", type=int, required=True, metavar="N", help="Height of the filter."),
    click.option("--KW", "KW", type=int, required=True, metavar="N", help="Width of the filter."),
    click.option("--stride", type=int, default=1, show_default=True, metavar="N", help="Step between windows."),
    click.option("--pad", type=int, default=0, show_default=True, metavar="N", help="Zeros around the image."),
    click.option("--dilation", type=int, default=1, show_default=True, metavar="N", help="Step between filter taps."),
    click.option("--groups", type=int, default=1, show_default=True, metavar="N", help="Groups of channels."),
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


GEMM = ("tile_m", "tile_n", "tile_k", "waves", "stages", "split_k")
ATTENTION = ("tile_q", "tile_kv", "waves", "stages")


@click.group()
def predict() -> None:
    """Predict an operator's latency, with a band and what binds it; needs no GPU.

    \b
    Examples:
      closedform predict gemm --M 4096 --N 4096 --K 4096 --hw mi325x --dtype bf16
      closedform predict attention --L 4096 --d 128 --heads 32 --hw h200 --dtype bf16 --causal
    """


@predict.command()
@gemm_options
@config_options(*GEMM)
@constants_option
@plot_option
@common_options
def gemm(
    hw: str | None, cus: int | None, as_json: bool, plot: str | None, constants: str | None, **values: Any
) -> None:
    """Predict a matrix product with the selected configuration or a given one.

    \b
    Example:
      closedform predict gemm --M 4096 --N 8192 --K 4096 --hw mi325x --dtype bf16 --layout NT --json
    """
    from closedform.predict.gemm_answer import predict_gemm

    gpu = hardware_from(hw, cus)
    config = config_from(values, *GEMM)
    op = gemm_from(values, gpu)
    found = predict_gemm(op, gpu, constants=own_constants(constants, gpu), **config)
    _report(found, gpu, op.dtype, as_json, plot)


@predict.command()
@attention_options
@causal_option
@config_options(*ATTENTION)
@plot_option
@common_options
def attention(hw: str | None, cus: int | None, as_json: bool, plot: str | None, causal: bool, **values: Any) -> None:
    """Predict fused attention with the selected configuration or a given one.

    \b
    Example:
      closedform predict attention --L 8192 --d 128 --heads 16 --hw h200 --dtype bf16
    """
    from closedform.predict.attention_answer import predict_attention

    gpu = hardware_from(hw, cus)
    config = config_from(values, *ATTENTION)
    op = attention_from(values)
    _report(predict_attention(op, gpu, causal=causal, **config), gpu, op.dtype, as_json, plot)


@predict.command()
@click.option("--rows", type=int, required=True, metavar="N", help="Rows, each normalised.")
@click.option("--cols", type=int, required=True, metavar="N", help="Columns.")
@plot_option
@common_options
def softmax(
    rows: int, cols: int, hw: str | None, cus: int | None, dtype: str | None, as_json: bool, plot: str | None
) -> None:
    """Predict a softmax over rows.

    \b
    Example:
      closedform predict softmax --rows 16384 --cols 4096 --hw mi300x --dtype bf16
    """
    from closedform.predict.softmax import predict_softmax

    gpu = hardware_from(hw, cus)
    kind = gpu.resolve_dtype(dtype or "f32").name
    _report(predict_softmax(rows, cols, kind, gpu), gpu, kind, as_json, plot)


@predict.command()
@convolution_options
@config_options(*GEMM)
@constants_option
@plot_option
@common_options
def conv2d(
    hw: str | None,
    cus: int | None,
    dtype: str | None,
    as_json: bool,
    plot: str | None,
    constants: str | None,
    **values: Any,
) -> None:
    """Predict a convolution, as the product that its kernels compute.

    \b
    Example:
      closedform predict conv2d --N 1 --IC 512 --IH 56 --IW 56 --OC 512 --KH 3 --KW 3 --pad 1 --hw mi300x --dtype bf16
    """
    from closedform.predict.convolution import predict_conv2d

    gpu = hardware_from(hw, cus)
    kind = gpu.resolve_dtype(dtype or "f32").name
    config = config_from(values, *GEMM)
    own = own_constants(constants, gpu)
    _report(predict_conv2d(gpu, constants=own, config=config, dtype=kind, **values), gpu, kind, as_json, plot)


def _report(found: Prediction, hw: HardwareDescriptor, dtype: str, as_json: bool, plot: str | None) -> None:
    if plot:
        from closedform.predict.plot import roofline_plot

        roofline_plot(found, hw, dtype, plot)
    if as_json:
        print_json(found.to_json())
    else:
        from closedform.predict.report import prediction_text

        click.echo(prediction_text(found))
