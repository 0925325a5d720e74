"""The tree of softmax: every element belongs to one node of each level, and what does not exist is padding."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform.hw.errors import BadInput
from closedform.operators.level import Level
from closedform.operators.policy import Pad
from closedform.operators.softmax import COLS_MAX, ROWS_MAX, Softmax, SoftmaxTiles


@st.composite
def problems(draw):
    """A small softmax and tiles that cover it."""
    dtype = draw(st.sampled_from(["f32", "f16", "bf16"]))
    op = Softmax(draw(st.integers(1, 20)), draw(st.integers(1, 3000)), dtype)
    lanes = draw(st.sampled_from([n for n in (4, 8, 16, 64, 128, 256) if n >= op.vec]))
    chunks, splits = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 5]))
    passes = 1 if splits == 1 and op.cols <= lanes * chunks * op.vec else 2
    rows = max(1, 64 // lanes) * (draw(st.sampled_from([1, 2])) if splits == 1 else 1)
    splits = splits if rows == 1 else 1
    return op, SoftmaxTiles(op.vec, True, lanes, chunks, rows, passes, splits, 1)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_element_belongs_to_the_lanes_of_one_wave(problem):
    op, tiles = problem
    seen = set()
    tree = op.tree(tiles)
    blocks = list(tree.children())
    assert len(blocks) == tree.blocks
    for block in blocks:
        assert block.rows.size == tiles.block_rows
        for wave in block.children():
            assert wave.rows.extent <= tiles.wave_rows
            for cols in [wave.ends, *(lanes.cols for lanes in wave.children())]:
                new = {(r, c) for r in range(wave.rows.start, wave.rows.stop) for c in range(cols.start, cols.stop)}
                assert not new & seen
                seen |= new
    assert seen == {(r, c) for r in range(op.rows) for c in range(op.cols)}


@pytest.mark.parametrize("level", list(Level))
def test_absent_logits_are_the_identity_of_the_maximum(level):
    node = Softmax(3, 100).tree(SoftmaxTiles(4, False, 64, 1, 1, 1, 1, 1))
    while node.level is not level:
        node = next(node.children())
    assert node.boundary == {"X": Pad.MAX_IDENTITY, "O": Pad.ZERO}
    assert node.views["X"].shape[0] <= 3
    assert node.interior() == () or not node.interior()[0].views["X"].is_clipped


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 0}, "rows=0"),
        ({"rows": ROWS_MAX + 1}, "rows="),
        ({"cols": 0}, "cols=0"),
        ({"cols": COLS_MAX + 1}, "cols="),
        ({"cols": 1.5}, "whole number"),
        ({"dtype": "f64"}, "dtype='f64'"),
        ({"empty": "zeros"}, "empty='zeros'"),
        ({"log": 1}, "log=1"),
        ({"mask": None}, "mask=None"),
        ({"lse": "yes"}, "lse='yes'"),
        ({"ld": 63}, "ld=63 is shorter"),
        ({"ld": -1}, "ld=-1"),
    ],
)
def test_operators_that_do_not_exist_are_refused(fields, message):
    with pytest.raises(BadInput, match=message):
        Softmax(**{"rows": 4, "cols": 64, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lanes": 48}, "power of two"),
        ({"block_rows": 3}, "power of two"),
        ({"lanes": 2, "block_rows": 32}, "lanes=2"),
        ({"lanes": 2048}, "lanes=2048"),
        ({"lanes": 32, "block_rows": 1}, "work-items"),
        ({"lanes": 1024, "block_rows": 2}, "work-items"),
        ({"passes": 3}, "passes=3"),
        ({"splits": 2}, "read it twice"),
        ({"splits": 2, "passes": 2, "block_rows": 2}, "read it twice"),
        ({"chunks": 0}, "chunks=0"),
    ],
)
def test_tiles_that_do_not_exist_are_refused(fields, message):
    tiles = {"lanes": 64, "chunks": 1, "block_rows": 1, "passes": 1, "splits": 1, **fields}
    with pytest.raises(BadInput, match=message):
        SoftmaxTiles(vec=4, ends=False, waves_per_simd=1, **tiles)


@pytest.mark.parametrize(
    ("op", "tiles", "message"),
    [
        (Softmax(4, 64, "f16"), SoftmaxTiles(4, False, 64, 1, 1, 1, 1, 1), "accesses of 4"),
        (Softmax(4, 63), SoftmaxTiles(4, False, 64, 1, 1, 1, 1, 1), "beside whole accesses"),
        (Softmax(4, 64, "f16", ld=65), SoftmaxTiles(8, False, 64, 1, 1, 1, 1, 1), "65 apart"),
        (Softmax(4, 257), SoftmaxTiles(4, True, 64, 1, 1, 1, 1, 1), "one pass"),
    ],
)
def test_tiles_of_another_operator_are_refused(op, tiles, message):
    with pytest.raises(BadInput, match=message):
        op.tree(tiles)


def test_an_open_tree_has_no_children():
    with pytest.raises(BadInput, match="open"):
        next(Softmax(4, 64).tree().children())
