"""Calibration: constants from measured latencies by damped least squares on logarithms, with priors; numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .constants import Constants

if TYPE_CHECKING:
    from .configs import Array

__all__ = ["cross_validated", "fit_constants", "mean_factor"]

Predict = Callable[[Constants], "Array"]


def mean_factor(predicted_us: Array, measured_us: Array) -> float:
    """exp(mean |ln(predicted / measured)|), 1 for a perfect model.

    >>> import numpy as np
    >>> float(round(mean_factor(np.array([2.0, 5.0]), np.array([1.0, 10.0])), 6))
    2.0
    """
    import numpy as np

    return float(np.exp(np.mean(np.abs(np.log(predicted_us / measured_us)))))


def fit_constants(
    predict: Predict,
    measured_us: Array,
    start: Constants,
    *,
    weights: Array | None = None,
    prior_weight: float = 1e-3,
    robust: float = 0.1,
    passes: int = 15,
    names: Sequence[str] = (),
) -> Constants:
    """Constants that minimise the weighted mean of a robust square of ln(predicted / measured), plus
    `prior_weight` * sum ((ln(value / prior)) / spread)^2.

    Levenberg and Marquardt with one-sided differences; residuals far beyond `robust` count linearly (Huber, by
    reweighting). Constants with spread 0 stay. Deterministic.
    """
    import numpy as np

    rows = [row for row in start.rows if row.spread > 0 and (not names or row.name in names)]
    prior = np.log([row.prior for row in rows])
    spread = np.array([row.spread for row in rows])
    share = np.ones_like(measured_us) if weights is None else weights
    share = np.sqrt(share / share.sum())
    target = np.log(measured_us)

    def constants(point: Array) -> Constants:
        return start.with_values({row.name: float(v) for row, v in zip(rows, np.exp(point), strict=True)})

    def errors(point: Array) -> Array:
        found: Array = np.log(predict(constants(point))) - target
        return found

    def pull(point: Array) -> Array:
        found: Array = np.sqrt(prior_weight) * (point - prior) / spread
        return found

    def cost(error: Array, point: Array) -> float:
        size = np.abs(error)
        huber = np.where(size < robust, error**2, 2 * robust * size - robust**2)
        return float((share**2 * huber).sum() + (pull(point) ** 2).sum())

    point = np.log([start[row.name] for row in rows])
    error = errors(point)
    best, damping = cost(error, point), 1e-3
    for _ in range(passes):
        scale = share * np.sqrt(np.minimum(1, robust / np.maximum(np.abs(error), 1e-12)))
        jacobian = np.empty((len(error), len(rows)))
        for i in range(len(rows)):
            moved = point.copy()
            moved[i] += 1e-3
            jacobian[:, i] = (errors(moved) - error) / 1e-3
        weighted = jacobian * scale[:, None]
        normal = weighted.T @ weighted + np.diag(prior_weight / spread**2)
        gradient = weighted.T @ (error * scale) + prior_weight * (point - prior) / spread**2
        improved = False
        for _ in range(6):
            trial = point - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = np.clip(trial, point - 1.0, point + 1.0)
            trial_error = errors(trial)
            value = cost(trial_error, trial)
            if value < best:
                improved = best - value > 1e-5 * best
                point, error, best, damping = trial, trial_error, value, damping / 4
                break
            damping *= 5
        if not improved:
            break
    return constants(point)


def cross_validated(
    groups: Array, fit: Callable[[Array], Constants], predict: Callable[[Constants, Array], Array], folds: int = 0
) -> Array:
    """Predictions for each row from constants that never saw its group.

    `groups` numbers the group (the shape) of each row; `fit` takes a mask of rows, `predict` constants and a mask.
    folds: groups are dealt in turn into that many folds; 0 leaves one group out at a time.
    """
    import numpy as np

    number = np.unique(groups, return_inverse=True)[1]
    fold = number % (folds or number.max() + 1)
    out = np.empty(len(groups))
    for i in range(fold.max() + 1):
        held = fold == i
        out[held] = predict(fit(~held), held)
    return out
