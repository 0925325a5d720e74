"""Planted faults: each sanitizer catches its own, and the sound version of the program has no report."""

from __future__ import annotations

import numpy as np
import pytest

from closedform.hw.sim import Out, SimulationError, UnknownInstruction, parse_text, run
from closedform.hw.sim.testing import kernel_text

TARGETS = ("gfx908", "gfx90a", "gfx942", "gfx950")
LOAD = "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_load_dwordx2 s[6:7], s[0:1], 0x8\ns_waitcnt lgkmcnt(0)\n"


def kinds(text, args, grid=1, **options):
    return {report.kind for report in run(parse_text(text), args, grid, **options).reports}


def exchange(target, first="s_waitcnt lgkmcnt(0)\n", barrier="s_barrier\n", write="ds_write_b32 v1, v0\n"):
    """128 work-items pass their numbers through LDS and store the mirrored one's."""
    body = LOAD + (
        "v_lshlrev_b32_e32 v1, 2, v0\n" + write + first + barrier + "v_sub_u32_e32 v2, 508, v1\nds_read_b32 v3, v2\n"
        "s_waitcnt lgkmcnt(0)\nglobal_store_dword v1, v3, s[4:5]\n"
    )
    return kernel_text(target, body, 2, lds_bytes=512, threads=128)


@pytest.mark.parametrize("target", TARGETS)
def test_sound_exchange(target):
    out = np.zeros(128, np.uint32)
    assert kinds(exchange(target), [Out(out), np.zeros(4, np.uint32)]) == set()
    assert (out == np.arange(127, -1, -1)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_missing_barrier(target):
    out = np.zeros(128, np.uint32)
    assert kinds(exchange(target, barrier=""), [Out(out), np.zeros(4, np.uint32)]) == {"lds-race"}


def test_write_not_waited_for_before_the_barrier():
    out = np.zeros(128, np.uint32)
    assert kinds(exchange("gfx942", first=""), [Out(out), np.zeros(4, np.uint32)]) == {"lds-race"}


def test_lds_read_before_write():
    out = np.zeros(128, np.uint32)
    assert kinds(exchange("gfx942", write=""), [Out(out), np.zeros(4, np.uint32)]) == {"uninitialised-lds"}


def test_lds_race_of_writes_and_of_a_write_after_a_read():
    same = LOAD + "v_mov_b32_e32 v1, 0\nds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\n"
    assert kinds(kernel_text("gfx942", same, 2, lds_bytes=4, threads=128), [np.zeros(4), np.zeros(4)]) == {"lds-race"}
    after = LOAD + (
        "v_mov_b32_e32 v1, 0\nv_cmp_gt_u32_e32 vcc, 64, v0\ns_cbranch_vccz .Lsecond\nds_write_b32 v1, v0\n"
        "s_waitcnt lgkmcnt(0)\n.Lsecond:\ns_barrier\nds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)\n"
        "s_cbranch_vccz .Lend\nds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\n.Lend:\n"
    )
    text = kernel_text("gfx942", after, 2, lds_bytes=4, threads=128)
    assert kinds(text, [np.zeros(4), np.zeros(4)]) == {"lds-race"}


def test_bytes_of_one_word_do_not_race():
    body = LOAD + "v_mov_b32_e32 v2, 7\nds_write_b8 v0, v2\ns_waitcnt lgkmcnt(0)\n"
    for size, expected in ((256, set()), (200, {"out-of-bounds"})):
        text = kernel_text("gfx942", body, 2, lds_bytes=size, threads=256)
        assert kinds(text, [np.zeros(4), np.zeros(4)]) == expected


STORE = "v_lshlrev_b32_e32 v1, 2, v0\nglobal_store_dword v1, v0, s[4:5]"


@pytest.mark.parametrize(
    ("body", "size", "expected"),
    [
        (STORE, 64, set()),
        (STORE, 63, {"out-of-bounds"}),
        (STORE + " offset:4", 64, {"out-of-bounds", "unwritten-output"}),
        (STORE, 65, {"unwritten-output"}),
        ("s_nop 0", 64, {"unwritten-output"}),
        ("v_lshlrev_b32_e32 v1, 2, v0\nglobal_store_dword v1, v9, s[4:5]", 64, {"uninitialised-register"}),
        ("v_mov_b32_e32 v1, s20\nglobal_store_dword v0, v1, s[4:5]", 0, {"uninitialised-register", "misaligned"}),
        ("global_store_dword v0, v0, s[4:5]", 0, {"misaligned"}),
        (
            "v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_dword v2, v1, s[4:5]\ns_waitcnt vmcnt(0)",
            0,
            {"uninitialised-global"},
        ),
    ],
)
def test_one_wave(body, size, expected):
    out = np.zeros(size or 64, np.uint32)
    found = kinds(kernel_text("gfx942", LOAD + body, 2), [Out(out, partial=size == 0), np.zeros(4, np.uint32)])
    assert expected <= found if size == 0 else found == expected


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("wait", "sound"),
    [("", False), ("s_waitcnt vmcnt(1)\n", False), ("s_waitcnt lgkmcnt(0)\n", False), ("s_waitcnt vmcnt(0)\n", True)],
)
def test_missing_wait_of_a_global_load(target, wait, sound):
    body = LOAD + (
        "v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_dword v2, v1, s[6:7]\n" + wait + "v_add_u32_e32 v3, v2, v2\n"
        "global_store_dword v1, v3, s[4:5]\n"
    )
    out, source = np.zeros(64, np.uint32), np.arange(64, dtype=np.uint32)
    found = kinds(kernel_text(target, body, 2), [Out(out), source])
    assert found == (set() if sound else {"missing-wait"})
    assert (out == 2 * source).all()


