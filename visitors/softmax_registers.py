"""The live set of an emitted softmax, item by item: what the register promise consists of."""

from __future__ import annotations

from dataclasses import dataclass

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.occupancy import register_budget
from closedform.operators.softmax import Softmax, SoftmaxTiles

from .derivation import PredictedResources, RegisterItem

__all__ = ["LiveSet", "budget_of", "lds_bytes", "resources"]


#: Registers of an access, and those that are there once, by (elements of an access, passes): held against binaries of
#: all targets, types and options (flydsl 0.5.0). Elements are held as f32; offsets and loads under way come on top.
EACH = {(4, 1): 6, (8, 1): 14, (4, 2): 6, (8, 2): 14}
FIXED = {(4, 1): 14, (8, 1): 12, (4, 2): 16, (8, 2): 18}
#: In one pass of f32, packed arithmetic wants pairs of registers: an access takes one more.
PAIR_EACH = 1
#: What options add: per access a logarithm and a mask, and a mask once.
LOG_EACH = {(4, 1): 1, (8, 1): 3, (4, 2): 1, (8, 2): 1}
MASK_EACH = {(4, 1): 1, (8, 1): 1, (4, 2): 1, (8, 2): 4}
MASK_FIXED = 3
#: Where 16-bit types are converted in pairs, an option of one pass takes one more.
CONVERTED_EACH = 1
#: What the rest of the kernel takes where accesses are few.
LEAST = {(4, 1): 26, (8, 1): 34, (4, 2): 32, (8, 2): 56}


@dataclass(frozen=True, slots=True)
class LiveSet:
    """Registers of a lane: those of each access that it holds, and those that are there once."""

    values: int
    places: int
    fixed: int
    least: int

    @classmethod
    def of(cls, op: Softmax, hw: HardwareDescriptor, passes: int) -> LiveSet:
        """The live set of a kernel with these options."""
        kind = (op.vec, passes)
        pairs = kind == (4, 1) and hw.has_packed_f32
        converted = CONVERTED_EACH if kind == (8, 1) and hw.has_cvt_pk_bf16_f32 else 0
        options = (LOG_EACH[kind] + converted) * op.log + (MASK_EACH[kind] + converted) * op.mask
        each = EACH[kind] + PAIR_EACH * pairs + options
        return cls(op.vec, each - op.vec, FIXED[kind] + MASK_FIXED * op.mask, LEAST[kind])

    @property
    def each(self) -> int:
        """Registers of one access."""
        return self.values + self.places

    def items(self, chunks: int) -> tuple[RegisterItem, ...]:
        """What a kernel of so many accesses a step holds."""
        rest = max(0, self.least - chunks * self.each - self.fixed)
        return (
            RegisterItem("row", chunks * self.values, "arch", "elements of a step as f32; exponentials in their place"),
            RegisterItem("places", chunks * self.places, "arch", "offset of every access, loads under way, copies"),
            RegisterItem(
                "fixed", self.fixed + rest, "arch", "descriptors' offsets, states, temporaries of the reductions"
            ),
        )


def budget_of(hw: HardwareDescriptor, waves: int) -> int:
    """ArchVGPRs with which a workgroup of so many waves fits a CU: vector instructions touch no others."""
    return register_budget(hw, -(-waves // hw.simds_per_cu)).arch


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
