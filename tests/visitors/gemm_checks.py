"""What tests of emitted GEMMs share: operators, marks, the comparison of every word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from closedform.operators.gemm import Gemm
from closedform.visitors.compile import missing_dependency

from .gemm_kernels import simulate

Knobs = tuple[tuple[str, Any], ...]


def compiles(function: Any) -> Any:
    """Marks a test that needs the compiler."""
    missing = pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")
    return pytest.mark.compile(missing(function))


def op_of(M: int, N: int, K: int, dtype: str = "bf16", layout: str = "NT", **fields: Any) -> Gemm:
    return Gemm(M, N, K, dtype=dtype, layout=layout, **fields)


def exact(hw: str, op: Gemm, fixed: Knobs = (), run_op: Gemm | None = None, **options: Any) -> Any:
    """Runs the kernel: no report, and every word as float64 rounds it. Returns the simulator's result and D."""
    result, out, want = simulate(hw, op, run_op or op, fixed, **options)
    assert result.ok, str(result)
    assert np.array_equal(out, want, equal_nan=True)
    return result, out
