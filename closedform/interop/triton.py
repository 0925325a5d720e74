"""Triton: `triton.Config` for its AMD backend, as an autotune cache in JSON and as a Python module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.visitors.gemm_rules import EXPORT_MARGIN_BYTES

from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool, is_time, lds_rule

__all__ = [
    "BACKEND_RULES",
    "TOOL",
    "TOOL_PYTHON",
    "config_of",
    "kernel_of_config",
    "kpack",
    "lds_bytes",
    "option_refusals",
    "timed",
]

_SOURCE = "HIPOptions and the allocation of Triton's AMD backend"
WAVES_MOST = 16
#: Names of the tile, of the group and of the split that kernels use: tutorials, AITER and vLLM first, then Inductor.
_TILE_NAMES = (("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
_GROUP_NAMES = ("GROUP_SIZE_M", "GROUP_M")
_SPLIT_NAMES = ("SPLIT_K", "NUM_KSPLIT")
#: Of a cache that we wrote: that its times were not measured. Triton looks at configs_timings alone.
_PREDICTED = "predicted"


def kpack(hw: HardwareDescriptor) -> int:
    """LDS reads of k that one instruction's operand joins: 1 where the target's instructions are deep already."""
    return 1 if hw.gfx == "gfx950" else 2


def lds_bytes(tile: tuple[int, int, int], elem_bytes: float, stages: int) -> int:
    """LDS that the backend allocates for operands: the larger of A and B for one stage, else stages - 1 of both.

    >>> lds_bytes((128, 256, 64), 2, 2), lds_bytes((256, 64, 64), 2, 1)
    (49152, 32768)
    """
    m, n, k = tile
    a, b = m * k * elem_bytes, n * k * elem_bytes
    return int(max(a, b) if stages == 1 else (stages - 1) * (a + b))


def _lds(offer: Offer) -> int:
    k = offer.kernel
    return lds_bytes((k.tile_m, k.tile_n, k.tile_k), offer.elem_bytes, k.stages or 2) + EXPORT_MARGIN_BYTES


def _power(*values: int) -> bool:
    return all(value > 0 and value & (value - 1) == 0 for value in values)


def option_refusals(config: Mapping[str, Any], hw: HardwareDescriptor) -> tuple[str, ...]:
    """Options of a Config, beside its kernel, that the backend refuses on that GPU."""
    given, most = {**config, **config.get("kwargs", {})}.get("kpack"), kpack(hw)
    if given is None or given in range(1, most + 1):
        return ()
    return (f"kpack: {given} where {hw.gfx} takes {'1' if most == 1 else '1 or 2'}",)


BACKEND_RULES: tuple[Rule[Offer], ...] = (
    lds_rule(_lds, f"(num_stages - 1) x (A + B) and {EXPORT_MARGIN_BYTES} B of its own fit the LDS", _SOURCE),
    Rule(
        "blocks",
        "extents of blocks are powers of two of at least 16",
        _SOURCE,
        lambda o: not _power(*_extents(o)) or min(_extents(o)) < 16,
        alone=True,
    ),
    Rule(
        "num_warps",
        f"a power of two of at most {WAVES_MOST}",
        _SOURCE,
        lambda o: o.kernel.waves is not None and (not _power(o.kernel.waves) or o.kernel.waves > WAVES_MOST),
        alone=True,
    ),
    Rule("Stream-K", "persistent workgroups are no option of a Config", _SOURCE, lambda o: bool(o.kernel.stream_k)),
    Rule(
        "matrix_instr_nonkdim",
        "4, 16 or 32, dividing the block",
        _SOURCE,
        lambda o: (
            o.kernel.mfma_m is not None
            and (
                o.kernel.mfma_m not in (4, 16, 32)
                or o.kernel.tile_m % o.kernel.mfma_m > 0
                or o.kernel.tile_n % o.kernel.mfma_m > 0
            )
        ),
        alone=True,
    ),
)


def _extents(offer: Offer) -> tuple[int, int, int]:
    return offer.kernel.tile_m, offer.kernel.tile_n, offer.kernel.tile_k


def config_of(offer: Offer) -> dict[str, Any]:
    """A Config as the cache stores it; SPLIT_K only where the sum is split, as few kernels take it."""
    k = offer.kernel
    tile = dict(zip(_TILE_NAMES[0], _extents(offer), strict=True))
    options = {
        "GROUP_SIZE_M": k.group_m or 1,
        "matrix_instr_nonkdim": k.mfma_m,
        "waves_per_eu": k.waves_per_simd or 0,
        "kpack": kpack(offer.hw),
    }
    split = {"SPLIT_K": k.split_k} if (k.split_k or 1) > 1 else {}
    return {"kwargs": {**tile, **options, **split}, "num_warps": k.waves, "num_ctas": 1, "num_stages": k.stages or 2}


def kernel_of_config(config: dict[str, Any]) -> Kernel:
    """The kernel of a Config; BadInput where its names are not of a GEMM."""
    words = {**config, **config.get("kwargs", {})}
    names = next((names for names in _TILE_NAMES if all(name in words for name in names)), None)
    if names is None:
        raise BadInput(f"no block of a GEMM among {', '.join(sorted(words)) or 'no names'}")
    m, n, k = (words[name] for name in names)
    return Kernel(
        tile_m=m,
        tile_n=n,
        tile_k=k,
        mfma_m=words.get("matrix_instr_nonkdim") or None,
        waves=words.get("num_warps"),
        stages=words.get("num_stages"),
        split_k=next((words[name] for name in _SPLIT_NAMES if name in words), 1),
        group_m=next((words[name] for name in _GROUP_NAMES if name in words), None),
        waves_per_simd=words.get("waves_per_eu") or None,
    )


def _write(offers: tuple[Offer, ...]) -> str:
    op = offers[0].op
    timings = [[config_of(o), None if o.predicted_us is None else o.predicted_us / 1000] for o in offers]
    key = [op.M, op.N, op.K, op.dtype, op.result]
    body = {"key": key, _PREDICTED: "milliseconds of the model of closedform", "configs_timings": timings}
    return json.dumps(body, indent=2) + "\n"


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


_CARRIES = ("mfma_m", "waves", "stages", "split_k", "group_m", "waves_per_simd")

_MODULE = '''"""Triton configurations of gemm {shape} for {hw}, the best predicted first.

    @triton.autotune(configs=CONFIGS, key=["M", "N", "K"], prune_configs_by=PRUNE)
