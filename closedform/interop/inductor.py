"""TorchInductor on ROCm: configuration classes of its GEMM, convolution and flex attention templates, as a module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .attention_kernel import AttentionKernel
from .attention_offers import AttentionOffer, AttentionTool
from .conv2d_offers import Conv2dKernel, Conv2dOffer, Conv2dTool
from .kernel import Kernel
from .python_text import keywords_of_calls
from .rules import Rule
from .tool import Offer, Tool
from .triton import shape_of_attention, shape_of_conv2d
from .triton_config import ATTENTION_RULES, BACKEND_RULES, CONV2D_RULES, kpack

__all__ = ["ATTENTION", "CONV2D", "TOOL", "arguments_of"]

_SOURCE = "torch/_inductor/template_heuristics/triton.py"
#: Elements of a block for each wave: a Config with more waves is given fewer.
ELEMENTS_PER_WAVE = 256

#: Waves of a convolution whose filter has more than one tap: its template gives a Config with more no others.
CONV_WAVES_MOST = 4


def _crowded(offer: Offer | Conv2dOffer) -> bool:
    """Whether a wave has fewer elements of the block than the templates give it."""
    k = offer.kernel
    return (k.waves or 1) > k.tile_m * k.tile_n // ELEMENTS_PER_WAVE


_CROWDED = ("waves", f"at most BLOCK_M x BLOCK_N / {ELEMENTS_PER_WAVE} waves", _SOURCE)
_RULES: tuple[Rule[Offer], ...] = (
    *BACKEND_RULES,
    Rule(*_CROWDED, _crowded),
    Rule("split", "its templates do not split the sum", _SOURCE, lambda o: (o.kernel.split_k or 1) > 1),
)

_CONV2D_RULES: tuple[Rule[Conv2dOffer], ...] = (
    *CONV2D_RULES,
    Rule(*_CROWDED, _crowded),
    Rule("dilation", "its template has no dilation", _SOURCE, lambda o: o.op.dilation != (1, 1)),
    Rule("pads", "the same zeros on both sides", _SOURCE, lambda o: o.op.pad[0::2] != o.op.pad[1::2]),
    Rule(
        "waves of taps",
        f"at most {CONV_WAVES_MOST} waves for more than one tap",
        _SOURCE,
        lambda o: o.op.KH * o.op.KW > 1 and (o.kernel.waves or 1) > CONV_WAVES_MOST,
    ),
)

_MODULE = '''"""TorchInductor configurations of {shape} for {hw}, the best predicted first.

    from torch._inductor.template_heuristics.triton import ROCmConfigHeuristic
    ROCmConfigHeuristic().{attribute} = CONFIGS
