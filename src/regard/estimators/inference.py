"""How sure a fit is: standard errors, bands, intervals, bootstraps, a summary, and whether a feature matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from regard.estimators.bandwidths import chosen
from regard.estimators.criteria import REFUSED, corrected_information
from regard.estimators.memory import Floats
from regard.estimators.moments import sloped
from regard.estimators.pooled import PooledRegressor
from regard.estimators.rows import Rows
from regard.estimators.smoother import LocalPolynomial
from regard.scores import Constant
from regard.scores.base import Kernel, Leaf, On, Scaled, Score, Sum

KINDS = ("wild", "pairs")
VARIANCES = ("rows", "local")
NUMBERS = 1 << 24  # of draws that are held at once
FLOOR = 1e-6  # of the mean variance, below which no local variance is believed


@dataclass(frozen=True, eq=False)
class Residuals:
    """What the training rows say of the fit: ``fit (n, V)``, ``own (n,)`` shares, ``left (n, V)`` the errors of
    leave-one-out, ``y_i - f_-i(x_i)``."""

    fit: Floats
    own: Floats
    left: Floats

    @staticmethod
    def of(smoother: LocalPolynomial, value: Floats) -> Residuals:
        # the error of a row that has nobody near is that of its nearest, whatever a query gets there
        outside = smoother.memory.outside
        memory = replace(smoother.memory, outside="mean" if outside == "mean" else "nearest", kept={})
        smoother = replace(smoother, memory=memory)
        fit, own = smoother.fit(memory.key).astype(np.float64), smoother.own()
        return Residuals(fit, own, value - smoother.leave_one_out(own, fit))


@dataclass(frozen=True, eq=False)
class Summary:
    """What a fit is like, in numbers; for several outputs those of the fit are arrays.

    Parameters
    ----------
    rows : the sum of the weights
    degree, bandwidth, names : of the fit
    r_squared : ``1 - RSS / sum w (y - mean)^2``, the mean being that of the weights
    r_squared_of_fit : ``(sum w (y - mean) (f - mean))^2 / (sum w (y - mean)^2 sum w (f - mean)^2)``, as R's np has it
    trace : of the hat matrix, the degrees of freedom of the fit
    aicc : ``log(RSS / n) + (1 + trace / n) / (1 - (trace + 2) / n)``; inf where the trace leaves nothing
    residual_deviation : ``sqrt(RSS / (n - trace))``
    left_out : the mean squared error of leave-one-out
    effective_size : ``1 / sum_i w_i l_i^2`` at the rows: least, median, most
    residuals : (n,) or (n, outputs), ``y - f``
    own : (n,) the share of each row in its own fit, the diagonal of the hat matrix

    References
    ----------
    Hurvich, Simonoff & Tsai (1998), eq. 2.5 (AICc); Doksum & Samarov (1995), Annals of Statistics 23 (R^2 of the fit).

    Examples
    --------
    >>> import regard as rg
    >>> from regard.datasets import motorcycle
    >>> times, accel = motorcycle()
    >>> summary = rg.LocalPolynomialRegressor(bandwidth=1.5).fit(times[:, None], accel).summary()
    >>> round(float(summary.r_squared), 3), round(summary.trace, 2)
    (0.801, 16.36)
    """

    rows: float
    degree: int
    bandwidth: tuple[float, ...]
    names: tuple[str, ...]
    r_squared: Any
    r_squared_of_fit: Any
    trace: float
    aicc: Any
    residual_deviation: Any
    left_out: Any
    effective_size: tuple[float, float, float]
    residuals: Floats
    own: Floats

    def __repr__(self) -> str:
        def shown(x: Any) -> str:
            return ", ".join(f"{n:.6g}" for n in np.atleast_1d(x))

        kind = "local constant" if not self.degree else f"local polynomial of degree {self.degree}"
        pairs = ", ".join(f"{n} {h:.6g}" for n, h in zip(self.names, self.bandwidth, strict=True))
        least, middle, most = self.effective_size
        return "\n".join(
            (
                f"{kind} fit of {self.rows:g} rows",
                f"  bandwidth          {pairs}",
                f"  R^2                {shown(self.r_squared)} (of the fit: {shown(self.r_squared_of_fit)})",
                f"  trace              {self.trace:.6g} degrees of freedom",
                f"  AICc               {shown(self.aicc)}",
                f"  residual deviation {shown(self.residual_deviation)}",
                f"  leave-one-out MSE  {shown(self.left_out)}",
                f"  effective size     {middle:.4g} rows in the median ({least:.4g} to {most:.4g})",
            )
        )


@dataclass(frozen=True, eq=False)
class Significance:
    """Whether a feature matters: how far the fit is from one that does not see the feature, beside what chance does.

    Parameters
    ----------
    feature : its name, or position
    statistic : ``sum_i w_i |f(x_i) - f_0(x_i)|^2 / sum_i w_i``, f_0 the fit without the feature
    p_value : ``(1 + how many draws reach the statistic) / (1 + draws)``
    draws : (n,) the statistics under the hypothesis that it does not matter

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.random.default_rng(0).uniform(size=(80, 2))
    >>> model = rg.NadarayaWatsonRegressor(bandwidth=0.15).fit(x, np.sin(6 * x[:, 0]))
    >>> model.significance(0, n=99, random_state=0).p_value
    0.01
    """

    feature: Any
    statistic: float
    p_value: float
    draws: Floats

    def __repr__(self) -> str:
        found = f"statistic {self.statistic:.6g}, p = {self.p_value:.3g} of {len(self.draws)} draws"
        return f"feature {self.feature!r}: {found}"


def without_feature(score: Score, feature: int, columns: list[int]) -> Score | None:
    """The score that does not look at a feature; None if it looks at no other."""
    match score:
        case Sum(parts=parts):
            left = [one for part in parts if (one := without_feature(part, feature, columns)) is not None]
            return None if not left else left[0] if len(left) == 1 else Sum(tuple(left))
        case Scaled() | On():
            seen = chosen(score, columns) if isinstance(score, On) else columns
            inner = without_feature(score.score, feature, seen)
            return None if inner is None else replace(score, score=inner)
        case Leaf() if feature not in columns or columns == [feature]:
            return None if feature in columns else score
        case Kernel():
            h = np.where(np.array(columns) == feature, np.inf, np.asarray(score.bandwidth) * np.ones(len(columns)))
            return replace(score, bandwidth=h)
    raise ValueError(
        f"a feature cannot be taken out of {score!r}: it mixes features. Give a product of kernels as `kernel`."
    )


class Inference(PooledRegressor):
    """A regressor whose fit is ``f(x) = sum_i w_i l_i(x) y_i``: l_i is the share of one count of row i."""

    random_state: Any

    def _smoother(self) -> LocalPolynomial:
        check_is_fitted(self)
        return LocalPolynomial(self._recall(), self.score_, self._count, int(getattr(self, "degree", 0)))

    def _distinct(self) -> LocalPolynomial:
        """The smoother of the distinct rows, sorted: a thin window magnifies rounding, so counts and copies of rows
        must be the same numbers."""
        memory = self._recall()
        if "distinct" not in self._known:
            self._known["distinct"] = Rows(memory.key, memory.value, self._count, np.ones(len(memory.key))).merged()
        rows: Rows = self._known["distinct"]
        dtype = memory.key.dtype
        memory = replace(
            memory, key=rows.X.astype(dtype), value=rows.value.astype(dtype), weight=rows.weight.astype(dtype), kept={}
        )
        return LocalPolynomial(memory, self.score_, rows.count, int(getattr(self, "degree", 0)))

    def _value(self) -> Floats:
        return self.y_.reshape(len(self.y_), -1).astype(np.float64)

    def _residuals(self) -> Residuals:
        if "residuals" not in self._known:
            self._known["residuals"] = Residuals.of(self._smoother(), self._value())
        found: Residuals = self._known["residuals"]
        return found

    def _random(self, random_state: Any) -> np.random.RandomState:
        found: np.random.RandomState = check_random_state(self.random_state if random_state is None else random_state)
        return found

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The fit for each row, (n,) or (n, outputs), as y was; and its standard error, if asked for, of that shape.

            se(x)^2 = sum_i w_i l_i(x)^2 (y_i - f_-i(x_i))^2

        The errors of leave-one-out stand for the variances of the rows, which may differ: the form HC3, which is close
        to the jackknife. It measures how the fit varies about its own mean; the bias of smoothing is not in it.

        References
        ----------
        MacKinnon & White (1985), Journal of Econometrics 29; Fan & Gijbels (1996), Local Polynomial Modelling, section
        4.3, for the weights in it.
        """
        queries = self._queries(X)
        smoother = self._smoother()
        fit = self._shaped((self._distinct() if smoother.degree else smoother).fit(queries))
        if not return_std:
            return fit
        return fit, self._shaped(self._deviation(smoother, queries).astype(queries.dtype))

    def standard_error(self, X: Any, variance: str = "rows") -> Floats:
        """(n,) or (n, outputs): the standard error of the fit at each row of X.

        - ``variance="rows"``: that of ``predict(X, return_std=True)``; each row has a variance of its own.
        - ``variance="local"``: ``s(x) sqrt(sum_i w_i l_i(x)^2)`` where s^2(x) is the weighted residual variance about a
          polynomial of two degrees more, fitted in the window of x; NaN where that leaves no degree of freedom. The
          variance is taken to be the same within the window; these are the standard errors of Stata's lpoly.

        Raises
        ------
        ValueError : for another variance.

        References
        ----------
        Fan & Gijbels (1996), section 4.3, eqs. 4.4 to 4.6.
        """
        if variance not in VARIANCES:
            raise ValueError(f"`variance` must be one of {', '.join(VARIANCES)}; got {variance!r}.")
        queries, smoother = self._queries(X), self._smoother()
        if variance == "rows":
            found = self._deviation(smoother, queries)
        else:
            size = smoother.squares(queries, np.ones((len(self.X_), 1)))
            found = np.sqrt(smoother.local_variance(queries) * size)
        return self._shaped(found.astype(queries.dtype))

    def _deviation(self, smoother: LocalPolynomial, queries: Floats) -> Floats:
        return np.sqrt(smoother.squares(queries, self._residuals().left ** 2))

    def confidence_band(
        self, X: Any, level: float = 0.95, *, simultaneous: bool = False, n: int = 1000, random_state: Any = None
    ) -> tuple[Floats, Floats]:
        """The lower and the upper end of a band around the fit at each row of X, shaped as predictions are.

            f(x) -+ c se(x)

        Pointwise, c is the quantile of the normal distribution: each interval covers the mean of f(x) with probability
        ``level``. Simultaneous, all intervals at the rows of X together do: c is the quantile of

            max_x |sum_i w_i l_i(x) e_i g_i| / se(x),  g normal, e the errors of leave-one-out

        over ``n`` draws, in any number of dimensions (sup-t band by a multiplier bootstrap). Each output has its own
        band. The band is for the smoothed truth ``sum_i w_i l_i(x) m(x_i)``; where bias matters, take a narrower
        bandwidth or a higher degree.

        Raises
        ------
        ValueError : unless 0 < level < 1.

        References
        ----------
        Chernozhukov, Chetverikov & Kato (2014), Anti-concentration and honest, adaptive confidence bands, Annals of
        Statistics 42, section 3; Montiel Olea & Plagborg-Moller (2019), Journal of Applied Econometrics 34.
        """
        _check_level(level)
        queries, smoother = self._queries(X), self._smoother()
        fit, deviation = smoother.fit(queries).astype(np.float64), self._deviation(smoother, queries)
        c: Any = norm.ppf((1 + level) / 2)
        if simultaneous:
            _check_draws(n)
            left, random, tops = self._residuals().left, self._random(random_state), []
            for size in _portions(n, max(len(self.X_), len(queries))):
                g = random.normal(size=(len(left), size)) / np.sqrt(np.maximum(self._count, 1e-300))[:, None]
                tops.append(
                    [
                        np.max(
                            np.abs(smoother.pool(queries, left[:, [v]] * g))
                            / np.where(deviation[:, [v]] > 0, deviation[:, [v]], np.inf),
                            axis=0,
                            initial=0.0,
                        )
                        for v in range(fit.shape[1])
                    ]
                )
            c = np.quantile(np.concatenate(tops, axis=1), level, axis=1)
        low, high = (self._shaped((fit + side * c * deviation).astype(queries.dtype)) for side in (-1, 1))
        return low, high

    def prediction_interval(self, X: Any, level: float = 0.95) -> tuple[Floats, Floats]:
        """The lower and the upper end of an interval that a new target falls into, shaped as predictions are.

            f(x) + s(x) r,  r the quantiles of (y_i - f_-i(x_i)) / s_-i(x_i)

        s^2 is the local mean of the squared errors of leave-one-out, by the kernel of the fit. No distribution is
        assumed, but that scaled errors are alike everywhere; the error of the fit itself is in them.

        Raises
        ------
        ValueError : unless 0 < level < 1.

        References
        ----------
        Lei, G'Sell, Rinaldo, Tibshirani & Wasserman (2018), Journal of the American Statistical Association 113,
        section 5.2, with leave-one-out in place of a split.
        """
        _check_level(level)
        queries, smoother = self._queries(X), self._smoother()
        left, count = self._residuals().left, self._count
        floor = FLOOR * (count @ left**2 / count.sum())
        local = replace(smoother, memory=smoother.memory.with_values(left**2), degree=0)
        others = Residuals.of(local, left**2)
        spread = np.sqrt(np.maximum(left**2 - others.left, floor))
        here = np.sqrt(np.maximum(local.fit(queries), floor))
        ratio = left / np.where(spread > 0, spread, 1.0)
        order = np.argsort(ratio, axis=0, kind="stable")
        total, ends = count.sum(), []
        for place in (np.floor((total + 1) * (1 - level) / 2), np.ceil((total + 1) * (1 + level) / 2)):
            rows = np.array([np.searchsorted(np.cumsum(count[o]), place - 1e-9) for o in order.T])
            live = count[order] > 0
            first, last = live.argmax(axis=0), len(count) - 1 - live[::-1].argmax(axis=0)
            rows = np.clip(rows, first, last)
            ends.append(np.take_along_axis(ratio, np.take_along_axis(order, rows[None, :], axis=0), axis=0))
        fit = smoother.fit(queries).astype(np.float64)
        low, high = (self._shaped((fit + here * end).astype(queries.dtype)) for end in ends)
        return low, high

    def bootstrap(self, X: Any, kind: str = "wild", *, n: int = 200, random_state: Any = None) -> Floats:
        """(n, rows) or (n, rows, outputs): fits at the rows of X, of data drawn anew, with the same bandwidths.

        - ``"wild"``: ``y*_i = f(x_i) + (y_i - f_-i(x_i)) v_i``, v = -1 or 1: one pooling of n value columns. Each row
          keeps its place and its variance.
        - ``"pairs"``: rows are drawn with replacement.

        Raises
        ------
        ValueError : for another kind, or fewer than one draw.

        References
        ----------
        Wu (1986), Annals of Statistics 14; Davidson & Flachaire (2008), Journal of Econometrics 146, for v; Efron
        (1979), Annals of Statistics 7, for pairs.
        """
        if kind not in KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(KINDS)}; got {kind!r}.")
        _check_draws(n)
        queries, smoother, random = self._queries(X), self._smoother(), self._random(random_state)
        value, out = self._value(), []
        if kind == "wild":
            r = self._residuals()
            for size in _portions(n, max(len(value), len(queries)) * value.shape[1]):
                y = r.fit[:, None, :] + r.left[:, None, :] * signs(self._count, size, random)[:, :, None]
                found = smoother.pool(queries, y.reshape(len(value), -1))
                out.append(found.reshape(len(queries), size, -1).swapaxes(0, 1))
        else:
            total = int(max(round(float(self._count.sum())), 1))
            for _ in range(n):
                drawn = random.multinomial(total, self._count / self._count.sum()).astype(value.dtype)
                weight = (drawn / np.where(self._count > 0, self._count, 1.0) * self.sample_weight_).astype(
                    queries.dtype
                )
                memory = replace(smoother.memory, weight=weight, kept={})
                out.append(replace(smoother, memory=memory, count=drawn).fit(queries)[None])
        found = np.concatenate(out).astype(queries.dtype)
        return found.reshape(n, len(queries), *self.y_.shape[1:])

    def effective_sample_size(self, X: Any) -> Floats:
        """(n,): how many rows, equally weighted, would make the fit as sure: ``1 / sum_i w_i l_i(x)^2``."""
        queries = self._queries(X)
        sums = self._smoother().squares(queries, np.ones((len(self.X_), 1)))[:, 0]
        with np.errstate(divide="ignore"):
            return np.asarray(1 / sums, dtype=queries.dtype)

    def summary(self) -> Summary:
        """Bandwidths, R^2, degrees of freedom, AICc and residuals of the fit, which print as a table."""
        smoother, r = self._smoother(), self._residuals()
        value, w = self._value(), self._count
        n, wrong = float(w.sum()), value - r.fit
        trace = float(w @ r.own)
        rss = w @ wrong**2
        centred, fitted = (x - w @ value / n for x in (value, r.fit))
        about, along = w @ centred**2, w @ fitted**2
        with np.errstate(divide="ignore", invalid="ignore"):
            r_squared = 1 - rss / about
            of_fit = (w @ (centred * fitted)) ** 2 / (about * along)
            deviation = np.sqrt(rss / (n - trace)) if trace < n else np.full(rss.shape, np.nan)
        rows = Rows(self.X_, value, w, np.ones(len(w)))
        aicc = np.array(
            [
                corrected_information(replace(rows, value=value[:, [v]]))(r.fit[:, [v]], w * r.own)[0]
                for v in range(value.shape[1])
            ]
        )
        sizes = 1 / smoother.squares(self._memory.key[w > 0], np.ones((len(w), 1)))[:, 0]
        names = getattr(self, "feature_names_in_", range(self.X_.shape[1]))

        def one(x: Floats) -> Any:
            return x if self.y_.ndim > 1 else float(x[0])

        return Summary(
            n,
            smoother.degree,
            tuple(map(float, self.bandwidth_)),
            tuple(map(str, names)),
            one(r_squared),
            one(of_fit),
            trace,
            one(np.where(aicc == REFUSED, np.inf, aicc)),
            one(deviation),
            one(w @ r.left**2 / n),
            (float(sizes.min()), float(np.median(sizes)), float(sizes.max())),
            self._shaped(wrong),
            r.own,
        )

    def significance(self, feature: Any, *, n: int = 199, random_state: Any = None) -> Significance:
        """A bootstrap test of the hypothesis that a feature, by name or position, does not matter.

            T = sum_i w_i |f(x_i) - f_0(x_i)|^2 / sum_i w_i

        f_0 is the fit that does not see the feature, with the other bandwidths. Under the hypothesis,
        ``y*_i = f_0(x_i) + (y_i - f_0,-i(x_i)) v_i`` with v = -1 or 1, and both fits are pooled again at all draws at
        once. Numbers and categories are tested alike. A feature that the bandwidth has smoothed out has p = 1. Several
        outputs count by their variances.

        Raises
        ------
        ValueError : for a feature that is not there, or that a kernel mixes with others by a matrix.

        References
        ----------
        Racine (1997), Journal of Business & Economic Statistics 15; Racine, Hart & Li (2006), Econometric Reviews 25,
        section 3, for drawing under the hypothesis; the statistic is the distance of both fits in place of the size of
        the gradient, so that it is the same for numbers and categories.
        """
        _check_draws(n)
        full, value, w = self._smoother(), self._value(), self._count
        at = self._position(feature)
        null = smoothed_out(full, at)
        random = self._random(random_state)
        centre = w @ value / w.sum()
        variance = w @ (value - centre) ** 2 / w.sum() if value.shape[1] > 1 else np.ones(1)
        scale = w[:, None] / w.sum() / np.where(variance > 0, variance, 1.0)
        X = self._memory.key
        r = Residuals.of(null, value)

        def distance(y: Floats) -> Floats:
            """(B,) of values (n, B * V)"""
            apart = (full.pool(X, y) - null.pool(X, y)).astype(np.float64)
            apart = np.where(np.isfinite(apart), apart, 0.0)
            return np.asarray(np.einsum("nbv,nv->b", apart.reshape(len(y), -1, value.shape[1]) ** 2, scale))

        statistic, draws = float(distance(value)[0]), []
        for size in _portions(n, value.size):
            y = r.fit[:, None, :] + r.left[:, None, :] * signs(w, size, random)[:, :, None]
            draws.append(distance(y.reshape(len(value), -1)))
        found = np.concatenate(draws)
        p = (1 + np.count_nonzero(found >= statistic - 1e-20)) / (1 + n)
        return Significance(feature, statistic, float(p), found)

    def _position(self, feature: Any) -> int:
        names = list(getattr(self, "feature_names_in_", []))
        if feature in names:
            return int(names.index(feature))
        features = self.X_.shape[1]
        if isinstance(feature, int | np.integer) and not isinstance(feature, bool) and 0 <= feature < features:
            return int(feature)
        known: Sequence[Any] = names or range(features)
        raise ValueError(f"`feature` must be among {', '.join(map(str, known))}; got {feature!r}.")

    def _categories(self) -> set[int]:
        """The features that the score looks at as categories."""
        every = list(range(self.X_.shape[1]))
        return set(self.score_.uses(len(every))) - sloped(self.score_, every)

    def _slopes(self, queries: Floats) -> Floats:
        """(Q, D, V): the gradient of the fit; NaN along categories."""
        found = self._smoother().derivative(queries)
        found[:, sorted(self._categories())] = np.nan
        return found

    def _shaped_slopes(self, found: Floats, queries: Floats) -> Floats:
        return found.reshape(*found.shape[:2], *self.y_.shape[1:]).astype(queries.dtype)


