"""The bandwidths of least leave-one-out error: bounded, in their logarithms, from several starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import Bounds, brentq, minimize, minimize_scalar

from regard.estimators.bandwidths import compact, deviations, leaves, own_bandwidth, upper_ends, with_bandwidth
from regard.estimators.memory import Floats, Memory
from regard.estimators.rows import Rows
from regard.scores.base import Score

STEP = 0.2  # of the grid in log h: narrower dips than that are rare
LOOK, END = 1e6, 4e9  # pairs times features that one look of a wide search may cost, and its last descent
REFUSED = 1e9  # in place of the error of a bandwidth that leaves a row alone; optimisers stumble over inf


@dataclass(frozen=True, eq=False)
class Variables:
    """What a search varies: logarithms of lengths, in standard deviations of their features, then all other numbers."""

    score: Score
    fixed: Floats  # (D,) the bandwidths that are not varied
    lengths: Any  # positions of the features that have a length
    spread: Floats  # the standard deviations of these
    others: Any  # positions of the features whose bandwidth has an interval of its own
    low: Floats
    high: Floats

    @staticmethod
    def of(score: Score, rows: Rows, shared: bool) -> Variables:
        """A length lies between half the smallest gap and 50 times the range; a constant feature's is 1."""
        d = rows.X.shape[1]
        upper = upper_ends(score, d)
        varies = np.ptp(rows.X, axis=0) > 0
        lengths, others = np.flatnonzero(np.isinf(upper) & varies), np.flatnonzero(np.isfinite(upper) & varies)
        X = rows.X[:, lengths]
        spread = deviations(X, rows.count)
        low = np.log([np.diff(np.unique(x)).min() / 2 for x in X.T] / spread)
        high = np.log(50 * np.ptp(X, axis=0) / spread)
        if shared and lengths.size:
            low, high = low.min(keepdims=True), high.max(keepdims=True)
        ends = np.concatenate([low, 1e-6 * upper[others]]), np.concatenate([high, upper[others]])
        fixed = np.where(np.isinf(upper), 1.0, own_bandwidth(score, d))
        return Variables(score, fixed, lengths, spread, others, *ends)

    @property
    def logarithms(self) -> int:
        """How many of the variables are logarithms."""
        return int(self.low.size - self.others.size)

    def bandwidth(self, t: Floats) -> Floats:
        """(D,) from the variables."""
        h = self.fixed.copy()
        h[self.lengths] = self.spread * np.exp(t[: self.logarithms])
        h[self.others] = t[self.logarithms :]
        return h

    def score_at(self, t: Floats) -> Score:
        """The score with these bandwidths."""
        return with_bandwidth(self.score, self.bandwidth(t))

    def pull_back(self, t: Floats, grads: dict[str, Floats]) -> Floats:
        """The gradient to the variables from those to the parameters of the score."""
        h = self.bandwidth(t)
        to_h = np.zeros(h.size)
        for name, _, columns in leaves(self.score, list(range(h.size))):
            to_h[columns] += grads[name]
        to_log = to_h[self.lengths] * h[self.lengths]
        if self.logarithms < to_log.size:
            to_log = to_log.sum(keepdims=True)
        return np.concatenate([to_log, to_h[self.others]])


@dataclass(frozen=True, eq=False)
class Criterion:
    """The mean squared leave-one-out error, by the variables of a search.

        C(t) = sum_i w_i |v_i - f_{-i}(x_i; t)|^2 / (V sum_i w_i)

    ``REFUSED`` where a row is left without any key and ``outside`` does not say what it gets.
    """

    rows: Rows
    memory: Memory
    variables: Variables

    def __call__(self, t: Floats) -> float:
        return self._loss(self.memory.pool(self.variables.score_at(t), self.rows.X))[0]

    def slope(self, t: Floats) -> tuple[float, Floats]:
        """The criterion and its gradient."""
        value, grads = self.memory.gradients(self.variables.score_at(t), self.rows.X, self._loss)
        return value, self.variables.pull_back(t, grads)

    def _loss(self, pooled: Floats) -> tuple[float, Floats]:
        wrong = pooled - self.rows.value
        if not np.isfinite(wrong).all():
            return REFUSED, np.zeros_like(wrong)
        weight = self.rows.weight[:, None] / (self.rows.weight.sum() * wrong.shape[1])
        return float(np.sum(weight * wrong**2)), 2 * weight * wrong


def search(
    score: Score,
    rows: Rows,
    *,
    shared: bool,
    outside: str,
    engine: str,
    threads: int | None,
    random: np.random.RandomState,
) -> Floats:
    """(D,): the bandwidths of the score that make the criterion least; ``shared`` keeps the ratios of the lengths.

    One variable: a grid, then each of its deep dips. Several: L-BFGS-B with gradients from several starts, and from
    wherever a look along one variable finds less; for kernels with a support, where the criterion has edges and
    steps, Powell's method after it. Of many rows, the wide search sees some, the last steps all.
    """
    variables = Variables.of(score, rows, shared)
    d = rows.X.shape[1]
    if not variables.low.size:
        return variables.fixed

    def criterion(of: Rows) -> Criterion:
        memory = of.leaving_one_out("nan" if outside == "error" else outside, engine, threads)
        return Criterion(of, memory, variables)

    some = rows.some(max(int(math.sqrt(LOOK / d)), 150), random)
    whole = criterion(rows)
    wide = whole if some is rows else criterion(some)
    start = np.full(variables.low.size, -math.log(len(rows.X)) / (d + 4))
    start[variables.logarithms :] = 0.3 * variables.high[variables.logarithms :]
    start = np.clip(start, variables.low, variables.high)
    smooth = not compact(score, d)
    best = _line(wide, whole, start, smooth) if start.size == 1 else _field(wide, whole, start, smooth, random)
    if whole(best) == REFUSED:
        raise ValueError(
            f'no bandwidth leaves every row another one within the support, and outside="{outside}" gives such rows '
            'nothing. Set `outside` to "nearest" or "mean", or give `bandwidth` as a number.'
        )
    return variables.bandwidth(best)


