"""Instructions with lane masks, lane moves, packed halves, sub-dword parts and several results."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from closedform.hw.sim import Out, UnknownInstruction, parse_text, run
from closedform.hw.sim.testing import kernel_text

M32, M64 = 2**32 - 1, 2**64 - 1
LANE = np.arange(64)
EXEC = 0xF0F0FFFF0F3CFFFD


def execute(instruction, inputs, results, target="gfx950", exec_mask=M64, before=""):
    """v[20:..] after `instruction` on v4, v5, ... of every lane; s[10:11] may hold a mask result."""
    columns = np.stack([np.asarray(x, np.uint32) for x in inputs], axis=1)
    out = np.zeros((64, results + 2), np.uint32)
    n = columns.shape[1]
    lines = [f"s_load_dwordx4 s[4:7], s[0:1], 0x0\nv_mul_u32_u24_e32 v1, {4 * n}, v0\ns_waitcnt lgkmcnt(0)"]
    lines += [f"global_load_dword v{4 + k}, v1, s[4:5] offset:{4 * k}" for k in range(n)]
    lines += [f"v_mov_b32_e32 v{20 + k}, 0x5a5a5a5a" for k in range(results)]
    lines += ["s_mov_b64 s[10:11], 0", "s_mov_b64 vcc, 0", "s_waitcnt vmcnt(0)", before]
    lines += [f"s_mov_b32 exec_lo, 0x{exec_mask & M32:x}", f"s_mov_b32 exec_hi, 0x{exec_mask >> 32:x}", instruction]
    lines += ["s_mov_b64 exec, -1", f"v_mul_u32_u24_e32 v2, {4 * (results + 2)}, v0"]
    lines += [f"v_mov_b32_e32 v{20 + results + k}, s{10 + k}" for k in (0, 1)]
    lines += [f"global_store_dword v2, v{20 + k}, s[6:7] offset:{4 * k}" for k in range(results + 2)]
    outcome = run(parse_text(kernel_text(target, "\n".join(lines), 2)), [columns, Out(out)], 1)
    assert outcome.ok, str(outcome)
    return out[:, :results].T, int(out[0, results]) | int(out[0, results + 1]) << 32


def rnd(seed=1, high=2**32):
    return np.random.default_rng(seed).integers(0, high, 64, dtype=np.uint64).astype(np.uint32)


def bits(mask):
    return (mask >> LANE.astype(object)) & 1 == 1


def floats(seed=1):
    values = np.random.default_rng(seed).choice(
        np.array([0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3e38], np.float32), 64
    )
    return values.view(np.uint32)


# --- compares ----------------------------------------------------------------------------------------------------
ORDER = {"lt": "<", "eq": "==", "le": "<=", "gt": ">", "ge": ">="}
UNORDERED = {"nge": "ge", "ngt": "gt", "nle": "le", "neq": "eq", "nlt": "lt"}


def holds(test, a, b):
    if test in ORDER:
        return eval(f"a {ORDER[test]} b", {"a": a, "b": b})
    if test in UNORDERED:
        return not holds(UNORDERED[test], a, b)
    nan = isinstance(a, float) and (math.isnan(a) or math.isnan(b))
    return {"ne": a != b, "lg": a < b or a > b, "nlg": not (a < b or a > b), "o": not nan, "u": nan, "f": False}.get(
        test, True
    )


@pytest.mark.parametrize("test", [*ORDER, *UNORDERED, "lg", "nlg", "o", "u", "f", "tru"])
def test_float_compare(test):
    a, b = floats(1), floats(2)
    _, mask = execute(f"v_cmp_{test}_f32_e64 s[10:11], v4, v5", [a, b], 1, exec_mask=EXEC)
    for lane in range(64):
        x, y = float(a.view(np.float32)[lane]), float(b.view(np.float32)[lane])
        assert mask >> lane & 1 == (bool(holds(test, x, y)) and EXEC >> lane & 1)


@pytest.mark.parametrize("kind", ["i32", "u32", "i16", "u16"])
@pytest.mark.parametrize("test", [*ORDER, "ne", "f", "t"])
def test_integer_compare(test, kind):
    a = np.random.default_rng(4).choice(
        np.array([0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, M32], np.uint32), 64
    )
    b = np.roll(a, 1)
    dtype = {"i32": np.int32, "u32": np.uint32, "i16": np.int16, "u16": np.uint16}[kind]
    _, mask = execute(f"v_cmp_{test}_{kind}_e64 s[10:11], v4, v5", [a, b], 1, exec_mask=EXEC)
    x, y = (
        a.astype(np.dtype(f"u{(kind[1:] == '16' and 2) or 4}")).view(dtype),
        b.astype(np.dtype(f"u{(kind[1:] == '16' and 2) or 4}")).view(dtype),
    )
    want = np.array([bool(holds(test, int(p), int(q))) for p, q in zip(x, y, strict=True)]) & bits(EXEC)
    assert (bits(mask) == want).all()


def test_cmpx_writes_exec_too():
    got, mask = execute("v_cmpx_lt_u32_e64 s[10:11], v4, v5\nv_mov_b32_e32 v20, 1", [LANE, np.full(64, 10)], 1)
    assert mask == 0x3FF
    assert (got[0] == np.where(LANE < 10, 1, 0x5A5A5A5A)).all()


def test_class():
    a = np.array(
        [0x7F800001, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001, 0x80000000, 0, 1, 0x3F800000, 0x7F800000] * 7
    )[:64]
    for place in range(10):
        _, mask = execute(f"v_mov_b32_e32 v6, 0x{1 << place:x}\nv_cmp_class_f32_e64 s[10:11], v4, v6", [a], 1)
        assert (bits(mask) == (place == LANE % 10)).all()


# --- masks, carries, wide products ----------------------------------------------------------------------------------
def test_cndmask():
    a, b = rnd(1), rnd(2)
    got, _ = execute(
        "v_cndmask_b32_e64 v20, v4, v5, s[10:11]", [a, b], 1, exec_mask=EXEC, before="s_mov_b32 s10, 0xff00ff"
    )
    chosen = np.where(bits(0xFF00FF), b, a)
    assert (got[0] == np.where(bits(EXEC), chosen, 0x5A5A5A5A)).all()


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("v_add_co_u32_e64 v20, s[10:11], v4, v5", lambda a, b, c: a + b),
        ("v_sub_co_u32_e64 v20, s[10:11], v4, v5", lambda a, b, c: a - b),
        ("v_subrev_co_u32_e64 v20, s[10:11], v4, v5", lambda a, b, c: b - a),
        ("v_addc_co_u32_e64 v20, s[10:11], v4, v5, vcc", lambda a, b, c: a + b + c),
        ("v_subb_co_u32_e64 v20, s[10:11], v4, v5, vcc", lambda a, b, c: a - b - c),
        ("v_subbrev_co_u32_e64 v20, s[10:11], v4, v5, vcc", lambda a, b, c: b - a - c),
    ],
)
def test_carry(text, function):
    a, b = rnd(1), rnd(2)
    a[:4], b[:4] = [0, M32, M32, 5], [0, 0, M32, 5]
    carry = 0x123456789ABCDEF1
    before = f"s_mov_b32 vcc_lo, 0x{carry & M32:x}\ns_mov_b32 vcc_hi, 0x{carry >> 32:x}"
    got, mask = execute(text, [a, b], 1, before=before)
    for lane in range(64):
        total = function(int(a[lane]), int(b[lane]), carry >> lane & 1)
        assert int(got[0][lane]) == total & M32
        assert mask >> lane & 1 == int(not 0 <= total <= M32)


@pytest.mark.parametrize("signed", [False, True])
def test_mad64(signed):
    a, b, low, high = rnd(1), rnd(2), rnd(3), rnd(4)
    name = "v_mad_i64_i32" if signed else "v_mad_u64_u32"
    got, mask = execute(f"{name} v[20:21], s[10:11], v4, v5, v[6:7]", [a, b, low, high], 2)
    for lane in range(64):
        fix = (lambda v, n: v - (1 << n) if v >> (n - 1) else v) if signed else (lambda v, n: v)
        total = fix(int(a[lane]), 32) * fix(int(b[lane]), 32) + fix(int(low[lane]) | int(high[lane]) << 32, 64)
        assert int(got[0][lane]) | int(got[1][lane]) << 32 == total & M64
        assert mask >> lane & 1 == int(not (-(2**63) <= total < 2**63 if signed else 0 <= total <= M64))


@pytest.mark.parametrize("seed", range(20))
def test_exact_division(seed):
    """The sequence that a compiler emits for a / b in binary32 gives the nearest quotient."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(64) * 2.0 ** rng.integers(-140, 128, 64) for _ in range(2))
    with np.errstate(over="ignore"):
        a, b = np.float32(a), np.float32(b)
    a[:8] = [0.0, 1e-40, 3e38, 1.0, np.inf, 1.0, -1.0, 5.0]
    b[:8] = [3.0, 7.0, 1e-3, 0.0, 2.0, np.inf, 1e-39, 3e38]
    text = (
        "v_div_scale_f32 v6, s[12:13], v5, v5, v4\nv_div_scale_f32 v7, vcc, v4, v5, v4\nv_rcp_f32_e32 v8, v6\n"
        "v_fma_f32 v9, -v6, v8, 1.0\nv_fma_f32 v8, v9, v8, v8\nv_mul_f32_e32 v9, v7, v8\nv_fma_f32 v10, -v6, v9, v7\n"
        "v_fma_f32 v9, v10, v8, v9\nv_fma_f32 v10, -v6, v9, v7\nv_div_fmas_f32 v8, v10, v8, v9\n"
        "v_div_fixup_f32 v20, v8, v5, v4"
    )
    got, _ = execute(text, [a.view(np.uint32), b.view(np.uint32)], 1)
    with np.errstate(all="ignore"):
        want = a / b
    have = got[0].view(np.float32)
    assert ((have == want) | (np.isnan(have) & np.isnan(want))).all()


