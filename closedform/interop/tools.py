"""Every format, by the name that `--to` takes and by its form."""

from __future__ import annotations

from closedform.hw.errors import BadInput, near_names

from . import aiter, ck, flydsl, inductor, iree, nvmatmul, plain, tensilelite, tilelang, triton
from .tool import Tool

__all__ = ["NAMES", "TOOLS", "tool_named"]

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
NAMES = tuple(dict.fromkeys((*(tool.name for tool in TOOLS), "hipblaslt")))


def tool_named(name: str, form: str | None = None) -> Tool:
    """The tool of that name, in the form whose file suffix ends so (py, json, csv, yaml); its first without.

    Raises BadInput with near names for an unknown tool, and for a form that it does not have.
    """
    named = [tool for tool in TOOLS if tool.name == name]
    if not named:
        raise BadInput(f"nothing exports to {name!r}: {near_names(name, NAMES)}")
    if form is None:
        return named[0]
    found = [tool for tool in named if tool.suffix.endswith(form)]
    if not found:
        forms = ", ".join(tool.suffix.rpartition(".")[2] for tool in named)
        raise BadInput(f"{named[0].title} has no form {form!r}: {forms}")
    return found[0]
