"""How sure fits are: formulas by hand, and coverage by simulation within binomial bounds."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

import regard as rg
from regard.estimators.inference import without_feature

NW, LP = rg.NadarayaWatsonRegressor, rg.LocalPolynomialRegressor
both = pytest.mark.parametrize("kind", [NW, LP], ids=["nadaraya_watson", "local_linear"])


def data(n: int = 80, d: int = 1, seed: int = 0, spread: float = 0.3) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    return X, np.sin(5 * X[:, 0]) + spread * (0.5 + X[:, 0]) * rng.normal(size=n)


def hat(model: Any, Q: Any) -> Any:
    """(Q, n): the share of each row, by fits of unit vectors."""
    units = type(model)(**model.get_params()).set_params(bandwidth=model.bandwidth_)
    return units.fit(model.X_, np.eye(len(model.X_)), sample_weight=model.sample_weight_).predict(Q)


def within(hits: int, n: int, p: float) -> bool:
    """Whether so many of n are likely if each has the probability p: a false alarm in ten thousand."""
    low, high = binom.interval(0.9999, n, p)
    return bool(low <= hits <= high)


# ---- by hand


@both
def test_standard_errors_are_those_of_the_formula(kind: Any) -> None:
    X, y = data()
    Q = np.linspace(0, 1, 7)[:, None]
    model = kind(bandwidth=0.1).fit(X, y)
    L, H = hat(model, Q), hat(model, X)
    left = (y - H @ y) / (1 - np.diag(H))
    fit, deviation = model.predict(Q, return_std=True)
    np.testing.assert_allclose(fit, L @ y, rtol=1e-10)
    np.testing.assert_allclose(deviation, np.sqrt(L**2 @ left**2), rtol=1e-9)
    np.testing.assert_array_equal(model.standard_error(Q), deviation)
    np.testing.assert_allclose(model.effective_sample_size(Q), 1 / np.sum(L**2, axis=1), rtol=1e-9)
    low, high = model.confidence_band(Q, 0.9)
    np.testing.assert_allclose((high - low) / 2, norm.ppf(0.95) * deviation, rtol=1e-9)
    np.testing.assert_allclose((high + low) / 2, fit, rtol=1e-9)


@both
def test_summaries_are_those_of_the_hat_matrix(kind: Any) -> None:
    X, y = data()
    model = kind(bandwidth=0.1).fit(X, y + 10)
    H = hat(model, X)
    s, n, rss = model.summary(), 80, np.sum((y - H @ y) ** 2)
    assert s.trace == pytest.approx(np.trace(H), rel=1e-10)
    np.testing.assert_allclose(s.own, np.diag(H), rtol=1e-9)
    np.testing.assert_allclose(s.residuals, y - H @ y, atol=1e-11)
    assert s.r_squared == pytest.approx(model.score(X, y + 10), rel=1e-10)
    assert s.r_squared_of_fit == pytest.approx(np.corrcoef(y, H @ y)[0, 1] ** 2, rel=0.02)  # the means differ a little
    assert s.aicc == pytest.approx(np.log(rss / n) + (1 + s.trace / n) / (1 - (s.trace + 2) / n), rel=1e-10)
    assert s.residual_deviation == pytest.approx(np.sqrt(rss / (n - s.trace)), rel=1e-10)
    assert s.left_out == pytest.approx(np.mean((y + 10 - model.leave_one_out()) ** 2), rel=1e-9)
    told = repr(s)
    assert "fit of 80 rows" in told
    assert f"trace              {s.trace:.6g} degrees of freedom" in told
    many = kind(bandwidth=0.1).fit(X, np.stack([y, -y], axis=1)).summary()
    assert many.r_squared.shape == many.aicc.shape == (2,)
    assert repr(many).count(",") == 5


@both
def test_wild_draws_vary_as_standard_errors_say(kind: Any) -> None:
    X, y = data()
    Q = np.linspace(0.1, 0.9, 5)[:, None]
    model = kind(bandwidth=0.15).fit(X, y)
    _, deviation = model.predict(Q, return_std=True)
    draws = model.bootstrap(Q, n=2000, random_state=0)
    assert draws.shape == (2000, 5)
    np.testing.assert_allclose(draws.std(axis=0), deviation, rtol=0.1)  # 1 / sqrt(2 * 2000) is 0.016
    np.testing.assert_allclose(draws.mean(axis=0), model.predict(X) @ hat(model, Q).T, atol=5 * 0.1 / 2000**0.5)
    np.testing.assert_array_equal(draws, model.bootstrap(Q, n=2000, random_state=0))
    two = kind(bandwidth=0.15).fit(X, np.stack([y, 3 * y], axis=1)).bootstrap(Q, n=7, random_state=0)
    assert two.shape == (7, 5, 2)
    np.testing.assert_allclose(two[..., 1], 3 * two[..., 0], rtol=1e-9)


@both
def test_pairs_are_fits_of_rows_drawn_again(kind: Any) -> None:
    X, y = data(30)
    Q = np.linspace(0.1, 0.9, 5)[:, None]
    model = kind(bandwidth=0.2).fit(X, y)
    draws = model.bootstrap(Q, "pairs", n=3, random_state=0)
    random = np.random.RandomState(0)
    for found in draws:
        count = random.multinomial(30, np.full(30, 1 / 30))
        again = kind(bandwidth=0.2).fit(np.repeat(X, count, axis=0), np.repeat(y, count))
        np.testing.assert_allclose(found, again.predict(Q), rtol=1e-9)


@both
def test_a_count_is_so_many_rows(kind: Any) -> None:
    X, y = data(30)
    w = np.random.default_rng(1).integers(0, 4, size=30)
    one = kind(bandwidth=0.2).fit(X, y, sample_weight=w)
    other = kind(bandwidth=0.2).fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    Q = np.linspace(0, 1, 7)[:, None]
    for of in (
        lambda m: m.predict(Q, return_std=True)[1],
        lambda m: m.effective_sample_size(Q),
        lambda m: m.standard_error(Q, "local"),
        lambda m: np.stack(m.prediction_interval(Q, 0.8)),
    ):
        np.testing.assert_allclose(of(one), of(other), rtol=1e-7)


def test_rows_that_are_alone_have_errors_too() -> None:
    X = np.concatenate([np.linspace(0, 1, 20), [5.0]])[:, None]
    y = np.concatenate([np.zeros(20), [3.0]])
    for outside in ("nearest", "nan", "mean", "error"):
        model = NW("epanechnikov", 0.2, outside=outside).fit(X, y)
        fit, deviation = model.predict([[0.5], [5.0]], return_std=True)
        np.testing.assert_allclose(fit, [0, 3])
        np.testing.assert_allclose(deviation, [0, 3 - 3 / 21 * 0 if outside != "mean" else 3.0], atol=1e-12)


def test_kept_residuals_are_those_of_the_last_fit() -> None:
    X, y = data()
    model = NW(bandwidth=0.1).fit(X, y)
    first = model.predict(X, return_std=True)[1]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X, return_std=True)[1], first)
    np.testing.assert_allclose(model.fit(X, 2 * y).predict(X, return_std=True)[1], 2 * first, rtol=1e-12)


def test_prediction_intervals_are_scaled_quantiles_of_errors() -> None:
    X, y = data(30)
    model = NW(bandwidth=0.2).fit(X, y)
    left = y - model.leave_one_out()
    local = NW(bandwidth=0.2).fit(X, left**2)
    ratio = np.sort(left / np.sqrt(local.leave_one_out()))
    Q = np.array([[0.3], [0.7]])
    low, high = model.prediction_interval(Q, 0.8)  # of 31 places, the 3rd and the 28th
    np.testing.assert_allclose(low, model.predict(Q) + np.sqrt(local.predict(Q)) * ratio[2], rtol=1e-9)
    np.testing.assert_allclose(high, model.predict(Q) + np.sqrt(local.predict(Q)) * ratio[27], rtol=1e-9)


# ---- coverage


@both
def test_pointwise_intervals_cover(kind: Any) -> None:
    """Of the mean of the fit, at 0.1, 0.5 and 0.9; the noise is wider at the right."""
    rng, n, hits = np.random.default_rng(0), 400, np.zeros(3)
    X, Q = rng.uniform(size=(150, 1)), np.array([[0.1], [0.5], [0.9]])
    truth = np.sin(5 * X[:, 0])
    mean = hat(kind(bandwidth=0.1).fit(X, truth), Q) @ truth
    for _ in range(n):
        y = truth + (0.1 + 0.5 * X[:, 0]) * rng.normal(size=150)
        low, high = kind(bandwidth=0.1).fit(X, y).confidence_band(Q, 0.9)
        hits += (low <= mean) & (mean <= high)
    if kind is NW:  # errors of leave-one-out hold the bias of the fit, too, here at the left, and make intervals wider
        assert hits[0] / n > 0.9
        hits = hits[1:]
    assert all(within(int(h), n, 0.9) for h in hits), hits / n


def test_simultaneous_bands_cover_everywhere_at_once() -> None:
    rng, n, all_of, each = np.random.default_rng(1), 200, 0, 0
    X, Q = rng.uniform(size=(150, 1)), np.linspace(0, 1, 30)[:, None]
    truth = np.sin(5 * X[:, 0])
    mean = hat(LP(bandwidth=0.15).fit(X, truth), Q) @ truth
    for _ in range(n):
        model = LP(bandwidth=0.15).fit(X, truth + 0.3 * rng.normal(size=150))
        low, high = model.confidence_band(Q, 0.9, simultaneous=True, n=200, random_state=rng.integers(1 << 30))
        all_of += bool(np.all((low <= mean) & (mean <= high)))
        low, high = model.confidence_band(Q, 0.9)
        each += bool(np.all((low <= mean) & (mean <= high)))
    assert within(all_of, n, 0.9), all_of / n
    assert not within(each, n, 0.9), each / n  # which pointwise bands are not made for


def test_prediction_intervals_cover_new_targets() -> None:
    """With noise that is neither normal nor the same everywhere."""
    rng, n, hits = np.random.default_rng(2), 400, 0
    for _ in range(n):
        x = rng.uniform(size=151)
        y = np.sin(5 * x) + (0.1 + 0.5 * x) * (rng.exponential(size=151) - 1)
        low, high = LP(bandwidth=0.1).fit(x[:150, None], y[:150]).prediction_interval(x[150:, None], 0.8)
        hits += int(low[0] <= y[150] <= high[0])
    assert within(hits, n, 0.8), hits / n


def test_significance_has_its_size_and_its_power() -> None:
    rng, n, idle, matters = np.random.default_rng(3), 100, 0, 0
    for _ in range(n):
        X = rng.uniform(size=(60, 2))
        y = np.sin(5 * X[:, 0]) + 0.3 * rng.normal(size=60)
        model = LP(bandwidth=[0.15, 0.3]).fit(X, y)
        idle += model.significance(1, n=39, random_state=rng.integers(1 << 30)).p_value <= 0.1
        matters += model.significance(0, n=39, random_state=rng.integers(1 << 30)).p_value <= 0.1
    assert within(idle, n, 0.1), idle / n
    assert matters == n


def test_significance_of_a_category_and_by_name() -> None:
    import pandas as pd

    rng = np.random.default_rng(0)
    group, other = rng.integers(0, 3, size=(2, 120))
    X = pd.DataFrame({"size": rng.uniform(size=120), "group": pd.Categorical(group), "other": pd.Categorical(other)})
    y = np.sin(5 * X["size"].to_numpy()) + group + 0.2 * rng.normal(size=120)
    kernel = {"size": "gaussian", **{c: rg.AitchisonAitken(0.2, levels=3) for c in ("group", "other")}}
    model = LP(kernel, [0.15, 0.2, 0.4]).fit(X, y)
    assert model.significance("group", n=99, random_state=0).p_value == 0.01
    idle = model.significance("other", n=99, random_state=0)
    assert idle.p_value > 0.05
    assert repr(idle).startswith("feature 'other': statistic ")
    out = LP(kernel, [0.15, 0.2, 2 / 3]).fit(X, y).significance("other", n=9, random_state=0)
    assert out.p_value == 1  # it was smoothed out already


def test_what_is_left_of_a_score_without_a_feature() -> None:
    product = rg.Gaussian([1.0, 2.0]).on([0, 2]) + rg.AitchisonAitken(0.2, levels=3).on([1])
    left = without_feature(product, 2, [0, 1, 2])
    x = np.array([[0.0, 1.0, 5.0]])
    z = np.array([[1.0, 2.0, -3.0]])
    assert left is not None
    np.testing.assert_allclose(left(x, z), -0.5 + np.log(0.1 / 0.8))
    assert without_feature(rg.Gaussian(1.0), 0, [0]) is None
    with pytest.raises(ValueError, match="a feature cannot be taken out of Through"):
        without_feature(rg.Gaussian(1.0).through(np.eye(2)), 0, [0, 1])


# ---- mistakes


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda m: m.confidence_band([[0.5]], 95), "`level` must be between 0 and 1, such as 0.95; got 95"),
        (lambda m: m.prediction_interval([[0.5]], 0), "`level` must be between 0 and 1, such as 0.95; got 0"),
        (lambda m: m.bootstrap([[0.5]], "block"), "`kind` must be one of wild, pairs; got 'block'"),
        (lambda m: m.bootstrap([[0.5]], n=0), "`n` must be a whole number of draws, at least 1; got 0"),
        (lambda m: m.standard_error([[0.5]], "hc3"), "`variance` must be one of rows, local; got 'hc3'"),
        (lambda m: m.significance(3), "`feature` must be among 0; got 3"),
        (lambda m: m.significance("age"), "`feature` must be among 0; got 'age'"),
    ],
)
def test_mistakes(call: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        call(NW(bandwidth=0.1).fit(*data()))
