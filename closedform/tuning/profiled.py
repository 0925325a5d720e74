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
    the pipe that binds it, counted while `blocks` workgroups run on the simulator.

    Of a kernel that adds parts of sums behind the first one, there are as many workgroups as tiles.
    """

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
        tiles, _, grid = derivation.require()
        executed = profile_derivation(derivation, How(self.blocks, False, 0)).executed
        assert executed is not None, "a derivation is profiled by running it"
        parts = getattr(tiles, "split_k", 1)
        clocks = 0.0
        for number, result in enumerate(executed.results):
            bound = result.bound.get("bound_clocks")
            if not bound:
                raise EvaluationFailed(f"the simulator counted no clocks of {result.kernel}")
            blocks = grid.blocks if number == 0 else grid.blocks // parts
            clocks += -(-blocks // self.hw.num_cus) * bound
        return clocks / self.hw.clock_mhz
