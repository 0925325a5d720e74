"""What kernels run on: GPU descriptors, matrix instructions with their fragment maps, occupancy rules."""

from .atoms import MFMAAtom
from .catalogue import find, get, load_file, names, targets
from .chain import ChainStep, chain_atoms, tiles_per_group
from .descriptor import HardwareDescriptor
from .dtypes import DType, dtype
from .errors import (
    BadInput,
    ClosedformError,
    Infeasible,
    InfeasibleError,
    MissingDependency,
    NoDevice,
)
from .fragments import Digit, FragmentMap
from .lds import LdsCycles, LdsPhases, lds_cycles, lds_phases
from .occupancy import (
    Budget,
    Occupancy,
    lds_allocated_bytes,
    lds_share_bytes,
    occupancy_of,
    register_budget,
    registers_allocated,
    waves_per_simd,
    workgroups_per_cu,
)

__all__ = [
    "BadInput",
    "Budget",
    "ChainStep",
    "ClosedformError",
    "DType",
    "Digit",
    "FragmentMap",
    "HardwareDescriptor",
    "Infeasible",
    "InfeasibleError",
    "LdsCycles",
    "LdsPhases",
    "MFMAAtom",
    "MissingDependency",
    "NoDevice",
    "Occupancy",
    "chain_atoms",
    "dtype",
    "find",
    "get",
    "lds_allocated_bytes",
    "lds_cycles",
    "lds_phases",
    "lds_share_bytes",
    "load_file",
    "names",
    "occupancy_of",
    "register_budget",
    "registers_allocated",
    "targets",
    "tiles_per_group",
    "waves_per_simd",
    "workgroups_per_cu",
]
