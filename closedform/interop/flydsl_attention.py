"""FlyDSL: artifacts and `Config` objects of its generic flash attention."""

from __future__ import annotations

import json
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from . import flydsl
from .attention_kernel import AttentionKernel
from .attention_offers import AttentionOffer, AttentionTool
from .rules import Rule
from .tool import lds_rule
from .triton import shape_of_attention

__all__ = ["ARTIFACT", "ATTENTION", "ATTENTION_PYTHON", "artifact_of", "is_config", "kernel_of_config", "lds_bytes"]

_SOURCE = "kernels/attention/flash_attn_generic.py of FlyDSL"
#: Name of the tuned function's artifacts.
ARTIFACT = "flash_attn_generic"
#: Query rows of a wave, and keys of a step in its path N32.
WAVE_ROWS, STEP_KEYS, PATH = 32, 64, "N32"
WAVES = (1, 2, 4, 8)
HEAD_DIM_LEAST, HEAD_DIM_STEP = 64, 32


def lds_bytes(kernel: AttentionKernel, d: int, elem_bytes: float) -> int:
    """LDS of one tile of K and one of V."""
    return int(2 * kernel.tile_kv * d * elem_bytes)


_RULES: tuple[Rule[AttentionOffer], ...] = (
    Rule("type", "f16 and bf16", _SOURCE, lambda o: o.op.dtype not in ("f16", "bf16")),
    Rule(
        "head dim",
        f"a multiple of {HEAD_DIM_STEP} of at least {HEAD_DIM_LEAST}",
        _SOURCE,
        lambda o: o.op.d < HEAD_DIM_LEAST or o.op.d % HEAD_DIM_STEP > 0,
    ),
    Rule("waves", f"one of {WAVES}", _SOURCE, lambda o: o.kernel.waves not in WAVES, alone=True),
    Rule(
        "queries",
        f"{WAVE_ROWS} of every wave",
        _SOURCE,
        lambda o: o.kernel.block_q != WAVE_ROWS * (o.kernel.waves or 1),
        alone=True,
    ),
    Rule("keys", f"{STEP_KEYS} of a step", _SOURCE, lambda o: o.kernel.tile_kv != STEP_KEYS, alone=True),
    lds_rule(lambda o: lds_bytes(o.kernel, o.op.d, o.elem_bytes), "K and V of a step fit the LDS", _SOURCE),
)


def config_of(offer: AttentionOffer) -> dict[str, Any]:
    """Arguments of the builder, and the compiler's hint."""
    k = offer.kernel
    threads = (k.waves or 1) * offer.hw.wavefront_size
    hint = {"waves_per_eu": k.waves_per_simd} if k.waves_per_simd else {}
    return {"block_m": k.block_q, "flat_work_group_size": threads, "path_tag": PATH, **hint}


def _key(offer: AttentionOffer) -> dict[str, int]:
    """What the function is tuned for, by the names of the builder and of the launch."""
    op = offer.op
    return {
        "num_heads": op.heads,
        "num_kv_heads": op.key_heads,
        "head_dim": op.d,
        "batch_size": op.batch,
        "seq_len": op.L_q,
        "seq_len_kv": op.L_kv,
    }


def artifact_of(offer: AttentionOffer, name: str = ARTIFACT, device: str = "") -> dict[str, Any]:
    """The artifact's contents; `device` is the name that torch gives the GPU."""
    return flydsl.artifact(offer, name, _key(offer), config_of(offer), device)


def is_config(config: Any) -> bool:
    """Whether a configuration is of flash attention."""
    return isinstance(config, dict) and "block_m" in config and "flat_work_group_size" in config


def kernel_of_config(config: Any, hw: HardwareDescriptor) -> AttentionKernel:
    """The kernel of a configuration; BadInput where it is not of flash attention."""
    if not is_config(config):
        raise BadInput("not a configuration of FlyDSL's flash attention: no block_m and flat_work_group_size")
    if config.get("path_tag", PATH) != PATH:
        raise BadInput(f"path_tag {config['path_tag']!r}: of FlyDSL's flash attention {PATH} alone is known here")
    return AttentionKernel(
        block_q=config["block_m"],
        tile_kv=STEP_KEYS,
        waves=config["flat_work_group_size"] // hw.wavefront_size,
        waves_per_simd=config.get("waves_per_eu"),
    )


def _write(offers: tuple[AttentionOffer, ...]) -> str:
    return flydsl.artifact_text(artifact_of(offers[0]))


def _read(text: str, hw: HardwareDescriptor) -> tuple[AttentionKernel, ...]:
    body = json.loads(text)
    return (kernel_of_config(body.get("config") if isinstance(body, dict) else None, hw),)


def _write_python(offers: tuple[AttentionOffer, ...]) -> str:
    first = offers[0]
    return flydsl.module_text(shape_of_attention(first), first.hw, tuple(_key(first)), [config_of(o) for o in offers])


def _read_python(text: str, hw: HardwareDescriptor) -> tuple[AttentionKernel, ...]:
    return tuple(kernel_of_config(words, hw) for words in flydsl.configs_of_module(text))


_CARRIES = ("waves", "waves_per_simd")
ATTENTION = AttentionTool("flydsl", "FlyDSL", ".json", _CARRIES, _RULES, _write, _read, many=False)
ATTENTION_PYTHON = AttentionTool(
    "flydsl", "FlyDSL", ".py", _CARRIES, _RULES, _write_python, _read_python, words=flydsl.configs_of_module
)
