import dataclasses
import time
from itertools import product
from types import GeneratorType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.operators import attention, gemm
from closedform.operators.attention import Attention, AttentionTiles, ScoreAtom, ValueAtom
from closedform.operators.gemm import Gemm, GemmTiles
from closedform.operators.level import Level
from closedform.operators.policy import Pad


def atom(instruction, gpu="mi300x"):
    return next(a for a in catalogue.get(gpu).atoms if a.instruction == instruction)


F16 = atom("v_mfma_f32_32x32x8_f16")
F32 = atom("v_mfma_f32_16x16x4_f32")
TILES = AttentionTiles(tile_q=32, tile_kv=64, waves=4, waves_per_simd=2, d_pad=128, atom=F16)
GEMM_TILES = GemmTiles(tile_m=64, tile_n=64, tile_k=32, wave_m=2, wave_n=2, atom=F32)


def leaves(node):
    children = list(node.children())
    return [node] if not children else [leaf for child in children for leaf in leaves(child)]


def test_a_huge_tree_costs_nothing_until_it_is_walked():
    start = time.perf_counter()
    tree = Attention(10**9, 10**9, 128, batch=10**6, heads=10**6, dtype="f16").tree(TILES)
    node = tree
    while node.level is not Level.ATOM:
        children = node.children()
        assert isinstance(children, GeneratorType)
        node = next(children)
    big = Gemm(10**9, 10**9, 10**9, batch=10**6).tree(GEMM_TILES)
    next(next(big.children()).children())
    assert tree.grid == (7812500, 10**6, 10**6)
    assert big.grid == (15625000, 15625000, 10**6)
    assert time.perf_counter() - start < 0.5


def test_no_child_is_built_before_it_is_asked_for(monkeypatch):
    def refuse(*_):
        raise AssertionError("built")

    monkeypatch.setattr(attention, "AttentionBlock", refuse)
    children = Attention(64, 64, 64, dtype="f16").tree(TILES).children()
    with pytest.raises(AssertionError, match="built"):
        next(children)


@settings(max_examples=40, deadline=None)
@given(L_q=st.integers(1, 300), L_kv=st.integers(1, 300), batch=st.integers(1, 2), heads=st.integers(1, 3))
def test_attention_leaves_cover_every_score_once(L_q, L_kv, batch, heads):
    op = Attention(L_q, L_kv, 40, batch=batch, heads=heads, dtype="f16")
    seen = set()
    for block in op.tree(TILES).children():
        assert block.rows.extent <= TILES.block_q
        for wave in block.children():
            assert wave.rows.size == TILES.tile_q
            for step in wave.children():
                rows, keys = step.views["S"].rows, step.views["S"].cols
                spans = product(range(rows.start, rows.stop), range(keys.start, keys.stop))
                new = {(step.batch, step.head, row, key) for row, key in spans}
                assert not new & seen
                seen |= new
    assert len(seen) == batch * heads * L_q * L_kv


def test_a_step_has_the_atoms_that_its_products_need():
    step = next(next(next(Attention(32, 64, 100, dtype="f16").tree(TILES).children()).children()).children())
    scores, values = list(step.score_atoms()), list(step.value_atoms())
    flops = 2 * 32 * 64 * 128
    assert len(scores) * F16.flops == len(values) * F16.flops == flops
    assert len(set(scores)) == len(scores)
    assert len(set(values)) == len(values)
    assert list(step.children()) == scores + values
    assert leaves(step) == scores + values


def test_the_variant_without_a_second_mfma_has_no_value_atoms():
    tree = Attention(32, 64, 100, dtype="f16", variant="fma").tree(TILES)
    step = next(next(next(tree.children()).children()).children())
    assert all(isinstance(child, ScoreAtom) for child in step.children())
    assert [type(child) for child in step.interior()] == [ScoreAtom]


def test_interior_children_are_unclipped_whatever_the_shape():
    node = Attention(1, 1, 1, dtype="f16").tree(TILES)
    for name in ("AttentionBlock", "AttentionWave", "AttentionStep"):
        (node,) = node.interior()
        assert type(node).__name__ == name
        assert not node.views["S"].rows.is_clipped
    assert not node.views["S"].cols.is_clipped
    assert [type(child) for child in node.interior()] == [ScoreAtom, ValueAtom]
    assert all(child.interior() == () and not list(child.children()) for child in node.interior())


@settings(max_examples=30, deadline=None)
@given(M=st.integers(1, 100), N=st.integers(1, 100), K=st.integers(1, 100))
def test_gemm_leaves_cover_every_product_once(M, N, K):
    volume = 0
    for leaf in leaves(Gemm(M, N, K).tree(GEMM_TILES)):
        rows, cols, ks = leaf.rows, leaf.cols, leaf.ks
        assert max(rows.stop - M, cols.stop - N, ks.stop - K) <= 0
        assert (rows.start % 16, cols.start % 16, ks.start % 4) == (0, 0, 0)
        volume += rows.extent * cols.extent * ks.extent
    assert volume == M * N * K


