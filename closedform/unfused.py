"""Emission of attention in three kernels: all files are written, or none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .emission import MANIFEST_VERSION, Emission, prepared, write_set

if TYPE_CHECKING:
    from .hw.descriptor import HardwareDescriptor
    from .operators.attention import Attention
    from .visitors.unfused import UnfusedDerivation

__all__ = ["UnfusedEmission", "emit_unfused"]


@dataclass(frozen=True, slots=True)
class UnfusedEmission:
    """What was written: the file that runs the kernels, its manifest, and each kernel by its part."""

    kernel: Path
    manifest: Path
    parts: dict[str, Emission]
    derivation: UnfusedDerivation

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": str(self.kernel),
            "manifest": str(self.manifest),
            "hw": self.derivation.hw.name,
            "gfx": self.derivation.hw.gfx,
            "parts": {name: emission.to_json() for name, emission in self.parts.items()},
        }


def emit_unfused(
    op: Attention, hw: HardwareDescriptor, out: Path, *, compile: bool | None = None, isa: bool = False
) -> UnfusedEmission:
    """Write the three kernels, the file that runs them, and a manifest for each into the folder `out`.

    `compile` and `isa` as for other kernels. Raises InfeasibleError, BadInput, MissingDependency and PromiseBroken;
    then nothing was written.
    """
    from .visitors.unfused import derive_unfused, driver_name, driver_source

    derivation = derive_unfused(op, hw)
    files: dict[str, str] = {}
    parts: dict[str, Emission] = {}
    for name, part in derivation.parts.items():
        texts, parts[name] = prepared(part, out, compile=compile, isa=isa)
        files |= texts
    name = driver_name(derivation)
    manifest = json.dumps(_manifest(derivation, name, parts), indent=2, sort_keys=True, allow_nan=False)
    files |= {f"{name}.py": driver_source(derivation), f"{name}.json": manifest + "\n"}
    stale = () if isa else tuple(f"{emission.kernel.stem}.s" for emission in parts.values())
    write_set(out, files, stale)
    return UnfusedEmission(out / f"{name}.py", out / f"{name}.json", parts, derivation)


def _manifest(derivation: UnfusedDerivation, name: str, parts: dict[str, Emission]) -> dict[str, Any]:
    from .operators.operator import described
    from .visitors.compile import installed_version

    return {
        "manifest_version": MANIFEST_VERSION,
        "kernel": f"{name}.py",
        "op": {"name": derivation.op.name, **described(derivation.op)},
        "hw": derivation.hw.name,
        "gfx": derivation.hw.gfx,
        "num_cus": derivation.hw.num_cus,
        "parts": {part: emission.manifest.name for part, emission in parts.items()},
        "versions": {"closedform": __version__, "flydsl": installed_version("flydsl")},
    }
