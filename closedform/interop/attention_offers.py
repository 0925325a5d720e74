"""Kernels of attention to export: the closed form's, or a ranked list of the model's, each a full derivation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.attention import VARIANTS, Attention, AttentionTiles
from closedform.operators.operator import described

from .attention_kernel import AttentionKernel
from .tool import Format, Proposal

__all__ = [
    "AttentionOffer",
    "AttentionTool",
    "attention_kernel_of",
    "attention_offer",
    "attention_us",
    "ranked_attention",
]


class AttentionOffer(Proposal[Attention, AttentionKernel]):
    """A kernel for fused attention."""

    __slots__ = ()

    def timed(self, kernel: AttentionKernel) -> float | None:
        return attention_us(self.op, self.hw, kernel)


class AttentionTool(Format[AttentionOffer, AttentionKernel]):
    """A tool's format for fused attention."""

    __slots__ = ()
    noun = "attention"
    tile = ("block_q", "tile_kv")
    field_of_knob: ClassVar[Mapping[str, str]] = {"tile_q": "block_q", "atom": "mfma"}

    def bare(self, kernel: AttentionKernel, hw: HardwareDescriptor) -> AttentionOffer:
        return AttentionOffer(Attention(1, 1, 1, dtype=kernel.dtype or "f16"), hw, kernel)

    def parts(self, op: Attention) -> Mapping[str, bool]:
        told = described(op)
        return {"variant": op.variant != VARIANTS[0], **{name: name in told for name in op.optional}}


def attention_kernel_of(op: Attention, tiles: AttentionTiles) -> AttentionKernel:
    """The kernel of a derivation. Tiles under way are one in LDS and one in registers."""
    from closedform.predict.step import STAGED_BUFFERS

    atom = tiles.atom
    return AttentionKernel(
        block_q=tiles.block_q,
        tile_kv=tiles.tile_kv,
        dtype=op.dtype,
        mfma=(atom.m, atom.n, atom.k, atom.blocks),
        waves=tiles.waves,
        stages=STAGED_BUFFERS,
        waves_per_simd=tiles.waves_per_simd,
    )


def attention_us(op: Attention, hw: HardwareDescriptor, k: AttentionKernel) -> float | None:
    """Microseconds of the kernel by the latency model; None where its waves are unknown or the GPU does not hold it."""
    from closedform.hw.errors import BadInput, InfeasibleError
    from closedform.predict.attention_answer import predict_attention
    from closedform.predict.step import STAGED_BUFFERS

    if k.waves is None:
        return None
    config: dict[str, Any] = {"tile_q": k.block_q, "tile_kv": k.tile_kv, "waves": k.waves, "stages": STAGED_BUFFERS}
    try:
        return predict_attention(op, hw, **config).latency_us
    except (BadInput, InfeasibleError):
        return None


def attention_offer(op: Attention, hw: HardwareDescriptor, **overrides: Any) -> AttentionOffer:
    """The closed form's kernel with those knobs. Raises BadInput and InfeasibleError as the derivation does."""
    from closedform.visitors.feasibility import derive

    tiles, _, _ = derive(op, hw, **overrides).require()
    kernel = attention_kernel_of(op, tiles)
    return AttentionOffer(op, hw, kernel, attention_us(op, hw, kernel), overrides)


def ranked_attention(op: Attention, hw: HardwareDescriptor) -> Iterator[AttentionOffer]:
    """The kernels that the model ranks first, best first: those of its lattice that the closed form completes."""
    from closedform.hw.errors import BadInput, InfeasibleError
    from closedform.predict.attention_answer import select_attention
    from closedform.visitors.feasibility import derive

    found = select_attention(op, hw, count=10**6)
    for one in (found.best, *found.runners_up):
        rows, waves = one.config["tile_q"], one.config["waves"]
        if rows % waves:
            continue
        knobs: dict[str, Any] = {"tile_q": rows // waves, "tile_kv": one.config["tile_kv"], "waves": waves}
        try:
            tiles, _, _ = derive(op, hw, **knobs).require()
        except (BadInput, InfeasibleError):
            continue
        yield AttentionOffer(op, hw, attention_kernel_of(op, tiles), one.latency_us)
