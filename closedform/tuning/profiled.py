"""The compiled kernel as evaluator: its instructions are executed on this CPU, and the slowest pipe is its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.visitors.compile import installed_version
from closedform.visitors.feasibility import derive

from .candidate import Candidate
from .evaluator import EvaluationFailed

__all__ = ["ProfileEvaluator"]


@dataclass(frozen=True, slots=True)
class ProfileEvaluator:
    """A lower bound, not a time: ceil(workgroups / CUs) workgroups of a CU, one after another, each for the clocks of
    the pipe that binds it, counted while `blocks` workgroups run on the simulator."""

    op: Any
    hw: HardwareDescriptor
    blocks: int = 2
    name: str = "profile"
    repeatable: bool = True

    def identity(self) -> Mapping[str, object]:
        return {"flydsl": installed_version("flydsl"), "blocks": self.blocks}

    def measure(self, candidate: Candidate) -> float:
        from closedform.profiling import profile_derivation
        from closedform.simulation_case import How

        derivation = derive(self.op, self.hw, model="default", **candidate)
        _, _, grid = derivation.require()
        profile = profile_derivation(derivation, How(self.blocks, False, 0))
        bound = profile.to_json()["cu_bound"]
        if not bound or not bound["bound_clocks"]:
            raise EvaluationFailed("the simulator counted no clocks")
        rounds = -(-grid.blocks // self.hw.num_cus)
        return float(rounds * bound["bound_clocks"] / self.hw.clock_mhz)
