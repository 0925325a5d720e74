"""Occupancy: how many waves and workgroups a CU holds at once, and what one wave may use for a wanted number.

The rules are those that LLVM applies and writes into the kernel's metadata; the numbers are the descriptor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .descriptor import HardwareDescriptor
from .errors import BadInput

__all__ = [
    "Budget",
    "Occupancy",
    "lds_allocated_bytes",
    "lds_share_bytes",
    "occupancy_of",
    "register_budget",
    "registers_allocated",
    "waves_per_simd",
    "workgroups_per_cu",
]


def _align_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def _align_down(value: int, granule: int) -> int:
    return value // granule * granule


@dataclass(frozen=True, slots=True)
class Budget:
    """Registers per lane that one wave may use while a wanted number of waves shares the SIMD.

    `arch` and `acc` are the most of each kind and `total` the most of both together. In a split file the two
    halves do not compete, so `total` is their sum.
    """

    arch: int
    acc: int
    total: int
    unified: bool


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What a CU holds of one kernel, and the limit that binds.

    `by_*` are the workgroups per CU that each limit alone would allow. `limit` is the smallest of them:
    "registers", "lds", "waves" (wave slots) or "workgroups"; the first of these in a tie.
    """

    workgroups_per_cu: int
    waves_per_cu: int
    waves_per_simd: float
    limit: str
    by_registers: int
    by_lds: int
    by_waves: int
    by_workgroups: int


def registers_allocated(hw: HardwareDescriptor, arch: int, acc: int = 0) -> int:
    """Registers per lane that the hardware takes from `vgpr_file` for one wave.

    Unified file: align(align(arch, 4) + acc, granule); split file: align(max(arch, acc), granule).
    At least one granule is taken.

    >>> from closedform.hw.catalogue import get
    >>> registers_allocated(get("mi300x"), 100, 200), registers_allocated(get("mi100"), 100, 200)
    (304, 200)
    """
    if arch < 0 or acc < 0:
        raise BadInput(f"register counts cannot be negative: {arch} arch, {acc} acc")
    used = _align_up(arch, hw.vgpr_arch_align) + acc if hw.vgpr_unified else max(arch, acc)
    return _align_up(max(used, 1), hw.vgpr_granule)


def waves_per_simd(hw: HardwareDescriptor, arch: int, acc: int = 0) -> int:
    """Waves that the registers allow on one SIMD: min(cap, vgpr_file // allocated); 0 if no wave can exist.

    >>> from closedform.hw.catalogue import get
    >>> waves_per_simd(get("mi300x"), 36, 32)  # 512 // 72
    7
    """
    allocated = registers_allocated(hw, arch, acc)
    if arch > hw.vgpr_arch or acc > hw.vgpr_acc or arch + acc > hw.vgpr_per_wave_max:
        return 0
    return min(hw.waves_per_simd_max, hw.vgpr_file // allocated)


@lru_cache(maxsize=256)
def register_budget(hw: HardwareDescriptor, waves: int) -> Budget:
    """The largest counts with which `waves` waves still fit on a SIMD: align_down(vgpr_file / waves).

    >>> from closedform.hw.catalogue import get
    >>> register_budget(get("mi300x"), 2)
    Budget(arch=256, acc=256, total=256, unified=True)
    >>> register_budget(get("mi100"), 2)
    Budget(arch=128, acc=128, total=256, unified=False)
    """
    if not 1 <= waves <= hw.waves_per_simd_max:
        raise BadInput(f"{hw.name} holds 1 to {hw.waves_per_simd_max} waves per SIMD, not {waves}")
    share = _align_down(hw.vgpr_file // waves, hw.vgpr_granule)
    arch, acc = min(share, hw.vgpr_arch), min(share, hw.vgpr_acc)
    together = share if hw.vgpr_unified else arch + acc
    return Budget(arch, acc, min(together, hw.vgpr_per_wave_max), hw.vgpr_unified)


def lds_allocated_bytes(hw: HardwareDescriptor, lds_bytes: int) -> int:
    """LDS that a workgroup occupies: the larger of the roundings to the two granules of the descriptor.

    >>> from closedform.hw.catalogue import get
    >>> lds_allocated_bytes(get("mi300x"), 100), lds_allocated_bytes(get("mi355x"), 32768)
    (512, 33280)
    """
    if lds_bytes < 0:
        raise BadInput(f"LDS bytes cannot be negative: {lds_bytes}")
    return max(_align_up(lds_bytes, g) for g in (hw.lds_granule_bytes, hw.lds_granule_encoded_bytes))


def lds_share_bytes(hw: HardwareDescriptor, workgroups: int) -> int:
    """The most LDS that each of `workgroups` workgroups of a CU may ask for; 0 if nothing is left.

    >>> from closedform.hw.catalogue import get
    >>> lds_share_bytes(get("mi300x"), 3), lds_share_bytes(get("mi355x"), 5)  # 2048 B steps alone: 32768
    (21504, 32000)
    """
    if workgroups < 1:
        raise BadInput(f"a CU holds at least one workgroup, not {workgroups}")
    share = hw.lds_bytes // workgroups
    steps = (hw.lds_granule_bytes, hw.lds_granule_encoded_bytes)
    return min(hw.lds_max_per_workgroup_bytes, *(_align_down(share, g) for g in steps))


@lru_cache(maxsize=4096)
def occupancy_of(
    hw: HardwareDescriptor, waves_per_workgroup: int, arch: int, acc: int = 0, lds_bytes: int = 0
) -> Occupancy:
    """Workgroups of that size that one CU holds, and the limit that binds.

    A workgroup must fit whole: its waves spread over the SIMDs of one CU. 0 workgroups means that not even
    one fits, and `limit` then says for want of what.
    """
    if waves_per_workgroup < 1:
        raise BadInput(f"a workgroup has at least one wave, not {waves_per_workgroup}")
    waves = waves_per_workgroup
    fits = waves * hw.wavefront_size <= hw.workgroup_max
    slots = hw.waves_per_simd_max * hw.simds_per_cu // waves
    taken = lds_allocated_bytes(hw, lds_bytes)
    by = {
        "registers": waves_per_simd(hw, arch, acc) * hw.simds_per_cu // waves,
        "lds": 0 if lds_bytes > hw.lds_max_per_workgroup_bytes else hw.lds_bytes // taken if taken else slots,
        "waves": slots,
        "workgroups": (hw.workgroups_per_cu_max if waves > 1 else slots) if fits else 0,
    }
    limit = min(by, key=lambda name: by[name])
    count = by[limit]
    return Occupancy(
        workgroups_per_cu=count,
        waves_per_cu=count * waves,
        waves_per_simd=count * waves / hw.simds_per_cu,
        limit=limit,
        by_registers=by["registers"],
        by_lds=by["lds"],
        by_waves=by["waves"],
        by_workgroups=by["workgroups"],
    )


def workgroups_per_cu(
    hw: HardwareDescriptor, waves_per_workgroup: int, arch: int, acc: int = 0, lds_bytes: int = 0
) -> int:
    """Workgroups that one CU holds at once; 0 if one does not fit.

    >>> from closedform.hw.catalogue import get
    >>> workgroups_per_cu(get("mi300x"), 8, 256, 256), workgroups_per_cu(get("mi355x"), 4, 64, 0, 32768)
    (0, 4)
    """
    return occupancy_of(hw, waves_per_workgroup, arch, acc, lds_bytes).workgroups_per_cu
