"""Our own kernels as a space: knobs of a derivation, legal where the derivation is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from closedform import __version__
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, InfeasibleError
from closedform.operators.conv2d import KNOBS as CONV2D_KNOBS
from closedform.operators.gemm import KNOBS as GEMM_KNOBS
from closedform.operators.operator import described
from closedform.visitors.feasibility import derive

from .candidate import Candidate, Round, Value
from .rounds import rounds_of

__all__ = ["OperatorSpace"]

#: Knobs that a candidate has, by operator.
_KNOBS = {
    "gemm": tuple(knob.name for knob in GEMM_KNOBS),
    "conv2d": tuple(knob.name for knob in CONV2D_KNOBS),
    "attention": ("tile_q", "tile_kv", "waves", "atom"),
}


@dataclass(frozen=True, slots=True)
class OperatorSpace:
    """Kernels of an operator on a GPU. `overrides` fix knobs of the start, as a decoded kernel or the user does."""

    op: Any
    hw: HardwareDescriptor
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.op.name not in _KNOBS:
            raise BadInput(f"{self.op.name} has no rounds: tune takes {', '.join(_KNOBS)}")

    def identity(self) -> Mapping[str, object]:
        return {
            **{name: list(v) if isinstance(v, tuple) else v for name, v in described(self.op).items()},
            "op": self.op.name,
            "hw": self.hw.name,
            "gfx": self.hw.gfx,
            "num_cus": self.hw.num_cus,
            "closedform": __version__,
        }

    def start(self) -> Candidate:
        """The closed form's kernel. Raises InfeasibleError and BadInput where it has none."""
        tiles, _, _ = derive(self.op, self.hw, model="default", **self.overrides).require()
        return self._values(tiles)

    def rounds(self) -> tuple[Round, ...]:
        return rounds_of(self.op.name, self.hw)

    def completed(self, values: Candidate, held: Candidate) -> Candidate | None:
        try:
            tiles, _, _ = derive(self.op, self.hw, model="default", **{**held, **values}).require()
        except (BadInput, InfeasibleError):
            return None
        return self._values(tiles)

    def predicted_us(self, candidate: Candidate) -> float | None:
        if self.op.name == "gemm":
            return self._gemm_us(candidate)
        if self.op.name == "attention":
            return self._attention_us(candidate)
        return None

    def _values(self, tiles: Any) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name in _KNOBS[self.op.name]:
            value = getattr(tiles, name)
            if name == "atom":
                # Attention takes the shape, other operators the instruction.
                value = f"{value.m}x{value.n}" if self.op.name == "attention" else value.instruction
            found[name] = value
        return found

    def _gemm_us(self, candidate: Candidate) -> float | None:
        from closedform.interop.kernel import Kernel
        from closedform.interop.offers import predicted_us

        numbers = {name: int(value) for name, value in candidate.items() if isinstance(value, int)}
        atom = self.hw.atom(str(candidate["atom"]), self.op.dtype)
        kernel = Kernel(
            tile_m=numbers["tile_m"],
            tile_n=numbers["tile_n"],
            tile_k=numbers["tile_k"],
            mfma_m=atom.m,
            wave_m=numbers["wave_m"],
            wave_n=numbers["wave_n"],
            split_k=numbers["split_k"],
            stream_k=numbers["stream_k"],
        )
        return predicted_us(self.op, self.hw, kernel)

    def _attention_us(self, candidate: Candidate) -> float | None:
        from closedform.predict.attention_answer import predict_attention
        from closedform.predict.step import STAGED_BUFFERS

        waves, rows = int(candidate["waves"]), int(candidate["tile_q"])
        config: dict[str, Any] = {"tile_q": waves * rows, "tile_kv": int(candidate["tile_kv"]), "waves": waves}
        try:
            return predict_attention(self.op, self.hw, **config, stages=STAGED_BUFFERS).latency_us
        except (BadInput, InfeasibleError):
            return None
