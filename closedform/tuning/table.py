"""Replay of a measured table: the time of a candidate is the row that has its values."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.interop.tool import is_time
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm
from closedform.predict.attention_answer import ATTENTION_CONFIG
from closedform.predict.gemm_answer import GEMM_CONFIG

from .candidate import Candidate, canonical
from .evaluator import EvaluationFailed

__all__ = ["Landscape", "TableEvaluator", "read_landscapes"]

#: Columns by the names that tables give them, and what a table without the column means.
_GEMM_NAMES = {"BM": "tile_m", "BN": "tile_n", "BK": "tile_k", "warps": "waves"}
_ATTENTION_NAMES = {"BM": "tile_q", "BN": "tile_kv", "warps": "waves"}
_DEFAULTS = {"waves": "4", "stages": "2", "split_k": "1"}
_GEMM = ("M", "N", "K", "dtype", "layout")
_ATTENTION = ("B", "H", "L", "d", "causal")


@dataclass(frozen=True, slots=True)
class Landscape:
    """Every measured configuration of a problem: microseconds by the canonical text of the configuration."""

    op: Gemm | Attention
    times_us: Mapping[str, float]
    digest: str
    repeated: int = 0

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
    """The problems of a table in their order; `.gz` is unpacked.

    Columns of products: M N K dtype layout us, in row-major letters, tile_m tile_n tile_k waves stages split_k, or BM
    BN BK warps for the first four. Columns of attention: B H L d causal us, tile_q (of a workgroup) tile_kv waves
    stages, or BM BN warps; its type is bf16. Raises BadInput for a column that is missing and, with its line, for a
    cell that is no number.
    """
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:16]
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (UnicodeDecodeError, OSError, EOFError, zlib.error):
        raise BadInput(f"{path}: not a whole table in UTF-8") from None
    rows = csv.DictReader(io.StringIO(text))
    attention = set(_ATTENTION) <= set(rows.fieldnames or ())
    names, problem, config = (
        (_ATTENTION_NAMES, _ATTENTION, ATTENTION_CONFIG) if attention else (_GEMM_NAMES, _GEMM, GEMM_CONFIG)
    )
    rows.fieldnames = [names.get(name, name) for name in rows.fieldnames or ()]
    wanted = (*problem, "us", *(name for name in config if name not in _DEFAULTS))
    if missing := [name for name in wanted if name not in rows.fieldnames]:
        raise BadInput(f"{path}: no column {', '.join(missing)}")
    make = _attention if attention else _product
    times: dict[tuple[str, ...], dict[str, float]] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    ops: dict[tuple[str, ...], Gemm | Attention] = {}
    try:
        for row in rows:
            key = tuple(row[name] or "" for name in problem)
            if key not in ops:
                ops[key] = make(key, hw)
            us = float(row["us"])
            if not is_time(us):
                raise BadInput(f"us {us} is no time")
            values = {name: int(row.get(name) or _DEFAULTS[name]) for name in config}
            times.setdefault(key, {})[canonical(values)] = us
            counts[key] += 1
    except BadInput as error:
        raise BadInput(f"{path}, line {rows.line_num}: {error}") from None
    except ValueError:
        raise BadInput(f"{path}, line {rows.line_num}: a cell that should be a number is none") from None
    except (KeyError, TypeError):
        raise BadInput(f"{path}, line {rows.line_num}: fewer cells than the table has columns") from None
    except csv.Error:
        longest = csv.field_size_limit()
        raise BadInput(
            f"{path}, behind line {rows.line_num}: a cell of more than {longest} characters, or one that no cell has"
        ) from None
    return [
        Landscape(ops[key], found, digest, counts[key] - len(found)) for key, found in times.items()
    ]


def _product(key: tuple[str, ...], hw: HardwareDescriptor) -> Gemm:
    M, N, K, kind, layout = key
    # The table says bf16 or fp8 in, and its kernels write bf16.
    return Gemm(int(M), int(N), int(K), dtype=hw.resolve_dtype(kind).name, layout=layout, out_dtype="bf16")


def _attention(key: tuple[str, ...], hw: HardwareDescriptor) -> Attention:
    B, H, L, d, causal = (int(word) for word in key)
    return Attention(L_q=L, L_kv=L, d=d, batch=B, heads=H, dtype="bf16", causal=causal > 0)
