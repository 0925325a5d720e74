"""hipBLASLt's recorded winners on gfx942: predicted GFLOPS of the winning kernel, and constants for the transfer test.

The table mixes recordings: most of its small problems were timed with a fixed cost of the recording, set by the grid
set and on the types (10, 18 or some 100 us for the same arithmetic). That cost is estimated as a floor for each
kind of recording from the training rows and added; it is a property of the recording, not of the GPU.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from model_data import Table

from closedform.hw import catalogue
from closedform.predict.constants import Constants
from closedform.predict.fit import fit_constants, mean_factor
from closedform.predict.gemm_time import GemmShapes, gemm_time
from closedform.predict.step import staged_step

HW = catalogue.get("mi300x")
SMALL_FLOP = 2.5e7
BITS = {"fp8": 8, "bf8": 8, "i8": 8, "bf16": 16, "fp16": 16, "fp32": 32, "xf32": 32, "i32": 32, "fp64": 64}


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


def _recordings(row: dict[str, str], key: tuple[Any, ...]) -> tuple[str, str, str]:
    """Names of the kind of recording, from coarse to fine: the grid set with the kind of operands and whether the
    result has 8 bits; with the types and the layout; the library file, which one run of tuning wrote."""
    names = {"*": "mixed", "(": "converted"}
    kinds = [name for sign, name in names.items() if sign in row["dtype"]]
    operands = kinds[0] if kinds else "i8" if row["dtype"][0] == "i" else str(key[1])
    coarse = f"{row['set']}/{operands}/{key[2] == 1}"
    return coarse, f"{coarse}/{row['dtype']}/{key[4]}", row["source"]


class Winners:
    """The rows sorted into groups that share types, layout and CU count."""

    def __init__(self, table: Table, rows: list[dict[str, str]]) -> None:
        self.table, self.rows = table, rows
        keys = [(*kind(r), layout, r["cu"] or "0") for r, layout in zip(rows, table.layout, strict=True)]
        self.keys = sorted(set(keys), key=str)
        self.group = np.array([self.keys.index(k) for k in keys])
        self.flop = 2 * table.columns["M"] * table.columns["N"] * table.columns["K"] * table.columns["batch"]
        names = np.array([_recordings(r, k) for r, k in zip(rows, keys, strict=True)])
        self.recordings = [np.unique(column, return_inverse=True)[1] for column in names.T]
        #: Rows that a recording's cost can show in.
        self.touched = (self.flop < SMALL_FLOP) | (
            np.array([r["set"] == "GridBased" for r in rows]) & (self.flop < 1e9)
        )
        #: Rows whose time is the GPU's and not the recording's: large, plain types.
        self.clean = (
            (self.flop >= SMALL_FLOP)
            & np.array([r["set"] == "Equality" or f >= 1e9 for r, f in zip(rows, self.flop, strict=True)])
            & np.array([not k[3] for k in keys])
        )

    def model(self, constants: Constants) -> Any:
        us = np.empty(len(self.rows))
        for i, (rate, elem, out_bytes, _, layout, cus) in enumerate(self.keys):
            mask = self.group == i
            hw = HW.with_cus(int(cus)) if cus != "0" else HW
            c = self.table.configs(mask)
            step = staged_step(hw, constants, c, elem, layout, hw.flops_per_clk_cu(rate))
            m, n, k, b = (self.table.columns[x][mask] for x in ("M", "N", "K", "batch"))
            us[mask] = gemm_time(hw, constants, c, step, GemmShapes(m, n, k, elem, out_bytes, layout, b)).latency_us
        return us

    def floors(self, us: Any, mask: Any) -> Any:
        """Cost of each kind of recording beyond the model, from the rows of `mask`: the additive one with the
        least mean error of logarithms; a finer kind where it has enough shapes."""
        out = np.zeros(len(us))
        for recording, least in zip(self.recordings, (1, 2, 1), strict=True):
            for i in range(recording.max() + 1):
                rows = self.touched & mask & (recording == i)
                if len(np.unique(self.table.shape[rows])) >= least:
                    excess = np.maximum(self.table.us[rows] - us[rows], 0)
                    steps = np.unique(np.concatenate([[0], excess]))
                    errors = [np.abs(np.log((us[rows] + f) / self.table.us[rows])).sum() for f in steps]
                    out[recording == i] = steps[int(np.argmin(errors))]
        return out * self.touched


def report(table: Table, rows: list[dict[str, str]], start: Constants, folds: int, passes: int) -> Constants:
    w = Winners(table, rows)
    large = w.flop >= SMALL_FLOP
    plain = np.array([not w.keys[i][3] for i in w.group])

    def fit(mask: Any, begin: Constants = start, n: int = passes) -> Constants:
        use = mask & w.clean

        def predict(k: Constants) -> Any:
            return w.model(k)[use]

        return fit_constants(predict, table.us[use], begin, prior_weight=2e-4, robust=0.15, passes=n)

    fitted = fit(np.ones(len(rows), bool))
    us = w.model(fitted)
    own = us + w.floors(us, np.ones(len(rows), bool))
    number = np.unique(table.shape, return_inverse=True)[1] % folds
    cross = np.empty(len(rows))
    for i in range(folds):
        held = number == i
        us = w.model(fit(~held, fitted, min(3, passes)))
        cross[held] = (us + w.floors(us, ~held))[held]
    for label, p in (("all shapes", own), ("cross-validated", cross)):
        print(
            f"hipblaslt gfx942 winners, {label}: factor {mean_factor(p, table.us):.4f} (<= 1.30), "
            f"from 25 MFLOP on {mean_factor(p[large], table.us[large]):.4f}, "
            f"operands of one type {mean_factor(p[plain], table.us[plain]):.4f}, {len(rows)} rows"
        )
    return fitted
