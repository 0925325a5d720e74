"""Counts of executed instructions, memory traffic and LDS cycles, loops, and the bound of a CU."""

from __future__ import annotations

import json

import numpy as np
import pytest

from closedform.hw import get
from closedform.hw.lds import lds_cycles
from closedform.hw.sim import Out, parse_text, run
from closedform.hw.sim.testing import kernel_text

LOAD = "s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_lshlrev_b32_e32 v1, 2, v0\ns_waitcnt lgkmcnt(0)\n"
GPU = {"gfx908": "mi100", "gfx90a": "mi210", "gfx942": "mi300x", "gfx950": "mi355x"}


def count(body, target="gfx942", grid=1, lds_bytes=65536, threads=64, **options):
    text = kernel_text(target, LOAD + body, 1, lds_bytes=lds_bytes, threads=threads)
    result = run(parse_text(text), [Out(np.zeros(65536, np.uint32), partial=True)], grid, **options)
    assert result.ok, str(result)
    return result


@pytest.mark.parametrize("target", sorted(GPU))
@pytest.mark.parametrize(("width", "shift"), [(32, 2), (32, 3), (32, 7), (64, 3), (64, 8), (128, 4), (128, 7)])
def test_lds_cycles_are_those_of_the_addresses(target, width, shift):
    """Lanes `1 << shift` bytes apart, written and read; a constant added to all addresses changes nothing."""
    span = {32: "v4", 64: "v[4:5]", 128: "v[4:7]"}[width]
    lines = [f"v_mov_b32_e32 v{4 + k}, 0" for k in range(4)]
    lines += [f"v_lshlrev_b32_e32 v2, {shift}, v0", "v_add_u32_e32 v2, 64, v2"]
    lines += [
        f"ds_write_b{width} v2, {span}",
        "s_waitcnt lgkmcnt(0)",
        f"ds_read_b{width} {span}, v2",
        "s_waitcnt lgkmcnt(0)",
    ]
    counts = count("\n".join(lines) + "\n", target).counts
    addresses = [lane << shift for lane in range(64)]
    both = [lds_cycles(get(GPU[target]), access, width // 8, addresses) for access in ("read", "write")]
    assert counts["lds_cycles"] == sum(c.expected for c in both)
    assert counts["lds_cycles_worst"] == sum(c.worst for c in both)
    assert counts["lds_bank_conflict_cycles"] == sum(c.conflicts for c in both)
    assert counts["lds_read_bytes"] == counts["lds_write_bytes"] == 8 * width


def test_a_32_way_conflict_and_a_broadcast():
    body = "v_mov_b32_e32 v4, 0\nv_lshlrev_b32_e32 v2, {shift}, v0\nds_write_b32 v2, v4\ns_waitcnt lgkmcnt(0)\n"
    assert count(body.format(shift=7)).counts["lds_cycles"] == 64
    assert count(body.format(shift=2)).counts["lds_cycles"] == 2
    assert count("v_mov_b32_e32 v2, 0\nds_write_b32 v2, v0\ns_waitcnt lgkmcnt(0)\n").counts["lds_cycles"] == 2


@pytest.mark.parametrize(("shift", "segments"), [(2, (4, 2)), (6, (64, 32)), (7, (64, 64)), (0, (1, 1))])
def test_segments(shift, segments):
    body = f"v_lshlrev_b32_e32 v2, {shift}, v0\nv_and_b32_e32 v2, -4, v2\nglobal_store_dword v2, v0, s[4:5]\n"
    counts = count(body).counts
    assert (counts["segments_64"], counts["segments_128"]) == segments
    assert counts["global_store_bytes"] == 256


def test_lanes_that_are_off_do_not_count():
    body = "s_mov_b64 exec, 0xff\nglobal_store_dword v1, v0, s[4:5]\nds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\n"
    counts = count(body + "s_mov_b64 exec, 0\nglobal_store_dword v1, v0, s[4:5]\n").counts
    assert counts["global_store_bytes"] == counts["lds_write_bytes"] == 32
    assert (counts["segments_64"], counts["segments_128"]) == (1, 1)


LOOP = (
    "v_mov_b32_e32 v4, 1.0\ns_mov_b32 s6, 0\n.Lloop:\n"
    "v_mfma_f32_32x32x2_f32 v[16:31], v4, v4, 0\nv_add_f32_e32 v5, v4, v4\n"
    "v_exp_f32_e32 v6, v4\ns_add_u32 s6, s6, 1\ns_cmp_lt_u32 s6, 10\ns_cbranch_scc1 .Lloop\n"
)


def test_instructions_by_class_and_loop():
    result = count(LOOP, grid=3, threads=128)
    counts = result.counts
    assert counts["waves"] == 6
    assert counts["instructions"]["mfma"] == 60
    assert counts["instructions"]["valu"] == 6 * (2 + 20)
    assert counts["mfma_cycles"] == 60 * 64
    assert counts["valu_cycles"] == 6 * (2 * 4 + 10 * (4 + 16))
    (loop,) = counts["loops"]
    assert (loop["label"], loop["entries_per_wave"], loop["innermost"]) == (".Lloop", 10, True)
    assert loop["instructions"] == {"mfma": 60, "valu": 120, "salu": 120, "branch": 60}
    json.dumps(result.to_json())


def test_bound():
    bound = count(LOOP, grid=3, threads=256, lds_bytes=32768).bound
    assert bound["clocks_per_workgroup"]["matrix"] == 10 * 64
    assert bound["clocks_per_workgroup"]["valu"] == 10 * 64 + 4 + 4 + 10 * 20  # f32 keeps vector instructions out
    assert bound["binds"] == "valu"
    assert bound["gpu"] == "mi300x"
    assert bound["workgroups_per_cu"] == 2
    assert bound["serial_clocks_at_occupancy"] > 0
    conflicts = "v_lshlrev_b32_e32 v2, 7, v0\n" + 40 * "ds_write_b32 v2, v0\n" + "s_waitcnt lgkmcnt(0)\n"
    assert count(conflicts).bound["binds"] == "lds"


def test_sampling_and_progress():
    seen = []
    body = "v_lshl_add_u32 v1, s2, 8, v1\nglobal_store_dword v1, v0, s[4:5]\n"
    result = count(body, grid=1000, blocks=4, progress=lambda done, total: seen.append((done, total)))
    assert result.sampled
    assert result.workgroups == 4
    assert result.counts["waves"] == 4
    assert seen == [(4, 4)]
    whole = count(body, grid=100, counts=False)
    assert not whole.sampled
    assert whole.counts["lds_cycles"] == 0


@pytest.mark.parametrize("target", ["gfx908", "gfx90a"])
def test_numbers_of_workgroups_and_work_items(target):
    """A 2 x 3 x 2 grid of 4 x 2 x 8 workgroups; ids in three registers on gfx908, packed into v0 from gfx90a on."""
    ids = "v_mov_b32_e32 v10, v0\nv_mov_b32_e32 v11, v1\nv_mov_b32_e32 v12, v2\n"
    if target != "gfx908":
        ids = "v_and_b32_e32 v10, 0x3ff, v0\nv_bfe_u32 v11, v0, 10, 10\nv_bfe_u32 v12, v0, 20, 10\n"
    body = (
        "s_load_dwordx2 s[6:7], s[0:1], 0x0\n"
        + ids
        + (
            "v_lshl_add_u32 v13, v12, 1, v11\nv_lshl_add_u32 v13, v13, 2, v10\n"
            "s_mul_i32 s8, s4, 3\ns_add_i32 s8, s8, s3\n"
            "s_lshl_b32 s8, s8, 1\ns_add_i32 s8, s8, s2\ns_lshl_b32 s8, s8, 6\n"
            "v_add_u32_e32 v14, s8, v13\nv_lshlrev_b32_e32 v14, 2, v14\ns_lshl_b32 s9, s4, 8\ns_or_b32 s9, s9, s3\n"
            "s_lshl_b32 s9, s9, 8\ns_or_b32 s9, s9, s2\nv_mov_b32_e32 v15, s9\ns_waitcnt lgkmcnt(0)\n"
            "global_store_dword v14, v15, s[6:7]\n"
        )
    )
    fields = {"system_sgpr_workgroup_id_y": 1, "system_sgpr_workgroup_id_z": 1, "system_vgpr_workitem_id": 2}
    out = np.zeros((2, 3, 2, 64), np.uint32)
    result = run(parse_text(kernel_text(target, body, 1, descriptor=fields)), [Out(out)], (2, 3, 2), (4, 2, 8))
    assert result.ok, str(result)
    z, y, x = np.ogrid[:2, :3, :2]
    assert (out == (z << 16 | y << 8 | x)[..., None]).all()


def test_a_workgroup_that_ends_inside_a_wave():
    """100 work-items: 28 lanes of the second wave do not exist, so they store nothing and are never read."""
    out = np.zeros(100, np.uint32)
    body = LOAD + "v_add_u32_e32 v2, v0, v0\nglobal_store_dword v1, v2, s[4:5]\n"
    result = run(parse_text(kernel_text("gfx942", body, 1, threads=100)), [Out(out)], 1)
    assert result.ok, str(result)
    assert (out == 2 * np.arange(100)).all()
