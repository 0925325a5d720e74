"""A user's GPU from a TOML or JSON file.

The keys are the fields of the descriptor, in its units (bytes, bytes per second, MHz). `base` names a
catalogued GPU whose facts the file overrides; without it the file gives every fact of the part, while those
that all parts of a target share come with `gfx`. `atoms` lists the mnemonics to keep, and `[sources]` may say
where a value comes from.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import catalogue
from .descriptor import FIELD_KINDS, HardwareDescriptor
from .errors import BadInput, MissingDependency, near_names
from .limits import problems

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["load"]

#: Fields that the descriptor cannot do without and that have no other origin than facts.
_REQUIRED = tuple(
    f.name
    for f in dataclasses.fields(HardwareDescriptor)
    if f.default is dataclasses.MISSING and f.name not in ("name", "gfx", "atoms", "sources")
)


def load(path: Path) -> HardwareDescriptor:
    """The GPU that the file describes; BadInput names every error of the file at once."""
    given, errors = _checked(_parsed(path))
    broken = frozenset(errors)
    name = given.pop("name", path.stem)
    part = _layer(given, path.name, errors)
    gfx = part["gfx"][0] if "gfx" in part else ""
    if gfx in catalogue.targets():
        known = {**catalogue.target_layer(gfx), **part}
        absent = [] if "base" in errors else [f for f in _REQUIRED if f not in known and f not in broken]
        errors.update((field, f"{field} is missing: give it, or a base") for field in absent)
        if "atoms" in part:
            try:
                catalogue.select_atoms(gfx, False, part["atoms"][0].split())
            except BadInput as error:
                errors["atoms"] = str(error)
    else:
        known = part
        if gfx:
            errors["gfx"] = f"gfx: unknown target {gfx!r}: {near_names(gfx, catalogue.targets())}"
        elif not errors.keys() & {"gfx", "base"}:
            errors["gfx"] = "gfx is missing: name the target, or a base"
    values = {field: value for field, (value, _) in known.items() if field in FIELD_KINDS and field != "atoms"}
    texts = [*errors.values(), *problems(values, FIELD_KINDS)]
    if texts:
        count = "1 error" if len(texts) == 1 else f"{len(texts)} errors"
        raise BadInput(f"{path}: {count}: " + "; ".join(texts))
    return catalogue.assemble(name, part)


def _layer(given: dict[str, Any], file: str, errors: dict[str, str]) -> catalogue.Layer:
    """The facts of the file over those of its base; a bad base or source goes to `errors`."""
    base: catalogue.Layer = {}
    if "base" in given:
        try:
            base = catalogue.part_layer(given["base"].lower())
        except BadInput as error:
            errors["base"] = f"base: {error}"
    sources = given.get("sources", {})
    for field in sorted(sources.keys() - FIELD_KINDS.keys()):
        errors[f"sources.{field}"] = f"sources: unknown field {field!r}: {near_names(field, FIELD_KINDS)}"
    own = {f: (value, sources.get(f, file)) for f, value in given.items() if f not in ("base", "sources")}
    if "atoms" in own:
        own["atoms"] = (" ".join(given["atoms"]), own["atoms"][1])
    return {**base, **own}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}") from None
    kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
    try:
        content = json.loads(text) if kind == "JSON" else _toml(text)
    except ValueError as error:
        raise BadInput(f"{path} is not valid {kind}: {error}") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path} holds a {type(content).__name__}, expected a table of fields")
    return content


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


@cache
def _model() -> type[BaseModel]:
    """The pydantic model of a file: every field optional, types strict, nothing else allowed."""
    try:
        from pydantic import ConfigDict, create_model
    except ImportError:
        raise MissingDependency("reading a GPU file needs pydantic: pip install pydantic") from None
    kinds: dict[str, Any] = {"int": int, "bool": bool, "str": str, "float": float}
    fields: dict[str, Any] = {"base": (str | None, None)}
    for name, kind in FIELD_KINDS.items():
        if name in ("atoms", "sources"):
            continue
        bare = kind.removesuffix(" | None")
        python = list[int] if bare.startswith("tuple") else kinds[bare]
        fields[name] = (python | None if bare != kind else python, None)
    fields["atoms"] = (list[str], None)
    fields["sources"] = (dict[str, str], None)
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model("GpuFile", __config__=config, **fields)


def _checked(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields that have the right type, and an error text for each of the others."""
    model = _model()
    from pydantic import ValidationError

    errors: dict[str, str] = {}
    try:
        model.model_validate(content)
    except ValidationError as invalid:
        for error in invalid.errors():
            field = str(error["loc"][0])
            if error["type"] == "extra_forbidden":
                errors[field] = f"unknown field {field!r}: {near_names(field, model.model_fields)}"
            else:
                where = ".".join(map(str, error["loc"]))
                errors[field] = f"{where}: {error['msg'].lower()}, not {error['input']!r}"
    sound = {field: value for field, value in content.items() if field not in errors}
    return {f: tuple(v) if isinstance(v, list) and f != "atoms" else v for f, v in sound.items()}, errors
