"""The atom level is a check only if faults show: wrong maps, chains and LDS indices give wrong numbers."""

import dataclasses

import numpy as np
import pytest

from closedform.hw import catalogue, fragments
from closedform.hw.errors import BadInput, ClosedformError
from closedform.operators.accuracy import compare
from closedform.operators.attention import Attention, AttentionTiles
from closedform.operators.gemm import Gemm, GemmTiles
from closedform.operators.level import Level
from closedform.operators.node import Node
from closedform.operators.reference import reference
from closedform.visitors.compute import ComputeVisitor, input_shapes
from closedform.visitors.compute_attention_machine import AttentionMachine
from closedform.visitors.visitor import UnknownNode


def atom(instruction, gpu="mi300x"):
    return next(a for a in catalogue.get(gpu).atoms if a.instruction == instruction)


NAMES = {
    ("f32", 32): "v_mfma_f32_32x32x2_f32",
    ("f32", 16): "v_mfma_f32_16x16x4_f32",
    ("f16", 32): "v_mfma_f32_32x32x8_f16",
    ("f16", 16): "v_mfma_f32_16x16x16_f16",
    ("bf16", 32): "v_mfma_f32_32x32x8_bf16",
    ("bf16", 16): "v_mfma_f32_16x16x16_bf16",
}


def verdict(op, tiles, visitor=ComputeVisitor, level=Level.ATOM):
    rng = np.random.default_rng(7)
    inputs = {name: rng.standard_normal(shape) for name, shape in input_shapes(op).items()}
    return compare(op, visitor(level).run(op.tree(tiles), **inputs), reference(op, **inputs))


def attention(one, variant="chained"):
    """Whole tiles only, so that no mask hides or adds anything."""
    op = Attention(64, 128, 64, dtype=one.dtype_a.name, variant=variant)
    return op, AttentionTiles(32, 64, 2, 1, 64, one)


@pytest.fixture
def wrong_maps(monkeypatch):
    """Maps that have been taken for the C map of an MFMA: rows 16 g + register for 32x32, and the f64 map."""
    written = fragments._written_maps()
    monkeypatch.setitem(written, "c32x32_rows16", "lane n32 m2*16; elem m16")
    return {32: "c32x32_rows16", 16: "c16x16_f64"}


@pytest.mark.parametrize("variant", ["chained", "lds"])
@pytest.mark.parametrize("kind", sorted(NAMES))
def test_a_wrong_c_map_fails(kind, variant, wrong_maps):
    right = atom(NAMES[kind])
    wrong = dataclasses.replace(right, map_c=wrong_maps[right.m])
    assert verdict(*attention(right, variant)).ok
    found = verdict(*attention(wrong, variant))
    assert not found.ok
    assert found.share > 10
    # Above the atom level no register exists, so nothing can tell.
    assert verdict(*attention(wrong, variant), level=Level.WAVE).ok


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_a_wrong_c_map_fails_in_gemm(kind, wrong_maps):
    right = atom(NAMES[kind])
    wrong = dataclasses.replace(right, map_c=wrong_maps[right.m])
    op = Gemm(64, 64, 32, dtype=kind[0])
    assert verdict(op, GemmTiles(64, 64, 32, 1, 1, right)).ok
    assert verdict(op, GemmTiles(64, 64, 32, 1, 1, wrong)).share > 10


@pytest.mark.parametrize("operand", ["map_a", "map_b"])
def test_a_wrong_operand_map_fails_in_gemm(operand, monkeypatch):
    """k of a lane strided instead of consecutive, in one operand only."""
    monkeypatch.setitem(fragments._written_maps(), "ab16x16_strided", "lane r16 k4; elem k4*4")
    wrong = dataclasses.replace(atom("v_mfma_f32_16x16x16_f16"), **{operand: "ab16x16_strided"})
    assert verdict(Gemm(32, 32, 32, dtype="f16"), GemmTiles(32, 32, 32, 1, 1, wrong)).share > 10


class Unpermuted(AttentionMachine):
    """K rows in natural order, while P is still consumed from its registers as if they were permuted."""

    def make_layout(self):
        return dataclasses.replace(super().make_layout(), permuted=False)