def test_boundary_policy_is_visible_and_apart_from_the_tiles():
    tree = Attention(5, 5, 5, dtype="f16").tree()
    assert tree.tiles is None
    assert tree.boundary["S"] is Pad.MAX_IDENTITY
    assert tree.boundary["K"] is tree.boundary["V"] is Pad.ZERO
    assert float("-inf") == Pad.MAX_IDENTITY.value
    assert "boundary" not in {field.name for field in dataclasses.fields(AttentionTiles)}


@pytest.mark.parametrize("op", [Attention(64, 64, 64), Gemm(64, 64, 64)], ids=["attention", "gemm"])
def test_an_open_tree_has_no_children(op):
    tree = op.tree()
    with pytest.raises(BadInput, match="not been derived"):
        next(tree.children())
    with pytest.raises(BadInput, match="not been derived"):
        tree.interior()
    assert tree.views


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"L_q": 0}, "L_q=0 must be at least 1"),
        ({"L_kv": -3}, "L_kv=-3"),
        ({"d": 0}, "d=0"),
        ({"d": 513}, "d=513 is above the limit of 512"),
        ({"d": 1000}, "limit of 512"),
        ({"batch": 0}, "batch=0"),
        ({"heads": True}, "heads=True must be a whole number"),
        ({"L_q": 2.5}, "L_q=2.5 must be a whole number"),
        ({"dtype": "fp16"}, "did you mean f16"),
        ({"dtype": "f64"}, "not offered for attention"),
        ({"variant": "chain"}, "did you mean chained"),
        ({"heads": 6, "kv_heads": 4}, "heads=6 is not a multiple of kv_heads=4"),
        ({"kv_heads": -1}, "kv_heads=-1"),
        ({"kv_heads": True}, "kv_heads=True must be a whole number"),
        ({"softmax_scale": 0.0}, "softmax_scale=0.0 must be a number from"),
        ({"softmax_scale": -1.0}, "softmax_scale=-1.0"),
        ({"softmax_scale": float("nan")}, "softmax_scale=nan"),
        ({"softmax_scale": "1"}, "softmax_scale='1'"),
    ],
)
def test_attention_rejects(fields, message):
    with pytest.raises(BadInput, match=message):
        Attention(**{"L_q": 16, "L_kv": 16, "d": 16, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"M": 0}, "M=0"),
        ({"N": True}, "N=True"),
        ({"K": "4"}, "K='4'"),
        ({"batch": -1}, "batch=-1"),
        ({"dtype": "f23"}, "did you mean f"),
        ({"layout": "NX"}, "not offered"),
    ],
)
def test_gemm_rejects(fields, message):
    with pytest.raises(BadInput, match=message):
        Gemm(**{"M": 16, "N": 16, "K": 16, **fields})


def test_tiles_that_do_not_fit_their_atom_are_rejected():
    with pytest.raises(BadInput, match="tile_q=48 is not a multiple of the 32"):
        dataclasses.replace(TILES, tile_q=48)
    with pytest.raises(BadInput, match="waves=0"):
        dataclasses.replace(TILES, waves=0)
    with pytest.raises(BadInput, match="d_pad=128 is below d=129"):
        Attention(8, 8, 129, dtype="f16").tree(TILES)
    with pytest.raises(BadInput, match="does not take bf16"):
        Attention(8, 8, 128, dtype="bf16").tree(TILES)
    with pytest.raises(BadInput, match="tile_kv=48 is not a multiple of 32"):
        dataclasses.replace(TILES, tile_kv=48).layout(Attention(8, 8, 128, dtype="f16"))
    with pytest.raises(BadInput, match="tile_m=48 is not a multiple of 32"):
        dataclasses.replace(GEMM_TILES, tile_m=48)
    with pytest.raises(BadInput, match="does not take f16"):
        Gemm(8, 8, 8, dtype="f16").tree(GEMM_TILES)
    several = next(a for a in catalogue.get("mi300x").atoms if a.blocks > 1 and a.dtype_a.name == "f32")
    with pytest.raises(BadInput, match="single-block"):
        GemmTiles(64, 64, 64, 1, 1, several)


def test_module_tables_name_what_is_offered():
    assert attention.VARIANTS == ("chained", "lds", "fma")
    assert gemm.LAYOUTS == ("NN", "NT", "TN", "TT")
    assert Gemm(2, 3, 4, layout="TT").shape_a == (4, 2)
    assert Gemm(2, 3, 4, layout="TT").shape_b == (3, 4)
