"""The live set of an emitted softmax, item by item: what the register promise consists of."""

from __future__ import annotations

from dataclasses import dataclass

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.occupancy import register_budget
from closedform.operators.softmax import Softmax, SoftmaxTiles

from .derivation import PredictedResources, RegisterItem

__all__ = ["LiveSet", "budget_of", "lds_bytes", "resources"]


#: Registers beside the elements of a row, held against binaries of all targets, types and options (flydsl 0.5.0): per
#: access, and once. One pass keeps every exponential, and with a logarithm every logit, too.
PLACES = {(4, 1): 4, (8, 1): 6, (4, 2): 3, (8, 2): 9}
LOG_PLACES = {(4, 1): 3, (8, 1): 5, (4, 2): 0, (8, 2): 0}
FIXED = {1: 14, 2: 24}
MASKED = 4


@dataclass(frozen=True, slots=True)
class LiveSet:
    """Registers of a lane: those of each access that it holds, and those that are there once."""

    values: int
    places: int
    fixed: int

    @classmethod
    def of(cls, op: Softmax, passes: int) -> LiveSet:
        """The live set of a kernel with these options."""
        kind = (op.vec, passes)
        places = PLACES[kind] + (LOG_PLACES[kind] if op.log else 0)
        return cls(op.vec, places, FIXED[passes] + MASKED * op.mask)

    @property
    def each(self) -> int:
        """Registers of one access."""
        return self.values + self.places

    def items(self, chunks: int) -> tuple[RegisterItem, ...]:
        return (
            RegisterItem("row", chunks * self.values, "arch", "elements of a step as f32; exponentials in their place"),
            RegisterItem("places", chunks * self.places, "arch", "offset of every access, loads under way, copies"),
            RegisterItem("fixed", self.fixed, "arch", "descriptors' offsets, states, temporaries of the reductions"),
        )


def waves_per_simd(hw: HardwareDescriptor, waves: int) -> int:
    """Waves of one workgroup on a SIMD."""
    return -(-waves // hw.simds_per_cu)


def budget_of(hw: HardwareDescriptor, waves: int) -> int:
    """ArchVGPRs with which a workgroup of so many waves fits a CU: vector instructions touch no others."""
    return register_budget(hw, waves_per_simd(hw, waves)).arch


def lds_bytes(tiles: SoftmaxTiles) -> int:
    """A maximum and a sum of every wave, where several share a row."""
    return 8 * tiles.waves if tiles.row_waves > 1 else 0


def resources(hw: HardwareDescriptor, live: LiveSet, tiles: SoftmaxTiles, registers: int) -> PredictedResources:
    """The promise for the binary."""
    return PredictedResources(
        items=live.items(tiles.chunks),
        registers=registers,
        arch_registers=registers,
        acc_registers=0,
        register_budget=budget_of(hw, tiles.waves),
        lds_bytes=lds_bytes(tiles),
        lds_limit_bytes=hw.lds_max_per_workgroup_bytes,
        waves_per_simd=tiles.waves_per_simd,
    )
