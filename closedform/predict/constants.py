"""Calibrated constants of the latency model: data with a source and a date, never numbers in the code.

`constants.csv` has one row a constant: kernel family, GPU, name, value, prior, spread, unit, source, fit_date. `prior`
is the physical expectation a fit starts from, `spread` its relative width (0: not fitted). A value and a prior may name
another row, as family/gpu/name: then they are its value.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .families import target_of

__all__ = [
    "COLUMNS",
    "FILE",
    "Constant",
    "Constants",
    "constants_for",
    "constants_from",
    "load_constants",
    "shipped_constants",
]

FILE = Path(__file__).parent / "constants.csv"
COLUMNS = ("family", "gpu", "name", "value", "prior", "spread", "unit", "source", "fit_date")


@dataclass(frozen=True, slots=True)
class Constant:
    """One calibrated number and where it comes from."""

    name: str
    value: float
    prior: float
    spread: float
    unit: str
    source: str
    fit_date: str


@dataclass(frozen=True, slots=True)
class Constants(Mapping[str, float]):
    """The constants of one kernel family on one GPU, by name; `gpu` is the part they were fitted on."""

    family: str
    gpu: str
    rows: tuple[Constant, ...]
    numbers: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def with_values(self, values: Mapping[str, float]) -> Constants:
        """The same constants with some values replaced."""
        unknown = set(values) - set(self.numbers)
        if unknown:
            raise BadInput(f"unknown constants: {', '.join(sorted(unknown))}")
        return Constants(self.family, self.gpu, self.rows, {**self.numbers, **values})

    def at_priors(self) -> Constants:
        """The same constants with what a fit may move back at its prior: a start that has seen no measurement."""
        return self.with_values({row.name: row.prior for row in self.rows if row.spread > 0})

    def __hash__(self) -> int:
        return hash((self.family, self.gpu, *self.numbers.values()))


def _constant(at: str, row: Mapping[str, str]) -> Constant:
    if not row["source"].strip() or not row["fit_date"].strip():
        raise BadInput(f"{at}: a constant without its source and date")
    try:
        value, prior, spread = (float(row[c]) for c in ("value", "prior", "spread"))
    except ValueError:
        raise BadInput(f"{at}: value, prior and spread must be numbers") from None
    if not (0 < value < math.inf and 0 < prior < math.inf and 0 <= spread < math.inf):
        raise BadInput(f"{at}: value and prior must be above 0, spread at least 0")
    return Constant(row["name"], value, prior, spread, row["unit"], row["source"], row["fit_date"])


def load_constants(path: str | Path = FILE) -> dict[tuple[str, str], Constants]:
    """Every set of constants of a file, by (family, gpu).

    Raises BadInput, with the line, for a missing column, a value that is no positive number, and a row without a
    source or without the date of its fit.
    """
    name = Path(path).name
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: not a text in UTF-8, at byte {error.start}") from None
    found: dict[tuple[str, str], dict[str, Constant]] = {}
    values: dict[str, str] = {}
    rows: list[tuple[str, dict[str, str]]] = []
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise BadInput(f"{name}: no column {', '.join(missing)}")
    for row in reader:
        at = f"{name}, line {reader.line_num}"
        if None in row or None in row.values():
            raise BadInput(f"{at}: expected {len(COLUMNS)} cells")
        values["/".join((row["family"], row["gpu"], row["name"]))] = row["value"]
        rows.append((at, row))
    for at, row in rows:
        constant = _constant(at, {**row, **{c: values.get(row[c], row[c]) for c in ("value", "prior")}})
        of_set = found.setdefault((row["family"], row["gpu"]), {})
        if constant.name in of_set:
            raise BadInput(f"{at}: a second {constant.name} of {row['gpu']}")
        of_set[constant.name] = constant
    return {
        key: Constants(*key, rows=tuple(rows.values()), numbers={name: row.value for name, row in rows.items()})
        for key, rows in found.items()
    }


@cache
def _shipped() -> dict[tuple[str, str], Constants]:
    return load_constants()


def shipped_constants(family: str, gpu: str) -> Constants:
    """A set of `constants.csv` by its family and GPU."""
    return _shipped()[family, gpu]


def constants_from(path: str | Path, hw: HardwareDescriptor, family: str) -> Constants:
    """That GPU's set in a user's file, as `closedform fit --out` writes it; BadInput where it has none."""
    sets = load_constants(path)
    if (family, hw.name) not in sets:
        held = ", ".join(f"{gpu} ({kind})" for kind, gpu in sorted(sets)) or "nothing"
        raise BadInput(f"{Path(path).name} has no {family!r} constants of {hw.name}; it holds {held}")
    missing = set(constants_for(hw, family)) - set(sets[family, hw.name])
    if missing:
        raise BadInput(f"{Path(path).name}: no constant {', '.join(sorted(missing))} of {hw.name}")
    return sets[family, hw.name]


def constants_for(hw: HardwareDescriptor, family: str) -> Constants:
    """The constants for that GPU: its own, or those of the calibrated part that stands in for it (`families.csv`).

    Rates are per compute unit or scale with the descriptor's own rates, so a stand-in follows the GPU's numbers.
    """
    sets = _shipped()
    for name in (hw.name, *target_of(hw).stand_ins):
        if (family, name) in sets:
            return sets[family, name]
    raise BadInput(f"no constants of the kernel family {family!r} for {hw.name}")
