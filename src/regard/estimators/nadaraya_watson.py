"""Kernel regression: the training rows nearby answer, by weights that a kernel gives."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from regard.estimators.bandwidths import as_score, own_bandwidth, rule_of_thumb, with_bandwidth
from regard.estimators.inputs import threads_of
from regard.estimators.memory import OUTSIDE, Floats, Memory
from regard.estimators.pooled import PooledClassifier, PooledRegressor
from regard.estimators.rows import Rows
from regard.estimators.search import search
from regard.scores.base import Score

RULES = ("loo", "loo_shared", "scott", "silverman")


def check_parameters(outside: str, bandwidth: Any) -> None:
    """Raise ValueError for what no data can make right."""
    if outside not in OUTSIDE:
        raise ValueError(f"`outside` must be one of {', '.join(OUTSIDE)}; got {outside!r}.")
    if isinstance(bandwidth, str) and bandwidth in RULES:
        return
    if bandwidth is not None and np.asarray(bandwidth).dtype.kind not in "iuf":
        raise ValueError(
            f"`bandwidth` must be a number, one per feature, None, or one of {', '.join(RULES)}; got {bandwidth!r}."
        )


def fitted_score(estimator: Any, given: Rows, rows: Rows) -> Score:
    """The score that the estimator's ``kernel`` means, with the numbers that its ``bandwidth`` means."""
    X, d = given.X, given.X.shape[1]
    kernel, bandwidth, engine = estimator.kernel, estimator.bandwidth, estimator.engine
    score = as_score(kernel, d, getattr(estimator, "feature_names_in_", None))
    threads = threads_of(estimator.n_jobs)
    Memory(X[:1], given.value[:1], given.count[:1], engine=engine).pool(score, X[:1])  # its checks come before any work
    if bandwidth is None:
        return score
    if not np.isfinite(own_bandwidth(score, d)).any():
        raise ValueError(f"`kernel` has no bandwidth to set; give bandwidth=None to use it as it is. It is {score!r}.")
    if not isinstance(bandwidth, str):
        given_h = np.asarray(bandwidth, dtype=np.float64)
        if given_h.ndim > 1 or given_h.size not in (1, d):
            raise ValueError(f"`bandwidth` must be one number or one per feature; got {given_h.size} for {d} features.")
        found: Floats = given_h * np.ones(d)
    elif bandwidth in ("scott", "silverman"):
        found = rule_of_thumb(bandwidth, score, rows.X, rows.count)
    else:
        random = check_random_state(estimator.random_state)
        how = {"shared": bandwidth == "loo_shared", "outside": estimator.outside, "engine": engine, "threads": threads}
        found = search(score, rows, random=random, **how)
    return with_bandwidth(score, found)


