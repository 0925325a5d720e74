"""What `predict` and `select` answer: frozen values with their JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Candidate", "ClosedForm", "Prediction", "Selection"]


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(float(value), 4) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latency of one configuration.

    `low_us` and `high_us` hold four of five errors of the cross-validated fit; `calibrated` is false where the
    constants are those of another part. `levels_clk` are clocks of one k (or key) step by what could bind it;
    `parts_us` are launch, main loop, what begins and ends a tile, and a reduction.
    """

    op: str
    hw: str
    latency_us: float
    low_us: float
    high_us: float
    bound: str
    rounds: int
    utilisation: float
    tflops: float
    flop: float
    hbm_bytes: float
    config: Mapping[str, int]
    levels_clk: Mapping[str, float]
    parts_us: Mapping[str, float]
    constants_of: str
    calibrated: bool
    notes: tuple[str, ...] = ()

    @property
    def slots(self) -> str:
        """Rounds and how full they are, as text."""
        return f"{self.rounds} round{'s' * (self.rounds != 1)}, {self.utilisation:.0%} of their slots used"

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "hw": self.hw,
            "latency_us": round(self.latency_us, 4),
            "low_us": round(self.low_us, 4),
            "high_us": round(self.high_us, 4),
            "bound": self.bound,
            "rounds": self.rounds,
            "utilisation": round(self.utilisation, 4),
            "tflops": round(self.tflops, 4),
            "flop": self.flop,
            "hbm_bytes": self.hbm_bytes,
            "config": dict(self.config),
            "levels_clk": _rounded(self.levels_clk),
            "parts_us": _rounded(self.parts_us),
            "constants_of": self.constants_of,
            "calibrated": self.calibrated,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration of the legal lattice with its predicted latency."""

    config: Mapping[str, int]
    latency_us: float

    def to_json(self) -> dict[str, Any]:
        return {**self.config, "latency_us": round(self.latency_us, 4)}


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The tiles of `derive` as the same model times them, and how the selected ones compare.

    No candidate where `derive` has no tiles; `why` is then the reason.
    """

    candidate: Candidate | None
    why: str

    def to_json(self) -> dict[str, Any]:
        return {**({} if self.candidate is None else self.candidate.to_json()), "why": self.why}


@dataclass(frozen=True, slots=True)
class Selection:
    """The best legal configuration and the runners-up, fastest first; `why` names the binding level, the lead over the
    next and over the closed form's tiles.

    What binds and the comparison are worked out when asked for.
    """

    op: str
    hw: str
    best: Candidate
    runners_up: tuple[Candidate, ...]
    legal: int
    band: float
    constants_of: str
    calibrated: bool
    explain: Callable[[], Prediction] = field(repr=False, compare=False)
    compare: Callable[[], ClosedForm] = field(repr=False, compare=False)

    @property
    def closed_form(self) -> ClosedForm:
        return self.compare()

    @property
    def why(self) -> str:
        return self._why(self.closed_form)

    def _why(self, other: ClosedForm) -> str:
        text = f"bound by {self.explain().bound}"
        if self.runners_up:
            lead = self.runners_up[0].latency_us / self.best.latency_us
            text += f"; {lead - 1:.1%} ahead of the next" + (", within the model's band" if lead < self.band else "")
        return f"{text}; {other.why}"

    def to_json(self) -> dict[str, Any]:
        other = self.closed_form
        return {
            "op": self.op,
            "hw": self.hw,
            **self.best.to_json(),
            "runners_up": [c.to_json() for c in self.runners_up],
            "closed_form": other.to_json(),
            "legal": self.legal,
            "why": self._why(other),
            "constants_of": self.constants_of,
            "calibrated": self.calibrated,
        }
