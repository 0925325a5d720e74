"""Readers of the measured tables: rows in the project's row-major convention, grouped by type and layout."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from closedform.predict.configs import Configs, configs
from closedform.predict.constants import Constants
from closedform.predict.gemm_time import GemmShapes

Array = Any


@dataclass(frozen=True)
class Table:
    """Timings of one GPU; `shape` and `case` number the (M, N, K) and the shape with type and layout of each row."""

    columns: dict[str, Array]
    dtype: Array
    layout: Array
    us: Array

    @property
    def shape(self) -> Array:
        return np.unique(np.stack([self.columns[n] for n in ("M", "N", "K")]), axis=1, return_inverse=True)[1].ravel()

    @property
    def case(self) -> Array:
        kinds = np.unique(np.char.add(self.dtype.astype(str), self.layout.astype(str)), return_inverse=True)[1]
        return np.unique(np.stack([self.shape, kinds]), axis=1, return_inverse=True)[1].ravel()

    def take(self, mask: Array) -> Table:
        return Table({n: v[mask] for n, v in self.columns.items()}, self.dtype[mask], self.layout[mask], self.us[mask])

    def kinds(self) -> Iterator[tuple[str, str, Array]]:
        for dtype, layout in sorted(set(zip(self.dtype, self.layout, strict=True))):
            yield dtype, layout, (self.dtype == dtype) & (self.layout == layout)

    def shapes(self, mask: Array, elem_bytes: float, layout: str, out_bytes: float = 2) -> GemmShapes:
        """One row a configuration: extents as [r], so that they pair with the rows' configurations."""
        m, n, k = (self.columns[name][mask] for name in ("M", "N", "K"))
        return GemmShapes(m, n, k, elem_bytes, out_bytes, layout)

    def configs(self, mask: Array) -> Configs:
        c = {name: values[mask] for name, values in self.columns.items()}
        grid = {name: c[name] for name in ("wave_m", "wave_n", "wave_k") if name in c}
        return configs(
            c["tile_m"],
            c["tile_n"],
            c["tile_k"],
            waves=c.get("waves", 4),
            stages=c.get("stages", 2),
            mfma_m=c.get("mfma_m", 16),
            split_k=c.get("split_k", 1),
            **grid,
        )


@dataclass(frozen=True)
class Residuals:
    """Cross-validated predictions beside the measurements; `groups` numbers the shape of each row."""

    predicted_us: Array
    measured_us: Array
    groups: Array


def unseen(start: Constants, passes: int) -> Constants:
    """Where the fit of a fold starts: at the priors, which have seen no row; without a fit the constants themselves."""
    return start.at_priors() if passes else start


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
        return list(csv.DictReader(stream))


def _numbers(rows: list[dict[str, str]], names: dict[str, str]) -> dict[str, Array]:
    return {ours: np.array([float(row[theirs]) for row in rows]) for ours, theirs in names.items()}


def h200_gemm(folder: Path, part: str = "train") -> Table:
    """Row-major already."""
    rows = _rows(folder / f"h200_gemm_landscape_{part}.csv.gz")
    names = {n: n for n in ("M", "N", "K", "stages")}
    names |= {"tile_m": "BM", "tile_n": "BN", "tile_k": "BK", "waves": "warps", "us": "us"}
    c = _numbers(rows, names)
    return Table(c, np.array([r["dtype"] for r in rows]), np.array([r["layout"] for r in rows]), c.pop("us"))


def _row_major(a: str, b: str) -> str:
    """Letters of a column-major product in row-major order, with M and N exchanged: (transB, transA)."""
    return b + a


def mi325x_gemm(folder: Path, part: str = "train", column: str = "streamk_us") -> Table:
    """Column-major in the file: M and N are exchanged here."""
    rows = _rows(folder / f"mi325x_gemm_{part}.csv")
    c = _numbers(rows, {"M": "N", "N": "M", "K": "K", "us": column})
    dtype = np.array([{"fp16": "f16"}.get(r["dtype"], r["dtype"]) for r in rows])
    return Table(c, dtype, np.array([_row_major(r["layout"][0], r["layout"][1]) for r in rows]), c.pop("us"))


