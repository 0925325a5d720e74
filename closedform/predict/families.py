"""Which kernels a target runs, and whose constants stand in for a GPU that was never measured: data with a source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, near_names
from closedform.hw.tables import read_facts

__all__ = ["Target", "gemm_family", "target_of"]

FILE = Path(__file__).parent / "families.csv"


@dataclass(frozen=True, slots=True)
class Target:
    """A row of `families.csv`: "staged" kernels pass tiles through registers to LDS, "pipelined" ones copy them to
    shared memory asynchronously. `stand_ins` are sets of constants, the nearest first."""

    gfx: str
    family: str
    stand_ins: tuple[str, ...]
    source: str


@cache
def _targets() -> dict[str, Target]:
    rows = read_facts(FILE, key=("gfx",))
    return {r["gfx"]: Target(r["gfx"], r["family"], tuple(r["stand_ins"].split()), r["source"]) for r in rows}


def target_of(hw: HardwareDescriptor) -> Target:
    """The row of the GPU's target; BadInput where the model knows no kernels of it."""
    known = _targets()
    if hw.gfx not in known:
        raise BadInput(f"the model knows no kernels of {hw.gfx} ({hw.name}): {near_names(hw.gfx, known)}")
    return known[hw.gfx]


def gemm_family(hw: HardwareDescriptor) -> str:
    """Which kernels a GPU runs: "pipelined" or "staged"."""
    return target_of(hw).family
