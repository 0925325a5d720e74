"""Every format, by the operator, the name that `--to` takes and its form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closedform.hw.errors import BadInput, near_names

from . import (
    aiter,
    ck,
    flydsl,
    flydsl_attention,
    flydsl_conv2d,
    inductor,
    iree,
    nvmatmul,
    plain,
    tensilelite,
    tilelang,
    triton,
)
from .attention_offers import AttentionTool
from .conv2d_offers import Conv2dTool
from .tool import Format, Tool

__all__ = ["ATTENTION_TOOLS", "CONV2D_TOOLS", "NAMES", "TOOLS", "NotOffered", "format_named", "tool_named"]


class NotOffered(BadInput):
    """A tool that has no format for the operator; the message names those that have one."""


#: The first of a name's forms is the default.
TOOLS: tuple[Tool, ...] = (
    triton.TOOL_PYTHON,
    triton.TOOL,
    inductor.TOOL,
    flydsl.TOOL,
    flydsl.TOOL_PYTHON,
    tilelang.TOOL,
    tensilelite.TOOL,
    ck.TOOL,
    iree.TOOL,
    aiter.TOOL,
    aiter.TOOL_TRITON,
    nvmatmul.TOOL,
    plain.TOOL,
)
ATTENTION_TOOLS: tuple[AttentionTool, ...] = (
    triton.ATTENTION_PYTHON,
    triton.ATTENTION,
    inductor.ATTENTION,
    flydsl_attention.ATTENTION,
    flydsl_attention.ATTENTION_PYTHON,
    tilelang.ATTENTION,
    aiter.ATTENTION,
    plain.ATTENTION,
)
CONV2D_TOOLS: tuple[Conv2dTool, ...] = (
    triton.CONV2D_PYTHON,
    triton.CONV2D,
    inductor.CONV2D,
    flydsl_conv2d.CONV2D,
    flydsl_conv2d.CONV2D_PYTHON,
    iree.CONV2D,
    plain.CONV2D,
)
#: Names for products; other operators have some of them.
NAMES = tuple(dict.fromkeys((*(tool.name for tool in TOOLS), "hipblaslt")))
_TITLES = {tool.name: tool.title for tool in reversed(TOOLS)} | {"hipblaslt": "hipBLASLt"}
_BY_OPERATOR: Mapping[str, tuple[Format[Any, Any], ...]] = {
    "gemm": TOOLS,
    "attention": ATTENTION_TOOLS,
    "conv2d": CONV2D_TOOLS,
}


def format_named(operator: str, name: str, form: str | None = None) -> Format[Any, Any]:
    """The format of that tool for an operator, in the form whose file suffix ends so (py, json, csv, yaml); its first
    without.

    Raises BadInput with near names for an unknown tool, and for a form that it does not have; NotOffered, with the
    tools that take the operator, for one that does not.
    """
    if operator not in _BY_OPERATOR:
        raise NotOffered(f"nothing exports {operator}: {', '.join(_BY_OPERATOR)}")
    named = [tool for tool in _BY_OPERATOR[operator] if tool.name == name]
    if not named and name in NAMES:
        others = ", ".join(dict.fromkeys(tool.name for tool in _BY_OPERATOR[operator]))
        raise NotOffered(f"{_TITLES[name]} has no format for {operator}: {others} have one")
    if not named:
        raise BadInput(f"nothing exports to {name!r}: {near_names(name, NAMES)}")
    if form is None:
        return named[0]
    found = [tool for tool in named if tool.suffix.endswith(form)]
    if not found:
        forms = ", ".join(tool.suffix.rpartition(".")[2] for tool in named)
        raise BadInput(f"{named[0].title} has no form {form!r}: {forms}")
    return found[0]


def tool_named(name: str, form: str | None = None) -> Tool:
    """The format of that tool for products, as `format_named` finds it and with its errors."""
    found = format_named("gemm", name, form)
    assert isinstance(found, Tool)
    return found
