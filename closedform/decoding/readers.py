"""Which grammar reads a name or a file: by what is in it, never by its name alone."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.interop import (
    aiter,
    ck,
    flydsl,
    flydsl_attention,
    flydsl_conv2d,
    hipblaslt,
    inductor,
    iree,
    nvmatmul,
    plain,
    tilelang,
    triton,
    triton_config,
)
from closedform.interop.attention_kernel import AttentionKernel
from closedform.interop.conv2d_offers import Conv2dKernel
from closedform.interop.kernel import Kernel
from closedform.interop.tool import Format, is_time
from closedform.operators.attention import Attention

from .attention import DecodedAttention
from .decoded import Decoded
from .errors import Undecodable
from .solution_name import is_solution_name, solution_of
from .tensilelite import decoded_name, gfx_of
from .tensilelite_yaml import decoded_yaml

__all__ = ["AnyDecoded", "decoded", "target_of"]

AnyDecoded: TypeAlias = Decoded | DecodedAttention


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


def decoded(what: str, hw: HardwareDescriptor) -> list[AnyDecoded]:
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


def _read(path: Path, hw: HardwareDescriptor) -> list[AnyDecoded]:
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


def _file(text: str, hw: HardwareDescriptor) -> list[AnyDecoded]:
    head = text.lstrip()[:200]
    if head.startswith("Git Version:"):
        return [*_override(text, hw)]
    if head.startswith(("{", "[")) and (body := _json(text)) is not None:
        return _objects(text, body, hw)
    if "kernelName" in head:
        return [*_rows(text, hw)]
    for title, marks, tool in _TEXTS:
        if all(mark in text for mark in marks):
            return _kernels(title, tool, text, hw)
    return [*decoded_yaml(text, hw)]


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


def _objects(text: str, body: Any, hw: HardwareDescriptor) -> list[AnyDecoded]:
    """The kernels of a JSON file."""
    if isinstance(body, dict) and "configs_timings" in body:
        return [_triton(config, us, hw) for config, us in triton.timed(text)]
    if isinstance(body, dict) and isinstance(body.get("config"), dict) and "identity" in body:
        return [_artifact(body, hw)]
    for title, known, tool in _JSON:
        if known(body):
            return _kernels(title, tool, text, hw)
    raise Undecodable("JSON of no tool that is known")


def _triton(config: dict[str, Any], us: float | None, hw: HardwareDescriptor) -> AnyDecoded:
    if triton_config.is_attention(config):
        found = triton_config.attention_kernel_of_config(config)
        refusals = (*triton.ATTENTION.refusals(found, hw), *triton_config.option_refusals(config, hw))
        return DecodedAttention(
            tool="Triton", name="", kernel=found, parameters=config, measured_us=us, refusals=refusals
        )
    kernel = triton_config.kernel_of_config(config)
    refusals = (*triton.TOOL.refusals(kernel, hw), *triton_config.option_refusals(config, hw))
    return _simple("Triton", "", kernel, parameters=config, measured_us=us, refusals=refusals)


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda body: isinstance(body, dict) and all(name in body for name in names)


def _first_has(name: str) -> Callable[[Any], bool]:
    return lambda body: isinstance(body, list) and bool(body) and isinstance(body[0], dict) and name in body[0]


def _keywords_of_attention(body: Any) -> bool:
    first = body[0] if isinstance(body, list) and body else body
    return isinstance(first, dict) and "block_M" in first and "block_K" not in first


def _plain_of(operator: str) -> Callable[[Any], bool]:
    return lambda body: _has("kernels")(body) and plain.operator_of(body) == operator


_JSON: tuple[tuple[str, Callable[[Any], bool], Format[Any, Any]], ...] = (
    ("Composable Kernel", _has("tile_config", "problem"), ck.TOOL),
    ("nvMatmulHeuristics", _has("problem", "configs"), nvmatmul.TOOL),
    ("closedform", _plain_of("attention"), plain.ATTENTION),
    ("closedform", _plain_of("conv2d"), plain.CONV2D),
    ("closedform", _has("kernels"), plain.TOOL),
    ("TileLang", _keywords_of_attention, tilelang.ATTENTION),
    ("TileLang", _has("block_M"), tilelang.TOOL),
    ("TileLang", _first_has("block_M"), tilelang.TOOL),
    (aiter.TOOL_TRITON.title, _has("any"), aiter.TOOL_TRITON),
    (aiter.ATTENTION.title, _has("fwd"), aiter.ATTENTION),
)


#: Texts that are neither JSON nor YAML, by what only they have.
_TEXTS: tuple[tuple[str, tuple[str, ...], Format[Any, Any]], ...] = (
    ("IREE", ("#iree_gpu.lowering_config", "use_igemm_convolution = true"), iree.CONV2D),
    ("IREE", ("#iree_gpu.lowering_config",), iree.TOOL),
    ("TorchInductor", ("ROCmGemmConfig(",), inductor.TOOL),
    ("TorchInductor", ("ROCmConvConfig(",), inductor.CONV2D),
    ("TorchInductor", ("ROCmFlexConfig(",), inductor.ATTENTION),
    ("Triton", ("triton.Config(", "HEAD_DIM = "), triton.ATTENTION_PYTHON),
    ("Triton", ("triton.Config(",), triton.TOOL_PYTHON),
    ("FlyDSL", ("flydsl.autotune import Config", "flat_work_group_size="), flydsl_attention.ATTENTION_PYTHON),
    ("FlyDSL", ("flydsl.autotune import Config", "TILE_M="), flydsl_conv2d.CONV2D_PYTHON),
    ("FlyDSL", ("flydsl.autotune import Config",), flydsl.TOOL_PYTHON),
)
#: Said of the kernels of a convolution.
_PRODUCT = "of a convolution, as its product: rows are output pixels, columns output channels, compared as a product"


def _kernels(title: str, tool: Format[Any, Any], text: str, hw: HardwareDescriptor) -> list[AnyDecoded]:
    """The kernels of a file in the tool's format."""
    kernels = tool.read(text, hw)
    words = tool.words(text) or [{}] * len(kernels)
    found: list[AnyDecoded] = []
    for kernel, own in zip(kernels, words, strict=True):
        refusals = (*tool.refusals(kernel, hw), *triton_config.option_refusals(own, hw))
        more: dict[str, Any] = {"parameters": own, "refusals": refusals}
        if isinstance(kernel, AttentionKernel):
            op = _operator(text) if tool is plain.ATTENTION else None
            found.append(DecodedAttention(tool=title, name="", kernel=kernel, op=op, **more))
        elif isinstance(kernel, Conv2dKernel):
            found.append(_convolution(title, "", kernel, **more))
        else:
            found.append(_simple(title, "", kernel, **more))
    return found


