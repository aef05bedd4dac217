"""The bandwidths of least leave-one-out error: bounded, in their logarithms, from several starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, brentq, minimize, minimize_scalar

from regard.estimators.bandwidths import compact, deviations, leaves, own_bandwidth, upper_ends, with_bandwidth
from regard.estimators.memory import Floats, Memory
from regard.estimators.rows import Rows
from regard.scores.base import Score

STEP = 0.1  # of the grid in log h: narrower dips than that are rare
LINE, FIELD = 4e6, 1e6  # pairs times features that one look of a wide search may cost, in one variable and in several


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

    inf where a row is left without any key and ``outside`` does not say what it gets.
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
            return math.inf, np.zeros_like(wrong)
        weight = self.rows.weight[:, None] / (self.rows.weight.sum() * wrong.shape[1])
        return float(np.sum(weight * wrong**2)), 2 * weight * wrong


def search(
    score: Score, rows: Rows, *, shared: bool, outside: str, engine: str, random: np.random.RandomState
) -> Floats:
    """(D,): the bandwidths of the score that make the criterion least; ``shared`` keeps the ratios of the lengths.

    One variable: a grid, then each of its dips. Several: L-BFGS-B with gradients (for kernels with a support, where
    the criterion has edges, Powell's method) from several starts, and from wherever a look along one variable finds
    less. Of many rows, the wide search sees some, the last steps all.
    """
    variables = Variables.of(score, rows, shared)
    d = rows.X.shape[1]
    if not variables.low.size:
        return variables.fixed

    def criterion(of: Rows) -> Criterion:
        return Criterion(of, of.leaving_one_out("nan" if outside == "error" else outside, engine), variables)

    look = LINE if variables.low.size == 1 else FIELD
    some = rows.some(max(int(math.sqrt(look / d)), 100), random)
    whole = criterion(rows)
    wide = whole if some is rows else criterion(some)
    start = np.full(variables.low.size, -math.log(len(rows.X)) / (d + 4))
    start[variables.logarithms :] = 0.3 * variables.high[variables.logarithms :]
    start = np.clip(start, variables.low, variables.high)
    smooth = not compact(score, d)
    best = _line(wide, whole, start, smooth) if start.size == 1 else _field(wide, whole, start, smooth, random)
    if not math.isfinite(whole(best)):
        raise ValueError(
            f'no bandwidth leaves every row another one within the support, and outside="{outside}" gives such rows '
            'nothing. Set `outside` to "nearest" or "mean", or give `bandwidth` as a number.'
        )
    return variables.bandwidth(best)


def _line(wide: Criterion, whole: Criterion, start: Floats, smooth: bool) -> Floats:
    """One variable: the grid finds every dip, and the lowest few are followed to the ground."""
    low, high = float(wide.variables.low[0]), float(wide.variables.high[0])
    points = int(min(max(math.ceil((high - low) / STEP), 50), 300)) + 1
    grid = np.linspace(low, high, points)
    found = np.array([wide(np.array([t])) for t in grid])
    if found.max() - found.min() <= 1e-12 * found.max():
        return start  # nothing to choose from
    edged = np.concatenate([[math.inf], found, [math.inf]])
    dips: Any = np.flatnonzero((found <= edged[:-2]) & (found <= edged[2:]) & np.isfinite(found))
    all_rows = wide is whole
    dips = dips[np.argsort(found[dips], kind="stable")][: 5 if all_rows else 2]
    reach = 1 if all_rows else 5  # all rows may want another width than some of them
    ends = [_ground(whole, grid[max(i - reach, 0)], grid[min(i + reach, points - 1)], smooth) for i in dips]
    return min(ends, key=whole, default=start)


def _ground(criterion: Criterion, low: float, high: float, smooth: bool) -> Floats:
    """The least point between two ends."""

    def slope(t: float) -> float:
        return float(criterion.slope(np.array([t]))[1][0])

    if smooth and slope(low) < 0 < slope(high):  # the root of the slope has twice the digits of the least value
        return np.array([brentq(slope, low, high, xtol=1e-10)])
    inside = minimize_scalar(lambda t: criterion(np.array([t])), bounds=(low, high), options={"xatol": 1e-8}).x
    return min((np.array([t]) for t in (low, inside, high)), key=criterion)


def _field(wide: Criterion, whole: Criterion, start: Floats, smooth: bool, random: np.random.RandomState) -> Floats:
    """Several variables: descents from several starts, then from wherever a look along one variable finds less."""
    low, high = wide.variables.low, wide.variables.high
    shift = np.arange(start.size) < wide.variables.logarithms
    starts = [np.clip(start + f * shift, low, high) for f in np.arange(-3.0, 4.5, 0.5)]
    starts = sorted(starts, key=wide)[:2]
    near = np.where(shift, np.maximum(low, start - 2), low), np.where(shift, np.minimum(high, start + 2), high)
    starts += [random.uniform(*near) for _ in range(2)]
    best = min((_descend(wide, t, smooth, 1e-6) for t in starts), key=wide)
    for _ in range(3):
        looks = [_with(best, i, t) for i in range(best.size) for t in np.linspace(low[i], high[i], 9)]
        least = min(looks, key=wide)
        if not wide(least) < wide(best) * (1 - 1e-3):
            break
        best = _descend(wide, least, smooth, 1e-6)
    return _descend(whole, best, smooth, 1e-13)


def _with(t: Floats, at: int, value: float) -> Floats:
    """The point with one variable changed."""
    t = t.copy()
    t[at] = value
    return t


def _descend(criterion: Criterion, start: Floats, smooth: bool, ftol: float) -> Floats:
    """A local minimum near the start, to a relative change of ``ftol`` in one step."""
    low, high = criterion.variables.low, criterion.variables.high
    bounds: Any = Bounds(low, high)
    if smooth:
        options = {"maxiter": 200, "ftol": ftol, "gtol": 1e-9}
        found = minimize(criterion.slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    else:
        options = {"maxiter": 5, "xtol": 1e-2, "ftol": max(ftol, 1e-4)}
        found = minimize(criterion, start, method="Powell", bounds=bounds, options=options).x
    return np.asarray(np.clip(found, low, high))
