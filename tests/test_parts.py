"""Data in parts: any grouping of the rows is the fit of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError

import regard as rg

ALL = [
    rg.NadarayaWatsonRegressor(bandwidth=0.2),
    rg.LocalPolynomialRegressor(bandwidth=0.2),
    rg.LocalQuantileRegressor(bandwidth=0.2),
    rg.NadarayaWatsonClassifier(bandwidth=0.2),
    rg.NadarayaWatsonClassifier(bandwidth=0.2, class_weight="balanced"),
    rg.NadarayaWatsonRegressor(random_state=0),  # the rule sees all rows
]
each = pytest.mark.parametrize("estimator", ALL, ids=str)


def data(estimator: Any, n: int = 61) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 2))
    y = np.sin(5 * X[:, 0])
    return X, np.where(y > 0, "up", "down") if is_classifier(estimator) else y, rng.integers(0, 3, size=n)


def answers(estimator: Any, X: Any) -> Any:
    return estimator.predict_proba(X) if is_classifier(estimator) else estimator.predict(X)


@each
def test_parts_are_the_whole(estimator: Any) -> None:
    X, y, w = data(estimator)
    whole = clone(estimator).fit(X, y, sample_weight=w)
    grown = clone(estimator)
    cuts = ((0, 13), (13, 14), (14, 61))
    for i, j in cuts:
        weights = np.maximum(w[i:j], 1) if j - i == 1 else w[i:j]
        w[i:j] = weights
        grown.partial_fit(X[i:j], y[i:j], sample_weight=weights)
    whole = clone(estimator).fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(answers(grown, X), answers(whole, X))
    np.testing.assert_array_equal(grown.leave_one_out(), whole.leave_one_out())
    np.testing.assert_array_equal(grown.sample_weight_, whole.sample_weight_)
    a, b, c = (clone(estimator).fit(X[i:j], y[i:j], sample_weight=w[i:j]) for i, j in cuts)
    for merged in (a.merge(b).merge(c), a + (b + c)):
        np.testing.assert_array_equal(answers(merged, X), answers(whole, X))
        np.testing.assert_array_equal(merged.bandwidth_, whole.bandwidth_)
    assert len(a.X_) == 13  # the parts stay as they were


def test_classes_may_come_later() -> None:
    X, _, _ = data(ALL[0])
    y = np.arange(61) % 3
    model = rg.NadarayaWatsonClassifier(bandwidth=0.2).partial_fit(X[:1], y[:1], classes=[0, 1, 2])
    np.testing.assert_array_equal(model.predict_proba(X[:2]), [[1, 0, 0], [1, 0, 0]])
    model.partial_fit(X[1:], y[1:])
    whole = rg.NadarayaWatsonClassifier(bandwidth=0.2).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))
    late = rg.NadarayaWatsonClassifier(bandwidth=0.2).partial_fit(X[:1], y[:1], classes=[0, 1, 2, 7])
    assert list((late + whole).classes_) == [0, 1, 2, 7]
    grown = rg.NadarayaWatsonClassifier(bandwidth=0.2).partial_fit(X[:1], y[:1]).partial_fit(X[1:], y[1:])
    np.testing.assert_array_equal(grown.predict_proba(X), whole.predict_proba(X))
    with pytest.raises(ValueError, match="`y` must hold labels that are among `classes`; got 3"):
        clone(model).partial_fit(X[:2], [1, 3], classes=[0, 1, 2])


def test_levels_may_come_later() -> None:
    x = np.linspace(0, 1, 12)
    group = np.array(list("bbccbbaaaacb"))
    y = x + (group == "a")
    X = pd.DataFrame({"x": x, "group": group})
    model = rg.NadarayaWatsonRegressor(bandwidth=[0.3, 0.2], categorical_features=["group"])
    whole = clone(model).fit(X, y)
    grown = clone(model).partial_fit(X[:6], y[:6]).partial_fit(X[6:], y[6:])
    np.testing.assert_array_equal(grown.predict(X), whole.predict(X))
    np.testing.assert_array_equal(grown.X_, whole.X_)
    merged = clone(model).fit(X[6:], y[6:]).merge(clone(model).fit(X[:6], y[:6]))
    np.testing.assert_allclose(merged.predict(X), whole.predict(X), rtol=1e-12)


def test_what_cannot_be_merged() -> None:
    X, y, _ = data(ALL[0])
    one = clone(ALL[0]).fit(X, y)
    with pytest.raises(TypeError, match="`other` must be a NadarayaWatsonRegressor like this one; got LocalPoly"):
        one.merge(clone(ALL[1]).fit(X, y))
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 1
    with pytest.raises(NotFittedError):
        one.merge(clone(ALL[0]))
    with pytest.raises(ValueError, match=r"fits of the same features can be merged; got 2 \(0, 1\) and 1 \(0\)"):
        one.merge(clone(ALL[0]).fit(X[:, :1], y))
    with pytest.raises(ValueError, match=r"same number of outputs to be merged; got \(61,\) and \(61, 2\)"):
        one.merge(clone(ALL[0]).fit(X, np.stack([y, y], axis=1)))
    with pytest.raises(ValueError, match="X has 1 features, but NadarayaWatsonRegressor is expecting 2 features"):
        one.partial_fit(X[:, :1], y)
    frame = pd.DataFrame({"x": X[:, 0], "group": pd.Categorical(["a", "b"] * 30 + ["a"])})
    other = frame.assign(group=frame["group"].cat.set_categories(["b", "a"], ordered=True))
    with pytest.raises(ValueError, match="column 'group': parts must declare the same levels in the same order"):
        clone(ALL[0]).fit(frame, y).merge(clone(ALL[0]).fit(other, y))
    mixed = frame.assign(x=pd.Categorical([1, 2] * 30 + [1]), group=X[:, 1])
    with pytest.raises(ValueError, match="column 'x' holds categories in one part, and numbers in the other"):
        clone(ALL[0]).fit(frame, y).merge(clone(ALL[0]).fit(mixed, y))
    numbers = pd.DataFrame({"x": X[:, 0], "group": X[:, 1]})
    with pytest.raises(ValueError, match="one of the parts has columns of categories, the other has none"):
        clone(ALL[0]).fit(frame, y).merge(clone(ALL[0]).fit(numbers, y))