def _convolution(title: str, name: str, kernel: Conv2dKernel, **more: Any) -> Decoded:
    """A kernel of a convolution; FlyDSL's has a type and an LDS of its own."""
    if title == "FlyDSL":
        kernel = dataclasses.replace(kernel, dtype="bf16")
        more["lds_bytes"] = flydsl_conv2d.lds_bytes(kernel, 2)
    return _simple(title, name, kernel, notes=(_PRODUCT,), **more)


def _operator(text: str) -> Attention | None:
    """The attention of a file of plain JSON; None where it is none that is known here."""
    fields = dataclasses.fields(Attention)
    needed = {f.name for f in fields if f.default is dataclasses.MISSING}
    problem = json.loads(text).get("problem")
    if not isinstance(problem, dict) or not needed <= set(problem) <= {f.name for f in fields}:
        return None
    return Attention(**problem)


def _artifact(body: dict[str, Any], hw: HardwareDescriptor) -> AnyDecoded:
    identity = body["identity"]
    key, device = identity.get("key", {}), identity.get("device", {})
    arch, name = device.get("arch"), str(identity.get("name", ""))
    if arch is not None and not isinstance(arch, str):
        raise BadInput(f"arch {arch!r} of the device is no name of a target")
    if flydsl_attention.is_config(body["config"]):
        return _attention_artifact(body["config"], key, hw, name, arch)
    if flydsl_conv2d.is_config(body["config"]):
        found = flydsl_conv2d.kernel_of_config(body["config"])
        refusals = flydsl_conv2d.CONV2D.refusals(found, hw)
        return _convolution("FlyDSL", name, found, gfx=arch, parameters=body["config"], refusals=refusals)
    kernel = flydsl.kernel_of_artifact(body)
    extents = tuple(key.get(name) for name in "MNK")
    problem = (*extents, 1) if all(type(v) is int and v > 0 for v in extents) else None
    return _simple(
        "FlyDSL",
        name,
        kernel,
        gfx=arch,
        refusals=flydsl.TOOL.refusals(kernel, hw),
        parameters=body["config"],
        problem=problem,
    )


def _attention_artifact(
    config: dict[str, Any], key: dict[str, Any], hw: HardwareDescriptor, name: str, arch: str | None
) -> DecodedAttention:
    """FlyDSL's flash attention; of its two types, which need the same, f16 is taken."""
    kernel = flydsl_attention.kernel_of_config(config, hw)
    names = {"L_q": "seq_len", "L_kv": "seq_len_kv", "d": "head_dim", "batch": "batch_size", "heads": "num_heads"}
    values: dict[str, Any] = {ours: key.get(theirs) for ours, theirs in names.items()}
    op = None
    if all(type(value) is int for value in values.values()):
        kv_heads = key.get("num_kv_heads", values["heads"])
        op = Attention(**values, dtype="f16", kv_heads=0 if kv_heads == values["heads"] else kv_heads)
    refusals = flydsl_attention.ATTENTION.refusals(kernel, hw)
    return DecodedAttention(
        tool="FlyDSL", name=name, kernel=kernel, gfx=arch, parameters=config, op=op, refusals=refusals
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
