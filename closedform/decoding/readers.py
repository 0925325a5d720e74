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
from closedform.interop import (
    aiter,
    ck,
    flydsl,
    hipblaslt,
    inductor,
    iree,
    nvmatmul,
    plain,
    tilelang,
    triton,
    triton_config,
)
from closedform.interop.kernel import Kernel
from closedform.interop.tool import Tool, is_time

from .decoded import Decoded
from .errors import Undecodable
from .solution_name import is_solution_name, solution_of
from .tensilelite import decoded_name, gfx_of
from .tensilelite_yaml import decoded_yaml

__all__ = ["decoded", "target_of"]


def target_of(what: str, hw: HardwareDescriptor, number: int = 1) -> str | None:
    """The target that the kernel of that name, or of that number in a file, was built for; None where it is not said.

    A file is read as if for `hw`.
    """
    if _is_file(Path(what)):
        return next((one.gfx for one in decoded(what, hw)[number - 1 :]), None)
    return _target_of_name(what)


def _target_of_name(what: str) -> str | None:
    if is_solution_name(what):
        return gfx_of(solution_of(what))
    last = what.rpartition("_")[2]
    return last if last.startswith("gfx") else None


def decoded(what: str, hw: HardwareDescriptor) -> list[Decoded]:
    """The kernels of a file of that path, or the one of that name. Raises Undecodable and BadInput.

    A Triton cache gives its fastest kernel first; other files keep their order.
    """
    path = Path(what)
    if _is_file(path):
        found = _read(path, hw)
        if not found:
            raise Undecodable(f"{path}: no kernel in it")
        return found
    if what.startswith("Custom_") or is_solution_name(what):
        return [decoded_name(what, hw)]
    if what.startswith("hgemm_"):
        kernel = flydsl.kernel_of_name(what)
        return [_simple("FlyDSL", what, kernel, refusals=flydsl.TOOL.refusals(kernel, hw))]
    if what.startswith(("flydsl_", "a8w8_")):
        return [_aiter(what, aiter.kernel_of_name(what), hw, gfx=_target_of_name(what))]
    raise Undecodable(
        f"{what[:200]!r} is neither a file nor a kernel name that is known: Cijk_.. (TensileLite, rocBLAS), hgemm_.. "
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
    except BadInput as error:
        raise Undecodable(f"{path}: {error}") from None
    except (RecursionError, MemoryError):  # the latter is of the parser of Python
        raise Undecodable(f"{path}: nested too deep") from None
    except KeyError as error:
        raise Undecodable(f"{path}: not as its format wants: {error} is missing or has an unknown value") from None
    except (IndexError, TypeError, ValueError, AttributeError, SyntaxError, ArithmeticError, csv.Error):
        raise Undecodable(f"{path}: not as its format wants: a value of another kind or size") from None


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
    for title, mark, tool in _TEXTS:
        if mark in text:
            return _kernels(title, tool, text, hw)
    return decoded_yaml(text, hw)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # no JSON, or a number of too many digits
        return None


def _aiter(name: str, kernel: Kernel, hw: HardwareDescriptor, **more: Any) -> Decoded:
    """A kernel of AITER; of its FlyDSL kernels the rules are known."""
    refusals = aiter.TOOL.refusals(kernel, hw) if aiter.is_flydsl(name) else ()
    return _simple("AITER", name, kernel, lds_bytes=aiter.lds_bytes_of_name(name), refusals=refusals, **more)


def _simple(tool: str, name: str, kernel: Kernel, **more: Any) -> Decoded:
    types = () if kernel.dtype is None else (kernel.dtype, kernel.dtype)
    return Decoded(tool=tool, name=name, kernel=kernel, types=types, **more)


def _objects(text: str, body: Any, hw: HardwareDescriptor) -> list[Decoded]:
    """The kernels of a JSON file."""
    if isinstance(body, dict) and "configs_timings" in body:
        return [_triton(config, us, hw) for config, us in triton.timed(text)]
    if isinstance(body, dict) and isinstance(body.get("config"), dict) and "identity" in body:
        return [_artifact(body, hw)]
    for title, known, tool in _JSON:
        if known(body):
            return _kernels(title, tool, text, hw)
    raise Undecodable("JSON of no tool that is known")


def _triton(config: dict[str, Any], us: float | None, hw: HardwareDescriptor) -> Decoded:
    kernel = triton_config.kernel_of_config(config)
    refusals = (*triton.TOOL.refusals(kernel, hw), *triton_config.option_refusals(config, hw))
    return _simple("Triton", "", kernel, parameters=config, measured_us=us, refusals=refusals)


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda body: isinstance(body, dict) and all(name in body for name in names)


def _first_has(name: str) -> Callable[[Any], bool]:
    return lambda body: isinstance(body, list) and bool(body) and isinstance(body[0], dict) and name in body[0]


_JSON: tuple[tuple[str, Callable[[Any], bool], Tool], ...] = (
    ("Composable Kernel", _has("tile_config", "problem"), ck.TOOL),
    ("nvMatmulHeuristics", _has("problem", "configs"), nvmatmul.TOOL),
    ("closedform", _has("kernels"), plain.TOOL),
    ("TileLang", _has("block_M"), tilelang.TOOL),
    ("TileLang", _first_has("block_M"), tilelang.TOOL),
    (aiter.TOOL_TRITON.title, _has("any"), aiter.TOOL_TRITON),
)


#: Texts that are neither JSON nor YAML, by what only they have.
_TEXTS: tuple[tuple[str, str, Tool], ...] = (
    ("IREE", "#iree_gpu.lowering_config", iree.TOOL),
    ("TorchInductor", "ROCmGemmConfig(", inductor.TOOL),
    ("Triton", "triton.Config(", triton.TOOL_PYTHON),
    ("FlyDSL", "flydsl.autotune import Config", flydsl.TOOL_PYTHON),
)


def _kernels(title: str, tool: Tool, text: str, hw: HardwareDescriptor) -> list[Decoded]:
    """The kernels of a file in the tool's format."""
    return [_simple(title, "", k, refusals=tool.refusals(k, hw)) for k in tool.read(text, hw)]


def _artifact(body: dict[str, Any], hw: HardwareDescriptor) -> Decoded:
    identity = body["identity"]
    key, device = identity.get("key", {}), identity.get("device", {})
    arch = device.get("arch")
    if arch is not None and not isinstance(arch, str):
        raise BadInput(f"arch {arch!r} of the device is no name of a target")
    kernel = flydsl.kernel_of_artifact(body)
    extents = tuple(key.get(name) for name in "MNK")
    problem = (*extents, 1) if all(type(v) is int and v > 0 for v in extents) else None
    return _simple(
        "FlyDSL",
        str(identity.get("name", "")),
        kernel,
        gfx=arch,
        refusals=flydsl.TOOL.refusals(kernel, hw),
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
            _aiter(
                row["kernelName"],
                aiter.kernel_of_row(row, hw),
                hw,
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