"""

from torch._inductor.template_heuristics.triton import {name}

CONFIGS = [
{configs}
]
'''


def arguments_of(offer: Offer) -> dict[str, Any]:
    """Arguments of a ROCmGemmConfig."""
    k = offer.kernel
    return _arguments(offer, {"block_m": k.tile_m, "block_n": k.tile_n, "block_k": k.tile_k}, k.group_m or 1)


def _conv2d_arguments(offer: Conv2dOffer) -> dict[str, Any]:
    """Arguments of a ROCmConvConfig: blocks of pixels, output channels and channels of a tap."""
    k = offer.kernel
    return _arguments(offer, {"block_m": k.tile_m, "block_n": k.tile_n, "block_k": k.tile_k})


def _attention_arguments(offer: AttentionOffer) -> dict[str, Any]:
    """Arguments of a ROCmFlexConfig: blocks of queries and keys."""
    k = offer.kernel
    return _arguments(offer, {"block_m": k.block_q, "block_n": k.tile_kv})


def _arguments(offer: Any, blocks: dict[str, Any], group_m: int | None = None) -> dict[str, Any]:
    k = offer.kernel
    return {
        **blocks,
        "num_stages": k.stages or 2,
        "num_warps": k.waves,
        **({} if group_m is None else {"group_m": group_m}),
        "matrix_instr_nonkdim": k.mfma_m,
        "waves_per_eu": k.waves_per_simd or 0,
        "kpack": kpack(offer.hw),
    }


def _module(offers: tuple[Any, ...], name: str, attribute: str, shape: str, arguments: Callable[[Any], Any]) -> str:
    calls = []
    for offer in offers:
        inner = ", ".join(f"{word}={value!r}" for word, value in arguments(offer).items())
        calls.append(f"    {name}({inner}),")
    return _MODULE.format(shape=shape, hw=offers[0].hw, attribute=attribute, name=name, configs="\n".join(calls))


def _write(offers: tuple[Offer, ...]) -> str:
    op = offers[0].op
    shape = f"gemm M={op.M} N={op.N} K={op.K} {op.dtype} {op.layout}"
    return _module(offers, "ROCmGemmConfig", "mm_configs", shape, arguments_of)


def _write_conv2d(offers: tuple[Conv2dOffer, ...]) -> str:
    return _module(offers, "ROCmConvConfig", "conv_configs", shape_of_conv2d(offers[0]), _conv2d_arguments)


def _write_attention(offers: tuple[AttentionOffer, ...]) -> str:
    attribute = "flex_attn_fwd_autotune_configs"
    return _module(offers, "ROCmFlexConfig", attribute, shape_of_attention(offers[0]), _attention_arguments)


def calls_of(text: str, name: str) -> list[dict[str, Any]]:
    """Arguments of every configuration of that class in a module; BadInput where it has none."""
    calls = keywords_of_calls(text, name)
    if not calls:
        raise BadInput(f"no {name} in this module")
    return calls


def _terms(words: dict[str, Any]) -> dict[str, Any]:
    """What every class says beside the blocks."""
    return {
        "mfma_m": words["matrix_instr_nonkdim"] or None,
        "waves": words["num_warps"],
        "stages": words["num_stages"],
        "waves_per_simd": words["waves_per_eu"] or None,
    }


def _blocks(words: dict[str, Any]) -> dict[str, Any]:
    return {f"tile_{axis}": words[f"block_{axis}"] for axis in "mnk"}


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    calls = calls_of(text, "ROCmGemmConfig")
    return tuple(Kernel(**_blocks(words), **_terms(words), group_m=words["group_m"]) for words in calls)


def _read_conv2d(text: str, hw: HardwareDescriptor) -> tuple[Conv2dKernel, ...]:
    return tuple(Conv2dKernel(**_blocks(words), **_terms(words)) for words in calls_of(text, "ROCmConvConfig"))


def _read_attention(text: str, hw: HardwareDescriptor) -> tuple[AttentionKernel, ...]:
    return tuple(
        AttentionKernel(block_q=words["block_m"], tile_kv=words["block_n"], **_terms(words))
        for words in calls_of(text, "ROCmFlexConfig")
    )


#: Queries and keys of a block of a mask, unless its maker gives others.
MASK_BLOCK = 128


def _masked(offer: AttentionOffer) -> tuple[str, ...]:
    """What a block mask must be for the kernel; it skips configurations whose blocks do not divide the mask's."""
    k = offer.kernel
    if MASK_BLOCK % k.block_q == 0 and MASK_BLOCK % k.tile_kv == 0:
        return ()
    return (f"with a block mask, give it a BLOCK_SIZE of multiples of {k.block_q} queries and {k.tile_kv} keys",)


_CARRIES = ("mfma_m", "waves", "stages", "waves_per_simd")
_FILE = ("inductor", "TorchInductor", ".py")
TOOL = Tool(*_FILE, (*_CARRIES, "group_m"), _RULES, _write, _read, words=partial(calls_of, name="ROCmGemmConfig"))
CONV2D = Conv2dTool(
    *_FILE, _CARRIES, _CONV2D_RULES, _write_conv2d, _read_conv2d, words=partial(calls_of, name="ROCmConvConfig")
)
ATTENTION = AttentionTool(
    *_FILE,
    _CARRIES,
    ATTENTION_RULES,
    _write_attention,
    _read_attention,
    remarks=_masked,
    words=partial(calls_of, name="ROCmFlexConfig"),
)
