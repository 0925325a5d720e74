import dataclasses
from itertools import product
from math import lcm

import numpy as np
import pytest

from closedform.hw import catalogue, fragments
from closedform.hw.chain import chain_atoms
from closedform.hw.errors import BadInput
from closedform.operators.chain_layout import ChainLayout

GPUS = ("mi100", "mi210", "mi300x", "mi350x")
ATOMS = {
    f"{atom.gfx}-{atom.instruction}": atom
    for gpu in GPUS
    for atom in catalogue.get(gpu).atoms
    if atom.emit and atom.blocks == 1 and atom.dtype_a == atom.dtype_b
    if atom.dtype_a.name in ("f32", "f16", "bf16")
}
PACKED = [name for name in sorted(ATOMS) if ATOMS[name].dtype_a.bits == 16]
LANE = np.arange(64)


def layout(atom, d=96, tile_kv=96, permuted=True):
    return ChainLayout(atom, atom.dtype_a.bytes, d, tile_kv, permuted)


@pytest.fixture(params=sorted(ATOMS), scope="module")
def atom(request):
    return ATOMS[request.param]


def test_every_target_offers_both_shapes_of_each_type():
    offered = {(atom.gfx, atom.dtype_a.name, atom.m) for atom in ATOMS.values()}
    assert offered == set(product(("gfx908", "gfx90a", "gfx942", "gfx950"), ("f32", "f16", "bf16"), (16, 32)))
    assert {atom.elements_a for atom in ATOMS.values()} == {1, 2, 4, 8}


def test_keys_and_rows_are_inverse_bijections(atom):
    lay = layout(atom)
    rows = [lay.row_of_key(key) for key in range(lay.tile_kv)]
    assert [lay.key_of_row(*row) for row in rows] == list(range(lay.tile_kv))
    assert {tile * atom.m + m for tile, m in rows} == set(range(lay.tile_kv))