# --- lanes -------------------------------------------------------------------------------------------------------
DPP = {
    "quad_perm:[1,0,3,2]": lambda i: i ^ 1, "quad_perm:[2,3,0,1]": lambda i: i ^ 2,
    "row_shl:3": lambda i: i + 3 if i % 16 + 3 < 16 else None, "row_shr:1": lambda i: i - 1 if i % 16 else None,
    "row_ror:4": lambda i: i // 16 * 16 + (i - 4) % 16, "row_mirror": lambda i: i // 16 * 16 + 15 - i % 16,
    "row_half_mirror": lambda i: i // 8 * 8 + 7 - i % 8,
    "row_bcast:15": lambda i: i // 16 * 16 - 1 if i >= 16 else None,
    "row_bcast:31": lambda i: i // 32 * 32 - 1 if i >= 32 else None, "row_newbcast:5": lambda i: i // 16 * 16 + 5,
    "wave_shr:1": lambda i: i - 1 if i else None, "wave_shl:1": lambda i: i + 1 if i < 63 else None,
    "wave_ror:1": lambda i: (i - 1) % 64, "wave_rol:1": lambda i: (i + 1) % 64,
}  # fmt: skip


@pytest.mark.parametrize("control", sorted(DPP))
@pytest.mark.parametrize("zero", [False, True])
def test_dpp(control, zero):
    a = rnd()
    text = f"v_mov_b32_dpp v20, v4 {control} row_mask:0xd bank_mask:0xf" + (" bound_ctrl:0" if zero else "")
    got, _ = execute(text, [a], 1, exec_mask=EXEC)
    for lane in range(64):
        source = DPP[control](lane)
        reachable = source is not None and EXEC >> source & 1
        want = int(a[source]) if reachable else 0
        if not EXEC >> lane & 1 or lane // 16 == 1 or not (reachable or zero):
            want = 0x5A5A5A5A
        assert int(got[0][lane]) == want, lane


