"""JSON Schemas of every --json output: their key names are part of the public interface."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from closedform.hw.errors import BadInput, near_names

__all__ = ["names", "schema"]


def names() -> tuple[str, ...]:
    """Names of the schemas, one for each output and one for the manifest."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


@cache
def schema(name: str) -> dict[str, Any]:
    """The schema of that output (JSON Schema draft 2020-12); BadInput for an unknown name."""
    if name not in names():
        raise BadInput(f"unknown schema {name!r}: {near_names(name, names())}")
    loaded: dict[str, Any] = json.loads((resources.files(__name__) / f"{name}.json").read_text())
    return loaded
