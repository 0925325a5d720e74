"""TileLang: the list of keyword dictionaries that `tilelang.autotune(configs=...)` takes."""

from __future__ import annotations

import json
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .attention_kernel import AttentionKernel
from .attention_offers import AttentionOffer, AttentionTool
from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool, images_bytes, lds_rule
from .triton_config import kpack

__all__ = ["ATTENTION", "TOOL", "attention_keywords_of", "attention_lds_bytes", "keywords_of"]

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


def _listed(text: str) -> list[Any]:
    """Dictionaries of keywords of a file: a list of them, or one alone."""
    body = json.loads(text)
    return body if isinstance(body, list) else [body]


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    return tuple(_kernel(words, hw) for words in _listed(text))


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


TOOL = Tool("tilelang", "TileLang", ".json", ("stages", "waves", "group_m"), _RULES, _write, _read, words=_listed)

#: Bytes of a lane's access to global memory, which the coalesced widths are made of.
ACCESS_BYTES = 16
_ATTENTION_SOURCE = "the flash attention for AMD among the examples of TileLang"


def attention_lds_bytes(kernel: AttentionKernel, d: int, elem_bytes: float) -> int:
    """LDS of Q, and of images of K and V; one tile under way is in registers."""
    images = max(1, (kernel.stages or 2) - 1)
    return int((kernel.block_q + 2 * images * kernel.tile_kv) * d * elem_bytes)


_ATTENTION_RULES: tuple[Rule[AttentionOffer], ...] = (
    lds_rule(
        lambda o: attention_lds_bytes(o.kernel, o.op.d, o.elem_bytes),
        "Q and images of K and V fit the LDS",
        _ATTENTION_SOURCE,
    ),
    Rule(
        "depth",
        "d and block_N are whole instructions of k_pack times their depth",
        _ATTENTION_SOURCE,
        lambda o: (
            o.kernel.mfma is None
            or any(depth % (o.kernel.mfma[2] * kpack(o.hw)) for depth in (o.op.d, o.kernel.tile_kv))
        ),
    ),
    Rule("length", "as many keys as queries", _ATTENTION_SOURCE, lambda o: o.op.L_q != o.op.L_kv),
)


def attention_keywords_of(offer: AttentionOffer) -> dict[str, Any]:
    """Keywords of the kernel function; a workgroup for every block of queries."""
    k, op = offer.kernel, offer.op
    width = ACCESS_BYTES // offer.elem_bytes
    return {
        "block_M": k.block_q,
        "block_N": k.tile_kv,
        "num_split_q": -(-op.L_q // k.block_q),
        "threads": (k.waves or 1) * offer.hw.wavefront_size,
        "num_stages": k.stages or 2,
        "enable_rasterization": False,
        "k_pack": kpack(offer.hw),
        "panel_size": 1,
        "qk_coalesced_width": width,
        "v_coalesced_width": width,
    }


def _write_attention(offers: tuple[AttentionOffer, ...]) -> str:
    return json.dumps([attention_keywords_of(offer) for offer in offers], indent=2) + "\n"


def _read_attention(text: str, hw: HardwareDescriptor) -> tuple[AttentionKernel, ...]:
    return tuple(_attention_kernel(words, hw) for words in _listed(text))


def _attention_kernel(words: Any, hw: HardwareDescriptor) -> AttentionKernel:
    if not isinstance(words, dict) or "block_K" in words or not all(f"block_{axis}" in words for axis in "MN"):
        raise BadInput("not keywords of a TileLang attention: no block_M and block_N without block_K")
    threads = words.get("threads", words.get("thread_num"))
    return AttentionKernel(
        block_q=words["block_M"],
        tile_kv=words["block_N"],
        # no stage is a loop that does not overlap
        stages=words.get("num_stages") or None,
        waves=None if threads is None else threads // hw.wavefront_size,
    )


ATTENTION = AttentionTool(
    "tilelang",
    "TileLang",
    ".json",
    ("stages", "waves"),
    _ATTENTION_RULES,
    _write_attention,
    _read_attention,
    words=_listed,
)