def _line(wide: Criterion, whole: Criterion, start: Floats, smooth: bool) -> Floats:
    """One variable: the grid finds the dips, and those that are nearly the lowest are followed to the ground."""
    low, high = float(wide.variables.low[0]), float(wide.variables.high[0])
    points = int(min(max(math.ceil((high - low) / STEP), 50), 200)) + 1
    grid = np.linspace(low, high, points)
    found = np.array([wide(np.array([t])) for t in grid])
    if np.ptp(found) <= 1e-12 * found.max():
        return start  # nothing to choose from
    edged = np.concatenate([[math.inf], found, [math.inf]])
    deep = (found <= edged[:-2]) & (found <= edged[2:]) & (found <= 1.1 * found.min())
    dips: Any = np.flatnonzero(deep)
    dips = dips[np.argsort(found[dips], kind="stable")]
    # where only some rows were seen, all of them may want another width
    reach, dips, digits = (1, dips[:5], 10) if wide is whole else (4, dips[:1], 5)
    ends = [_ground(whole, grid[max(i - reach, 0)], grid[min(i + reach, points - 1)], smooth, digits) for i in dips]
    return min(ends, key=whole)


def _ground(criterion: Criterion, low: float, high: float, smooth: bool, digits: int) -> Floats:
    """The least point between two ends."""

    @cache
    def slope(t: float) -> float:
        return float(criterion.slope(np.array([t]))[1][0])

    if smooth and slope(low) < 0 < slope(high):  # the root of the slope has twice the digits of the least value
        return np.array([brentq(slope, low, high, xtol=10.0**-digits)])
    options = {"xatol": 10.0 ** -min(digits, 8)}
    inside = minimize_scalar(lambda t: criterion(np.array([t])), bounds=(low, high), options=options).x
    return min((np.array([t]) for t in (low, inside, high)), key=criterion)


def _field(wide: Criterion, whole: Criterion, start: Floats, smooth: bool, random: np.random.RandomState) -> Floats:
    """Several variables: descents from several starts, then from wherever a look along one variable finds less."""
    low, high = wide.variables.low, wide.variables.high
    lengths = np.arange(start.size) < wide.variables.logarithms
    along = [np.clip(start + f * lengths, low, high) for f in np.arange(-3.0, 4.5, 0.5)]
    starts = sorted(along, key=wide)[:2]
    left, right = (np.where(lengths, np.clip(starts[0] + f, low, high), end) for f, end in ((-2, low), (2, high)))
    starts += list(left + (right - left) * random.uniform(size=(2, start.size)))
    starts.append(_look_along(wide, high))  # one feature matters, and no other
    best = min((_descend(wide, t, 1e-6) for t in starts), key=wide)
    for _ in range(5):
        least = _look_along(wide, best)
        if not wide(least) < wide(best) * (1 - 1e-3):
            break
        best = _descend(wide, least, 1e-6)
    if not smooth:
        best = _search_lines(wide, best)
    pairs = len(whole.rows.X) ** 2 * whole.rows.X.shape[1]
    return _descend(whole, best, 1e-13, steps=int(min(max(END / pairs, 20), 200)))


def _look_along(criterion: Criterion, t: Floats) -> Floats:
    """The least of some points that differ from this one in one variable."""
    low, high = criterion.variables.low, criterion.variables.high
    there = np.linspace(0, 1, min(max(200 // t.size, 3), 13))
    return min(
        (np.where(i, low + f * (high - low), t) for i in np.eye(t.size, dtype=bool) for f in there), key=criterion
    )


def _descend(criterion: Criterion, start: Floats, ftol: float, steps: int = 200) -> Floats:
    """A local minimum near the start, by its gradient, to a relative change of ``ftol`` in one step."""
    low, high = criterion.variables.low, criterion.variables.high
    options = {"maxiter": steps, "ftol": ftol, "gtol": 1e-9}
    bounds: Any = Bounds(low, high)
    found = minimize(criterion.slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return min(start, np.clip(found, low, high), key=criterion)


def _search_lines(criterion: Criterion, start: Floats) -> Floats:
    """A local minimum near the start, without gradients."""
    low, high = criterion.variables.low, criterion.variables.high
    options = {"maxiter": 3, "xtol": 1e-2, "ftol": 1e-4}
    bounds: Any = Bounds(low, high)
    found = minimize(criterion, start, method="Powell", bounds=bounds, options=options).x
    return min(start, np.clip(found, low, high), key=criterion)
