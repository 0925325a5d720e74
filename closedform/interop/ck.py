"""Composable Kernel: the configuration of the CK Tile engine."""

from __future__ import annotations

import json
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput

from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool, images_bytes, lds_rule

__all__ = ["TOOL"]

_SOURCE = "tile_engine/ops/gemm/configs/default_config.json of Composable Kernel"
#: Type by family; one image of LDS (compv3) for two tiles under way, two (compv4) for three.
_TYPES = {"f16": "fp16", "bf16": "bf16", "fp8": "fp8", "bf8": "bf8", "i8": "int8", "f32": "fp32", "i32": "int32"}
_PIPELINES = {1: "mem", 2: "compv3", 3: "compv4"}
_TILES = ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "warp_k", "warp_tile_m", "warp_tile_n", "warp_tile_k")


_RULES: tuple[Rule[Offer], ...] = (
    lds_rule(lambda o: images_bytes(o.kernel, o.elem_bytes), "images of A and B fit the LDS", _SOURCE),
    Rule("type", f"one of {', '.join(_TYPES.values())}", _SOURCE, lambda o: dtype(o.op.dtype).family not in _TYPES),
    Rule("instruction", "of one block", _SOURCE, lambda o: o.kernel.mfma is None or o.kernel.mfma[3] != 1),
    Rule("waves", "a grid of waves", _SOURCE, lambda o: o.kernel.wave_m is None or o.kernel.wave_n is None),
    Rule("pipeline", "1 to 3 tiles under way", _SOURCE, lambda o: (o.kernel.stages or 2) not in _PIPELINES),
    Rule("split", "k_batch is an argument of the launch", _SOURCE, lambda o: (o.kernel.split_k or 1) > 1),
    Rule("Stream-K", "has a universe of its own", _SOURCE, lambda o: bool(o.kernel.stream_k)),
)


def _write(offers: tuple[Offer, ...]) -> str:
    offer = offers[0]
    op, k = offer.op, offer.kernel
    assert k.mfma is not None
    numbers = (k.tile_m, k.tile_n, k.tile_k, k.wave_m, k.wave_n, k.wave_k, *k.mfma[:3])
    pads = {f"pad_{axis}": {"values": [extent % tile > 0]} for axis, extent, tile in _extents(offer)}
    traits = {"pipeline": _PIPELINES[k.stages or 2], "scheduler": "intrawave", "epilogue": "cshuffle"}
    body = {
        "problem": {
            "layout_a": "rc"[op.layout[0] == "T"],
            "layout_b": "rc"[op.layout[1] == "T"],
            "layout_c": "r",
            "datatype_a": _TYPES[dtype(op.dtype).family],
            "datatype_b": _TYPES[dtype(op.dtype).family],
            "datatype_c": _TYPES.get(dtype(op.result).family, op.result),
        },
        "tile_config": {name: {"values": [value]} for name, value in zip(_TILES, numbers, strict=True)},
        "trait_config": {**{name: {"values": [value]} for name, value in traits.items()}, **pads},
    }
    return json.dumps(body, indent=2) + "\n"


def _extents(offer: Offer) -> tuple[tuple[str, int, int], ...]:
    op, k = offer.op, offer.kernel
    return ("m", op.M, k.tile_m), ("n", op.N, k.tile_n), ("k", op.K, k.tile_k)


def _one(values: Any) -> Any:
    if not isinstance(values, dict) or not isinstance(values.get("values"), list) or len(values["values"]) != 1:
        raise BadInput(f"{values!r}: a kernel needs one value here")
    return values["values"][0]


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    body = json.loads(text)
    try:
        tiles = {name: _one(body["tile_config"][name]) for name in _TILES}
        problem, traits = body["problem"], body["trait_config"]
    except KeyError as error:
        raise BadInput(f"not a configuration of the CK Tile engine: no {error}") from None
    families = {word: family for family, word in _TYPES.items()}
    stages = {pipeline: count for count, pipeline in _PIPELINES.items()}
    return (
        Kernel(
            tile_m=tiles["tile_m"],
            tile_n=tiles["tile_n"],
            tile_k=tiles["tile_k"],
            dtype=hw.resolve_dtype(families[problem["datatype_a"]]).name,
            layout="NT"[problem["layout_a"] == "c"] + "NT"[problem["layout_b"] == "c"],
            mfma=(tiles["warp_tile_m"], tiles["warp_tile_n"], tiles["warp_tile_k"], 1),
            wave_m=tiles["warp_m"],
            wave_n=tiles["warp_n"],
            wave_k=tiles["warp_k"],
            stages=stages[_one(traits["pipeline"])],
        ),
    )


_CARRIES = ("dtype", "layout", "mfma", "wave_m", "wave_n", "wave_k", "stages")
TOOL = Tool("ck", "Composable Kernel", ".json", _CARRIES, _RULES, _write, _read, many=False)
