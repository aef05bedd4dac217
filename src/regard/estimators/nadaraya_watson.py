"""Kernel regression: the training rows nearby answer, by weights that a kernel gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from regard.estimators.bandwidths import (
    as_score,
    canonical_bandwidth,
    leaves,
    own_bandwidth,
    rule_of_thumb,
    upper_ends,
    with_bandwidth,
)
from regard.estimators.columns import MISSING, UNSEEN
from regard.estimators.criteria import CRITERIA
from regard.estimators.inference import Inference
from regard.estimators.inputs import threads_of
from regard.estimators.memory import OUTSIDE, Floats, Memory
from regard.estimators.metric import checked_metric, learn_metric, with_metric
from regard.estimators.neighbours import TYPES, numbers_of_neighbours, with_neighbours
from regard.estimators.parts import Growing, GrowingClassifier
from regard.estimators.plugin import plug_in
from regard.estimators.pooled import PooledClassifier
from regard.estimators.rows import Rows
from regard.estimators.search import Selection, Smoother, search
from regard.scores import Gaussian
from regard.scores.base import Score

THUMB = ("scott", "silverman")
RULES = (*(name for name, c in CRITERIA.items() if c.numbers), *THUMB, "plugin")
CLASS_RULES = (*(name for name, c in CRITERIA.items() if c.classes), *THUMB)
METRICS = ("features", "learned")
CHOICES = {"bandwidth_type": tuple(TYPES), "metric": METRICS, "outside": OUTSIDE, "unseen": UNSEEN, "missing": MISSING}


def check_parameters(estimator: Any, rules: Sequence[str] = RULES) -> None:
    """Raise ValueError for what no data can make right."""
    for name, known in CHOICES.items():
        value = getattr(estimator, name, known[0])  # not every estimator has every choice
        if value not in known:
            raise ValueError(f"`{name}` must be one of {', '.join(known)}; got {value!r}.")
    bandwidth = estimator.bandwidth
    if isinstance(bandwidth, str) and bandwidth in rules:
        return
    if bandwidth is not None and np.asarray(bandwidth).dtype.kind not in "iuf":
        raise ValueError(
            f"`bandwidth` must be a number, one per feature, None, or one of {', '.join(rules)}; got {bandwidth!r}."
        )


def fitted_score(
    estimator: Any,
    given: Rows,
    rows: Rows,
    degree: int = 0,
    smoother: Callable[[Score, Rows], Smoother] | None = None,
) -> Score:
    """The score that the estimator's ``kernel`` means, with the numbers that its ``bandwidth`` means."""
    X, d = given.X, given.X.shape[1]
    kernel, bandwidth, engine = estimator.kernel, estimator.bandwidth, estimator.engine
    names = getattr(estimator, "feature_names_in_", None)
    score = as_score(kernel, d, names, getattr(estimator, "_columns", None), float(rows.count.sum()))
    threads = threads_of(estimator.n_jobs)
    Memory(X[:1], given.value[:1], given.count[:1], engine=engine).pool(score, X[:1])  # its checks come before any work
    estimator.bandwidth_ = own_bandwidth(score, d)
    if bandwidth is None:
        return score
    if not np.isfinite(own_bandwidth(score, d)).any():
        raise ValueError(f"`kernel` has no bandwidth to set; give bandwidth=None to use it as it is. It is {score!r}.")
    side = TYPES[getattr(estimator, "bandwidth_type", "fixed")]
    lengths = np.isinf(upper_ends(score, d))
    if side and isinstance(bandwidth, str) and bandwidth not in CRITERIA:
        raise ValueError(
            f"bandwidth={bandwidth!r} gives lengths; bandwidth_type={estimator.bandwidth_type!r} needs a number of "
            f"neighbours, a share of the rows, or one of {', '.join(CRITERIA)}."
        )
    if np.ndim(bandwidth) == 2:
        if side:
            raise ValueError('`bandwidth` as a matrix needs bandwidth_type="fixed".')
        estimator.metric_ = checked_metric(bandwidth, score, d)
        fitted = with_metric(score, estimator.metric_)
        estimator.bandwidth_ = own_bandwidth(fitted, d)
        return fitted
    # of one output, the report is in its units; of several, each is divided by its variance
    ranges = [max(float(np.ptp(of.value)), 1e-300) for of in (given, rows)]
    variance = (ranges[0] / ranges[1]) ** 2 if rows.value.shape[1] == 1 else 1.0
    learned = getattr(estimator, "metric", "features") == "learned"
    if learned and degree:
        raise ValueError(f'metric="learned" is for local constant fits; this one is of degree {degree}.')
    if learned and (side or not isinstance(bandwidth, str) or bandwidth not in CRITERIA):
        able = ", ".join(name for name, c in CRITERIA.items() if c.leaves_out)
        raise ValueError(
            f'metric="learned" needs bandwidth_type="fixed" and a criterion as `bandwidth`, one of {able}; '
            f"got {bandwidth!r} and {estimator.bandwidth_type!r}."
        )
    if not isinstance(bandwidth, str):
        given_h = np.asarray(bandwidth, dtype=np.float64)
        if given_h.ndim > 1 or given_h.size not in (1, d):
            raise ValueError(f"`bandwidth` must be one number or one per feature; got {given_h.size} for {d} features.")
        found: Floats = given_h * np.ones(d)
        if side:
            found = numbers_of_neighbours(found, rows.count, lengths)
    elif bandwidth in THUMB:
        found = rule_of_thumb(bandwidth, score, rows.X, rows.count)
        estimator.selection_ = Selection.of(bandwidth, found, names)
    elif bandwidth == "plugin":
        found = plugged_in(score, rows)
        estimator.selection_ = Selection.of(bandwidth, found, names)
    else:
        found, estimator.selection_ = search(
            score,
            rows,
            criterion=bandwidth,
            outside=estimator.outside,
            engine=engine,
            threads=threads,
            random=check_random_state(estimator.random_state),
            names=names,
            degree=degree,
            variance=variance,
            side=side,
            smoother=smoother,
        )
    fitted = with_bandwidth(score, found)
    if learned:
        estimator.metric_, estimator.selection_ = learn_metric(
            fitted,
            rows,
            found,
            criterion=bandwidth,
            outside=estimator.outside,
            engine=engine,
            threads=threads,
            names=names,
            variance=variance,
        )
        fitted = with_metric(fitted, estimator.metric_)
    estimator.bandwidth_ = np.where(lengths, found, own_bandwidth(fitted, d)) if side else own_bandwidth(fitted, d)
    if not side:
        return fitted
    return with_neighbours(fitted, rows, found, side)


