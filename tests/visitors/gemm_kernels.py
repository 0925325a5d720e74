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

from .gemm_memory import NANS, expected, surrounded, untouched

NUMPY = {"f64": np.float64, "f32": np.float32, "xf32": np.float32, "f16": np.float16, "i8": np.int8, "i32": np.int32}


def derived(hw: str, op: Gemm, **fixed: Any) -> Derivation:
    return derive(op, catalogue.get(hw), "default", **fixed)


def offered(hw: str) -> list[str]:
    """Types whose gemm the target has."""
    return [t for t in DTYPES if any(a.emit and a.blocks == 1 and a.dtype_a.name == t for a in catalogue.get(hw).atoms)]


@cache
def kernel(hw: str, op: Gemm, fixed: tuple[tuple[str, Any], ...] = ()) -> tuple[Derivation, Compiled]:
    derivation = derived(hw, op, **{"split_k": 1, "stream_k": 0, **dict(fixed)})
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
    finite, codes = _codes(dtype)
    words = codes[np.searchsorted(finite, np.nan_to_num(rounded(values, dtype)))]
    return np.where(np.isnan(values), np.uint8(NANS[dtype]), words)


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
    hw: str,
    op: Gemm,
    run_op: Gemm,
    fixed: tuple[tuple[str, Any], ...] = (),
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    scale: float = 1.0,
    inputs: dict[str, Any] | None = None,
) -> tuple[Any, Any, Any]:
    """The kernel that `op` decides, run on the shape of `run_op`: (simulator's result, output, float64 reference).

    Operands lie among NaN, with rows further apart than they are long, or as `run_op` says. `inputs` are values of A,
    B, C and bias in place of small whole numbers.
    """
    from closedform.hw.sim import Out, flydsl_args, parse_file, run

    derivation, binary = kernel(hw, op, fixed)
    tiles, _, _ = derivation.require()
    rng = np.random.default_rng(run_op.M * 7 + run_op.N * 3 + run_op.K)
    batch, M, N = run_op.batch, run_op.M, run_op.N
    shapes = {"A": ((batch, *run_op.shape_a), op.dtype), "B": ((batch, *run_op.shape_b), op.dtype)}
    if op.has_c:
        shapes["C"] = ((batch, M, N), op.result)
    if op.bias != "none":
        shapes["bias"] = ((batch, 1, M if op.bias == "row" else N), "f32")
    packed = GemmShape(op, tiles, derivation.hw).packed
    leading = {"A": run_op.lda, "B": run_op.ldb, "C": run_op.ldd}
    memory, values = {}, {"C": None, "bias": None}
    for name, (shape, kind) in shapes.items():
        given = None if inputs is None else inputs.get(name)
        words = whole_numbers(rng, shape, kind) if given is None else stored(np.broadcast_to(given, shape), kind)
        values[name] = loaded(words, kind)
        if name in packed:
            words = pack(op, name, words, packed[name])
            words = words.reshape(*words.shape[:2], -1)
        memory[name], _ = surrounded(words, kind, leading.get(name, 0))
    blank = np.zeros((batch, M, N), stored(np.zeros(1), op.result).dtype)
    out, allocation = surrounded(blank, op.result, run_op.ldd)
    scalar = np.float64 if tiles.atom.dtype_acc.name == "f64" else np.float32
    program = parse_file(binary.isa)
    blocks = -(-M // tiles.tile_m) * -(-N // tiles.tile_n)
    scalars = [alpha, beta, scale] if op.result.startswith(("fp8", "bf8")) else [alpha, beta]
    extra = [memory[name] for name in ("C", "bias") if name in memory]
    arguments = [memory["A"], memory["B"], Out(out), *extra, M, N, run_op.K if alpha else 0, *map(scalar, scalars)]
    grid = (min(blocks, 65536), -(-blocks // 65536), batch)
    result = run(program, flydsl_args(program.kernel(), arguments), grid=grid)
    assert untouched(out, allocation, op.result), "the kernel wrote beside D"
    want = expected(op, values["A"], values["B"], values["C"], values["bias"], alpha, beta, scale)
    missing = np.isnan(want)
    rounded_want = loaded(stored(np.where(missing, 0.0, want), op.result), op.result)
    return result, loaded(out, op.result), np.where(missing, np.nan, rounded_want)
