"""FeasibilityVisitor: from an open tree and a descriptor to tiles, or to the constraint that forbids them."""

from __future__ import annotations

from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, near_names
from closedform.operators.attention import Attention, AttentionDevice
from closedform.operators.gemm import Gemm, GemmDevice

from .attention_default import derive_default
from .attention_paper import derive_paper
from .derivation import Derivation
from .gemm_paper import derive_gemm
from .visitor import Visitor

__all__ = ["FeasibilityVisitor", "derive", "derive_attention"]

#: Derivations of each operator, by name.
MODELS = {"attention": ("default", "paper"), "gemm": ("paper",)}


class FeasibilityVisitor(Visitor):
    """Visits the root of an open tree; the levels below follow from the capacities of the compute unit.

    `overrides` fix parts of the tile policy (atom, tile_q, tile_kv, waves); what they leave open is derived, and
    what they make impossible is returned as the binding constraint.
    """

    def __init__(self, hw: HardwareDescriptor, model: str, **overrides: Any) -> None:
        self.hw = hw
        self.model = model
        self.overrides = {name: value for name, value in overrides.items() if value is not None}

    def visit_AttentionDevice(self, node: AttentionDevice) -> Derivation:
        self._check_model("attention")
        if self.model == "paper":
            self._no_overrides()
            return derive_paper(node.op, self.hw)
        return derive_default(node.op, self.hw, **self.overrides)

    def visit_GemmDevice(self, node: GemmDevice) -> Derivation:
        self._check_model("gemm")
        self._no_overrides()
        return derive_gemm(node.op, self.hw)

    def _check_model(self, operator: str) -> None:
        if self.model not in MODELS[operator]:
            near = near_names(self.model, MODELS[operator])
            raise BadInput(f"unknown model {self.model!r} for {operator}: {near}")

    def _no_overrides(self) -> None:
        if self.overrides:
            names = ", ".join(sorted(self.overrides))
            raise BadInput(f"the paper's model derives every tile: {names} cannot be fixed, use --model default")


def derive(op: Attention | Gemm, hw: HardwareDescriptor, model: str | None = None, **overrides: Any) -> Derivation:
    """Tiles of `op` on `hw`, or the binding constraint.

    `model` is "default" (for emitted kernels) or "paper"; left out, it is the operator's first model. Raises
    BadInput for an unknown model, an override of another operator or a type that the GPU has no atom for.
    """
    return FeasibilityVisitor(hw, model or MODELS[op.name][0], **overrides).visit(op.tree())


def derive_attention(
    op: Attention,
    hw: HardwareDescriptor,
    model: str = "default",
    *,
    atom: str | None = None,
    tile_q: int | None = None,
    tile_kv: int | None = None,
    waves: int | None = None,
) -> Derivation:
    """`derive` with the overrides of attention spelled out; `atom` is "32x32", "16x16" or an instruction."""
    return derive(op, hw, model, atom=atom, tile_q=tile_q, tile_kv=tile_kv, waves=waves)
