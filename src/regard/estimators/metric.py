"""A full metric for the one radial kernel of a score: given, or learned by a leave-one-out criterion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from regard.estimators.bandwidths import chosen, deviations, own_bandwidth
from regard.estimators.criteria import CRITERIA
from regard.estimators.memory import Floats
from regard.estimators.rows import Rows
from regard.estimators.search import Selection
from regard.scores.base import Kernel, On, Scaled, Score, Sum

STEPS = 300  # of a descent


def with_metric(score: Score, weight: Floats) -> Score:
    """The score whose radial kernel compares ``W q`` and ``W k``, at bandwidth 1; weight (P, its features)."""
    match score:
        case Sum(parts=parts):
            return Sum(tuple(with_metric(part, weight) for part in parts))
        case On() | Scaled():
            return replace(score, score=with_metric(score.score, weight))
        case Kernel():
            return replace(score, bandwidth=1.0).through(weight)
    return score


def metric_columns(score: Score, features: int) -> list[int]:
    """The features of the one radial kernel."""
    found = list(_radial(score, list(range(features)), ""))
    if len(found) != 1:
        raise ValueError(
            f"a metric needs one radial kernel over the features that it mixes; `kernel` has {len(found)}: {score!r}."
        )
    return found[0][1]


def _radial(score: Score, columns: list[int], name: str) -> Iterator[tuple[str, list[int]]]:
    match score:
        case Sum(parts=parts):
            for n, part in enumerate(parts):
                yield from _radial(part, columns, f"{name}{n}.")
        case Scaled():
            yield from _radial(score.score, columns, name)
        case On():
            yield from _radial(score.score, chosen(score, columns), name)
        case Kernel():
            yield name, columns


def learn_metric(
    score: Score,
    rows: Rows,
    bandwidth: Floats,
    *,
    criterion: str,
    outside: str,
    engine: str,
    threads: int | None,
    names: Sequence[str] | None,
    variance: float,
) -> tuple[Floats, Selection]:
    """(D, D): the matrix of least leave-one-out criterion that descents from ``diag(1 / bandwidth)`` reach.

    Others start with no feature wider than its range, since a row of zeros has no slope, and with all features alike.
    The result is never worse than the bandwidths that it starts from. Of categories, the numbers stay as they are.

    References
    ----------
    Weinberger & Tesauro (2007), Metric learning for kernel regression, AISTATS, eqs. 4 to 6.
    """
    features = rows.X.shape[1]
    columns = metric_columns(score, features)
    ((prefix, _),) = _radial(score, list(range(features)), "")
    named = CRITERIA[criterion]
    if not named.leaves_out:
        able = ", ".join(name for name, c in CRITERIA.items() if c.leaves_out)
        raise ValueError(f'metric="learned" needs a criterion that leaves rows out, one of {able}; got {criterion!r}.')
    memory = rows.leaving_one_out("nan" if outside == "error" else outside, engine, threads)
    loss, none = named.loss(rows), np.zeros(len(rows.X))
    spread = deviations(rows.X[:, columns], rows.count)
    spread = np.where(spread > 0, spread, 1.0)
    evaluations, starts, best, least, converged = 0, [], np.zeros(0), math.inf, True

    def objective(t: Floats) -> tuple[float, Floats]:
        nonlocal evaluations
        evaluations += 1
        weight = t.reshape(len(columns), -1) / spread
        value, grads = memory.gradients(with_metric(score, weight), rows.X, lambda pooled: loss(pooled, none)[:2])
        return value, (grads[f"{prefix}weight"] / spread).ravel()

    first, d = spread / bandwidth[columns], len(columns)
    even = np.full(d, len(rows.X) ** (1 / (d + 4)))
    for start in (first, np.maximum(first, 1 / 4), even, even / 2):
        options = {"maxiter": STEPS, "ftol": 1e-10, "gtol": 1e-8}
        t = np.diag(start).ravel()
        found = minimize(objective, t, jac=True, method="L-BFGS-B", options=options)
        before = objective(t)[0]
        starts.append((named.scale(before, variance), named.scale(float(found.fun), variance)))
        for value, end in ((before, t), (float(found.fun), found.x)):
            if value < least:
                least, best, converged = value, end, found.nit < STEPS
    labels = tuple(map(str, range(features) if names is None else names))
    weight = best.reshape(len(columns), -1) / spread
    h = own_bandwidth(with_metric(score, weight), features)
    report = Selection(
        f"{criterion}, learned metric",
        named.scale(least, variance),
        tuple(map(float, h)),
        labels,
        tuple(starts),
        evaluations,
        converged,
    )
    return weight, report


def checked_metric(weight: Any, score: Score, features: int) -> Floats:
    """A given matrix as numbers, of as many columns as its kernel has features."""
    columns = metric_columns(score, features)
    found = np.asarray(weight, dtype=np.float64)
    if found.shape[1] != len(columns) or not len(found) or not np.isfinite(found).all():
        raise ValueError(
            f"`bandwidth` as a matrix must map the {len(columns)} features of the radial kernel, (P, {len(columns)}), "
            f"and be finite; got shape {found.shape}."
        )
    return found
