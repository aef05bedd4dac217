"""Attention over the training rows, with projections that are learned from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from regard.estimators.criteria import Loss, log_loss, squared_error
from regard.estimators.inputs import threads_of
from regard.estimators.memory import Floats
from regard.estimators.pooled import PooledClassifier, PooledRegressor, Standard
from regard.estimators.rows import Rows
from regard.scores import Additive, Bilinear, Gaussian
from regard.scores.base import Score

Weights = dict[str, Floats]


@dataclass(frozen=True)
class Learned:
    """A score with projections that can be learned.

    ``start(random, features, hidden, rows)`` draws the weights, ``score(weights)`` makes the score of them,
    ``pull_back(weights, grads)`` makes gradients of the weights from those of the score's own parameters.
    ``affine``: query and key carry a 1 as their last feature.
    """

    start: Callable[[np.random.RandomState, int, int, int], Weights]
    score: Callable[[Weights], Score]
    pull_back: Callable[[Weights, Weights], Weights] = lambda weights, grads: grads
    affine: bool = True


def _uniform(random: np.random.RandomState, *shape: int) -> Floats:
    """Glorot & Bengio (2010), eq. 16."""
    end = math.sqrt(6 / sum(shape))
    return np.asarray(random.uniform(-end, end, shape))


def _orthonormal(random: np.random.RandomState, hidden: int, features: int) -> Floats:
    """(H, D) with orthonormal rows, or columns where H > D."""
    q, r = np.linalg.qr(random.normal(size=(max(hidden, features), min(hidden, features))))
    q = q * np.sign(np.diagonal(r))
    return np.asarray(q if hidden >= features else q.T)


def _dot_product_start(random: np.random.RandomState, features: int, hidden: int, rows: int) -> Weights:
    # equal projections at first: a row attends to rows that are like it
    w = _orthonormal(random, hidden, features) * (hidden / features) ** 0.25
    return {"query_weight": w, "key_weight": w.copy()}


def _dot_product_score(w: Weights) -> Score:
    return Bilinear(w["query_weight"].T @ w["key_weight"] / math.sqrt(len(w["key_weight"])))


def _dot_product_pull_back(w: Weights, grads: Weights) -> Weights:
    g = grads["weight"] / math.sqrt(len(w["key_weight"]))
    return {"query_weight": w["key_weight"] @ g.T, "key_weight": w["query_weight"] @ g}


SCORES: dict[str, Learned] = {
    "additive": Learned(
        lambda random, d, hidden, n: {
            "query_weight": _uniform(random, hidden, d),
            "key_weight": _uniform(random, hidden, d),
            "value_weight": _uniform(random, 1, hidden)[0],
        },
        lambda w: Additive(**w),
    ),
    "dot_product": Learned(_dot_product_start, _dot_product_score, _dot_product_pull_back),
    "bilinear": Learned(lambda random, d, hidden, n: {"weight": np.eye(d) / math.sqrt(d)}, lambda w: Bilinear(**w)),
    "gaussian": Learned(
        lambda random, d, hidden, n: {"weight": _orthonormal(random, min(hidden, d), d) * n ** (1 / (d + 4))},
        lambda w: Gaussian(1.0).through(w["weight"]),
        affine=False,
    ),
}


def learn(estimator: Any, rows: Rows, standard: Standard, loss: Loss) -> Score:
    """The score with the weights of least leave-one-out loss; writes ``n_iter_``, ``loss_curve_`` and ``loss_``."""
    learned: Learned = SCORES[estimator.score_function]
    z = standard(rows.X)
    random = check_random_state(estimator.random_state)
    first = learned.start(random, z.shape[1], estimator.hidden_dim, len(z))
    memory = Rows(z, rows.value, rows.count, rows.factor).leaving_one_out(
        "nearest", estimator.engine, threads_of(estimator.n_jobs)
    )
    penalty = estimator.alpha / float(rows.weight.sum())
    none = np.zeros(len(z))  # of a row in its own prediction
    latest = 0.0
    curve: list[float] = []

    def weights(flat: Floats) -> Weights:
        ends = np.cumsum([w.size for w in first.values()])[:-1]
        parts = np.split(flat, ends)
        return {name: part.reshape(w.shape) for (name, w), part in zip(first.items(), parts, strict=True)}

    def flat(of: Weights) -> Floats:
        return np.concatenate([of[name].ravel() for name in first])

    def objective(t: Floats) -> tuple[float, Floats]:
        nonlocal latest
        w = weights(t)
        value, grads = memory.gradients(learned.score(w), z, lambda pooled: loss(pooled, none)[:2])
        latest = value + penalty / 2 * float(t @ t)
        return latest, flat(learned.pull_back(w, grads)) + penalty * t

    start = flat(first)
    if len(z) < 2:  # a lone row predicts every other one, whatever the weights
        estimator.n_iter_, estimator.loss_curve_, estimator.loss_ = 0, curve, 0.0
        return learned.score(first)
    options = {"maxiter": estimator.max_iter, "ftol": estimator.tol, "gtol": 1e-8}
    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", options=options, callback=lambda _: curve.append(latest)
    )
    if found.nit >= estimator.max_iter:
        warnings.warn(
            f"stopped after max_iter={estimator.max_iter} steps, before the loss fell by less than tol in one step: "
            "raise `max_iter`, or `tol`.",
            ConvergenceWarning,
            stacklevel=4,
        )
    estimator.n_iter_, estimator.loss_curve_, estimator.loss_ = int(found.nit), curve, float(found.fun)
    return learned.score(weights(found.x))


def check_parameters(estimator: Any) -> None:
    """Raise ValueError for what no data can make right."""
    if estimator.score_function not in SCORES:
        raise ValueError(f"`score_function` must be one of {', '.join(SCORES)}; got {estimator.score_function!r}.")
    for name, least in (("hidden_dim", 1), ("max_iter", 1)):
        value = getattr(estimator, name)
        if not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"`{name}` must be a whole number of at least {least}; got {value!r}.")
    for name in ("alpha", "tol"):
        value = getattr(estimator, name)
        if not value >= 0:
            raise ValueError(f"`{name}` must be a number of at least 0; got {value!r}.")


class AttentionRegressor(PooledRegressor):
    """The mean of the training targets, weighted by attention whose projections are learned.

        f(x) = sum_i softmax_i(a(z, z_i)) y_i,  z = (x - mean_) / scale_

    with one of the scores

        additive       a(q, k) = v . tanh(W_q q + W_k k)
        dot_product    a(q, k) = (W_q q) . (W_k k) / sqrt(hidden_dim)
        bilinear       a(q, k) = q^T W k
        gaussian       a(q, k) = -|W (q - k)|^2 / 2

    Query and key of the first three carry a 1 as their last feature, so that their projections have a bias. The weights
    minimise, by L-BFGS over all rows at once, the leave-one-out error of the training rows plus a penalty,

        mean_i |y_i - f_{-i}(x_i)|^2 / variance(y) + alpha / (2 n) |weights|^2

    where no row sees itself: it would only learn to copy. Many weights can fit the leave-one-out errors of few rows, so
    that these are then too small to be believed: judge by rows that were not in the fit, and choose alpha by them.

    Parameters
    ----------
    score_function : {"additive", "dot_product", "bilinear", "gaussian"}, default "additive"
        (Not called ``score``, which is the method of every scikit-learn estimator that rates its predictions.)
    hidden_dim : int >= 1, default 16
        Rows of the projections; "bilinear" has none, and "gaussian" no more than there are features.
    alpha : float >= 0, default 1
        Of the penalty; n is the sum of the weights of the rows.
    max_iter : int >= 1, default 200
        Steps of L-BFGS.
    tol : float >= 0, default 1e-5
        The fit ends when a step lowers the loss by less than this part of it.
    engine : str, default "auto"
        That computes.
    n_jobs : int or None, default None
        How many threads an engine may use that runs its own ("fused"), as in ``NadarayaWatsonRegressor``.
    random_state : int, RandomState or None, default None
        Of the first weights.

    Attributes
    ----------
    score_ : the fitted score; it compares standardised rows
    mean_, scale_ : (features,), by which rows are standardised
    n_iter_, loss_, loss_curve_ : steps taken, the loss that was reached, and after each step
    X_, y_, sample_weight_ : the training data, as given; weights are 1 unless given
    n_features_in_, feature_names_in_ : as in scikit-learn

    Notes
    -----
    ``sample_weight`` counts: weight 2 is the row twice, in the fit, in leave-one-out and in predictions.

    Raises
    ------
    ValueError : in ``fit`` for an unknown score, or a number out of its range.

    References
    ----------
    Bahdanau, Cho & Bengio (2015), A.1.2; Vaswani et al. (2017), eq. 1; Luong, Pham & Manning (2015), eq. 8; the learned
    Gaussian metric by leave-one-out: Weinberger & Tesauro (2007), Metric learning for kernel regression, section 3.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> X = np.random.default_rng(0).normal(size=(80, 3))
    >>> y = np.sin(2 * X[:, 0])
    >>> model = rg.AttentionRegressor("gaussian", random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> weights, rows = model.attention(X[:1], n=3)
    """

    def __init__(
        self,
        score_function: str = "additive",
        *,
        hidden_dim: int = 16,
        alpha: float = 1.0,
        max_iter: int = 200,
        tol: float = 1e-5,
        engine: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.score_function = score_function
        self.hidden_dim = hidden_dim
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.engine = engine
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """The estimator with its weights and the training rows.

        ``X (n, features)``, ``y (n,)`` or ``(n, outputs)``, ``sample_weight (n,)``, >= 0: how often a row is there.
        """
        check_parameters(self)
        given = self._given(X, y, sample_weight)
        rows = given.merged().standardised()
        _learn(self, given, rows, squared_error(rows))
        return self


class AttentionClassifier(PooledClassifier):
    """The shares of the classes among the training rows, weighted by attention whose projections are learned.

        P(c | x) = sum_i softmax_i(a(z, z_i)) [y_i = c],  z = (x - mean_) / scale_

    The scores are those of ``AttentionRegressor``; the weights minimise the leave-one-out log loss plus a penalty,

        mean_i -log P_{-i}(y_i | x_i) + alpha / (2 n) |weights|^2

    Parameters
    ----------
    class_weight : dictionary, "balanced" or None, default None
        What the rows of a class weigh, beside ``sample_weight``; "balanced" gives all classes the same sum.
    score_function, hidden_dim, alpha, max_iter, tol, engine, n_jobs, random_state :
        As in ``AttentionRegressor``.

    Attributes
    ----------
    classes_ : (classes,), sorted
    score_, mean_, scale_, n_iter_, loss_, loss_curve_, X_, y_, n_features_in_, feature_names_in_ :
        As in ``AttentionRegressor``.
    sample_weight_ : the weights of the training rows, those of their classes included

    Raises
    ------
    ValueError : as in ``AttentionRegressor``, and for targets that are not classes.

    References
    ----------
    Goldberger, Roweis, Hinton & Salakhutdinov (2005), Neighbourhood components analysis, eqs. 1 and 2, is the score
    "gaussian", with the logarithm of its probabilities as the loss.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> X = np.random.default_rng(0).normal(size=(80, 3))
    >>> y = np.where(X[:, 0] > 0, "right", "left")
    >>> model = rg.AttentionClassifier("dot_product", random_state=0).fit(X, y)
    >>> model.predict([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    array(['right', 'left'], dtype='<U5')
    """

    def __init__(
        self,
        score_function: str = "additive",
        *,
        hidden_dim: int = 16,
        alpha: float = 1.0,
        max_iter: int = 200,
        tol: float = 1e-5,
        class_weight: Any = None,
        engine: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.score_function = score_function
        self.hidden_dim = hidden_dim
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.engine = engine
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """The estimator with its weights and the training rows.

        ``X (n, features)``, ``y (n,)`` of labels, ``sample_weight (n,)``, >= 0: how often a row is there.
        """
        check_parameters(self)
        given = self._given(X, y, sample_weight)
        rows = given.merged()
        _learn(self, given, rows, log_loss(rows))
        return self


def _learn(estimator: Any, given: Rows, rows: Rows, loss: Loss) -> None:
    """Learn from the merged rows; remember the rows as they were given."""
    standard = Standard.of(rows, constant=SCORES[estimator.score_function].affine)
    estimator.mean_, estimator.scale_ = standard.mean, standard.scale
    estimator._remember(given, learn(estimator, rows, standard, loss), standard=standard)
