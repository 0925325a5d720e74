"""FlyDSL: artifacts and `Config` objects of its implicit convolution, whose tile is one of a product."""

from __future__ import annotations

import json
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from . import flydsl
from .conv2d_offers import Conv2dKernel, Conv2dOffer, Conv2dTool
from .rules import Rule
from .tool import lds_rule
from .triton import shape_of_conv2d

__all__ = ["ARTIFACT", "CONV2D", "CONV2D_PYTHON", "artifact_of", "is_config", "kernel_of_config", "lds_bytes"]

_SOURCE = "kernels/conv/conv3d_implicit.py of FlyDSL"
#: Name of the tuned function's artifacts.
ARTIFACT = "conv3d_implicit"
#: What the kernel is written with: depth of a tile, tiles in LDS, instruction, elements of a thread's load.
DEPTH, TILES, INSTRUCTION, LOAD_ELEMENTS = 32, 4, (16, 16, 32, 1), 8
_CONFIG = ("TILE_M", "TILE_N", "WAVE_M", "WAVE_N")


def lds_bytes(kernel: Conv2dKernel, elem_bytes: float) -> int:
    """LDS of the tiles of pixels and filters."""
    return int(TILES * (kernel.tile_m + kernel.tile_n) * DEPTH * elem_bytes)


def _missing(offer: Conv2dOffer) -> bool:
    """Whether the GPU has not the instruction that the kernel is written with."""
    atoms = {(a.m, a.n, a.k, a.blocks) for a in offer.hw.atoms if a.dtype_a.name == a.dtype_b.name == "bf16"}
    return INSTRUCTION not in atoms


def _whole(offer: Conv2dOffer) -> bool:
    """Whether a wave's part is no whole instructions."""
    k = offer.kernel
    return k.tile_m % (INSTRUCTION[0] * (k.wave_m or 1)) > 0 or k.tile_n % (INSTRUCTION[1] * (k.wave_n or 1)) > 0


def _loads(offer: Conv2dOffer) -> bool:
    """Whether a tile of an operand is no whole loads of every thread."""
    k = offer.kernel
    loaded = (k.waves or 1) * offer.hw.wavefront_size * LOAD_ELEMENTS
    return any(side * DEPTH % loaded for side in (k.tile_m, k.tile_n))


_RULES: tuple[Rule[Conv2dOffer], ...] = (
    Rule("type", "bf16", _SOURCE, lambda o: (o.op.dtype, o.op.result) != ("bf16", "bf16")),
    Rule("instruction", "16x16x32 of bf16, which the GPU must have", _SOURCE, _missing, alone=True),
    Rule("pads", "the same zeros on both sides", _SOURCE, lambda o: o.op.pad[0::2] != o.op.pad[1::2]),
    Rule("depth", f"{DEPTH} channels of a tile", _SOURCE, lambda o: o.kernel.tile_k != DEPTH),
    Rule("grid", "waves are a grid", _SOURCE, lambda o: o.kernel.wave_m is None or o.kernel.wave_n is None),
    Rule("wave tiles", "a wave's part is whole instructions of 16 x 16", _SOURCE, _whole, alone=True),
    Rule("loads", f"a tile is whole loads of {LOAD_ELEMENTS} elements of every thread", _SOURCE, _loads, alone=True),
    lds_rule(
        lambda o: lds_bytes(o.kernel, o.elem_bytes), f"{TILES} tiles of pixels and of filters fit the LDS", _SOURCE
    ),
)


def config_of(offer: Conv2dOffer) -> dict[str, Any]:
    """The kernel's compile-time names with their values."""
    k = offer.kernel
    return {**dict(zip(_CONFIG, (k.tile_m, k.tile_n, k.wave_m, k.wave_n), strict=True)), "WGM": k.group_m or 1}


def _key(offer: Conv2dOffer) -> dict[str, int]:
    """What the function is tuned for, by the names of its builder; the depth of the image is 1."""
    op = offer.op
    return {
        **{"n": op.N, "c": op.IC, "d": 1, "h": op.IH, "w": op.IW, "k": op.OC, "kt": 1, "kh": op.KH, "kw": op.KW},
        **{"st": 1, "sh": op.stride[0], "sw": op.stride[1], "pt": 0, "ph": op.pad[0], "pw": op.pad[2]},
        **{"dt": 1, "dh": op.dilation[0], "dw": op.dilation[1], "groups": op.groups},
    }


def artifact_of(offer: Conv2dOffer, name: str = ARTIFACT, device: str = "") -> dict[str, Any]:
    """The artifact's contents; `device` is the name that torch gives the GPU."""
    return flydsl.artifact(offer, name, _key(offer), config_of(offer), device)


def is_config(config: Any) -> bool:
    """Whether a configuration is of the implicit convolution."""
    return isinstance(config, dict) and all(name in config for name in _CONFIG)


def kernel_of_config(config: Any) -> Conv2dKernel:
    """The kernel of a configuration; BadInput where it is not of the implicit convolution."""
    if not is_config(config):
        raise BadInput(f"not a configuration of FlyDSL's convolution: no {', '.join(_CONFIG)}")
    return Conv2dKernel(
        tile_m=config["TILE_M"],
        tile_n=config["TILE_N"],
        tile_k=DEPTH,
        wave_m=config["WAVE_M"],
        wave_n=config["WAVE_N"],
        group_m=config.get("WGM", 1) if config.get("WGM", 1) != 1 else None,
    )


def _write(offers: tuple[Conv2dOffer, ...]) -> str:
    return flydsl.artifact_text(artifact_of(offers[0]))


def _read(text: str, hw: HardwareDescriptor) -> tuple[Conv2dKernel, ...]:
    body = json.loads(text)
    return (kernel_of_config(body.get("config") if isinstance(body, dict) else None),)


def _write_python(offers: tuple[Conv2dOffer, ...]) -> str:
    first = offers[0]
    return flydsl.module_text(shape_of_conv2d(first), first.hw, tuple(_key(first)), [config_of(o) for o in offers])


def _read_python(text: str, hw: HardwareDescriptor) -> tuple[Conv2dKernel, ...]:
    return tuple(kernel_of_config(words) for words in flydsl.configs_of_module(text))


_CARRIES = ("wave_m", "wave_n", "group_m")
CONV2D = Conv2dTool("flydsl", "FlyDSL", ".json", _CARRIES, _RULES, _write, _read, many=False)
CONV2D_PYTHON = Conv2dTool(
    "flydsl", "FlyDSL", ".py", _CARRIES, _RULES, _write_python, _read_python, words=flydsl.configs_of_module
)
