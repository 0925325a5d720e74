"""Triton: `triton.Config` objects as an autotune cache in JSON and as a Python module."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.visitors.gemm_rules import EXPORT_MARGIN_BYTES

from .attention_kernel import AttentionKernel
from .attention_offers import AttentionOffer, AttentionTool
from .conv2d_offers import Conv2dKernel, Conv2dOffer, Conv2dTool
from .kernel import Kernel
from .tool import Offer, Tool, is_time
from .triton_config import (
    ATTENTION_RULES,
    BACKEND_RULES,
    CONV2D_RULES,
    TILE_NAMES,
    attention_config_of,
    attention_kernel_of_config,
    config_of,
    conv2d_config_of,
    conv2d_kernel_of_config,
    copies_to_lds,
    head_dim,
    kernel_of_config,
)

__all__ = [
    "ATTENTION",
    "ATTENTION_PYTHON",
    "CONV2D",
    "CONV2D_PYTHON",
    "TOOL",
    "TOOL_PYTHON",
    "choices",
    "shape_of_attention",
    "shape_of_conv2d",
    "timed",
]

#: Of a cache that we wrote: that its times were not measured. Triton looks at configs_timings alone.
_PREDICTED = "predicted"


def _cache(key: Iterable[object], configs: Iterable[dict[str, Any]], offers: tuple[Any, ...]) -> str:
    """An autotune cache of the offers."""
    us = (offer.predicted_us for offer in offers)
    timings = [[config, None if t is None else t / 1000] for config, t in zip(configs, us, strict=True)]
    body = {"key": list(key), _PREDICTED: "milliseconds of the model of closedform", "configs_timings": timings}
    return json.dumps(body, indent=2) + "\n"


def _write(offers: tuple[Offer, ...]) -> str:
    op = offers[0].op
    return _cache((op.M, op.N, op.K, op.dtype, op.result), map(config_of, offers), offers)


def _write_attention(offers: tuple[AttentionOffer, ...]) -> str:
    op = offers[0].op
    key = (op.batch, op.heads, op.L_q, op.L_kv, op.d, op.dtype)
    return _cache(key, map(attention_config_of, offers), offers)


def _write_conv2d(offers: tuple[Conv2dOffer, ...]) -> str:
    op = offers[0].op
    key = (op.N, op.IC, op.IH, op.IW, op.OC, op.KH, op.KW, op.dtype, op.result)
    return _cache(key, map(conv2d_config_of, offers), offers)


def timed(text: str) -> list[tuple[dict[str, Any], float | None]]:
    """Configs of an autotune cache with the microseconds that were measured, the fastest first.

    None for a Config that failed, which the cache holds as infinite, and for all of a cache whose times are predicted.
    """
    body = json.loads(text)
    if not isinstance(body, dict) or not isinstance(body.get("configs_timings"), list):
        raise BadInput("not an autotune cache: no list configs_timings")
    found = []
    for entry in body["configs_timings"]:
        config, time = entry if isinstance(entry, list) and len(entry) == 2 else (entry, None)
        time = time[0] if isinstance(time, list) and time else time
        found.append((config, time * 1000 if is_time(time) else None))
    found.sort(key=lambda pair: float("inf") if pair[1] is None else pair[1])
    return [(config, None) for config, _ in found] if _PREDICTED in body else found


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    return tuple(kernel_of_config(config) for config, _ in timed(text))


def _read_attention(text: str, hw: HardwareDescriptor) -> tuple[AttentionKernel, ...]:
    return tuple(attention_kernel_of_config(config) for config, _ in timed(text))


def _read_conv2d(text: str, hw: HardwareDescriptor) -> tuple[Conv2dKernel, ...]:
    return tuple(conv2d_kernel_of_config(config) for config, _ in timed(text))


_MODULE = '''"""Triton configurations of {shape} for {hw}, the best predicted first.

    @triton.autotune(configs=CONFIGS, key={key}, prune_configs_by=PRUNE)
"""

import triton

#: Arguments of each Config, and the predicted time in microseconds.
CHOICES = {choices}
CONFIGS = [triton.Config(**arguments) for arguments, _ in CHOICES]
LDS_BYTES = {lds}
{constants}


def lds_bytes(words):
    """LDS that the AMD backend allocates for {measured}


def early_config_prune(configs, named_args, **kwargs):
    """The configurations that the LDS holds; all of them where it holds none."""
    held = [config for config in configs if lds_bytes(config.all_kwargs()) <= LDS_BYTES]
    return held or list(configs)


def perf_model(**words):
    """Predicted microseconds of a configuration; infinite for one that is not among CHOICES."""
    for arguments, predicted_us in CHOICES:
        own = dict(arguments["kwargs"], num_warps=arguments["num_warps"], num_stages=arguments["num_stages"])
        if all(words.get(name) == value for name, value in own.items() if name in words):
            return predicted_us if predicted_us is not None else 0.0
    return float("inf")


