"""A file for another tool: which kernels, what the tool makes of them, the text and its name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from closedform.emission import write_set
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm

from . import flydsl, flydsl_attention, flydsl_conv2d, hipblaslt, tensilelite
from .attention_offers import attention_offer, ranked_attention
from .conv2d_offers import conv2d_offer, ranked_conv2d
from .offers import accepted, derived_offer, ranked_offers
from .plain import problem_of
from .rules import Refused, broken_rules
from .tool import Format, Offer, Proposal, unsaid
from .tools import format_named

__all__ = ["Export", "Place", "Subject", "export_gemm", "export_operator"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an artifact or an override row is to be found again.

    artifact, device: the name of FlyDSL's tuned function and torch's name of the GPU; empty for ours. listing: text of
    `hipblaslt-bench --algo_method all --print_kernel_info`; stamp: the library's build, where the listing has none.
    """

    artifact: str = ""
    device: str = ""
    listing: str | None = None
    stamp: str = ""


#: Options of one tool, by the fields of a Place.
_PLACES = {
    "flydsl": {"artifact": "--artifact", "device": "--device-name"},
    "hipblaslt": {"listing": "--listing", "stamp": "--git-version"},
}


@dataclass(frozen=True, slots=True)
class Export:
    """What was made: `text` is the whole file, `notes` say what had to change for the tool."""

    tool: str
    file: str
    text: str
    offers: tuple[Proposal[Any, Any], ...]
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        """Write the file whole into `folder`; BadInput where that is not possible."""
        write_set(folder, {self.file: self.text}, ())
        return folder / self.file

    def to_json(self, path: Path | None) -> dict[str, Any]:
        op, hw = self.offers[0].op, self.offers[0].hw
        return {
            "tool": self.tool,
            "op": op.name,
            "hw": hw.name,
            "problem": problem_of(op),
            "file": None if path is None else str(path),
            "text": self.text,
            "kernels": [{**o.kernel.to_json(), "predicted_us": o.predicted_us} for o in self.offers],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """An operator as exports know it: the closed form's kernel with knobs, the model's ranking, the name of a file
    without its ending, and how an artifact of FlyDSL is made, with the name of its function.
    """

    derived: Callable[..., Proposal[Any, Any]]
    ranked: Callable[[Any, HardwareDescriptor], Iterator[Proposal[Any, Any]]]
    stem: Callable[[Any], str]
    artifact: Callable[..., dict[str, Any]]
    artifact_name: str


def _gemm_stem(op: Gemm) -> str:
    return f"{op.layout}_{op.M}x{op.N}x{op.K}"


def _attention_stem(op: Attention) -> str:
    return f"b{op.batch}h{op.heads}_{op.L_q}x{op.L_kv}x{op.d}"


def _conv2d_stem(op: Conv2d) -> str:
    return f"{op.layout}_{op.N}x{op.IC}x{op.IH}x{op.IW}_{op.OC}x{op.KH}x{op.KW}"


_SUBJECTS: Mapping[str, Subject] = {
    "gemm": Subject(derived_offer, ranked_offers, _gemm_stem, flydsl.artifact_of, flydsl.ARTIFACT),
    "attention": Subject(
        attention_offer, ranked_attention, _attention_stem, flydsl_attention.artifact_of, flydsl_attention.ARTIFACT
    ),
    "conv2d": Subject(conv2d_offer, ranked_conv2d, _conv2d_stem, flydsl_conv2d.artifact_of, flydsl_conv2d.ARTIFACT),
}


def export_gemm(
    op: Gemm,
    hw: HardwareDescriptor,
    to: str,
    *,
    form: str | None = None,
    count: int = 0,
    round_name: str | None = None,
    place: Place | None = None,
    **overrides: Any,
) -> Export:
    """The product's kernels as a file of that tool: as `export_operator`, and for hipBLASLt and TensileLite.

    round_name: of TensileLite, a tuning round whose grid is opened around the kernel.
    """
    place = place or Place()
    if round_name is not None and to != "tensilelite":
        raise BadInput(f"a tuning round's grid is a file of tensilelite, not of {to}")
    if to == "hipblaslt":
        if form is not None:
            raise BadInput(f"hipblaslt has no form {form!r}: it has one")
        _check(to, count, place, overrides)
        return _override(op, hw, count, place, overrides)
    made = export_operator(op, hw, to, form=form, count=count, place=place, **overrides)
    if round_name is None:
        return made
    (offer,) = made.offers
    assert isinstance(offer, Offer)
    file = made.file.replace(".yaml", f"_{round_name}.yaml")
    text = tensilelite.dump_yaml(tensilelite.benchmark(offer, tensilelite.round_values(offer, round_name)))
    return Export(to, file, text, made.offers, made.notes)


def export_operator(
    op: Gemm | Attention | Conv2d,
    hw: HardwareDescriptor,
    to: str,
    *,
    form: str | None = None,
    count: int = 0,
    place: Place | None = None,
    **overrides: Any,
) -> Export:
    """The operator's kernels as a file of that tool.

    count: 0 for the closed form's kernel, with `overrides` of its knobs, or where the tool refuses it the best that it
    takes; else so many of the model's ranking, those that the tool takes.
    Raises Refused where the tool takes none, NotOffered where it has no format for the operator, InfeasibleError and
    BadInput as the derivation does.
    """
    place, subject = place or Place(), _SUBJECTS[op.name]
    tool = format_named(op.name, to, form)
    _check(to, count, place, overrides)
    if count > 1 and not tool.many:
        raise BadInput(f"a file of {tool.title} holds one kernel, not {count}")
    offers, notes = _offers(subject, op, hw, tool, count, overrides)
    if to == "flydsl" and not tool.many:
        artifact = subject.artifact(offers[0], place.artifact or subject.artifact_name, place.device)
        return Export(to, flydsl.artifact_file(artifact), flydsl.artifact_text(artifact), offers, notes)
    file = f"{op.name}_{hw.name}_{op.dtype}_{subject.stem(op)}{tool.suffix}"
    return Export(to, file, tool.write(offers), offers, notes)


def _check(to: str, count: int, place: Place, overrides: Mapping[str, Any]) -> None:
    """Raises BadInput for options of another tool, and for overrides of a ranked list."""
    for own, names in _PLACES.items():
        if to != own and (given := [option for name, option in names.items() if getattr(place, name)]):
            raise BadInput(f"{given[0]} is of {own}, not of {to}")
    if count and overrides:
        raise BadInput(f"{', '.join(overrides)}: a ranked list takes no overrides")


def _offers(
    subject: Subject,
    op: Any,
    hw: HardwareDescriptor,
    tool: Format[Any, Any],
    count: int,
    overrides: dict[str, Any],
) -> tuple[tuple[Proposal[Any, Any], ...], tuple[str, ...]]:
    """The kernels, and what had to change."""
    taken = _taken(subject, op, hw, tool)
    if not count:
        try:
            offer, notes = accepted(tool, subject.derived(op, hw, **overrides))
        except Refused as refusal:
            other = None if overrides else next(taken, None)
            if other is None:
                raise
            instead = f"{refusal}; the best of the model's ranking that it takes instead"
            return (other,), (instead, *tool.unsaid(other))
        return (offer,), notes
    offers = tuple(islice(taken, count))
    if not offers:
        raise _none_taken(subject, op, hw, tool)
    short = (f"{tool.title} takes {len(offers)} kernels, not {count}",) if len(offers) < count else ()
    return offers, (*short, *tool.unsaid(offers[0]))


def _none_taken(subject: Subject, op: Any, hw: HardwareDescriptor, tool: Format[Any, Any]) -> Refused:
    """Why no kernel of the ranking is taken: the rules that the first breaks."""
    first = next(subject.ranked(op, hw), None)
    if first is None:
        return Refused(f"the model ranks no kernel of ours for this {tool.noun} on {hw.name}")
    reasons = "; ".join(rule.described for rule in broken_rules(tool.rules, first))
    return Refused(
        f"{tool.title} takes none of the model's kernels for this {tool.noun} on {hw.name}; the first: {reasons}"
    )


def _taken(subject: Subject, op: Any, hw: HardwareDescriptor, tool: Format[Any, Any]) -> Iterator[Proposal[Any, Any]]:
    """Of the model's ranking what the tool takes with no change of its tiles."""
    for offer in subject.ranked(op, hw):
        with contextlib.suppress(Refused):
            yield accepted(tool, offer, whole=True)[0]


def _override(op: Gemm, hw: HardwareDescriptor, count: int, place: Place, overrides: dict[str, Any]) -> Export:
    """The row of the solution whose tile is ours: the closed form's, or the first of the ranking that is listed."""
    if place.listing is None:
        raise BadInput(
            "hipblaslt needs a listing of its solutions, whose indices only the library knows: give --listing FILE "
            "with the output of hipblaslt-bench --algo_method all --print_kernel_info"
        )
    stamp = hipblaslt.stamp_of(place.listing) or place.stamp
    if not stamp:
        raise BadInput("neither the listing nor --git-version says the build of hipBLASLt")
    offers = islice(ranked_offers(op, hw), count) if count else iter([derived_offer(op, hw, **overrides)])
    refusal: Refused | None = None
    for offer in offers:
        try:
            found = hipblaslt.matched(offer, place.listing)
        except Refused as error:
            refusal = error
            continue
        text = hipblaslt.override([(op, found)], stamp)
        notes = unsaid(op, "hipBLASLt", ("batch",))
        return Export("hipblaslt", "hipblaslt_override.csv", text, (offer,), notes)
    raise refusal or Refused(f"the model ranks no kernel for this product on {hw.name}")
