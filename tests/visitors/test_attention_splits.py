"""Decoding: how many workgroups share the keys of a query block, by formula, so that a GPU is filled."""

import pytest

from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.operators.attention import Attention
from closedform.visitors.attention_grid import split_count
from closedform.visitors.feasibility import derive

GPUS = ("mi100", "mi210", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x")


@pytest.mark.parametrize("options", [{}, {"kv_heads": 4}, {"kv_heads": 4, "key_lengths": True, "page": 16}], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("hw", GPUS)
def test_one_query_of_long_keys_fills_every_gpu(hw, dtype, options):
    for d in (64, 128):
        derivation = derive(Attention(1, 131072, d, heads=32, dtype=dtype, **options), catalogue.get(hw), "default")
        grid = derivation.grid
        assert derivation.tiles.splits > 1
        assert grid.blocks / (grid.rounds * grid.workgroups_per_cu * grid.num_cus) >= 0.9


@pytest.mark.parametrize("blocks", [1, 7, 32, 40, 97, 300])
@pytest.mark.parametrize("slots", [80, 104, 120, 228, 304, 608])
def test_the_count_uses_the_slots(blocks, slots):
    splits = split_count(blocks, slots, 10**6)
    rounds = -(-blocks * splits // slots)
    assert blocks * splits / (rounds * slots) >= 0.9 or splits == 1


def test_no_more_splits_than_steps():
    for steps in (1, 2, 5):
        assert split_count(32, 304, steps) <= max(steps, 1)
    assert split_count(304, 304, 1000) == 1


def test_many_queries_are_not_split():
    assert derive(Attention(4096, 4096, 128, heads=32, dtype="f16"), catalogue.get("mi300x")).tiles.splits == 1


def test_a_choice_of_splits_is_refused_where_there_are_none():
    for op in (Attention(1, 4096, 64, varlen=True), Attention(1, 4096, 64, variant="lds")):
        with pytest.raises(BadInput, match="splits"):
            derive(op, catalogue.get("mi300x"), "default", splits=2)
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(BadInput, match="splits"):
            derive(Attention(1, 4096, 64), catalogue.get("mi300x"), "default", splits=wrong)
