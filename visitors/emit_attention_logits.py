"""From scores to logits in emitted attention: factor, soft cap, bias and ALiBi. Without them the softmax scales."""

from __future__ import annotations

from .emit_attention_form import Form
from .emit_text import fill, join, piece

__all__ = ["functions", "methods", "numbers", "steps", "tensors"]

_CAPPED = '''
def capped(x, cap, steepness):
    """cap tanh(x / cap), with steepness = 2 log2(e) / cap: exact at both infinities.

    Below a quarter of the cap by a polynomial, where the difference from the cap would cancel.
    """
    y = x * (steepness * (1.0 / (2.0 * LOG2_E)))
    square = y * y
    series = square * (square * (square * (-17.0 / 315.0) + 2.0 / 15.0) - 1.0 / 3.0)
    large = cap - (cap + cap) * fx.Float32(rocdl.rcp(T.f32, (exp2(x * steepness) + 1.0).ir_value()))
    return (fx.absf(y) < fx.Float32(0.25)).select(x + x * series, large)
'''

_SLOPE = '''
def slope_of(slopes, head):
    """The slope of a head, the same for all lanes."""
    source = resource(fx.Int64(fx.ptrtoint(fx.get_iter(slopes))) + head * 4, fx.Int64(4))
    return fx.Float32(rocdl.raw_ptr_buffer_load(T.f32, source, fx.Int32(0), fx.Int32(0), 0))
'''

_FETCH_BIAS = '''
def fetch_bias(self, tile):
    """The bias of this lane's scores of a tile, in the order of KEY, and the operations that load it."""
    row_stride = stride(self.BIAS, 2)
    first = self.batch * stride(self.BIAS, 0) + self.head * stride(self.BIAS, 1) + self.first_row * row_stride
    extent = ((self.rows - 1) * row_stride + fx.Int64(self.L_kv)) * 4
    address = fx.Int64(fx.ptrtoint(fx.get_iter(self.BIAS))) + first * 4
    source = resource(address, (self.rows > fx.Int64(0)).select(extent, fx.Int64(0)))
    key, bias = @number@ * TILE_KV + KEY_GROUP * self.group, [[] for _ in range(Q_TILES)]

    def fetch(n, i):
        element = (n * ATOM_N + self.column) * fx.Int32(row_stride) + key + KEY[i]
        loaded = rocdl.raw_ptr_buffer_load(Vec.make_type(BIAS_RUN, fx.Float32), source, element * 4, fx.Int32(0), 0)
        bias[n] += [fx.Float32(Vec(loaded)[e]) for e in range(BIAS_RUN)]

    places = [(n, i) for i in range(0, KEY_TILES * ACC, BIAS_RUN) for n in range(Q_TILES)]
    return bias, [(VMEM_READ, 1, 1, partial(fetch, *place)) for place in places]
'''

_LOGITS = '''
def logits(self, scores, @parameters@):
    """Operations that turn the scores of a tile into logits: @what@."""
    made = [[] for _ in range(Q_TILES)]
    @distance@

    def pair(n, i):
        tile, r = scores[n][i // ACC], i % ACC
        for e in range(2):
            x = fx.Float32(tile[r + e]) * self.scale
            @cap@
            @bias@
            @alibi@
            made[n].append(x)
        if len(made[n]) % ACC == 0:
            scores[n][i // ACC] = Vec.from_elements(made[n][-ACC:], fx.Float32)

    return [(FREE, 0, @slots@, partial(pair, n, i)) for i in range(0, KEY_TILES * ACC, 2) for n in range(Q_TILES)]
'''

_DISTANCE = """
first = @number@ * TILE_KV + KEY_GROUP * self.group
position = self.first_row + self.column + self.L_kv - self.L_q - first
away = [(position + n * ATOM_N).to(fx.Float32) for n in range(Q_TILES)]
"""


