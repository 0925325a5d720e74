"""Epilogue of an emitted GEMM: alpha, beta, bias, activation, scale, conversion, stores of up to 16 bytes."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["GELU_P", "GELU_T", "conversions", "output"]

_OUTPUT = '''
class Output:
    """The tile of D of a workgroup as one lane holds it: of every atom runs of COLUMN_RUN consecutive columns of a row.

    A part is what a lane holds of one row of atoms and one span of columns: SPAN_ATOMS accumulators in a row.
    """

    def __init__(self, thread, @arguments@, M, N, first_m, first_n, batch, @scalars@):
        wave = fx.Int32(rocdl.readfirstlane(T.i32, thread // 64))
        self.lane, self.wave_m, self.wave_n = thread % 64, wave // WAVES_N, wave % WAVES_N
        self.rows, self.columns = smaller(M - first_m, fx.Int32(TILE_M)), smaller(N - first_n, fx.Int32(TILE_N))
        @kept@
        self.D, self.ld = output_tile(D, batch, first_m, first_n, self.rows, self.columns)
        @before@

    def store(self, acc):
        """Every part, from accumulators in registers."""
        for part in range(PARTS):
            self.store_part(part, acc[part * SPAN_ATOMS : (part + 1) * SPAN_ATOMS])

    def store_part(self, part, acc):
        row, span = part // (PARTS // A_ATOMS), part % (PARTS // A_ATOMS)
        m = (row * WAVES_M + self.wave_m) * ATOM_MN + self.lane % ATOM_MN
        first_n = (span * WAVES_N + self.wave_n) * COLUMN_SPAN + self.lane // ATOM_MN * COLUMN_RUN
        values = [x[e] for x in acc for e in range(ACC)]
        for first in range(0, len(values), STORE):
            n = first_n + (first // COLUMN_RUN * (GROUPS * COLUMN_RUN) + first % COLUMN_RUN)
            out = [@scaled@ for x in values[first : first + STORE]]
            place = (n < self.columns).select(m * self.ld + n, fx.Int32(OUT_OF_RANGE // OUT_BYTES)) * OUT_BYTES
            @finish@
            store(self.D, place, out)
'''

_TILE = '''
def output_tile(tensor, batch, first_m, first_n, rows, columns):
    """Descriptor of a tile of D or C, rebased in 64 bits, and its row stride in elements."""
    ld = stride(tensor, 1)
    start = batch * stride(tensor, 0) + fx.Int64(first_m) * ld + fx.Int64(first_n)
    extent = (fx.Int32(ld) * (rows - 1) + columns) * OUT_BYTES
    return resource(address_of(tensor) + start * OUT_BYTES, extent), fx.Int32(ld)
'''

_STORE = '''
def store(target, place, values):
    """STORE elements of D in one access."""
    raw_ptr_buffer_store(packed(values), target, place.ir_value(), fx.Int32(0).ir_value())
'''


def output(c: bool, bias: str, activation: str, scalars: tuple[str, ...], acc: str, work: str) -> str:
    """The Output class.

    `scalars`: alpha, beta and, where D is an 8-bit float, its scale; `acc` and `work` are the types of the sums and of
    the epilogue.
    """
    finish, before, arguments = [], [], ["D"]
    kept = ", ".join(f"self.{name}" for name in scalars)
    given = ", ".join(scalars)
    if work != ("f64" if acc == "f64" else "f32"):
        given = ", ".join(f"{name}.to(WORK)" for name in scalars)
    if c:
        arguments.append("C")
        before += [
            "# beta = 0 reads nothing of C, which may be NaN",
            "rows_c = (self.beta == WORK(0.0)).select(fx.Int32(0), self.rows)",
            "self.C, self.ld_c = output_tile(C, batch, first_m, first_n, rows_c, self.columns)",
        ]
        finish += [
            "place_c = (n < self.columns).select(m * self.ld_c + n, fx.Int32(OUT_OF_RANGE // OUT_BYTES)) * OUT_BYTES",
            "out = [x + y * self.beta for x, y in zip(out, load_out(self.C, place_c))]",
        ]
    if bias != "none":
        arguments.append("bias")
        first, count = ("first_m", "rows") if bias == "row" else ("first_n", "columns")
        before.append(f"self.bias = bias_tile(bias, batch, {first}, self.{count})")
        index = "[m] * STORE" if bias == "row" else "[n + e for e in range(STORE)]"
        finish.append(f"out = [x + bias_at(self.bias, index) for x, index in zip(out, {index})]")
    if activation != "none":
        finish.append(f"out = [{activation}(x) for x in out]")
    if "scale" in scalars:
        finish.append("out = [x * self.scale for x in out]")
    text = piece(_OUTPUT).replace("@scalars@", ", ".join(scalars)).replace("@kept@", f"{kept} = {given}")
    text = text.replace("@arguments@", ", ".join(arguments))
    text = text.replace("@scaled@", "x.to(WORK) * self.alpha" if acc == "i32" else "x * self.alpha")
    for name, lines, width in (("before", before, 8), ("finish", finish, 12)):
        gap = " " * width
        text = text.replace(f"{gap}@{name}@\n", "".join(f"{gap}{line}\n" for line in lines))
    return text


_RELU = '''
def relu(x):
    """max(x, 0); NaN stays NaN."""
    return (x < WORK(0.0)).select(WORK(0.0), x)
'''

_EXP2 = """
def exp2(x):
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))
"""

_ACTIVATIONS = {
    "none": "",
    "relu": _RELU,
    "silu": '''
def silu(x):
    """x / (1 + exp(-x)), which is 0 in f32 from -128 down: -inf does not become -inf / inf."""
    x = (x < WORK(-128.0)).select(WORK(-128.0), x)
    return x / (exp2(x * WORK(-LOG2_E)) + WORK(1.0))
'''
    + _EXP2,
    "gelu_tanh": '''
def gelu_tanh(x):
    """x Phi(x), in the tanh form: x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))), which is 0 from -16 down."""
    x = (x < WORK(-16.0)).select(WORK(-16.0), x)
    inner = (x + x * x * x * WORK(0.044715)) * WORK(-2.0 * math.sqrt(2.0 / math.pi) * LOG2_E)
    return x / (exp2(inner) + WORK(1.0))
'''
    + _EXP2,
    "gelu": _RELU
    + '''
def gelu(x):
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|), where Phi(-z) = exp(-z^2 / 2) t P(t) with t = 1 / (1 + GELU_T z).

    The error is within 2^-21 |x|, and within 2^-16 of every result that is a normal number.
    """
    z = (x < WORK(0.0)).select(-x, x)
    z = (z > WORK(16.0)).select(WORK(16.0), z)
    t = fx.Float32(rocdl.rcp(T.f32, fx.math.fma(z, WORK(GELU_T), WORK(1.0))))
    tail = WORK(GELU_P[-1])
    for factor in GELU_P[-2::-1]:
        tail = fx.math.fma(tail, t, WORK(factor))
    tail = exp2(z * z * WORK(-0.5 * LOG2_E)) * t * tail
    return relu(x) - z * tail
