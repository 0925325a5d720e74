"""Selection over the legal lattice: one shape in microseconds, many shapes in one call. Deterministic: ties go to the
earlier configuration of the lattice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .configs import Configs
from .constants import Constants, constants_for
from .gemm import gemm_family, k_step
from .gemm_time import GemmShapes, gemm_time
from .lattice import legal_configs, useful
from .step import Step

if TYPE_CHECKING:
    from .configs import Array

__all__ = ["GemmSelector", "Ranking", "gemm_selector"]

#: Shapes timed at once: the arrays of a chunk stay in the L2 cache of a CPU.
CHUNK = 32
LIMIT = 2**40


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The lattice's latencies for one shape, infinite where a tile is of no use for it."""

    configs: Configs
    latency_us: Array

    def order(self, count: int) -> Array:
        import numpy as np

        return np.argsort(self.latency_us, kind="stable")[:count]


@dataclass(frozen=True, slots=True, eq=False)
class GemmSelector:
    """The lattice of a GPU, a type and a layout with everything that does not depend on the shape."""

    hw: HardwareDescriptor
    constants: Constants
    configs: Configs
    step: Step
    elem_bytes: float
    out_bytes: float
    layout: str

    def times(self, M: Any, N: Any, K: Any, batch: Any = 1) -> Array:
        """Latencies [shapes, configurations] in microseconds, infinite where a tile is of no use."""
        import numpy as np

        m, n, k, b = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in (M, N, K, batch)))
        for name, v in (("M", m), ("N", n), ("K", k), ("batch", b)):
            if not (np.isfinite(v).all() and (v >= 1).all() and (v <= LIMIT).all()):
                raise BadInput(f"{name} must be whole numbers of at least 1")
        columns = [v[:, None] for v in (m, n, k, b)]
        s = GemmShapes(columns[0], columns[1], columns[2], self.elem_bytes, self.out_bytes, self.layout, columns[3])
        found = gemm_time(self.hw, self.constants, self.configs, self.step, s).latency_us
        return np.where(useful(self.configs, s.M, s.N, s.K), found, np.inf)

    def rank(self, M: int, N: int, K: int, batch: int = 1) -> Ranking:
        return Ranking(self.configs, self.times(M, N, K, batch)[0])

    def best(self, M: Any, N: Any, K: Any, batch: Any = 1) -> tuple[Array, Array]:
        """Index of the best configuration and its latency for arrays of shapes."""
        import numpy as np

        m, n, k, b = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in (M, N, K, batch)))
        index = np.empty(len(m), int)
        latency_us = np.empty(len(m))
        for at in range(0, len(m), CHUNK):
            part = slice(at, at + CHUNK)
            times = self.times(m[part], n[part], k[part], b[part])
            index[part] = times.argmin(1)
            latency_us[part] = times.min(1)
        return index, latency_us


@lru_cache(maxsize=64)
def gemm_selector(hw: HardwareDescriptor, dtype: str, layout: str = "NN", out_bits: int = 16) -> GemmSelector:
    """The selector of a GPU, a type and a layout; kept, so that the second call costs nothing.

    Raises BadInput for a type that is not of the GPU or has no matrix instruction, and for an unknown layout.
    """
    if layout not in ("NN", "NT", "TN", "TT"):
        raise BadInput(f"unknown layout {layout!r}; layouts: NN, NT, TN, TT")
    kind = hw.resolve_dtype(dtype)
    family = gemm_family(hw)
    constants = constants_for(hw, family)
    c = legal_configs(hw, family, kind.bits)
    return GemmSelector(hw, constants, c, k_step(hw, constants, c, dtype, layout), kind.bits / 8, out_bits / 8, layout)