def tensors(form: Form) -> tuple[str, ...]:
    """Tensors that logits are made with."""
    return (*(("BIAS",) if form.op.bias else ()), *(("SLOPES",) if form.op.alibi else ()))


def numbers(form: Form) -> tuple[str, ...]:
    """Numbers beside the scale: the cap of the logits, the scale of 8-bit values."""
    return (*(("cap",) if form.op.softcap is not None else ()), *(("v_scale",) if form.narrow else ()))


def functions(form: Form) -> str:
    """Functions of the soft cap and of ALiBi."""
    return join(piece(_CAPPED) if form.op.softcap is not None else "", piece(_SLOPE) if form.op.alibi else "")


def methods(form: Form) -> str:
    """Methods of the wave."""
    if not form.op.has_logits:
        return ""
    parts = ["the factor"]
    parts += ["cap tanh(x / cap)"] if form.op.softcap is not None else []
    parts += ["the bias"] if form.op.bias else []
    parts += ["minus slope times distance"] if form.op.alibi else []
    slots = 2 + (10 if form.op.softcap is not None else 0) + (2 if form.op.bias else 0) + (4 if form.op.alibi else 0)
    arguments = (*(("tile",) if form.op.alibi else ()), *(("bias",) if form.op.bias else ()))
    text = fill(
        piece(_LOGITS),
        {
            "parameters": ", ".join(arguments),
            "what": ", ".join(parts),
            "distance": fill(piece(_DISTANCE), {"number": form.number("tile")}) if form.op.alibi else "",
            "cap": "x = capped(x, self.cap, self.steepness)" if form.op.softcap is not None else "",
            "bias": "x = x + bias[n][i + e]" if form.op.bias else "",
            "alibi": "x = x - self.slope * fx.absf(away[n] - float(KEY[i + e]))" if form.op.alibi else "",
            "slots": str(slots),
        },
    ).replace("scores, )", "scores)")
    bias = fill(piece(_FETCH_BIAS), {"number": form.number("tile")}) if form.op.bias else ""
    return join(bias, text, blank=1)


def steps(form: Form) -> dict[str, str]:
    """Lines of the pipeline: loads of the bias under the first product, logits ahead of their maxima."""
    maxima = "others = loads + spread(exponentials[EARLY_PAIRS:] + self.maxima(later, top), writes)"
    values = ["self.v_scale = v_scale"] if form.narrow else []
    texts = dict.fromkeys(("first_bias", "first_bias_loads", "first_logits", "next_bias"), "")
    if not form.op.has_logits:
        factors = ["self.log2_scale = scale * LOG2_E", *values]
        return {**texts, "softmax": maxima, "factors": "\n".join(factors)}
    first, later = (
        ", ".join([*([tile] if form.op.alibi else []), *(["bias"] if form.op.bias else [])])
        for tile in ("fx.Int32(0)", "tile + 1")
    )
    if form.op.bias:
        texts |= {
            "first_bias": "bias, bias_loads = self.fetch_bias(fx.Int32(0))",
            "first_bias_loads": " + bias_loads",
            "next_bias": "bias, bias_loads = self.fetch_bias(tile + 1)\nloads = loads + bias_loads",
        }
    factors = ["self.scale, self.log2_scale = scale, fx.Float32(LOG2_E)"]
    if form.op.softcap is not None:
        factors.append("self.cap, self.steepness = cap, (2.0 * LOG2_E) / cap")
    if form.op.alibi:
        factors.append("self.slope, self.L_q = slope_of(SLOPES, self.head), L_q")
    factors += values
    factors += ["self.BIAS = BIAS"] if form.op.bias else []
    first, later = (f", {text}" if text else "" for text in (first, later))
    softmax = f"softmax = self.logits(later{later}) + self.maxima(later, top)"
    return {
        **texts,
        "first_logits": f"self.logits(scores{first}) + ",
        "softmax": f"{softmax}\nothers = loads + spread(exponentials[EARLY_PAIRS:] + softmax, writes)",
        "factors": "\n".join(factors),
    }
