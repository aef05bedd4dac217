"""What every fitted regressor is: weights of the training rows at a query, which any values can be given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from regard.estimators.bandwidths import deviations, own_bandwidth
from regard.estimators.memory import Floats, Memory
from regard.estimators.moments import Moments, sloped
from regard.scores.base import Score

ALONE = 1e-3  # an own share that is nearer to 1 is taken out of the sums, not out of the fit


class Smoother(Protocol):
    """A fit ``f(q) = sum_i w_i l_i(q) v_i``: the share l_i is that of one count of a row."""

    def fit(self, query: Floats) -> Floats:
        """(Q, V): the fit of the rows' own values."""
        ...

    def pool(self, query: Floats, value: Floats) -> Floats:
        """(Q, B): the same weights on other values (n, B)."""
        ...

    def squares(self, query: Floats, value: Floats) -> Floats:
        """(Q, B): ``sum_i w_i l_i(q)^2 value_i``, the variance of the fit if value (n, B) is that of the rows."""
        ...

    def own(self) -> Floats:
        """(n,): the share that one count of each row has in its own fit."""
        ...


@dataclass(frozen=True, eq=False)
class LocalPolynomial:
    """Local polynomials; degree 0 is Nadaraya-Watson."""

    memory: Memory
    score: Score
    count: Floats
    degree: int = 0
    unseen: frozenset[int] = frozenset()  # features along which no polynomial runs

    @cached_property
    def moments(self) -> Moments:
        """The windows, in units of the bandwidths; a feature that has none is measured by its standard deviation."""
        X = self.memory.key
        varies = np.ptp(X, axis=0) > 0
        features = sorted(sloped(self.score, list(range(X.shape[1]))) - self.unseen) if self.degree else []
        features = [c for c in features if varies[c]]
        h, spread = own_bandwidth(self.score, X.shape[1]), deviations(X, self.count)
        unit = np.where(np.isfinite(h), np.minimum(h, 1e3 * spread), spread)[features]
        wide = replace(
            self.memory,
            kept={},
            key=X.astype(np.float64),
            value=self.memory.value.astype(np.float64),
            weight=self.memory.weight.astype(np.float64),
        )
        return Moments(wide, self.score, tuple(features), unit, self.degree)

    def fit(self, query: Floats) -> Floats:
        if not self.degree:
            return self.memory.pool(self.score, query)  # which keeps what an engine made of the keys
        return self.pool(query, self.memory.value)

    def pool(self, query: Floats, value: Floats) -> Floats:
        if not self.degree:
            return self.memory.with_values(value).pool(self.score, query)
        return np.asarray(self.polynomials(query, value)[:, 0])

    def polynomials(self, query: Floats, value: Floats) -> Floats:
        """(Q, M, B): the fitted polynomials about the queries in the units of the windows; outside, constants."""
        moments = self.moments
        q, v = query.astype(np.float64), value.astype(np.float64)
        out = np.zeros((len(q), len(moments.bases[0].exponents), v.shape[1]))
        empty = np.zeros(len(q), dtype=bool)
        for w in moments.windows(q, v):
            out[w.at] = w.polynomial
            empty[w.at] = w.log_weight_sum == -np.inf
        if empty.any():
            out[:, 0] = moments.memory.with_values(v).filled(self.score, q, out[:, 0], empty)
            out[np.isnan(out[:, 0]).any(axis=1)] = np.nan
        return out.astype(query.dtype)

    def squares(self, query: Floats, value: Floats) -> Floats:
        moments = self.moments
        q, v = query.astype(np.float64), value.astype(np.float64)
        out, empty = np.zeros((len(q), v.shape[1])), np.zeros(len(q), dtype=bool)
        for w in moments.windows(q, v[:, :0]):
            out[w.at] = moments.squares(w, q, v)
            empty[w.at] = w.log_weight_sum == -np.inf
        for at, every in moments.memory.outside_weights(self.score, q, empty):
            share = every / np.where(moments.memory.weight > 0, moments.memory.weight, 1.0)
            out[at] = (every * share) @ v
        return np.where(v.min(axis=0, initial=0.0) >= 0, np.maximum(out, 0.0), out)

    def local_variance(self, query: Floats) -> Floats:
        """(Q, V): the variance of the rows about a polynomial of two degrees more, in the window of each query."""
        moments = replace(self, degree=self.degree + 2).moments
        value = moments.memory.value
        centred = value - self.count @ value / self.count.sum()
        return np.maximum(moments.variance(query.astype(np.float64), centred), 0.0)

    def own(self) -> Floats:
        moments, X = self.moments, self.moments.memory.key
        out = np.zeros(len(X))
        s = np.asarray(self.score(X[:, None, :], X[:, None, :]))[:, 0, 0]
        for w in moments.windows(X, np.zeros((len(X), 0))):
            there = w.log_weight_sum > -np.inf
            out[w.at] = np.where(there, np.exp(np.where(there, s[w.at] - w.log_weight_sum, 0.0)), 0.0)
            out[w.at] *= w.coefficients[:, 0]
        return out

    def leave_one_out(self, own: Floats | None = None, fit: Floats | None = None) -> Floats:
        """(n, V): what each row gets from all the others, ``f_-i = (f_i - a_i v_i) / (1 - a_i)``.

        a_i is the own share of one count; where it is near 1, the sums are taken again without it.
        """
        moments, X = self.moments, self.memory.key
        value = moments.memory.value
        own = self.own() if own is None else own
        fit = (self.fit(X) if fit is None else fit).astype(np.float64)
        taken = np.minimum(self.count, 1.0)
        share: Any = own * taken
        near = ~(share < 1 - ALONE)
        out = (fit - share[:, None] * value) / np.where(near, 1.0, 1 - share)[:, None]
        again = np.flatnonzero(near)
        if again.size:
            found, empty = moments.without_own(again, (self.memory.weight / np.maximum(self.count, 1.0))[again], value)
            out[again] = found
            lost = np.zeros(len(X), dtype=bool)
            lost[again[empty]] = True
            if lost.any():
                others = moments.memory.without_own(self.count)
                out = others.filled(self.score, X.astype(np.float64), out, lost)
        return np.asarray(out)

    def derivative(self, query: Floats) -> Floats:
        """(Q, D, V): the gradient of the fit to the query; 0 outside, where the fit is constant."""
        moments, value = self.moments, self.moments.memory.value
        one, two = moments.bases
        q = query.astype(np.float64)
        m, m2, v = len(one.exponents), len(two.exponents), value.shape[1]
        out = np.zeros((len(q), q.shape[1], v))
        for w in moments.exact(q, value):
            c, b = w.about_centre, w.polynomial_about_centre
            about = moments.monomials(moments.memory.key, w.centre, two)
            columns = np.concatenate([about, (about[:, :m, None] * value[:, None, :]).reshape(len(value), -1)], axis=1)
            for n in range(v):  # f = c'T with S b = T: a weight that grows by g moves f by c'm (v - m'b) g
                pull = -(c[:, moments.pairs[0]] * b[:, moments.pairs[1], n])
                to_sums = np.zeros((len(w.at), m2))
                np.add.at(to_sums.T, moments.products.ravel(), pull.T)
                to_first = np.zeros((len(w.at), m, v))
                to_first[:, :, n] = c
                grad = np.concatenate([to_sums, to_first.reshape(len(c), -1)], axis=1)
                out[w.at, :, n] = moments.pairwise.slopes(self.score, q[w.at], columns, grad)
            for n, feature in enumerate(moments.features, start=1):
                out[w.at, feature] += w.polynomial[:, n] / moments.unit[n - 1]
            if self.memory.outside == "nan":
                out[w.at[w.log_weight_sum == -np.inf]] = np.nan
        return out
