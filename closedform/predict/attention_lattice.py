"""The legal configurations of fused attention: LDS of Q, K and V, registers of O and S, size of a workgroup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .families import gemm_family
from .legality import check_capacities, check_whole

if TYPE_CHECKING:
    from .configs import Array

__all__ = [
    "WAVE_ROWS",
    "AttentionConfigs",
    "attention_lattice",
    "check_attention_config",
    "lds_bytes",
    "registers_per_thread",
]

WAVE_ROWS = 16
#: Bytes that a lane holds in one register.
REGISTER_BYTES = 4
TILE_Q = (16, 32, 64, 128, 256)
TILE_KV = (16, 32, 64, 128)
WAVES = (4, 8)
#: Buffers of K and V in LDS; a staged kernel has one, and the next tiles under way in registers.
STAGES = (1, 2, 3, 4)
STAGED_STAGES = (2,)
#: Registers a thread needs besides the two accumulators before a configuration counts as legal.
OTHER_REGISTERS = 40
#: The same in an emitted kernel: addresses, offsets and fragments under way.
STAGED_OTHER_REGISTERS = 80


@dataclass(frozen=True, slots=True, eq=False)
class AttentionConfigs:
    """Query rows of a workgroup, keys of a step, waves and stages, as float64 arrays."""

    tile_q: Array
    tile_kv: Array
    waves: Array
    stages: Array

    def __len__(self) -> int:
        return len(self.tile_q)

    def take(self, where: Any) -> AttentionConfigs:
        return AttentionConfigs(*(getattr(self, f.name)[where] for f in fields(self)))

    def at(self, index: int) -> dict[str, int]:
        return {f.name: int(getattr(self, f.name)[index]) for f in fields(self)}


def registers_per_thread(hw: HardwareDescriptor, c: AttentionConfigs, d: Any, elem_bytes: float) -> Array:
    """Registers of a thread for O and S; in a staged kernel also for Q and for the next tiles of K and V."""
    found: Array = c.tile_q * (d + c.tile_kv)
    if gemm_family(hw) == "staged":
        found = found + (c.tile_q + 2 * c.tile_kv) * d * elem_bytes / REGISTER_BYTES
    each: Array = found / (c.waves * hw.wavefront_size)
    return each


def lds_bytes(hw: HardwareDescriptor, c: AttentionConfigs, d: Any, elem_bytes: float) -> Array:
    """K and V in every buffer; Q too where the matrix cores read it from there."""
    if gemm_family(hw) == "staged":
        found: Array = 2 * c.tile_kv * d * elem_bytes
    else:
        found = (c.tile_q + 2 * c.stages * c.tile_kv) * d * elem_bytes
    return found


@lru_cache(maxsize=64)
def attention_lattice(hw: HardwareDescriptor, d: int, elem_bytes: float = 2.0) -> AttentionConfigs:
    """Every legal configuration for that head dim, in a fixed order: LDS of Q and the stages of K and V, registers of
    O and S, size of a workgroup; 8 waves where each owns 16 rows."""
    import numpy as np

    staged = gemm_family(hw) == "staged"
    axes = np.meshgrid(TILE_Q, TILE_KV, WAVES, STAGED_STAGES if staged else STAGES, indexing="ij")
    c = AttentionConfigs(*(np.ascontiguousarray(a.ravel(), float) for a in axes))
    registers = registers_per_thread(hw, c, d, elem_bytes) + (STAGED_OTHER_REGISTERS if staged else OTHER_REGISTERS)
    ok = (
        (lds_bytes(hw, c, d, elem_bytes) <= hw.lds_max_per_workgroup_bytes)
        & (registers <= np.minimum(hw.vgpr_per_wave_max, hw.vgpr_file * hw.simds_per_cu / c.waves))
        & (c.waves * hw.wavefront_size <= hw.workgroup_max)
        & ((c.waves <= min(WAVES)) | (c.tile_q >= WAVE_ROWS * c.waves))
    )
    return c.take(np.flatnonzero(ok))


def check_attention_config(hw: HardwareDescriptor, d: int, elem_bytes: float, config: Mapping[str, int]) -> None:
    """Raises BadInput or InfeasibleError for a configuration that no kernel can have on that GPU."""
    import numpy as np

    check_whole(config, {"tile_q": WAVE_ROWS, "tile_kv": WAVE_ROWS})
    staged = gemm_family(hw) == "staged"
    c = AttentionConfigs(*(np.array([float(config[f.name])]) for f in fields(AttentionConfigs)))
    check_capacities(
        hw,
        waves=config["waves"],
        lds_bytes=float(lds_bytes(hw, c, d, elem_bytes)[0]),
        registers=float(registers_per_thread(hw, c, d, elem_bytes)[0])
        + (STAGED_OTHER_REGISTERS if staged else OTHER_REGISTERS),
        tile_elements=config["tile_q"] * config["tile_kv"],
    )
    if staged and config["stages"] not in STAGED_STAGES:
        raise BadInput(f"stages={config['stages']}: a staged kernel has {STAGED_STAGES[0]}")
