"""Error bands: quantiles of cross-validated measured / predicted, in three regimes of the predicted time.

They are constants like any other (`band_*` rows), so that a fit of a user's table carries its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closedform.hw.descriptor import HardwareDescriptor

    from .configs import Array
    from .constants import Constants

__all__ = ["COVERAGE", "REGIMES", "band_at", "band_for", "borrowed_band", "coverage_of_held_out", "fitted_bands"]

#: Share of measurements that a band holds.
COVERAGE = 0.8
REGIMES = ("short", "middle", "long")
#: Fewer rows than this in a regime say too little about its quantiles: one band for all.
LEAST_ROWS = 20


def band_at(k: Mapping[str, float], latency_us: float) -> tuple[float, float]:
    """Factors on a predicted latency between which `COVERAGE` of the measurements lie."""
    regime = REGIMES[(latency_us > k["band_middle_us"]) + (latency_us > k["band_long_us"])]
    return k[f"band_{regime}_low_factor"], k[f"band_{regime}_high_factor"]


def borrowed_band(latency_us: float) -> tuple[float, float]:
    """The band of constants that were fitted on another part, as measured by lending them between parts."""
    from .constants import shipped_constants

    return band_at(shipped_constants("borrowed", "any"), latency_us)


def band_for(k: Constants, hw: HardwareDescriptor, latency_us: float) -> tuple[float, float]:
    """Factors on the latency; at least as wide as `borrowed_band` where the constants are those of another part."""
    low, high = band_at(k, latency_us)
    if k.gpu != hw.name:
        lent_low, lent_high = borrowed_band(latency_us)
        low, high = min(low, lent_low), max(high, lent_high)
    return low, high


def fitted_bands(predicted_us: Array, measured_us: Array) -> dict[str, float]:
    """The `band_*` constants of cross-validated predictions; regimes are thirds of the predicted times.

    With n rows the quantile is that of rank q (n + 1), so that a new row falls outside as often as promised.
    """
    import numpy as np

    ratio = measured_us / predicted_us
    edges = np.quantile(predicted_us, (1 / 3, 2 / 3))
    regime = (predicted_us > edges[0]).astype(int) + (predicted_us > edges[1])
    found = {"band_middle_us": float(edges[0]), "band_long_us": float(edges[1])}
    for i, name in enumerate(REGIMES):
        mine = ratio[regime == i]
        rows = np.sort(mine if len(mine) >= LEAST_ROWS else ratio)
        outside = (1 - COVERAGE) / 2
        for side, share in (("low", outside), ("high", 1 - outside)):
            rank = np.clip(share * (len(rows) + 1) - 1, 0, len(rows) - 1)
            found[f"band_{name}_{side}_factor"] = float(np.interp(rank, np.arange(len(rows)), rows))
    return found


def coverage_of_held_out(predicted_us: Array, measured_us: Array, groups: Array, folds: int = 8) -> float:
    """Share of rows inside the bands of the rows of other groups."""
    import numpy as np

    fold = np.unique(groups, return_inverse=True)[1] % folds
    inside = np.zeros(len(predicted_us), bool)
    for i in range(folds):
        held = fold == i
        if held.all() or not held.any():
            continue
        bands = fitted_bands(predicted_us[~held], measured_us[~held])
        limits = np.array([band_at(bands, float(p)) for p in predicted_us[held]])
        ratio = measured_us[held] / predicted_us[held]
        inside[held] = (limits[:, 0] <= ratio) & (ratio <= limits[:, 1])
    return float(inside.mean())
