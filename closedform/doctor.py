"""What works on this machine: packages, tools, targets that compile, the GPU."""

from __future__ import annotations

import platform
import shutil
from importlib import util
from typing import Any

from .hw import catalogue
from .hw.errors import ClosedformError

__all__ = ["diagnose", "report", "targets"]

_PACKAGES = ("numpy", "sympy", "flydsl", "torch", "pydantic", "click", "rich")
#: Programs that compiling does not need: FlyDSL links with the first to launch; profiling uses the other.
_TOOLS = {
    "ld.lld": ("ld.lld", "ld.lld-22", "ld.lld-21", "ld.lld-20"),
    "llvm-mca": ("llvm-mca", "llvm-mca-22"),
}


def targets() -> dict[str, str]:
    """Every target of the catalogue with the first GPU that has it."""
    found: dict[str, str] = {}
    for name in catalogue.names():
        found.setdefault(catalogue.get(name).gfx, name)
    return found


def diagnose(compile_targets: bool = True) -> dict[str, Any]:
    """The state as JSON; `targets` is null per target where it was not tried."""
    from .visitors.compile import installed_version, missing_dependency

    missing = missing_dependency()
    tried = compile_targets and missing is None
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "torch_rocm": _torch_rocm(),
        "tools": {name: _which(candidates) for name, candidates in _TOOLS.items()},
        "missing": missing,
        "targets": {gfx: _compiles(gfx, part) if tried else None for gfx, part in targets().items()},
        "device": _device(),
    }


def _torch_rocm() -> str | None:
    """The ROCm version that torch was built for, read without importing it; None for any other build."""
    found = util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    from pathlib import Path

    version = Path(found.origin).with_name("version.py")
    text = version.read_text() if version.is_file() else ""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.split(":")[0].strip() == "hip":
            return value.strip().strip("'\"") if value.strip() != "None" else None
    return None


def _which(candidates: tuple[str, ...]) -> str | None:
    return next((path for path in map(shutil.which, candidates) if path), None)


def _compiles(gfx: str, part: str) -> dict[str, Any]:
    """Whether a one-MFMA kernel compiles for the target, in a child process."""
    from .visitors.compile import compile_source
    from .visitors.emit_layout_probe import emit_layout_probe

    atom = next(a for a in catalogue.get(part).atoms if a.dtype_a.name == "f32" and a.emit is not None)
    try:
        compile_source(emit_layout_probe(atom), gfx)
    except ClosedformError as error:
        return {"ok": False, "reason": str(error)}
    return {"ok": True, "reason": None}


def _device() -> dict[str, Any] | None:
    from .device import detect

    device = detect()
    if device is None:
        return None
    found = {"gfx": device.gfx, "num_cus": device.num_cus, "memory_bytes": device.memory_bytes}
    return {**found, "name": device.name}


def report(diagnosis: dict[str, Any]) -> str:
    """The same as text."""
    lines = [f"python      {diagnosis['python']} on {diagnosis['system']}"]
    for name, version in diagnosis["packages"].items():
        detail = ""
        if name == "torch" and version:
            rocm = diagnosis["torch_rocm"]
            detail = f" (ROCm {rocm})" if rocm else " (no ROCm build: compiles, cannot launch)"
        lines.append(f"{name:<12}{version or 'not installed'}{detail}")
    for name, path in diagnosis["tools"].items():
        lines.append(f"{name:<12}{path or 'not found (not needed to compile)'}")
    for gfx, state in diagnosis["targets"].items():
        verdict = "not tried" if state is None else "compiles" if state["ok"] else f"fails: {state['reason']}"
        lines.append(f"{gfx:<12}{verdict}")
    device = diagnosis["device"]
    found = "no AMD CDNA GPU"
    if device is not None:
        found = f"{device['gfx']}, {device['num_cus']} CUs: {device['name']}"
    lines.append(f"{'GPU':<12}{found}")
    if diagnosis["missing"]:
        lines.append(f"{'missing':<12}{diagnosis['missing']}")
    return "\n".join(lines)
