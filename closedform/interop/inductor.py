"""TorchInductor on ROCm: the configuration classes of its GEMM templates, as a Python module."""

from __future__ import annotations

from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .kernel import Kernel
from .python_text import keywords_of_calls
from .rules import Rule
from .tool import Offer, Tool
from .triton import BACKEND_RULES, kpack

__all__ = ["TOOL", "arguments_of"]

_SOURCE = "torch/_inductor/template_heuristics/triton.py"
#: Elements of a block for each wave: a Config with more waves is given fewer.
ELEMENTS_PER_WAVE = 256

_RULES: tuple[Rule[Offer], ...] = (
    *BACKEND_RULES,
    Rule(
        "waves",
        f"at most BLOCK_M x BLOCK_N / {ELEMENTS_PER_WAVE} waves",
        _SOURCE,
        lambda o: (o.kernel.waves or 1) > o.kernel.tile_m * o.kernel.tile_n // ELEMENTS_PER_WAVE,
    ),
    Rule("split", "its templates do not split the sum", _SOURCE, lambda o: (o.kernel.split_k or 1) > 1),
)

_MODULE = '''"""TorchInductor configurations of gemm {shape} for {hw}, the best predicted first.

    from torch._inductor.template_heuristics.triton import ROCmConfigHeuristic
    ROCmConfigHeuristic().mm_configs = CONFIGS
"""

from torch._inductor.template_heuristics.triton import ROCmGemmConfig

CONFIGS = [
{configs}
]
'''


def arguments_of(offer: Offer) -> dict[str, Any]:
    """Arguments of a ROCmGemmConfig."""
    k = offer.kernel
    return {
        "block_m": k.tile_m,
        "block_n": k.tile_n,
        "block_k": k.tile_k,
        "num_stages": k.stages or 2,
        "num_warps": k.waves,
        "group_m": k.group_m or 1,
        "matrix_instr_nonkdim": k.mfma_m,
        "waves_per_eu": k.waves_per_simd or 0,
        "kpack": kpack(offer.hw),
    }


def _write(offers: tuple[Offer, ...]) -> str:
    op, hw = offers[0].op, offers[0].hw
    calls = []
    for offer in offers:
        inner = ", ".join(f"{name}={value!r}" for name, value in arguments_of(offer).items())
        calls.append(f"    ROCmGemmConfig({inner}),")
    shape = f"M={op.M} N={op.N} K={op.K} {op.dtype} {op.layout}"
    return _MODULE.format(shape=shape, hw=hw, configs="\n".join(calls))


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    calls = keywords_of_calls(text, "ROCmGemmConfig")
    if not calls:
        raise BadInput("no ROCmGemmConfig in this module")
    return tuple(_kernel(words) for words in calls)


def _kernel(words: dict[str, Any]) -> Kernel:
    return Kernel(
        tile_m=words["block_m"],
        tile_n=words["block_n"],
        tile_k=words["block_k"],
        mfma_m=words["matrix_instr_nonkdim"] or None,
        waves=words["num_warps"],
        stages=words["num_stages"],
        group_m=words["group_m"],
        waves_per_simd=words["waves_per_eu"] or None,
    )


TOOL = Tool(
    "inductor",
    "TorchInductor",
    ".py",
    ("mfma_m", "waves", "stages", "group_m", "waves_per_simd"),
    _RULES,
    _write,
    _read,
)
