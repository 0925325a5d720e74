"""The GEMM model put together: kernel family of a GPU, its k step, its constants."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor

from .configs import Configs
from .constants import Constants, constants_for
from .families import gemm_family
from .gemm_time import GemmShapes, Timing, gemm_time
from .step import Step, pipelined_step, staged_step

__all__ = ["gemm_shapes", "gemm_timing", "k_step"]


def k_step(hw: HardwareDescriptor, k: Constants, c: Configs, dtype: str, layout: str) -> Step:
    """One k step of every configuration in that type and layout."""
    kind = hw.resolve_dtype(dtype)
    make = pipelined_step if k.family == "pipelined" else staged_step
    rate = hw.flops_per_clk_cu(kind) * (k.get("f16_clock_share", 1.0) if kind.name == "f16" else 1.0)
    return make(hw, k, c, kind.bits / 8, layout, rate)


def gemm_shapes(M: Any, N: Any, K: Any, elem_bytes: float, out_bytes: float, layout: str, batch: Any) -> GemmShapes:
    """Shapes as columns, so that they broadcast against configurations."""
    import numpy as np

    columns = [np.asarray(v, float).reshape(-1, 1) for v in (M, N, K, batch)]
    return GemmShapes(columns[0], columns[1], columns[2], elem_bytes, out_bytes, layout, columns[3])


@lru_cache(maxsize=64)
def _default_constants(hw: HardwareDescriptor) -> Constants:
    return constants_for(hw, gemm_family(hw))


def gemm_timing(
    hw: HardwareDescriptor,
    c: Configs,
    s: GemmShapes,
    dtype: str,
    *,
    constants: Constants | None = None,
    step: Step | None = None,
    stream_k: bool = False,
    detail: bool = False,
) -> Timing:
    """Time shapes [s, 1] against configurations [c]; `step` where the caller has it already."""
    k = constants or _default_constants(hw)
    return gemm_time(hw, k, c, step or k_step(hw, k, c, dtype, s.layout), s, stream_k=stream_k, detail=detail)
