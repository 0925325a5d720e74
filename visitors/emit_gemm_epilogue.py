"""Epilogue of an emitted GEMM: alpha, beta, bias, activation, conversion, stores of up to 16 bytes."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["conversions", "output"]

_OUTPUT = '''
class Output:
    """The tile of D of a workgroup as one lane holds it: of every atom runs of COLUMN_RUN consecutive columns of a row.

    A part is what a lane holds of one row of atoms and one span of columns: SPAN_ATOMS accumulators in a row.
    """

    def __init__(self, thread, @arguments@, M, N, first_m, first_n, batch, alpha, beta):
        wave = fx.Int32(rocdl.readfirstlane(T.i32, thread // 64))
        self.lane, self.wave_m, self.wave_n = thread % 64, wave // WAVES_N, wave % WAVES_N
        self.rows, self.columns = smaller(M - first_m, fx.Int32(TILE_M)), smaller(N - first_n, fx.Int32(TILE_N))
        self.alpha, self.beta = alpha, beta
        self.D, self.ld = output_tile(D, batch, first_m, first_n, self.rows, self.columns)
        @tiles@

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


def store(target, place, values):
    """STORE elements of D in one access."""
    raw_ptr_buffer_store(@packed@, target, place.ir_value(), fx.Int32(0).ir_value())
'''


def output(c: bool, bias: str, activation: str, scaled: str) -> str:
    """The Output class. `scaled`: self.alpha times the accumulator `x`, as an expression."""
    finish, tiles, arguments = [], [], ["D"]
    if c:
        arguments.append("C")
        tiles.append("self.C, self.ld_c = output_tile(C, batch, first_m, first_n, self.rows, self.columns)")
        finish += [
            "place_c = (n < self.columns).select(m * self.ld_c + n, fx.Int32(OUT_OF_RANGE // OUT_BYTES)) * OUT_BYTES",
            "out = [x + scaled_c(y, self.beta) for x, y in zip(out, load_out(self.C, place_c))]",
        ]
    if bias != "none":
        arguments.append("bias")
        first, count = ("first_m", "rows") if bias == "row" else ("first_n", "columns")
        tiles.append(f"self.bias = bias_tile(bias, batch, {first}, self.{count})")
        index = "[m] * STORE" if bias == "row" else "[n + e for e in range(STORE)]"
        finish.append(f"out = [x + bias_at(self.bias, index) for x, index in zip(out, {index})]")
    if activation != "none":
        finish.append(f"out = [{activation}(x) for x in out]")
    text = piece(_OUTPUT).replace("@arguments@", ", ".join(arguments)).replace("@scaled@", scaled)
    for name, lines, width in (("tiles", tiles, 8), ("finish", finish, 12)):
        gap = " " * width
        text = text.replace(f"{gap}@{name}@\n", "".join(f"{gap}{line}\n" for line in lines))
    return text


_ACTIVATIONS = {
    "none": "",
    "relu": '''
def relu(x):
    """max(x, 0); NaN stays NaN."""
    return (x < SCALAR(0.0)).select(SCALAR(0.0), x)
''',
    "silu": '''
def silu(x):
    """x / (1 + exp(-x))."""
    return x / (exp2(x * SCALAR(-LOG2_E)) + SCALAR(1.0))


def exp2(x):
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))
''',
    "gelu": '''
def gelu(x):
    """x Phi(x), in the tanh form: x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))."""
    inner = (x + x * x * x * SCALAR(0.044715)) * SCALAR(-2.0 * math.sqrt(2.0 / math.pi) * LOG2_E)
    return x / (exp2(inner) + SCALAR(1.0))


def exp2(x):
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))
''',
}

_PLAIN = '''
def packed(values):
    """The values in the type of D, as one store takes them."""
    out = Vec.from_elements(values, @scalar@)@convert@
    return @bits@.ir_value()
'''

_FP8 = '''
def packed(values):
    """The values in the type of D, clamped to its largest number, four to a word."""
    values = [clamped(x) for x in values] + [SCALAR(0.0)] * (-len(values) % 4)
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
    low = (x < SCALAR(-OUT_MAX)).select(SCALAR(-OUT_MAX), x)
    return (low > SCALAR(OUT_MAX)).select(SCALAR(OUT_MAX), low)
'''

_C = '''
def load_out(source, place):
    """STORE elements of C."""
    parts = load(source, [place], STORE * OUT_BYTES)
    return @unpacked@


def scaled_c(value, beta):
    """beta C, and 0 where beta is 0 whatever C holds."""
    return (beta == SCALAR(0.0)).select(SCALAR(0.0), value * beta)
'''

_BIAS = '''
def bias_tile(tensor, batch, first, count):
    """Descriptor of a tile's part of a [batch, 1, length] vector of f32."""
    start = batch * stride(tensor, 0) + fx.Int64(first)
    return resource(address_of(tensor) + start * 4, count * 4)


def bias_at(source, index):
    return fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, source, index * 4, fx.Int32(0), 0)).bitcast(fx.Float32)
'''


def conversions(c: bool, bias: str, activation: str, out: str, out_bytes: int, store: int) -> str:
    """Helpers of the epilogue for a type of D and a store of `store` elements."""
    whole = out_bytes * store >= 4
    narrow = "fx.Int16" if out_bytes * store == 2 else "fx.Int8"
    if out.startswith(("fp8", "bf8")):
        convert = "cvt_pk_fp8_f32" if out.startswith("fp8") else "cvt_pk_bf8_f32"
        bits = "chunk_of(out).ir_value()" if store > 4 else "out[0].ir_value()"
        bits = bits if whole else f"out[0].to({narrow}).ir_value()"
        packed = piece(_FP8).replace("@convert@", convert).replace("@bits@", bits)
    else:
        convert = ".to(OUT)" if out in ("f16", "bf16") else ""
        bits = "out.bitcast(fx.Int32)" if out_bytes * store > 4 else "out.bitcast(fx.Int32)[0]"
        bits = bits if whole else f"out.bitcast({narrow})[0]"
        scalar = "fx.Int32" if out == "i32" else "SCALAR"
        packed = piece(_PLAIN).replace("@convert@", convert).replace("@bits@", bits).replace("@scalar@", scalar)
    unpacked = {
        "f32": "[x.bitcast(fx.Float32) for x in parts]",
        "f64": "[chunk_of(parts).bitcast(fx.Float64)[e] for e in range(STORE)]",
    }.get(out, "[chunk_of(parts).bitcast(OUT)[e].to(SCALAR) for e in range(STORE)]")
    return join(
        packed,
        piece(_TILE).replace("@packed@", "packed(values)"),
        piece(_C).replace("@unpacked@", unpacked) if c else "",
        piece(_BIAS) if bias != "none" else "",
        piece(_ACTIVATIONS[activation]),
    )
