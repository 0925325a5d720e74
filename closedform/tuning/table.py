"""Replay of a measured table: the time of a candidate is the row that has its values."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm
from closedform.predict.gemm_answer import GEMM_CONFIG

from .candidate import Candidate, canonical
from .evaluator import EvaluationFailed

__all__ = ["Landscape", "TableEvaluator", "read_landscapes"]

#: Columns by the names that tables give them, and what a table without the column means.
_NAMES = {"BM": "tile_m", "BN": "tile_n", "BK": "tile_k", "warps": "waves"}
_DEFAULTS = {"waves": "4", "stages": "2", "split_k": "1"}
_PROBLEM = ("M", "N", "K", "dtype", "layout")


@dataclass(frozen=True, slots=True)
class Landscape:
    """Every measured configuration of a product: microseconds by the canonical text of the configuration."""

    op: Gemm
    times_us: Mapping[str, float]
    digest: str

    @property
    def best_us(self) -> float:
        return min(self.times_us.values())


@dataclass(frozen=True, slots=True)
class TableEvaluator:
    """Looks a candidate up; one that is not in the table was not measured."""

    landscape: Landscape
    name: str = "table"
    repeatable: bool = True

    def identity(self) -> Mapping[str, object]:
        return {"table": self.landscape.digest}

    def measure(self, candidate: Candidate) -> float:
        us = self.landscape.times_us.get(canonical(candidate))
        if us is None:
            raise EvaluationFailed("not in the table")
        return us


def read_landscapes(path: Path, hw: HardwareDescriptor) -> list[Landscape]:
    """The products of a table in their order; `.gz` is unpacked.

    Columns: M N K dtype layout us, in row-major letters, tile_m tile_n tile_k waves stages split_k, or BM BN BK warps
    for the first four. Raises BadInput for a column that is missing and, with its line, for a cell that is no number.
    """
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:16]
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path}: not a table in UTF-8: {error}") from None
    rows = csv.DictReader(io.StringIO(text))
    rows.fieldnames = [_NAMES.get(name, name) for name in rows.fieldnames or ()]
    wanted = (*_PROBLEM, "us", *(name for name in GEMM_CONFIG if name not in _DEFAULTS))
    if missing := [name for name in wanted if name not in rows.fieldnames]:
        raise BadInput(f"{path}: no column {', '.join(missing)}")
    times: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        try:
            config = {name: int(row.get(name) or _DEFAULTS[name]) for name in GEMM_CONFIG}
            us = float(row["us"])
        except (KeyError, ValueError, TypeError) as error:
            raise BadInput(f"{path}, line {rows.line_num}: {error}") from None
        times.setdefault(tuple(row[name] for name in _PROBLEM), {})[canonical(config)] = us
    return [Landscape(_product(hw, key), found, digest) for key, found in times.items()]


def _product(hw: HardwareDescriptor, key: tuple[str, ...]) -> Gemm:
    M, N, K, kind, layout = key
    # The table says bf16 or fp8 in, and its kernels write bf16.
    return Gemm(int(M), int(N), int(K), dtype=hw.resolve_dtype(kind).name, layout=layout, out_dtype="bf16")
