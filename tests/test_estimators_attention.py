"""Attention whose projections are learned by leave-one-out."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import regard as rg
from regard.estimators.attention import SCORES, learn, log_loss, squared_error
from regard.estimators.pooled import Standard
from regard.estimators.rows import Rows

each = pytest.mark.parametrize("score", sorted(SCORES))


def data(n: int = 61, d: int = 3) -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(n, d)) * [1, 10, 100][:d]
    return X, np.sin(2 * X[:, 0]) + X[:, 1] / 20


def fit(estimator: Any, X: Any, y: Any, **options: Any) -> Any:
    """Fitted, whether or not the steps were enough."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(X, y, **options)


@each
def test_the_mean_is_beaten_on_rows_that_were_not_seen(score: str) -> None:
    X, y = data(150)
    model = fit(rg.AttentionRegressor(score, hidden_dim=5, max_iter=60, random_state=0), X[:101], y[:101])
    assert model.score(X[101:], y[101:]) > 0.5  # a linear feature and a wave, without noise
    labels = np.where(X[:, 0] + X[:, 1] / 10 > 0, "b", "a")
    model = fit(rg.AttentionClassifier(score, hidden_dim=5, max_iter=60, random_state=0), X[:101], labels[:101])
    assert model.score(X[101:], labels[101:]) > 0.85


@each
def test_gradients_of_the_loss(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data(13)
    labels = np.eye(3)[np.arange(13) % 3]
    count = np.array([2.0, 0.5, 3.0, *np.ones(10)])
    seen: list[Any] = []

    def minimize(objective: Any, start: Any, **options: Any) -> Any:
        seen.append((objective, start))
        return type("Result", (), {"nit": 1, "fun": 0.0, "x": start})

    monkeypatch.setattr("regard.estimators.attention.minimize", minimize)
    for value, loss in ((y[:, None], squared_error), (labels, log_loss)):
        rows = Rows(X, value, count, np.linspace(1, 2, 13)).merged()
        estimator = rg.AttentionRegressor(score, hidden_dim=2, alpha=0.7, random_state=1)
        learn(estimator, rows, Standard.of(rows, SCORES[score].affine), loss(rows))
        objective, start = seen.pop()
        start = start + 0.1 * np.random.default_rng(0).normal(size=start.size)
        _, slope = objective(start)
        step = 1e-6
        differences = [
            (objective(start + step * e)[0] - objective(start - step * e)[0]) / (2 * step) for e in np.eye(start.size)
        ]
        np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-8)  # of a central difference at this step


@each
def test_the_loss_is_what_it_says(score: str) -> None:
    X, y = data(31)
    model = fit(rg.AttentionRegressor(score, alpha=0.0, max_iter=20, random_state=0), X, y)
    expected = np.mean((model.leave_one_out() - y) ** 2) / y.var()
    assert model.loss_ == pytest.approx(expected, rel=1e-9)
    assert model.loss_curve_[-1] == model.loss_
    assert len(model.loss_curve_) == model.n_iter_ > 1
    assert np.all(np.diff(model.loss_curve_) <= 0)
    labels = y > 0
    model = fit(rg.AttentionClassifier(score, alpha=0.0, max_iter=20, random_state=0), X, labels)
    p = model.leave_one_out()[np.arange(31), labels.astype(int)]
    assert model.loss_ == pytest.approx(-np.mean(np.log((1 - 1e-6) * p + 1e-6 / 2)), rel=1e-9)


@each
def test_the_score_compares_standardised_rows(score: str) -> None:
    X, y = data(31)
    model = fit(rg.AttentionRegressor(score, hidden_dim=2, max_iter=5, random_state=0), X, y)
    np.testing.assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(model.scale_, X.std(axis=0, ddof=1), rtol=1e-13)
    z = (X - model.mean_) / model.scale_
    z = z if score == "gaussian" else np.concatenate([z, np.ones((31, 1))], axis=1)
    expected = rg.attention_pool(z[:7], z, y[:, None], model.score_)[:, 0]
    np.testing.assert_allclose(model.predict(X[:7]), expected, rtol=1e-12)
    # units do not matter
    other = fit(rg.AttentionRegressor(score, hidden_dim=2, max_iter=5, random_state=0), 8 * X - 64, y)
    np.testing.assert_allclose(other.predict(8 * X - 64), model.predict(X), rtol=1e-6)


