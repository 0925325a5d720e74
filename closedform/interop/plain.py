"""Kernels as plain JSON with a published schema (`closedform.schemas`, name "kernels"): everything that is known."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool

__all__ = ["TOOL"]

_RULES: tuple[Rule[Offer], ...] = (
    Rule(
        "chiplets",
        "the chiplets that tiles are dealt to divide the compute units",
        "chiplets of unequal shares leave some without work",
        lambda o: o.hw.num_cus % (o.kernel.xcds or 1) > 0,
    ),
)
_FIELDS = tuple(f.name for f in dataclasses.fields(Kernel))


def _write(offers: tuple[Offer, ...]) -> str:
    op, hw = offers[0].op, offers[0].hw
    body = {
        "problem": {"M": op.M, "N": op.N, "K": op.K, "batch": op.batch, "layout": op.layout, "dtype": op.dtype},
        "hw": hw.name,
        "kernels": [{**offer.kernel.to_json(), "predicted_us": offer.predicted_us} for offer in offers],
    }
    return json.dumps(body, indent=2) + "\n"


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    body = json.loads(text)
    if not isinstance(body, dict) or not isinstance(body.get("kernels"), list):
        raise BadInput("no list of kernels")
    return tuple(_kernel(words) for words in body["kernels"])


def _kernel(words: dict[str, Any]) -> Kernel:
    values = {name: words[name] for name in _FIELDS if name in words}
    if "mfma" in values:
        values["mfma"] = tuple(values["mfma"])
    if missing := [name for name in _FIELDS[:3] if name not in values]:
        raise BadInput(f"not a kernel: no {', '.join(missing)}")
    return Kernel(**values)


TOOL = Tool("json", "plain JSON", ".json", _FIELDS[3:], _RULES, _write, _read, features=("batch",))
