"""Memory instructions: LDS of every width, buffers with bounds, flat and scratch, transposing reads, atomics."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from closedform.hw.sim import Out, parse_text, run
from closedform.hw.sim.testing import kernel_text, sparse_array

LOAD = "s_load_dwordx4 s[4:7], s[0:1], 0x0\nv_lshlrev_b32_e32 v1, 2, v0\nv_lshlrev_b32_e32 v2, 4, v0\n"
LOAD += "s_waitcnt lgkmcnt(0)\n"
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)\n"


def simulate(body, source, out, target="gfx942", grid=1, **options):
    text = kernel_text(target, LOAD + body, 2, **options)
    result = run(parse_text(text), [source, Out(out, partial=True)], grid)
    assert result.ok, str(result)
    return result


def words(n=256, seed=3):
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32)


@pytest.mark.parametrize("target", ["gfx908", "gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_global_and_lds_of_every_width(target, count):
    """Global load, LDS write, LDS read and global store of 1 to 4 registers."""
    suffix, width = {1: "", 2: "x2", 3: "x3", 4: "x4"}[count], 32 * count
    span = lambda first: f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"  # noqa: E731
    body = (
        f"global_load_dword{suffix} {span(8)}, v2, s[4:5]\n{WAIT}ds_write_b{width} v2, {span(8)}\n{WAIT}"
        f"ds_read_b{width} {span(16)}, v2\n{WAIT}global_store_dword{suffix} v2, {span(16)}, s[6:7]\n"
    )
    source, out = words(), np.zeros(256, np.uint32)
    simulate(body, source, out, target, lds_bytes=1024)
    assert (out.reshape(64, 4)[:, :count] == source.reshape(64, 4)[:, :count]).all()


@pytest.mark.parametrize(
    ("write", "read", "step"),
    [
        ("ds_write2_b32 v1, v8, v9 offset0:0 offset1:64", "ds_read2_b32 v[16:17], v1 offset1:64", 4),
        ("ds_write2_b64 v3, v[8:9], v[10:11] offset1:64", "ds_read2_b64 v[16:19], v3 offset0:0 offset1:64", 8),
        ("ds_write2st64_b32 v1, v8, v9 offset0:1 offset1:2", "ds_read2st64_b32 v[16:17], v1 offset0:1 offset1:2", 4),
        (
            "ds_write2st64_b64 v3, v[8:9], v[10:11] offset0:1 offset1:2",
            "ds_read2st64_b64 v[16:19], v3 offset0:1 offset1:2",
            8,
        ),
        (
            "ds_write2st64_b32 v1, v8, v9 offset0:1 offset1:2",
            "ds_read_b32 v16, v1 offset:256\nds_read_b32 v17, v1 offset:512",
            4,
        ),
    ],
)
def test_two_addresses(write, read, step):
    body = (
        f"global_load_dwordx4 v[8:11], v2, s[4:5]\nv_lshlrev_b32_e32 v3, 3, v0\n{WAIT}{write}\n{WAIT}{read}\n{WAIT}"
        + "".join(f"global_store_dword v2, v{16 + k}, s[6:7] offset:{4 * k}\n" for k in range(step // 2))
    )
    source, out = words(), np.zeros(256, np.uint32)
    simulate(body, source, out, lds_bytes=2048)
    assert (out.reshape(64, 4)[:, : step // 2] == source.reshape(64, 4)[:, : step // 2]).all()


NARROW = {
    "u8": lambda w, old: w & 0xFF,
    "i8": lambda w, old: (w & 0xFF) - 256 if w & 0x80 else w & 0xFF,
    "u16": lambda w, old: w & 0xFFFF,
    "i16": lambda w, old: (w & 0xFFFF) - 65536 if w & 0x8000 else w & 0xFFFF,
    "u8_d16": lambda w, old: (old & 0xFFFF0000) | w & 0xFF,
    "u8_d16_hi": lambda w, old: (old & 0xFFFF) | (w & 0xFF) << 16,
    "i8_d16": lambda w, old: (old & 0xFFFF0000) | ((w & 0xFF) - 256 if w & 0x80 else w & 0xFF) & 0xFFFF,
    "i8_d16_hi": lambda w, old: (old & 0xFFFF) | (((w & 0xFF) - 256 if w & 0x80 else w & 0xFF) & 0xFFFF) << 16,
    "u16_d16": lambda w, old: (old & 0xFFFF0000) | w & 0xFFFF,
    "u16_d16_hi": lambda w, old: (old & 0xFFFF) | (w & 0xFFFF) << 16,
}
GLOBAL_NAME = {
    "u8": "ubyte", "i8": "sbyte", "u16": "ushort", "i16": "sshort", "u8_d16": "ubyte_d16", "u8_d16_hi": "ubyte_d16_hi",
    "i8_d16": "sbyte_d16", "i8_d16_hi": "sbyte_d16_hi", "u16_d16": "short_d16", "u16_d16_hi": "short_d16_hi",
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(NARROW))
def test_narrow_loads(kind):
    old = 0x12345678
    body = (
        f"v_mov_b32_e32 v8, 0x{old:x}\nv_mov_b32_e32 v9, 0x{old:x}\nglobal_load_dword v4, v1, s[4:5]\n{WAIT}"
        f"ds_write_b32 v1, v4\n{WAIT}ds_read_{kind} v8, v1\nglobal_load_{GLOBAL_NAME[kind]} v9, v1, s[4:5]\n{WAIT}"
        "global_store_dwordx2 v2, v[8:9], s[6:7]\n"
    )
    source, out = words(64), np.zeros(256, np.uint32)
    simulate(body, source, out, lds_bytes=256)
    want = np.array([NARROW[kind](int(w), old) & 0xFFFFFFFF for w in source], np.uint32)
    assert (out.reshape(64, 4)[:, 0] == want).all()
    assert (out.reshape(64, 4)[:, 1] == want).all()


@pytest.mark.parametrize(
    ("suffix", "shift", "size"), [("b8", 0, 1), ("b16", 0, 2), ("b8_d16_hi", 16, 1), ("b16_d16_hi", 16, 2)]
)
def test_narrow_stores(suffix, shift, size):
    name = {"b8": "byte", "b16": "short", "b8_d16_hi": "byte_d16_hi", "b16_d16_hi": "short_d16_hi"}[suffix]
    body = (
        f"global_load_dword v4, v1, s[4:5]\nv_mov_b32_e32 v5, 0\n{WAIT}ds_write_b32 v1, v5\n"
        f"ds_write_{suffix} v1, v4\n{WAIT}"
        "ds_read_b32 v6, v1\n" + ("" if "d16" in name else f"global_store_{name} v1, v4, s[6:7] offset:256\n")
        + f"{WAIT}global_store_dword v1, v6, s[6:7]\n"
    )  # fmt: skip
    source, out = words(64), np.zeros(128, np.uint32)
    simulate(body, source, out, lds_bytes=256)
    want = (source >> shift) & ((1 << (8 * size)) - 1)
    assert (out[:64] == want).all()
    if "d16" not in name:
        assert (out[64:] == want).all()


RESOURCE = "s_mov_b32 s8, s4\ns_and_b32 s9, s5, 0xffff\ns_mov_b32 s10, {records}\ns_mov_b32 s11, 0x27000\n"
TARGET_RESOURCE = "s_mov_b32 s12, s6\ns_and_b32 s13, s7, 0xffff\ns_mov_b32 s14, {records}\ns_mov_b32 s15, 0x27000\n"


def test_buffer_bounds():
    """Reads out of range give 0, writes are dropped, each word of a wide access by itself or with the whole."""
    body = (
        RESOURCE.format(records=512) + TARGET_RESOURCE.format(records=768)
        + f"s_mov_b32 s16, 16\nv_add_u32_e32 v3, -16, v2\nbuffer_load_dwordx4 v[8:11], v2, s[8:11], 0 offen\n{WAIT}"
        f"buffer_store_dwordx4 v[8:11], v3, s[12:15], s16 offen\n{WAIT}"
    )  # fmt: skip
    source, out = words(256), np.full(256, 7, np.uint32)
    result = run(parse_text(kernel_text("gfx942", LOAD + body, 2)), [source, Out(out, partial=True)], 1)
    assert result.ok, str(result)
    want = np.where(np.arange(256) < 128, source, 0)
    assert (out[4:192] == want[4:192]).all()
    assert (out[192:] == 7).all()


@pytest.mark.parametrize("records", [1016, 1020, 1023, 1008])
def test_buffer_bound_inside_of_an_access(records):
    """Each word of a wide access is checked by itself."""
    body = (
        RESOURCE.format(records=records) + TARGET_RESOURCE.format(records=records)
        + f"buffer_load_dwordx4 v[8:11], v2, s[8:11], 0 offen\n{WAIT}global_store_dwordx4 v2, v[8:11], s[6:7]\n"
        f"s_add_u32 s12, s12, 1024\nv_mov_b32_e32 v8, 9\n"
        "v_mov_b32_e32 v9, 9\nv_mov_b32_e32 v10, 9\nv_mov_b32_e32 v11, 9\n"
        f"buffer_store_dwordx4 v[8:11], v2, s[12:15], 0 offen\n{WAIT}"
    )  # fmt: skip
    source, out = words(256), np.zeros(512, np.uint32)
    simulate(body, source, out)
    inside = np.arange(256) < records // 4
    assert (out[:256] == np.where(inside, source, 0)).all()
    assert (out[256:] == np.where(inside, 9, 0)).all()


def test_saturated_descriptor_past_the_end_is_reported():
    body = RESOURCE.format(records=-1) + f"buffer_load_dword v8, v2, s[8:11], 0 offen\n{WAIT}"
    result = run(parse_text(kernel_text("gfx942", LOAD + body, 2)), [words(16), Out(np.zeros(4), partial=True)], 1)
    assert {r.kind for r in result.reports} == {"out-of-bounds"}


def test_structured_buffer():
    """idxen with a stride: the range is counted in records."""
    body = (
        "s_mov_b32 s8, s4\ns_and_b32 s9, s5, 0xffff\ns_or_b32 s9, s9, 0x100000\ns_mov_b32 s10, 40\n"
        "s_mov_b32 s11, 0x27000\n"
        f"buffer_load_dword v8, v0, s[8:11], 0 idxen offset:4\n{WAIT}global_store_dword v1, v8, s[6:7]\n"
    )
    source, out = words(256), np.zeros(64, np.uint32)
    simulate(body, source, out)
    assert (out == np.where(np.arange(64) < 40, source[1::4], 0)).all()


@pytest.mark.parametrize("form", ["global_load_dword v8, v[4:5], off", "flat_load_dword v8, v[4:5]"])
def test_64_bit_addresses(form):
    body = "v_mov_b32_e32 v5, s5\nv_add_co_u32_e32 v4, vcc, s4, v1\nv_addc_co_u32_e32 v5, vcc, 0, v5, vcc\n"
    body += f"{form}\n{WAIT}global_store_dword v1, v8, s[6:7]\n"
    source, out = words(64), np.zeros(64, np.uint32)
    simulate(body, source, out)
    assert (out == source).all()


def test_scratch():
    body = (
        f"global_load_dwordx2 v[4:5], v2, s[4:5]\n{WAIT}scratch_store_dwordx2 off, v[4:5], off offset:8\n"
        f"v_mov_b32_e32 v7, 12\n"
        f"s_mov_b32 s12, 8\n{WAIT}scratch_load_dword v8, v7, off\nscratch_load_dword v9, off, s12\n{WAIT}"
        "global_store_dwordx2 v2, v[8:9], s[6:7]\n"
    )
    source, out = words(), np.zeros(256, np.uint32)
    simulate(body, source, out, scratch_bytes=16)
    assert (out.reshape(64, 4)[:, 0] == source.reshape(64, 4)[:, 1]).all()
    assert (out.reshape(64, 4)[:, 1] == source.reshape(64, 4)[:, 0]).all()


@pytest.mark.parametrize(("suffix", "bits", "per_row"), [("b64_tr_b16", 16, 4), ("b64_tr_b8", 8, 2)])
def test_transposing_read(suffix, bits, per_row):
    """Rows of 16 elements lie in `per_row` lanes each; lane i gets column i of its block of 16 lanes."""
    rows = 16 // per_row
    kind = {16: np.uint16, 8: np.uint8}[bits]
    blocks = np.arange(4 * rows * 16).astype(kind).reshape(4, rows, 16)
    body = (
        f"v_lshlrev_b32_e32 v3, 3, v0\nglobal_load_dwordx2 v[4:5], v3, s[4:5]\n{WAIT}ds_write_b64 v3, v[4:5]\n{WAIT}"
        f"ds_read_{suffix} v[8:9], v3\n{WAIT}global_store_dwordx2 v3, v[8:9], s[6:7]\n"
    )
    out = np.zeros((64, 8 * 8 // bits), kind)
    simulate(body, blocks.reshape(-1).view(np.uint32).copy(), out, "gfx950", lds_bytes=512)
    assert (out.reshape(4, 16, rows) == blocks.swapaxes(1, 2)).all()


def test_load_straight_to_lds_of_16_bytes():
    body = (
        f"s_mov_b32 m0, 0\nglobal_load_lds_dwordx4 v2, s[4:5]\n{WAIT}ds_read_b128 v[8:11], v2\n{WAIT}"
        "global_store_dwordx4 v2, v[8:11], s[6:7]\n"
    )
    source, out = words(), np.zeros(256, np.uint32)
    simulate(body, source, out, "gfx950", lds_bytes=1024)
    assert (out == source).all()


ATOMIC = {
    "add": lambda old, new: old + new, "sub": lambda old, new: old - new, "umin": min, "umax": max,
    "and": lambda old, new: old & new, "or": lambda old, new: old | new, "xor": lambda old, new: old ^ new,
    "inc": lambda old, new: 0 if old >= new else old + 1,
    "dec": lambda old, new: new if old == 0 or old > new else old - 1,
    "swap": lambda old, new: new,
}  # fmt: skip
LDS_ATOMIC = {
    "umin": "min_rtn_u32", "umax": "max_rtn_u32", "and": "and_rtn_b32", "or": "or_rtn_b32", "xor": "xor_rtn_b32",
    "add": "add_rtn_u32", "sub": "sub_rtn_u32", "inc": "inc_rtn_u32", "dec": "dec_rtn_u32", "swap": "wrxchg_rtn_b32",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ATOMIC))
@pytest.mark.parametrize("space", ["global", "lds"])
def test_atomics_return_the_old_value_lane_after_lane(name, space):
    """Lanes 2k and 2k+1 update one word."""
    body = f"global_load_dword v4, v1, s[4:5]\nv_and_b32_e32 v3, -8, v1\n{WAIT}"
    if space == "global":
        body += f"global_atomic_{name} v8, v3, v4, s[6:7] sc0\n{WAIT}global_store_dword v1, v8, s[6:7] offset:256\n"
    else:
        body += (
            f"v_mov_b32_e32 v5, 5\nds_write_b32 v3, v5\n{WAIT}ds_{LDS_ATOMIC[name]} v8, v3, v4\n"
            f"{WAIT}ds_read_b32 v9, v3\n{WAIT}"
            "global_store_dword v3, v9, s[6:7]\nglobal_store_dword v1, v8, s[6:7] offset:256\n"
        )
    source, out = words(64), np.full(128, 5, np.uint32)
    text = kernel_text("gfx942", LOAD + body, 2, lds_bytes=256)
    assert run(parse_text(text), [source, out], 1).ok
    for pair in range(32):
        value = 5
        for lane in (2 * pair, 2 * pair + 1):
            assert out[64 + lane] == value
            value = ATOMIC[name](value, int(source[lane])) & 0xFFFFFFFF
        assert out[2 * pair] == value


@pytest.mark.parametrize("name", ["add_f32", "pk_add_f16", "pk_add_bf16", "add_f64"])
def test_float_atomics(name):
    wide, data = ("x2", "v[4:5]") if name.endswith("64") else ("", "v4")
    kind = {"add_f32": np.float32, "pk_add_f16": np.float16, "pk_add_bf16": ml_dtypes.bfloat16, "add_f64": np.float64}[
        name
    ]
    body = (
        f"v_lshlrev_b32_e32 v3, {3 if wide else 2}, v0\nglobal_load_dword{wide} {data}, v3, s[4:5]\n"
        f"v_mov_b32_e32 v6, 0\n{WAIT}global_atomic_{name} v6, {data}, s[6:7]\n{WAIT}"
    )
    source = np.arange(64 * (2 if name.startswith("pk") else 1)).astype(kind) % 4
    source = source.astype(kind)
    out = np.zeros(4 if name.startswith("pk") else 2, kind)
    assert run(parse_text(kernel_text("gfx942", LOAD + body, 2)), [source, out], 1).ok
    if name.startswith("pk"):
        assert [float(x) for x in out[:2]] == [source[0::2].astype(float).sum(), source[1::2].astype(float).sum()]
    else:
        assert float(out[0]) == source.astype(float).sum()


def test_compare_and_swap():
    """Only lanes whose expected value is there change memory."""
    body = (
        "v_mov_b32_e32 v4, v0\nv_mov_b32_e32 v5, 0\nv_lshrrev_b32_e32 v6, 1, v0\nv_lshlrev_b32_e32 v6, 2, v6\n"
        f"global_atomic_cmpswap v8, v6, v[4:5], s[6:7] glc\n{WAIT}"
    )
    out = np.zeros(32, np.uint32)
    assert run(parse_text(kernel_text("gfx90a", LOAD + body, 2)), [words(4), out], 1).ok
    assert out[0] == 1  # 0 swaps itself in, then lane 1 swaps 1
    assert (out[1:] == 2 * np.arange(1, 32)).all()


def test_strided_arrays_are_used_in_place():
    """Two rows 4 GiB apart, as a kernel with a 64-bit stride sees them; the gap between them is no output."""
    source, out = (sparse_array((2, 64), (1 << 30, 1), np.uint32) for _ in range(2))
    source[...] = np.arange(128).reshape(2, 64)
    body = 2 * (
        f"global_load_dword v8, v1, s[4:5]\n{WAIT}global_store_dword v1, v8, s[6:7]\n"
        "s_add_u32 s5, s5, 1\ns_add_u32 s7, s7, 1\n"
    )
    result = run(parse_text(kernel_text("gfx942", LOAD + body, 2)), [source, Out(out)], 1)
    assert result.ok, str(result)
    assert (out == source).all()


def test_an_unwritten_row_of_a_strided_output():
    out = np.zeros((4, 128), np.uint32)[:, :64]
    body = (
        f"v_mov_b32_e32 v8, 1\nglobal_store_dword v1, v8, s[6:7]\nglobal_store_dword v1, v8, s[6:7] offset:1024\n{WAIT}"
    )
    result = run(parse_text(kernel_text("gfx942", LOAD + body, 2)), [words(4), Out(out)], 1)
    assert [(r.kind, r.count) for r in result.reports] == [("unwritten-output", 512)]
    assert (out.sum(axis=1) == [64, 0, 64, 0]).all()