SWIZZLES = {
    "swizzle(SWAP,8)": lambda i: i ^ 8, "swizzle(REVERSE,4)": lambda i: i ^ 3,
    "swizzle(BROADCAST,8,2)": lambda i: i // 8 * 8 + 2,
    "swizzle(QUAD_PERM,3,2,1,0)": lambda i: i ^ 3,
    "0x041f": lambda i: i ^ 1, "0x8055": lambda i: i // 4 * 4 + 1,
}  # fmt: skip


@pytest.mark.parametrize("offset", sorted(SWIZZLES))
def test_swizzle(offset):
    a = rnd()
    got, _ = execute(f"ds_swizzle_b32 v20, v4 offset:{offset}\ns_waitcnt lgkmcnt(0)", [a], 1)
    assert (got[0] == a[[SWIZZLES[offset](i) for i in range(64)]]).all()


def test_bitmask_swizzle():
    a = rnd()
    got, _ = execute('ds_swizzle_b32 v20, v4 offset:swizzle(BITMASK_PERM,"01pip")\ns_waitcnt lgkmcnt(0)', [a], 1)
    source = [(i & 32) | 8 | (i & 4) | (~i & 2) | (i & 1) for i in range(64)]
    assert (got[0] == a[source]).all()


def test_bpermute_and_permute():
    a, where = rnd(), np.random.default_rng(2).permutation(64)
    got, _ = execute("ds_bpermute_b32 v20, v5, v4\ns_waitcnt lgkmcnt(0)", [a, where * 4], 1, exec_mask=EXEC)
    want = np.where(bits(EXEC)[where], a[where], 0)
    assert (got[0] == np.where(bits(EXEC), want, 0x5A5A5A5A)).all()
    got, _ = execute("ds_permute_b32 v20, v5, v4\ns_waitcnt lgkmcnt(0)", [a, where * 4], 1)
    assert (got[0][where] == a).all()


