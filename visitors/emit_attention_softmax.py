"""The online softmax of emitted attention: mask, maximum, lazy rescaling, exponentials."""

from __future__ import annotations

from .emit_text import fill, join, piece

__all__ = ["softmax"]

_ACROSS = '''
def across_groups(value, combine):
    """Combines the lanes that hold the same query: one per lane group."""
    for g in range(GROUPS.bit_length() - 1):
        value = combine(value, gpu.shuffle_xor(value, ATOM_N << g, 64))
    return value
'''

_EXP2 = """
def exp2(x):
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))
"""

_ROUNDED = {
    "none": "",
    "round": '''
def rounded(values):
    """f32 to the input type, nearest even."""
    return Vec.from_elements(values, fx.Float32).to(DTYPE)
''',
    "bytes": '''
def rounded(values):
    """f32 to 8 bits, nearest even, four to a word."""
    words = []
    for i in range(0, len(values), 4):
        word = fx.Int32(0)
        for half in range(2):
            low, high = (x.ir_value() for x in values[i + 2 * half : i + 2 * half + 2])
            word = fx.Int32(rocdl.cvt_pk_fp8_f32(T.i32, low, high, word.ir_value(), bool(half)))
        words.append(word)
    return Vec.from_elements(words, fx.Int32)
''',
    "bits": '''
def rounded(values):
    """Non-negative f32 to bf16, nearest, ties away from zero: half an ulp is added, high halves kept."""
    words = []
    for low, high in zip(values[::2], values[1::2], strict=True):
        low, high = (x.bitcast(fx.Int32) + 0x8000 for x in (low, high))
        words.append(fx.Int32(rocdl.perm_b32(high, low, 0x07060302)))
    return Vec.from_elements(words, fx.Int32).bitcast(DTYPE)
''',
}

_LARGER = '''
def larger(top, tile, r):
    """The maximum and two scores of a tile. A NaN is passed over here; the exponentials show it."""
    return fx.maxnumf(fx.maxnumf(top, fx.Float32(tile[r])), fx.Float32(tile[r + 1]))
'''

_RAISED = '''
@flyc.jit
def raised(top, m, l, acc, log2_scale):
    """(m, l, acc) with the maximum raised, and what was summed rescaled, if that of a query grew past HEADROOM.

    m is one of the scores so far, and every exponential is at most 2^HEADROOM. It is -inf until a visible key comes.
    """
    grown = (top[0] - m[0]) * log2_scale > fx.Float32(HEADROOM)
    for n in range_constexpr(1, Q_TILES):
        grown = grown | ((top[n] - m[n]) * log2_scale > fx.Float32(HEADROOM))
    if fx.Int64(rocdl.ballot(T.i64, grown.ir_value())) != fx.Int64(0):
        m, l, acc = rescaled_state(top, m, l, acc, log2_scale)
    return m, l, acc
'''

_RESCALED_STATE = """
def rescaled_state(top, m, l, acc, log2_scale):
    new = [fx.maxnumf(a, b) for a, b in zip(m, top, strict=True)]
    factors = [exp2((a - finite(b)) * log2_scale) for a, b in zip(m, new, strict=True)]
    return new, [a * b for a, b in zip(l, factors, strict=True)], rescaled(acc, factors)
"""

_FINITE = '''
def finite(m):
    """0 in place of -inf: no difference of infinities is formed, what is not visible contributes exactly 0."""
    return (m == fx.Float32(NEG_INF)).select(fx.Float32(0.0), m)
'''

_LOG2 = """
def log2(x):
    return fx.Float32(rocdl.log(T.f32, x.ir_value()))
"""

_POWERS = '''
def powers(tile, r, shift, log2_scale):
    """2^((s - m) c) of two scores. They are shifted before they are scaled: rounding m c first would leave a residue
    at the maximum that grows with the logits."""
    scaled = (tile.shuffle(tile, [r, r + 1]) - shift) * log2_scale@peak@
    return [exp2(fx.Float32(scaled[i])) for i in range(2)]
'''


def softmax(convert: str, mask: str, lse: bool) -> str:
    """Functions of the softmax. `convert`: how P is rounded, "none", "round", "bits" (bf16 by hand) or "bytes"; `mask`:
    its functions; `lse`: sums are a result."""
    before, after = (_ACROSS, _EXP2, _ROUNDED[convert]), (_LARGER, _FINITE, _RESCALED_STATE, _RAISED)
    powers = fill(piece(_POWERS), {"peak": " + PEAK" if convert == "bytes" else ""})
    return join(*map(piece, before), mask, *map(piece, after), powers, piece(_LOG2) if lse else "")
