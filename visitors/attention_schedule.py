"""How the softmax of a step is spread under its two products, in issue slots.

A wave issues one instruction every four clocks, and an MFMA of p passes leaves p - 1 slots for others. The
exponentials of step t go in equal parts under the first product of step t + 1 and the second one of step t, which needs
them chunk by chunk. With the transposition of V under the former and the maxima under the latter both carry about the
same: of the splits that were compiled (d = 64 and 128, 16 bits, gfx942 and gfx950) halves gave the highest MFMA share.
"""

from __future__ import annotations

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.attention import Attention, AttentionTiles

from .formula import ceil_div

__all__ = ["early_pairs", "keys_of_v_block", "pair_slots"]

#: Keys of the block of V that a thread transposes; the first of these that leaves no thread without a block.
V_BLOCK_KEYS = (8, 4, 2)


def keys_of_v_block(tile_kv: int, d_pad: int, dv_run: int, threads: int) -> int:
    """Keys of the block of V, dv_run columns wide, that a thread of a 16-bit kernel transposes.

    >>> keys_of_v_block(64, 128, 4, 256), keys_of_v_block(64, 96, 4, 256)
    (8, 2)
    """
    for keys in V_BLOCK_KEYS:
        if tile_kv * d_pad % (keys * dv_run * threads) == 0:
            return keys
    return V_BLOCK_KEYS[0]


def pair_slots(op: Attention, hw: HardwareDescriptor) -> int:
    """Instructions for the exponentials of two scores: shift, scale, power, sum, and rounding to 16 bits.

    Packed f32 arithmetic counts as scalar: beside an MFMA the compiler splits it.
    """
    rounding = {4: 0, 2: 3, 1: 1}[dtype(op.p_dtype).bytes]
    if rounding and hw.has_cvt_pk_bf16_f32:
        rounding = 1
    return (5 if hw.has_packed_f32 else 6) + rounding


def early_pairs(op: Attention, tiles: AttentionTiles) -> int:
    """Pairs of exponentials of a step under the first product, in whole chunks; all where P goes through LDS."""
    layout = tiles.layout(op)
    chunks = layout.registers // layout.vec
    early = ceil_div(chunks, 2) if op.variant == "chained" else chunks
    return early * layout.vec // 2 * tiles.query_tiles
