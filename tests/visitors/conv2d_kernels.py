"""Emitted convolutions for tests: derived, compiled in child processes, simulated against torch in float64."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np

from closedform.hw import catalogue
from closedform.operators.conv2d import Conv2d
from closedform.operators.conv2d_pack import pack_filter
from closedform.visitors.compile import Compiled, compile_source
from closedform.visitors.conv2d_shape import Conv2dShape
from closedform.visitors.derivation import Derivation
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

from .gemm_kernels import loaded, stored, whole_numbers
from .gemm_memory import activated, nan_word

#: Elements of NaN before and behind every operand.
AROUND = 256


def derived(hw: str, op: Conv2d, **fixed: Any) -> Derivation:
    return derive(op, catalogue.get(hw), "default", **fixed)


@cache
def kernel(hw: str, op: Conv2d, fixed: tuple[tuple[str, Any], ...] = ()) -> tuple[Derivation, Compiled]:
    derivation = derived(hw, op, **dict(fixed))
    assert derivation.infeasible is None, derivation.infeasible
    return derivation, compile_source(emit_source(derivation), derivation.hw.gfx)


def expected(op: Conv2d, x: Any, w: Any, bias: Any = None) -> Any:
    """Y as stored, in float64, by torch."""
    import torch

    to_first, to_last = ((0, 3, 1, 2), (0, 2, 3, 1)) if op.layout == "NHWC" else ((0, 1, 2, 3), (0, 1, 2, 3))
    top, bottom, left, right = op.pad
    image, filters = (torch.from_numpy(np.ascontiguousarray(a.transpose(to_first))).double() for a in (x, w))
    image = torch.nn.functional.pad(image, (left, right, top, bottom))
    y = torch.nn.functional.conv2d(image, filters, None, op.stride, 0, op.dilation, op.groups).numpy()
    if bias is not None:
        y = y + bias.reshape(1, -1, 1, 1)
    return activated(op.activation, y).transpose(to_last)


def among_nans(values: Any, dtype: str, gap: int) -> tuple[Any, Any]:
    """(array of the values' shape, flat memory from its first element on): NaN before, behind and in `gap` elements
    between images.
    """
    images, inside = len(values), int(np.prod(values.shape[1:]))
    base = np.full(2 * AROUND + images * (inside + gap), nan_word(dtype, values.dtype), values.dtype)
    flat = base[AROUND:]
    strides = [inside + gap, *(int(np.prod(values.shape[axis + 1 :])) for axis in range(1, values.ndim))]
    view = np.lib.stride_tricks.as_strided(flat, values.shape, [s * values.itemsize for s in strides])
    view[...] = values
    return view, flat


def elements(view: Any, last: bool) -> list[int]:
    """Strides of an image in elements, as the kernel takes them."""
    strides = [s // view.itemsize for s in view.strides]
    axes = (0, 1, 2) if last else (0, 2, 3, 1)
    return [strides[axis] for axis in axes]


def simulate(
    hw: str,
    op: Conv2d,
    run_op: Conv2d | None = None,
    fixed: tuple[tuple[str, Any], ...] = (),
    sample: int = 0,
    **inputs: Any,
) -> tuple[Any, Any, Any]:
    """The kernel that `op` decides, run on the shape of `run_op`: (simulator's result, Y, float64 reference).

    `sample`: so many workgroups run, spread over the grid, and what they leave out of Y is NaN.
    """
    from closedform.hw.sim import Out, flydsl_args, parse_file, run

    run_op = run_op or op
    derivation, binary = kernel(hw, op, fixed)
    tiles, _, _ = derivation.require()
    rng = np.random.default_rng(run_op.IC * 7 + run_op.OC * 3 + run_op.IH)
    shapes = {"x": (run_op.shape_x, op.dtype), "w": (run_op.shape_w, op.dtype), "bias": ((run_op.OC,), "f32")}
    words = {
        name: whole_numbers(rng, shape, kind) if inputs.get(name) is None else stored(inputs[name], kind)
        for name, (shape, kind) in shapes.items()
    }
    values = {name: loaded(words[name], kind) for name, (_, kind) in shapes.items()}
    last = op.layout == "NHWC"
    vec = 16 // op.elem_bytes
    x_view, x = among_nans(words["x"], op.dtype, 2 * vec)
    blank = np.full(run_op.shape_y, nan_word(op.result, stored(np.zeros(1), op.result).dtype))
    blank = blank.astype(stored(np.zeros(1), op.result).dtype)
    y_view, y = among_nans(blank, op.result, 8)
    given, sizes, lines = _problem(run_op, derivation, words["w"])
    extra = [words["bias"]] if op.bias else []
    strides = [*elements(x_view, last), *elements(y_view, last)]
    arguments = [x, among_nans(given, op.dtype, 0)[1], Out(y, partial=True), *extra, *sizes]
    arguments += [run_op.pad[0], run_op.pad[2], *lines, *strides]
    blocks = derived(hw, run_op, **_all_of(tiles)).require()[2].blocks
    program = parse_file(binary.isa)
    grid = (min(blocks, 65536), -(-blocks // 65536), 1)
    chosen = np.unique(np.linspace(0, blocks - 1, sample).round().astype(np.int64)) if sample else None
    result = run(program, flydsl_args(program.kernel(), arguments), grid=grid, blocks=chosen)
    out = loaded(np.ascontiguousarray(y_view), op.result)
    y_view[...] = blank
    assert (y == blank.ravel()[0]).all() or np.isnan(y.astype(np.float64)).all(), "the kernel wrote beside Y"
    want = expected(run_op, values["x"], values["w"], values["bias"] if op.bias else None)
    return result, out, loaded(stored(want, op.result), op.result)


def _problem(op: Conv2d, derivation: Derivation, w: Any) -> tuple[Any, list[int], list[int]]:
    """The filter as the kernel reads it, the sizes that it takes, and what it takes after the pads."""
    tiles = derivation.tiles
    if tiles.kernel == "vector":
        taps = w[..., 0].transpose(1, 2, 0) if op.layout == "NHWC" else w[:, 0].transpose(2, 1, 0)
        return np.ascontiguousarray(taps), [op.N, op.IH, op.IW, op.IC, op.OH, op.OW], [len(taps)]
    taps = tiles.taps(op)
    filters = w if op.layout == "NHWC" else w.transpose(0, 2, 3, 1)
    given = np.ascontiguousarray(w if taps.factors == (1, 1) else taps.filters(filters))
    if op.prepacked:
        given = pack_filter(op, w, Conv2dShape(op, tiles, derivation.hw).packed)
    return given, [op.N, op.IH, op.IW, taps.channels, op.OH, op.OW, op.filters, op.groups], []


def _all_of(tiles: Any) -> dict[str, Any]:
    """Every knob of a tile policy, as overrides."""
    return {field.name: getattr(tiles, field.name) for field in dataclasses.fields(tiles)}
