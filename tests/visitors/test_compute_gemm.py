"""Gemm executed at every level against float64."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from closedform.hw import catalogue
from closedform.operators.accuracy import compare
from closedform.operators.gemm import DTYPES, LAYOUTS, Gemm, GemmTiles
from closedform.operators.level import Level
from closedform.operators.reference import reference
from closedform.visitors.compute import ComputeVisitor, input_shapes
from closedform.visitors.feasibility import derive

GPUS = ("mi100", "mi210", "mi300x", "mi350x")
ATOMS = {
    f"{atom.gfx}-{atom.instruction}": atom
    for gpu in GPUS
    for atom in catalogue.get(gpu).atoms
    if atom.blocks == 1 and atom.dtype_a == atom.dtype_b and atom.dtype_a.name in DTYPES
    if atom.emit or atom.dtype_a.name == "f64"
}
KINDS = {(atom.dtype_a.name, atom.m, atom.k): atom for atom in ATOMS.values()}
TOP = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, *HealthCheck]
)


@st.composite
def problems(draw, longest):
    atom = draw(st.sampled_from(list(KINDS.values())))
    sizes = [draw(st.integers(1, longest)) for _ in "MNK"]
    op = Gemm(
        *sizes,
        dtype=atom.dtype_a.name,
        batch=draw(st.integers(1, 2)),
        layout=draw(st.sampled_from(LAYOUTS)),
    )
    wave_m, wave_n = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    parts = [draw(st.integers(1, 2)) for _ in "MNK"]
    tiles = GemmTiles(atom.m * wave_m * parts[0], atom.n * wave_n * parts[1], atom.k * parts[2], wave_m, wave_n, atom)
    return op, tiles, draw(st.integers(0, 2**32))


def check(op, tiles, level, seed):
    rng = np.random.default_rng(seed)
    inputs = {name: rng.standard_normal(shape) for name, shape in input_shapes(op).items()}
    return compare(op, ComputeVisitor(level).run(op.tree(tiles), **inputs), reference(op, **inputs))


def sweep(level, longest, worst, **options):
    @settings(TOP, **options)
    @given(problems(longest))
    def agrees(problem):
        op, tiles, seed = problem
        verdict = check(op, tiles, level, seed)
        worst[op.dtype] = max(worst.get(op.dtype, 0.0), verdict.max_rel_error)
        assert verdict.ok, verdict

    agrees()


@pytest.mark.parametrize("level", list(Level))
def test_every_level_agrees_with_float64(level, worst):
    sweep(level, 80 if level is Level.ATOM else 300, worst, max_examples=30)


@pytest.mark.slow
@pytest.mark.parametrize("level", list(Level))
def test_every_level_agrees_with_float64_at_length(level, worst):
    sweep(level, 300, worst, max_examples=300, derandomize=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", sorted(ATOMS))
def test_every_atom_offered_agrees_at_the_atom_level(name, layout, worst):
    atom = ATOMS[name]
    op = Gemm(45, 39, 21, dtype=atom.dtype_a.name, layout=layout)
    verdict = check(op, GemmTiles(32, 32, atom.k, 1, 1, atom), Level.ATOM, 5)
    worst[op.dtype] = verdict.max_rel_error
    assert verdict.ok, verdict


def test_f64_is_exact_to_its_own_roundoff():
    """The C map of f64 differs from that of f32 at the same shape: each type needs its own."""
    atom = next(a for a in ATOMS.values() if a.dtype_a.name == "f64")
    op, tiles = Gemm(50, 50, 50, dtype="f64"), GemmTiles(32, 32, 16, 2, 2, atom)
    verdict = check(op, tiles, Level.ATOM, 1)
    assert verdict.ok
    assert verdict.max_rel_error < 1e-14
    like_f32 = dataclasses.replace(atom, map_c="c16x16")
    assert check(op, dataclasses.replace(tiles, atom=like_f32), Level.ATOM, 1).share > 1e10


def test_the_device_level_needs_no_tiles():
    assert check(Gemm(20, 30, 40), None, Level.DEVICE, 3).ok


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("bias", ["none", "row", "column"])
def test_the_epilogue_is_that_of_torch(bias: str, activation: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = "f64" if activation in ("none", "relu") else "f32"  # the others are computed in f32
    op = Gemm(20, 24, 40, dtype=dtype, layout="NT", batch=2, has_c=True, bias=bias, activation=activation)
    rng = np.random.default_rng(3)
    inputs = {name: rng.standard_normal(shape).astype("f4") for name, shape in input_shapes(op).items()}
    tiles = derive(op, catalogue.get("mi300x")).tiles
    out = ComputeVisitor("block").run(op.tree(tiles), alpha=2.0, beta=0.5, **inputs)
    a, b, c = (torch.tensor(inputs[name]).double() for name in "ABC")
    want = 2 * a @ b.mT + 0.5 * c
    if bias != "none":
        added = torch.tensor(inputs["bias"]).double()
        want = want + (added[:, :, None] if bias == "row" else added[:, None, :])
    want = want if activation == "none" else getattr(torch.nn.functional, activation)(want)
    small = 1e-12 if dtype == "f64" else 1e-5
    assert np.allclose(out, want.numpy(), rtol=small, atol=small)
    assert compare(op, out, reference(op, alpha=2.0, beta=0.5, **inputs)).ok
