"""closedform bench: times emitted kernels on a GPU."""

from __future__ import annotations

import click

from .operators import ATTENTION, CONV2D, GEMM, SOFTMAX, Request, takes
from .options import stack
from .output import notice, print_json

__all__ = ["bench"]

timing_options = stack(
    click.option(
        "--repeats", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="Timed launches."
    ),
    click.option(
        "--warmup", type=click.IntRange(0), default=10, show_default=True, metavar="N", help="Launches before."
    ),
)


@click.group()
def bench() -> None:
    """Time an emitted kernel on the CDNA GPU of this machine; without one, exit status 3.

    \b
    Examples:
      closedform bench attention --L 16384 --d 128 --dtype bf16
      closedform bench gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype bf16
      closedform bench conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16
      closedform bench softmax --rows 8192 --cols 4096 --dtype bf16
    """


@bench.command()
@takes(ATTENTION, on_device=True)
@timing_options
def attention(request: Request, *, repeats: int, warmup: int) -> None:
    """Time fused attention: device events, buffers rotated past the last-level cache, median and minimum.

    \b
    Examples:
      closedform bench attention --L 16384 --d 128 --dtype bf16
      closedform bench attention --L 4096 --d 64 --heads 32 --dtype f16 --json
    """
    _bench(request, repeats, warmup)


@bench.command()
@takes(GEMM, on_device=True)
@timing_options
def gemm(request: Request, *, repeats: int, warmup: int) -> None:
    """Time a matrix product: device events, buffers rotated past the last-level cache, median and minimum.

    \b
    Examples:
      closedform bench gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype bf16
      closedform bench gemm --M 16 --N 16384 --K 4096 --dtype f16 --split-k 4 --json
    """
    _bench(request, repeats, warmup)


@bench.command()
@takes(CONV2D, on_device=True)
@timing_options
def conv2d(request: Request, *, repeats: int, warmup: int) -> None:
    """Time a convolution: device events, buffers rotated past the last-level cache, median and minimum.

    A filter that is packed once on the host (--prepack) is packed before the clock starts.

    \b
    Examples:
      closedform bench conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16
      closedform bench conv2d --N 1 --IC 3 --IH 224 --IW 224 --OC 64 --KH 7 --KW 7 --stride 2 --pad 3 --prepack --json
    """
    _bench(request, repeats, warmup)


@bench.command()
@takes(SOFTMAX, on_device=True)
@timing_options
def softmax(request: Request, *, repeats: int, warmup: int) -> None:
    """Time a softmax: device events, buffers rotated past the last-level cache, median and minimum.

    \b
    Example:
      closedform bench softmax --rows 8192 --cols 4096 --dtype bf16
    """
    _bench(request, repeats, warmup)


def _bench(request: Request, repeats: int, warmup: int) -> None:
    from closedform.bench import bench_operator

    if request.device is not None:
        for difference in request.device.differences(request.hw):
            notice(difference)
    timing = bench_operator(request.op, request.hw, repeats=repeats, warmup=warmup, **request.overrides)
    if request.as_json:
        print_json(timing.to_json())
    else:
        click.echo(str(timing))
