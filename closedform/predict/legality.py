"""Whether a given configuration can exist: the limits that the lattices of GEMM and attention keep, one by one."""

from __future__ import annotations

from collections.abc import Mapping

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, Infeasible, InfeasibleError
from closedform.operators.node import check_extent

__all__ = ["check_capacities", "check_names", "check_whole"]


def check_names(config: Mapping[str, int], known: tuple[str, ...]) -> None:
    """Raises BadInput for a name that no configuration has and for a number below 1."""
    for name, value in config.items():
        if name not in known:
            raise BadInput(f"no {name} in a configuration; it has {', '.join(known)}")
        check_extent(name, value)


def check_whole(config: Mapping[str, int], pieces: Mapping[str, int]) -> None:
    """Raises BadInput for an extent that is no multiple of its piece of a matrix instruction."""
    for name, piece in pieces.items():
        if config[name] % piece:
            raise BadInput(f"{name}={config[name]} is not a multiple of {piece}, the matrix instruction's")


def check_capacities(
    hw: HardwareDescriptor, *, waves: int, lds_bytes: float, registers: float, tile_elements: int
) -> None:
    """Raises InfeasibleError where a workgroup needs more of the GPU than there is, BadInput for lanes without work.

    `registers` are those of a thread; `tile_elements` the results that the lanes of a workgroup share.
    """
    lanes = waves * hw.wavefront_size
    # Where accumulators have a file of their own, it is as large as the other.
    file = hw.vgpr_file if hw.vgpr_unified else 2 * hw.vgpr_file
    each = min(hw.vgpr_per_wave_max, file * hw.simds_per_cu // waves)
    for resource, needed, limit, unit, way_out in (
        ("work-items", lanes, hw.workgroup_max, "work-items", "take fewer waves"),
        ("LDS", int(lds_bytes), hw.lds_max_per_workgroup_bytes, "B", "take a smaller tile or fewer stages"),
        ("registers", int(registers), each, "registers", "take a smaller tile or more waves"),
    ):
        if needed > limit:
            where = "a wave" if resource == "registers" else "a workgroup"
            raise InfeasibleError(Infeasible(resource, needed, limit, unit, f"{where} on {hw.name}", way_out))
    if lanes > tile_elements:
        raise BadInput(f"waves={waves}: {lanes} lanes for the {tile_elements} elements of a tile")
