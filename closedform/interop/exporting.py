"""A file for another tool: which kernels, what the tool makes of them, the text and its name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from closedform.emission import write_set
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm

from . import flydsl, hipblaslt, tensilelite
from .offers import accepted, derived_offer, ranked_offers
from .rules import Refused, broken_rules
from .tool import Offer, Tool, unsaid
from .tools import tool_named

__all__ = ["Export", "Place", "export_gemm"]


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
    offers: tuple[Offer, ...]
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
            "problem": {n: getattr(op, n) for n in ("M", "N", "K", "batch", "dtype", "layout")},
            "file": None if path is None else str(path),
            "text": self.text,
            "kernels": [{**o.kernel.to_json(), "predicted_us": o.predicted_us} for o in self.offers],
            "notes": list(self.notes),
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
    """The product's kernels as a file of that tool.

    count: 0 for the closed form's kernel, with `overrides` of its knobs, or where the tool refuses it the best that it
    takes; else so many of the model's ranking, those that the tool takes. round_name: of TensileLite, a tuning round
    whose grid is opened around the kernel.
    Raises Refused where the tool takes none, InfeasibleError and BadInput as the derivation does.
    """
    place = place or Place()
    for own, names in _PLACES.items():
        if to != own and (given := [option for name, option in names.items() if getattr(place, name)]):
            raise BadInput(f"{given[0]} is of {own}, not of {to}")
    if to == "hipblaslt" and form is not None:
        raise BadInput(f"hipblaslt has no form {form!r}: it has one")
    if count and overrides:
        raise BadInput(f"{', '.join(overrides)}: a ranked list takes no overrides")
    if round_name is not None and to != "tensilelite":
        raise BadInput(f"a tuning round's grid is a file of tensilelite, not of {to}")
    if to == "hipblaslt":
        return _override(op, hw, count, place, overrides)
    tool = tool_named(to, form)
    if count > 1 and not tool.many:
        raise BadInput(f"a file of {tool.title} holds one kernel, not {count}")
    offers, notes = _offers(op, hw, tool, count, overrides)
    stem = f"gemm_{hw.name}_{op.dtype}_{op.layout}_{op.M}x{op.N}x{op.K}"
    file, text = f"{stem}{tool.suffix}", None
    if tool is flydsl.TOOL:
        artifact = flydsl.artifact_of(offers[0], place.artifact or flydsl.ARTIFACT, place.device)
        file = flydsl.artifact_file(artifact)
        text = json.dumps(artifact, indent=2, sort_keys=True, allow_nan=False) + "\n"
    elif round_name is not None:
        file = f"{stem}_{round_name}{tool.suffix}"
        text = tensilelite.dump_yaml(tensilelite.benchmark(offers[0], tensilelite.round_values(offers[0], round_name)))
    return Export(to, file, tool.write(offers) if text is None else text, offers, notes)


def _offers(
    op: Gemm, hw: HardwareDescriptor, tool: Tool, count: int, overrides: dict[str, Any]
) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """The kernels, and what had to change."""
    taken = _taken(op, hw, tool)
    if not count:
        try:
            offer, notes = accepted(tool, derived_offer(op, hw, **overrides))
        except Refused as refusal:
            other = None if overrides else next(taken, None)
            if other is None:
                raise
            instead = f"{refusal}; the best of the model's ranking that it takes instead"
            return (other,), (instead, *tool.unsaid(other))
        return (offer,), notes
    offers = tuple(islice(taken, count))
    if not offers:
        raise _none_taken(op, hw, tool)
    short = (f"{tool.title} takes {len(offers)} kernels, not {count}",) if len(offers) < count else ()
    return offers, (*short, *tool.unsaid(offers[0]))


def _none_taken(op: Gemm, hw: HardwareDescriptor, tool: Tool) -> Refused:
    """Why no kernel of the ranking is taken: the rules that the first breaks."""
    first = next(ranked_offers(op, hw), None)
    if first is None:
        return Refused(f"the model ranks no kernel of ours for this product on {hw.name}")
    reasons = "; ".join(rule.described for rule in broken_rules(tool.rules, first))
    return Refused(
        f"{tool.title} takes none of the model's kernels for this product on {hw.name}; the first: {reasons}"
    )


def _taken(op: Gemm, hw: HardwareDescriptor, tool: Tool) -> Iterator[Offer]:
    """Of the model's ranking what the tool takes with no change of its tiles."""
    for offer in ranked_offers(op, hw):
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
