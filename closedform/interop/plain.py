"""Kernels as plain JSON with a published schema (`closedform.schemas`, name "kernels"): everything that is known."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm
from closedform.operators.operator import Operator, described

from .attention_kernel import AttentionKernel
from .attention_offers import AttentionOffer, AttentionTool
from .conv2d_offers import Conv2dKernel, Conv2dOffer, Conv2dTool
from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Proposal, Tool

__all__ = ["ATTENTION", "CONV2D", "TOOL", "operator_of", "problem_of"]

_RULES: tuple[Rule[Offer], ...] = (
    Rule(
        "chiplets",
        "the chiplets that tiles are dealt to divide the compute units",
        "chiplets of unequal shares leave some without work",
        lambda o: o.hw.num_cus % (o.kernel.xcds or 1) > 0,
    ),
)


def problem_of(op: Operator) -> dict[str, Any]:
    """The operator's fields by name, of a product those that its kernels are looked up by."""
    if isinstance(op, Gemm):
        return {name: getattr(op, name) for name in ("M", "N", "K", "batch", "layout", "dtype")}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in described(op).items()}


def operator_of(body: Any) -> str:
    """Name of the operator that the kernels of a file are of; a file without one is of products."""
    return str(body.get("op", "gemm")) if isinstance(body, dict) else ""


def _write(offers: tuple[Proposal[Any, Any], ...]) -> str:
    op, hw = offers[0].op, offers[0].hw
    body = {
        "op": op.name,
        "problem": problem_of(op),
        "hw": hw.name,
        "kernels": [{**offer.kernel.to_json(), "predicted_us": offer.predicted_us} for offer in offers],
    }
    return json.dumps(body, indent=2) + "\n"


K = TypeVar("K", Kernel, AttentionKernel, Conv2dKernel)


def _kernels(text: str, name: str, kind: type[K]) -> tuple[K, ...]:
    """The kernels of a file for operators of that name."""
    body = json.loads(text)
    if not isinstance(body, dict) or not isinstance(body.get("kernels"), list):
        raise BadInput("no list of kernels")
    if operator_of(body) != name:
        raise BadInput(f"kernels of {operator_of(body)}, not of {name}")
    return tuple(_kernel(words, kind) for words in body["kernels"])


def _kernel(words: dict[str, Any], kind: type[K]) -> K:
    fields = dataclasses.fields(kind)
    values = {f.name: words[f.name] for f in fields if f.name in words}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if missing := [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in values]:
        raise BadInput(f"not a kernel: no {', '.join(missing)}")
    return kind(**values)


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    return _kernels(text, "gemm", Kernel)


def _read_attention(text: str, hw: HardwareDescriptor) -> tuple[AttentionKernel, ...]:
    return _kernels(text, "attention", AttentionKernel)


def _read_conv2d(text: str, hw: HardwareDescriptor) -> tuple[Conv2dKernel, ...]:
    return _kernels(text, "conv2d", Conv2dKernel)


def _carried(kind: type[Kernel] | type[AttentionKernel]) -> tuple[str, ...]:
    """Fields of a kernel that may be unknown: all of them are written."""
    return tuple(f.name for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING)


_FILE = ("json", "plain JSON", ".json")
TOOL = Tool(*_FILE, _carried(Kernel), _RULES, _write, _read, features=("batch",))


class _WholeAttention(AttentionTool):
    """Whatever options an attention has, its problem says them."""

    __slots__ = ()

    def unsaid(self, offer: AttentionOffer) -> tuple[str, ...]:
        return self.remarks(offer)


class _WholeConv2d(Conv2dTool):
    """Whatever a convolution has, its problem says it."""

    __slots__ = ()

    def unsaid(self, offer: Conv2dOffer) -> tuple[str, ...]:
        return self.remarks(offer)


ATTENTION = _WholeAttention(*_FILE, _carried(AttentionKernel), (), _write, _read_attention)
CONV2D = _WholeConv2d(*_FILE, _carried(Conv2dKernel), (), _write, _read_conv2d)
