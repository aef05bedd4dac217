"""What scikit-learn, and people who use it, expect of every estimator."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import regard as rg

# few steps: scikit-learn's checks fit hundreds of times, and do not ask how good the projections are
ALL = [
    rg.NadarayaWatsonRegressor(),
    rg.NadarayaWatsonClassifier(),
    rg.AttentionRegressor(hidden_dim=3, max_iter=20),
    rg.AttentionClassifier(hidden_dim=3, max_iter=20),
]
REGRESSORS = [e for e in ALL if not is_classifier(e)]
CLASSIFIERS = [e for e in ALL if is_classifier(e)]


@parametrize_with_checks(ALL)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of the few steps
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def name(estimator: Any) -> str:
    return type(estimator).__name__


each = pytest.mark.parametrize("estimator", ALL, ids=name)
each_regressor = pytest.mark.parametrize("estimator", REGRESSORS, ids=name)
each_classifier = pytest.mark.parametrize("estimator", CLASSIFIERS, ids=name)


def data(n: int = 31, d: int = 3, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def fit(estimator: Any, X: Any, y: Any, **options: Any) -> Any:
    """A fitted clone, with few steps and without a word about them; for classifiers y becomes two names."""
    estimator = clone(estimator).set_params(random_state=0)
    if is_classifier(estimator):
        y = np.where(np.asarray(y) > 0, "up", "down")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(X, y, **options)


def answers(estimator: Any, X: Any) -> Any:
    return estimator.predict_proba(X) if is_classifier(estimator) else estimator.predict(X)


# ---- what goes in and comes out


@each
def test_predictions_are_the_means_that_attention_shows(estimator: Any) -> None:
    X, y = data()
    model = fit(estimator, X, y)
    Q = data(7, seed=1)[0]
    weights, rows = model.attention(Q, n=100)
    assert weights.shape == rows.shape == (7, 31)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-13)
    assert np.all(np.diff(weights, axis=1) <= 0)
    value = model.y_[:, None] == model.classes_ if is_classifier(model) else model.y_[:, None]
    pooled = np.einsum("qk,qkv->qv", weights, value[rows].astype(float))
    np.testing.assert_allclose(answers(model, Q).reshape(7, -1), pooled, rtol=1e-12, atol=1e-15)


@each
def test_attention_shows_the_ten_largest_unless_told_otherwise(estimator: Any) -> None:
    X, y = data()
    model = fit(estimator, X, y)
    weights, rows = model.attention(X[:5])
    assert weights.shape == rows.shape == (5, 10)
    np.testing.assert_array_equal(rows, model.attention(X[:5], n=31)[1][:, :10])


@each
def test_training_data_are_kept_as_given(estimator: Any) -> None:
    X, y = data()
    X[3], y[3] = X[11], y[11]
    w = np.ones(31)
    w[5] = 0
    before = X.copy()
    model = fit(estimator, X, y, sample_weight=w)
    X[:] = np.nan  # the model has a copy
    np.testing.assert_array_equal(model.X_, before)
    np.testing.assert_array_equal(model.sample_weight_, w)
    assert len(model.y_) == 31
    assert isinstance(model.score_, rg.Score)
    assert not np.any(model.attention(before, n=31)[1] == 5)


@each
def test_float32_stays_float32(estimator: Any) -> None:
    X, y = data()
    wide, narrow = fit(estimator, X, y), fit(estimator, X.astype(np.float32), y)
    out = answers(narrow, X.astype(np.float32))
    assert out.dtype == np.float32
    assert narrow.attention(X.astype(np.float32))[0].dtype == np.float32
    assert answers(wide, X).dtype == np.float64
    # float32 fits other rows, which differ by 6e-8: what L-BFGS makes of them may differ by more
    np.testing.assert_allclose(out, answers(wide, X), rtol=0, atol=2e-2)


@each_regressor
def test_integer_targets_give_float_predictions(estimator: Any) -> None:
    X = np.arange(5)[:, None]
    out = fit(estimator, X, np.array([0, 0, 1, 1, 7])).predict([[2], [90]])
    assert out.dtype == np.float64


@each_regressor
def test_several_outputs(estimator: Any) -> None:
    X, y = data()
    Y = np.stack([y, 100 * y + 3], axis=1)  # the same in other units: the criterion divides by the variance
    model = fit(estimator, X, Y)
    out = model.predict(X[:7])
    assert out.shape == (7, 2)
    np.testing.assert_allclose(out[:, 1], 100 * out[:, 0] + 3, rtol=1e-9)
    assert model.leave_one_out().shape == (31, 2)
    assert fit(estimator, X, y[:, None]).predict(X).shape == (31, 1)


@each_classifier
def test_labels_of_any_kind(estimator: Any) -> None:
    X, y = data()
    model = fit(estimator, X, y)
    assert list(model.classes_) == ["down", "up"]
    assert set(model.predict(X)) == {"down", "up"}
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1, rtol=1e-13)
    np.testing.assert_array_equal(model.predict(X), model.classes_[model.predict_proba(X).argmax(axis=1)])


@each_classifier
def test_balanced_classes_weigh_the_same_together(estimator: Any) -> None:
    X, y = data()
    y = np.where(np.arange(31) < 9, 1.0, -1.0)
    plain, even = fit(estimator, X, y), fit(clone(estimator).set_params(class_weight="balanced"), X, y)
    for label in even.classes_:
        assert even.sample_weight_[even.y_ == label].sum() == pytest.approx(15.5)
    by_hand = {"up": 31 / (2 * 9), "down": 31 / (2 * 22)}
    same = fit(clone(estimator).set_params(class_weight=by_hand), X, y)
    np.testing.assert_allclose(same.predict_proba(X), even.predict_proba(X), rtol=1e-7, atol=1e-9)
    assert even.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean()


@each
def test_pickle_and_clone(estimator: Any) -> None:
    X, y = data()
    model = fit(estimator, X, y)
    np.testing.assert_array_equal(answers(pickle.loads(pickle.dumps(model)), X), answers(model, X))
    assert not hasattr(clone(model), "score_")
    score = rg.RationalQuadratic(alpha=2.0).on([0])
    assert clone(rg.NadarayaWatsonRegressor(score)).kernel.score.alpha == 2.0


@each
def test_grid_search_over_a_pipeline(estimator: Any) -> None:
    X, y = data()
    field = "bandwidth" if hasattr(estimator, "bandwidth") else "alpha"
    step = name(estimator).lower()
    labels = np.where(y > 0, "up", "down") if is_classifier(estimator) else y
    pipe = make_pipeline(StandardScaler(), clone(estimator))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        grid = GridSearchCV(pipe, {f"{step}__{field}": [0.3, 1000.0]}, cv=3).fit(X, labels)
    assert grid.best_params_ == {f"{step}__{field}": 0.3}
    assert grid.best_estimator_.predict(X).shape == (31,)


# ---- frames


@each
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_frames(estimator: Any, frame: Any) -> None:
    X, y = data()
    named = frame(dict(zip("abc", X.T, strict=True)))
    model = fit(estimator, named, y)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert model.n_features_in_ == 3
    np.testing.assert_array_equal(answers(model, named), answers(fit(estimator, X, y), X))
    with pytest.raises(ValueError, match="The feature names should match those that were passed during fit"):
        model.predict(named[["c", "a", "b"]])


@each
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_a_column_at_fault_is_named(estimator: Any, frame: Any) -> None:
    X, y = data(3, 1)
    good = {"size": X[:, 0]}
    with pytest.raises(ValueError, match="column 'sex': could not convert string to float: 'f'"):
        fit(estimator, frame({**good, "sex": ["f", "m", "f"]}), y)
    with pytest.raises(ValueError, match="column 'age': Input X contains NaN"):
        fit(estimator, frame({**good, "age": [1.0, None, 3.0]}), y)
    with pytest.raises(ValueError, match="column 'age': Input X contains infinity"):
        fit(estimator, frame({**good, "age": [1.0, np.inf, 3.0]}), y)
    model = fit(estimator, frame({**good, "age": [1.0, 2.0, 3.0]}), y)
    with pytest.raises(ValueError, match="column 'age': Input X contains NaN"):
        model.predict(frame({**good, "age": [1.0, np.nan, 3.0]}))


@each
@pytest.mark.parametrize(
    ("X", "y", "told"),
    [
        ([[1.0], [np.nan]], [1.0, 2.0], "^Input X contains NaN"),
        ([[1.0], [np.inf]], [1.0, 2.0], "^Input X contains infinity"),
        ([[1.0, 2.0], [3.0]], [1.0, 2.0], "inhomogeneous"),
        ([["a"], ["b"]], [1.0, 2.0], "could not convert string to float: 'a'"),
        (np.zeros((0, 2)), [], "Found array with 0 sample"),
        (np.zeros((2, 0)), [1.0, 2.0], "Found array with 0 feature"),
        ([1.0, 2.0], [1.0, 2.0], "Expected 2D array, got 1D array instead"),
        ([[1.0], [2.0]], [1.0], "inconsistent numbers of samples"),
    ],
)
def test_bad_input_gets_scikit_learns_words(estimator: Any, X: Any, y: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        fit(estimator, X, y)


@each
def test_bad_weights(estimator: Any) -> None:
    X, y = data(5)
    with pytest.raises(ValueError, match="Sample weights must contain at least one non-zero number"):
        fit(estimator, X, y, sample_weight=np.zeros(5))
    with pytest.raises(ValueError, match="Negative values in data"):
        fit(estimator, X, y, sample_weight=[1, 1, -1, 1, 1])
    with pytest.raises(ValueError, match=r"sample_weight.shape == \(4,\), expected \(5,\)"):
        fit(estimator, X, y, sample_weight=np.ones(4))


@each
def test_not_fitted(estimator: Any) -> None:
    for method in ("predict", "attention"):
        with pytest.raises(NotFittedError):
            getattr(clone(estimator), method)([[1.0]])
    with pytest.raises(NotFittedError):
        clone(estimator).leave_one_out()


@each
def test_an_unknown_engine_is_refused_in_fit(estimator: Any) -> None:
    with pytest.raises(ValueError, match="unknown engine 'warp'"):
        fit(clone(estimator).set_params(engine="warp"), *data(5))


@each
def test_a_named_engine_runs(estimator: Any) -> None:
    X, y = data()
    model = fit(clone(estimator).set_params(engine="reference"), X, y)
    np.testing.assert_allclose(answers(model, X), answers(fit(estimator, X, y), X), rtol=1e-4, atol=1e-4)


# ---- sample weights count


@pytest.mark.parametrize("balanced", [False, True])
@each
def test_a_weight_is_so_many_copies(estimator: Any, balanced: bool) -> None:
    if balanced:
        if not is_classifier(estimator):
            return
        estimator = clone(estimator).set_params(class_weight="balanced")
    X, y = data(23)
    w = np.random.default_rng(2).integers(0, 4, size=23)
    order = np.random.default_rng(3).permutation(w.sum())
    weighted = fit(estimator, X, y, sample_weight=w)
    copied = fit(estimator, np.repeat(X, w, axis=0)[order], np.repeat(y, w)[order])
    Q = data(7, seed=1)[0]
    # the same numbers were searched, to the bit; only sums over keys may round differently
    np.testing.assert_allclose(answers(weighted, Q), answers(copied, Q), rtol=1e-12, atol=1e-14)
    if hasattr(weighted, "bandwidth_"):
        np.testing.assert_array_equal(weighted.bandwidth_, copied.bandwidth_)
    else:
        assert weighted.loss_ == copied.loss_
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    last = np.cumsum(w)[w > 0] - 1  # one copy of each row
    others = copied.leave_one_out()[back][last]
    np.testing.assert_allclose(weighted.leave_one_out()[w > 0], others, rtol=1e-12, atol=1e-14)


@each
def test_leave_one_out_is_a_fit_without_the_row(estimator: Any) -> None:
    X, y = data(11)
    if hasattr(estimator, "bandwidth"):
        model = fit(clone(estimator).set_params(bandwidth=0.7), X, y)
        for i in (0, 4, 10):
            rest = np.arange(11) != i
            one = fit(clone(estimator).set_params(bandwidth=0.7), X[rest], y[rest])
            np.testing.assert_allclose(model.leave_one_out()[i], answers(one, X[i : i + 1])[0], rtol=1e-12)
    else:  # another fit would learn other projections: the row is taken out by its weight
        model = fit(estimator, X, y)
        weights, rows = model.attention(X, n=11)
        full = np.zeros((11, 11))
        np.put_along_axis(full, rows, weights, axis=1)
        np.fill_diagonal(full, 0)
        value = model.y_[:, None] == model.classes_ if is_classifier(model) else model.y_[:, None]
        expected = full @ value.astype(float) / full.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(model.leave_one_out().reshape(11, -1), expected, rtol=1e-10)


@pytest.mark.parametrize("estimator", ALL[:2], ids=name)
def test_a_weight_below_one_leaves_out_the_whole_row(estimator: Any) -> None:
    X, y = data(11)
    estimator = clone(estimator).set_params(bandwidth=0.7)
    half, whole = fit(estimator, X, y, sample_weight=np.full(11, 0.5)), fit(estimator, X, y)
    np.testing.assert_allclose(half.leave_one_out(), whole.leave_one_out(), rtol=1e-13)


# ---- extremes


@each
def test_one_row_answers_everything(estimator: Any) -> None:
    model = fit(estimator, [[2.0, 3.0]], [5.0])
    if is_classifier(model):
        assert list(model.predict([[0.0, 0.0]])) == ["up"]
    else:
        np.testing.assert_array_equal(model.predict([[0.0, 0.0], [1e9, 1.0]]), [5.0, 5.0])
    if hasattr(model, "bandwidth_"):
        np.testing.assert_array_equal(model.bandwidth_, [1.0, 1.0])
    weights, rows = model.attention([[0.0, 0.0]])
    np.testing.assert_array_equal(weights, [[1.0]])
    np.testing.assert_array_equal(rows, [[0]])
    assert np.all(np.isnan(model.leave_one_out()))  # nobody is left


@each
def test_a_large_offset_costs_nothing(estimator: Any) -> None:
    X = np.random.default_rng(0).integers(0, 40, size=(31, 2)) / 4.0  # exact at 1e8 too
    y = np.sin(X[:, 0])
    near, far = fit(estimator, X, y), fit(estimator, X + 1e8, y)
    # quarters are exact there, but the mean of a column is not: it is known to 1e-8
    np.testing.assert_allclose(answers(far, X + 1e8), answers(near, X), rtol=1e-4, atol=1e-4)
    if hasattr(near, "bandwidth_"):
        np.testing.assert_allclose(far.bandwidth_, near.bandwidth_, rtol=1e-9)


@each
def test_constant_features_and_targets(estimator: Any) -> None:
    X, y = data()
    X[:, 1] = 7.0
    model = fit(estimator, X, y)
    assert np.all(np.isfinite(answers(model, X)))
    if hasattr(model, "bandwidth_"):
        assert model.bandwidth_[1] == 1.0
    flat = fit(estimator, X, np.full(31, 2.5))
    np.testing.assert_allclose(answers(flat, X), 1.0 if is_classifier(flat) else 2.5, rtol=1e-14)


@each
def test_a_seed_makes_it_reproducible(estimator: Any) -> None:
    X, y = data()
    np.testing.assert_array_equal(answers(fit(estimator, X, y), X), answers(fit(estimator, X, y), X))
