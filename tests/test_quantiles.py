"""Local quantiles: against linear programs, and what they are by definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from sklearn.utils.estimator_checks import parametrize_with_checks

import regard as rg
from regard.estimators.quantiles import weighted_quantiles


@parametrize_with_checks([rg.LocalQuantileRegressor()])
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def data(n: int = 90, d: int = 2) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, d))
    return X, np.sin(4 * X[:, 0]) + rng.exponential(size=n), rng.integers(0, 3, size=n).astype(float)


def test_quantiles_of_equal_weights_are_those_of_a_list() -> None:
    y = np.sort(np.random.default_rng(0).normal(size=12))
    levels = np.array([0.01, 0.25, 0.3, 0.5, 0.75, 0.99])
    found = weighted_quantiles(y, np.full((1, 12), 0.7), levels)[0]
    np.testing.assert_array_equal(found, np.quantile(y, levels, method="averaged_inverted_cdf"))
    assert np.isnan(weighted_quantiles(y, np.zeros((1, 12)), levels)).all()
    last = weighted_quantiles(y, np.eye(12)[[3, 11]], np.array([0.5]))[:, 0]
    np.testing.assert_array_equal(last, y[[3, 11]])


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_they_are_the_least_check_loss(degree: int, whole: bool) -> None:
    X, y, w = data()
    if whole:  # with ties in plenty
        X, y = np.round(3 * X), np.round(3 * y)
    levels = [0.1, 0.5, 0.9]
    models = [rg.LocalQuantileRegressor(q, bandwidth=[0.2, 0.4], degree=degree).fit(X, y, w) for q in levels]
    Q = X[:6] + 0.05
    K = np.exp(models[0].score_(Q, X)) * w
    each = np.stack([model.predict(Q) for model in models], axis=1)  # one by one: lines may cross
    for q, k, found in zip(Q, K / K.sum(axis=1, keepdims=True), each, strict=True):
        Z = np.concatenate([np.ones((90, 1)), X - q], axis=1)[:, : 1 + 2 * degree]
        for level, f in zip(levels, found, strict=True):
            costs = np.concatenate([np.zeros(Z.shape[1]), k * level, k * (1 - level)])
            bounds = [(None, None)] * Z.shape[1] + [(0, None)] * 180
            fixed = np.concatenate([Z, np.eye(90), -np.eye(90)], axis=1)
            least = linprog(costs, A_eq=fixed, b_eq=y, bounds=bounds).fun
            bounds[0] = (f, f)  # as good as the best, with this value at the query
            here = linprog(costs, A_eq=fixed, b_eq=y, bounds=bounds).fun
            assert here == pytest.approx(least, rel=1e-7, abs=1e-9)


def test_levels_do_not_cross_and_one_level_is_one_column() -> None:
    X, y, w = data()
    for degree in (0, 1):
        levels = np.linspace(0.05, 0.95, 7)
        found = rg.LocalQuantileRegressor(levels, bandwidth=0.1, degree=degree).fit(X, y, w).predict(X)
        assert found.shape == (90, 7)
        assert np.all(np.diff(found, axis=1) >= 0)
        one = rg.LocalQuantileRegressor(0.5, bandwidth=0.1, degree=degree).fit(X, y, w)
        if degree == 0:
            np.testing.assert_array_equal(one.predict(X), found[:, 3])
        assert one.predict(X).shape == (90,)


def test_an_outlier_does_not_move_the_median() -> None:
    X, y, _ = data()
    spoilt = y.copy()
    spoilt[np.argmax(y)] = 1e9
    for degree in (0, 1):
        a, b = (rg.LocalQuantileRegressor(bandwidth=0.2, degree=degree).fit(X, v).predict(X) for v in (y, spoilt))
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_linear_quantiles_meet_a_line_and_its_noise() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(4000, 1))
    y = 1 + 2 * x[:, 0] + rng.normal(size=4000)
    found = rg.LocalQuantileRegressor([0.1, 0.9], bandwidth=0.3, degree=1).fit(x, y).predict([[0.0], [0.5], [1.0]])
    # the deviation of such a quantile is near sqrt(q (1 - q) / (500 phi^2)), 0.08 in the middle and twice that at ends
    np.testing.assert_allclose(found, [[-0.28, 2.28], [0.72, 3.28], [1.72, 4.28]], atol=0.35)


def test_weights_are_copies_and_rows_can_be_left_out() -> None:
    X, y, w = data(40)
    Q = X + 0.01
    for degree in (0, 1):
        one = rg.LocalQuantileRegressor(bandwidth=0.2, degree=degree).fit(X, y, w)
        other = rg.LocalQuantileRegressor(bandwidth=0.2, degree=degree).fit(
            np.repeat(X, w.astype(int), axis=0), np.repeat(y, w.astype(int))
        )
        np.testing.assert_allclose(one.predict(Q), other.predict(Q), rtol=1e-9)
        out = one.leave_one_out()
        for i in np.flatnonzero(w)[:5]:
            less = w - (np.arange(40) == i)
            again = rg.LocalQuantileRegressor(bandwidth=0.2, degree=degree).fit(X, y, less)
            np.testing.assert_allclose(out[i], again.predict(X[i : i + 1])[0], rtol=1e-9)


def test_outside() -> None:
    x, y = np.array([[0.0], [1.0], [1.0], [9.0]]), np.array([1.0, 2.0, 4.0, 8.0])
    far = [[5.1], [-7.0]]

    def fitted(outside: str, degree: int = 0) -> Any:
        return rg.LocalQuantileRegressor(kernel="uniform", bandwidth=0.5, outside=outside, degree=degree).fit(x, y)

    for degree in (0, 1):
        np.testing.assert_array_equal(fitted("nearest", degree).predict(far), [8, 1])
        np.testing.assert_array_equal(fitted("mean", degree).predict(far), [3, 3])  # the median of all
        assert np.isnan(fitted("nan", degree).predict(far)).all()
        with pytest.raises(ValueError, match="no training row is within the support of the kernel for 2 of 2 rows"):
            fitted("error", degree).predict(far)
    np.testing.assert_array_equal(fitted("nearest").leave_one_out(), [3, 4, 2, 3])
    twice = rg.LocalQuantileRegressor(kernel="uniform", bandwidth=0.5).fit(x[[0, 1, 3]], y[[0, 1, 3]], [1, 2, 1])
    np.testing.assert_array_equal(twice.leave_one_out(), [2, 2, 2])
    mean = rg.LocalQuantileRegressor(kernel="uniform", bandwidth=0.5, outside="mean").fit(
        x[[0, 1, 3]], y[:3], [1, 3, 1]
    )
    np.testing.assert_array_equal(mean.leave_one_out(), [2, 2, 2])


def test_the_bandwidth_is_that_of_the_mean_times_a_factor() -> None:
    X, y, _ = data(60, 1)
    mean = rg.NadarayaWatsonRegressor().fit(X, y).bandwidth_
    median = rg.LocalQuantileRegressor().fit(X, y).bandwidth_
    np.testing.assert_allclose(median / mean, (np.pi / 2) ** 0.2, rtol=1e-9)
    assert rg.LocalQuantileRegressor(0.9).fit(X, y).bandwidth_[0] > median[0]
    np.testing.assert_array_equal(rg.LocalQuantileRegressor(bandwidth=0.3).fit(X, y).bandwidth_, [0.3])


def test_the_score_is_the_share_of_the_loss() -> None:
    X, y, _ = data()
    assert rg.LocalQuantileRegressor(bandwidth=1e-6).fit(X, y).score(X, y) == 1
    assert rg.LocalQuantileRegressor([0.2, 0.7], bandwidth=1e6).fit(X, y).score(X, y) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quantile": 1.0}, "`quantile` must be a number between 0 and 1, or several; got 1.0"),
        ({"quantile": [0.5, -0.1]}, "`quantile` must be a number between 0 and 1, or several; got"),
        ({"quantile": "median"}, "`quantile` must be a number between 0 and 1, or several; got 'median'"),
        ({"quantile": []}, "`quantile` must be a number between 0 and 1, or several"),
        ({"degree": 2}, "`degree` must be one of 0, 1; got 2"),
    ],
)
def test_mistakes(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rg.LocalQuantileRegressor(**options).fit([[1.0], [2.0]], [1.0, 2.0])
