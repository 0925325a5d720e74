"""Which grammar reads a name or a file: by what is in it, never by its name alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.interop import aiter, ck, flydsl, hipblaslt, inductor, iree, nvmatmul, plain, tilelang, triton
from closedform.interop.kernel import Kernel
from closedform.interop.tool import Read, is_time

from .decoded import Decoded
from .errors import Undecodable
from .solution_name import is_solution_name, solution_of
from .tensilelite import decoded_name, gfx_of
from .tensilelite_yaml import decoded_yaml

__all__ = ["decoded", "target_of_name"]


def target_of_name(what: str) -> str | None:
    """The target that a kernel's name says, None for a file and for a name that says none."""
    if is_solution_name(what):
        return gfx_of(solution_of(what))
    last = what.rpartition("_")[2]
    return last if last.startswith("gfx") and not Path(what).exists() else None


def decoded(what: str, hw: HardwareDescriptor) -> list[Decoded]:
    """The kernels of a file of that path, or the one of that name. Raises Undecodable and BadInput.

    A Triton cache gives its fastest kernel first; other files keep their order.
    """
    path = Path(what)
    if _is_file(path):
        return _read(path, hw)
    if what.startswith("Custom_") or is_solution_name(what):
        return [decoded_name(what, hw)]
    if what.startswith("hgemm_"):
        return [_simple("FlyDSL", what, flydsl.kernel_of_name(what))]
    if what.startswith(("flydsl_", "a8w8_")):
        return [_simple("AITER", what, aiter.kernel_of_name(what), gfx=target_of_name(what))]
    raise Undecodable(
        f"{what!r} is neither a file nor a kernel name that is known: Cijk_.. (TensileLite, rocBLAS), hgemm_.. "
        "(FlyDSL), flydsl_.. and a8w8_.. (AITER)"
    )


def _read(path: Path, hw: HardwareDescriptor) -> list[Decoded]:
    """The kernels of a file; errors name it. What its format lacks or has of another kind is an error of the file."""
    try:
        return _file(path.read_text(encoding="utf-8"), hw)
    except UnicodeDecodeError:
        raise Undecodable(f"{path}: not a text file") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (BadInput, KeyError, IndexError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        what = str(error) if isinstance(error, BadInput) else f"not as its format wants: {error!r}"
        raise Undecodable(f"{path}: {what}") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than paths may be
        return False


def _file(text: str, hw: HardwareDescriptor) -> list[Decoded]:
    head = text.lstrip()[:200]
    if head.startswith("Git Version:"):
        return _override(text, hw)
    if head.startswith(("{", "[")) and (body := _json(text)) is not None:
        return _objects(text, body, hw)
    if "kernelName" in head:
        return _rows(text, hw)
    for tool, mark, read in _TEXTS:
        if mark in text:
            return [_simple(tool, "", kernel) for kernel in read(text, hw)]
    return decoded_yaml(text, hw)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _simple(tool: str, name: str, kernel: Kernel, **more: Any) -> Decoded:
    types = () if kernel.dtype is None else (kernel.dtype, kernel.dtype)
    return Decoded(tool=tool, name=name, kernel=kernel, types=types, **more)


def _objects(text: str, body: Any, hw: HardwareDescriptor) -> list[Decoded]:
    """The kernels of a JSON file."""
    if isinstance(body, dict) and "configs_timings" in body:
        return [
            _simple(
                "Triton",
                "",
                triton.kernel_of_config(config),
                parameters=config,
                measured_us=us,
            )
            for config, us in triton.timed(text)
        ]
    if isinstance(body, dict) and isinstance(body.get("config"), dict) and "identity" in body:
        return [_artifact(body)]
    for tool, known, read in _JSON:
        if known(body):
            return [_simple(tool, "", kernel) for kernel in read(text, hw)]
    raise Undecodable("JSON of no tool that is known")


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda body: isinstance(body, dict) and all(name in body for name in names)


def _first_has(name: str) -> Callable[[Any], bool]:
    return lambda body: isinstance(body, list) and bool(body) and isinstance(body[0], dict) and name in body[0]


_JSON: tuple[tuple[str, Callable[[Any], bool], Read], ...] = (
    ("Composable Kernel", _has("tile_config", "problem"), ck.TOOL.read),
    ("nvMatmulHeuristics", _has("problem", "configs"), nvmatmul.TOOL.read),
    ("closedform", _has("kernels"), plain.TOOL.read),
    ("TileLang", _has("block_M"), tilelang.TOOL.read),
    ("TileLang", _first_has("block_M"), tilelang.TOOL.read),
    ("AITER", _has("any"), aiter.TOOL_TRITON.read),
)


#: Texts that are neither JSON nor YAML, by what only they have.
_TEXTS: tuple[tuple[str, str, Read], ...] = (
    ("IREE", "#iree_gpu.lowering_config", iree.TOOL.read),
    ("TorchInductor", "ROCmGemmConfig(", inductor.TOOL.read),
    ("Triton", "triton.Config(", triton.TOOL_PYTHON.read),
    ("FlyDSL", "flydsl.autotune import Config", flydsl.TOOL_PYTHON.read),
)


def _artifact(body: dict[str, Any]) -> Decoded:
    identity = body["identity"]
    key, device = identity.get("key", {}), identity.get("device", {})
    extents = tuple(key.get(name) for name in "MNK")
    problem = (*extents, 1) if all(isinstance(v, int) for v in extents) else None
    return _simple(
        "FlyDSL",
        str(identity.get("name", "")),
        flydsl.kernel_of_artifact(body),
        gfx=device.get("arch"),
        parameters=body["config"],
        problem=problem,
    )


def _rows(text: str, hw: HardwareDescriptor) -> list[Decoded]:
    found = []
    for row in csv.DictReader(io.StringIO(text)):
        try:
            problem = (int(row["M"]), int(row["N"]), int(row["K"]), int(row.get("B") or 1))
        except (KeyError, ValueError, TypeError):
            raise BadInput("a row without whole numbers M, N and K") from None
        us = float(row.get("us") or 0)
        found.append(
            _simple(
                "AITER",
                row["kernelName"],
                aiter.kernel_of_row(row, hw),
                gfx=row.get("gfx") or None,
                parameters={k: v for k, v in row.items() if k and v},
                problem=problem,
                measured_us=us if is_time(us) else None,
            )
        )
    return found


def _override(text: str, hw: HardwareDescriptor) -> list[Decoded]:
    """Rows that have a name: an index means nothing outside of its library."""
    names = [row.get("kernel_name") or row.get("solution_name") for row, _ in hipblaslt.read_override(text, hw)]
    found = [decoded_name(name, hw) for name in names if name]
    if not found:
        raise BadInput("no row has a kernel name: a solution index means nothing outside of its library")
    return found