@pytest.mark.parametrize(
    ("wait", "sound"), [("vmcnt(1)", True), ("vmcnt(2)", False), ("0xf71", True), ("0xf72", False), ("0xf70", True)]
)
def test_loads_return_in_order(wait, sound):
    body = LOAD + (
        "v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_dword v2, v1, s[6:7]\nglobal_load_dword v3, v1, s[6:7]\n"
        f"s_waitcnt {wait}\nv_mov_b32_e32 v4, 0\nv_or_b32_e32 v4, v2, v4\nglobal_store_dword v1, v4, s[4:5]\n"
    )
    found = kinds(kernel_text("gfx90a", body, 2), [Out(np.zeros(64, np.uint32)), np.zeros(64, np.uint32)])
    assert found == (set() if sound else {"missing-wait"})


@pytest.mark.parametrize(("younger", "sound"), [(62, False), (63, True)])
def test_a_full_counter_of_loads_waits_for_the_oldest(younger, sound):
    """vmcnt has 6 bits: the 64th load is issued when the first has arrived."""
    more = "".join(f"global_load_dword v{3 + k}, v1, s[6:7]\n" for k in range(younger))
    body = f"{LOAD}v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_dword v2, v1, s[6:7]\n{more}v_mov_b32_e32 v2, 0\n"
    found = kinds(kernel_text("gfx942", body, 2), [np.zeros(64, np.uint32)] * 2)
    assert found == (set() if sound else {"missing-wait"})


@pytest.mark.parametrize(("younger", "sound"), [(14, False), (15, True)])
def test_a_full_counter_of_lds_reads_waits_for_the_oldest(younger, sound):
    more = "".join(f"ds_read_b32 v{3 + k}, v1\n" for k in range(younger))
    body = f"v_lshlrev_b32_e32 v1, 2, v0\nds_write_b32 v1, v0\nds_read_b32 v2, v1\n{more}v_mov_b32_e32 v2, 0\n"
    found = kinds(kernel_text("gfx942", body, 2, lds_bytes=512), [np.zeros(64, np.uint32)] * 2)
    assert found == (set() if sound else {"missing-wait"})


def test_scalar_loads_return_in_any_order():
    body = "s_load_dword s4, s[0:1], 0x0\ns_load_dword s5, s[0:1], 0x4\ns_waitcnt lgkmcnt({})\ns_mov_b32 s6, s4\n"
    body += "s_add_u32 s6, s6, s4\n"
    args = [np.zeros(4, np.uint32)] * 2
    assert kinds(kernel_text("gfx942", body.format(1), 2), args) == {"missing-wait"}
    assert kinds(kernel_text("gfx942", body.format(0), 2), args) == set()


