"""Tensor kernels for AMD CDNA GPUs from closed formulas.

    >>> import closedform
    >>> closedform.derive_tiles("paper_a", L=16384, d=128).tile_q
    32

Names load on first use: importing this package imports none of numpy, sympy, torch, flydsl, pydantic and
rich.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import predict
    from .api import (
        check,
        decode,
        derive,
        derive_batch,
        derive_tiles,
        emit,
        export,
        hardware,
        hardware_names,
        profile,
        select,
        select_batch,
        simulate,
        tune,
    )
    from .checking import CheckResult
    from .emission import Emission, PromiseBroken
    from .hw.atoms import MFMAAtom
    from .hw.descriptor import HardwareDescriptor
    from .hw.errors import BadInput, ClosedformError, Infeasible, InfeasibleError, MissingDependency, NoDevice
    from .operators.attention import Attention
    from .operators.conv2d import Conv2d
    from .operators.gemm import Gemm
    from .operators.softmax import Softmax
    from .packing import pack, unpack
    from .profiling import Profile
    from .simulation import Simulation
    from .visitors.derivation import Derivation

# In a checkout the four rooms lie side by side; an installed package holds them inside this folder.
if not (Path(__file__).parent / "hw").is_dir():
    __path__.append(str(Path(__file__).resolve().parent.parent))

__version__ = "0.1.0"

_HOME = {
    "check": "api",
    "decode": "api",
    "derive": "api",
    "derive_batch": "api",
    "derive_tiles": "api",
    "emit": "api",
    "hardware": "api",
    "hardware_names": "api",
    "export": "api",
    "pack": "packing",
    "predict": "predict",
    "select": "api",
    "select_batch": "api",
    "profile": "api",
    "simulate": "api",
    "tune": "api",
    "unpack": "packing",
    "CheckResult": "checking",
    "Emission": "emission",
    "PromiseBroken": "emission",
    "MFMAAtom": "hw.atoms",
    "HardwareDescriptor": "hw.descriptor",
    "BadInput": "hw.errors",
    "ClosedformError": "hw.errors",
    "Infeasible": "hw.errors",
    "InfeasibleError": "hw.errors",
    "MissingDependency": "hw.errors",
    "NoDevice": "hw.errors",
    "Attention": "operators.attention",
    "Conv2d": "operators.conv2d",
    "Gemm": "operators.gemm",
    "Softmax": "operators.softmax",
    "Profile": "profiling",
    "Simulation": "simulation",
    "Derivation": "visitors.derivation",
}

__all__ = [
    "Attention",
    "BadInput",
    "CheckResult",
    "ClosedformError",
    "Conv2d",
    "Derivation",
    "Emission",
    "Gemm",
    "HardwareDescriptor",
    "Infeasible",
    "InfeasibleError",
    "MFMAAtom",
    "MissingDependency",
    "NoDevice",
    "Profile",
    "PromiseBroken",
    "Simulation",
    "Softmax",
    "__version__",
    "check",
    "decode",
    "derive",
    "derive_batch",
    "derive_tiles",
    "emit",
    "export",
    "hardware",
    "hardware_names",
    "pack",
    "predict",
    "profile",
    "select",
    "select_batch",
    "simulate",
    "tune",
    "unpack",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'closedform' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"closedform.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
