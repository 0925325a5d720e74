"""Scalar instructions against Python integers: result and SCC, on random and edge operands."""

from __future__ import annotations

import numpy as np
import pytest

from closedform.hw.sim import Out, parse_text, run
from closedform.hw.sim.testing import kernel_text

M32, M64 = 2**32 - 1, 2**64 - 1
EDGES = (0, 1, 2, 31, 32, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x8000, 0xFFFF, 0x00100004, 0x00400020)
GROUPS = 96


def s32(a):
    return a - 2**32 if a >> 31 else a


def s64(a):
    return a - 2**64 if a >> 63 else a


def overflow(value):
    return not -(2**31) <= value < 2**31


def field(a, b, width, signed):
    offset, size = b & (width - 1), (b >> 16) & 0x7F
    size = min(size, width - offset)
    value = (a >> offset) & ((1 << size) - 1)
    if signed and size and value >> (size - 1):
        value -= 1 << size
    return value


def leading(a, width):
    return width - a.bit_length() if a else -1


def leading_sign(a, width):
    signed = s32(a) if width == 32 else s64(a)
    return leading((signed ^ (signed >> (width - 1))) & ((1 << width) - 1), width)


def quads(a):
    out = 0
    for start in range(0, 64, 4):
        if (a >> start) & 15:
            out |= 15 << start
    return out


def logic(width, function):
    mask = (1 << width) - 1

    def both(a, b):
        value = function(a, b) & mask
        return value, value != 0

    return both


BITWISE = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}  # fmt: skip
#: name -> (width of result, of a, of b, function to (result, SCC or None)).
TWO = {
    "s_add_u32": (32, 32, 32, lambda a, b: (a + b, a + b > M32)),
    "s_sub_u32": (32, 32, 32, lambda a, b: (a - b, a < b)),
    "s_add_i32": (32, 32, 32, lambda a, b: (a + b, overflow(s32(a) + s32(b)))),
    "s_sub_i32": (32, 32, 32, lambda a, b: (a - b, overflow(s32(a) - s32(b)))),
    "s_mul_i32": (32, 32, 32, lambda a, b: (a * b, None)),
    "s_mul_hi_u32": (32, 32, 32, lambda a, b: (a * b >> 32, None)),
    "s_mul_hi_i32": (32, 32, 32, lambda a, b: (s32(a) * s32(b) >> 32, None)),
    "s_lshl_b32": (32, 32, 32, lambda a, b: (a << (b & 31), a << (b & 31) & M32 != 0)),
    "s_lshr_b32": (32, 32, 32, lambda a, b: (a >> (b & 31), a >> (b & 31) != 0)),
    "s_ashr_i32": (32, 32, 32, lambda a, b: (s32(a) >> (b & 31), s32(a) >> (b & 31) != 0)),
    "s_lshl_b64": (64, 64, 32, lambda a, b: (a << (b & 63), a << (b & 63) & M64 != 0)),
    "s_lshr_b64": (64, 64, 32, lambda a, b: (a >> (b & 63), a >> (b & 63) != 0)),
    "s_ashr_i64": (64, 64, 32, lambda a, b: (s64(a) >> (b & 63), s64(a) >> (b & 63) != 0)),
    "s_bfe_u32": (32, 32, 32, lambda a, b: (field(a, b, 32, False), field(a, b, 32, False) != 0)),
    "s_bfe_i32": (32, 32, 32, lambda a, b: (field(a, b, 32, True), field(a, b, 32, True) != 0)),
    "s_bfe_u64": (64, 64, 32, lambda a, b: (field(a, b, 64, False), field(a, b, 64, False) != 0)),
    "s_bfe_i64": (64, 64, 32, lambda a, b: (field(a, b, 64, True), field(a, b, 64, True) != 0)),
    "s_bfm_b32": (32, 32, 32, lambda a, b: (((1 << (a & 31)) - 1) << (b & 31), None)),
    "s_bfm_b64": (64, 32, 32, lambda a, b: (((1 << (a & 63)) - 1) << (b & 63), None)),
    "s_min_i32": (32, 32, 32, lambda a, b: (min(s32(a), s32(b)), s32(a) < s32(b))),
    "s_max_i32": (32, 32, 32, lambda a, b: (max(s32(a), s32(b)), s32(a) > s32(b))),
    "s_min_u32": (32, 32, 32, lambda a, b: (min(a, b), a < b)),
    "s_max_u32": (32, 32, 32, lambda a, b: (max(a, b), a > b)),
    "s_absdiff_i32": (32, 32, 32, lambda a, b: (abs(s32((s32(a) - s32(b)) & M32)), a != b)),
    "s_pack_ll_b32_b16": (32, 32, 32, lambda a, b: ((a & 0xFFFF) | b << 16, None)),
    "s_pack_lh_b32_b16": (32, 32, 32, lambda a, b: ((a & 0xFFFF) | b & 0xFFFF0000, None)),
    "s_pack_hh_b32_b16": (32, 32, 32, lambda a, b: (a >> 16 | b & 0xFFFF0000, None)),
    **{f"s_lshl{n}_add_u32": (32, 32, 32, lambda a, b, n=n: ((a << n) + b, (a << n) + b > M32)) for n in (1, 2, 3, 4)},
    **{f"s_{k}_b{w}": (w, w, w, logic(w, f)) for k, f in BITWISE.items() for w in (32, 64)},
}
ONE = {
    "s_mov_b32": (32, 32, lambda a: (a, None)), "s_mov_b64": (64, 64, lambda a: (a, None)),
    "s_not_b32": (32, 32, lambda a: (~a, ~a & M32 != 0)), "s_not_b64": (64, 64, lambda a: (~a, ~a & M64 != 0)),
    "s_wqm_b64": (64, 64, lambda a: (quads(a), quads(a) != 0)),
    "s_brev_b32": (32, 32, lambda a: (int(f"{a:032b}"[::-1], 2), None)),
    "s_brev_b64": (64, 64, lambda a: (int(f"{a:064b}"[::-1], 2), None)),
    "s_bcnt1_i32_b32": (32, 32, lambda a: (bin(a).count("1"), a != 0)),
    "s_bcnt1_i32_b64": (32, 64, lambda a: (bin(a).count("1"), a != 0)),
    "s_bcnt0_i32_b32": (32, 32, lambda a: (32 - bin(a).count("1"), a != M32)),
    "s_bcnt0_i32_b64": (32, 64, lambda a: (64 - bin(a).count("1"), a != M64)),
    "s_ff1_i32_b32": (32, 32, lambda a: ((a & -a).bit_length() - 1, None)),
    "s_ff1_i32_b64": (32, 64, lambda a: ((a & -a).bit_length() - 1, None)),
    "s_ff0_i32_b32": (32, 32, lambda a: (((~a & M32) & -(~a & M32)).bit_length() - 1, None)),
    "s_ff0_i32_b64": (32, 64, lambda a: (((~a & M64) & -(~a & M64)).bit_length() - 1, None)),
    "s_flbit_i32_b32": (32, 32, lambda a: (leading(a, 32), None)),
    "s_flbit_i32_b64": (32, 64, lambda a: (leading(a, 64), None)),
    "s_flbit_i32": (32, 32, lambda a: (leading_sign(a, 32), None)),
    "s_flbit_i32_i64": (32, 64, lambda a: (leading_sign(a, 64), None)),
    "s_sext_i32_i8": (32, 32, lambda a: ((a & 0xFF) - 256 if a & 0x80 else a & 0xFF, None)),
    "s_sext_i32_i16": (32, 32, lambda a: ((a & 0xFFFF) - 65536 if a & 0x8000 else a & 0xFFFF, None)),
    "s_abs_i32": (32, 32, lambda a: (abs(s32(a)), a != 0)),
}  # fmt: skip


