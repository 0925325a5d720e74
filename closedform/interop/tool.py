"""What every tool's file offers: how its format is written, read and what it refuses."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeGuard, TypeVar

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm

from .kernel import Kernel
from .rules import Rule, broken_rules

__all__ = [
    "FIELD_OF_KNOB",
    "Format",
    "KernelT",
    "Offer",
    "Proposal",
    "ProposalT",
    "Read",
    "Terms",
    "Tool",
    "images_bytes",
    "is_time",
    "lds_rule",
    "unsaid",
]


TermsT = TypeVar("TermsT", bound="Terms")


class Terms(Protocol):
    """A kernel in the terms that tools share. `given_up` are the fields that `smaller` changes."""

    given_up: ClassVar[tuple[str, ...]]

    @property
    def tile(self) -> str: ...

    def only(self: TermsT, names: tuple[str, ...]) -> TermsT: ...

    def smaller(self: TermsT, num_cus: int, whole: bool) -> Iterator[TermsT]: ...

    def to_json(self) -> dict[str, Any]: ...


OpT = TypeVar("OpT", Gemm, Attention, Conv2d)
KernelT = TypeVar("KernelT", bound=Terms)


@dataclass(frozen=True, slots=True)
class Proposal(ABC, Generic[OpT, KernelT]):
    """A kernel for an operator on a GPU, with the predicted time where the model knows it.

    `fixed` are the knobs that the user gave values: no tool's file may have others.
    """

    op: OpT
    hw: HardwareDescriptor
    kernel: KernelT
    predicted_us: float | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def elem_bytes(self) -> int:
        return dtype(self.op.dtype).bytes

    @abstractmethod
    def timed(self, kernel: KernelT) -> float | None:
        """Microseconds that the model predicts for another kernel of the operator; None where it cannot say."""


class Offer(Proposal[Gemm, Kernel]):
    """A kernel for a product."""

    __slots__ = ()

    def timed(self, kernel: Kernel) -> float | None:
        from .offers import predicted_us

        return predicted_us(self.op, self.hw, kernel)


#: Fields of a Kernel that knobs of other names decide.
FIELD_OF_KNOB: Mapping[str, str] = {"atom": "mfma", "buffers": "stages", "direct": "stages"}
#: Values of knobs with which a kernel has nothing of their kind.
_NONE: Mapping[str, tuple[int, ...]] = {"split_k": (1,), "stream_k": (0,), "xcds": (1,), "stagger": (0, 1)}

ProposalT = TypeVar("ProposalT", bound="Proposal[Any, Any]")
Read = Callable[[str, HardwareDescriptor], tuple[KernelT, ...]]


@dataclass(frozen=True, slots=True)
class Format(ABC, Generic[ProposalT, KernelT]):
    """A tool's format for one operator.

    `carries` are the fields of a kernel, beside the tile, that it keeps. `write` makes a file of proposals for one
    operator, best first; `read` gives the kernels of such a file back, each as `kernel.only(carries)`. What `rules`
    refuse is not written. `many` says that a file holds several kernels. `knobs` are those of ours that it has beside
    the fields of a kernel, `features` the parts of an operator beside its extents and types. `remarks`
    are what a user of the file must know; `words` gives what a file says of each kernel by the tool's own names, in the
    order of `read`, and nothing where `read` has all of it.
    """

    name: str
    title: str
    suffix: str
    carries: tuple[str, ...]
    rules: tuple[Rule[ProposalT], ...]
    write: Callable[[tuple[ProposalT, ...]], str]
    read: Read[KernelT]
    many: bool = True
    knobs: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    remarks: Callable[[ProposalT], tuple[str, ...]] = lambda offer: ()
    words: Callable[[str], Sequence[Mapping[str, Any]]] = lambda text: ()

    #: What the operator is called in notes, and the fields of a kernel that every format of it keeps.
    noun: ClassVar[str]
    tile: ClassVar[tuple[str, ...]]
    field_of_knob: ClassVar[Mapping[str, str]]

    @abstractmethod
    def bare(self, kernel: KernelT, hw: HardwareDescriptor) -> ProposalT:
        """The kernel for an operator at which rules of kernels alone do not look."""

    @abstractmethod
    def parts(self, op: Any) -> Mapping[str, bool]:
        """Parts of the operator that some formats do not say, and whether it has them."""

    def field_of(self, knob: str) -> str:
        """The field of a kernel that the knob decides."""
        return self.field_of_knob.get(knob, knob)

    def keeps(self, knob: str, value: object) -> bool:
        """Whether the format has a place for the knob's value, or the value is that of a kernel without the knob."""
        name = self.field_of(knob)
        known = {*self.tile, *self.carries}
        whole_grid = name in ("wave_m", "wave_n") and "waves" in known
        rows = name == "mfma" and "mfma_m" in known
        return name in known or whole_grid or rows or knob in self.knobs or value in _NONE.get(knob, ())

    def refusals(self, kernel: KernelT, hw: HardwareDescriptor) -> tuple[str, ...]:
        """The tool's rules that a kernel which was read breaks."""
        offer = self.bare(kernel, hw)
        return tuple(rule.described for rule in broken_rules((r for r in self.rules if r.alone), offer))

    def unsaid(self, offer: ProposalT) -> tuple[str, ...]:
        """A note for each part of the operator that the format has no place for, and the tool's own remarks."""
        lost = (name for name, there in self.parts(offer.op).items() if there and name not in self.features)
        notes = (f"{name} of the {self.noun}: a file of {self.title} does not say it" for name in lost)
        return *notes, *self.remarks(offer)


class Tool(Format[Offer, Kernel]):
    """A tool's format for matrix products."""

    __slots__ = ()
    noun = "product"
    tile = ("tile_m", "tile_n", "tile_k")
    field_of_knob = FIELD_OF_KNOB

    def bare(self, kernel: Kernel, hw: HardwareDescriptor) -> Offer:
        return Offer(Gemm(1, 1, 1), hw, kernel)

    def parts(self, op: Gemm) -> Mapping[str, bool]:
        return _parts(op)


def _parts(op: Gemm) -> Mapping[str, bool]:
    tight = dataclasses.replace(op, lda=0, ldb=0, ldd=0).leading
    return {
        "batch": op.batch > 1,
        "bias": op.bias != "none",
        "activation": op.activation != "none",
        "beta": op.has_c,
        "strides": op.leading != tight,
        "preshuffled": op.preshuffled != "none",
    }


def unsaid(op: Gemm, title: str, features: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A note for each part of the product that a file of that title, with those features, does not say."""
    lost = (name for name, there in _parts(op).items() if there and name not in features)
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


def lds_rule(measure: Callable[[ProposalT], int], text: str, source: str) -> Rule[ProposalT]:
    """The rule that a workgroup's LDS, by the tool's own count, fits the GPU."""
    return Rule("LDS", text, source, lambda o: measure(o) > o.hw.lds_max_per_workgroup_bytes)