def test_readlane_writelane_readfirstlane():
    a = rnd()
    text = "v_readlane_b32 s10, v4, 17\ns_mov_b32 s11, 40\nv_writelane_b32 v20, s10, s11\nv_readfirstlane_b32 s11, v4"
    got, mask = execute(text, [a], 1, exec_mask=0xF00)
    assert mask == int(a[17]) | int(a[8]) << 32
    assert int(got[0][40]) == int(a[17])


@pytest.mark.parametrize("rows", [16, 32])
def test_permlane_swap(rows):
    a, b = rnd(1), rnd(2)
    got, _ = execute(f"v_mov_b32_e32 v20, v4\nv_mov_b32_e32 v21, v5\nv_permlane{rows}_swap_b32_e32 v20, v21", [a, b], 2)
    odd = LANE // rows % 2 == 1
    first, second = a.copy(), b.copy()
    first[odd], second[~odd] = b[~odd], a[odd]
    assert (got[0] == first).all()
    assert (got[1] == second).all()


def test_mbcnt():
    text = "v_mbcnt_lo_u32_b32 v20, s10, 0\nv_mbcnt_hi_u32_b32 v20, s11, v20"
    got, mask = execute(text, [rnd()], 1, before="s_mov_b32 s10, 0x12345678\ns_mov_b32 s11, 0x9abcdef0")
    assert (got[0] == [bin(mask & ((1 << lane) - 1)).count("1") for lane in range(64)]).all()


# --- parts of registers --------------------------------------------------------------------------------------------
def half(word, high):
    return struct.unpack("<e", struct.pack("<H", word >> 16 if high else word & 0xFFFF))[0]


def halves(values):
    return np.array(values, np.float16).view(np.uint16)


def test_packed_f16():
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(128).astype(np.float16).view(np.uint32) for _ in range(3))
    got, _ = execute(
        "v_pk_fma_f16 v20, v4, v5, v6 op_sel:[0,1,0] op_sel_hi:[1,0,1] neg_lo:[0,0,1] neg_hi:[1,0,0]", [a, b, c], 1
    )
    for lane in range(64):
        x, y, z = (int(v[lane]) for v in (a, b, c))
        low = Fraction(half(x, 0)) * Fraction(half(y, 1)) - Fraction(half(z, 0))
        high = -Fraction(half(x, 1)) * Fraction(half(y, 0)) + Fraction(half(z, 1))
        assert (int(got[0][lane]) & 0xFFFF) == halves([float(low)])[0]  # exact in binary64
        assert (int(got[0][lane]) >> 16) == halves([float(high)])[0]