def test_scores_are_what_they_are_called() -> None:
    X, y = data(31)
    kinds = {name: rg.AttentionRegressor(name, hidden_dim=2, max_iter=2, random_state=0) for name in SCORES}
    found = {name: fit(e, X, y).score_ for name, e in kinds.items()}
    assert isinstance(found["additive"], rg.Additive)
    assert found["additive"].query_weight.shape == found["additive"].key_weight.shape == (2, 4)
    assert isinstance(found["dot_product"], rg.Bilinear)
    assert np.linalg.matrix_rank(found["dot_product"].weight) == 2  # W_q^T W_k / sqrt(2)
    assert isinstance(found["bilinear"], rg.Bilinear)
    assert np.linalg.matrix_rank(found["bilinear"].weight) == 4
    assert found["gaussian"].weight.shape == (2, 3)
    assert found["gaussian"].score.bandwidth == 1.0


def test_the_gaussian_metric_finds_what_matters() -> None:
    X = np.random.default_rng(0).normal(size=(101, 3))
    y = np.sin(2 * (X[:, 0] + X[:, 1]))  # one direction, across two features
    model = fit(rg.AttentionRegressor("gaussian", alpha=0.1, random_state=0), X, y)
    metric = model.score_.weight.T @ model.score_.weight
    size, directions = np.linalg.eigh(metric)
    assert size[-1] > 30 * size[-2]
    turned = np.abs(directions[:, -1] / model.scale_)
    np.testing.assert_allclose(turned / np.linalg.norm(turned), [0.5**0.5, 0.5**0.5, 0], atol=0.05)


def test_a_penalty_keeps_weights_small() -> None:
    X, y = data(31)
    size = [
        np.abs(fit(rg.AttentionRegressor("bilinear", alpha=a, random_state=0), X, y).score_.weight).max()
        for a in (0.1, 10.0, 1e6)
    ]
    assert size[0] > size[1] > size[2]
    assert size[2] < 1e-3


def test_steps_that_were_not_enough_are_told() -> None:
    X, y = data(31)
    with pytest.warns(
        ConvergenceWarning, match=r"stopped after max_iter=3 steps, .* raise `max_iter`, or `tol`"
    ) as seen:
        rg.AttentionRegressor(max_iter=3, random_state=0).fit(X, y)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rg.AttentionRegressor(tol=0.5, random_state=0).fit(X, y).n_iter_ < 10


def test_classes_that_one_row_has_cost_no_infinity() -> None:
    X, _ = data(11)
    model = fit(rg.AttentionClassifier("gaussian", max_iter=10, random_state=0), X, [*"aabbaabbab", "lonely"])
    assert np.isfinite(model.loss_)
    assert model.predict_proba(X).shape == (11, 3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"score_function": "cosine"},
            "`score_function` must be one of additive, dot_product, bilinear, gaussian; got 'c",
        ),
        ({"hidden_dim": 0}, "`hidden_dim` must be a whole number of at least 1; got 0"),
        ({"hidden_dim": 2.5}, "`hidden_dim` must be a whole number of at least 1; got 2.5"),
        ({"max_iter": 0}, "`max_iter` must be a whole number of at least 1; got 0"),
        ({"alpha": -1}, "`alpha` must be a number of at least 0; got -1"),
        ({"tol": float("nan")}, "`tol` must be a number of at least 0; got nan"),
    ],
)
def test_mistakes(options: Any, told: str) -> None:
    for estimator in (rg.AttentionRegressor(**options), rg.AttentionClassifier(**options)):
        with pytest.raises(ValueError, match=told):
            estimator.fit([[1.0], [2.0]], [0, 1])