def test_each_lane_consumes_the_keys_that_it_holds(atom):
    """The definition of the chain: row C(m) is the key that key_of gives that lane and register."""
    lay = layout(atom)
    for tile, elem in product(range(lay.key_tiles), range(lay.acc)):
        rows = atom.c.coords(LANE, elem)["m"]
        held = [lay.key_of_row(tile, int(m)) for m in rows]
        assert held == list(lay.key_of(LANE // atom.m, tile * lay.acc + elem))
        assert held == list(lay.key_of_c(LANE // atom.m, tile, elem))


def test_agrees_with_the_chain_of_fragment_maps(atom):
    """Another route to the same thing: the steps that the C and B maps give, in rows of K as stored."""
    lay = layout(atom)
    steps = chain_atoms(atom, atom, lay.key_tiles)
    assert isinstance(steps, tuple)
    assert len(steps) * lay.ea == lay.registers
    for number, step in enumerate(steps):
        for elem, (tile, c_elem) in enumerate(step.registers):
            assert tile * lay.acc + c_elem == number * lay.ea + elem
            for lane in (0, 17, 33, 63):
                row = step.key_of_a(atom.a, lane, elem)
                key = lay.key_of_row(row // atom.m, row % atom.m)
                assert key == lay.key_of(lane // atom.m, number * lay.ea + elem)


@pytest.mark.parametrize("atom", PACKED, indirect=True)
def test_one_16_byte_access_of_v_holds_consecutive_keys(atom):
    lay = layout(atom)
    assert lay.packs_keys
    for group, first in product(range(lay.groups), range(0, lay.registers, lay.vec)):
        keys = [lay.key_of(group, first + j) for j in range(lay.vec)]
        assert keys == list(range(keys[0], keys[0] + lay.vec))
        offsets = [lay.v_offset(key, 5) for key in keys]
        assert offsets == list(range(offsets[0], offsets[0] + lay.vec))
        assert offsets[0] % lay.vec == 0


def test_the_permutation_moves_bits(atom):
    lay = layout(atom)
    bits = lay.row_of_key_bits
    assert bits is not None
    assert sorted(bits) == list(range(len(bits)))
    assert 1 << len(bits) == lay.period == lcm(lay.groups * lay.vec, atom.m)
    for key in range(lay.tile_kv):
        low = sum((key >> source & 1) << bit for bit, source in enumerate(bits))
        assert key // lay.period * lay.period + low == lay.flat_row_of_key(key)
    expected = {1: tuple(range(len(bits)))}.get(lay.ea, (0, 1, 3, 2, 4) if atom.m == 32 else (0, 1, 3, 4, 2))
    assert bits == expected
    assert lay.is_identity == (atom.dtype_a.name == "f32")


def test_d_is_covered_once_and_alike_for_both_operands(atom):
    lay = layout(atom)
    steps, parts = np.arange(lay.d_steps)[:, None, None], np.arange(lay.vec)
    d = lay.d_of(steps, np.arange(lay.groups)[:, None], parts)
    assert sorted(d.ravel()) == list(range(lay.d_pad))


@pytest.mark.parametrize("d", [32, 64, 96, 128, 160, 192, 224, 256])
def test_dv_is_a_bijection_and_every_lane_holds_runs(atom, d):
    lay = layout(atom, d=d)
    dv = {(tile, m): lay.dv_of(tile, m) for tile in range(lay.dv_tiles) for m in range(atom.m)}
    assert sorted(dv.values()) == list(range(d))
    if lay.packs_keys:
        assert all(lay.position_of_dv(value) == tile * atom.m + m for (tile, m), value in dv.items())
    for group in range(lay.groups):
        held = {dv[tile, lay.c_row(group, e)] for tile in range(lay.dv_tiles) for e in range(lay.acc)}
        assert all(value // lay.dv_run * lay.dv_run + j in held for value in held for j in range(lay.dv_run))


def test_lds_images_are_bijections_and_rows_stay_in_place(atom):
    lay = layout(atom)
    keys, d = np.arange(lay.tile_kv)[:, None], np.arange(lay.d_pad)
    everything = list(range(lay.tile_kv * lay.d_pad))
    assert sorted(lay.k_offset(keys, d).ravel()) == everything
    assert sorted(lay.v_offset(keys, d).ravel()) == everything
    assert np.array_equal(lay.k_offset(keys, d) // lay.d_pad, np.broadcast_to(keys, (lay.tile_kv, lay.d_pad)))
    queries = np.arange(32)[:, None]
    assert sorted(lay.p_offset(queries, np.arange(lay.tile_kv)).ravel()) == list(range(32 * lay.tile_kv))


def test_without_the_chain_keys_stay_in_natural_order(atom):
    lay = layout(atom, permuted=False)
    assert lay.is_identity
    assert [lay.flat_row_of_key(key) for key in range(lay.tile_kv)] == list(range(lay.tile_kv))
    for elem in range(lay.acc):
        assert list(lay.key_of_c(LANE // atom.m, 1, elem)) == list(atom.m + atom.c.coords(LANE, elem)["m"])


def test_another_c_map_gives_another_order(monkeypatch):
    written = fragments._written_maps()
    monkeypatch.setitem(written, "c32x32_rows16", "lane n32 m2*16; elem m16")
    right = ATOMS["gfx942-v_mfma_f32_32x32x8_f16"]
    wrong = dataclasses.replace(right, map_c="c32x32_rows16")
    assert layout(wrong).row_of_key_bits == (0, 1, 2, 4, 3) != layout(right).row_of_key_bits


@pytest.mark.parametrize(("name", "value"), [("d_pad", 40), ("tile_kv", 16), ("tile_kv", 0)])
def test_misaligned_sizes_are_rejected(name, value):
    lay = layout(ATOMS["gfx942-v_mfma_f32_16x16x16_f16"])
    with pytest.raises(BadInput, match=f"{name}={value} is not a multiple of 32"):
        dataclasses.replace(lay, **{name: value})


def test_maps_that_do_not_chain_are_rejected():
    f16 = ATOMS["gfx942-v_mfma_f32_32x32x8_f16"]
    several = next(a for a in catalogue.get("mi300x").atoms if a.blocks > 1 and a.dtype_a.name == "f32")
    with pytest.raises(BadInput, match="single block"):
        ChainLayout(several, 4, 64, 64)
    with pytest.raises(BadInput, match="different k"):
        layout(dataclasses.replace(f16, map_a="ab32x2"))
    with pytest.raises(BadInput, match="not a divisor"):
        ChainLayout(f16, 8, 64, 64)
