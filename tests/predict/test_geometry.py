"""Rounds, utilisation and hit rates: the printed examples."""

import pytest

from closedform.predict import hit_rate, rounds, utilisation

#: Rounds of Table 3 of the closed-formula paper: blocks of 32 queries on 120 compute units.
TABLE_3 = {4096: (2, 0.533), 8192: (3, 0.711), 16384: (5, 0.853), 32768: (9, 0.948)}
#: Fused milliseconds divided by rounds * L, in microseconds, as its times give them.
PRINTED_US_16384 = 279.3e3


def test_wave_quantisation():
    assert rounds(20, 8) == 3
    assert utilisation(20, 8) == pytest.approx(20 / 24)


def test_hit_rates():
    assert hit_rate(4, 4, 128, 128) == 0.75
    assert hit_rate(8, 8, 128, 128) == 0.875
    assert hit_rate(1, 1, 64, 256) == 0


@pytest.mark.parametrize(("length", "expected"), TABLE_3.items())
def test_table_3_is_a_round_count(length, expected):
    blocks = -(-length // 32)
    assert rounds(blocks, 120) == expected[0]
    assert utilisation(blocks, 120) == pytest.approx(expected[1], abs=1e-3)


def test_time_of_a_round_in_table_3():
    assert PRINTED_US_16384 / (rounds(512, 120) * 16384) == pytest.approx(3.41, abs=0.01)
