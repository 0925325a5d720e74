import pytest
from hypothesis import given
from hypothesis import strategies as st

from closedform.hw.errors import BadInput
from closedform.operators.level import Level, level
from closedform.operators.view import View, Window

lengths = st.integers(1, 2000)


@given(start=st.integers(0, 100), length=lengths, size=lengths)
def test_tiles_cover_the_valid_extent_once_and_in_order(start, length, size):
    window = Window(start, length + 7, length)
    tiles = list(window.tiles(size))
    covered = [i for tile in tiles for i in range(tile.start, tile.stop)]
    assert covered == list(range(start, start + length))
    assert len(tiles) == window.count(size)
    assert all(tile.size == size and 1 <= tile.extent <= size for tile in tiles)
    assert not any(tile.is_clipped for tile in tiles[:-1])


@given(length=lengths, outer=lengths, inner=lengths)
def test_tiles_of_tiles_stay_inside_the_clipped_tile(length, outer, inner):
    for tile in Window.whole(length).tiles(outer):
        covered = [i for part in tile.tiles(inner) for i in range(part.start, part.stop)]
        assert covered == list(range(tile.start, tile.stop))


def test_tiles_are_lazy():
    tiles = Window.whole(10**15).tiles(1)
    assert next(tiles) == Window(0, 1, 1)
    assert Window.whole(10**15).count(32) == 10**15 // 32


def test_a_window_without_valid_part_has_no_tiles():
    assert list(Window(64, 32, 0).tiles(16)) == []
    assert Window(64, 32, 0).count(16) == 0


def test_a_view_is_clipped_where_one_of_its_windows_is():
    whole, clipped = Window.whole(8), Window(8, 8, 3)
    assert View(whole, clipped).is_clipped
    assert not View(whole, whole).is_clipped
    assert View(whole, clipped).shape == (8, 3)


def test_levels_are_ordered_and_found_by_name():
    assert list(Level) == [Level.DEVICE, Level.BLOCK, Level.WAVE, Level.ATOM]
    assert level("Wave") is Level.WAVE
    assert level(Level.ATOM) is Level.ATOM
    with pytest.raises(BadInput, match="atom"):
        level("atoms")
