"""hipBLASLt's recorded winners on gfx90a (MI210, one die of an MI250X): the constants of the mi210 set.

Every kind of recording took a fixed cost of its own, 3 to 30 us, that is fitted beside the constants and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from model_data import Residuals, Table, unseen
from model_hipblaslt import Winners

from closedform.hw import catalogue
from closedform.predict.constants import Constant, Constants
from closedform.predict.fit import fit_constants, mean_factor

MI210 = catalogue.get("mi210")
DEVICES = {"104": MI210, "110": catalogue.get("mi250x")}
LEAST_ROWS = 20
USUAL_COST_US = 10.0


def report(
    table: Table, rows: Sequence[dict[str, str]], start: Constants, lent: Constants, folds: int, passes: int
) -> tuple[Constants, Residuals, Residuals]:
    """Print the figures; the fitted constants, cross-validated predictions, and those of another part's constants."""
    w = Winners(table, rows, DEVICES)
    kinds = np.array([f"recording {r['set']} {r['dtype']} {r['cu']}" for r in rows])
    names, number, count = np.unique(kinds, return_inverse=True, return_counts=True)
    use = w.clean & (count[number] >= LEAST_ROWS) & np.array([r["set"] != "GridBased" for r in rows])

    def with_costs(k: Constants, fixed: bool = False) -> Constants:
        own = k.rows if not fixed else tuple(_fixed(row) for row in k.rows)
        costs = tuple(Constant(str(n), USUAL_COST_US, USUAL_COST_US, 1.5, "us", "nuisance", "-") for n in names)
        return Constants(k.family, k.gpu, own + costs, {**k.numbers, **{row.name: row.value for row in costs}})

    def model(k: Constants, mask: Any) -> Any:
        return (w.model(k) + np.array([k[str(n)] for n in names])[number])[mask]

    def fit(mask: Any, begin: Constants, n: int = passes) -> Constants:
        m = mask & use
        return fit_constants(lambda k: model(k, m), table.us[m], begin, prior_weight=2e-4, robust=0.15, passes=n)

    everything = np.ones(len(rows), bool)
    begin = with_costs(unseen(start, passes))
    fitted = fit(everything, with_costs(start))
    fold = np.unique(table.shape, return_inverse=True)[1] % folds
    cross = np.empty(len(rows))
    for i in range(folds):
        cross[fold == i] = model(fit(fold != i, begin), fold == i)
    moved = model(fit(everything, with_costs(lent, fixed=True)), everything)
    measured = table.us[use]
    for label, p in (("all shapes", model(fitted, everything)), ("cross-validated", cross), ("constants lent", moved)):
        print(f"hipblaslt gfx90a winners, {label}: factor {mean_factor(p[use], measured):.4f}, {use.sum()} rows")
    groups = table.shape[use]
    own = start.with_values({name: fitted[name] for name in start})
    return own, Residuals(cross[use], measured, groups), Residuals(moved[use], measured, groups)


def _fixed(row: Constant) -> Constant:
    return Constant(row.name, row.value, row.prior, 0.0, row.unit, row.source, row.fit_date)
