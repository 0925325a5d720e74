"""Options that several commands share, declared once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from closedform.operators.conv2d import KNOBS as MFMA_KNOBS
from closedform.operators.depthwise import KNOBS as VECTOR_KNOBS
from closedform.operators.gemm import ACTIVATIONS, KNOBS
from closedform.operators.softmax import EMPTY
from closedform.operators.softmax import KNOBS as SOFTMAX_KNOBS

from .output import notice

if TYPE_CHECKING:
    from closedform.device import Device
    from closedform.hw.descriptor import HardwareDescriptor
    from closedform.operators.attention import Attention
    from closedform.operators.conv2d import Conv2d
    from closedform.operators.gemm import Gemm
    from closedform.operators.knob import KnobRow
    from closedform.operators.softmax import Softmax

__all__ = [
    "attention_from",
    "attention_options",
    "common_options",
    "conv2d_from",
    "conv2d_options",
    "conv2d_override_options",
    "gemm_from",
    "gemm_options",
    "gemm_override_options",
    "hardware_from",
    "json_option",
    "override_options",
    "overrides_from",
    "softmax_from",
    "softmax_options",
    "softmax_override_options",
    "stack",
]

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

_batch_option = click.option("--batch", type=int, default=1, show_default=True, metavar="N", help="Batch.")

attention_options = stack(
    click.option("--L", "L", type=int, required=True, metavar="N", help="Query rows (and keys, unless --Lkv)."),
    click.option("--Lkv", "Lkv", type=int, metavar="N", help="Keys and values; --L when left out."),
    click.option("--d", "d", type=int, required=True, metavar="N", help="Head dimension, 1 to 256."),
    click.option("--heads", type=int, default=1, show_default=True, metavar="N", help="Heads."),
    _batch_option,
    click.option(
        "--variant",
        default="chained",
        show_default=True,
        metavar="NAME",
        help="chained: exponentials stay in registers; lds: the paper's MFMA+MFMA; fma: its MFMA+FMA.",
    ),
)

gemm_options = stack(
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


def _knob_option(knob: KnobRow) -> Callable[[F], F]:
    """The option that fixes a knob: a number, a flag or a name, left out by default."""
    flag = f"--{knob.name.replace('_', '-')}"
    text = f"{knob.mechanism[0].upper()}{knob.mechanism[1:]}: {knob.text}."
    if knob.kind is bool:
        return click.option(f"{flag}/--no-{flag.removeprefix('--')}", knob.name, default=None, help=text)
    number = knob.kind is int
    metavar = "N" if number else "|".join(knob.values)
    return click.option(flag, knob.name, type=int if number else str, metavar=metavar, help=text)


gemm_override_options = stack(*(_knob_option(knob) for knob in KNOBS))

softmax_options = stack(
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
softmax_override_options = stack(*(_knob_option(knob) for knob in SOFTMAX_KNOBS))

#: Knobs of both kernels of conv2d; those that both have once.
CONV2D_KNOBS = tuple({knob.name: knob for knob in (*MFMA_KNOBS, *VECTOR_KNOBS)}.values())
conv2d_override_options = stack(*(_knob_option(knob) for knob in CONV2D_KNOBS))

_SIZES = (
    ("N", "Images."),
    ("IC", "Channels of X."),
    ("IH", "Rows of X."),
    ("IW", "Columns of X."),
    ("OC", "Channels of Y."),
    ("KH", "Rows of the filter."),
    ("KW", "Columns of the filter."),
)
conv2d_options = stack(
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

common_options = stack(
    click.option(
        "--hw",
        "hw",
        metavar="NAME|FILE",
        help="GPU name (`closedform hw list`) or a TOML or JSON file; the GPU found, else mi300x.",
    ),
    click.option("--cus", type=int, metavar="N", help="Compute units, where fewer than all are visible."),
    click.option("--dtype", metavar="NAME", help="f32 (default), f16 or bf16; gemm: f64, xf32, fp8, bf8, i8 too."),
    json_option,
)

override_options = stack(
    click.option("--atom", metavar="32x32|16x16", help="Take this MFMA shape instead of the derived one."),
    click.option("--tile-q", type=int, metavar="N", help="Query rows of one wave, instead of the derived number."),
    click.option("--tile-kv", type=int, metavar="N", help="Keys of one step, instead of the derived number."),
    click.option("--waves", type=int, metavar="N", help="Waves of a workgroup, instead of the derived number."),
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


def _dtype(name: str | None) -> str:
    if name is None:
        notice("dtype f32, as in the paper; --dtype f16 or bf16 is much faster where 16 bits are enough")
        return "f32"
    return name


def attention_from(values: dict[str, Any]) -> Attention:
    """The operator that the attention options describe; takes its options out of `values`."""
    from closedform.operators.attention import Attention

    length, keys = values.pop("L"), values.pop("Lkv")
    return Attention(
        L_q=length,
        L_kv=length if keys is None else keys,
        d=values.pop("d"),
        heads=values.pop("heads"),
        batch=values.pop("batch"),
        variant=values.pop("variant"),
        dtype=_dtype(values.pop("dtype")),
    )


def gemm_from(values: dict[str, Any], hw: HardwareDescriptor) -> Gemm:
    """The operator that the gemm options describe; takes its options out of `values`. fp8 becomes the GPU's flavour."""
    from closedform.operators.gemm import Gemm

    out = values.pop("out_dtype")
    names = ("M", "N", "K", "batch", "layout", "lda", "ldb", "ldd", "has_c", "bias", "activation", "preshuffled")
    return Gemm(
        **{name: values.pop(name) for name in names},
        dtype=hw.resolve_dtype(_dtype(values.pop("dtype"))).name,
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


def conv2d_from(values: dict[str, Any], hw: HardwareDescriptor) -> Conv2d:
    """The operator that the conv2d options describe; takes its options out of `values`."""
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
    kind = hw.resolve_dtype(_dtype(values.pop("dtype"))).name
    return Conv2d(**{name: values.pop(name) for name in names}, **numbers, dtype=kind)


def softmax_from(values: dict[str, Any]) -> Softmax:
    """The operator that the softmax options describe; takes its options out of `values`."""
    from closedform.operators.softmax import Softmax

    names = ("rows", "cols", "log", "mask", "lse", "empty", "ld")
    return Softmax(**{name: values.pop(name) for name in names}, dtype=_dtype(values.pop("dtype")))


#: Overrides of every operator, as library and command line name them.
_NAMES = ("tile_q", "tile_kv", "waves", *(knob.name for knob in (*KNOBS, *SOFTMAX_KNOBS, *CONV2D_KNOBS)))
OVERRIDES = tuple(dict.fromkeys(_NAMES))


def overrides_from(values: dict[str, Any]) -> dict[str, Any]:
    """The tile overrides that were given; takes them out of `values`."""
    given = {name: values.pop(name) for name in OVERRIDES if name in values}
    return {name: value for name, value in given.items() if value is not None}
