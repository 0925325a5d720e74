"""TileLang: the list of keyword dictionaries that `tilelang.autotune(configs=...)` takes."""

from __future__ import annotations

import json
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool, images_bytes, lds_rule
from .triton import kpack

__all__ = ["TOOL", "keywords_of"]

_SOURCE = "examples and autotuner of TileLang"


def _deep(offer: Offer) -> bool:
    """Whether a tile's depth is not whole instructions of the packed depth."""
    return offer.kernel.mfma is None or offer.kernel.tile_k % (offer.kernel.mfma[2] * kpack(offer.hw)) > 0


_RULES: tuple[Rule[Offer], ...] = (
    lds_rule(lambda o: images_bytes(o.kernel, o.elem_bytes), "images of A and B fit the LDS", _SOURCE),
    Rule("depth", "block_K is whole instructions of k_pack times their depth", _SOURCE, _deep),
    Rule("Stream-K", "persistent workgroups are not a keyword", _SOURCE, lambda o: bool(o.kernel.stream_k)),
    Rule("split", "the sum is split by a template of its own", _SOURCE, lambda o: (o.kernel.split_k or 1) > 1),
)


def keywords_of(offer: Offer) -> dict[str, Any]:
    """Keywords of the kernel function; enable_rasteration is spelt so there."""
    k = offer.kernel
    return {
        "block_M": k.tile_m,
        "block_N": k.tile_n,
        "block_K": k.tile_k,
        "num_stages": k.stages or 2,
        "thread_num": (k.waves or 1) * offer.hw.wavefront_size,
        "k_pack": kpack(offer.hw),
        "enable_rasteration": (k.group_m or 1) > 1,
        "panel_size": k.group_m or 1,
    }


def _write(offers: tuple[Offer, ...]) -> str:
    return json.dumps([keywords_of(offer) for offer in offers], indent=2) + "\n"


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    body = json.loads(text)
    return tuple(_kernel(words, hw) for words in (body if isinstance(body, list) else [body]))


def _kernel(words: Any, hw: HardwareDescriptor) -> Kernel:
    if not isinstance(words, dict) or not all(f"block_{axis}" in words for axis in "MNK"):
        raise BadInput("not keywords of a TileLang GEMM: no block_M, block_N and block_K")
    threads = words.get("thread_num", words.get("threads"))
    return Kernel(
        tile_m=words["block_M"],
        tile_n=words["block_N"],
        tile_k=words["block_K"],
        stages=words.get("num_stages"),
        waves=None if threads is None else threads // hw.wavefront_size,
        group_m=words.get("panel_size"),
    )


TOOL = Tool("tilelang", "TileLang", ".json", ("stages", "waves", "group_m"), _RULES, _write, _read)