class Unswizzled(AttentionMachine):
    """K written with the swizzle and read without."""

    def _index_lds(self):
        super()._index_lds()
        tiles = np.arange(self.layout.key_tiles)[:, None, None, None]
        rows = tiles * self.layout.atom.m + self.column[:, None]
        self.k_read = rows * self.layout.d_pad + self.d_of


class UnpackedV(AttentionMachine):
    """V written row by row and read as packed keys."""

    def _index_lds(self):
        super()._index_lds()
        keys, dv = np.arange(self.layout.tile_kv)[:, None], np.arange(self.layout.d_pad)
        self.v_write = keys * self.layout.d_pad + dv


class WrongOutputColumns(AttentionMachine):
    """O stored as if dv were in the order of the C tiles."""

    def _index_lds(self):
        super()._index_lds()
        rows = self.layout.c_row(self.group[:, None], np.arange(self.layout.acc))
        self.dv_held = np.arange(self.layout.dv_tiles)[:, None, None] * self.layout.atom.m + rows


@pytest.mark.parametrize("machine", [Unpermuted, Unswizzled, UnpackedV, WrongOutputColumns])
@pytest.mark.parametrize("kind", [kind for kind in sorted(NAMES) if kind[0] != "f32"])
def test_a_wrong_chain_or_lds_index_fails(kind, machine):
    class Faulty(ComputeVisitor):
        machine_class = machine

    found = verdict(*attention(atom(NAMES[kind])), visitor=Faulty)
    assert not found.ok
    assert found.share > 10


def test_f32_needs_no_permutation():
    class Natural(ComputeVisitor):
        machine_class = Unpermuted

    assert verdict(*attention(atom(NAMES["f32", 32])), visitor=Natural).ok


def test_an_lds_element_that_nobody_wrote_shows():
    class HalfLoaded(AttentionMachine):
        def _index_lds(self):
            super()._index_lds()
            self.k_write = self.k_write % (self.layout.tile_kv * self.layout.d_pad // 2)

    class Faulty(ComputeVisitor):
        machine_class = HalfLoaded

    assert verdict(*attention(atom(NAMES["f16", 32])), visitor=Faulty).max_rel_error == np.inf


def test_an_unknown_node_raises():
    class Stray(Node):
        views, tiles, op = {}, None, None

        def children(self):
            return iter(())

        def interior(self):
            return ()

    with pytest.raises(UnknownNode, match="ComputeVisitor has no method for Stray"):
        ComputeVisitor(Level.WAVE).visit(Stray())
    assert issubclass(UnknownNode, ClosedformError)


def test_an_instruction_that_the_target_lacks_is_refused():
    op, tiles = attention(dataclasses.replace(atom(NAMES["f16", 32]), gfx="gfx908"))
    with pytest.raises(BadInput, match="not a single-block instruction of gfx908"):
        verdict(op, tiles)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Q": None}, r"Q has shape \(\), expected"),
        ({"Q": object()}, "Q is not an array of real numbers"),
        ({"K": np.zeros((1, 1, 129, 64))}, r"K has shape \(1, 1, 129, 64\), expected \(1, 1, 128, 64\)"),
        ({"V": np.full((1, 1, 128, 64), "x")}, "V is not an array of real numbers"),
        ({"A": np.zeros(1)}, "takes the inputs Q, K, V, not A, K, Q, V"),
    ],
)
def test_bad_inputs_are_rejected(change, message):
    op, tiles = attention(atom(NAMES["f16", 32]))
    inputs = {name: np.zeros(shape) for name, shape in input_shapes(op).items()}
    with pytest.raises(BadInput, match=message):
        ComputeVisitor(Level.WAVE).run(op.tree(tiles), **{**inputs, **change})


def test_missing_inputs_unknown_levels_and_open_trees_are_rejected():
    op, _ = attention(atom(NAMES["f16", 32]))
    inputs = {name: np.zeros(shape) for name, shape in input_shapes(op).items()}
    with pytest.raises(BadInput, match="not none"):
        ComputeVisitor(Level.WAVE).run(op.tree())
    with pytest.raises(BadInput, match="unknown level"):
        ComputeVisitor("thread")
    for level in (Level.BLOCK, Level.WAVE, Level.ATOM):
        with pytest.raises(BadInput, match="not been derived"):
            ComputeVisitor(level).run(op.tree(), **inputs)
