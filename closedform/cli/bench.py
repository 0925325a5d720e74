"""closedform bench: times emitted kernels on a GPU."""

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
    stack,
)
from .output import notice, print_json

if TYPE_CHECKING:
    from closedform.device import Device
    from closedform.hw.descriptor import HardwareDescriptor

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
    """


@bench.command()
@attention_options
@timing_options
@override_options
@common_options
def attention(repeats: int, warmup: int, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> None:
    """Time fused attention: device events, buffers rotated past the last-level cache, median and minimum.

    \b
    Examples:
      closedform bench attention --L 16384 --d 128 --dtype bf16
      closedform bench attention --L 4096 --d 64 --heads 32 --dtype f16 --json
    """
    from closedform.device import launch_device

    overrides = overrides_from(values)
    op = attention_from(values)
    device = launch_device()
    _bench(op, hardware_from(hw, cus, device), device, repeats, warmup, as_json, overrides)


@bench.command()
@gemm_options
@timing_options
@gemm_override_options
@common_options
def gemm(repeats: int, warmup: int, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> None:
    """Time a matrix product: device events, buffers rotated past the last-level cache, median and minimum.

    \b
    Examples:
      closedform bench gemm --M 4096 --N 4096 --K 4096 --layout NT --dtype bf16
      closedform bench gemm --M 16 --N 16384 --K 4096 --dtype f16 --split-k 4 --json
    """
    from closedform.device import launch_device

    overrides = overrides_from(values)
    device = launch_device()
    descriptor = hardware_from(hw, cus, device)
    op = gemm_from(values, descriptor)
    _bench(op, descriptor, device, repeats, warmup, as_json, overrides)


@bench.command()
@conv2d_options
@timing_options
@conv2d_override_options
@common_options
def conv2d(repeats: int, warmup: int, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> None:
    """Time a convolution: device events, buffers rotated past the last-level cache, median and minimum.

    A filter that is packed once on the host (--prepack) is packed before the clock starts.

    \b
    Examples:
      closedform bench conv2d --N 8 --IC 128 --IH 56 --IW 56 --OC 128 --KH 3 --KW 3 --pad 1 --dtype f16
      closedform bench conv2d --N 1 --IC 3 --IH 224 --IW 224 --OC 64 --KH 7 --KW 7 --stride 2 --pad 3 --prepack --json
    """
    from closedform.device import launch_device

    device = launch_device()
    descriptor = hardware_from(hw, cus, device)
    op = conv2d_from(values, descriptor)
    _bench(op, descriptor, device, repeats, warmup, as_json, overrides_from(values))


def _bench(
    op: Any,
    hw: HardwareDescriptor,
    device: Device,
    repeats: int,
    warmup: int,
    as_json: bool,
    overrides: dict[str, Any],
) -> None:
    from closedform.bench import bench_operator

    for difference in device.differences(hw):
        notice(difference)
    timing = bench_operator(op, hw, repeats=repeats, warmup=warmup, **overrides)
    if as_json:
        print_json(timing.to_json())
    else:
        click.echo(str(timing))
