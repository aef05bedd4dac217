"""Local quantiles: the median of the targets nearby, and what a share of them lies below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
from scipy.linalg import qr
from scipy.stats import norm
from sklearn.metrics import d2_pinball_score
from sklearn.utils.validation import check_is_fitted

from regard.estimators.bandwidths import own_bandwidth, upper_ends, with_bandwidth
from regard.estimators.inputs import checked, counts, without_missing
from regard.estimators.memory import Floats, Integers
from regard.estimators.moments import Moments
from regard.estimators.nadaraya_watson import check_parameters, fitted_score
from regard.estimators.parts import Growing
from regard.estimators.polynomials import ROUNDING, Solved
from regard.estimators.pooled import PooledRegressor
from regard.estimators.rows import Rows
from regard.estimators.smoother import LocalPolynomial
from regard.scores.base import Score

DEGREES = (0, 1)
PAIRS = 1 << 20  # weights that are held at once
TIE = 1e-12  # shares that differ by less are equal
CORNERS = 0.1, 1e-3, 12  # of the check loss: how rounded at first and last, in spreads of the targets; steps
TIED = 1e-9  # of a spread: what tied targets are told apart by
FAINT = 1e-14  # of the largest weight: what is less says nothing
MOVES = 1000  # along edges, at most


class LocalQuantileRegressor(PooledRegressor, Growing):
    """The quantile of the training targets, weighted by a kernel of the distance: for 0.5, the local median.

        f(x) = b_0,  b = argmin sum_i w_i K((x - x_i) / h) rho(y_i - b_0 - b_1 . (x_i - x)),
        rho(r) = r (quantile - [r < 0])

    Degree 0 has no b_1: it is the weighted quantile of the targets, exact, and the mean of both ends where the loss
    leaves a choice; quantiles of several levels do not cross. Degree 1 runs along the features with a length.

    Parameters
    ----------
    quantile : number between 0 and 1, or several, default 0.5
    kernel, bandwidth, categorical_features, unseen, missing, outside, engine, rtol, n_jobs, random_state :
        As in ``NadarayaWatsonRegressor``. What a rule finds for the mean is multiplied, for lengths, by

            (q (1 - q) / phi(Phi^-1(q))^2)^(1 / (d + 4)),  phi and Phi of the normal distribution

        averaged over the quantiles q: all of them use the same weights.
    degree : 0 or 1, default 0

    Attributes
    ----------
    bandwidth_, score_, selection_, X_, y_, sample_weight_, n_features_in_, feature_names_in_ :
        As in ``NadarayaWatsonRegressor``; the report of the search is that of the mean.

    Notes
    -----
    ``sample_weight`` counts: weight 2 is the row twice. Degree 1 starts from a majorisation (iteratively reweighted
    least squares) and moves along the edges of the loss to its least vertex, query by query: about a millisecond for
    each and a thousand rows. Where its quantiles cross they are sorted.

    Raises
    ------
    ValueError : as ``NadarayaWatsonRegressor``; for a quantile that is not between 0 and 1, or another degree.

    References
    ----------
    Koenker & Bassett (1978), Econometrica 46; Yu & Jones (1998), Local linear quantile regression, Journal of the
    American Statistical Association 93, for the bandwidth; Hunter & Lange (2000), Journal of Computational and
    Graphical Statistics 9, for majorisation; Barrodale & Roberts (1973), SIAM Journal on Numerical Analysis 10, for
    moving along edges; Chernozhukov, Fernandez-Val & Galichon (2010), Econometrica 78, for sorting.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x, y = np.zeros((5, 1)), np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    >>> rg.LocalQuantileRegressor(bandwidth=1.0).fit(x, y).predict([[0.0]])
    array([3.])
    >>> rg.LocalQuantileRegressor([0.1, 0.5, 0.9], bandwidth=1.0).fit(x, y).predict([[0.0]])
    array([[  1.,   3., 100.]])
    """

    bandwidth_: Floats

    def __init__(
        self,
        quantile: Any = 0.5,
        kernel: Any = "gaussian",
        bandwidth: Any = "loo",
        *,
        degree: int = 0,
        categorical_features: Any = "from_dtype",
        unseen: str = "error",
        missing: str = "error",
        outside: str = "nearest",
        engine: str = "auto",
        rtol: float = 1e-6,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.quantile = quantile
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.degree = degree
        self.categorical_features = categorical_features
        self.unseen = unseen
        self.missing = missing
        self.outside = outside
        self.engine = engine
        self.rtol = rtol
        self.n_jobs = n_jobs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """The estimator with a bandwidth and the training rows.

        ``X (n, features)``, ``y (n,)``, ``sample_weight (n,)``, >= 0: how often a row is there.
        """
        return self._fit(self._given(X, y, sample_weight))

    def _given(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        check_parameters(self)
        self._levels()
        if isinstance(self.degree, bool) or not isinstance(self.degree, int | np.integer) or self.degree not in DEGREES:
            raise ValueError(f"`degree` must be one of {', '.join(map(str, DEGREES))}; got {self.degree!r}.")
        X, y = checked(self, X, y=y, y_numeric=True, copy=True)
        X, y, sample_weight = without_missing(X, y, sample_weight)
        return self._rows(X, y, counts(sample_weight, X))

    def _levels(self) -> Floats:
        q = np.asarray(self.quantile)
        if q.dtype.kind not in "iuf" or q.ndim > 1 or not q.size or not np.all((q > 0) & (q < 1)):
            raise ValueError(f"`quantile` must be a number between 0 and 1, or several; got {self.quantile!r}.")
        return np.atleast_1d(q).astype(np.float64)

    def _fit(self, given: Rows) -> Self:
        d, degree = given.X.shape[1], int(self.degree)
        outside = "nan" if self.outside == "error" else self.outside

        def smoother(score: Score, rows: Rows) -> LocalPolynomial:
            return LocalPolynomial(rows.seeing_all(outside, self.engine), score, rows.count, degree)

        score = fitted_score(self, given, given.merged().standardised(), degree, smoother)
        if isinstance(self.bandwidth, str):
            lengths = np.isinf(upper_ends(score, d)) & (np.asarray(np.ptp(given.X[given.count > 0], axis=0)) > 0)
            q = self._levels()
            factor = np.mean((q * (1 - q) / norm.pdf(norm.ppf(q)) ** 2) ** (1 / (np.count_nonzero(lengths) + 4)))
            score = with_bandwidth(score, np.where(lengths, factor, 1.0) * self.bandwidth_)
            self.bandwidth_ = own_bandwidth(score, d)
        return self._remember(given, score, self.outside)

    def predict(self, X: Any) -> Floats:
        """(n,), or (n, quantiles) if several were asked for: the quantiles at each row."""
        queries = self._queries(X)
        return self._quantiles(queries, None)

    def leave_one_out(self) -> Floats:
        """Like ``predict`` of the training rows: what each gets from all the others, without another fit."""
        check_is_fitted(self)
        return self._quantiles(self._memory.key, np.minimum(self._count, 1.0))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the check loss that the fit explains: ``1 - loss / loss of the constant quantile``.

        Averaged over the quantiles; 1 is best, and 0 is what a constant reaches.
        """
        found = self.predict(X).reshape(-1, self._levels().size)
        each = [
            d2_pinball_score(y, f, alpha=float(q), sample_weight=sample_weight)
            for f, q in zip(found.T, self._levels(), strict=True)
        ]
        return float(np.mean(each))

    def _quantiles(self, queries: Floats, taken: Floats | None) -> Floats:
        """Of the queries; ``taken (n,)``: the queries are the rows, and so many counts of the own one are not there."""
        memory, levels = self._recall(), self._levels()
        order = np.argsort(self.y_, kind="stable")
        y = self.y_[order].astype(np.float64)
        out = np.empty((len(queries), levels.size))
        for at, weight in self._weights(queries, taken):
            if self.degree:
                out[at] = self._linear(queries, at, weight, levels)
            else:
                out[at] = weighted_quantiles(y, weight[:, order], levels)
            lost: Any = ~(weight.sum(axis=1) > 0)
            if lost.any():
                empty = np.zeros(len(queries), dtype=bool)
                empty[at[lost]] = True
                if taken is not None:
                    memory = replace(self._recall().without_own(self._count), kept={})
                for rows, every in memory.outside_weights(self.score_, queries, empty):
                    every = every[:, : len(y)] + _extra(every, self._count, len(y))
                    bad: Any = np.isnan(every).any(axis=1)
                    found = weighted_quantiles(y, np.nan_to_num(every)[:, order], levels)
                    out[rows] = np.where(bad[:, None], np.nan, found)
        out = out.astype(queries.dtype)
        return out[:, 0] if np.ndim(self.quantile) == 0 else out

    def _weights(self, queries: Floats, taken: Floats | None) -> Iterator[tuple[Integers, Floats]]:
        """(B, n) weights of the rows for queries, block by block: at most 1, and all 0 where no row has any."""
        key, weight = self._memory.key.astype(np.float64), self.sample_weight_.astype(np.float64)
        step = max(PAIRS // len(key), 1)
        for start in range(0, len(queries), step):
            at = np.arange(start, min(start + step, len(queries)))
            w = np.broadcast_to(weight, (len(at), len(key))).copy()
            if taken is not None:
                w[np.arange(len(at)), at] -= taken[at]
            s = np.where(w > 0, self.score_(queries[at].astype(np.float64), key), -np.inf)
            top = s.max(axis=1, keepdims=True)
            yield at, w * np.exp(s - np.where(top > -np.inf, top, 0.0))

    def _linear(self, queries: Floats, at: Integers, weight: Floats, levels: Floats) -> Floats:
        """(B, levels): local linear quantiles by majorisation, whose corner is sharpened step by step."""
        smoother = LocalPolynomial(self._recall(), self.score_, self._count, 1)
        moments: Moments = smoother.moments
        one, two = moments.bases
        x, y = queries[at].astype(np.float64), self.y_.astype(np.float64)
        centre = x[:, list(moments.features)].mean(axis=0)
        about = moments.monomials(moments.memory.key, centre, two)
        first = about[:, : len(one.exponents)]
        shift = one.shift((x[:, list(moments.features)] - centre) / moments.unit)
        # of the middle of the targets, if that is spread at all: an outlier has no say
        spread = next((s for q in (0.25, 0.05, 0.0) if (s := float(np.ptp(np.quantile(y, [q, 1 - q])))) > 0), 1.0)
        total = weight.sum(axis=1, keepdims=True)
        weight = weight / np.where(total > 0, total, 1.0)
        kept = self._solved(shift, (weight @ about)[:, moments.products]).kept
        out = np.empty((len(at), levels.size))
        order = np.argsort(y, kind="stable")
        start = weighted_quantiles(y[order], weight[:, order], levels)
        # ties are broken by less than counts, so that each vertex is the meeting of as many points as it takes
        apart = y + TIED * spread * np.random.RandomState(0).uniform(-1, 1, size=len(y))
        for n, q in enumerate(levels):
            b = np.zeros((len(at), first.shape[1]))
            b[:, 0] = start[:, n]
            slope = (2 * q - 1) * (weight @ first)
            for corner in spread * np.geomspace(*CORNERS):
                v = weight / (corner + np.abs(y - b @ first.T))
                right = shift @ ((v * y) @ first + slope)[:, :, None]
                b = (shift.mT @ self._solved(shift, (v @ about)[:, moments.products])(right))[:, :, 0]
            for m in range(len(at)):
                seen = np.flatnonzero(weight[m] > FAINT * weight[m].max(initial=0.0))
                if not seen.size:
                    continue
                z = moments.monomials(moments.memory.key[seen], x[m, list(moments.features)], one)[:, kept[m]]
                near = np.abs(y[seen] - first[seen] @ b[m])
                basis = vertex(z, apart[seen], weight[m, seen], float(q), near)
                out[m, n] = np.linalg.solve(z[basis], y[seen][basis])[0]
        return np.sort(out, axis=1) if np.all(np.diff(levels) >= 0) else out

    @staticmethod
    def _solved(shift: Floats, S: Floats) -> Solved:
        size = abs(shift) @ abs(S) @ abs(shift).mT
        return Solved.of(shift @ S @ shift.mT, ROUNDING * np.diagonal(size, axis1=1, axis2=2))


def vertex(z: Floats, y: Floats, weight: Floats, level: float, near: Floats) -> Integers:
    """(M,): the points that the hyperplane of least check loss goes through; z (n, M) of full rank.

        least sum_i weight_i rho(y_i - z_i . b)

    From the points that are ``near (n,)`` an earlier answer it moves along edges, each to its lowest point, until none
    descends: that is the least, since the loss is convex and no more than M points meet at a vertex.
    """
    m = z.shape[1]
    order = np.argsort(near, kind="stable")
    for some in (order[: 8 * m], order):
        _, r, pivots = qr(z[some].T, mode="economic", pivoting=True)
        if len(some) >= m and abs(r[m - 1, m - 1]) > 1e-8 * abs(r[0, 0]):
            break
    basis = some[pivots[:m]]
    j, still = 0, 0
    for _ in range(MOVES):
        inverse = np.linalg.inv(z[basis])
        left = y - z @ (inverse @ y[basis])
        left[basis] = 0.0
        a = z @ inverse[:, j]  # how the residuals fall along the edge that leaves point j
        a[basis] = 0.0
        a[basis[j]] = 1.0
        moves = np.flatnonzero(np.abs(a) > 1e-9)
        steps = left[moves] / a[moves]
        by = np.argsort(steps, kind="stable")
        size = (weight[moves] * np.abs(a[moves]))[by]
        slope = -np.sum(np.where(a[moves] > 0, level, 1 - level) * weight[moves] * np.abs(a[moves]))
        at = int(np.searchsorted(slope + np.cumsum(size), -1e-13 * size.sum()))
        lowest = moves[by[min(at, len(by) - 1)]]
        still = still + 1 if lowest == basis[j] else 0
        basis[j] = lowest
        if still == m:
            break
        j = (j + 1) % m
    return np.asarray(basis)


def weighted_quantiles(y: Floats, weight: Floats, levels: Floats) -> Floats:
    """(B, levels) of the sorted values y (n,) with weights (B, n): where the sum of weights up to y reaches the level.

    Where it is exactly the level, the mean of this value and the next. NaN where there is no weight.
    """
    total = np.cumsum(weight, axis=1)
    all_of_it = total[:, -1]
    there = all_of_it > 0
    out = np.empty((len(weight), levels.size))
    last = len(y) - 1 - (weight[:, ::-1] > 0).argmax(axis=1)
    for n, q in enumerate(levels):
        low = np.minimum(np.count_nonzero(total < ((q - TIE) * all_of_it)[:, None], axis=1), last)
        high = np.minimum(np.count_nonzero(total <= ((q + TIE) * all_of_it)[:, None], axis=1), last)
        out[:, n] = np.where(there, (y[low] + y[high]) / 2, np.nan)
    return out


def _extra(every: Floats, count: Floats, n: int) -> Floats:
    """What the second keys of rows that count more than once weigh, at their rows."""
    out = np.zeros((len(every), n))
    if every.shape[1] > n:
        out[:, np.flatnonzero(count > 1)] = every[:, n:]
    return out