def operands():
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**32, (GROUPS, 4), dtype=np.uint64)
    pick = rng.random((GROUPS, 4)) < 0.6
    words[pick] = rng.choice(np.array(EDGES, np.uint64), int(pick.sum()))
    return words.astype(np.uint32)


def execute(instruction, words):
    """s[12:13] after `instruction` with a in s[8:9] and b in s[10:11], and SCC (1 before it)."""
    body = (
        "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_lshl_b32 s3, s2, 4\nv_mov_b32_e32 v1, s3\ns_waitcnt lgkmcnt(0)\n"
        "s_load_dwordx4 s[8:11], s[4:5], s3\ns_mov_b64 s[12:13], 0\ns_waitcnt lgkmcnt(0)\ns_cmp_eq_u32 0, 0\n"
        f"{instruction}\ns_cselect_b32 s14, 1, 0\nv_mov_b32_e32 v2, s12\nv_mov_b32_e32 v3, s13\nv_mov_b32_e32 v4, s14\n"
        "s_mov_b64 exec, 1\nglobal_store_dwordx3 v1, v[2:4], s[6:7]\n"
    )
    out = np.zeros((len(words), 4), np.uint32)
    result = run(parse_text(kernel_text("gfx942", body, 2)), [words, Out(out, partial=True)], len(words))
    assert result.ok, str(result)
    return [(int(r[0]) | int(r[1]) << 32, int(r[2])) for r in out]


def verify(name, instruction, width, oracle):
    words = operands()
    mask = (1 << width) - 1
    for row, (got, scc) in zip(words.tolist(), execute(instruction, words), strict=True):
        want, flag = oracle(row)
        assert got & mask == want & mask, f"{name} {row}: {got:#x}, not {want & mask:#x}"
        assert scc == (1 if flag is None else int(flag)), f"{name} {row}: SCC"


def wide(row, at, width):
    return row[at] | row[at + 1] << 32 if width == 64 else row[at]


def span(first, width):
    return f"s[{first}:{first + 1}]" if width == 64 else f"s{first}"


@pytest.mark.parametrize("name", sorted(TWO))
def test_two_sources(name):
    width, width_a, width_b, function = TWO[name]
    text = f"{name} {span(12, width)}, {span(8, width_a)}, {span(10, width_b)}"
    verify(name, text, width, lambda row: function(wide(row, 0, width_a), wide(row, 2, width_b)))