def smoothed_out(smoother: LocalPolynomial, feature: int) -> LocalPolynomial:
    """The same fit without a feature: neither its kernel nor its slope."""
    score = without_feature(smoother.score, feature, list(range(smoother.memory.key.shape[1])))
    memory = replace(smoother.memory, kept={})
    left = Constant() if score is None else score
    return replace(smoother, memory=memory, score=left, unseen=smoother.unseen | {feature})


def signs(count: Floats, n: int, random: np.random.RandomState) -> Floats:
    """(rows, n): -1 or 1 for each count of a row, averaged: of c counts the mean has variance 1 / c."""
    found = np.where(random.randint(0, 2, size=(len(count), n)) > 0, 1.0, -1.0)
    return np.asarray(found / np.sqrt(np.where(count > 0, count, 1.0))[:, None])


def _portions(n: int, each: int) -> list[int]:
    """Draws in portions that can be held."""
    size = max(min(n, NUMBERS // max(each, 1)), 1)
    return [min(size, n - start) for start in range(0, n, size)]


def _check_level(level: Any) -> None:
    if not isinstance(level, int | float | np.number) or not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, such as 0.95; got {level!r}.")


def _check_draws(n: Any) -> None:
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"`n` must be a whole number of draws, at least 1; got {n!r}.")