'''
    + _EXP2,
}

#: Phi(-z) exp(z^2 / 2) = t P(t) with t = 1 / (1 + GELU_T z), factors of P from t^0 on: Lawson's iteration for the least
#: relative error on 0 <= z <= 14, which is 3.1e-8.
GELU_T = 0.34
GELU_P = (
    *(0.135620505, 0.136112198, 0.115197651, 0.115359195, -0.0447185375),
    *(0.202182814, -0.27313289, 0.139499575, -0.0261204932),
)

_PLAIN = '''
def packed(values):
    """The values in the type of D, as one store takes them."""
    out = Vec.from_elements(values, WORK)@convert@
    return @bits@.ir_value()
'''

_WHOLE = '''
def packed(values):
    """The values as whole numbers, to the nearest, ties to even; clamped to the largest ones."""
    out = [fx.math.roundeven(clamped(x)).to(OUT) for x in values]
    out = Vec.from_elements(out, OUT)
    return @bits@.ir_value()


def clamped(x):
    low = (x < WORK(-(2.0**31))).select(WORK(-(2.0**31)), x)
    return (low > WORK(2.0**31 - 1)).select(WORK(2.0**31 - 1), low)
'''

_FP8 = '''
def packed(values):
    """The values in the type of D, clamped to its largest number, four to a word."""
    values = [clamped(x) for x in values] + [WORK(0.0)] * (-len(values) % 4)
    out = []
    for first in range(0, len(values), 4):
        word = fx.Int32(0)
        for half in range(2):
            low, high = values[first + 2 * half], values[first + 2 * half + 1]
            word = fx.Int32(rocdl.@convert@(T.i32, low.ir_value(), high.ir_value(), word.ir_value(), bool(half)))
        out.append(word)
    return @bits@


