"""Fused attention against the same in three kernels: traffic, operations, rounds, predicted time, and the crossover."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .traffic import SOFTMAX_OPS, attention_flops, fused_bytes, savings, scores_bytes, unfused_bytes

if TYPE_CHECKING:
    from .hw.descriptor import HardwareDescriptor
    from .operators.attention import Attention
    from .visitors.derivation import Derivation

__all__ = ["LONGEST", "SHORTEST", "Comparison", "Side", "compare_attention"]

#: Lengths between which the crossover is looked for, and the step to which it is known.
SHORTEST, LONGEST, STEP = 64, 1 << 17, 64


@dataclass(frozen=True, slots=True)
class Side:
    """One way to compute attention. hbm_bytes must cross the memory interface; rounds are those of all kernels."""

    kernels: int
    hbm_bytes: int
    flops: int
    workgroups: tuple[int, ...]
    rounds: int
    utilisation: float
    latency_us: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both ways for one shape. `crossover` is the length from which the fused kernel is predicted to be the faster one,
    at this number of heads and batch; `crossover_filled` the same with as many heads as fill the device from one
    workgroup each. None where it never is, up to 131072.
    """

    op: Attention
    hw: str
    fused: Side
    unfused: Side
    parts_us: dict[str, float]
    savings: float
    heads_filled: int
    crossover: int | None
    crossover_filled: int | None

    def to_json(self) -> dict[str, Any]:
        from .operators.operator import described

        return {**asdict(self), "op": {"name": self.op.name, **described(self.op)}}


def compare_attention(op: Attention, hw: HardwareDescriptor) -> Comparison:
    """Both ways on `hw`. Raises InfeasibleError and BadInput as their derivations do."""
    fused = _fused(op, hw)
    unfused, parts = _unfused(op, hw)
    heads = -(-hw.num_cus // op.batch)
    return Comparison(
        op,
        hw.name,
        fused,
        unfused,
        parts,
        savings(op),
        heads,
        _crossover(op, hw),
        _crossover(replace(op, heads=heads), hw),
    )


def _fused(op: Attention, hw: HardwareDescriptor) -> Side:
    from .predict.attention_answer import predict_attention
    from .visitors.feasibility import derive

    tiles, _, grid = derive(op, hw, "default").require()
    predicted = predict_attention(
        op, hw, tile_q=tiles.block_q, tile_kv=tiles.tile_kv, waves=tiles.waves, stages=2
    )
    rescaled = 2 * op.d * -(-op.L_kv // tiles.tile_kv)
    scores = op.batch * op.heads * op.L_q * op.L_kv
    flops = attention_flops(op) + SOFTMAX_OPS * scores + op.batch * op.heads * op.L_q * rescaled
    return Side(1, fused_bytes(op), flops, (grid.blocks,), grid.rounds, grid.utilisation, predicted.latency_us)


def _unfused(op: Attention, hw: HardwareDescriptor) -> tuple[Side, dict[str, float]]:
    from .predict.softmax import predict_softmax
    from .visitors.unfused import derive_unfused

    found = derive_unfused(op, hw)
    softmax = found.softmax.op
    times = {
        "scores": _gemm_us(found.scores, hw),
        "softmax": predict_softmax(softmax, hw).latency_us,
        "values": _gemm_us(found.values, hw),
    }
    read_again = scores_bytes(op) * (found.softmax.require()[0].passes - 1)
    flops = attention_flops(op) + SOFTMAX_OPS * op.batch * op.heads * op.L_q * op.L_kv
    grids = [part.require()[2] for part in found.parts.values()]
    used = sum(grid.blocks for grid in grids) / sum(grid.blocks / grid.utilisation for grid in grids)
    blocks = tuple(grid.blocks for grid in grids)
    side = Side(3, unfused_bytes(op) + read_again, flops, blocks, found.rounds, used, sum(times.values()))
    return side, times


def _gemm_us(derivation: Derivation, hw: HardwareDescriptor) -> float:
    from .predict.gemm_answer import predict_gemm

    tiles, _, _ = derivation.require()
    config = {name: getattr(tiles, name) for name in ("tile_m", "tile_n", "tile_k", "waves", "split_k")}
    return predict_gemm(derivation.op, hw, stages=tiles.buffers, **config).latency_us


def _crossover(op: Attention, hw: HardwareDescriptor) -> int | None:
    """The least multiple of STEP from which fused is faster at every doubling, between the last one at which it is not
    and the next."""
    lengths = [SHORTEST << i for i in range((LONGEST // SHORTEST).bit_length())]
    slower = [length for length in lengths if not _wins(op, hw, length)]
    if not slower:
        return SHORTEST
    low, high = slower[-1], slower[-1] * 2
    if high > LONGEST:
        return None
    while high - low > STEP:
        middle = (low + high) // 2 // STEP * STEP
        low, high = (low, middle) if _wins(op, hw, middle) else (middle, high)
    return high


def _wins(op: Attention, hw: HardwareDescriptor, length: int) -> bool:
    here = replace(op, L_q=length, L_kv=length)
    return _fused(here, hw).latency_us < _unfused(here, hw)[0].latency_us
