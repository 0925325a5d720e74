"""Attention executed at every level against float64."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from closedform.hw import catalogue
from closedform.operators.accuracy import compare, compare_lse, relative_error
from closedform.operators.attention import VARIANTS, Attention, AttentionTiles
from closedform.operators.level import Level
from closedform.operators.reference import lse_reference, reference
from closedform.simulation_case import worst_of
from closedform.visitors.compute import ComputeVisitor, input_shapes

GPUS = ("mi100", "mi210", "mi300x", "mi350x")
#: Types that every variant takes.
WIDE = ("f32", "f16", "bf16")
ATOMS = {
    f"{atom.gfx}-{atom.instruction}": atom
    for gpu in GPUS
    for atom in catalogue.get(gpu).atoms
    if atom.emit and atom.blocks == 1 and atom.dtype_a == atom.dtype_b and atom.dtype_a.name in WIDE
}
#: Instructions that differ in shape or types; the same ones recur on several targets.
KINDS = {(atom.dtype_a.name, atom.m, atom.k): atom for atom in ATOMS.values()}
TOP = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, *HealthCheck]
)
EXAMPLES = {Level.DEVICE: 40, Level.BLOCK: 40, Level.WAVE: 60, Level.ATOM: 80}


@st.composite
def problems(draw, longest=300):
    """An operator, tiles that it need not divide by, and a seed."""
    atom = draw(st.sampled_from(list(KINDS.values())))
    op = Attention(
        L_q=draw(st.integers(1, longest)),
        L_kv=draw(st.integers(1, longest)),
        d=draw(st.integers(1, 256)),
        batch=draw(st.integers(1, 2)),
        heads=draw(st.sampled_from([1, 2, 6])),
        kv_heads=draw(st.sampled_from([0, 1])),
        softmax_scale=draw(st.sampled_from([None, 0.02, 1.0])),
        lse=True,
        dtype=atom.dtype_a.name,
        variant=draw(st.sampled_from(VARIANTS)),
    )
    return op, draw_tiles(draw, op, atom), draw(st.integers(0, 2**32))


def draw_tiles(draw, op, atom):
    return tiles_for(
        op, atom, draw(st.sampled_from([atom.n, 32, 64])), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    )


def tiles_for(op, atom, tile_q=32, steps=1, waves=2):
    align = max(32, atom.m)
    return AttentionTiles(tile_q, align * steps, waves, 1, -(-op.d // align) * align, atom)


def normal(op, seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in input_shapes(op).items()}


def check(op, tiles, level, inputs, visitor=ComputeVisitor):
    """Of O and, where it is a result, of the log-sum-exp: the worse one."""
    computed = visitor(level)
    parts = [compare(op, computed.run(op.tree(tiles), **inputs), reference(op, **inputs))]
    if op.lse:
        parts.append(compare_lse(op, computed.lse, lse_reference(op, **inputs)))
    return worst_of(parts)


def every_problem_agrees(level, worst, how_many):
    @how_many
    @given(problems())
    def agrees(problem):
        op, tiles, seed = problem
        verdict = check(op, tiles, level, normal(op, seed))
        worst[op.dtype] = max(worst.get(op.dtype, 0.0), verdict.max_rel_error)
        assert verdict.ok, verdict

    agrees()


@pytest.mark.parametrize("level", list(Level))
def test_every_level_agrees_with_float64(level, worst):
    every_problem_agrees(level, worst, settings(TOP, max_examples=EXAMPLES[level]))


@pytest.mark.slow
@pytest.mark.parametrize("level", list(Level))
def test_every_level_agrees_with_float64_at_length(level, worst):
    every_problem_agrees(level, worst, settings(TOP, max_examples=600, derandomize=False))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", sorted(ATOMS))
def test_every_atom_offered_agrees_at_the_atom_level(name, variant, worst):
    """Clipped on every edge: 45 = 32 + 13 queries, 75 = 64 + 11 keys, d = 72 of 96."""
    atom = ATOMS[name]
    op = Attention(45, 75, 72, dtype=atom.dtype_a.name, variant=variant)
    verdict = check(op, tiles_for(op, atom), Level.ATOM, normal(op, 5))
    worst[op.dtype] = verdict.max_rel_error
    assert verdict.ok, verdict


@pytest.mark.parametrize("name", ["gfx942-v_mfma_f32_32x32x8_f16", "gfx90a-v_mfma_f32_16x16x4f32"])
@pytest.mark.parametrize("level", list(Level))
def test_single_row_key_and_column(name, level):
    atom = ATOMS[name]
    for L_q, L_kv, d in ((1, 1, 1), (1, 300, 1), (300, 1, 256), (33, 31, 255)):
        op = Attention(L_q, L_kv, d, batch=2, heads=3, dtype=atom.dtype_a.name)
        assert check(op, tiles_for(op, atom, waves=4), level, normal(op, 1)).ok


def test_levels_agree_with_each_other_bit_by_bit_where_no_rounding_differs():
    """One key: every level does the same single operation on each element."""
    atom = ATOMS["gfx942-v_mfma_f32_16x16x16_bf16"]
    op = Attention(50, 1, 64, dtype="bf16")
    results = [ComputeVisitor(level).run(op.tree(tiles_for(op, atom)), **normal(op, 2)) for level in Level]
    assert all(np.array_equal(result, results[0]) for result in results)


def test_the_device_level_needs_no_tiles():
    op = Attention(20, 30, 40)
    out = ComputeVisitor("device").run(op.tree(), **normal(op, 3))
    assert compare(op, out, reference(op, **normal(op, 3))).ok


@pytest.mark.parametrize("level", list(Level))
def test_only_the_nodes_down_to_the_level_are_visited(level):
    class Counting(ComputeVisitor):
        def visit(self, node):
            visited.add(type(node).__name__)
            return super().visit(node)

    visited = set()
    op = Attention(70, 70, 32)
    Counting(level).run(op.tree(tiles_for(op, ATOMS["gfx942-v_mfma_f32_32x32x2_f32"])), **normal(op, 4))
    assert (
        visited
        == {
            Level.DEVICE: {"AttentionDevice"},
            Level.BLOCK: {"AttentionDevice", "AttentionBlock"},
            Level.WAVE: {"AttentionDevice", "AttentionBlock", "AttentionWave", "AttentionStep"},
            Level.ATOM: {"AttentionDevice", "AttentionBlock", "AttentionStep", "ScoreAtom", "ValueAtom"},
        }[level]
    )


def test_the_order_of_batches_and_heads_is_kept():
    atom = ATOMS["gfx942-v_mfma_f32_32x32x8_f16"]
    op = Attention(40, 50, 32, batch=2, heads=3, dtype="f16")
    inputs = normal(op, 6)
    together = ComputeVisitor(Level.ATOM).run(op.tree(tiles_for(op, atom)), **inputs)
    single = dataclasses.replace(op, batch=1, heads=1)
    for b, h in np.ndindex(2, 3):
        part = {name: x[b : b + 1, h : h + 1] for name, x in inputs.items()}
        alone = ComputeVisitor(Level.ATOM).run(single.tree(tiles_for(single, atom)), **part)
        assert relative_error(alone[0, 0], together[b, h]).max() == 0
