"""hipBLASLt's recorded winners on gfx942: predicted GFLOPS of the winning kernel, and constants for the transfer test.

The table mixes recordings. Three things are the library's and not the GPU's, and are fitted beside the constants:
a loop over the last k that loads what no vector divides piece by piece, a second kernel that sums a split, and the
matrix rate of the part with 80 compute units. Grid-based recordings of small problems took a fixed cost besides (4 to
1,500 us for the same arithmetic): `Recordings` estimates it from the training rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from model_data import Residuals, Table, unseen

from closedform.hw import catalogue
from closedform.hw.descriptor import HardwareDescriptor
from closedform.predict.constants import Constants
from closedform.predict.fit import fit_constants, mean_factor
from closedform.predict.gemm_time import GemmShapes, gemm_time
from closedform.predict.step import staged_step

HW = catalogue.get("mi300x")
#: By the CU count of the row; parts with fewer run their matrix cores slower.
DEVICES = {"": HW, **{str(n): HW.with_cus(n) for n in (20, 80)}}
FILE = Path(__file__).with_name("recordings.csv")
LARGE_FLOP = 2.5e7
#: From here on a grid-based recording shows the GPU.
GRID_FLOP = 1e9
BITS = {"fp8": 8, "bf8": 8, "i8": 8, "bf16": 16, "fp16": 16, "fp32": 32, "xf32": 32, "i32": 32, "fp64": 64}
#: Rows that the estimate of all recordings of a kind counts as, against those of one library file.
KIND_ROWS = 1.5
VECTOR_BYTES = 16


def _bits(name: str) -> int:
    return BITS[re.match(r"[a-z]+\d+", name)[0]]  # type: ignore[index]


def kind(row: dict[str, str]) -> tuple[str, float, float, bool]:
    """Type of the matrix instruction, bytes of an element read and written, and whether operands are converted."""
    source, out = row["dtype"].split(">")
    operand = source.split("(")[0]
    parts = operand.split("*")
    bits = np.mean([_bits(p) for p in parts])
    mixed = "(" in source or len(set(parts)) > 1
    m, _, k, blocks = row["mi"].split("x")
    depth = int(m) * int(k)
    if "fp64" in source:
        rate = "f64"
    elif "xf32" in source:
        rate = "xf32"
    elif "fp32" in source:
        rate = "f32"
    elif depth >= 512 and blocks == "1":
        rate = "i8" if "i8" in source else "fp8"
    else:
        rate = "bf16"
    return rate, bits / 8, _bits(out) / 8, mixed


def _operands(row: dict[str, str]) -> str:
    source = row["dtype"].split(">")[0]
    if "*" in source:
        return "mixed"
    if "(" in source:
        return "converted"
    return "8-bit float" if "8_fnuz" in source else source


class Recordings:
    """Fixed cost in microseconds of each kind of grid-based recording, and of each library file within it.

    Keys are the operands with the calling convention, and the file, which one run of tuning wrote.
    """

    def __init__(self, rows: Sequence[dict[str, str]]) -> None:
        self.touched = np.array([r["set"] == "GridBased" for r in rows])
        convention = ["user" if "UserArgs" in r["source"] else "packed" for r in rows]
        self.kind = np.array([f"{_operands(r)}, {c}" for r, c in zip(rows, convention, strict=True)])
        self.file = np.array([r["source"].rsplit("/", 1)[-1].removesuffix(".yaml") for r in rows])

    def fit(self, model_us: Any, us: Any, mask: Any) -> dict[tuple[str, str], float]:
        """Costs by (kind, file), with "" for a kind and for its file: each the one with the least mean error of
        logarithms over its rows, where a kind weighs on its files as `KIND_ROWS` rows."""
        rows = self.touched & mask
        found = {("", ""): _cost(model_us[rows], us[rows], 0.0, 0.0)}
        for name in np.unique(self.kind[rows]):
            of_kind = rows & (self.kind == name)
            whole = found[name, ""] = _cost(model_us[of_kind], us[of_kind], 0.0, 0.0)
            for file in np.unique(self.file[of_kind]):
                some = of_kind & (self.file == file)
                found[name, file] = _cost(model_us[some], us[some], whole, KIND_ROWS)
        return found

    def costs(self, found: dict[tuple[str, str], float]) -> Any:
        """The cost of every row."""
        out = np.zeros(len(self.kind))
        for i in np.flatnonzero(self.touched):
            name, file = str(self.kind[i]), str(self.file[i])
            out[i] = found.get((name, file), found.get((name, ""), found["", ""]))
        return out


def _cost(model_us: Any, us: Any, whole: float, weight: float) -> float:
    choices = np.unique(np.concatenate([[0.0, whole], np.maximum(us - model_us, 0)]))
    errors = np.abs(np.log((model_us[:, None] + choices) / us[:, None])).sum(0)
    usual = np.median(model_us)
    errors += weight * np.abs(np.log((usual + choices) / (usual + whole)))
    return float(choices[int(np.argmin(errors))])


def read_costs(path: Path = FILE) -> dict[tuple[str, str], float]:
    with path.open(newline="") as stream:
        return {(r["kind"], r["file"]): float(r["cost_us"]) for r in csv.DictReader(stream)}


def write_costs(found: dict[tuple[str, str], float], path: Path = FILE) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("kind", "file", "cost_us", "source"))
        source = "fitted on the grid-based gfx942 rows of hipBLASLt's logic files"
        writer.writerows((*key, f"{value:.4g}", source) for key, value in sorted(found.items()))


class Winners:
    """The rows sorted into groups that share types, layout and CU count."""

    def __init__(
        self, table: Table, rows: Sequence[dict[str, str]], devices: Mapping[str, HardwareDescriptor] = DEVICES
    ) -> None:
        self.table, self.devices = table, devices
        keys = [(*kind(r), layout, r["cu"]) for r, layout in zip(rows, table.layout, strict=True)]
        self.keys = sorted(set(keys), key=str)
        self.group = np.array([self.keys.index(k) for k in keys])
        c = table.columns
        self.flop = 2 * c["M"] * c["N"] * c["K"] * c["batch"]
        self.plain = np.array([not k[3] for k in keys])
        grid = np.array([r["set"] == "GridBased" for r in rows])
        #: Rows whose time is the GPU's and not the recording's.
        self.clean = (~grid | (self.flop >= GRID_FLOP)) & self.plain & np.array([k[0] != "xf32" for k in keys])
        #: A split that another kernel sums.
        self.second = np.array([int(r["GSU"]) > 1 and r["gsu_algo"] != "MultipleBufferSingleKernel" for r in rows])
        self.pieces = _tail_loads(table, np.array([k[1] for k in keys]))

    def model(self, constants: Constants) -> Any:
        us = np.empty(len(self.group))
        for i, (rate, elem, out_bytes, _, layout, cus) in enumerate(self.keys):
            mask = self.group == i
            hw = self.devices[cus]
            c = self.table.configs(mask)
            share = constants["part_rate_share"] if hw.num_cus < HW.num_cus and hw.name == HW.name else 1.0
            step = staged_step(hw, constants, c, elem, layout, hw.flops_per_clk_cu(rate) * share)
            m, n, k, b = (self.table.columns[x][mask] for x in ("M", "N", "K", "batch"))
            us[mask] = gemm_time(hw, constants, c, step, GemmShapes(m, n, k, elem, out_bytes, layout, b)).latency_us
        tail = self.pieces * constants["tail_load_clk"] / self.devices[self.keys[0][-1]].clock_mhz
        return us + tail + self.second * constants["second_kernel_us"]


def _tail_loads(table: Table, elem_bytes: Any) -> Any:
    """Loads of a thread in the loop over the last k, where K is no whole number of steps: each of as many elements as
    divide K."""
    c = table.columns
    threads = c["wave_m"] * c["wave_n"] * c["wave_k"] * HW.wavefront_size  # 64 on every CDNA part
    k = c["K"].astype(int)
    width = np.minimum(k & -k, VECTOR_BYTES / elem_bytes)
    loads = (c["tile_m"] + c["tile_n"]) * c["tile_k"] / threads / width
    return np.where(k % c["tile_k"] > 0, loads, 0.0)


def report(
    table: Table, rows: Sequence[dict[str, str]], start: Constants, folds: int, passes: int
) -> tuple[Constants, dict[tuple[str, str], float], Residuals]:
    """Print the figures; the fitted constants, the costs of the recordings, and cross-validated predictions of the
    rows without such a cost."""
    w, recordings = Winners(table, rows), Recordings(rows)
    large = w.flop >= LARGE_FLOP
    everything = np.ones(len(rows), bool)

    def fit(mask: Any, begin: Constants = start, n: int = passes) -> Constants:
        use = mask & w.clean
        return fit_constants(lambda k: w.model(k)[use], table.us[use], begin, prior_weight=2e-4, robust=0.15, passes=n)

    def line(label: str, p: Any) -> None:
        print(
            f"hipblaslt gfx942 winners, {label}: factor {mean_factor(p, table.us):.4f} (<= 1.30), "
            f"from 25 MFLOP on {mean_factor(p[large], table.us[large]):.4f}, without recording costs "
            f"{mean_factor(p[w.clean], table.us[w.clean]):.4f}, {len(rows)} rows"
        )

    fitted = fit(everything)
    us = w.model(fitted)
    if not passes:
        line("held out", us + recordings.costs(read_costs()))
        clean = w.clean
        return fitted, {}, Residuals(us[clean], table.us[clean], table.shape[clean])
    costs = recordings.fit(us, table.us, everything)
    line("all shapes", us + recordings.costs(costs))
    number = np.unique(table.shape, return_inverse=True)[1] % folds
    cross = np.empty(len(rows))
    for i in range(folds):
        held = number == i
        us = w.model(fit(~held, unseen(start, passes)))
        cross[held] = (us + recordings.costs(recordings.fit(us, table.us, ~held)))[held]
    line("cross-validated", cross)
    for label, part in (
        ("16-bit operands left out", np.array([k[1] for k in w.keys])[w.group] == 2),
        ("the largest quarter left out", w.flop >= np.quantile(w.flop[w.clean], 0.75)),
    ):
        seen = w.model(fit(~part, unseen(start, passes)))
        rows_left = part & w.clean
        print(f"  {label}: factor {mean_factor(seen[rows_left], table.us[rows_left]):.4f} on {rows_left.sum()} rows")
    clean = w.clean
    return fitted, costs, Residuals(cross[clean], table.us[clean], table.shape[clean])
