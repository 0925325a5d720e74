"""What FeasibilityVisitor returns: tiles or the binding constraint, with every formula that led there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import Infeasible, InfeasibleError
from closedform.hw.occupancy import register_budget
from closedform.operators.operator import described

from .formula import FormulaValue

__all__ = ["Derivation", "GridVerdict", "NodeCheck", "PredictedResources", "RegisterItem", "tiles_json"]


@dataclass(frozen=True, slots=True)
class RegisterItem:
    """One line of the live set: 32-bit registers a lane at the synchronisation point.

    `file` says where they must live on a split register file: "arch", "acc" (MFMA results) or "any".
    """

    name: str
    registers: int
    file: str
    why: str


@dataclass(frozen=True, slots=True)
class PredictedResources:
    """Promise for one wave and one workgroup; the compiled binary must stay within it.

    registers: 32-bit registers a lane as the binary's metadata counts them (arch + acc on a unified file, the
    larger half on a split one); budget is what the aimed-at occupancy allows.
    """

    items: tuple[RegisterItem, ...]
    registers: int
    arch_registers: int
    acc_registers: int
    register_budget: int
    lds_bytes: int
    lds_limit_bytes: int
    waves_per_simd: int

    @classmethod
    def within_budget(
        cls, hw: HardwareDescriptor, items: tuple[RegisterItem, ...], lds_bytes: int, waves_per_simd: int
    ) -> PredictedResources:
        """The promise of a live set, but never above the budget: the compiler keeps to the registers of the aimed-at
        occupancy. What exceeds the half of the arch registers is in the other one.
        """
        budget = register_budget(hw, waves_per_simd)
        total = sum(item.registers for item in items)
        if budget.unified:
            registers, arch = min(total, budget.total), min(total, budget.arch)
            acc = registers - arch
        else:
            arch = min(sum(item.registers for item in items if item.file != "acc"), budget.arch)
            acc = min(total - arch, budget.acc)
            registers = max(arch, acc)
        limit = budget.total if budget.unified else budget.arch
        lds_limit = hw.lds_max_per_workgroup_bytes
        return cls(items, registers, arch, acc, limit, lds_bytes, lds_limit, waves_per_simd)


@dataclass(frozen=True, slots=True)
class GridVerdict:
    """How the grid fills the device.

    blocks_per_cu = blocks / num_cus; slots = num_cus * workgroups_per_cu; rounds = ceil(blocks / slots);
    utilisation = blocks / (rounds * slots), the share of slots that the rounds use (1.0 = no tail).
    """

    grid: tuple[int, int, int]
    blocks: int
    num_cus: int
    workgroups_per_cu: int
    blocks_per_cu: float
    rounds: int
    utilisation: float
    fills_device: bool
    verdict: str


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One capacity held against one level of the tiled tree."""

    level: str
    resource: str
    needed: float
    limit: float
    unit: str

    @property
    def ok(self) -> bool:
        return self.needed <= self.limit


@dataclass(frozen=True, slots=True)
class Derivation:
    """Tiles with their reasons, or the constraint that forbids any.

    `binding` names what fixed the tiles: a capacity ("lds", "registers", "cus"), the keys that there are ("keys"), the
    length from which a longer step no longer pays ("step") or the busiest pipe ("valu", "l1", "l2", "memory", "wait").
    `tiles` is None exactly when `infeasible` says why. `limits` holds the largest tiles that the capacities allow
    (tile_q_max, tile_kv_max), `checks` the capacities as the visitor met them on the way down the tiled tree.
    """

    op: Any
    hw: HardwareDescriptor
    model: str
    tiles: Any | None
    binding: str
    steps: tuple[FormulaValue, ...]
    resources: PredictedResources | None
    grid: GridVerdict | None
    infeasible: Infeasible | None = None
    notes: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[NodeCheck, ...] = ()

    @property
    def feasible(self) -> bool:
        return self.infeasible is None

    def require(self) -> tuple[Any, PredictedResources, GridVerdict]:
        """Tiles, promised resources and grid verdict. Raises InfeasibleError where there are none."""
        if self.infeasible is not None or self.resources is None or self.grid is None:
            assert self.infeasible is not None, "a feasible derivation has tiles, resources and a grid"
            raise InfeasibleError(self.infeasible)
        return self.tiles, self.resources, self.grid

    def to_json(self) -> dict[str, Any]:
        """The public form: lengths in elements, sizes `_bytes`; formulas as printed by --explain."""
        return {
            "op": {"name": self.op.name, **described(self.op)},
            "hw": self.hw.name,
            "gfx": self.hw.gfx,
            "model": self.model,
            "feasible": self.feasible,
            "infeasible": None if self.infeasible is None else asdict(self.infeasible),
            "tiles": None if self.tiles is None else tiles_json(self.tiles),
            "binding": self.binding,
            "resources": None if self.resources is None else asdict(self.resources),
            "occupancy": None if self.grid is None else asdict(self.grid),
            "formulas": [step.to_json() for step in self.steps],
            "notes": list(self.notes),
            "limits": dict(self.limits),
            "checks": [{**asdict(check), "ok": check.ok} for check in self.checks],
        }


def tiles_json(tiles: Any) -> dict[str, Any]:
    """Tile policy by field; the atom by its instruction name."""
    values = {f.name: getattr(tiles, f.name) for f in fields(tiles)}
    return {name: getattr(value, "instruction", value) for name, value in values.items()}