def test_register_overwritten_under_a_load():
    body = LOAD + "v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_dword v2, v1, s[6:7]\nv_mov_b32_e32 v2, 0\n"
    args = [np.zeros(64, np.uint32)] * 2
    assert kinds(kernel_text("gfx942", body, 2), args) == {"missing-wait"}


@pytest.mark.parametrize(("wait", "expected"), [("s_waitcnt vmcnt(0)\n", set()), ("", {"missing-wait"})])
def test_load_straight_to_lds(wait, expected):
    body = LOAD + (
        "v_lshlrev_b32_e32 v1, 2, v0\ns_mov_b32 m0, 0\nglobal_load_lds_dword v1, s[6:7]\n"
        + wait
        + "ds_read_b32 v3, v1\n"
        "s_waitcnt vmcnt(0) lgkmcnt(0)\nglobal_store_dword v1, v3, s[4:5]\n"
    )
    out, source = np.zeros(64, np.uint32), np.arange(64, dtype=np.uint32) * 3
    assert kinds(kernel_text("gfx942", body, 2, lds_bytes=256), [Out(out), source]) == expected
    assert (out == source).all()


def test_global_race():
    args = [np.zeros(64, np.uint32), np.zeros(4, np.uint32)]
    assert kinds(kernel_text("gfx942", LOAD + STORE, 2), args, grid=2) == {"global-race"}
    assert kinds(kernel_text("gfx942", LOAD + STORE, 2), args, grid=1) == set()


def test_divergent_barrier_and_deadlock():
    divergent = "v_cmp_gt_u32_e32 vcc, 64, v0\ns_cbranch_vccz .Lother\ns_barrier\ns_endpgm\n.Lother:\ns_barrier\n"
    args = [np.zeros(4, np.uint32)] * 2
    assert kinds(kernel_text("gfx942", divergent, 2, threads=128), args) == {"divergent-barrier"}
    ended = "v_cmp_gt_u32_e32 vcc, 64, v0\ns_cbranch_vccz .Lother\ns_barrier\n.Lother:\n"
    assert kinds(kernel_text("gfx942", ended, 2, threads=128), args) == {"divergent-barrier"}


@pytest.mark.parametrize(
    "text",
    [
        "v_frobnicate_f32 v0, v1",
        "v_add_f32 v0, v1, v2 wave_frob:1",
        "v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10",
    ],
)
def test_unknown_instruction_names_itself(text):
    program = parse_text(kernel_text("gfx942", text, 2))
    with pytest.raises(UnknownInstruction) as caught:
        run(program, [np.zeros(4), np.zeros(4)], 1)
    assert caught.value.line == 7
    assert text.split()[0] in str(caught.value)
    assert "gfx942" in str(caught.value)


def test_instruction_of_another_target_is_unknown():
    for target, text in (
        ("gfx942", "v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], 0"),
        ("gfx90a", "v_cvt_pk_fp8_f32 v0, v1, v2"),
    ):
        with pytest.raises(UnknownInstruction):
            run(parse_text(kernel_text(target, text, 2)), [np.zeros(4), np.zeros(4)], 1)


def test_an_endless_loop_ends(monkeypatch):
    monkeypatch.setattr("closedform.hw.sim.machine.LIMIT_TURNS", 100)
    with pytest.raises(SimulationError, match="no end after 100"):
        run(parse_text(kernel_text("gfx942", ".Lx:\ns_branch .Lx", 1)), [np.zeros(4)], 1)


def test_report_says_where():
    text = kernel_text("gfx942", '.file 1 "kernel.py"\n.loc 1 42 0\n' + LOAD + STORE, 2)
    result = run(parse_text(text), [np.zeros(60, np.uint32), np.zeros(4, np.uint32)], 1)
    report = result.reports[0]
    assert (report.kind, report.workgroup, report.wave, report.lane, report.count) == ("out-of-bounds", 0, 0, 60, 4)
    assert report.instruction == "global_store_dword v1, v0, s[4:5]"
    assert report.source == "kernel.py:42"
    assert report.line == text.splitlines().index("global_store_dword v1, v0, s[4:5]") + 1
    assert not result.to_json()["ok"]
