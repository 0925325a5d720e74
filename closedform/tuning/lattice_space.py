"""The model's lattice as a space: what `select` ranks, for GPUs of whose kernels only the tiles are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from closedform import __version__
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.gemm import Gemm
from closedform.predict.gemm_answer import GEMM_CONFIG
from closedform.predict.select import gemm_selector

from .candidate import Candidate, Round, canonical
from .rounds import TILE_MOST

__all__ = ["LatticeSpace"]

_TILE = ("tile_m", "tile_n", "tile_k")
#: Rounds after the tile's, each with its knobs and what they share.
_OTHERS = (("pipeline", "waves of a workgroup and tiles under way", ("waves", "stages")), ("split", "", ("split_k",)))


@dataclass(frozen=True)
class LatticeSpace:
    """Configurations of a product on a GPU; the start is the one that `select` takes."""

    op: Gemm
    hw: HardwareDescriptor

    @cached_property
    def _times(self) -> dict[str, tuple[dict[str, int], float]]:
        """Configurations that are of use for the product, with their predicted times, the fastest first."""
        op = self.op
        selector = gemm_selector(self.hw, op.dtype, op.layout, dtype(op.result).bits)
        ranking = selector.rank(op.M, op.N, op.K, op.batch)
        found = {}
        for index in ranking.order(len(ranking.configs)):
            time = float(ranking.latency_us[index])
            config = ranking.configs.at(int(index))
            values = {name: config[name] for name in GEMM_CONFIG}
            if math.isfinite(time):
                found[canonical(values)] = values, time
        return found

    def identity(self) -> Mapping[str, object]:
        op = self.op
        return {
            **{name: getattr(op, name) for name in ("M", "N", "K", "batch", "dtype", "layout", "lda", "ldb", "ldd")},
            "out_dtype": op.result,
            "op": "gemm of the lattice",
            "hw": self.hw.name,
            "gfx": self.hw.gfx,
            "num_cus": self.hw.num_cus,
            "closedform": __version__,
        }

    def start(self) -> Candidate:
        return next(iter(self._times.values()))[0]

    def rounds(self) -> tuple[Round, ...]:
        tile = Round("tile", "macro tile and depth", self._axes(_TILE), reseed=True, most=TILE_MOST)
        others = (Round(name, text, self._axes(knobs)) for name, text, knobs in _OTHERS)
        return (tile, *(one for one in others if any(len(values) > 1 for values in one.axes.values())))

    def _axes(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        configs = [config for config, _ in self._times.values()]
        return {name: tuple(sorted({config[name] for config in configs})) for name in names}

    def completed(self, values: Candidate, held: Candidate) -> Candidate | None:
        """What is not given follows from the model: the fastest configuration with those values."""
        wanted = {**held, **values}
        if len(wanted) == len(GEMM_CONFIG):
            found = self._times.get(canonical(wanted))
            return None if found is None else found[0]
        matching = (c for c, _ in self._times.values() if all(c[name] == value for name, value in wanted.items()))
        return next(matching, None)

    def predicted_us(self, candidate: Candidate) -> float | None:
        found = self._times.get(canonical(candidate))
        return None if found is None else found[1]