def plugged_in(score: Score, rows: Rows) -> Floats:
    """(D,): the plug-in bandwidth of the one feature that varies; Scott's where the data say nothing."""
    found = rule_of_thumb("scott", score, rows.X, rows.count)
    lengths = np.flatnonzero(np.isinf(upper_ends(score, rows.X.shape[1])) & (np.ptp(rows.X, axis=0) > 0))
    if lengths.size > 1 or rows.X.shape[1] > 1:
        raise ValueError(
            f'bandwidth="plugin" is for one feature; got {rows.X.shape[1]}. Use "loo" or "aicc" for several.'
        )
    if rows.value.shape[1] > 1:
        raise ValueError(f'bandwidth="plugin" is for one output; got {rows.value.shape[1]}. Use "loo" or "aicc".')
    if not lengths.size:
        return found
    h = plug_in(rows.X[:, 0], rows.value[:, 0], rows.count)
    if np.isfinite(h):
        ((_, leaf, _),) = leaves(score, [0])
        found[0] = h * canonical_bandwidth(leaf) / canonical_bandwidth(Gaussian())  # type: ignore[arg-type]
    return found


class NadarayaWatsonRegressor(Inference, Growing):
    """The mean of the training targets, weighted by a kernel of the distance: kernel regression.

        f(x) = sum_i w_i K((x - x_i) / h) y_i / sum_i w_i K((x - x_i) / h)

    This is attention: the query is x, the keys are the x_i, the values the y_i, the score is log K.

    Parameters
    ----------
    kernel : str, score or dictionary, default "gaussian"
        The name of a radial kernel (``regard.scores.kernels()`` lists them), or a score, such as
        ``rg.RationalQuadratic(alpha=2.0)`` or ``rg.Gaussian(1.0).on([0]) + rg.WangVanRyzin(0.1).on([1])``, or a
        product: ``{"age": "gaussian", "sex": "li_racine"}``, from columns, by name or position, to one of both. A
        column that is not named in a product does not matter. A name alone is the kernel of the columns of numbers;
        beside it unordered categories get ``AitchisonAitken``, ordered ones ``WangVanRyzin``, as in the published fits
        of R's np. In a product these can be "aitchison_aitken" or "li_racine", "wang_van_ryzin" or "ordered_li_racine".
    bandwidth : number, one per feature, matrix, None or str, default "loo"
        In the units of the features; h divides the difference. A matrix (P, features) compares ``W x``. What has to be
        searched lies between half the smallest gap between two values of the feature and 50 times its range (an
        irrelevant feature gets the widest); the numbers of categorical kernels are searched with the lengths.
        ``selection_`` reports.

        - ``"loo"``: one per feature, of least leave-one-out squared error. The criterion of several outputs is the
          mean over them of error over variance.
        - ``"loo_shared"``: the same, one factor of the standard deviations of the features.
        - ``"aicc"``: the corrected Akaike information criterion,
          ``log(RSS / n) + (1 + tr H / n) / (1 - (tr H + 2) / n)``, with the hat matrix H of this estimator.
        - ``"gcv"``: generalised cross-validation, ``(RSS / n) / (1 - tr H / n)^2``.
        - ``"scott"``, ``"silverman"``: ``s n^(-1/(d+4))``, ``s (n (d+2) / 4)^(-1/(d+4))``, times the canonical
          bandwidth of the kernel over that of the Gaussian; s is the standard deviation.
        - ``"plugin"``: one feature; of least asymptotic error of a local linear fit, which is that of the local
          constant fit too where the rows are spread evenly (elsewhere its bias has a term that the rule does not see).
        - None: the numbers that the score has.

        By all rules a constant feature gets 1.
    bandwidth_type : {"fixed", "nearest", "adaptive"}, default "fixed"
        What a bandwidth is: a length, or a number of rows k (below 1 a share of them), so that the length is the
        distance, feature by feature, to the k-th nearest row: of the query ("nearest"), or of each training row, which
        does not count itself ("adaptive"). Criteria choose k. In leave-one-out, training rows keep their lengths.
    metric : {"features", "learned"}, default "features"
        "learned": from the bandwidths of a leave-one-out criterion on, a matrix W that compares ``W x``, of least
        criterion. It has as many numbers as features squared; judge it by rows that were not in the fit.
    categorical_features : "from_dtype", None, list, mask or dictionary, default "from_dtype"
        Which columns are categories. "from_dtype": those of a pandas or polars frame whose dtype says so, ordered if it
        says that (an Enum of polars is not ordered). Names, positions, or a mask: these too, unordered unless
        their dtype is ordered; ``{"job": "unordered", "rank": "ordered"}`` says which. None: none. Ordered numbers
        differ by their values, other ordered levels by their rank, in the order that the dtype declares or else sorted.
    unseen : {"error", "ignore"}, default "error"
        What ``predict`` does with a level that was not in the fit: a ValueError that names it, or no training row is of
        the same level (of ordered levels the distance still counts).
    missing : {"error", "drop"}, default "error"
        "drop": rows with a missing feature or target are left out of the fit, ``X_`` and ``y_``; the prediction of such
        a row is NaN.
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
        (an entry is a number of neighbours where ``bandwidth_type`` says so)
    selection_ : how a rule found them: criterion, value, starts, evaluations, whether it converged, which features are
        at an end of what they may be; not there for given numbers
    metric_ : (P, features of the radial kernel), where there is one
    score_ : the fitted score
    X_, y_, sample_weight_ : the training data, as given, categories as numbers; weights are 1 unless given
    n_features_in_, feature_names_in_ : as in scikit-learn

    Notes
    -----
    ``sample_weight`` counts: weight 2 is the row twice, in the fit, in leave-one-out and in predictions.

    Raises
    ------
    ValueError : in ``fit`` for an unknown kernel, rule or engine, bandwidths that are not positive or not one per
        feature, a rule of thumb for a kernel of infinite variance, missing values; in ``predict`` as ``outside`` and
        ``unseen`` say.

    References
    ----------
    Nadaraya (1964), On estimating regression, Theory of Probability and Its Applications 9, eq. 1;
    Watson (1964), Smooth regression analysis, Sankhya A 26, eq. 2.1; leave-one-out: Hardle & Marron (1985), Optimal
    bandwidth selection in nonparametric regression function estimation, Annals of Statistics 13; AICc: Hurvich,
    Simonoff & Tsai (1998), Journal of the Royal Statistical Society B 60; GCV: Craven & Wahba (1979), Numerische
    Mathematik 31; plug-in: Ruppert, Sheather & Wand (1995), Journal of the American Statistical Association 90; mixed
    data: Racine & Li (2004), Journal of Econometrics 119; learned metric: Weinberger & Tesauro (2007), AISTATS.

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
        bandwidth_type: str = "fixed",
        metric: str = "features",
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
        self.bandwidth_type = bandwidth_type
        self.metric = metric
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
        return super()._given(X, y, sample_weight)

    def _fit(self, given: Rows) -> Self:
        score = fitted_score(self, given, given.merged().standardised())
        return self._remember(given, score, self.outside)

    def derivative(self, X: Any) -> Floats:
        """(n, features) or (n, features, outputs): the gradient of the fit to each row of X, the marginal effects.

            df(x)/dx = sum_i l_i(x) w_i (y_i - f(x)) d log K((x - x_i) / h) / dx

        Exact, and 0 where ``outside`` gives a constant; NaN along categories.
        """
        queries = self._queries(X)
        return self._shaped_slopes(self._slopes(queries), queries)


class NadarayaWatsonClassifier(PooledClassifier, GrowingClassifier):
    """The shares of the classes among the training rows, weighted by a kernel of the distance.

        P(c | x) = sum_i w_i K((x - x_i) / h) [y_i = c] / sum_i w_i K((x - x_i) / h)

    Parameters
    ----------
    class_weight : dictionary, "balanced" or None, default None
        What the rows of a class weigh, beside ``sample_weight``; "balanced" gives all classes the same sum.
    bandwidth : number, one per feature, matrix, None or str, default "loo"
        As in ``NadarayaWatsonRegressor``. Criteria are ``"loo"`` or ``"brier"``, the Brier score of leave-one-out (the
        squared error of the probabilities), ``"loo_shared"``, and ``"log_loss"``, the mean of ``-log P`` of the true
        class, where P is mixed with 1e-6 of even odds. ``"log_loss"`` is the one to take for calibrated probabilities.
    kernel, bandwidth_type, metric, categorical_features, unseen, missing, outside, engine, rtol, n_jobs, random_state :
        As in ``NadarayaWatsonRegressor``. For ``outside="nan"`` the probabilities are NaN, and ``predict`` raises.

    Attributes
    ----------
    classes_ : (classes,), sorted
    bandwidth_, selection_, metric_, score_, X_, y_, n_features_in_, feature_names_in_ :
        As in ``NadarayaWatsonRegressor``.
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
        bandwidth_type: str = "fixed",
        metric: str = "features",
        class_weight: Any = None,
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
        self.class_weight = class_weight
        self.bandwidth_type = bandwidth_type
        self.metric = metric
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

        ``X (n, features)``, ``y (n,)`` of labels, ``sample_weight (n,)``, >= 0: how often a row is there.
        """
        return self._fit(self._given(X, y, sample_weight))

    def _given(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        check_parameters(self, CLASS_RULES)
        return super()._given(X, y, sample_weight)

    def _fit(self, given: Rows) -> Self:
        score = fitted_score(self, given, given.merged())
        return self._remember(given, score, self.outside)
