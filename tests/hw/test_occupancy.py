"""Occupancy against the step tables that LLVM 22 was observed to follow, and the named cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closedform.hw import (
    BadInput,
    get,
    lds_allocated_bytes,
    lds_share_bytes,
    names,
    occupancy_of,
    register_budget,
    registers_allocated,
    waves_per_simd,
    workgroups_per_cu,
)

UNIFIED = ("mi210", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x")
#: Most registers with which that many waves run on a SIMD (LLVM 22.1.8).
UNIFIED_STEPS = {8: 64, 7: 72, 6: 80, 5: 96, 4: 128, 3: 168, 2: 256, 1: 512}
SPLIT_STEPS = {10: 24, 9: 28, 8: 32, 7: 36, 4: 64, 3: 84, 2: 128, 1: 256}


@pytest.mark.parametrize("name", UNIFIED)
@pytest.mark.parametrize(("waves", "registers"), UNIFIED_STEPS.items())
def test_unified_steps(name, waves, registers):
    hw = get(name)
    acc = registers // 2
    assert waves_per_simd(hw, registers - acc, acc) == waves
    assert register_budget(hw, waves).total == registers
    if registers < 512:
        assert waves_per_simd(hw, min(registers + 1, 256), max(0, registers + 1 - 256)) == waves - 1


@pytest.mark.parametrize(("waves", "registers"), SPLIT_STEPS.items())
def test_split_steps(waves, registers):
    hw = get("mi100")
    for arch, acc in ((registers, 0), (0, registers), (registers, registers)):
        assert waves_per_simd(hw, arch, acc) == waves
    budget = register_budget(hw, waves)
    assert (budget.arch, budget.acc, budget.total, budget.unified) == (
        registers,
        registers,
        2 * registers,
        False,
    )
    if registers < 256:
        assert waves_per_simd(hw, registers + 1) < waves


@pytest.mark.parametrize(
    ("name", "arch", "acc", "allocated", "waves"),
    [
        ("mi100", 100, 200, 200, 1),
        ("mi300x", 100, 200, 304, 1),
        ("mi300x", 36, 32, 72, 7),
        ("mi300x", 33, 32, 72, 7),
        ("mi300x", 32, 32, 64, 8),
        ("mi100", 180, 0, 180, 1),
        ("mi210", 180, 0, 184, 2),
        ("mi300x", 180, 0, 184, 2),
        ("mi355x", 180, 0, 184, 2),
        ("mi300x", 256, 256, 512, 1),
        ("mi300x", 257, 0, 264, 0),
        ("mi300x", 0, 257, 264, 0),
        ("mi100", 257, 0, 260, 0),
        ("mi300x", 0, 0, 8, 8),
        ("paper_a", 180, 0, 180, 1),
        ("paper_b", 257, 0, 264, 0),
    ],
)
def test_named_register_cases(name, arch, acc, allocated, waves):
    assert registers_allocated(get(name), arch, acc) == allocated
    assert waves_per_simd(get(name), arch, acc) == waves


@pytest.mark.parametrize("name", UNIFIED)
def test_a_workgroup_must_fit_whole(name):
    hw = get(name)
    for waves, most in ((4, 512), (8, 256), (16, 128)):
        half = most // 2
        assert workgroups_per_cu(hw, waves, half, half) == 1
        if most < 512:
            assert workgroups_per_cu(hw, waves, half, half + 8) == 0
    full = occupancy_of(hw, 8, 256, 256)
    assert (full.workgroups_per_cu, full.limit, full.by_registers) == (0, "registers", 0)


@pytest.mark.parametrize(
    ("name", "lds_bytes", "count"),
    [
        ("mi355x", 32768, 4),
        ("mi355x", 32000, 5),
        ("mi355x", 163840, 1),
        ("mi355x", 163841, 0),
        ("mi300x", 32768, 2),
        ("mi300x", 21504, 3),
        ("mi300x", 21505, 2),
        ("mi300x", 65536, 1),
        ("mi300x", 65537, 0),
        ("mi100", 65537, 0),
        ("mi100", 0, 10),
    ],
)
def test_lds_limit(name, lds_bytes, count):
    found = occupancy_of(get(name), 4, 24, 0, lds_bytes)
    assert found.workgroups_per_cu == count
    assert found.limit == ("lds" if lds_bytes else "registers")


def test_the_record_names_each_limit():
    hw = get("mi100")
    assert occupancy_of(hw, 2, 24).limit == "workgroups"  # 16 workgroups that hold a barrier, of 20 by waves
    assert occupancy_of(hw, 2, 24).waves_per_simd == 8
    assert occupancy_of(hw, 1, 24).waves_per_simd == 10
    assert occupancy_of(hw, 3, 4).limit == "registers"  # a tie with the wave slots
    too_large = occupancy_of(hw, 17, 4)
    assert (too_large.workgroups_per_cu, too_large.limit) == (0, "workgroups")
    record = occupancy_of(get("mi300x"), 4, 64, 64, 16384)
    assert (record.by_registers, record.by_lds, record.by_waves, record.by_workgroups) == (4, 4, 8, 16)
    assert (record.workgroups_per_cu, record.waves_per_cu, record.waves_per_simd) == (4, 16, 4.0)


@pytest.mark.parametrize("name", names())
@given(workgroups=st.integers(1, 40))
def test_the_lds_share_is_the_largest_that_still_fits(name, workgroups):
    hw = get(name)
    share = lds_share_bytes(hw, workgroups)
    assert lds_allocated_bytes(hw, share) * workgroups <= hw.lds_bytes
    if share < hw.lds_max_per_workgroup_bytes:
        assert lds_allocated_bytes(hw, share + 1) * workgroups > hw.lds_bytes


@pytest.mark.parametrize("name", names())
@given(data=st.data())
def test_the_register_budget_is_the_largest_that_still_fits(name, data):
    hw = get(name)
    waves = data.draw(st.integers(1, hw.waves_per_simd_max))
    budget = register_budget(hw, waves)
    arch = data.draw(st.integers(0, budget.arch))
    aligned = -(-arch // hw.vgpr_arch_align) * hw.vgpr_arch_align if hw.vgpr_unified else arch
    acc = data.draw(st.integers(0, max(0, min(budget.acc, budget.total - aligned))))
    assert waves_per_simd(hw, arch, acc) >= waves
    if hw.vgpr_unified and budget.total < hw.vgpr_per_wave_max and aligned + budget.acc > budget.total:
        assert waves_per_simd(hw, arch, budget.total - aligned + 1) < waves


@given(
    st.sampled_from(names()),
    st.integers(0, 256),
    st.integers(0, 256),
    st.integers(1, 16),
    st.integers(0, 65536),
)
def test_more_of_anything_never_raises_occupancy(name, arch, acc, waves, lds_bytes):
    hw = get(name)
    count = workgroups_per_cu(hw, waves, arch, acc, lds_bytes)
    assert workgroups_per_cu(hw, waves, arch + 1, acc, lds_bytes) <= count
    assert workgroups_per_cu(hw, waves, arch, acc + 1, lds_bytes) <= count
    assert workgroups_per_cu(hw, waves, arch, acc, lds_bytes + 1) <= count


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda hw: registers_allocated(hw, -1), "cannot be negative"),
        (lambda hw: waves_per_simd(hw, 4, -1), "cannot be negative"),
        (lambda hw: register_budget(hw, 0), "1 to 8 waves"),
        (lambda hw: register_budget(hw, 9), "1 to 8 waves"),
        (lambda hw: lds_share_bytes(hw, 0), "at least one workgroup"),
        (lambda hw: lds_allocated_bytes(hw, -1), "cannot be negative"),
        (lambda hw: workgroups_per_cu(hw, 0, 4), "at least one wave"),
    ],
)
def test_senseless_counts_are_refused(call, message):
    with pytest.raises(BadInput, match=message):
        call(get("mi300x"))