class NadarayaWatsonRegressor(PooledRegressor):
    """The mean of the training targets, weighted by a kernel of the distance: kernel regression.

        f(x) = sum_i w_i K((x - x_i) / h) y_i / sum_i w_i K((x - x_i) / h)

    This is attention: the query is x, the keys are the x_i, the values the y_i, the score is log K.

    Parameters
    ----------
    kernel : str, score or dictionary, default "gaussian"
        The name of a radial kernel (``regard.scores.kernels()`` lists them), or a score, such as
        ``rg.RationalQuadratic(alpha=2.0)`` or ``rg.Gaussian(1.0).on([0]) + rg.WangVanRyzin(0.1).on([1])``, or a
        product: ``{"age": "gaussian", "sex": rg.AitchisonAitken(0.2, levels=2)}``, from columns, by name or position,
        to one of both. A column that is not named does not matter.
    bandwidth : number, one per feature, None or str, default "loo"
        In the units of the features; h divides the difference.

        - ``"loo"``: one per feature, of least leave-one-out squared error, between half the smallest gap between two
          values of the feature and 50 times its range (an irrelevant feature gets the widest). The numbers of
          categorical kernels are searched with them. The criterion of several outputs is the mean over them of
          error over variance.
        - ``"loo_shared"``: the same, one factor of the standard deviations of the features.
        - ``"scott"``, ``"silverman"``: ``s n^(-1/(d+4))``, ``s (n (d+2) / 4)^(-1/(d+4))``, times the canonical
          bandwidth of the kernel over that of the Gaussian; s is the standard deviation.
        - None: the numbers that the score has.

        By all rules a constant feature gets 1.
    outside : {"nearest", "nan", "mean", "error"}, default "nearest"
        What a row gets that has no training row within the support of the kernel: the value of the nearest by the
        score's own distance (ties averaged), NaN, the mean, or a ValueError. Leave-one-out asks the same; with "nan"
        and "error" it refuses bandwidths that leave a row alone.
    engine : str, default "auto"
        That computes.
    rtol : float, default 1e-6
        The relative error that ``engine="auto"`` may trade for time where rows are very many.
    n_jobs : int or None, default None
        How many threads an engine may use that runs its own ("fused"), as joblib has it: -1 is one per CPU that the
        process may use, -2 one less. None: what ``joblib.parallel_config`` says, else the default of
        ``attention_pool``. No result depends on it.
    random_state : int, RandomState or None, default None
        Of the starts of a search in several variables.

    Attributes
    ----------
    bandwidth_ : (features,), the bandwidths in use; inf for a feature that does not matter, NaN for one that the score
        looks at without a bandwidth
    score_ : the fitted score
    X_, y_, sample_weight_ : the training data, as given; weights are 1 unless given
    n_features_in_, feature_names_in_ : as in scikit-learn

    Notes
    -----
    ``sample_weight`` counts: weight 2 is the row twice, in the fit, in leave-one-out and in predictions.

    Raises
    ------
    ValueError : in ``fit`` for an unknown kernel, rule or engine, bandwidths that are not positive or not one per
        feature, a rule of thumb for a kernel of infinite variance; in ``predict`` as ``outside`` says.

    References
    ----------
    Nadaraya (1964), On estimating regression, Theory of Probability and Its Applications 9, eq. 1;
    Watson (1964), Smooth regression analysis, Sankhya A 26, eq. 2.1; leave-one-out: Hardle & Marron (1985), Optimal
    bandwidth selection in nonparametric regression function estimation, Annals of Statistics 13.

    Examples
    --------
    >>> import regard as rg
    >>> from regard.datasets import motorcycle
    >>> times, accel = motorcycle()
    >>> model = rg.NadarayaWatsonRegressor().fit(times[:, None], accel)
    >>> model.bandwidth_.round(6)
    array([0.913829])
    >>> model.predict([[20.0]]).round(3)
    array([-107.311])
    >>> weights, rows = model.attention([[20.0]], n=3)
    """

    def __init__(
        self,
        kernel: Any = "gaussian",
        bandwidth: Any = "loo",
        *,
        outside: str = "nearest",
        engine: str = "auto",
        rtol: float = 1e-6,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.outside = outside
        self.engine = engine
        self.rtol = rtol
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """The estimator with a bandwidth and the training rows.

        ``X (n, features)``, ``y (n,)`` or ``(n, outputs)``, ``sample_weight (n,)``, >= 0: how often a row is there.
        """
        check_parameters(self.outside, self.bandwidth)
        given = self._given(X, y, sample_weight)
        score = fitted_score(self, given, given.merged().standardised())
        self.bandwidth_ = own_bandwidth(score, given.X.shape[1])
        return self._remember(given, score, self.outside)


class NadarayaWatsonClassifier(PooledClassifier):
    """The shares of the classes among the training rows, weighted by a kernel of the distance.

        P(c | x) = sum_i w_i K((x - x_i) / h) [y_i = c] / sum_i w_i K((x - x_i) / h)

    Parameters
    ----------
    class_weight : dictionary, "balanced" or None, default None
        What the rows of a class weigh, beside ``sample_weight``; "balanced" gives all classes the same sum.
    kernel, bandwidth, outside, engine, rtol, n_jobs, random_state :
        As in ``NadarayaWatsonRegressor``. The criterion of leave-one-out is the Brier score, the squared error of the
        probabilities. For ``outside="nan"`` the probabilities are NaN, and ``predict`` raises.

    Attributes
    ----------
    classes_ : (classes,), sorted
    bandwidth_, score_, X_, y_, n_features_in_, feature_names_in_ : as in ``NadarayaWatsonRegressor``
    sample_weight_ : the weights of the training rows, those of their classes included

    Raises
    ------
    ValueError : as in ``NadarayaWatsonRegressor``, and for targets that are not classes.

    References
    ----------
    Brier (1950), Verification of forecasts expressed in terms of probability, Monthly Weather Review 78, eq. 2.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> X, y = np.array([[0.0], [1.0], [2.0], [5.0]]), ["low", "low", "high", "high"]
    >>> model = rg.NadarayaWatsonClassifier(bandwidth=1.0).fit(X, y)
    >>> model.classes_, model.predict([[1.4]])
    (array(['high', 'low'], dtype='<U4'), array(['low'], dtype='<U4'))
    >>> model.predict_proba([[1.4]]).round(3)
    array([[0.392, 0.608]])
    """

    def __init__(
        self,
        kernel: Any = "gaussian",
        bandwidth: Any = "loo",
        *,
        class_weight: Any = None,
        outside: str = "nearest",
        engine: str = "auto",
        rtol: float = 1e-6,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.class_weight = class_weight
        self.outside = outside
        self.engine = engine
        self.rtol = rtol
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """The estimator with a bandwidth and the training rows.

        ``X (n, features)``, ``y (n,)`` of labels, ``sample_weight (n,)``, >= 0: how often a row is there.
        """
        check_parameters(self.outside, self.bandwidth)
        given = self._given(X, y, sample_weight)
        score = fitted_score(self, given, given.merged())
        self.bandwidth_ = own_bandwidth(score, given.X.shape[1])
        return self._remember(given, score, self.outside)
