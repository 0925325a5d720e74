"""AMD tables: tuned latencies (MI325X), recorded winners (hipBLASLt on gfx942), timed tiles (gfx950)."""

from __future__ import annotations

from typing import Any

import numpy as np
from model_data import Residuals, Table, unseen

from closedform.hw import catalogue
from closedform.predict.constants import Constants
from closedform.predict.fit import cross_validated, fit_constants, mean_factor
from closedform.predict.gemm import gemm_timing
from closedform.predict.gemm_time import GemmShapes
from closedform.predict.lattice import lattice, useful

MI325X, MI300X, MI350X = (catalogue.get(name) for name in ("mi325x", "mi300x", "mi350x"))


#: Kernels within this factor of the best of their shape make the error bands.
NEAR = 1.3


def ranks(values: Any) -> Any:
    """Ranks with ties at their mean."""
    order = np.argsort(values, kind="stable")
    out = np.empty(len(values))
    out[order] = np.arange(len(values))
    unique, inverse = np.unique(values, return_inverse=True)
    return np.array([out[inverse == i].mean() for i in range(len(unique))])[inverse]


def spearman(a: Any, b: Any) -> float:
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def predict_tuned(table: Table, constants: Constants | None) -> Any:
    """Latency of the model's best configuration: what a tuned library takes."""
    out = np.empty(len(table.us))
    for dtype, layout, mask in table.kinds():
        c = lattice(MI325X, dtype)
        m, n, k = (table.columns[x][mask][:, None] for x in ("M", "N", "K"))
        s = GemmShapes(m, n, k, 1 if dtype == "fp8" else 2, 2, layout)
        t = gemm_timing(MI325X, c, s, dtype, constants=constants).latency_us
        out[mask] = np.where(useful(c, m, n, k), t, np.inf).min(1)
    return out


def report_tuned(
    table: Table, start: Constants, transfer: Constants, folds: int, passes: int
) -> tuple[Constants, Residuals, Residuals]:
    """Print the figures; the fitted constants, the cross-validated predictions and those of the other constants."""

    def fit(mask: Any, begin: Constants = start, n: int = passes) -> Constants:
        part = table.take(mask)
        return fit_constants(lambda k: predict_tuned(part, k), part.us, begin, prior_weight=2e-5, robust=0.05, passes=n)

    fitted = fit(np.ones(len(table.us), bool))
    own = predict_tuned(table, fitted)
    cross = cross_validated(
        table.shape, lambda m: fit(m, unseen(start, passes)), lambda k, m: predict_tuned(table.take(m), k), folds
    )
    moved = predict_tuned(table, transfer)
    for label, p, most in (
        ("all shapes", own, "1.10"),
        ("cross-validated", cross, "1.10"),
        ("transfer", moved, "1.22"),
    ):
        print(
            f"mi325x, {label}: factor {mean_factor(p, table.us):.4f} (<= {most}), "
            f"Spearman {spearman(p, table.us):.4f} (>= 0.985)"
        )
    return fitted, Residuals(cross, table.us, table.shape), Residuals(moved, table.us, table.shape)


def predict_sweep(table: Table, constants: Constants) -> Any:
    out = np.empty(len(table.us))
    for dtype, layout, mask in table.kinds():
        c = table.configs(mask)
        out[mask] = gemm_timing(
            MI350X, c, table.shapes(mask, 2, layout), dtype, constants=constants, stream_k=True
        ).latency_us
    return out


def report_sweep(
    table: Table, start: Constants, lent: Constants, folds: int, passes: int
) -> tuple[Constants, Residuals, Residuals]:
    """Print the figures; the fitted constants, cross-validated predictions of the kernels near each shape's best and
    those of another part's constants."""
    case = table.case
    best = np.array([table.us[case == i].min() for i in range(case.max() + 1)])[case]
    near = np.exp(-(1 - best / table.us) / 0.06) + 0.1

    def fit(mask: Any, begin: Constants = start, n: int = passes) -> Constants:
        part = table.take(mask)
        return fit_constants(
            lambda k: predict_sweep(part, k),
            part.us,
            begin,
            weights=near[mask],
            prior_weight=2e-5,
            robust=0.1,
            passes=n,
        )

    fitted = fit(np.ones(len(table.us), bool))
    cross = cross_validated(
        table.shape, lambda m: fit(m, unseen(start, passes)), lambda k, m: predict_sweep(table.take(m), k), folds
    )
    for label, p in (("all shapes", predict_sweep(table, fitted)), ("cross-validated", cross)):
        chosen, rows_only, rho = [], [], []
        tile = np.stack([table.columns[n] for n in ("tile_m", "tile_n", "tile_k")])
        for i in range(case.max() + 1):
            rows = np.flatnonzero(case == i)
            pick = rows[np.argmin(p[rows])]
            same = rows[(tile[:, rows] == tile[:, [pick]]).all(0)]
            least = table.us[rows].min()
            chosen.append(least / table.us[same].min())
            rows_only.append(least / table.us[pick])
            if len(rows) > 2:
                rho.append(spearman(p[rows], table.us[rows]))
        print(
            f"gfx950 sweep, {label}: selected tile {np.exp(np.log(chosen).mean()):.4f} (>= 0.997), "
            f"worst {min(chosen):.3f}, "
            f"selected kernel {np.exp(np.log(rows_only).mean()):.4f}, rank correlation {np.mean(rho):.3f} (>= 0.6), "
            f"factor {mean_factor(p, table.us):.3f}"
        )
    close = table.us < NEAR * best
    groups, measured = table.shape[close], table.us[close]
    own, other = (Residuals(p[close], measured, groups) for p in (cross, predict_sweep(table, lent)))
    return fitted, own, other
