"""Every dense MFMA against a plain matrix product whose operands are placed by the vendor's formulas.

The formulas (tests/hw/data/mfma_vendor_maps.csv) are evaluated here as they stand, so the fragment maps of closedform
take no part in the expectation.
"""

from __future__ import annotations

import csv
from math import floor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from closedform.hw.sim import Out, UnknownInstruction, parse_text, run
from closedform.hw.sim.testing import kernel_text

ROWS = list(csv.DictReader((Path(__file__).parent.parent / "data" / "mfma_vendor_maps.csv").open()))
LIBRARY = {
    "f64": np.float64, "f32": np.float32, "xf32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "i8": np.int8, "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "bf8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "fp8_e4m3fn": ml_dtypes.float8_e4m3fn, "bf8_e5m2": ml_dtypes.float8_e5m2,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn, "bf6_e3m2": ml_dtypes.float6_e3m2fn, "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
BITS = {"f64": 64, "f32": 32, "xf32": 32, "f16": 16, "bf16": 16, "fp6_e2m3": 6, "bf6_e3m2": 6, "fp4_e2m1": 4}
FORMATS = {"fp8_e4m3fn": 0, "bf8_e5m2": 1, "fp6_e2m3": 2, "bf6_e3m2": 3, "fp4_e2m1": 4}


def cases():
    for row in ROWS:
        kind = row["dtype_in"]
        either = kind.split("|")
        pairs = [tuple(kind.split("*"))] if "*" in kind else [(a, b) for a in either for b in either]
        for a, b in pairs:
            yield pytest.param(row, a, b, id=f"{row['gfx']}-{row['instruction'].split()[0]}-{a}-{b}")


def place(formula, lane, bit):
    return int(eval(formula, {"floor": floor}, {"lane": lane, "GPR_num": bit // 32, "GPR_bits": bit % 32}))


def owners(row, operand, bits, count):
    """Coordinates (outer, inner, block) by (lane, element)."""
    names = {"A": ("A_i", "A_k", "A_block"), "B": ("B_j", "B_k", "B_block"), "C": ("CD_i", "CD_j", "CD_block")}[operand]
    return {
        (lane, e): tuple(place(row[name], lane, e * bits) for name in names) for lane in range(64) for e in range(count)
    }


def registers(values, kind, bits):
    """Values [64, elements] as 32-bit words [64, registers]."""
    if bits >= 8:
        return np.ascontiguousarray(values.astype(LIBRARY[kind])).view(np.uint32)
    codes = values.astype(LIBRARY[kind]).view(np.uint8)
    stream = np.unpackbits(codes[..., None], axis=2, bitorder="little")[:, :, :bits].reshape(64, -1)
    return np.packbits(stream, axis=1, bitorder="little").view(np.uint32)


#: E8M0 codes of 1.0, for A and for B.
ONES = (127, 127)


def program(gfx, mnemonic, counts, modifiers="", constant=None, scales=ONES):
    """Load A, B and C of every lane, run the instruction, store D; v2 and v3 hold the scales of A and B."""
    words_a, words_b, words_c = counts
    first_b, first_c = 8 + words_a + words_a % 2, 8 + words_a + words_a % 2 + words_b + words_b % 2
    span = lambda kind, start, n: f"{kind}[{start}:{start + n - 1}]" if n > 1 else f"{kind}{start}"  # noqa: E731
    acc = gfx == "gfx908"
    lines = [f"s_load_dwordx2 s[{8 + 2 * n}:{9 + 2 * n}], s[0:1], {8 * n}" for n in range(4)] + ["s_waitcnt lgkmcnt(0)"]
    for n, (words, first) in enumerate(((words_a, 8), (words_b, first_b), (words_c, first_c))):
        lines.append(f"v_mul_u32_u24_e32 v1, {4 * words}, v0")
        lines += [
            f"global_load_dword v{first + r}, v1, s[{8 + 2 * n}:{9 + 2 * n}] offset:{4 * r}" for r in range(words)
        ]
    lines.append("s_waitcnt vmcnt(0)")
    lines += [f"v_mov_b32_e32 v2, {scales[0]}", f"v_mov_b32_e32 v3, {scales[1]}"]
    if acc:
        lines += [f"v_accvgpr_write_b32 a{r}, v{first_c + r}" for r in range(words_c)]
    registers_c = span("a", 0, words_c) if acc else span("v", first_c, words_c)
    source = registers_c if constant is None else constant
    lines.append(
        f"{mnemonic} {registers_c}, {span('v', 8, words_a)}, {span('v', first_b, words_b)}, {source}{modifiers}"
    )
    if acc:
        lines += [f"v_accvgpr_read_b32 v{first_c + r}, a{r}" for r in range(words_c)]
    lines += [f"global_store_dword v1, v{first_c + r}, s[14:15] offset:{4 * r}" for r in range(words_c)]
    return kernel_text(gfx, "\n".join(lines), 4)


def simulate(row, kind_a, kind_b, draw, constant=None, scales=ONES):
    """Random operands through the instruction: (D of the simulator, A, B, C), as matrices [block, ., .]."""
    m, n, k, blocks = (int(row[x]) for x in ("M", "N", "K", "blocks"))
    acc = row["dtype_acc"]
    rng = np.random.default_rng(1)
    sides = []
    for operand, kind, extent in (("A", kind_a, m), ("B", kind_b, n)):
        bits, count = BITS.get(kind, 8), extent * k * blocks // 64
        values = draw(rng, (64, count), kind)
        matrix = np.zeros((blocks, extent, k))
        for (lane, e), (outer, inner, block) in owners(row, operand, bits, count).items():
            matrix[block, outer, inner] = values[lane, e]
        sides.append((registers(values, kind, bits), matrix))
    count = m * n * blocks // 64
    wide = 64 if acc == "f64" else 32
    dtype = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[acc]
    start = draw(rng, (64, count), "f32").astype(dtype)
    where = owners(row, "C", wide, count)
    words_c = np.ascontiguousarray(start).view(np.uint32)
    out = np.zeros_like(words_c)
    name, codes = row["instruction"].split()[0], ""
    if name.endswith("f8f6f4"):
        operands = ", v2, v3" if "scale" in name else ""
        codes = f"{operands} cbsz:{FORMATS[kind_a]} blgp:{FORMATS[kind_b]}"
    counts = (sides[0][0].shape[1], sides[1][0].shape[1], words_c.shape[1])
    text = program(row["gfx"], name, counts, codes, constant, scales)
    result = run(parse_text(text), [sides[0][0], sides[1][0], words_c, Out(out)], 1)
    assert result.ok, str(result)
    got, addend = np.zeros((blocks, m, n), dtype), np.zeros((blocks, m, n), dtype)
    for (lane, e), (i, j, block) in where.items():
        got[block, i, j] = out.view(dtype)[lane, e]
        addend[block, i, j] = start[lane, e]
    return got, sides[0][1], sides[1][1], addend


def small(rng, shape, kind):
    """Values that every format holds and whose sums are exact."""
    return rng.choice([-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0], shape)


@pytest.mark.parametrize(("row", "kind_a", "kind_b"), list(cases()))
def test_exact_product(row, kind_a, kind_b):
    got, a, b, c = simulate(row, kind_a, kind_b, small)
    assert (got == np.einsum("xik,xjk->xij", a, b) + c).all()


@pytest.mark.parametrize(
    "name", ["v_mfma_f32_32x32x2_f32", "v_mfma_f32_16x16x16_f16", "v_mfma_f32_32x32x8_bf16", "v_mfma_f64_16x16x4_f64"]
)
def test_rounding(name):
    row = next(r for r in ROWS if r["instruction"] == name and r["gfx"] == "gfx942")
    kind = row["dtype_in"]

    def draw(rng, shape, wanted):
        return rng.standard_normal(shape).astype(LIBRARY[wanted]).astype(np.float64)

    got, a, b, c = simulate(row, kind, kind, draw)
    exact = np.einsum("xik,xjk->xij", a, b) + c.astype(np.float64)
    scale = np.einsum("xik,xjk->xij", np.abs(a), np.abs(b)) + np.abs(c)
    assert (np.abs(got - exact) <= 2.0 ** (-51 if kind == "f64" else -23) * scale).all()


def test_constant_addend():
    row = next(r for r in ROWS if r["instruction"] == "v_mfma_f32_16x16x4_f32" and r["gfx"] == "gfx942")
    got, a, b, _ = simulate(row, "f32", "f32", small, constant="1.0")
    assert (got == np.einsum("xik,xjk->xij", a, b) + 1).all()


def test_exec_is_ignored():
    row = next(r for r in ROWS if r["instruction"] == "v_mfma_f32_16x16x4_f32" and r["gfx"] == "gfx942")
    assert row["M"] == "16"
    body = (
        "s_load_dwordx2 s[8:9], s[0:1], 0x0\nv_mov_b32_e32 v2, 1.0\n"
        "v_lshlrev_b32_e32 v1, 2, v0\ns_mov_b64 s[4:5], exec\n"
        "s_mov_b64 exec, 1\nv_mfma_f32_16x16x4_f32 v[4:7], v2, v2, 0\ns_mov_b64 exec, s[4:5]\ns_waitcnt lgkmcnt(0)\n"
        "global_store_dword v1, v4, s[8:9]\n"
    )
    out = np.zeros(64, np.float32)
    assert run(parse_text(kernel_text("gfx942", body, 1)), [Out(out)], 1).ok
    assert (out == 4).all()


def test_flushing_of_16_bit_denormals_is_gfx90as_alone():
    tiny = np.float16(2.0**-24)

    def draw(rng, shape, kind):
        return np.full(shape, float(tiny) if kind == "f16" else 0.0)

    for gfx, flushed in (("gfx908", False), ("gfx90a", True), ("gfx942", False)):
        row = next(
            r for r in ROWS if r["gfx"] == gfx and r["dtype_in"] == "f16" and (r["M"], r["blocks"]) == ("16", "1")
        )
        got, _, _, _ = simulate(row, "f16", "f16", draw)
        assert (got == 0).all() == flushed


def test_a_wrong_fragment_map_shows():
    """With the operands of B placed by the map of A's other register order the product is wrong."""
    row = dict(next(r for r in ROWS if r["instruction"] == "v_mfma_f32_32x32x8_f16" and r["gfx"] == "gfx942"))
    row["B_k"] = "4 * (1 - floor(lane / 32)) + 2 * GPR_num + floor(GPR_bits / 16)"
    got, a, b, c = simulate(row, "f16", "f16", small)
    assert (got != np.einsum("xik,xjk->xij", a, b) + c).any()


@pytest.mark.parametrize(
    "text",
    [
        "v_mfma_f32_4x4x1_16b_f32 v[0:3], v4, v5, 0 cbsz:1",
        "v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, 0 blgp:1",
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3], v0, v0 op_sel:[1,0,0]",
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[4:7], v[8:15], v[16:23], 0, v0, v0",
    ],
)
def test_broadcasts_and_scales_are_refused(text):
    with pytest.raises(UnknownInstruction):
        run(parse_text(kernel_text("gfx950", text, 1)), [np.zeros(4)], 1)


def test_scales_multiply_by_powers_of_two():
    """A scale of 129 is 4, of 124 is 1/8; 255 is NaN."""
    row = next(r for r in ROWS if r["instruction"].startswith("v_mfma_scale_f32_32x32x64"))
    kind = row["dtype_in"].split("|")[0]
    got, a, b, c = simulate(row, kind, kind, small, scales=(129, 124))
    assert (got == np.einsum("xik,xjk->xij", a, b) / 2 + c).all()
    got, *_ = simulate(row, kind, kind, small, scales=(255, 127))
    assert np.isnan(got).all()
