"""The model's lattice as a space: what `select` ranks, for GPUs of whose kernels only the tiles are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from closedform import __version__
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm
from closedform.operators.operator import described

from .candidate import Candidate, Round, canonical

__all__ = ["LatticeSpace", "attention_space", "gemm_space"]

#: Tiles that the first round measures: two sweeps of all rounds stay within 40 measurements.
TILE_MOST = 14
_PIPELINE = Round("pipeline", "waves of a workgroup and tiles under way", {"waves": (), "stages": ()})
_SPLIT = Round("split", "workgroups that share the sum of a tile", {"split_k": ()})


@dataclass(frozen=True, slots=True)
class LatticeSpace:
    """Configurations that are of use for a problem; the start is the one that `select` takes.

    `times` has configurations with their predicted times by their canonical text, the fastest first; `tile` names the
    knobs of the first round, `others` are the rounds after it, without their values.
    """

    problem: Mapping[str, object]
    hw: HardwareDescriptor
    times: Mapping[str, tuple[dict[str, int], float]]
    tile: tuple[str, ...]
    others: tuple[Round, ...]

    def identity(self) -> Mapping[str, object]:
        return {
            **self.problem,
            "hw": self.hw.name,
            "gfx": self.hw.gfx,
            "num_cus": self.hw.num_cus,
            "closedform": __version__,
        }

    def start(self) -> Candidate:
        return next(iter(self.times.values()))[0]

    def rounds(self) -> tuple[Round, ...]:
        tile = Round("tile", "macro tile and depth", self._axes(self.tile), reseed=True, most=TILE_MOST)
        others = (Round(one.name, one.text, self._axes(tuple(one.axes))) for one in self.others)
        return (tile, *(one for one in others if any(len(values) > 1 for values in one.axes.values())))

    def _axes(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        configs = [config for config, _ in self.times.values()]
        return {name: tuple(sorted({config[name] for config in configs})) for name in names}

    def completed(self, values: Candidate, held: Candidate) -> Candidate | None:
        """What is not given follows from the model: the fastest configuration with those values."""
        wanted = {**held, **values}
        if len(wanted) == len(self.start()):
            found = self.times.get(canonical(wanted))
            return None if found is None else found[0]
        matching = (c for c, _ in self.times.values() if all(c[name] == value for name, value in wanted.items()))
        return next(matching, None)

    def predicted_us(self, candidate: Candidate) -> float | None:
        found = self.times.get(canonical(candidate))
        return None if found is None else found[1]


def gemm_space(op: Gemm, hw: HardwareDescriptor) -> LatticeSpace:
    """Configurations of a product: tile, waves, stages and the split of K."""
    from closedform.predict.gemm_answer import GEMM_CONFIG
    from closedform.predict.select import gemm_selector

    selector = gemm_selector(hw, op.dtype, op.layout, dtype(op.result).bits)
    ranking = selector.rank(op.M, op.N, op.K, op.batch)
    times = {}
    for index in ranking.order(len(ranking.configs)):
        time = float(ranking.latency_us[index])
        config = ranking.configs.at(int(index))
        values = {name: config[name] for name in GEMM_CONFIG}
        if math.isfinite(time):
            times[canonical(values)] = values, time
    problem = {**asdict(op), "out_dtype": op.result, "op": "gemm of the lattice"}
    return LatticeSpace(problem, hw, times, ("tile_m", "tile_n", "tile_k"), (_PIPELINE, _SPLIT))


def attention_space(op: Attention, hw: HardwareDescriptor) -> LatticeSpace:
    """Configurations of fused attention: query rows of a workgroup, keys of a step, waves and stages."""
    from closedform.predict.attention_answer import select_attention
    from closedform.predict.attention_lattice import attention_lattice

    count = len(attention_lattice(hw, op.d, float(op.elem_bytes)))
    found = select_attention(op, hw, count=count)
    ranked = (found.best, *found.runners_up)
    times = {canonical(c.config): (dict(c.config), c.latency_us) for c in ranked}
    problem = {**described(op), "op": "attention of the lattice"}
    return LatticeSpace(problem, hw, times, ("tile_q", "tile_kv"), (_PIPELINE,))
