"""Local polynomial regression: near each query, a polynomial of least weighted squares answers."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from regard.estimators.inference import Inference
from regard.estimators.inputs import threads_of
from regard.estimators.memory import Floats, Integers
from regard.estimators.nadaraya_watson import check_parameters, fitted_score
from regard.estimators.parts import Growing
from regard.estimators.rows import Rows
from regard.estimators.smoother import LocalPolynomial
from regard.scores.base import Score

DEGREES = (0, 1, 2, 3)
OF = ("polynomial", "fit")


class LocalPolynomialRegressor(Inference, Growing):
    """The value of the polynomial that fits the training targets best around each query, weighted by a kernel.

        f(x) = b_0,  b = argmin sum_i w_i K((x - x_i) / h) |y_i - sum_a b_a (x_i - x)^a|^2

    over all monomials of the features up to ``degree``. Degree 0 is ``NadarayaWatsonRegressor``. Degree 1, local
    linear, has no bias from the slope of the truth, not at the edges of the data either, where that of degree 0 is of
    the order of h: it is the one to take where edges matter.

    Parameters
    ----------
    kernel, bandwidth, bandwidth_type, categorical_features, unseen, missing, outside, engine, rtol, n_jobs :
        As in ``NadarayaWatsonRegressor``.

    Notes
    -----
    A window may hold too few distinct points for its polynomial. Monomials are taken in graded order, and one that
    those before it explain in the window but for a part of 1e-10 is left out there: of k distinct values of one feature
    the fit keeps degree k - 1. Where no training row has any weight, ``outside`` answers.

    ``sample_weight`` counts: weight 2 is the row twice.

    In one dimension, kernels whose squares are kernels too (Gaussian, Epanechnikov, uniform) cost time linear in rows
    and queries where these are very many, within ``rtol``.

    Raises
    ------
    ValueError : as ``NadarayaWatsonRegressor``; for another degree.

    References
    ----------
    Stone (1977), Annals of Statistics 5; Cleveland (1979), Journal of the American Statistical Association 74; Fan
    (1992), Design-adaptive nonparametric regression, same journal 87; Ruppert & Wand (1994), Annals of Statistics 22,
    eq. 2.1; Fan & Gijbels (1996), Local Polynomial Modelling, eqs. 3.1 to 3.4.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.linspace(0.0, 1.0, 30)[:, None]
    >>> model = rg.LocalPolynomialRegressor(bandwidth=0.2).fit(x, 3 * x[:, 0])
    >>> model.predict([[0.5], [1.0]]).round(12)
    array([1.5, 3. ])
    >>> model.derivative([[0.0]]).round(12)
    array([[3.]])
    >>> rg.NadarayaWatsonRegressor(bandwidth=0.2).fit(x, 3 * x[:, 0]).predict([[0.0]]).round(2)
    array([0.45])
    """

    def __init__(
        self,
        kernel: Any = "gaussian",
        bandwidth: Any = "loo",
        *,
        degree: int = 1,
        bandwidth_type: str = "fixed",
        categorical_features: Any = "from_dtype",
        unseen: str = "error",
        missing: str = "error",
        outside: str = "nearest",
        engine: str = "auto",
        rtol: float = 1e-6,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.degree = degree
        self.bandwidth_type = bandwidth_type
        self.categorical_features = categorical_features
        self.unseen = unseen
        self.missing = missing
        self.outside = outside
        self.engine = engine
        self.rtol = rtol
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """The estimator with a bandwidth and the training rows.

        ``X (n, features)``, ``y (n,)`` or ``(n, outputs)``, ``sample_weight (n,)``, >= 0: how often a row is there.
        """
        return self._fit(self._given(X, y, sample_weight))

    def _given(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        check_parameters(self)
        if isinstance(self.degree, bool) or not isinstance(self.degree, int | np.integer) or self.degree not in DEGREES:
            raise ValueError(f"`degree` must be one of {', '.join(map(str, DEGREES))}; got {self.degree!r}.")
        return super()._given(X, y, sample_weight)

    def _fit(self, given: Rows) -> Self:
        outside = "nan" if self.outside == "error" else self.outside

        def smoother(score: Score, rows: Rows) -> LocalPolynomial:
            memory = rows.seeing_all(outside, self.engine, threads_of(self.n_jobs))
            return LocalPolynomial(memory, score, rows.count, int(self.degree))

        score = fitted_score(self, given, given.merged().standardised(), int(self.degree), smoother)
        return self._remember(given, score, self.outside)

    def leave_one_out(self) -> Floats:
        """Like ``predict`` of the training rows: what each gets from all the others, without another fit."""
        smoother = self._smoother()
        return self._shaped(smoother.leave_one_out().astype(self.X_.dtype))

    def attention(self, X: Any, n: int = 10) -> tuple[Floats, Integers]:
        """Which training rows weigh most in the window of each prediction, and how much.

        These are the weights of the kernel, which the polynomial is fitted by; they sum to one. Returns weights and
        indices as ``NadarayaWatsonRegressor.attention`` does.
        """
        return super().attention(X, n)

    def derivative(self, X: Any, order: int = 1, *, of: str = "polynomial") -> Floats:
        """(n, features) or (n, features, outputs): derivatives at each row of X, for order 1 the marginal effects.

        - ``of="polynomial"``: those of the local polynomial, ``order! b_order`` of each feature alone: they estimate
          the derivatives of the truth (best with degree - order odd).
        - ``of="fit"``: the exact gradient of what ``predict`` returns, in which the window moves, too; order 1.

        They are 0 where ``outside`` gives a constant, and NaN along categories. At degree 0 only the gradient of the
        fit is there, and both are it.

        Raises
        ------
        ValueError : for an order below 1 or above the degree.

        References
        ----------
        Fan & Gijbels (1996), eq. 3.3.
        """
        if of not in OF:
            raise ValueError(f"`of` must be one of {', '.join(OF)}; got {of!r}.")
        most = max(int(self.degree), 1) if of == "polynomial" else 1
        if isinstance(order, bool) or not isinstance(order, int | np.integer) or not 1 <= order <= most:
            raise ValueError(f'`order` must be from 1 to {most} for degree {self.degree} and of="{of}"; got {order!r}.')
        queries = self._queries(X)
        if of == "fit" or not self.degree:
            return self._shaped_slopes(self._slopes(queries), queries)
        smoother = self._smoother()
        moments, features = smoother.moments, queries.shape[1]
        found = smoother.polynomials(queries, self._value())
        out = np.zeros((len(queries), features, found.shape[2]))
        out[:, sorted(self._categories())] = np.nan
        for n, column in enumerate(moments.features):
            at = int(np.flatnonzero(moments.bases[0].exponents[:, n] == order)[0])
            out[:, column] = found[:, at] * math.factorial(int(order)) / moments.unit[n] ** int(order)
        return self._shaped_slopes(out, queries)
