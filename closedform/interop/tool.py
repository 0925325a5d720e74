"""What every tool's file offers: how its format is written, read and what it refuses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.gemm import Gemm

from .kernel import Kernel
from .rules import Rule, broken_rules

__all__ = ["FIELD_OF_KNOB", "Offer", "Read", "Tool", "images_bytes", "is_time", "lds_rule", "unsaid"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A kernel for a product on a GPU, with the predicted time where the model knows it.

    `fixed` are the knobs that the user gave values: no tool's file may have others.
    """

    op: Gemm
    hw: HardwareDescriptor
    kernel: Kernel
    predicted_us: float | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def elem_bytes(self) -> int:
        return dtype(self.op.dtype).bytes


#: Fields of a Kernel that knobs of other names decide.
FIELD_OF_KNOB: Mapping[str, str] = {"atom": "mfma", "buffers": "stages", "direct": "stages"}
#: Values of knobs with which a kernel has nothing of their kind.
_NONE: Mapping[str, tuple[int, ...]] = {"split_k": (1,), "stream_k": (0,), "xcds": (1,), "stagger": (0, 1)}

Read = Callable[[str, HardwareDescriptor], tuple[Kernel, ...]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A format.

    `carries` are the fields of a Kernel, beside the tile, that it keeps. `write` makes a file of offers for one
    product, best first; `read` gives the kernels of such a file back, each as `Kernel.only(carries)`. What `rules`
    refuse is not written. `many` says that a file holds several kernels. `knobs` are those of ours that it has beside
    the fields of a Kernel, `features` the parts of a product beside its extents and types. `remarks`
    are what a user of the file must know.
    """

    name: str
    title: str
    suffix: str
    carries: tuple[str, ...]
    rules: tuple[Rule[Offer], ...]
    write: Callable[[tuple[Offer, ...]], str]
    read: Read
    many: bool = True
    knobs: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    remarks: Callable[[Offer], tuple[str, ...]] = lambda offer: ()

    def keeps(self, knob: str, value: object) -> bool:
        """Whether the format has a place for the knob's value, or the value is that of a kernel without the knob."""
        name = FIELD_OF_KNOB.get(knob, knob)
        known = {"tile_m", "tile_n", "tile_k", *self.carries}
        whole_grid = name in ("wave_m", "wave_n") and "waves" in known
        rows = name == "mfma" and "mfma_m" in known
        return name in known or whole_grid or rows or knob in self.knobs or value in _NONE.get(knob, ())

    def refusals(self, kernel: Kernel, hw: HardwareDescriptor) -> tuple[str, ...]:
        """The tool's rules that a kernel which was read breaks."""
        offer = Offer(Gemm(1, 1, 1), hw, kernel)  # of the product these rules look at nothing
        return tuple(rule.described for rule in broken_rules((r for r in self.rules if r.alone), offer))

    def unsaid(self, offer: Offer) -> tuple[str, ...]:
        """A note for each part of the product that the format has no place for, and the tool's own remarks."""
        return *unsaid(offer.op, self.title, self.features), *self.remarks(offer)


def unsaid(op: Gemm, title: str, features: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A note for each part of the product that a file of that title, with those features, does not say."""
    tight = dataclasses.replace(op, lda=0, ldb=0, ldd=0).leading
    present = {
        "batch": op.batch > 1,
        "bias": op.bias != "none",
        "activation": op.activation != "none",
        "beta": op.has_c,
        "strides": op.leading != tight,
        "preshuffled": op.preshuffled != "none",
    }
    lost = (name for name, there in present.items() if there and name not in features)
    return tuple(f"{name} of the product: a file of {title} does not say it" for name in lost)


def is_time(value: object) -> TypeGuard[int | float]:
    """Whether the value is a time: a finite number above 0.

    >>> is_time(1.5), is_time(True), is_time(float("inf"))
    (True, False, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def images_bytes(kernel: Kernel, elem_bytes: float) -> int:
    """LDS of images of A and B, where one tile under way is in registers; two are under way where it is not said."""
    images = max(1, (kernel.stages or 2) - 1)
    return int(images * (kernel.tile_m + kernel.tile_n) * kernel.tile_k * elem_bytes)


def lds_rule(measure: Callable[[Offer], int], text: str, source: str) -> Rule[Offer]:
    """The rule that a workgroup's LDS, by the tool's own count, fits the GPU."""
    return Rule("LDS", text, source, lambda o: measure(o) > o.hw.lds_max_per_workgroup_bytes)
