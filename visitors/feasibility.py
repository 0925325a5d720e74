"""FeasibilityVisitor: from an open tree and a descriptor to tiles, or to the constraint that forbids them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, Infeasible, near_names
from closedform.operators.attention import (
    Attention,
    AttentionBlock,
    AttentionDevice,
    AttentionStep,
    AttentionWave,
    ScoreAtom,
    ValueAtom,
)
from closedform.operators.conv2d import Conv2dAtom, Conv2dBlock, Conv2dDevice, Conv2dWave
from closedform.operators.depthwise import DepthwiseBlock, DepthwiseLanes, DepthwiseWave
from closedform.operators.gemm import GemmAtom, GemmBlock, GemmDevice, GemmWave
from closedform.operators.node import Node
from closedform.operators.operator import Operator
from closedform.operators.softmax import SoftmaxBlock, SoftmaxDevice, SoftmaxLanes, SoftmaxWave

from .attention_default import Overrides, derive_default
from .attention_paper import derive_paper
from .conv2d_choice import derive_convolution
from .derivation import Derivation, NodeCheck, PredictedResources
from .gemm_default import derive_gemm_default
from .gemm_paper import derive_gemm
from .softmax_default import derive_softmax
from .visitor import Visitor

__all__ = ["FeasibilityVisitor", "derive", "derive_attention"]

#: Lanes of a wave on every CDNA GPU; fragment maps and emitted kernels are written for it.
WAVE_LANES = 64
#: Derivations of each operator, by name.
MODELS = {
    "attention": ("default", "paper"),
    "gemm": ("default", "paper"),
    "softmax": ("default",),
    "conv2d": ("default",),
}


class FeasibilityVisitor(Visitor):
    """Derives tiles at the root of an open tree, then goes down the tiled tree and holds each level to its capacity.

    The generic child stands for all children of a node: they run the same code on less data.

    `overrides` fix parts of the tile policy, by knob name; what they leave open is derived, and what they make
    impossible is returned as the binding constraint.
    """

    resources: PredictedResources

    def __init__(self, hw: HardwareDescriptor, model: str, **overrides: Any) -> None:
        self.hw = hw
        self.model = model
        self.overrides = {name: value for name, value in overrides.items() if value is not None}

    def visit_AttentionDevice(self, node: AttentionDevice) -> Derivation:
        self._check_model("attention")
        if self.model == "paper":
            self._no_overrides()
            return self._checked(derive_paper(node.op, self.hw))
        unknown = sorted(set(self.overrides) - {f.name for f in fields(Overrides)})
        if unknown:
            raise BadInput(
                f"unknown override {unknown[0]!r}: {near_names(unknown[0], (f.name for f in fields(Overrides)))}"
            )
        return self._checked(derive_default(node.op, self.hw, Overrides(**self.overrides)))

    def visit_GemmDevice(self, node: GemmDevice) -> Derivation:
        self._check_model("gemm")
        if self.model == "paper":
            self._no_overrides()
            return self._checked(derive_gemm(node.op, self.hw))
        return self._checked(derive_gemm_default(node.op, self.hw, **self.overrides))

    def visit_SoftmaxDevice(self, node: SoftmaxDevice) -> Derivation:
        self._check_model("softmax")
        return self._checked(derive_softmax(node.op, self.hw, **self.overrides))

    def visit_Conv2dDevice(self, node: Conv2dDevice) -> Derivation:
        self._check_model("conv2d")
        return self._checked(derive_convolution(node.op, self.hw, **self.overrides))

    # --- the tiled tree, level by level -------------------------------------------------------------------------

    def _checked(self, derivation: Derivation) -> Derivation:
        """The derivation with the capacities met on the way down; the first one that does not hold forbids it."""
        if derivation.tiles is None:
            return derivation
        tiles, self.resources, _ = derivation.require()
        (block,) = derivation.op.tree(tiles).interior()
        checks = tuple(self.visit(block))
        broken = next((check for check in checks if not check.ok), None)
        if broken is None:
            return replace(derivation, checks=checks)
        where = f"a {broken.level} of the derived tree"
        way_out = "use smaller tiles or fewer waves"
        reason = Infeasible(broken.resource, broken.needed, broken.limit, broken.unit, where, way_out)
        return replace(derivation, tiles=None, resources=None, grid=None, infeasible=reason, checks=checks)

    def visit_AttentionBlock(self, node: AttentionBlock) -> list[NodeCheck]:
        return [*self._block(node.tiles.waves), *self._below(node)]

    def visit_AttentionWave(self, node: AttentionWave) -> list[NodeCheck]:
        return [self._wave(), *self._below(node)]

    def visit_AttentionStep(self, node: AttentionStep) -> list[NodeCheck]:
        return self._below(node)

    def visit_ScoreAtom(self, node: ScoreAtom) -> list[NodeCheck]:
        """Whole atoms along queries and keys: what is left over must be nothing."""
        tiles = node.tiles
        return [
            NodeCheck("atom", "queries past whole atoms", tiles.tile_q % tiles.atom.n, 0, "elements"),
            NodeCheck("atom", "keys past whole atoms", tiles.tile_kv % tiles.atom.m, 0, "elements"),
        ]

    def visit_ValueAtom(self, node: ValueAtom) -> list[NodeCheck]:
        tiles = node.tiles
        return [NodeCheck("atom", "columns past whole atoms", tiles.d_pad % tiles.atom.m, 0, "elements")]

    def visit_GemmBlock(self, node: GemmBlock) -> list[NodeCheck]:
        return [*self._block(node.tiles.waves), *self._below(node)]

    def visit_GemmWave(self, node: GemmWave) -> list[NodeCheck]:
        return [self._wave(), *self._below(node)]

    def visit_GemmAtom(self, node: GemmAtom) -> list[NodeCheck]:
        tiles = node.tiles
        rows, cols = tiles.wave_tile
        return [
            NodeCheck("atom", "rows past whole atoms", rows % tiles.atom.m, 0, "elements"),
            NodeCheck("atom", "columns past whole atoms", cols % tiles.atom.n, 0, "elements"),
            NodeCheck("atom", "depth past whole atoms", tiles.tile_k % tiles.atom.k, 0, "elements"),
        ]

    def visit_SoftmaxBlock(self, node: SoftmaxBlock) -> list[NodeCheck]:
        return [*self._block(node.tiles.waves), *self._below(node)]

    def visit_SoftmaxWave(self, node: SoftmaxWave) -> list[NodeCheck]:
        return [self._wave(), *self._below(node)]

    def visit_SoftmaxLanes(self, node: SoftmaxLanes) -> list[NodeCheck]:
        """Whole accesses: what a wave holds at a time leaves nothing over."""
        return [NodeCheck("atom", "columns past whole accesses", node.cols.size % node.tiles.vec, 0, "elements")]

    def visit_Conv2dBlock(self, node: Conv2dBlock) -> list[NodeCheck]:
        return [*self._block(node.tiles.waves), *self._below(node)]

    def visit_Conv2dWave(self, node: Conv2dWave) -> list[NodeCheck]:
        return [self._wave(), *self._below(node)]

    def visit_Conv2dAtom(self, node: Conv2dAtom) -> list[NodeCheck]:
        tiles = node.tiles
        ocs, pixels = tiles.wave_tile
        return [
            NodeCheck("atom", "channels of Y past whole atoms", ocs % tiles.atom.m, 0, "elements"),
            NodeCheck("atom", "pixels past whole atoms", pixels % tiles.atom.n, 0, "elements"),
            NodeCheck("atom", "channels of X past whole atoms", tiles.tile_ic % tiles.atom.k, 0, "elements"),
        ]

    def visit_DepthwiseBlock(self, node: DepthwiseBlock) -> list[NodeCheck]:
        return [*self._block(node.tiles.waves), *self._below(node)]

    def visit_DepthwiseWave(self, node: DepthwiseWave) -> list[NodeCheck]:
        return [self._wave(), *self._below(node)]

    def visit_DepthwiseLanes(self, node: DepthwiseLanes) -> list[NodeCheck]:
        """Whole accesses: the channels leave nothing over."""
        return [NodeCheck("atom", "channels past whole accesses", node.op.IC % node.tiles.vec, 0, "elements")]

    def _below(self, node: Node) -> list[NodeCheck]:
        return [check for child in node.interior() for check in self.visit(child)]

    def _block(self, waves: int) -> list[NodeCheck]:
        lanes = waves * self.hw.wavefront_size
        return [
            NodeCheck("block", "LDS", self.resources.lds_bytes, self.resources.lds_limit_bytes, "B"),
            NodeCheck("block", "work-items", lanes, self.hw.workgroup_max, "work-items"),
        ]

    def _wave(self) -> NodeCheck:
        return NodeCheck("wave", "registers", self.resources.registers, self.resources.register_budget, "registers")

    def _check_model(self, operator: str) -> None:
        if self.hw.wavefront_size != WAVE_LANES:
            raise BadInput(
                f"{self.hw.name} has waves of {self.hw.wavefront_size} lanes: trees and kernels are for {WAVE_LANES}"
            )
        if self.model not in MODELS[operator]:
            near = near_names(self.model, MODELS[operator])
            raise BadInput(f"unknown model {self.model!r} for {operator}: {near}")

    def _no_overrides(self) -> None:
        if self.overrides:
            names = ", ".join(sorted(self.overrides))
            raise BadInput(f"the paper's model derives every tile: {names} cannot be fixed, use --model default")


def derive(
    op: Operator, hw: HardwareDescriptor, model: str | None = None, **overrides: Any
) -> Derivation:
    """Tiles of `op` on `hw`, or the binding constraint.

    `model` is "default" (for emitted kernels) or "paper"; left out, it is the operator's first model. Raises
    BadInput for an unknown model, an override of another operator or a type that the GPU has no atom for.
    """
    derivation: Derivation = FeasibilityVisitor(hw, model or MODELS[op.name][0], **overrides).visit(op.tree())
    return derivation


def derive_attention(
    op: Attention,
    hw: HardwareDescriptor,
    model: str = "default",
    *,
    atom: str | None = None,
    tile_q: int | None = None,
    tile_kv: int | None = None,
    waves: int | None = None,
    splits: int | None = None,
) -> Derivation:
    """`derive` with the overrides of attention spelled out; `atom` is "32x32", "16x16" or an instruction."""
    return derive(op, hw, model, atom=atom, tile_q=tile_q, tile_kv=tile_kv, waves=waves, splits=splits)
