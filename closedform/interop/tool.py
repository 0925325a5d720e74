"""What every tool's file offers: how its format is written, read and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.gemm import Gemm

from .kernel import Kernel
from .rules import Rule

__all__ = ["Offer", "Read", "Tool", "lds_rule"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A kernel for a product on a GPU, with the predicted time where the model knows it."""

    op: Gemm
    hw: HardwareDescriptor
    kernel: Kernel
    predicted_us: float | None = None

    @property
    def elem_bytes(self) -> int:
        return dtype(self.op.dtype).bytes


Read = Callable[[str, HardwareDescriptor], tuple[Kernel, ...]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A format.

    `carries` are the fields of a Kernel, beside the tile, that it keeps. `write` makes a file of offers for one
    product, best first; `read` gives the kernels of such a file back, each as `Kernel.only(carries)`. What `rules`
    refuse is not written. `many` says that a file holds several kernels.
    """

    name: str
    title: str
    suffix: str
    carries: tuple[str, ...]
    rules: tuple[Rule[Offer], ...]
    write: Callable[[tuple[Offer, ...]], str]
    read: Read
    many: bool = True


def lds_rule(measure: Callable[[Offer], int], text: str, source: str) -> Rule[Offer]:
    """The rule that a workgroup's LDS, by the tool's own count, fits the GPU."""
    return Rule("LDS", text, source, lambda o: measure(o) > o.hw.lds_max_per_workgroup_bytes)