def clamped(x):
    """Saturated to the largest finite number; NaN stays NaN."""
    low = (x < WORK(-OUT_MAX)).select(WORK(-OUT_MAX), x)
    return (low > WORK(OUT_MAX)).select(WORK(OUT_MAX), low)
'''

_C = '''
def load_out(source, place):
    """STORE elements of C."""
    parts = load(source, [place], STORE * OUT_BYTES)
    return @unpacked@
'''

_BIAS = '''
def bias_tile(tensor, batch, first, count):
    """Descriptor of a tile's part of a [batch, 1, length] vector of f32."""
    start = batch * stride(tensor, 0) + fx.Int64(first)
    return resource(address_of(tensor) + start * 4, count * 4)


def bias_at(source, index):
    return fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, source, index * 4, fx.Int32(0), 0)).bitcast(fx.Float32)@work@
'''


def conversions(
    c: bool, bias: str, activation: str, out: str, work: str, out_bytes: int, store: int, tiled: bool = True
) -> str:
    """Helpers of the epilogue, which computes in the type `work`, for a type of D and stores of `store` elements.

    `tiled`: D is a [batch, rows, columns] tensor, whose tiles have descriptors.
    """
    whole = out_bytes * store >= 4
    narrow = "fx.Int16" if out_bytes * store == 2 else "fx.Int8"
    bits = "out.bitcast(fx.Int32)" if out_bytes * store > 4 else "out.bitcast(fx.Int32)[0]"
    bits = bits if whole else f"out.bitcast({narrow})[0]"
    unpacked = "[chunk_of(parts).bitcast(OUT)[e].to(WORK) for e in range(STORE)]"
    if out.startswith(("fp8", "bf8")):
        family = out[:3]
        bits = "chunk_of(out).ir_value()" if store > 4 else "out[0].ir_value()"
        bits = bits if whole else f"out[0].to({narrow}).ir_value()"
        packed = piece(_FP8).replace("@convert@", f"cvt_pk_{family}_f32").replace("@bits@", bits)
        widened = f"rocdl.cvt_f32_{family}(T.f32, parts[e // 4].ir_value(), e % 4)"
        unpacked = f"[fx.Float32({widened}) for e in range(STORE)]"
    elif out == "i32":
        packed = piece(_WHOLE).replace("@bits@", bits)
    else:
        packed = piece(_PLAIN).replace("@convert@", "" if out == work else ".to(OUT)").replace("@bits@", bits)
    return join(
        packed,
        piece(_TILE) if tiled else "",
        piece(_STORE),
        piece(_C).replace("@unpacked@", unpacked) if c else "",
        piece(_BIAS).replace("@work@", ".to(WORK)" if work == "f64" else "") if bias != "none" else "",
        piece(_ACTIVATIONS[activation]),
    )
