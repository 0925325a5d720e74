"""Vector instructions, one by one, against exact arithmetic on Python integers and fractions.

Operands are random and edge bit patterns (zeros of both signs, denormals, infinities, NaNs, extremes). Half of the
lanes are off, and must keep what they had.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest

from closedform.hw.sim import Out, parse_text, run
from closedform.hw.sim.testing import kernel_text
from closedform.hw.sim.valu_table import VALU

M32, M64 = 2**32 - 1, 2**64 - 1
FORMATS = {"f16": (11, -14, 15, "<e", "<H"), "f32": (24, -126, 127, "<f", "<I"), "f64": (53, -1022, 1023, "<d", "<Q")}
SENTINEL = 0x5A5A5A5A
GROUPS = 4
OFF = 0x5555555555555555


# --- exact arithmetic --------------------------------------------------------------------------------------------
def rounded(value, kind, negative_zero=False):
    """A fraction to the nearest number of the format, ties to even, as a Python float (exact for all three)."""
    digits, low, high = FORMATS[kind][:3]
    if value == 0:
        return -0.0 if negative_zero else 0.0
    size, sign = abs(value), -1.0 if value < 0 else 1.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, low) - digits + 1)
    count = round(size / quantum)
    result = count * quantum
    if result >= Fraction(2) ** (high + 1):
        return sign * math.inf
    return sign * float(result)


def exact(function, kind):
    """`function` on fractions, rounded once; on Python floats where an operand is not finite or the result is zero."""

    def run_exact(*args):
        if all(math.isfinite(a) for a in args):
            value = function(*(Fraction(a) for a in args))
            return rounded(value, kind, value == 0 and math.copysign(1, function(*args)) < 0)
        try:
            return function(*args)
        except (OverflowError, ValueError):
            return math.nan

    return run_exact


def number(a, b):
    """IEEE minNum rule: what to do with a NaN."""
    return b if math.isnan(a) else a if math.isnan(b) else None


def smaller(a, b):
    return number(a, b) if math.isnan(a) or math.isnan(b) else min(a, b)


def larger(a, b):
    return number(a, b) if math.isnan(a) or math.isnan(b) else max(a, b)


def middle(a, b, c):
    if any(math.isnan(x) for x in (a, b, c)):
        return smaller(smaller(a, b), c)
    return sorted((a, b, c))[1]


def to_integer(low, high, mode=math.trunc):
    def convert(a):
        if math.isnan(a):
            return 0
        return low if a <= low else high if a >= high else min(max(mode(a), low), high)

    return convert


def tie_even(a):
    return round(Fraction(a)) if math.isfinite(a) else a


def same_sign(function):
    """Rounding to a whole number keeps the sign of zero."""
    return lambda a: math.copysign(float(function(a)), a) if math.isfinite(a) else a


def fraction_part(kind):
    digits = FORMATS[kind][0]
    below_one = 1 - Fraction(1, 2**digits)

    def part(a):
        if not math.isfinite(a):
            return math.nan
        return float(min(Fraction(rounded(Fraction(a) - math.floor(a), kind)), below_one))

    return part


def flush(a, kind="f32"):
    return math.copysign(0.0, a) if math.isfinite(a) and 0 < abs(a) < 2.0 ** FORMATS[kind][1] else a


def unit(function):
    """A transcendental: denormals flushed on both sides, special values by Python or NaN."""

    def call(a):
        try:
            return function(flush(a))
        except OverflowError:
            return math.inf
        except (ValueError, ZeroDivisionError):
            return special(function, flush(a))

    return call


def special(function, a):
    if math.isnan(a) or a < 0:
        return math.nan
    return math.copysign(math.inf, a) if function is not math.log2 else -math.inf


def reciprocal(a):
    return math.copysign(math.inf, a) if a == 0 else 1 / a


def inverse_root(a):
    return math.copysign(math.inf, a) if a == 0 else 1 / math.sqrt(a)


def i32(a):
    return (a & M32) - (1 << 32) if a & 0x80000000 else a & M32


def i16(a):
    return (a & 0xFFFF) - (1 << 16) if a & 0x8000 else a & 0xFFFF


def pick(a, b, c):
    data = struct.pack("<II", b, a)
    signs = {8: 1, 9: 3, 10: 5, 11: 7}
    out = []
    for code in struct.pack("<I", c):
        if code < 8:
            out.append(data[code])
        elif code < 12:
            out.append(0xFF if data[signs[code]] & 0x80 else 0)
        else:
            out.append(0 if code == 12 else 0xFF)
    return int.from_bytes(bytes(out), "little")


def field(a, b, c):
    return (a >> (b & 31)) & ((1 << (c & 31)) - 1)


def signed_field(a, b, c):
    width = min(c & 31, 32 - (b & 31))
    value = field(a, b, c)
    return value - (1 << width) if width and (value >> (width - 1)) & 1 else value


def half_bits(a):
    value = rounded(Fraction(a), "f16", math.copysign(1, a) < 0) if math.isfinite(a) else a
    return struct.unpack("<H", struct.pack("<e", value))[0]


def half_toward_zero(a):
    if not math.isfinite(a):
        return half_bits(a)
    bits = half_bits(a)
    value = struct.unpack("<e", struct.pack("<H", bits))[0]
    return bits - 1 if abs(value) > abs(a) else bits


def bf16_even(a):
    bits = struct.unpack("<I", struct.pack("<f", a))[0]
    if math.isnan(a):
        return (bits >> 16) | 0x40
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


def sad(width):
    parts = range(0, 32, width)
    mask = (1 << width) - 1
    return lambda a, b, c: c + sum(abs(((a >> s) & mask) - ((b >> s) & mask)) for s in parts)


def scaled(kind, limit):
    def run_scaled(a, e):
        if not math.isfinite(a):
            return a
        return rounded(Fraction(a) * Fraction(2) ** max(-limit, min(limit, e)), kind, math.copysign(1, a) < 0)

    return run_scaled


def byte(shift):
    return lambda a: float((a >> shift) & 255)


def clamp16(a):
    return min(max(a, -32768), 32767) & 0xFFFF


def u24(a):
    return a & 0xFFFFFF


def i24(a):
    return (a & 0xFFFFFF) - (1 << 24) if a & 0x800000 else a & 0xFFFFFF


def norm(low, top):
    def convert(a):
        if math.isnan(a):
            return 0
        return round(Fraction(min(max(a, low), 1.0)) * top)

    return convert


def fma(a, b, c):
    return a * b + c


def truncating_flush_mad(a, b, c):
    x, y, z = (flush(v) for v in (a, b, c))
    product = flush(exact(lambda p, q: p * q, "f32")(x, y))
    return flush(exact(lambda p, q: p + q, "f32")(product, z))


def floats(kind):
    """Instructions that every float width has."""
    table = {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
    }
    out = {f"v_{k}_{kind}": exact(f, kind) for k, f in table.items()}
    out |= {f"v_min_{kind}": smaller, f"v_max_{kind}": larger, f"v_fma_{kind}": exact(fma, kind)}
    out |= {
        f"v_trunc_{kind}": same_sign(math.trunc),
        f"v_ceil_{kind}": same_sign(math.ceil),
        f"v_floor_{kind}": same_sign(math.floor),
        f"v_rndne_{kind}": same_sign(tie_even),
        f"v_fract_{kind}": fraction_part(kind),
        f"v_frexp_mant_{kind}": lambda a: math.frexp(a)[0] if math.isfinite(a) else a,
        f"v_frexp_exp_i{16 if kind == 'f16' else 32}_{kind}": lambda a: math.frexp(a)[1] if math.isfinite(a) else 0,
    }
    if kind != "f64":
        out |= {
            f"v_sub_{kind}": exact(lambda a, b: a - b, kind),
            f"v_subrev_{kind}": exact(lambda a, b: b - a, kind),
            f"v_min3_{kind}": lambda a, b, c: smaller(smaller(a, b), c),
            f"v_max3_{kind}": lambda a, b, c: larger(larger(a, b), c),
            f"v_med3_{kind}": middle,
        }
    return out


INTEGERS = ("u32", "i32", "u16", "i16")
MOVES = ("v_mov_b32", "v_mov_b64", "v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32")
ORACLE = {
    **floats("f16"), **floats("f32"), **floats("f64"),
    "v_mul_legacy_f32": lambda a, b: 0.0 if a == 0 or b == 0 else exact(lambda x, y: x * y, "f32")(a, b),
    "v_fma_legacy_f16": exact(fma, "f16"),
    "v_mad_f32": truncating_flush_mad,
    "v_mad_f16": lambda a, b, c: exact(lambda p, q: p + q, "f16")(exact(lambda p, q: p * q, "f16")(a, b), c),
    "v_ldexp_f32": scaled("f32", 400), "v_ldexp_f16": scaled("f16", 80), "v_ldexp_f64": scaled("f64", 2200),
    "v_cvt_f32_f16": lambda a: a, "v_cvt_f64_f32": lambda a: a,
    "v_cvt_f16_f32": exact(lambda a: a * 1, "f16"), "v_cvt_f32_f64": exact(lambda a: a * 1, "f32"),
    "v_cvt_f32_i32": lambda a: rounded(Fraction(a), "f32"), "v_cvt_f32_u32": lambda a: rounded(Fraction(a), "f32"),
    "v_cvt_f64_i32": float, "v_cvt_f64_u32": float,
    "v_cvt_f16_u16": lambda a: rounded(Fraction(a), "f16"), "v_cvt_f16_i16": lambda a: rounded(Fraction(a), "f16"),
    "v_cvt_i32_f32": to_integer(-(2**31), 2**31 - 1), "v_cvt_u32_f32": to_integer(0, M32),
    "v_cvt_i32_f64": to_integer(-(2**31), 2**31 - 1), "v_cvt_u32_f64": to_integer(0, M32),
    "v_cvt_u16_f16": to_integer(0, 65535), "v_cvt_i16_f16": to_integer(-32768, 32767),
    "v_cvt_flr_i32_f32": to_integer(-(2**31), 2**31 - 1, math.floor),
    "v_cvt_rpi_i32_f32": to_integer(-(2**31), 2**31 - 1, lambda a: math.floor(Fraction(a) + Fraction(1, 2))),
    **{f"v_cvt_f32_ubyte{k}": byte(8 * k) for k in range(4)},
    "v_cvt_pkrtz_f16_f32": lambda a, b: half_toward_zero(a) | half_toward_zero(b) << 16,
    "v_cvt_pk_f16_f32": lambda a, b: half_bits(a) | half_bits(b) << 16,
    "v_cvt_pk_bf16_f32": lambda a, b: bf16_even(a) | bf16_even(b) << 16,
    "v_cvt_pknorm_i16_f32": lambda a, b: (norm(-1, 32767)(a) & 0xFFFF) | (norm(-1, 32767)(b) & 0xFFFF) << 16,
    "v_cvt_pknorm_u16_f32": lambda a, b: norm(0, 65535)(a) | norm(0, 65535)(b) << 16,
    "v_cvt_pk_u16_u32": lambda a, b: min(a, 65535) | min(b, 65535) << 16,
    "v_cvt_pk_i16_i32": lambda a, b: clamp16(a) | clamp16(b) << 16,
    "v_pack_b32_f16": None,  # bits, not values: tested by hand
    **dict.fromkeys(MOVES, lambda a: a),
    "v_not_b32": lambda a: ~a, "v_and_b32": lambda a, b: a & b, "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b, "v_xnor_b32": lambda a, b: ~(a ^ b), "v_and_or_b32": lambda a, b, c: (a & b) | c,
    "v_or3_b32": lambda a, b, c: a | b | c, "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c), "v_bfe_u32": field,
    "v_bfe_i32": signed_field, "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31), "v_perm_b32": pick,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2), "v_bcnt_u32_b32": lambda a, b: bin(a).count("1") + b,
    "v_ffbh_u32": lambda a: 32 - a.bit_length() if a else -1, "v_ffbl_b32": lambda a: (a & -a).bit_length() - 1,
    "v_ffbh_i32": lambda a: 32 - (a ^ (a >> 31)).bit_length() if a not in (0, -1) else -1,
    "v_lshlrev_b32": lambda n, a: a << (n & 31), "v_lshrrev_b32": lambda n, a: a >> (n & 31),
    "v_ashrrev_i32": lambda n, a: a >> (n & 31), "v_lshlrev_b64": lambda n, a: a << (n & 63),
    "v_lshrrev_b64": lambda n, a: a >> (n & 63), "v_ashrrev_i64": lambda n, a: a >> (n & 63),
    "v_lshlrev_b16": lambda n, a: a << (n & 15), "v_lshrrev_b16": lambda n, a: a >> (n & 15),
    "v_ashrrev_i16": lambda n, a: a >> (n & 15), "v_lshl_or_b32": lambda a, b, c: (a << (b & 31)) | c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c, "v_add_lshl_u32": lambda a, b, c: (a + b) << (c & 31),
    "v_xad_u32": lambda a, b, c: (a ^ b) + c, "v_lshl_add_u64": lambda a, b, c: (a << (b & 7)) + c,
    **{f"v_add_{t}": lambda a, b: a + b for t in INTEGERS},
    **{f"v_sub_{t}": lambda a, b: a - b for t in INTEGERS},
    **{f"v_subrev_{t}": lambda a, b: b - a for t in ("u32", "u16")},
    **{f"v_{f}{n}_{t}": min if f == "min" else max for f in ("min", "max") for n in ("", "3") for t in INTEGERS},
    **{f"v_med3_{t}": lambda a, b, c: sorted((a, b, c))[1] for t in INTEGERS},
    "v_add3_u32": lambda a, b, c: a + b + c, "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: a * b >> 32, "v_mul_u32_u24": lambda a, b: u24(a) * u24(b),
    "v_mul_i32_i24": lambda a, b: i24(a) * i24(b), "v_mul_hi_u32_u24": lambda a, b: u24(a) * u24(b) >> 32,
    "v_mul_hi_i32_i24": lambda a, b: i24(a) * i24(b) >> 32, "v_mad_u32_u24": lambda a, b, c: u24(a) * u24(b) + c,
    "v_mad_i32_i24": lambda a, b, c: i24(a) * i24(b) + c, "v_sad_u8": sad(8),
    "v_sad_u16": sad(16), "v_sad_u32": sad(32),
    "v_mul_lo_u16": lambda a, b: a * b,
    **dict.fromkeys(("v_mad_u16", "v_mad_i16", "v_mad_legacy_u16", "v_mad_u32_u16", "v_mad_i32_i16"), fma),
}  # fmt: skip
#: Packed results whose NaNs keep part of the source's payload, which no value shows.
PAYLOAD = ("v_cvt_pkrtz_f16_f32", "v_cvt_pk_f16_f32")
#: Within one unit in the last place.
APPROXIMATE = {
    "v_exp": lambda a: 2.0**a, "v_log": math.log2, "v_rcp": reciprocal, "v_rsq": inverse_root, "v_sqrt": math.sqrt,
    "v_rcp_iflag": reciprocal, "v_exp_legacy": lambda a: 2.0**a, "v_log_legacy": math.log2,
    "v_sin": lambda a: math.sin(2 * math.pi * math.fmod(a, 1)),
    "v_cos": lambda a: math.cos(2 * math.pi * math.fmod(a, 1)),
}  # fmt: skip


# --- operands ----------------------------------------------------------------------------------------------------
def patterns(kind, rng, count):
    """Bit patterns of a source: edges and random ones, some of them numbers of moderate size."""
    width = int(kind[1:])
    if kind[0] == "f":
        digits, low, high, code, raw = FORMATS[kind]
        values = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, math.inf, -math.inf, math.nan, 65504.0]
        values += [
            2.0 ** (low - digits + 1),
            -(2.0**low),
            2.0**low * (1 - 2.0 ** (1 - digits)),
            2.0**high,
            -(2.0**high),
        ]
        edges = [struct.unpack(raw, struct.pack(code, v))[0] for v in values]
        edges.append(edges[-1] | ((1 << (digits - 1)) - 1))
        near = rng.standard_normal(count) * 8
        random = [struct.unpack(raw, struct.pack(code, v))[0] for v in near]
    else:
        edges = [0, 1, 2, 31, 32, 63, 64, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1, 0x5555, 0xFF]
        random = [int(x) for x in rng.integers(0, 64, count)]
    wild = [int(x) for x in rng.integers(0, 1 << 64, count, dtype=np.uint64) & np.uint64((1 << width) - 1)]
    chosen = [edges, random, wild]
    return [int(chosen[w][rng.integers(len(chosen[w]))]) & ((1 << width) - 1) for w in rng.integers(0, 3, count)]


def value_of(bits, kind):
    width = int(kind[1:])
    if kind[0] == "f":
        return struct.unpack(FORMATS[kind][3], struct.pack(FORMATS[kind][4], bits))[0]
    return bits - (1 << width) if kind[0] == "i" and bits >> (width - 1) else bits


def execute(name, kinds, kind, sources, target="gfx950"):
    """Bits of the result by lane, the raw words of it, under an EXEC mask that turns half of the lanes off."""
    wide = [2 if k.endswith("64") else 1 for k in kinds]
    words = np.zeros((64 * GROUPS, sum(wide)), np.uint32)
    column = 0
    for source, size in zip(sources, wide, strict=True):
        for word in range(size):
            words[:, column] = [(bits >> (32 * word)) & M32 for bits in source]
            column += 1
    result = 2 if kind.endswith("64") else 1
    out = np.zeros((64 * GROUPS, result), np.uint32)
    lines = ["s_load_dwordx4 s[4:7], s[0:1], 0x0", "s_lshl_b32 s3, s2, 6", "v_add_u32_e32 v0, s3, v0"]
    lines += [f"v_mul_u32_u24_e32 v1, {4 * sum(wide)}, v0", "s_waitcnt lgkmcnt(0)"]
    names, first = [], 4
    for size in wide:
        at = first
        for word in range(size):
            lines.append(f"global_load_dword v{first}, v1, s[4:5] offset:{4 * (sum(wide[: len(names)]) + word)}")
            first += 1
        names.append(f"v[{at}:{at + 1}]" if size == 2 else f"v{at}")
        first += first % 2
    for word in range(result):
        lines.append(f"v_mov_b32_e32 v{20 + word}, 0x{SENTINEL:x}")
    lines += ["s_waitcnt vmcnt(0)", f"s_mov_b32 s8, 0x{OFF & M32:x}", f"s_mov_b32 s9, 0x{OFF >> 32:x}"]
    lines += ["s_mov_b64 s[10:11], exec", "s_mov_b64 exec, s[8:9]"]
    lines += [f"{name} {'v[20:21]' if result == 2 else 'v20'}, {', '.join(names)}", "s_mov_b64 exec, s[10:11]"]
    lines += [f"v_mul_u32_u24_e32 v2, {4 * result}, v0"]
    lines += [f"global_store_dword v2, v{20 + word}, s[6:7] offset:{4 * word}" for word in range(result)]
    outcome = run(parse_text(kernel_text(target, "\n".join(lines), 2)), [words, Out(out)], GROUPS)
    assert outcome.ok, str(outcome)
    return out


def compare(name, kinds, kind, oracle, slack=0.0, target="gfx950"):
    rng = np.random.default_rng(sum(map(ord, name)))
    sources = [patterns(k, rng, 64 * GROUPS) for k in kinds]
    out = execute(name, kinds, kind, sources, target)
    width = int(kind[1:])
    for item in range(64 * GROUPS):
        got = int(out[item, 0]) | (int(out[item, 1]) << 32 if width == 64 else 0)
        if not (OFF >> (item % 64)) & 1:
            assert got & M32 == SENTINEL, f"{name}: lane {item % 64} is off but was written"
            continue
        values = [value_of(s[item], k) for s, k in zip(sources, kinds, strict=True)]
        if name in PAYLOAD and any(math.isnan(v) for v in values):
            continue
        want = oracle(*values)
        if kind[0] != "f":
            mask = (1 << width) - 1
            assert got & mask == int(want) & mask, f"{name}{values}: {got:#x}, not {int(want):#x}"
            continue
        have = value_of(got & ((1 << width) - 1), kind)
        if math.isnan(want) or math.isnan(have):
            assert math.isnan(want) == math.isnan(have), f"{name}{values}: {have}, not {want}"
        elif slack:
            assert have == want or abs(have - want) <= slack * abs(want), f"{name}{values}: {have}, not {want}"
        else:
            zeros = want == 0 and name.split("_")[1] in ("min", "max", "min3", "max3", "med3")
            assert have == want, f"{name}{values}: {have}, not {want}"
            assert zeros or math.copysign(1, have) == math.copysign(1, want), f"{name}{values}: sign of {have}"


def approximate_names():
    return [n for n in VALU if n.rsplit("_", 1)[0] in APPROXIMATE]


def test_every_instruction_has_an_oracle():
    assert set(VALU) == set(ORACLE) | set(approximate_names())


@pytest.mark.parametrize("name", sorted(n for n in ORACLE if ORACLE[n] is not None))
def test_exact(name):
    kind, kinds, _ = VALU[name]
    compare(name, kinds, kind, ORACLE[name])


@pytest.mark.parametrize("name", sorted(approximate_names()))
def test_within_one_ulp(name):
    kind, kinds, _ = VALU[name]
    digits = FORMATS[kind][0]
    function = APPROXIMATE[name.rsplit("_", 1)[0]]

    def oracle(a):
        if not math.isfinite(a) and name.split("_")[1] in ("sin", "cos"):
            return math.nan
        if kind == "f32":
            value = unit(function)(a)
        else:
            try:
                value = function(a)
            except (ValueError, OverflowError):
                value = math.inf if name.startswith("v_exp") else special(function, a)
        if not math.isfinite(value) or kind == "f64":
            return value
        value = rounded(Fraction(value), kind, math.copysign(1, value) < 0)
        return flush(value) if kind == "f32" else value

    compare(name, kinds, kind, oracle, slack=2.0 ** (1 - digits))
