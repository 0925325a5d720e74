"""The GPU as evaluator: the kernel is emitted, compiled, checked for its device and timed with device events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.visitors.compile import installed_version

from .candidate import Candidate

__all__ = ["DeviceEvaluator"]

#: Launches that are not timed, and those that are.
WARMUP, REPEATS = 30, 50


@dataclass(frozen=True, slots=True)
class DeviceEvaluator:
    """Median of timed launches over rotating buffers, which are at least twice the last-level cache.

    Raises BadInput for a number of launches that is not positive, NoDevice where there is no such GPU.
    """

    op: Any
    hw: HardwareDescriptor
    repeats: int = REPEATS
    warmup: int = WARMUP
    name: str = "device"
    repeatable: bool = False

    def __post_init__(self) -> None:
        from closedform.bench import buffer_sets
        from closedform.device import launch_device

        if self.repeats < 1 or self.warmup < 1:
            raise BadInput(f"{self.warmup} warm-up and {self.repeats} timed launches: at least 1 of each")
        if buffer_sets(self.op, self.hw) < 1:
            raise BadInput("no copies of the buffers to rotate: at least 1")
        differences = launch_device().differences(self.hw)
        if differences:
            raise BadInput("; ".join(differences))

    def identity(self) -> Mapping[str, object]:
        packages = {name: installed_version(name) for name in ("flydsl", "torch")}
        return {**packages, "repeats": self.repeats, "warmup": self.warmup, "rotating": True}

    def measure(self, candidate: Candidate) -> float:
        from closedform.bench import bench_operator

        return bench_operator(self.op, self.hw, repeats=self.repeats, warmup=self.warmup, **candidate).median_us
