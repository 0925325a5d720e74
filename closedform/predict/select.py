"""Selection over the legal lattice: one shape in microseconds, many shapes in one call. Deterministic: ties go to the
earlier configuration of the lattice."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .configs import Configs
from .constants import Constants, constants_for
from .families import gemm_family
from .gemm import k_step
from .gemm_time import GemmShapes, gemm_time
from .lattice import legal_configs, useful
from .step import Step

if TYPE_CHECKING:
    from .configs import Array

__all__ = ["GemmSelector", "Ranking", "gemm_selector"]

#: Shapes timed at once: the arrays of a chunk stay in the L2 cache of a CPU.
CHUNK = 16
#: From this many shapes on, single precision: the model's errors are far above its rounding.
MANY = 64
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
        return self._times(*_checked(M, N, K, batch))

    def _times(self, m: Array, n: Array, k: Array, b: Array) -> Array:
        import numpy as np

        s = GemmShapes(m[:, None], n[:, None], k[:, None], self.elem_bytes, self.out_bytes, self.layout, b[:, None])
        found = gemm_time(self.hw, self.constants, self.configs, self.step, s).latency_us
        return np.where(useful(self.configs, s.M, s.N, s.K), found, np.inf)

    def rank(self, M: int, N: int, K: int, batch: int = 1) -> Ranking:
        return Ranking(self.configs, self.times(M, N, K, batch)[0])

    def best(self, M: Any, N: Any, K: Any, batch: Any = 1) -> tuple[Array, Array]:
        """Index of the best configuration and its latency for arrays of shapes; in single precision for many."""
        import numpy as np

        columns = _checked(M, N, K, batch)
        many = len(columns[0]) >= MANY
        chosen = dataclasses.replace(self, configs=_single(self.configs), step=_single(self.step)) if many else self
        columns = [c.astype(np.float32) for c in columns] if many else columns
        index = np.empty(len(columns[0]), int)
        latency_us = np.empty(len(columns[0]))
        for at in range(0, len(index), CHUNK):
            part = slice(at, at + CHUNK)
            times = chosen._times(*(c[part] for c in columns))
            index[part] = times.argmin(1)
            latency_us[part] = times.min(1)
        return index, latency_us


Columns = TypeVar("Columns", Configs, Step)


def _single(columns: Columns) -> Columns:
    """The same arrays in single precision."""
    import numpy as np

    names = [f.name for f in dataclasses.fields(columns)]
    return type(columns)(*(getattr(columns, name).astype(np.float32) for name in names))


def _checked(*extents: Any) -> list[Array]:
    """M, N, K and batch as float arrays of one length; BadInput names the extent that is no whole number from 1 on."""
    import numpy as np

    if all(type(v) is int and 1 <= v <= LIMIT for v in extents):
        return [np.array([float(v)]) for v in extents]
    found = list(np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in extents)))
    for name, v in zip(("M", "N", "K", "batch"), found, strict=True):
        if not ((v >= 1) & (v <= LIMIT) & (v == np.floor(v))).all():
            raise BadInput(f"{name} must be whole numbers from 1 to 2^40")
    return found


@lru_cache(maxsize=64)
def gemm_selector(
    hw: HardwareDescriptor,
    dtype: str,
    layout: str = "NN",
    out_bits: int = 16,
    constants: Constants | None = None,
) -> GemmSelector:
    """The selector of a GPU, a type and a layout; kept, so that the second call costs nothing.

    `constants`: a user's own instead of those of the GPU.

    Raises BadInput for a type that is not of the GPU or has no matrix instruction, and for an unknown layout.
    """
    if layout not in ("NN", "NT", "TN", "TT"):
        raise BadInput(f"unknown layout {layout!r}; layouts: NN, NT, TN, TT")
    kind = hw.resolve_dtype(dtype)
    family = gemm_family(hw)
    constants = constants or constants_for(hw, family)
    c = legal_configs(hw, family, kind.bits)
    return GemmSelector(hw, constants, c, k_step(hw, constants, c, dtype, layout), kind.bits / 8, out_bits / 8, layout)
