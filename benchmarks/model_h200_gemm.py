"""The H200 GEMM landscape: selection, cross-validated by shape, and the fit of its constants."""

from __future__ import annotations

from typing import Any

import numpy as np
from model_amd import NEAR
from model_data import Residuals, Table, unseen

from closedform.hw import catalogue
from closedform.predict.constants import Constants
from closedform.predict.fit import cross_validated, fit_constants
from closedform.predict.gemm import gemm_timing
from closedform.predict.step import LEAST_OTHER_REGISTERS, registers_per_thread

HW = catalogue.get("h200")


def predict(table: Table, constants: Constants) -> Any:
    out = np.empty(len(table.us))
    for dtype, layout, mask in table.kinds():
        elem = 1 if dtype == "fp8" else 2
        c = table.configs(mask)
        out[mask] = gemm_timing(HW, c, table.shapes(mask, elem, layout), dtype, constants=constants).latency_us
    return out


def legal(table: Table) -> Any:
    c = table.configs(slice(None))
    return registers_per_thread(HW, c) + LEAST_OTHER_REGISTERS <= HW.vgpr_per_wave_max


def weights(table: Table) -> Any:
    """What is near the best of its case counts most."""
    case = table.case
    best = np.array([table.us[case == i].min() for i in range(case.max() + 1)])
    near = (np.exp(-np.log(table.us / best[case]) / 0.35) + 0.03) ** 2
    return near / np.bincount(case, weights=near)[case]


def efficiency(table: Table, predicted: Any) -> Any:
    """Best time over the time of the selected legal configuration, per case."""
    case, ok = table.case, legal(table)
    out = []
    for i in range(case.max() + 1):
        rows = np.flatnonzero((case == i) & ok)
        out.append(table.us[case == i].min() / table.us[rows[np.argmin(predicted[rows])]])
    return np.array(out)


def fit(table: Table, mask: Any, start: Constants, passes: int = 15) -> Constants:
    part = table.take(mask & legal(table))
    return fit_constants(
        lambda k: predict(part, k),
        part.us,
        start,
        weights=weights(table)[mask & legal(table)],
        prior_weight=1e-3,
        robust=0.15,
        passes=passes,
    )


def report(table: Table, start: Constants, folds: int, passes: int) -> tuple[Constants, Residuals]:
    """Print the figures; the fitted constants and cross-validated predictions of what is near each shape's best."""
    everything = np.ones(len(table.us), bool)
    fitted = fit(table, everything, start, passes)
    for label, predicted in (
        ("all shapes", predict(table, fitted)),
        (
            "cross-validated",
            cross_validated(
                table.shape,
                lambda m: fit(table, m, unseen(start, passes), passes),
                lambda k, m: predict(table.take(m), k),
                folds,
            ),
        ),
    ):
        share = efficiency(table, predicted)
        print(
            f"h200 gemm, {label}: geometric mean {np.exp(np.log(share).mean()):.4f} (>= 0.95), "
            f"tenth percentile {np.quantile(share, 0.1):.4f} (>= 0.88), worst {share.min():.3f}"
        )
    case = table.case
    best = np.array([table.us[case == i].min() for i in range(case.max() + 1)])[case]
    close = legal(table) & (table.us < NEAR * best)
    return fitted, Residuals(predicted[close], table.us[close], table.shape[close])
