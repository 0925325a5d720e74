"""closedform bench: times emitted kernels on a GPU."""

from __future__ import annotations

from typing import Any

import click

from .options import (
    attention_from,
    attention_options,
    common_options,
    hardware_from,
    override_options,
    overrides_from,
)
from .output import notice, print_json

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Time an emitted kernel on the CDNA GPU of this machine; without one, exit status 3.

    \b
    Example:
      closedform bench attention --L 16384 --d 128 --dtype bf16
    """


@bench.command()
@attention_options
@click.option("--repeats", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="Timed launches.")
@click.option("--warmup", type=click.IntRange(0), default=10, show_default=True, metavar="N", help="Launches before.")
@override_options
@common_options
def attention(repeats: int, warmup: int, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> None:
    """Time fused attention: device events, buffers rotated past the last-level cache, median and minimum.

    \b
    Examples:
      closedform bench attention --L 16384 --d 128 --dtype bf16
      closedform bench attention --L 4096 --d 64 --heads 32 --dtype f16 --json
    """
    from closedform.bench import bench_attention
    from closedform.device import launch_device

    overrides = overrides_from(values)
    op = attention_from(values)
    device = launch_device()
    descriptor = hardware_from(hw, cus, device)
    for difference in device.differences(descriptor):
        notice(difference)
    timing = bench_attention(op, descriptor, repeats=repeats, warmup=warmup, **overrides)
    if as_json:
        print_json(timing.to_json())
    else:
        click.echo(str(timing))