def gfx950_sweep(folder: Path, part: str = "train") -> Table:
    """Column-major in the file: M and N are exchanged here, and with them the tile and the wave grid."""
    rows = _rows(folder / f"gfx950_sweep_{part}.csv")
    c = _numbers(
        rows,
        {"M": "N", "N": "M", "K": "K", "tile_m": "tile_n", "tile_n": "tile_m", "tile_k": "tile_k", "mfma_m": "mfma_m"},
    )
    c["wave_m"] = np.array([float(r["wave_layout"][4]) for r in rows])
    c["wave_n"] = np.array([float(r["wave_layout"][2]) for r in rows])
    gflops = np.array([float(r["gflops"]) for r in rows])
    us = 2 * c["M"] * c["N"] * c["K"] / gflops / 1e3
    layout = np.array([_row_major(r["transA"], r["transB"]) for r in rows])
    return Table(c, np.full(len(rows), "bf16"), layout, us)


#: What makes two recorded winners one and the same run.
RECORDED = (
    *("M", "N", "K", "batch", "transA", "transB", "macrotile_m", "macrotile_n", "depthU", "mi", "wave_layout", "GSU"),
    *("wgm", "set"),
)


def _as_measured(rows: list[dict[str, str]], known: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows with the types and the compute units of their run: a library file that lists single problems often
    holds, under other types or for a smaller part, the winner and the time of another file. The run is the one with
    operands of one type, on the whole device."""
    runs: dict[tuple[str, ...], list[tuple[bool, str, str]]] = {}
    for row in known:
        if row["set"] == "Equality":
            run = ("*" in row["dtype"], row["cu"], row["dtype"])
            runs.setdefault(tuple(row[name] for name in RECORDED), []).append(run)
    out = []
    for row in rows:
        same = runs.get(tuple(row[name] for name in RECORDED), [])
        if len(same) > 1 and row["set"] == "Equality":
            _, cu, dtype = min(same)
            out.append({**row, "cu": cu, "dtype": dtype})
        else:
            out.append(row)
    return out


def hipblaslt(folder: Path, part: str = "train", arch: str = "gfx942") -> tuple[Table, list[dict[str, str]]]:
    """Winning kernels, column-major in the file; the rows come along for their types."""

    def of(name: str) -> list[dict[str, str]]:
        return [r for r in _rows(folder / f"hipblaslt_gfx942_gfx90a_{name}.csv") if r["arch"] == arch]

    rows = [r for r in of(part) if r["mi"] and r["wave_layout"] and r["lsu"] and r["GSU"]]
    rows = _as_measured(rows, rows if part == "train" else rows + of("train"))
    names = {"M": "N", "N": "M", "K": "K", "batch": "batch", "tile_m": "macrotile_n", "tile_n": "macrotile_m"}
    c = _numbers(rows, names | {"tile_k": "depthU", "split_k": "GSU", "gflops": "gflops"})
    c["mfma_m"] = np.array([float(r["mi"].split("x")[0]) for r in rows])
    c["wave_m"] = np.array([float(r["wave_layout"][4]) for r in rows])
    c["wave_n"] = np.array([float(r["wave_layout"][2]) for r in rows])
    c["wave_k"] = np.array([float(r["lsu"]) for r in rows])
    c["stages"] = np.array([float(r["pgr"].replace("True", "1")) for r in rows])
    us = 2 * c["M"] * c["N"] * c["K"] * c["batch"] / c.pop("gflops") / 1e3
    layout = np.array([_row_major(r["transA"], r["transB"]) for r in rows])
    return Table(c, np.array([r["dtype"] for r in rows]), layout, us), rows
