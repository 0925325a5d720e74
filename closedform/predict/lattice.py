"""The legal lattice: every configuration of a kernel family that the capacities of a GPU allow.

Legality is the descriptor's: LDS of a workgroup, registers of a thread, the size of a workgroup. Extents are powers of
two from the smallest matrix instruction on, so that the same rules serve waves of 32 and of 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .configs import Configs, configs
from .families import gemm_family
from .legality import check_capacities, check_whole
from .step import LEAST_OTHER_REGISTERS, STAGED_BUFFERS, registers_per_thread, tile_bytes

if TYPE_CHECKING:
    from .configs import Array

__all__ = ["check_gemm_config", "family_configs", "lattice", "legal_configs", "useful"]

TILES = (16, 32, 64, 128, 256)
#: Bytes of a row of a k step: one to four cache lines of 64 bytes.
STEP_BYTES = (64, 128, 256)
STEP_ELEMENTS = (32, 64, 128)
PIPELINED_WAVES = (4, 8)
PIPELINED_STAGES = (2, 3, 4)
STAGED_WAVES = 4
SPLITS = (1, 2, 4, 8, 16, 32)
FULL_TILE = 65536


def family_configs(
    family: str, tile_m: Any, tile_n: Any, tile_k: Any, *, waves: Any, stages: Any = 2, split_k: Any = 1
) -> Configs:
    """Configurations with the wave grid that the family's kernels have: along m first where pipelined, else two rows
    of waves."""
    import numpy as np

    rest = {"stages": stages, "split_k": split_k}
    if family == "pipelined":
        return configs(tile_m, tile_n, tile_k, waves=waves, **rest)
    number = np.asarray(waves, float)
    rows = np.where(number % 2 == 0, 2.0, 1.0)
    return configs(tile_m, tile_n, tile_k, wave_m=rows, wave_n=number / rows, **rest)


@lru_cache(maxsize=128)
def legal_configs(hw: HardwareDescriptor, family: str, bits: int) -> Configs:
    """Every legal configuration for elements of that many bits, in a fixed order."""
    import numpy as np

    elem = bits / 8
    axes: tuple[tuple[float, ...], ...]
    if family == "pipelined":
        axes = (TILES, TILES, STEP_ELEMENTS, PIPELINED_WAVES, PIPELINED_STAGES)
    else:
        axes = (TILES, TILES, tuple(b / elem for b in STEP_BYTES), (STAGED_WAVES,), SPLITS)
    m, n, k, waves, last = (g.ravel() for g in np.meshgrid(*axes, indexing="ij"))
    if family == "pipelined":
        c = family_configs(family, m, n, k, waves=waves, stages=last)
    else:
        c = family_configs(family, m, n, k, waves=waves, split_k=last)
    fits = (
        (tile_bytes(family, c, elem) <= hw.lds_max_per_workgroup_bytes)
        & (registers_per_thread(hw, c) + LEAST_OTHER_REGISTERS <= hw.vgpr_per_wave_max)
        & (waves * hw.wavefront_size <= hw.workgroup_max)
        & (m * n <= FULL_TILE)
        & (m * n >= waves * hw.wavefront_size)
    )
    return c.take(np.flatnonzero(fits))


def useful(c: Configs, M: Array, N: Array, K: Array) -> Array:
    """Where a tile is at most the next power of two of the extent (or 32), and a split leaves each part a k step."""
    import numpy as np

    found: Array = (
        (c.tile_m < np.maximum(2 * M, 33))
        & (c.tile_n < np.maximum(2 * N, 33))
        & (c.split_k * c.tile_k <= np.maximum(K, c.tile_k))
    )
    return found


def check_gemm_config(hw: HardwareDescriptor, family: str, dtype: str, config: Mapping[str, int], K: int) -> None:
    """Raises BadInput or InfeasibleError for a configuration that no kernel of the family can have on that GPU."""
    kind = hw.resolve_dtype(dtype)
    depth = min(atom.k for atom in hw.atoms_for(kind, emittable=False))
    check_whole(config, {"tile_m": TILES[0], "tile_n": TILES[0], "tile_k": depth})
    tile = (config[n] for n in ("tile_m", "tile_n", "tile_k"))
    c = family_configs(family, *tile, waves=config["waves"], stages=config["stages"])
    check_capacities(
        hw,
        waves=config["waves"],
        lds_bytes=float(tile_bytes(family, c, kind.bits / 8)[0]),
        registers=float(registers_per_thread(hw, c)[0]) + LEAST_OTHER_REGISTERS,
        tile_elements=config["tile_m"] * config["tile_n"],
    )
    if family == "staged" and config["stages"] > STAGED_BUFFERS:
        raise BadInput(f"stages={config['stages']}: a staged kernel has at most {STAGED_BUFFERS}")
    steps = -(-K // config["tile_k"])
    if config["split_k"] > steps:
        raise BadInput(f"split_k={config['split_k']}: K={K} has {steps} steps of tile_k={config['tile_k']} to share")


@lru_cache(maxsize=8)
def lattice(hw: HardwareDescriptor, dtype: str) -> Configs:
    """The lattice of `select` for a product of that type."""
    return legal_configs(hw, gemm_family(hw), hw.resolve_dtype(dtype).bits)
