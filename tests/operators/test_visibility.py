"""Which keys a query sees: mask, spans and tiles agree with each other and with the definition."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform.operators.view import Window
from closedform.operators.visibility import Visibility

MANY = settings(deadline=None, derandomize=True, max_examples=400)


@st.composite
def visibilities(draw):
    window = draw(st.one_of(st.just(0), st.integers(1, 80)))
    return Visibility(
        L_q=draw(st.integers(1, 70)),
        L_kv=draw(st.integers(1, 150)),
        causal=draw(st.booleans()),
        window=window,
        sink=draw(st.integers(0, 40)) if window else 0,
    )


@st.composite
def blocks(draw):
    """A visibility, the queries of one workgroup and the keys of a tile."""
    seen = draw(visibilities())
    size = draw(st.integers(1, 40))
    number = draw(st.integers(0, -(-seen.L_q // size) - 1))
    return seen, Window.whole(seen.L_q).tile(number, size), draw(st.integers(1, 50))


def by_definition(seen):
    """The mask, pair by pair."""
    mask = np.zeros((seen.L_q, seen.L_kv), bool)
    for i, j in np.ndindex(mask.shape):
        position = i + seen.L_kv - seen.L_q
        near = not seen.window or abs(j - position) < seen.window or j < seen.sink
        mask[i, j] = near and (j <= position or not seen.causal)
    return mask


@MANY
@given(visibilities())
def test_the_mask_is_the_definition(seen):
    assert np.array_equal(seen.mask(), by_definition(seen))


@MANY
@given(visibilities())
def test_nothing_outside_of_the_lengths_is_seen(seen):
    queries, keys = np.arange(-3, seen.L_q + 3)[:, None], np.arange(-3, seen.L_kv + 3)
    padded = seen.sees(queries, keys)
    assert np.array_equal(padded[3:-3, 3:-3], seen.mask())
    assert not padded[-3:].any()
    assert not padded[:, -3:].any()
    assert not padded[:, :3].any()


@MANY
@given(blocks())
def test_the_span_is_what_the_queries_see(block):
    """No key outside is seen; without sinks, where anything is, the first and the last key of the interval are."""
    seen, rows, _ = block
    sinks, begin, end = seen.span(rows)
    mask, keys = seen.mask()[rows.slice], np.arange(seen.L_kv)
    within = (keys < sinks) | ((keys >= begin) & (keys < end))
    assert not mask[:, ~within].any()
    assert 0 <= sinks <= seen.L_kv
    assert begin >= 0
    assert 0 <= end <= seen.L_kv
    if begin < end:
        assert mask[:, begin].any()
        assert mask[:, end - 1].any()
    assert mask[:, :sinks].any(axis=0).all()


@MANY
@given(blocks())
def test_tiles_cover_what_is_seen_each_once_and_no_more(block):
    seen, rows, tile_kv = block
    tiles = list(seen.tiles(rows, tile_kv))
    starts = [tile.start for tile in tiles]
    assert starts == sorted(set(starts))
    assert all(start % tile_kv == 0 for start in starts)
    assert all(tile.size == tile_kv and tile.stop == min(tile.start + tile_kv, seen.L_kv) for tile in tiles)
    some = {j // tile_kv * tile_kv for j in np.flatnonzero(seen.mask()[rows.slice].any(axis=0)).tolist()}
    assert some == set(starts)


@MANY
@given(blocks(), st.integers(1, 12))
def test_splits_partition_the_tiles_in_order(block, splits):
    seen, rows, tile_kv = block
    parts = [list(seen.tiles(rows, tile_kv, split, splits)) for split in range(splits)]
    assert [tile for part in parts for tile in part] == list(seen.tiles(rows, tile_kv))
    assert max(map(len, parts)) == -(-seen.count(rows, tile_kv) // splits)


@MANY
@given(blocks())
def test_the_count_is_that_of_the_tiles(block):
    seen, rows, tile_kv = block
    assert seen.count(rows, tile_kv) == len(list(seen.tiles(rows, tile_kv)))


@MANY
@given(blocks())
def test_in_full_tiles_every_query_sees_every_key(block):
    seen, rows, tile_kv = block
    for tile in seen.tiles(rows, tile_kv):
        full = seen.is_full(rows, tile)
        part = seen.mask()[rows.slice, tile.slice]
        assert not full or (part.all() and tile.extent == tile_kv)
        if not seen.sink and not tile.is_clipped:
            assert full == part.all()


@MANY
@given(visibilities(), st.integers(0, 30))
def test_more_keys_ahead_shift_what_is_seen(seen, more):
    """The alignment is at the bottom right: keys put ahead of all others move no edge but that of the sinks."""
    longer = replace(seen, L_kv=seen.L_kv + more, sink=0)
    assert np.array_equal(longer.mask()[:, more:], replace(seen, sink=0).mask())


def test_causal_alone_with_fewer_keys_than_queries_leaves_rows_empty():
    seen = Visibility(4, 2, causal=True)
    assert seen.shift == -2
    assert seen.mask().astype(int).tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]
    assert list(seen.tiles(Window(0, 2, 2), 32)) == []
    assert seen.count(Window(0, 2, 2), 32) == 0


def test_a_window_reaches_both_ways_unless_causal():
    assert Visibility(5, 5, window=2).mask().sum(axis=1).tolist() == [2, 3, 3, 3, 2]
    assert Visibility(5, 5, causal=True, window=2).mask().sum(axis=1).tolist() == [1, 2, 2, 2, 2]


@pytest.mark.parametrize(("causal", "want"), [(False, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), (True, [0, 1, 2, 3, 4, 5, 6])])
def test_sinks_are_visible_from_anywhere_but_not_from_ahead(causal, want):
    seen = Visibility(10, 10, causal=causal, window=4, sink=1)
    assert np.flatnonzero(seen.mask()[6]).tolist() == [0, *[j for j in want if abs(j - 6) < 4]]
    assert not Visibility(3, 1, causal=True, window=4, sink=1).mask()[:2].any()


def test_tiles_between_sinks_and_window_are_left_out():
    seen = Visibility(1, 1000, causal=True, window=4, sink=1)
    assert [tile.start for tile in seen.tiles(Window(0, 32, 1), 64)] == [0, 960]
    assert seen.count(Window(0, 32, 1), 64) == 2


def test_half_of_the_tiles_of_a_causal_square_are_visited():
    seen = Visibility(4096, 4096, causal=True)
    visited = sum(seen.count(rows, 64) for rows in Window.whole(4096).tiles(64))
    assert visited == 64 * 65 // 2


def test_without_a_mask_every_tile_but_the_clipped_one_is_full():
    seen, rows = Visibility(40, 100), Window(0, 64, 40)
    assert [seen.is_full(rows, tile) for tile in seen.tiles(rows, 64)] == [True, False]