@pytest.mark.parametrize("name", sorted(ONE))
def test_one_source(name):
    width, width_a, function = ONE[name]
    verify(name, f"{name} {span(12, width)}, {span(8, width_a)}", width, lambda row: function(wide(row, 0, width_a)))


def test_tables_are_the_simulators():
    from closedform.hw.sim.salu_table import SOP1, SOP2

    assert set(SOP2) == set(TWO)
    assert set(SOP1) == set(ONE)


TESTS = {
    "eq": lambda a, b: a == b, "lg": lambda a, b: a != b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["i32", "u32"])
@pytest.mark.parametrize("name", sorted(TESTS))
def test_compare(name, kind):
    value = s32 if kind == "i32" else int
    verify(name, f"s_cmp_{name}_{kind} s8, s10", 32, lambda row: (0, TESTS[name](value(row[0]), value(row[2]))))
    verify(name, f"s_cmpk_{name}_{kind} s8, 0x8000" if kind == "u32" else f"s_cmpk_{name}_i32 s8, 0x20", 32,
           lambda row: (0, TESTS[name](value(row[0]), 0x8000 if kind == "u32" else 0x20)))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "width", "oracle"),
    [
        ("s_cmp_eq_u64 s[8:9], s[10:11]", 32, lambda r: (0, r[:2] == r[2:])),
        ("s_cmp_lg_u64 s[8:9], s[10:11]", 32, lambda r: (0, r[:2] != r[2:])),
        ("s_bitcmp1_b32 s8, s10", 32, lambda r: (0, (r[0] >> (r[2] & 31)) & 1)),
        ("s_bitcmp0_b64 s[8:9], s10", 32, lambda r: (0, 1 - ((r[0] | r[1] << 32) >> (r[2] & 63) & 1))),
        ("s_addc_u32 s12, s8, s10", 32, lambda r: (r[0] + r[2] + 1, r[0] + r[2] + 1 > M32)),
        ("s_subb_u32 s12, s8, s10", 32, lambda r: (r[0] - r[2] - 1, r[0] - r[2] - 1 < 0)),
        ("s_cselect_b32 s12, s8, s10", 32, lambda r: (r[0], None)),
        ("s_cselect_b64 s[12:13], s[8:9], s[10:11]", 64, lambda r: (r[0] | r[1] << 32, None)),
        ("s_cmov_b32 s12, s8", 32, lambda r: (r[0], None)),
        ("s_movk_i32 s12, 0x8001", 32, lambda r: (-32767, None)),
        ("s_cmovk_i32 s12, 0x7", 32, lambda r: (7, None)),
        (
            "s_mov_b32 s12, s8\ns_cmp_eq_u32 0, 0\ns_addk_i32 s12, 0xfff0",
            32,
            lambda r: (r[0] - 16, overflow(s32(r[0]) - 16)),
        ),
        ("s_mov_b32 s12, s8\ns_mulk_i32 s12, 0x7", 32, lambda r: (r[0] * 7, None)),
        ("s_mov_b32 s12, s8\ns_bitset1_b32 s12, s10", 32, lambda r: (r[0] | 1 << (r[2] & 31), None)),
        ("s_mov_b32 s12, s8\ns_bitset0_b32 s12, s10", 32, lambda r: (r[0] & ~(1 << (r[2] & 31)), None)),
        ("s_mov_b32 s12, -4.0", 32, lambda r: (0xC0800000, None)),
        ("s_mov_b64 s[12:13], -2", 64, lambda r: (-2, None)),
    ],
)
def test_special(text, width, oracle):
    verify(text, text, width, oracle)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("and", lambda s, e: s & e), ("or", lambda s, e: s | e), ("xor", lambda s, e: s ^ e),
        ("andn2", lambda s, e: s & ~e), ("orn2", lambda s, e: s | ~e), ("nand", lambda s, e: ~(s & e)),
        ("nor", lambda s, e: ~(s | e)), ("xnor", lambda s, e: ~(s ^ e)), ("andn1", lambda s, e: ~s & e),
    ],
)  # fmt: skip
def test_saveexec(name, function):
    text = f"s_mov_b64 exec, s[10:11]\ns_{name}_saveexec_b64 s[12:13], s[8:9]\n"
    text += (
        "s_mov_b64 s[14:15], exec\ns_mov_b64 exec, -1\ns_xor_b64 s[12:13], s[12:13], s[14:15]\ns_cmp_lg_u64 s[14:15], 0"
    )

    def oracle(row):
        source, active = row[0] | row[1] << 32, row[2] | row[3] << 32
        after = function(source, active) & M64
        return active ^ after, after != 0

    verify(name, text, 64, oracle)


def test_branches():
    for name, taken in (("scc0", 0), ("scc1", 1), ("vccz", 0), ("vccnz", 1), ("execz", 0), ("execnz", 1)):
        text = (
            f"s_mov_b64 vcc, exec\ns_cbranch_{name} .Lt\ns_mov_b32 s12, 1\ns_branch .Le\n.Lt:\ns_mov_b32 s12, 2\n.Le:"
        )
        verify(name, text, 32, lambda row, t=taken: (2 if t else 1, None))
