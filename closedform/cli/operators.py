"""Operators as the command line knows them: their options, their knobs, and how values become a request."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from closedform.operators.conv2d import KNOBS as MFMA_KNOBS
from closedform.operators.depthwise import KNOBS as VECTOR_KNOBS
from closedform.operators.gemm import ACTIVATIONS
from closedform.operators.gemm import KNOBS as GEMM_KNOBS
from closedform.operators.softmax import EMPTY
from closedform.operators.softmax import KNOBS as SOFTMAX_KNOBS

from .options import FALLBACK_HARDWARE, common_options, dtype_from, hardware_from, stack

if TYPE_CHECKING:
    from closedform.device import Device
    from closedform.hw.descriptor import HardwareDescriptor
    from closedform.operators.attention import Attention
    from closedform.operators.conv2d import Conv2d
    from closedform.operators.gemm import Gemm
    from closedform.operators.knob import KnobRow
    from closedform.operators.operator import Operator
    from closedform.operators.softmax import Softmax

__all__ = ["ATTENTION", "CONV2D", "GEMM", "SOFTMAX", "OperatorOptions", "Request", "takes"]


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """The options that describe an operator, those that fix its knobs, and the operator that values describe.

    `operator` takes its values out of the dictionary; names of types are those of the GPU's flavour.
    """

    options: tuple[Callable[[Any], Any], ...]
    knobs: tuple[Callable[[Any], Any], ...]
    knob_names: tuple[str, ...]
    operator: Callable[[dict[str, Any], HardwareDescriptor], Operator]


@dataclass(frozen=True, slots=True)
class Request:
    """What a command is asked about: an operator, a GPU, the knobs that are fixed; whether it answers in JSON.

    `device` is the GPU of this machine, for commands that run on it.
    """

    op: Any
    hw: HardwareDescriptor
    overrides: dict[str, Any]
    as_json: bool
    device: Device | None = None


def takes(
    known: OperatorOptions, *, knobs: bool = True, on_device: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of an operator, its knobs and the common ones; the command gets a Request in their place.

    With `on_device` there is no request, but NoDevice, where this machine has no CDNA GPU.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(*, hw: str | None, cus: int | None, as_json: bool, **values: Any) -> Any:
            device, missing = None, None
            if on_device:
                from closedform.device import launch_device
                from closedform.hw.errors import NoDevice

                try:
                    device = launch_device()
                except NoDevice as error:  # what is wrong with the request is said first
                    hw, missing = hw or FALLBACK_HARDWARE, error
            given = {name: values.pop(name) for name in known.knob_names if knobs}
            overrides = {name: value for name, value in given.items() if value is not None}
            descriptor = hardware_from(hw, cus, device)
            request = Request(known.operator(values, descriptor), descriptor, overrides, as_json, device)
            if missing is not None:
                raise missing
            return command(request, **values)

        options: Callable[[Callable[..., Any]], Callable[..., Any]]
        options = stack(*known.options, *(known.knobs if knobs else ()), common_options)
        return options(wrapped)

    return decorate


_batch_option = click.option("--batch", type=int, default=1, show_default=True, metavar="N", help="Batch.")

_ATTENTION = (
    click.option("--L", "L", type=int, required=True, metavar="N", help="Query rows (and keys, unless --Lkv)."),
    click.option("--Lkv", "Lkv", type=int, metavar="N", help="Keys and values; --L when left out."),
    click.option("--d", "d", type=int, required=True, metavar="N", help="Head dimension, 1 to 512."),
    click.option("--heads", type=int, default=1, show_default=True, metavar="N", help="Heads."),
    click.option("--kv-heads", type=click.IntRange(1), metavar="N", help="Heads of K and V; --heads when left out."),
    _batch_option,
    click.option("--scale", "softmax_scale", type=float, metavar="X", help="Factor of the logits; else 1/sqrt(d)."),
    click.option("--lse", is_flag=True, help="Give the log of the sum of exponentials of each query, too."),
    click.option(
        "--causal", is_flag=True, help="No key behind the query's position; the last query is at the last key."
    ),
    click.option(
        "--window", type=click.IntRange(1), metavar="N", help="Only keys less than N from the query's position."
    ),
    click.option("--sink", type=click.IntRange(1), metavar="N", help="First keys that the window does not hide."),
    click.option("--v-dim", type=click.IntRange(1), metavar="N", help="Columns of V and O; --d when left out."),
    click.option("--softcap", type=float, metavar="X", help="Logits become X tanh(logit / X)."),
    click.option("--bias", is_flag=True, help="Add a bias [batch, heads, L, Lkv] to the logits."),
    click.option("--alibi", is_flag=True, help="Subtract slope times distance from the logits, a slope for each head."),
    click.option("--key-lengths", is_flag=True, help="Each entry of the batch has a number of keys of its own."),
    click.option("--varlen", is_flag=True, help="Entries lie end to end; cu_seqlens says where they begin."),
    click.option(
        "--page",
        type=click.IntRange(1),
        metavar="N",
        help="K and V lie in pages of N keys, a power of two; with --key-lengths.",
    ),
    click.option(
        "--layout", default="BHSD", show_default=True, metavar="BHSD|BSHD", help="Order of the tensors' axes."
    ),
    click.option(
        "--variant",
        default="chained",
        show_default=True,
        metavar="NAME",
        help="chained: exponentials stay in registers; lds: the paper's MFMA+MFMA; fma: its MFMA+FMA.",
    ),
)

_ATTENTION_KNOBS = (
    click.option("--atom", metavar="32x32|16x16", help="Take this MFMA shape instead of the derived one."),
    click.option("--tile-q", type=int, metavar="N", help="Query rows of one wave, instead of the derived number."),
    click.option("--tile-kv", type=int, metavar="N", help="Keys of one step, instead of the derived number."),
    click.option("--waves", type=int, metavar="N", help="Waves of a workgroup, instead of the derived number."),
    click.option(
        "--splits",
        type=int,
        metavar="N",
        help="Workgroups that share the keys of a query block; derived for up to 16 queries.",
    ),
)


_GEMM = (
    click.option("--M", "M", type=int, required=True, metavar="N", help="Rows of A and D."),
    click.option("--N", "N", type=int, required=True, metavar="N", help="Columns of B and D."),
    click.option("--K", "K", type=int, required=True, metavar="N", help="Columns of A, rows of B."),
    _batch_option,
    click.option(
        "--layout",
        default="NN",
        show_default=True,
        metavar="NN|NT|TN|TT",
        help="Row-major storage of A and B; NT stores B as [N, K].",
    ),
    click.option("--out-dtype", default="", metavar="NAME", help="Type of D; left out, what follows from --dtype."),
    click.option("--lda", type=int, default=0, metavar="N", help="Elements between rows of A; 0: tight."),
    click.option("--ldb", type=int, default=0, metavar="N", help="Elements between rows of B; 0: tight."),
    click.option("--ldd", type=int, default=0, metavar="N", help="Elements between rows of D; 0: tight."),
    click.option("--beta-c", "has_c", is_flag=True, help="Add beta C."),
    click.option("--bias", default="none", metavar="none|row|column", help="Add a vector along rows or columns."),
    click.option("--activation", default="none", metavar="|".join(ACTIVATIONS), help="Function of the result."),
    click.option(
        "--preshuffle",
        "preshuffled",
        default="none",
        metavar="none|A|B|AB",
        help="Operands that the kernel reads straight to registers, packed once on the host.",
    ),
)


_SOFTMAX = (
    click.option("--rows", type=int, required=True, metavar="N", help="Rows, each normalised."),
    click.option("--cols", type=int, required=True, metavar="N", help="Columns."),
    click.option("--log", is_flag=True, help="The logarithm of the softmax."),
    click.option("--mask", is_flag=True, help="Take a mask of bytes: where it is 0 the logit is -inf."),
    click.option("--lse", is_flag=True, help="Give the log of the sum of exponentials of each row, too."),
    click.option(
        "--empty",
        default=EMPTY[0],
        show_default=True,
        metavar="|".join(EMPTY),
        help="What a row without a finite logit gives; nan is torch's way.",
    ),
    click.option("--ld", type=int, default=0, metavar="N", help="Elements between rows; 0: tight."),
)
_SIZES = (
    ("N", "Images."),
    ("IC", "Channels of X."),
    ("IH", "Rows of X."),
    ("IW", "Columns of X."),
    ("OC", "Channels of Y."),
    ("KH", "Rows of the filter."),
    ("KW", "Columns of the filter."),
)
_CONV2D = (
    *(click.option(f"--{name}", name, type=int, required=True, metavar="N", help=text) for name, text in _SIZES),
    click.option("--stride", default="1", show_default=True, metavar="N|H,W", help="Elements from output to output."),
    click.option("--pad", default="0", show_default=True, metavar="N|H,W|T,B,L,R", help="Zeros around the image."),
    click.option("--dilation", default="1", show_default=True, metavar="N|H,W", help="Elements from tap to tap."),
    click.option("--groups", type=int, default=1, show_default=True, metavar="N", help="Groups of channels."),
    click.option("--layout", default="NHWC", show_default=True, metavar="NHWC|NCHW", help="Storage of X, Y, filter."),
    click.option("--out-dtype", default="", metavar="NAME", help="Type of Y; left out, --dtype."),
    click.option("--bias", is_flag=True, help="Add a vector along the channels of Y."),
    click.option("--activation", default="none", metavar="|".join(ACTIVATIONS), help="Function of the result."),
    click.option("--prepack", "prepacked", is_flag=True, help="The filter is packed once on the host."),
)


def _knob_option(knob: KnobRow) -> Callable[[Any], Any]:
    """The option that fixes a knob: a number, a flag or a name, left out by default."""
    flag = f"--{knob.name.replace('_', '-')}"
    text = f"{knob.mechanism[0].upper()}{knob.mechanism[1:]}: {knob.text}."
    if knob.kind is bool:
        return click.option(f"{flag}/--no-{flag.removeprefix('--')}", knob.name, default=None, help=text)
    number = knob.kind is int
    metavar = "N" if number else "|".join(knob.values)
    return click.option(flag, knob.name, type=int if number else str, metavar=metavar, help=text)


#: Orders of the axes of attention's tensors: batch, heads, sequence, head dim.
ATTENTION_LAYOUTS = ("BHSD", "BSHD")


def _attention(values: dict[str, Any], hw: HardwareDescriptor) -> Attention:
    from closedform.hw.errors import BadInput, near_names
    from closedform.operators.attention import OPTIONS, Attention

    length, keys, layout = values.pop("L"), values.pop("Lkv"), values.pop("layout")
    if layout not in ATTENTION_LAYOUTS:
        raise BadInput(f"layout {layout!r} is not offered for attention: {near_names(layout, ATTENTION_LAYOUTS)}")
    names = ("d", "heads", "batch", "variant", "softmax_scale", "lse", *OPTIONS)
    counts = ("kv_heads", "window", "sink", "v_dim", "page")
    given: dict[str, Any] = {name: values.pop(name) for name in names if name not in ("bshd", *counts)}
    given |= {name: values.pop(name) or 0 for name in counts}
    kind = dtype_from(values.pop("dtype"))
    return Attention(
        L_q=length,
        L_kv=length if keys is None else keys,
        **given,
        bshd=layout == "BSHD",
        dtype=hw.resolve_dtype(kind).name if kind == "fp8" else kind,
    )


def _gemm(values: dict[str, Any], hw: HardwareDescriptor) -> Gemm:
    from closedform.operators.gemm import Gemm

    out = values.pop("out_dtype")
    names = ("M", "N", "K", "batch", "layout", "lda", "ldb", "ldd", "has_c", "bias", "activation", "preshuffled")
    return Gemm(
        **{name: values.pop(name) for name in names},
        dtype=hw.resolve_dtype(dtype_from(values.pop("dtype"))).name,
        out_dtype=hw.resolve_dtype(out).name if out else "",
    )


def _numbers(text: str) -> Any:
    """One number, or several with commas between: "2" or "2,1"."""
    from closedform.hw.errors import BadInput

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{text!r} must be whole numbers with commas between, such as 2 or 2,1") from None
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _conv2d(values: dict[str, Any], hw: HardwareDescriptor) -> Conv2d:
    from closedform.operators.conv2d import Conv2d

    names = (
        "N",
        "IC",
        "IH",
        "IW",
        "OC",
        "KH",
        "KW",
        "groups",
        "layout",
        "out_dtype",
        "bias",
        "activation",
        "prepacked",
    )
    numbers = {name: _numbers(values.pop(name)) for name in ("stride", "pad", "dilation")}
    kind = hw.resolve_dtype(dtype_from(values.pop("dtype"))).name
    return Conv2d(**{name: values.pop(name) for name in names}, **numbers, dtype=kind)


def _softmax(values: dict[str, Any], hw: HardwareDescriptor) -> Softmax:
    from closedform.operators.softmax import Softmax

    names = ("rows", "cols", "log", "mask", "lse", "empty", "ld")
    return Softmax(**{name: values.pop(name) for name in names}, dtype=dtype_from(values.pop("dtype")))


def _names(rows: tuple[KnobRow, ...]) -> tuple[str, ...]:
    return tuple(row.name for row in rows)


#: Knobs of both kernels of conv2d; those that both have once.
CONV2D_KNOBS = tuple({knob.name: knob for knob in (*MFMA_KNOBS, *VECTOR_KNOBS)}.values())

ATTENTION = OperatorOptions(_ATTENTION, _ATTENTION_KNOBS, ("atom", "tile_q", "tile_kv", "waves", "splits"), _attention)
GEMM = OperatorOptions(_GEMM, tuple(map(_knob_option, GEMM_KNOBS)), _names(GEMM_KNOBS), _gemm)
CONV2D = OperatorOptions(_CONV2D, tuple(map(_knob_option, CONV2D_KNOBS)), _names(CONV2D_KNOBS), _conv2d)
SOFTMAX = OperatorOptions(_SOFTMAX, tuple(map(_knob_option, SOFTMAX_KNOBS)), _names(SOFTMAX_KNOBS), _softmax)
