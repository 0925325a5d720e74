"""Emitted GEMM kernels for tests: derived, compiled in child processes, simulated against float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from closedform.hw import catalogue
from closedform.operators.gemm import DTYPES, Gemm
from closedform.operators.gemm_pack import pack
from closedform.operators.numerics import rounded
from closedform.visitors.compile import Compiled, compile_source
from closedform.visitors.derivation import Derivation
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive
from closedform.visitors.gemm_shape import GemmShape

NUMPY = {"f64": np.float64, "f32": np.float32, "xf32": np.float32, "f16": np.float16, "i8": np.int8, "i32": np.int32}


def derived(hw: str, op: Gemm, **fixed: Any) -> Derivation:
    return derive(op, catalogue.get(hw), "default", **fixed)


def offered(hw: str) -> list[str]:
    """Types whose gemm the target has."""
    return [t for t in DTYPES if any(a.emit and a.blocks == 1 and a.dtype_a.name == t for a in catalogue.get(hw).atoms)]


@cache
def kernel(hw: str, op: Gemm, fixed: tuple[tuple[str, Any], ...] = ()) -> tuple[Derivation, Compiled]:
    derivation = derived(hw, op, **dict(fixed))
    assert derivation.infeasible is None, derivation.infeasible
    return derivation, compile_source(emit_source(derivation), derivation.hw.gfx)


def whole_numbers(rng: Any, shape: tuple[int, ...], dtype: str, most: int = 3) -> Any:
    """Small whole numbers as the kernel's memory holds them."""
    return stored(rng.integers(-most, most + 1, shape), dtype)


def stored(values: Any, dtype: str) -> Any:
    """Values as memory holds them: types that numpy lacks as words."""
    if dtype in NUMPY:
        return np.asarray(values).astype(NUMPY[dtype])
    if dtype == "bf16":
        return (rounded(values, "bf16").view(np.uint32) >> 16).astype(np.uint16)
    return _codes(dtype)[1][np.searchsorted(_codes(dtype)[0], rounded(values, dtype))]


def loaded(words: Any, dtype: str) -> Any:
    """float64 of what memory holds."""
    if dtype in NUMPY:
        return words.astype(np.float64)
    if dtype == "bf16":
        return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    values, codes = _codes(dtype)
    table = np.full(256, np.nan)
    table[codes] = values
    return table[words] + 0.0


@cache
def _codes(dtype: str) -> tuple[Any, Any]:
    """Finite values of an 8-bit float in order, with their codes; -0 counts as 0."""
    exponent_bits = 4 if dtype.startswith("fp8") else 5
    mantissa = 7 - exponent_bits
    bias = (1 << exponent_bits - 1) - (0 if dtype.endswith("fnuz") else 1)
    values = {}
    for code in range(256):
        sign, e, m = code >> 7, code >> mantissa & (1 << exponent_bits) - 1, code & (1 << mantissa) - 1
        if dtype.endswith("fnuz"):
            special = code == 0x80
        elif dtype == "bf8_e5m2":
            special = e == 31
        else:
            special = code & 0x7F == 0x7F
        if not special:
            size = np.ldexp(m + (e > 0) * (1 << mantissa), max(e, 1) - bias - mantissa)
            values.setdefault(-size if sign else size, code)
    ordered = sorted(values)
    return np.array(ordered), np.array([values[v] for v in ordered], np.uint8)


def simulate(
    hw: str, op: Gemm, run_op: Gemm, fixed: tuple[tuple[str, Any], ...] = (), *, alpha: float = 1.0, beta: float = 0.0
) -> tuple[Any, Any, Any]:
    """The kernel that `op` decides, run on the shape of `run_op`: (simulator's result, output, float64 reference)."""
    from closedform.hw.sim import Out, flydsl_args, parse_file, run

    derivation, binary = kernel(hw, op, fixed)
    tiles, _, _ = derivation.require()
    rng = np.random.default_rng(run_op.M * 7 + run_op.N * 3 + run_op.K)
    batch, M, N = run_op.batch, run_op.M, run_op.N
    a = whole_numbers(rng, (batch, *run_op.shape_a), op.dtype)
    b = whole_numbers(rng, (batch, *run_op.shape_b), op.dtype)
    extra = []
    if op.has_c:
        extra.append(whole_numbers(rng, (batch, M, N), op.result))
    if op.bias != "none":
        extra.append(whole_numbers(rng, (batch, 1, M if op.bias == "row" else N), "f32"))
    given = {"A": a, "B": b}
    for name, layout in GemmShape(op, tiles, derivation.hw).packed.items():
        lying = pack(op, name, given[name], layout)
        given[name] = lying.reshape(*lying.shape[:2], -1)
    out = np.zeros((batch, M, N), stored(np.zeros(1), op.result).dtype)
    scalar = np.float64 if tiles.atom.dtype_acc.name == "f64" else np.float32
    program = parse_file(binary.isa)
    blocks = -(-M // tiles.tile_m) * -(-N // tiles.tile_n)
    arguments = [given["A"], given["B"], Out(out), *extra, M, N, run_op.K if alpha else 0, scalar(alpha), scalar(beta)]
    grid = (min(blocks, 65536), -(-blocks // 65536), batch)
    result = run(program, flydsl_args(program.kernel(), arguments), grid=grid)
    left, right = loaded(a, op.dtype), loaded(b, op.dtype)
    left = left if op.layout[0] == "N" else np.swapaxes(left, 1, 2)
    right = right if op.layout[1] == "N" else np.swapaxes(right, 1, 2)
    want = alpha * (left @ right)
    if op.has_c:
        want = want + beta * loaded(extra[0], op.result)
    if op.bias != "none":
        bias = extra[-1].astype(np.float64)
        want = want + (np.swapaxes(bias, 1, 2) if op.bias == "row" else bias)
    want = np.maximum(want, 0) if op.activation == "relu" else want
    return result, loaded(out, op.result), loaded(stored(want, op.result), op.result)