"""

import triton

#: Arguments of each Config, and the predicted time in microseconds.
CHOICES = {choices}
CONFIGS = [triton.Config(**arguments) for arguments, _ in CHOICES]
LDS_BYTES = {lds}
ELEMENT_BYTES = {elem}


def lds_bytes(words):
    """LDS that the AMD backend allocates for the operands of a Config."""
    a, b = (words[name] * words["BLOCK_SIZE_K"] * ELEMENT_BYTES for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
    return max(a, b) if words["num_stages"] == 1 else (words["num_stages"] - 1) * (a + b)


def early_config_prune(configs, named_args, **kwargs):
    """The configurations that the LDS holds; all of them where it holds none."""
    held = [config for config in configs if lds_bytes(config.all_kwargs()) + {margin} <= LDS_BYTES]
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


def _write_python(offers: tuple[Offer, ...]) -> str:
    op, hw = offers[0].op, offers[0].hw
    choices = "[\n" + "\n".join(_choice(offer) for offer in offers) + "\n]"
    return _MODULE.format(
        shape=f"M={op.M} N={op.N} K={op.K} {op.dtype} {op.layout}",
        hw=hw,
        choices=choices,
        lds=hw.lds_max_per_workgroup_bytes,
        elem=offers[0].elem_bytes,
        margin=EXPORT_MARGIN_BYTES,
    )


def _choice(offer: Offer) -> str:
    config = config_of(offer)
    del config["num_ctas"]
    inner = ", ".join(f"{name!r}: {value!r}" for name, value in config.items() if name != "kwargs")
    lines = ("(", f"    {{'kwargs': {config['kwargs']!r},", f"     {inner}}},", f"    {offer.predicted_us!r},", "),")
    return "\n".join(f"    {line}" for line in lines)


def _read_python(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    import ast

    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHOICES":
            return tuple(kernel_of_config(arguments) for arguments, _ in ast.literal_eval(node.value))
    raise BadInput("no CHOICES in this module")


TOOL = Tool("triton", "Triton", ".autotune.json", _CARRIES, BACKEND_RULES, _write, _read)
TOOL_PYTHON = Tool("triton", "Triton", ".py", _CARRIES, BACKEND_RULES, _write_python, _read_python)
