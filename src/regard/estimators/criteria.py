"""What a search for bandwidths makes least: one criterion a line in ``CRITERIA``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from regard.estimators.memory import Floats
from regard.estimators.rows import Rows

REFUSED = 1e9  # in place of the criterion of an inadmissible bandwidth; optimisers stumble over inf
FLOOR = 1e-6  # the share of the uniform distribution in a probability before its logarithm

Loss = Callable[[Floats, Floats], tuple[float, Floats, Floats]]
"""By the fits (n, V) and the shares (n,) that rows have in their own: a number, and its gradients to both."""


def squared_error(rows: Rows) -> Loss:
    """``sum_i w_i |v_i - f_i|^2 / (V sum_i w_i)``: mean over rows and outputs."""
    share = (rows.weight / (rows.weight.sum() * rows.value.shape[1]))[:, None]

    def loss(fit: Floats, own: Floats) -> tuple[float, Floats, Floats]:
        wrong = fit - rows.value
        if not np.isfinite(wrong).all():
            return REFUSED, np.zeros_like(wrong), np.zeros_like(own)
        return float(np.sum(share * wrong**2)), 2 * share * wrong, np.zeros_like(own)

    return loss


def log_loss(rows: Rows) -> Loss:
    """Mean over rows of ``-log P(class)``; P is mixed with a little of the uniform distribution, as it may be 0."""
    share = rows.weight / rows.weight.sum()

    def loss(fit: Floats, own: Floats) -> tuple[float, Floats, Floats]:
        p = (1 - FLOOR) * np.sum(rows.value * fit, axis=1) + FLOOR / rows.value.shape[1]
        if not np.all(p > 0):  # nothing near enough
            return REFUSED, np.zeros_like(fit), np.zeros_like(own)
        grad = -(1 - FLOOR) * rows.value * (share / p)[:, None]
        return float(-np.sum(share * np.log(p))), grad, np.zeros_like(own)

    return loss


def corrected_information(rows: Rows) -> Loss:
    """``log(RSS / n) + (1 + tr H / n) / (1 - (tr H + 2) / n)``: Hurvich, Simonoff & Tsai (1998), eq. 2.5."""
    error, n = squared_error(rows), rows.weight.sum()

    def loss(fit: Floats, own: Floats) -> tuple[float, Floats, Floats]:
        mean, grad, none = error(fit, own)
        left = n - own.sum() - 2
        if mean == REFUSED or not left > 0:
            return REFUSED, np.zeros_like(fit), none
        mean = max(mean, np.finfo(float).tiny)
        value = math.log(mean) + (n + own.sum()) / left
        return value, grad / mean, none + (left + n + own.sum()) / left**2

    return loss


def generalised(rows: Rows) -> Loss:
    """``(RSS / n) / (1 - tr H / n)^2``: Craven & Wahba (1979), eq. 1.9."""
    error, n = squared_error(rows), rows.weight.sum()

    def loss(fit: Floats, own: Floats) -> tuple[float, Floats, Floats]:
        mean, grad, none = error(fit, own)
        left = 1 - own.sum() / n
        if mean == REFUSED or not left > 1e-9:
            return REFUSED, np.zeros_like(fit), none
        return mean / left**2, grad / left**2, none + 2 * mean / (n * left**3)

    return loss


@dataclass(frozen=True)
class Criterion:
    """A number by which bandwidths are compared; less is better.

    ``leaves_out``: it is of the fit of each row by the others, else of the fit of all rows and their own shares in it.
    ``shared``: it searches one factor of the standard deviations. ``scale(value, variance)`` undoes that the targets
    were divided by their standard deviation. ``classes``: it is for probabilities, ``numbers``: for numbers.
    """

    loss: Callable[[Rows], Loss]
    leaves_out: bool = True
    shared: bool = False
    numbers: bool = True
    classes: bool = False
    scale: Callable[[float, float], float] = lambda value, variance: value * variance


CRITERIA: dict[str, Criterion] = {
    "loo": Criterion(squared_error, classes=True),
    "loo_shared": Criterion(squared_error, shared=True, classes=True),
    "aicc": Criterion(
        corrected_information, leaves_out=False, scale=lambda value, variance: value + math.log(variance)
    ),
    "gcv": Criterion(generalised, leaves_out=False),
    "log_loss": Criterion(log_loss, numbers=False, classes=True),
    "brier": Criterion(squared_error, numbers=False, classes=True),
}
