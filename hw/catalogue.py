"""The catalogue of GPUs: descriptors assembled from the fact tables, one layer over the other.

A descriptor is the facts of its target (`targets.csv`, by gfx), under the facts of the part that it is based
on, under its own (`gpus.csv`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from .atoms import MFMAAtom, instructions
from .descriptor import FIELD_KINDS, HardwareDescriptor
from .errors import BadInput, near_names
from .model_gpus import model_gpu, model_gpu_names
from .tables import read_facts

__all__ = ["find", "get", "load_file", "names", "targets"]

#: Units of the tables, with the factor to the descriptor's bytes, bytes/s and MHz.
_UNITS = {
    "": 1,
    **dict.fromkeys(("B", "B/clk/CU", "MHz", "FLOP/clk/CU", "TFLOPS", "bit", "bank"), 1),
    **dict.fromkeys(("CU", "XCD", "SIMD", "lane", "wave", "VGPR", "AccVGPR", "workgroup", "work-item"), 1),
    "GB": 10**9,
    "TB/s": 10**12,
}
#: Fields of the tables that are not fields of the descriptor: the part to build on, and mnemonics to keep.
_DIRECTIVES = ("base", "atoms")

#: The values of some descriptor fields, each with the text that names its source.
Layer = dict[str, tuple[Any, str]]


def _parse(field: str, text: str, unit: str) -> Any:
    if unit not in _UNITS:
        raise BadInput(f"unknown unit {unit!r} of {field}")
    kind = _KINDS[field]
    try:
        if "None" in kind and not text:
            return None
        if kind.startswith("tuple"):
            return tuple(int(word) for word in text.split())
        if kind.startswith("bool"):
            return {"true": True, "false": False}[text]
        if kind.startswith("int"):
            return int(text) * _UNITS[unit]
        if kind.startswith("float"):
            return float(text) * _UNITS[unit]
    except (KeyError, ValueError):
        raise BadInput(f"cannot read {text!r} as {field} ({kind})") from None
    return text


_KINDS = {**FIELD_KINDS, **dict.fromkeys(_DIRECTIVES, "str")}


@cache
def _layers(file: str, key: str) -> dict[str, Layer]:
    layers: dict[str, Layer] = {}
    for row in read_facts(file, key=(key, "field")):
        field = row["field"]
        if field not in _KINDS or field == "sources":
            raise BadInput(f"{file}: {row[key]} has an unknown field {field!r}")
        try:
            value = _parse(field, row["value"], row["unit"])
        except BadInput as error:
            raise BadInput(f"{file}, {row[key]}: {error}") from None
        layers.setdefault(row[key], {})[field] = (value, row["source"])
    return layers


def names() -> tuple[str, ...]:
    """Names of the catalogued GPUs, in the order of the table."""
    return tuple(_layers("gpus.csv", "gpu"))


def targets() -> tuple[str, ...]:
    """LLVM names of the targets whose facts are known."""
    return tuple(_layers("targets.csv", "gfx"))


def part_layer(name: str) -> Layer:
    """The facts of a catalogued part over those of its base, without those of its target."""
    parts = _layers("gpus.csv", "gpu")
    if name not in parts:
        raise BadInput(f"unknown GPU {name!r}: {near_names(name, parts)}")
    own = parts[name]
    return {**part_layer(own["base"][0]), **own} if "base" in own else own


def target_layer(gfx: str) -> Layer:
    """The facts that all parts of a target share."""
    layers = _layers("targets.csv", "gfx")
    if gfx not in layers:
        raise BadInput(f"unknown target {gfx!r}: {near_names(gfx, layers)}")
    return layers[gfx]


def assemble(name: str, part: Layer) -> HardwareDescriptor:
    """The descriptor of a part: its layer over that of its target."""
    layer = {**target_layer(part["gfx"][0]), **part}
    values = {field: value for field, (value, _) in layer.items() if field not in _DIRECTIVES}
    keep = layer["atoms"][0].split() if "atoms" in layer else None
    return HardwareDescriptor(
        name=name,
        atoms=select_atoms(values["gfx"], values["mfma_acc_only"], keep),
        sources={field: source for field, (_, source) in layer.items() if field != "base"},
        **values,
    )


def select_atoms(gfx: str, acc_only: bool, keep: list[str] | None) -> tuple[MFMAAtom, ...]:
    """The target's atoms, or those of the mnemonics in `keep`; BadInput names every unknown mnemonic."""
    atoms = instructions(gfx, acc_only)
    if keep is None:
        return atoms
    known = {atom.instruction for atom in atoms}
    unknown = [f"{name!r} ({near_names(name, known)})" for name in keep if name not in known]
    if unknown:
        raise BadInput(f"atoms: not instructions of {gfx}: {', '.join(unknown)}")
    return tuple(atom for atom in atoms if atom.instruction in keep)


@cache
def get(name: str) -> HardwareDescriptor:
    """The catalogued GPU of that name, in any case; BadInput with near names otherwise.

    Also those that only the latency model knows (`model_gpus.py`), which `names` does not list.
    """
    if name.lower() in model_gpu_names():
        return model_gpu(name.lower(), _parse)
    return assemble(name.lower(), part_layer(name.lower()))


def load_file(path: str | Path) -> HardwareDescriptor:
    """A user's GPU from a TOML or JSON file; BadInput names every error of the file at once."""
    from .userfile import load

    return load(Path(path))


def find(name_or_path: str) -> HardwareDescriptor:
    """The catalogued GPU of that name, or the one of a file when the text ends in .toml or .json."""
    if name_or_path.lower().endswith((".toml", ".json")):
        return load_file(name_or_path)
    return get(name_or_path)
