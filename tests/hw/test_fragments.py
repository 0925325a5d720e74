"""Fragment maps: bijections with a computed inverse, on ints, arrays and symbols."""

import dataclasses

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from closedform.hw import BadInput, Digit, FragmentMap
from closedform.hw.atoms import instructions
from closedform.hw.fragments import fragment_map, parse_digits

TARGETS = ("gfx908", "gfx90a", "gfx942", "gfx950")
MAPS = sorted(
    {
        (operand, getattr(atom, f"map_{operand}"), extent(atom))
        for gfx in TARGETS
        for atom in instructions(gfx, False)
        for operand, extent in (
            ("a", lambda t: (t.m, t.k, t.blocks)),
            ("b", lambda t: (t.n, t.k, t.blocks)),
            ("c", lambda t: (t.m, t.n, t.blocks)),
        )
    }
)


@pytest.mark.parametrize(("operand", "name", "shape"), MAPS, ids=str)
def test_map_is_a_bijection_with_its_computed_inverse(operand, name, shape):
    fragment = fragment_map(name, operand)
    assert tuple(fragment.shape.values()) == shape
    assert fragment.lanes == 64
    assert fragment.lanes * fragment.elements == np.prod(shape)
    seen = set()
    for lane in range(fragment.lanes):
        for elem in range(fragment.elements):
            coords = fragment.coords(lane, elem)
            assert all(0 <= coords[axis] < extent for axis, extent in fragment.shape.items())
            assert fragment.owner(**coords) == (lane, elem)
            seen.add(tuple(coords.values()))
    assert len(seen) == fragment.lanes * fragment.elements


@pytest.mark.parametrize(("operand", "name", "shape"), MAPS, ids=str)
def test_arrays_and_symbols_agree_with_ints(operand, name, shape):
    fragment = fragment_map(name, operand)
    table = fragment.table()
    lane, elem = sympy.symbols("lane elem", integer=True, nonnegative=True)
    symbolic = fragment.coords(lane, elem)
    for at in ((0, 0), (17, fragment.elements // 2), (63, fragment.elements - 1)):
        coords = fragment.coords(*at)
        for axis, value in coords.items():
            assert table[axis][at] == value
            assert table[axis].shape == (64, fragment.elements)
            assert sympy.sympify(symbolic[axis]).subs({lane: at[0], elem: at[1]}) == value
    where = fragment.owner(**table)
    assert np.array_equal(where[0], np.broadcast_to(np.arange(64)[:, None], table[fragment.axes[0]].shape))
    names = sympy.symbols(fragment.axes, integer=True, nonnegative=True)
    lane_of, elem_of = fragment.owner(**dict(zip(fragment.axes, names, strict=True)))
    values = dict(zip(names, fragment.coords(41, fragment.elements - 1).values(), strict=True))
    assert sympy.sympify(lane_of).subs(values) == 41
    assert sympy.sympify(elem_of).subs(values) == fragment.elements - 1


def test_f64_and_f32_of_one_shape_have_different_c_maps():
    f32, f64 = fragment_map("c16x16", "c"), fragment_map("c16x16_f64", "c")
    assert f32.coords(17, 2) == {"m": 6, "n": 1, "block": 0}
    assert f64.coords(17, 2) == {"m": 9, "n": 1, "block": 0}
    for gfx in TARGETS[1:]:
        by_type = {atom.dtype_a.name: atom.c for atom in instructions(gfx, False) if atom.blocks == 1 and atom.k == 4}
        assert by_type["f64"].shape == by_type["f32"].shape or by_type["f32"].shape["m"] == 32
        assert by_type["f64"] == f64


@pytest.mark.parametrize(
    ("lane", "register", "row", "column"),
    [(0, 0, 0, 0), (31, 0, 0, 31), (32, 0, 4, 0), (0, 4, 8, 0), (33, 15, 31, 1), (32, 7, 15, 0)],
)
def test_32x32_rows_step_by_8_every_4_registers(lane, register, row, column):
    coords = fragment_map("c32x32", "c").coords(lane, register)
    assert (coords["m"], coords["n"]) == (row, column)


def test_owner_counts_a_missing_axis_as_zero_and_refuses_a_foreign_one():
    fragment = fragment_map("c16x16", "c")
    assert fragment.owner(m=5) == fragment.owner(m=5, n=0, block=0) == (16, 1)
    with pytest.raises(BadInput, match="no axis k"):
        fragment.owner(k=1)


AXES = ("m", "n", "block")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lane n16 m4*8; elem m4", "axis m is not tiled exactly"),
        ("lane n16 m4*2; elem m4", "axis m is not tiled exactly"),
        ("lane n16 m4; elem m4", "axis m is not tiled exactly"),
        ("lane n16*2 m4*4; elem m4", "axis n is not tiled exactly"),
        ("lane k16", "not on the axes"),
        ("wave n16", "not on the axes"),
        ("lane n0", "has no values"),
    ],
)
def test_maps_that_are_no_bijection_are_refused(text, message):
    with pytest.raises(BadInput, match=message):
        FragmentMap("wrong", AXES, parse_digits(text))


@pytest.mark.parametrize("text", ["lane x16", "lane n", "lane n16*", "lane 16", "lane n16*a", "lane n-4"])
def test_unreadable_digits_are_refused(text):
    with pytest.raises(BadInput, match="cannot read the digit"):
        parse_digits(text)


def test_unknown_map_is_refused():
    with pytest.raises(BadInput, match="no fragment map is called 'ab17x3'"):
        fragment_map("ab17x3", "a")


@st.composite
def maps(draw):
    """Random maps: digits with strides that tile each axis, given to lane and element at random."""
    digits = []
    for axis in AXES:
        stride = 1
        for extent in draw(st.lists(st.integers(1, 5), max_size=3)):
            digits.append(Digit(draw(st.sampled_from(["lane", "elem"])), extent, axis, stride))
            stride *= extent
    return FragmentMap("random", AXES, tuple(draw(st.permutations(digits))))


@given(maps())
def test_any_tiling_of_the_axes_is_a_bijection(fragment):
    table = fragment.table()
    lane, elem = fragment.owner(**table)
    full = table["m"].shape
    assert np.array_equal(np.broadcast_to(lane, full), np.broadcast_to(np.arange(fragment.lanes)[:, None], full))
    assert np.array_equal(np.broadcast_to(elem, full), np.broadcast_to(np.arange(fragment.elements), full))


@given(maps(), st.data())
def test_a_changed_stride_is_refused_or_is_another_bijection(fragment, data):
    if not fragment.digits:
        return
    which = data.draw(st.integers(0, len(fragment.digits) - 1))
    stride = data.draw(st.integers(1, 200))
    digits = list(fragment.digits)
    digits[which] = dataclasses.replace(digits[which], stride=stride)
    try:
        changed = FragmentMap("changed", AXES, tuple(digits))
    except BadInput:
        return
    seen = {tuple(changed.coords(x, e).values()) for x in range(changed.lanes) for e in range(changed.elements)}
    assert len(seen) == changed.lanes * changed.elements
