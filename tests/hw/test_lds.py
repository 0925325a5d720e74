"""LDS phases and bank conflicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closedform.hw import BadInput, get, lds_cycles, lds_phases, names

KINDS = [(access, width) for access in ("read", "write") for width in (4, 8, 12, 16)]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(("access", "width"), KINDS)
def test_phases_cover_the_wave_and_fit_the_banks(name, access, width):
    phases = lds_phases(get(name), access, width)
    assert sorted(lane for group in phases.groups for lane in group) == list(range(64))
    assert all(len(group) * width <= phases.banks * 4 for group in phases.groups)


@pytest.mark.parametrize(
    ("name", "access", "width", "group", "banks"),
    [
        ("mi300x", "read", 16, (0, 1, 2, 3, 20, 21, 22, 23), 32),
        ("mi300x", "write", 16, tuple(range(8)), 32),
        ("mi355x", "read", 16, (0, 1, 2, 3, 12, 13, 14, 15, *range(20, 28)), 64),
        ("mi355x", "read", 8, tuple(range(32)), 64),
        ("mi355x", "read", 12, (0, 1, 2, 3, 20, 21, 22, 23), 32),
        ("mi355x", "write", 8, tuple(range(16)), 32),
        ("mi100", "read", 4, tuple(range(32)), 32),
        ("mi100", "read", 8, tuple(range(16)), 32),
        ("mi355x", "write", 16, tuple(range(8)), 32),
    ],
)
def test_first_phase(name, access, width, group, banks):
    phases = lds_phases(get(name), access, width)
    assert (phases.groups[0], phases.banks) == (group, banks)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(("access", "width"), [k for k in KINDS if k[1] != 12])
def test_consecutive_addresses_have_no_conflict(name, access, width):
    found = lds_cycles(get(name), access, width, [width * lane for lane in range(64)])
    assert found.conflicts == 0
    assert found.expected == found.ideal == 64 * width // (lds_phases(get(name), access, width).banks * 4)


def test_known_conflicts():
    mi300x, mi355x = get("mi300x"), get("mi355x")
    assert lds_cycles(mi300x, "read", 4, [128 * lane for lane in range(64)]).expected == 64
    assert lds_cycles(mi300x, "read", 4, [0] * 64).expected == 2  # one word for all
    assert lds_cycles(mi300x, "read", 4, [8 * lane for lane in range(64)]).expected == 4
    rows = [128 * (lane % 16) + 16 * (lane // 16) for lane in range(64)]  # 16 rows of 128 B, 16 B of each
    assert lds_cycles(mi300x, "read", 16, rows).expected == 32
    assert lds_cycles(mi355x, "read", 16, rows).expected == 16
    swizzled = [128 * (lane % 16) + 16 * ((lane // 16) ^ (lane % 8)) for lane in range(64)]
    assert lds_cycles(mi300x, "read", 16, swizzled).conflicts == 0


def test_an_assumed_grouping_reports_the_worst_one_too():
    hw = get("mi100")
    addresses = [256 * (lane // 16 % 2) + 8 * (lane % 16) for lane in range(64)]
    assumed = lds_cycles(hw, "read", 8, addresses)
    assert (assumed.source, assumed.expected, assumed.conflicts) == ("", 4, 0)
    assert assumed.worst == 4
    known = lds_cycles(hw, "read", 16, [16 * lane for lane in range(64)])
    assert known.source
    assert known.worst == known.expected
    strided = lds_cycles(hw, "read", 12, [12 * lane for lane in range(64)])
    assert strided.worst >= strided.expected


@given(st.sampled_from(names()), st.sampled_from(KINDS), st.lists(st.integers(0, 4095), min_size=64, max_size=64))
def test_cycles_lie_between_none_and_full_serialisation(name, kind, words):
    access, width = kind
    found = lds_cycles(get(name), access, width, [4 * word for word in words])
    assert found.ideal <= found.expected <= found.worst <= 64 * width // 4


@pytest.mark.parametrize(("access", "width"), [("load", 4), ("read", 2), ("read", 32), ("write", 0)])
def test_unknown_accesses_are_refused(access, width):
    with pytest.raises(BadInput, match="an LDS access is a read or write"):
        lds_phases(get("mi300x"), access, width)


@pytest.mark.parametrize("addresses", [[0] * 63, [2] * 64, [-4] * 64])
def test_senseless_addresses_are_refused(addresses):
    with pytest.raises(BadInput, match="64 byte addresses"):
        lds_cycles(get("mi300x"), "read", 4, addresses)