PRUNE = {{"early_config_prune": early_config_prune, "perf_model": perf_model, "top_k": len(CONFIGS)}}
'''


def _module(
    offers: tuple[Any, ...], config: Callable[[Any], dict[str, Any]], shape: str, key: tuple[str, ...], measured: str
) -> str:
    """The module of the offers; `measured` is the rest of the function that counts bytes of a Config."""
    first = offers[0]
    constants = {"ELEMENT_BYTES": first.elem_bytes}
    if isinstance(first, AttentionOffer):
        constants["HEAD_DIM"] = head_dim(first.op.d)
    return _MODULE.format(
        shape=shape,
        hw=first.hw,
        key="[" + ", ".join(f'"{name}"' for name in key) + "]",
        choices="[\n" + "\n".join(_choice(config(offer), offer.predicted_us) for offer in offers) + "\n]",
        lds=first.hw.lds_max_per_workgroup_bytes,
        constants="\n".join(f"{name} = {value}" for name, value in constants.items()),
        measured=measured,
    )


def _choice(config: dict[str, Any], predicted_us: float | None) -> str:
    del config["num_ctas"]
    inner = ", ".join(f"{name!r}: {value!r}" for name, value in config.items() if name != "kwargs")
    lines = ("(", f"    {{'kwargs': {config['kwargs']!r},", f"     {inner}}},", f"    {predicted_us!r},", "),")
    return "\n".join(f"    {line}" for line in lines)


_PRODUCT_BYTES = '''the operands of a Config, with what it keeps to itself."""
    a, b = (words[name] * words["{2}"] * ELEMENT_BYTES for name in ("{0}", "{1}"))
    return {margin} + (max(a, b) if words["num_stages"] == 1 else (words["num_stages"] - 1) * (a + b))'''
_ATTENTION_BYTES = '''Q or, after it, for K and V under way, at most."""
    q, k = (words[name] * HEAD_DIM * ELEMENT_BYTES for name in ("BLOCK_M", "BLOCK_N"))
    stays = ELEMENT_BYTES < 4 and words["BLOCK_M"] >= words["num_warps"] * words["matrix_instr_nonkdim"]
    exponentials = 0 if stays else words["BLOCK_M"] * words["BLOCK_N"] * ELEMENT_BYTES
    return max(q, (2 * k * {sets} or k) + exponentials + {margin})'''


def _product_bytes(names: tuple[str, str, str]) -> str:
    return _PRODUCT_BYTES.format(*names, margin=EXPORT_MARGIN_BYTES)


def _write_python(offers: tuple[Offer, ...]) -> str:
    op = offers[0].op
    shape = f"gemm M={op.M} N={op.N} K={op.K} {op.dtype} {op.layout}"
    return _module(offers, config_of, shape, ("M", "N", "K"), _product_bytes(TILE_NAMES[0]))


def _write_attention_python(offers: tuple[AttentionOffer, ...]) -> str:
    sets = 'words["num_stages"]' if copies_to_lds(offers[0].hw) else '(words["num_stages"] - 1)'
    measured = _ATTENTION_BYTES.format(sets=sets, margin=EXPORT_MARGIN_BYTES)
    return _module(offers, attention_config_of, shape_of_attention(offers[0]), ("L_q", "L_kv", "d"), measured)


def _write_conv2d_python(offers: tuple[Conv2dOffer, ...]) -> str:
    key = ("N", "IC", "IH", "IW", "OC")
    return _module(offers, conv2d_config_of, shape_of_conv2d(offers[0]), key, _product_bytes(TILE_NAMES[1]))


def shape_of_attention(offer: AttentionOffer) -> str:
    """The operator in words, for headers of modules."""
    op = offer.op
    return f"attention batch={op.batch} heads={op.heads} L_q={op.L_q} L_kv={op.L_kv} d={op.d} {op.dtype}"


def shape_of_conv2d(offer: Conv2dOffer) -> str:
    """The operator in words, for headers of modules."""
    op = offer.op
    image = f"N={op.N} IC={op.IC} IH={op.IH} IW={op.IW}"
    return f"conv2d {image} OC={op.OC} KH={op.KH} KW={op.KW} {op.dtype} {op.layout}"


def choices(text: str) -> list[dict[str, Any]]:
    """Arguments of the Configs of a module."""
    import ast

    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHOICES":
            return [arguments for arguments, _ in ast.literal_eval(node.value)]
    raise BadInput("no CHOICES in this module")


def _read_python(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    return tuple(kernel_of_config(arguments) for arguments in choices(text))


def _read_attention_python(text: str, hw: HardwareDescriptor) -> tuple[AttentionKernel, ...]:
    return tuple(attention_kernel_of_config(arguments) for arguments in choices(text))


def _read_conv2d_python(text: str, hw: HardwareDescriptor) -> tuple[Conv2dKernel, ...]:
    return tuple(conv2d_kernel_of_config(arguments) for arguments in choices(text))


_CARRIES = ("mfma_m", "waves", "stages", "split_k", "group_m", "waves_per_simd")
_NO_MAPPING = ("mfma_m", "waves", "stages", "waves_per_simd")
_CACHE, _PYTHON = ("triton", "Triton", ".autotune.json"), ("triton", "Triton", ".py")
TOOL = Tool(*_CACHE, _CARRIES, BACKEND_RULES, _write, _read)
TOOL_PYTHON = Tool(*_PYTHON, _CARRIES, BACKEND_RULES, _write_python, _read_python, words=choices)
ATTENTION = AttentionTool(*_CACHE, _NO_MAPPING, ATTENTION_RULES, _write_attention, _read_attention)
ATTENTION_PYTHON = AttentionTool(
    *_PYTHON, _NO_MAPPING, ATTENTION_RULES, _write_attention_python, _read_attention_python, words=choices
)
CONV2D = Conv2dTool(*_CACHE, _NO_MAPPING, CONV2D_RULES, _write_conv2d, _read_conv2d)
CONV2D_PYTHON = Conv2dTool(
    *_PYTHON, _NO_MAPPING, CONV2D_RULES, _write_conv2d_python, _read_conv2d_python, words=choices
)
