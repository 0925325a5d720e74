"""Options that all operators share, declared once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .output import notice

if TYPE_CHECKING:
    from closedform.device import Device
    from closedform.hw.descriptor import HardwareDescriptor

__all__ = ["FALLBACK_HARDWARE", "F", "common_options", "dtype_from", "hardware_from", "json_option", "stack"]

F = TypeVar("F", bound=Callable[..., Any])

#: Used where --hw is not given and no GPU is found.
FALLBACK_HARDWARE = "mi300x"


def stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    """The options in the order in which --help lists them."""

    def apply(command: F) -> F:
        return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)

    return apply


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout and nothing else there."
)

common_options = stack(
    click.option(
        "--hw",
        "hw",
        metavar="NAME|FILE",
        help="GPU name (`closedform hw list`) or a TOML or JSON file; the GPU found, else mi300x.",
    ),
    click.option("--cus", type=int, metavar="N", help="Compute units, where fewer than all are visible."),
    click.option(
        "--dtype",
        metavar="NAME",
        help="f32 (default), f16 or bf16; fp8 but for softmax; gemm, conv2d: bf8, i8; gemm f64, xf32.",
    ),
    json_option,
)


def hardware_from(hw: str | None, cus: int | None, device: Device | None = None) -> HardwareDescriptor:
    """The descriptor that --hw and --cus ask for; without --hw the GPU found, else mi300x, with a notice.

    `device` is the GPU where the caller has already found it.
    """
    from closedform.hw import catalogue

    if hw is None:
        from closedform.device import detect

        device = device or detect()
        known = None if device is None else device.hardware()
        if known is None:
            unknown = "" if device is None else f"{device.describe()} is not in the catalogue"
            found = unknown or "no AMD CDNA GPU here"
            notice(f"{found}: deriving for {FALLBACK_HARDWARE} (choose with --hw)")
            known = catalogue.get(FALLBACK_HARDWARE)
        elif device is not None:
            notice(f"deriving for the GPU found: {device.describe()}")
        descriptor = known
    else:
        descriptor = catalogue.find(hw)
    return descriptor if cus is None else descriptor.with_cus(cus)


def dtype_from(name: str | None) -> str:
    """The name of the type, f32 with a notice where none is given."""
    if name is None:
        notice("dtype f32, as in the paper; --dtype f16 or bf16 is much faster where 16 bits are enough")
        return "f32"
    return name
