"""Emission to disk: the kernel is compiled and checked first, then every file is written, or none."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .hw.errors import BadInput, ClosedformError, InfeasibleError, MissingDependency
from .packing import packed_layouts
from .writing import write_together

if TYPE_CHECKING:
    from .visitors.compile import Compiled
    from .visitors.derivation import Derivation

__all__ = [
    "MANIFEST_VERSION",
    "Emission",
    "PromiseBroken",
    "broken_promises",
    "emit_to",
    "manifest_of",
    "prepared",
    "require_promises",
    "write_set",
]

#: Raised when a key of the manifest changes its meaning or goes.
MANIFEST_VERSION = 1


class PromiseBroken(ClosedformError):
    """The compiled binary needs more than the derivation predicted, or spills: a bug of ours."""


@dataclass(frozen=True, slots=True)
class Emission:
    """What was written: paths, tiles, the binding constraint and the resources, predicted and compiled.

    `isa` is None without the assembly. resources["compiled"] is None where the kernel was not compiled, and
    resources["compiled_reason"] then says why.
    """

    kernel: Path
    manifest: Path
    isa: Path | None
    tiles: Any
    binding: str
    resources: dict[str, Any]
    derivation: Derivation

    def to_json(self) -> dict[str, Any]:
        from .visitors.derivation import tiles_json

        return {
            "kernel": str(self.kernel),
            "manifest": str(self.manifest),
            "isa": None if self.isa is None else str(self.isa),
            "hw": self.derivation.hw.name,
            "gfx": self.derivation.hw.gfx,
            "tiles": tiles_json(self.tiles),
            "binding": self.binding,
            "resources": self.resources,
        }


def emit_to(derivation: Derivation, out: Path, *, compile: bool | None = None, isa: bool = False) -> Emission:
    """Write the derivation's kernel and manifest, and with `isa` the assembly, into the folder `out`.

    `compile`: True must, False does not, None does where FlyDSL and torch are installed; `isa` needs it.
    Raises InfeasibleError, BadInput, MissingDependency and PromiseBroken; then nothing was written.
    """
    files, emission = prepared(derivation, out, compile=compile, isa=isa)
    write_set(out, files, stale=() if isa else (f"{emission.kernel.stem}.s",))
    return emission


def prepared(
    derivation: Derivation, out: Path, *, compile: bool | None = None, isa: bool = False
) -> tuple[dict[str, str], Emission]:
    """The files that `emit_to` writes, by name, and what it returns; nothing is written."""
    from .visitors.emit import emit_source, kernel_name

    if derivation.infeasible is not None:
        raise InfeasibleError(derivation.infeasible)
    if isa and compile is False:
        raise BadInput("the assembly comes from the compiler: --isa and --no-compile exclude each other")
    _require_writable(out)
    name = kernel_name(derivation)
    source = emit_source(derivation)
    compiled, reason = _compiled(source, derivation, required=isa or bool(compile), skipped=compile is False)
    if compiled is not None:
        require_promises(derivation, compiled)
    resources = _resources(derivation, compiled, reason)
    described = manifest_of(derivation, name, resources)
    manifest = json.dumps(described, indent=2, sort_keys=True, allow_nan=False)
    files = {f"{name}.py": source, f"{name}.json": manifest + "\n"}
    if isa and compiled is not None:
        files[f"{name}.s"] = compiled.isa
    emission = Emission(
        kernel=out / f"{name}.py",
        manifest=out / f"{name}.json",
        isa=out / f"{name}.s" if isa else None,
        tiles=derivation.tiles,
        binding=derivation.binding,
        resources=resources,
        derivation=derivation,
    )
    return files, emission


def _compiled(
    source: str, derivation: Derivation, *, required: bool, skipped: bool
) -> tuple[Compiled | None, str | None]:
    """The compiled kernel, or None with the reason."""
    from .visitors.compile import compile_source, missing_dependency

    if skipped:
        return None, "skipped on request (--no-compile)"
    missing = missing_dependency()
    if missing is None:
        return compile_source(source, derivation.hw.gfx), None
    if required:
        raise MissingDependency(missing)
    return None, missing


def broken_promises(derivation: Derivation, compiled: Compiled) -> list[str]:
    """What the binary needs beyond the prediction, one sentence each; empty where every promise holds."""
    predicted = derivation.resources
    if predicted is None:
        return []
    broken = []
    if compiled.vgpr_total > predicted.registers:
        broken.append(f"{compiled.vgpr_total} registers compiled, {predicted.registers} predicted")
    if compiled.lds_bytes > predicted.lds_bytes:
        broken.append(f"{compiled.lds_bytes} B of LDS compiled, {predicted.lds_bytes} B predicted")
    if compiled.vgpr_spills or compiled.sgpr_spills:
        broken.append(f"{compiled.vgpr_spills} vector and {compiled.sgpr_spills} scalar registers spilled")
    return broken


def require_promises(derivation: Derivation, compiled: Compiled) -> None:
    """Raises PromiseBroken where the binary needs more than the prediction."""
    from .visitors.emit import kernel_name

    if broken := broken_promises(derivation, compiled):
        name = kernel_name(derivation)
        raise PromiseBroken(f"{name} breaks its derivation: {'; '.join(broken)}; this is a bug in closedform")


def _resources(derivation: Derivation, compiled: Compiled | None, reason: str | None) -> dict[str, Any]:
    predicted = None if derivation.resources is None else asdict(derivation.resources)
    measured = None
    if compiled is not None and derivation.tiles is not None:
        from .hw.occupancy import occupancy_of

        occupancy = occupancy_of(
            derivation.hw, derivation.tiles.waves, compiled.vgpr, compiled.agpr, compiled.lds_bytes
        )
        measured = {
            "registers": compiled.vgpr_total,
            "vgpr": compiled.vgpr,
            "agpr": compiled.agpr,
            "sgpr": compiled.sgpr,
            "vgpr_spills": compiled.vgpr_spills,
            "sgpr_spills": compiled.sgpr_spills,
            "lds_bytes": compiled.lds_bytes,
            "waves_per_simd": occupancy.waves_per_simd,
            "workgroups_per_cu": occupancy.workgroups_per_cu,
            "occupancy_limit": occupancy.limit,
        }
    return {"predicted": predicted, "compiled": measured, "compiled_reason": reason}


def manifest_of(derivation: Derivation, name: str, resources: dict[str, Any]) -> dict[str, Any]:
    """The manifest: the same inputs and versions give the same bytes; it holds no time and no path."""
    from .visitors.compile import installed_version

    derived = derivation.to_json()
    packed = {operand: layout.to_json() for operand, layout in packed_layouts(derivation).items()}
    return {
        "manifest_version": MANIFEST_VERSION,
        "kernel": f"{name}.py",
        "op": derived["op"],
        "hw": derived["hw"],
        "gfx": derived["gfx"],
        "num_cus": derivation.hw.num_cus,
        "model": derived["model"],
        "tiles": derived["tiles"],
        **({"packed": packed} if packed else {}),
        "binding": derived["binding"],
        "formulas": derived["formulas"],
        "occupancy": derived["occupancy"],
        "notes": derived["notes"],
        "resources": resources,
        "versions": {"closedform": __version__, "flydsl": installed_version("flydsl")},
    }


def _require_writable(out: Path) -> None:
    """Raises BadInput for a folder that cannot be written, before any time is spent on compiling."""
    existing = out
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise BadInput(f"cannot write to {out}: {existing} is not a folder; choose another with --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise BadInput(f"cannot write to {out}: no permission in {existing}; choose another folder with --out")


def write_set(out: Path, files: dict[str, str], stale: tuple[str, ...]) -> None:
    """Write kernel, manifest and assembly as one set; BadInput where that is not possible."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in files:
            if (out / name).is_dir():
                raise BadInput(f"cannot write {out / name}: a folder of that name is in the way")
        write_together(out, {name: text.encode() for name, text in files.items()}, stale)
    except OSError as error:
        raise BadInput(f"cannot write to {out}: {error.strerror}; choose another with --out") from error
