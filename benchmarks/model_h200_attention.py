"""The H200 attention landscape: selection, cross-validated by shape, and the fit of its constants."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
from model_amd import NEAR
from model_data import Residuals, unseen

from closedform.hw import catalogue
from closedform.predict.attention_lattice import AttentionConfigs, attention_lattice
from closedform.predict.attention_time import AttentionShape, attention_time
from closedform.predict.constants import Constants
from closedform.predict.fit import cross_validated, fit_constants

HW = catalogue.get("h200")


class Landscape:
    """Timings of one plain flash-attention forward kernel in bf16."""

    def __init__(self, folder: Path, part: str = "train") -> None:
        with gzip.open(folder / f"h200_attention_landscape_{part}.csv.gz", "rt") as stream:
            rows = list(csv.DictReader(stream))
        c = {
            n: np.array([float(r[n]) for r in rows])
            for n in ("B", "H", "L", "d", "causal", "BM", "BN", "warps", "stages", "us")
        }
        self.us = c["us"]
        self.shape = np.stack([c["B"] * c["H"], c["L"], c["d"], c["causal"]])
        self.config = np.stack([c["BM"], c["BN"], c["warps"], c["stages"]])
        self.case = np.unique(np.stack([c["B"], c["H"], c["L"], c["d"], c["causal"]]), axis=1, return_inverse=True)[
            1
        ].ravel()
        #: Number of the shape: causal or not, it is held out as one.
        self.length = np.unique(self.shape[:3], axis=1, return_inverse=True)[1].ravel()
        lattices = {d: attention_lattice(HW, int(d)) for d in np.unique(c["d"])}
        sets = {d: set(zip(v.tile_q, v.tile_kv, v.waves, v.stages, strict=True)) for d, v in lattices.items()}
        self.legal = np.array([tuple(q) in sets[d] for q, d in zip(self.config.T, c["d"], strict=True)])

    def predict(self, k: Constants, mask: Any) -> Any:
        h, length, d, causal = self.shape[:, mask]
        c = AttentionConfigs(*self.config[:, mask])
        s = AttentionShape(h, length, length, d, causal > 0)
        return attention_time(HW, k, c, s, HW.flops_per_clk_cu("bf16")).latency_us


def efficiency(data: Landscape, predicted: Any) -> Any:
    out = []
    for i in range(data.case.max() + 1):
        rows = np.flatnonzero((data.case == i) & data.legal)
        out.append(data.us[data.case == i].min() / data.us[rows[np.argmin(predicted[rows])]])
    return np.array(out)


def report(data: Landscape, start: Constants, folds: int, passes: int) -> tuple[Constants, Residuals]:
    """Print the figures; the fitted constants and cross-validated predictions of what is near each case's best."""
    best = np.array([data.us[data.case == i].min() for i in range(data.case.max() + 1)])[data.case]
    near = np.exp(-np.log(data.us / best) / 0.12) + 0.02

    def fit(mask: Any, begin: Constants = start, n: int = passes) -> Constants:
        use = mask & data.legal
        return fit_constants(
            lambda k: data.predict(k, use),
            data.us[use],
            begin,
            weights=near[use],
            prior_weight=3e-4,
            robust=0.1,
            passes=n,
        )

    everything = np.ones(len(data.us), bool)
    fitted = fit(everything)
    cross = cross_validated(data.length, lambda m: fit(m, unseen(start, passes)), data.predict, folds)
    close = data.legal & (data.us < NEAR * best)
    for label, p in (("all cases", data.predict(fitted, everything)), ("cross-validated", cross)):
        share = efficiency(data, p)
        print(
            f"h200 attention, {label}: geometric mean {np.exp(np.log(share).mean()):.4f} (>= 0.97), tenth percentile "
            f"{np.quantile(share, 0.1):.4f} (>= 0.90), worst {share.min():.3f}, factor near the best "
            f"{np.exp(np.abs(np.log(p / data.us))[close].mean()):.3f}"
        )
    return fitted, Residuals(cross[close], data.us[close], data.length[close])
