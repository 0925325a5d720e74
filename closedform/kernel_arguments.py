"""Kernel arguments as words of the command line: numbers, arrays of zeros or normal values, outputs, .npy files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .hw.errors import BadInput, near_names
from .hw.sim import AssemblyError, Out, flydsl_args
from .writing import write_together

if TYPE_CHECKING:
    from .hw.sim import Kernel

__all__ = ["FORMS", "argument", "bound_arguments", "parameters", "write_array"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: Type names to how memory holds them; bf16 as its 16-bit words.
_TYPES: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
    "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8,
}  # fmt: skip
_FLOATS = ("f64", "f32", "f16", "bf16")
#: What an argument may look like.
FORMS = {
    "TYPE:VALUE": "a number: i32:128, f32:0.5",
    "zeros:TYPE:SHAPE": "a buffer of zeros: zeros:f16:2x3x128x64",
    "normal:TYPE:SHAPE": "normal random values",
    "out:TYPE:SHAPE": "an output: reading it before it is stored, or not storing all of it, is reported",
    "partial:TYPE:SHAPE": "an output of which the kernel need not store everything",
    "npy:PATH": "an array from a file",
}
#: Elements of random values that are made at most.
_RANDOM_LIMIT = 1 << 29


def argument(text: str, random: np.random.Generator) -> Any:
    """The value that one word describes (see FORMS): a numpy scalar, an array or an Out.

    Raises BadInput that names the word and what is wrong with it.

    >>> argument("i32:128", np.random.default_rng(0)), argument("zeros:f16:2x3", np.random.default_rng(0)).shape
    (128, (2, 3))
    """
    form, _, rest = text.partition(":")
    if form == "npy":
        return _loaded(rest, text)
    if form in _TYPES:
        return _number(form, rest, text)
    if form not in ("zeros", "normal", "out", "partial"):
        known = [*_TYPES, "zeros", "normal", "out", "partial", "npy"]
        raise BadInput(f"argument {text!r}: unknown form {form!r}: {near_names(form, known)}")
    kind, _, extents = rest.partition(":")
    if kind not in _TYPES:
        raise BadInput(f"argument {text!r}: unknown type {kind!r}: {near_names(kind, list(_TYPES))}")
    shape = _shape(extents, text)
    if form == "normal":
        return _normal(kind, shape, text, random)
    array = _blank(shape, _TYPES[kind], text)
    return array if form == "zeros" else Out(array, partial=form == "partial")


def _shape(text: str, whole: str) -> tuple[int, ...]:
    words = text.split("x")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise BadInput(f"argument {whole!r}: the shape {text!r} is not extents joined by x, such as 2x3x128x64")
    return tuple(int(word) for word in words)


def _blank(shape: tuple[int, ...], kind: Any, whole: str) -> Array:
    """Zeros whose pages take memory when they are touched."""
    from .hw.sim.memory import shadow

    size = int(np.prod(shape, dtype=object))
    try:
        return shadow(size, kind).reshape(shape)
    except (OSError, OverflowError, MemoryError, ValueError) as error:
        raise BadInput(f"argument {whole!r}: {size} elements do not fit this machine: {error}") from error


def _normal(kind: str, shape: tuple[int, ...], whole: str, random: np.random.Generator) -> Array:
    from .operators.numerics import rounded

    if kind not in _FLOATS:
        raise BadInput(f"argument {whole!r}: normal values are of a floating type, one of {', '.join(_FLOATS)}")
    if (size := int(np.prod(shape, dtype=object))) > _RANDOM_LIMIT:
        raise BadInput(f"argument {whole!r}: {size} random values, at most {_RANDOM_LIMIT}; zeros takes any number")
    values = rounded(random.standard_normal(shape), kind)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else values.astype(_TYPES[kind])


def _number(kind: str, text: str, whole: str) -> Any:
    from .operators.numerics import rounded

    try:
        if kind == "bf16":
            return np.uint16(rounded(float(text), kind).view(np.uint32) >> 16)
        if kind in _FLOATS:
            return _TYPES[kind](float(text))
        value = int(text, 0)
    except ValueError:
        raise BadInput(f"argument {whole!r}: {text!r} is no {kind}") from None
    limits = np.iinfo(_TYPES[kind])
    if not limits.min <= value <= limits.max:
        raise BadInput(f"argument {whole!r}: {value} is outside of {kind}, {limits.min} to {limits.max}")
    return _TYPES[kind](value)


def _loaded(path: str, whole: str) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"argument {whole!r}: cannot read {path}: {reason}") from error
    if not isinstance(array, np.ndarray):
        raise BadInput(f"argument {whole!r}: {path} holds several arrays; save one as .npy")
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return array.view(np.uint16)  # how numpy saves a 16-bit type that it does not know
    if array.dtype.kind not in "fiub":
        raise BadInput(f"argument {whole!r}: {path} holds {array.dtype}, expected real numbers")
    return np.ascontiguousarray(array)


def parameters(kernel: Kernel, tensors: bool) -> list[str]:
    """What the kernel takes, in words, from its metadata; with `tensors`, a struct belongs to the pointer before it."""
    words: list[str] = []
    for parameter in kernel.arguments:
        if parameter.kind.startswith("hidden_"):
            continue
        name = f" {parameter.name}" if parameter.name else ""
        if parameter.kind != "by_value":
            words.append(f"pointer{name}")
        elif tensors and words and words[-1].startswith("pointer") and parameter.size not in (1, 2, 4, 8):
            words[-1] = words[-1].replace("pointer", "tensor", 1)
        else:
            words.append(f"{parameter.size} B{name}")
    return words


def bound_arguments(kernel: Kernel, values: Sequence[Any], tensors: bool) -> list[Any]:
    """The values as the kernel's metadata wants them; `tensors` puts FlyDSL's shape structs behind arrays.

    Raises BadInput that lists what the kernel takes.
    """
    takes = parameters(kernel, tensors)
    try:
        made = flydsl_args(kernel, values) if tensors else list(values)
    except AssemblyError as error:
        raise BadInput(f"{error}; {kernel.name} takes {_listed(takes)}") from error
    wanted = parameters(kernel, False)
    if len(made) != len(wanted):
        way_out = ""
        if not tensors and len(parameters(kernel, True)) == len(values):
            way_out = "; --flydsl passes the shape and stride structs behind tensors"
        raise BadInput(f"{kernel.name} takes {_listed(takes)}, {len(values)} were given{way_out}")
    return made


def _listed(words: list[str]) -> str:
    plural = "" if len(words) == 1 else "s"
    return f"{len(words)} argument{plural}" + (f" ({', '.join(words)})" if words else "")


def write_array(path: Path, array: Array) -> None:
    """The array as .npy, whole or not at all. Raises BadInput where that is not possible."""
    data = io.BytesIO()
    np.save(data, array)
    try:
        write_together(path.parent, {path.name: data.getvalue()})
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}; choose another folder with --save") from error