@pytest.mark.parametrize("name", ["add", "mul", "fma"])
def test_packed_f32(name):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 64)).astype(np.float32)
    third = ", v[8:9]" if name == "fma" else ""
    sel = "op_sel:[0,1,0] op_sel_hi:[1,0,1]" if name == "fma" else "op_sel:[0,1] op_sel_hi:[1,0]"
    got, _ = execute(f"v_pk_{name}_f32 v[20:21], v[4:5], v[6:7]{third} {sel}", list(x.view(np.uint32)), 2)
    for part, (a, b, c) in enumerate(((x[0], x[3], x[4]), (x[1], x[2], x[5]))):
        wide = [v.astype(np.float64) for v in (a, b, c)]
        want = {"add": wide[0] + wide[1], "mul": wide[0] * wide[1], "fma": wide[0] * wide[1] + wide[2]}[name]
        assert (got[part].view(np.float32) == want.astype(np.float32)).all()


def test_sdwa():
    a, b = rnd(1), rnd(2)
    text = "v_add_u32_sdwa v20, v4, sext(v5) dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_1 src1_sel:WORD_1"
    got, _ = execute(text, [a, b], 1, target="gfx90a")
    for lane in range(64):
        total = ((int(a[lane]) >> 8) & 0xFF) + struct.unpack("<h", struct.pack("<H", int(b[lane]) >> 16))[0]
        assert int(got[0][lane]) == (0x5A005A5A | (total & 0xFF) << 16)
    got, _ = execute(
        "v_cvt_f32_f16_sdwa v20, v4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1", [a], 1, target="gfx942"
    )
    assert (
        got[0].view(np.float32).tobytes() == (a >> 16).astype(np.uint16).view(np.float16).astype(np.float32).tobytes()
    )


def test_modifiers():
    a, b = np.linspace(-4, 4, 64).astype(np.float32), np.linspace(3, -3, 64).astype(np.float32)
    inputs = [a.view(np.uint32), b.view(np.uint32)]
    for text, want in (
        ("v_add_f32_e64 v20, |v4|, -v5", np.abs(a) - b),
        ("v_mul_f32_e64 v20, -|v4|, v5 mul:2", -np.abs(a) * b * 2),
        ("v_add_f32_e64 v20, v4, v5 clamp", np.clip(a + b, 0, 1)),
        ("v_add_f32_e64 v20, v4, v5 div:2", (a + b) / 2),
        ("v_fma_f32 v20, v4, 2.0, -v5", 2 * a - b),
        ("v_mul_f32_e32 v20, 0x40400000, v4", 3 * a),
    ):
        got, _ = execute(text, inputs, 1)
        assert (got[0].view(np.float32) == want.astype(np.float32)).all(), text


def test_mixed_precision():
    rng = np.random.default_rng(0)
    a, c = rng.standard_normal(64).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    b = rng.standard_normal(128).astype(np.float16)
    got, _ = execute(
        "v_fma_mix_f32 v20, v4, v5, v6 op_sel:[0,1,0] op_sel_hi:[0,1,0]",
        [a.view(np.uint32), b.view(np.uint32), c.view(np.uint32)],
        1,
    )
    want = (a.astype(np.float64) * b[1::2] + c).astype(np.float32)
    assert (got[0].view(np.float32) == want).all()


