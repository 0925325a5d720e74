"""Library functions, one for each command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .hw.errors import InfeasibleError

if TYPE_CHECKING:
    from .checking import CheckResult
    from .emission import Emission
    from .hw.descriptor import HardwareDescriptor
    from .operators.attention import Attention
    from .operators.gemm import Gemm
    from .visitors.derivation import Derivation

__all__ = ["check", "derive", "derive_tiles", "emit", "hardware", "hardware_names"]


def hardware_names() -> tuple[str, ...]:
    """Names of the catalogued GPUs."""
    from .hw import catalogue

    return tuple(catalogue.names())


def hardware(name: str | Path | HardwareDescriptor) -> HardwareDescriptor:
    """The descriptor of that catalogue name or TOML or JSON file; a descriptor is returned as it is.

    Raises BadInput with near names for an unknown one, and with every error at once for a bad file.
    """
    from .hw import catalogue
    from .hw.descriptor import HardwareDescriptor

    return name if isinstance(name, HardwareDescriptor) else catalogue.find(str(name))


def derive(
    op: Attention | Gemm,
    hw: str | Path | HardwareDescriptor = "mi300x",
    model: str | None = None,
    **overrides: Any,
) -> Derivation:
    """Tiles of the operator on that GPU, or the constraint that forbids any: a value, never an exception.

    model: "default", of the kernels that we emit, or "paper"; left out, the operator's first.
    `overrides` fix what would be derived: atom ("32x32" or "16x16"), tile_q, tile_kv, waves.
    Raises BadInput for names and values that do not exist.
    """
    from .visitors.feasibility import derive as derive_operator

    return derive_operator(op, hardware(hw), model=model, **overrides)


def derive_tiles(hw: str | Path | HardwareDescriptor, *, L: int, d: int, dtype: str = "f32", **shape: Any) -> Any:
    """The paper's call: attention tiles by the paper's own derivation.

    `shape` takes the other fields of Attention. Raises InfeasibleError, which carries the binding constraint,
    where no tile fits. The kernels that we emit follow the default model: `derive(Attention(...), hw)`.

    >>> tiles = derive_tiles("paper_b", L=16384, d=128)
    >>> tiles.tile_q, tiles.tile_kv
    (32, 64)
    """
    from .operators.attention import Attention

    op = Attention(L_q=L, L_kv=shape.pop("L_kv", L), d=d, dtype=dtype, **shape)
    derivation = derive(op, hw, model="paper")
    if derivation.infeasible is not None:
        raise InfeasibleError(derivation.infeasible)
    return derivation.tiles


def emit(
    op: Attention,
    hw: str | Path | HardwareDescriptor = "mi300x",
    out: str | Path = "kernels_out",
    *,
    compile: bool | None = None,
    isa: bool = False,
    **overrides: Any,
) -> Emission:
    """Write the kernel and its manifest to the folder `out`; with `isa` the assembly too.

    compile: True compiles and raises MissingDependency where FlyDSL or torch is missing, False does not,
    None compiles where it can. Nothing is written on failure.
    Raises InfeasibleError, BadInput, MissingDependency, and PromiseBroken where the binary exceeds the
    prediction.
    """
    from .emission import emit_to

    return emit_to(derive(op, hw, **overrides), Path(out), compile=compile, isa=isa)


def check(
    op: Attention | Gemm,
    hw: str | Path | HardwareDescriptor = "mi300x",
    level: str = "atom",
    *,
    seed: int = 0,
    **overrides: Any,
) -> CheckResult:
    """Execute the operator's tree on the CPU at that level and compare it with float64.

    level: "device", "block", "wave" or "atom"; at atom level 64 lanes x registers are filled through the
    fragment maps, as the kernel does.
    """
    from .checking import check_derivation

    derivation = derive(op, hw, **overrides)
    if derivation.infeasible is not None:
        raise InfeasibleError(derivation.infeasible)
    return check_derivation(derivation, level, seed=seed)