@pytest.mark.parametrize(("target", "fp8", "bf8"), [
    ("gfx942", ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
    ("gfx950", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
])  # fmt: skip
def test_8_bit_floats(target, fp8, bf8):
    rng = np.random.default_rng(0)
    a, b = ((rng.standard_normal(64) * 20).astype(np.float32) for _ in range(2))
    a[:6] = [0.0, -0.0, 1e-4, 100.0, -3.0, 2.0**-9]
    inputs = [a.view(np.uint32), b.view(np.uint32)]
    for name, kind in (("fp8", fp8), ("bf8", bf8)):
        got, _ = execute(
            f"v_cvt_pk_{name}_f32 v20, v4, v5\nv_cvt_pk_{name}_f32 v20, v5, v4 op_sel:[0,0,1]", inputs, 1, target
        )
        x, y = a.astype(kind).view(np.uint8).astype(np.uint32), b.astype(kind).view(np.uint8).astype(np.uint32)
        assert (got[0] == (x | y << 8 | y << 16 | x << 24)).all()
        codes = np.arange(64 * 4, dtype=np.uint8)
        text = f"v_cvt_f32_{name}_sdwa v20, v4 src0_sel:BYTE_1\nv_cvt_pk_f32_{name}_sdwa v[21:22], v4 src0_sel:WORD_1"
        got, _ = execute(text, [codes.view(np.uint32)], 3, target)
        values = codes.view(kind).astype(np.float32).reshape(64, 4)
        for part, column in enumerate((1, 2, 3)):
            have = got[part].view(np.float32)
            assert ((have == values[:, column]) | (np.isnan(have) & np.isnan(values[:, column]))).all()
    with pytest.raises(UnknownInstruction):
        execute("v_cvt_pk_fp8_f32 v20, v4, v5", inputs, 1, "gfx90a")


@pytest.mark.parametrize("table", [0x6C, 0x36, 0xE8, 0x01])
def test_bitop3(table):
    a, b, c = rnd(1), rnd(2), rnd(3)
    got, _ = execute(f"v_bitop3_b32 v20, v4, v5, v6 bitop3:0x{table:x}", [a, b, c], 1)
    place = [((a >> k) & 1) * 4 + ((b >> k) & 1) * 2 + ((c >> k) & 1) for k in range(32)]
    want = sum(((table >> place[k].astype(np.uint32)) & 1) << k for k in range(32))
    assert (got[0] == want).all()
    got, _ = execute(f"v_bitop3_b16 v20, v4, v5, v6 bitop3:0x{table:x}", [a, b, c], 1)
    assert (got[0] == (0x5A5A0000 | (want & 0xFFFF))).all()


@pytest.mark.parametrize("name", ["v_dot4_i32_i8", "v_dot2_f32_f16"])
def test_dot(name):
    a, b, c = rnd(1, 2**31), rnd(2, 2**31), rnd(3, 1000)
    if name == "v_dot4_i32_i8":
        got, _ = execute(f"{name} v20, v4, v5, v6", [a, b, c], 1)
        want = (a.view(np.int8).reshape(64, 4).astype(int) * b.view(np.int8).reshape(64, 4)).sum(1) + c
        assert (got[0].view(np.int32) == want).all()
        return
    x, y = (np.random.default_rng(s).standard_normal(128).astype(np.float16) for s in (1, 2))
    start = np.ones(64, np.float32)
    got, _ = execute(f"{name} v20, v4, v5, v6", [x.view(np.uint32), y.view(np.uint32), start.view(np.uint32)], 1)
    want = (x.astype(np.float64) * y).reshape(64, 2).sum(1) + 1
    assert np.allclose(got[0].view(np.float32), want, rtol=1e-6)


def test_denormal_modes():
    tiny = np.full(64, 1e-40, np.float32)
    body = "s_load_dwordx4 s[4:7], s[0:1], 0x0\nv_lshlrev_b32_e32 v1, 2, v0\ns_waitcnt lgkmcnt(0)\n"
    body += "global_load_dword v4, v1, s[4:5]\ns_waitcnt vmcnt(0)\nv_add_f32_e32 v5, v4, v4\n"
    body += "global_store_dword v1, v5, s[6:7]\n"
    for mode, want in ((3, tiny + tiny), (0, np.zeros(64, np.float32))):
        out = np.zeros(64, np.float32)
        text = kernel_text("gfx942", body, 2, descriptor={"float_denorm_mode_32": mode})
        assert run(parse_text(text), [tiny, Out(out)], 1).ok
        assert (out == want).all()


@pytest.mark.parametrize("kind", ["u32", "i32", "u16", "i16"])
@pytest.mark.parametrize("name", ["add", "sub"])
def test_saturation(name, kind):
    a = np.random.default_rng(4).choice(
        np.array([0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, M32], np.uint32), 64
    )
    b = np.roll(a, 3)
    got, _ = execute(f"v_{name}_{kind} v20, v4, v5 clamp", [a, b], 1)
    dtype = np.dtype({"u": "uint", "i": "int"}[kind[0]] + kind[1:])
    narrow = np.dtype(f"uint{kind[1:]}")
    x, y = (v.astype(narrow).view(dtype).astype(np.int64) for v in (a, b))
    want = np.clip(x + y if name == "add" else x - y, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
    assert (got[0].astype(narrow) == want.view(narrow)).all()
