"""Columns of categories: from dtypes and by name, ordered and not, unseen and missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import regard as rg

JOBS, RANKS = ("smith", "clerk", "baker"), ("low", "mid", "high", "top")


def rows(n: int = 61, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    age, job, rank = rng.normal(size=n), rng.integers(0, 3, size=n), rng.integers(0, 4, size=n)
    return age, job, rank, np.sin(2 * age) + (job == 1) + 0.3 * rank + 0.2 * rng.normal(size=n)


def frames(age: Any, job: Any, rank: Any, jobs: Any = JOBS) -> tuple[Any, Any]:
    """The same rows in pandas and in polars; rank is ordered."""
    names, ranks = [jobs[c] for c in job], [RANKS[c] for c in rank]
    pandas = pd.DataFrame(
        {
            "age": age,
            "job": pd.Categorical(names, categories=list(jobs)),
            "rank": pd.Categorical(ranks, categories=list(RANKS), ordered=True),
        }
    )
    kinds = {"age": pl.Float64, "job": pl.Categorical, "rank": pl.Enum(list(RANKS))}
    return pandas, pl.DataFrame({"age": age, "job": names, "rank": ranks}, schema=kinds)


def test_dtypes_names_positions_masks_and_a_product_by_hand_are_one() -> None:
    age, job, rank, y = rows()
    pandas, polars = frames(age, job, rank)
    code = np.stack([age, job, rank], axis=1)
    by_hand = rg.Gaussian().on([0]) + rg.AitchisonAitken(0.1, levels=3).on([1]) + rg.WangVanRyzin(0.1).on([2])
    model = rg.NadarayaWatsonRegressor(by_hand, random_state=0).fit(code, y)
    ordered = {"rank": "ordered"}
    kinds = {1: "unordered", 2: "ordered"}
    words = np.array([[str(x) for x in row] for row in zip(age, job, rank, strict=True)], dtype=object)
    others = [
        (rg.NadarayaWatsonRegressor(random_state=0), pandas),
        (rg.NadarayaWatsonRegressor(random_state=0, categorical_features=ordered), polars),
        (rg.NadarayaWatsonRegressor(random_state=0, categorical_features=kinds), code),
        (rg.NadarayaWatsonRegressor(random_state=0, categorical_features=kinds), words),
        (rg.NadarayaWatsonRegressor(random_state=0, categorical_features=kinds), code.tolist()),
    ]
    for other, X in others:
        other.fit(X, y)
        np.testing.assert_allclose(other.bandwidth_, model.bandwidth_, rtol=1e-6)
        np.testing.assert_allclose(other.predict(X[:7]), model.predict(code[:7]), rtol=1e-6)
    one = rg.NadarayaWatsonRegressor(bandwidth=[1, 0.2, 0.2], categorical_features=[1, 2]).fit(code, y)
    for categorical in ([False, True, True], np.array([1, 2]), {1: "unordered", 2: "unordered"}):
        again = rg.NadarayaWatsonRegressor(bandwidth=[1, 0.2, 0.2], categorical_features=categorical).fit(code, y)
        np.testing.assert_array_equal(again.predict(code), one.predict(code))


@pytest.mark.parametrize("frame", [0, 1], ids=["pandas", "polars"])
@pytest.mark.parametrize("estimator", [rg.NadarayaWatsonRegressor, rg.NadarayaWatsonClassifier])
def test_names_of_labels_do_not_matter(estimator: Any, frame: int) -> None:
    age, job, rank, y = rows()
    y = y if estimator is rg.NadarayaWatsonRegressor else np.where(y > y.mean(), "b", "a")
    X, other = frames(age, job, rank)[frame], frames(age, job, rank, ("z", "a", "m"))[frame]
    a, b = (estimator(random_state=0).fit(of, y) for of in (X, other))
    # rows are searched in the order of their codes: sums round differently
    np.testing.assert_allclose(b.bandwidth_, a.bandwidth_, rtol=1e-5)
    answers = "predict" if estimator is rg.NadarayaWatsonRegressor else "predict_proba"
    np.testing.assert_allclose(getattr(b, answers)(other), getattr(a, answers)(X), rtol=1e-5, atol=1e-7)


def test_ordered_numbers_differ_by_their_values_and_labels_by_their_rank() -> None:
    year, y = np.array([1990.0, 1991.0, 1999.0]), np.array([1.0, 2.0, 4.0])
    lam = 0.5
    model = rg.NadarayaWatsonRegressor(bandwidth=lam, categorical_features={0: "ordered"}).fit(year[:, None], y)
    w = np.where(year == 1991, 1, lam ** np.abs(year - 1991) / 2)
    assert model.predict([[1991.0]])[0] == pytest.approx(w @ y / w.sum(), rel=1e-14)
    labels = pd.DataFrame({"size": pd.Categorical(["S", "M", "XL"], ["S", "M", "L", "XL"], ordered=True)})
    model = rg.NadarayaWatsonRegressor(bandwidth=lam).fit(labels, y)
    w = np.array([lam / 2, 1, lam**2 / 2])
    assert model.predict(labels[1:2])[0] == pytest.approx(w @ y / w.sum(), rel=1e-14)
    numbers = pd.DataFrame({"year": pd.Categorical(year, ordered=True)})
    assert rg.NadarayaWatsonRegressor(bandwidth=lam).fit(numbers, y).X_[2, 0] == 1999


def test_kernels_of_a_product_by_name() -> None:
    age, job, rank, y = rows()
    X, _ = frames(age, job, rank)
    names = {"age": "gaussian", "job": "li_racine", "rank": "ordered_li_racine"}
    model = rg.NadarayaWatsonRegressor(names, [0.5, 0.3, 0.6]).fit(X, y)
    K = np.exp(-0.5 * ((age[:5, None] - age) / 0.5) ** 2)
    K = K * np.where(job[:5, None] == job, 1, 0.3) * 0.6 ** np.abs(rank[:5, None] - rank)
    np.testing.assert_allclose(model.predict(X[:5]), K @ y / K.sum(axis=1), rtol=1e-13)
    with pytest.raises(
        ValueError, match=r"column 'job' is unordered: its kernel must be one of aitchison_aitken, .*; got"
    ):
        rg.NadarayaWatsonRegressor({"job": "wang_van_ryzin"}).fit(X, y)
    only = rg.NadarayaWatsonRegressor(random_state=0).fit(X[["job", "rank"]], y)
    assert np.all(only.bandwidth_ <= 1)


def test_a_rule_of_thumb_narrows_categories_as_rows_come_in() -> None:
    age, job, rank, y = rows(200)
    X, _ = frames(age, job, rank)
    found = rg.NadarayaWatsonRegressor(bandwidth="scott").fit(X, y).bandwidth_
    share = 200 ** (-2 / 7)
    np.testing.assert_allclose(found[1:], [share * 2 / 3, share], rtol=1e-12)


# ---- levels that were not seen


@pytest.mark.parametrize("frame", [0, 1], ids=["pandas", "polars"])
def test_an_unseen_level_is_named(frame: int) -> None:
    age, job, rank, y = rows()
    X = frames(age, job, rank)[frame]
    model = rg.NadarayaWatsonRegressor(bandwidth="scott").fit(X, y)
    new = frames(age[:2], [0, 1], rank[:2], ("smith", "pilot"))[frame]
    told = (
        "column 'job': level 'pilot' was not seen in fit; seen were 'smith', 'clerk', 'baker'|'baker', 'clerk', 'smith'"
    )
    with pytest.raises(ValueError, match=told):
        model.predict(new)


def test_an_unseen_level_equals_none_if_it_is_to_be_ignored() -> None:
    age, job, rank, y = rows()
    X, _ = frames(age, job, rank)
    model = rg.NadarayaWatsonRegressor(bandwidth=[0.5, 0.2, 0.4], unseen="ignore").fit(X, y)
    new, _ = frames(age[:2], [1, 1], rank[:2], ("smith", "pilot"))
    rest = rg.NadarayaWatsonRegressor(bandwidth=[0.5, 0.4]).fit(X[["age", "rank"]], y)
    np.testing.assert_allclose(model.predict(new), rest.predict(new[["age", "rank"]]), rtol=1e-13)


def test_ordered_levels_beyond_those_seen_have_a_place_or_are_refused() -> None:
    y = np.array([1.0, 2.0, 4.0])
    sizes = ["S", "M", "L", "XL"]
    X = pd.DataFrame({"size": pd.Categorical(["S", "M", "M"], sizes, ordered=True)})
    model = rg.NadarayaWatsonRegressor(bandwidth=0.5, unseen="ignore").fit(X, y)
    far = model.predict(pd.DataFrame({"size": pd.Categorical(["XL"], sizes, ordered=True)}))
    w = np.array([0.5**3, 0.5**2, 0.5**2])
    assert far[0] == pytest.approx(w @ y / w.sum(), rel=1e-14)
    with pytest.raises(
        ValueError, match=r"column 'size': level 'XXL' has no place in the order 'S', 'M'. Declare all levels"
    ):
        model.predict(pd.DataFrame({"size": ["XXL"]}))
    years = rg.NadarayaWatsonRegressor(bandwidth=0.5, unseen="ignore", categorical_features={0: "ordered"})
    years.fit([[1990.0], [1992.0]], [0.0, 1.0])
    assert years.predict([[1991.0]])[0] == pytest.approx(0.5)


# ---- missing values


@pytest.mark.parametrize("frame", [0, 1], ids=["pandas", "polars"])
def test_missing_values_are_refused_and_named(frame: int) -> None:
    age, job, rank, y = rows(9)
    pandas, _ = frames(age, job, rank)
    pandas.loc[3, "job"] = None
    X = pandas if frame == 0 else pl.from_pandas(pandas.astype({"job": object, "rank": object}))
    model = rg.NadarayaWatsonRegressor(bandwidth="scott", categorical_features=["job", "rank"])
    with pytest.raises(
        ValueError, match=r"column 'job': 1 of 9 values are missing .the first is in row 3.. Fill them in, or"
    ):
        model.fit(X, y)


@pytest.mark.parametrize("estimator", [rg.NadarayaWatsonRegressor, rg.NadarayaWatsonClassifier])
def test_rows_with_missing_values_are_dropped_on_request(estimator: Any) -> None:
    age, job, rank, y = rows(31)
    w = np.arange(31.0)
    X, _ = frames(age, job, rank)
    gaps = X.copy()
    gaps.loc[3, "job"], gaps.loc[5, "age"] = None, np.nan
    target: Any = y if estimator is rg.NadarayaWatsonRegressor else np.where(y > 0.5, "b", "a").astype(object)
    holed = target.copy()
    holed[8] = np.nan if estimator is rg.NadarayaWatsonRegressor else None
    keep = np.delete(np.arange(31), [3, 5, 8])
    model = estimator(bandwidth="scott", missing="drop").fit(gaps, holed, sample_weight=w)
    same = estimator(bandwidth="scott").fit(X.iloc[keep], target[keep], sample_weight=w[keep])
    answers = "predict" if estimator is rg.NadarayaWatsonRegressor else "predict_proba"
    out = getattr(model, answers)(gaps)
    np.testing.assert_allclose(out[keep], getattr(same, answers)(X.iloc[keep]), rtol=1e-14)
    assert np.all(np.isnan(out[[3, 5]]))
    assert len(model.X_) == 28
    assert model.__sklearn_tags__().input_tags.allow_nan
    assert not same.__sklearn_tags__().input_tags.allow_nan
    plain = rg.NadarayaWatsonRegressor(bandwidth=1.0, missing="drop").fit([[0.0], [np.nan], [2.0]], [1.0, 2.0, 5.0])
    assert len(plain.X_) == 2
    with pytest.raises(ValueError, match="each of the 2 rows has a missing value: nothing is left to fit"):
        plain.fit([[np.nan], [np.nan]], [1.0, 2.0])


# ---- what may be said


@pytest.mark.parametrize(
    ("categorical", "told"),
    [
        ("all", '`categorical_features` must be "from_dtype", None, names, positions, a mask, or a dictionary .*; got'),
        ({"job": "nominal"}, "must map columns to 'unordered' or 'ordered'; got 'nominal'"),
        (["name"], "`categorical_features` names the column 'name'; X has age, job, rank"),
        ([True, False], "must have one entry per column as a mask; got 2 for 3 columns"),
    ],
)
def test_mistakes(categorical: Any, told: str) -> None:
    age, job, rank, y = rows(9)
    with pytest.raises(ValueError, match=told):
        rg.NadarayaWatsonRegressor(categorical_features=categorical).fit(frames(age, job, rank)[0], y)


def test_a_column_of_words_says_how_to_make_it_a_category() -> None:
    age, job, rank, y = rows(9)
    X = frames(age, job, rank)[0].astype({"job": str})
    with pytest.raises(
        ValueError, match=r"column 'job': could not convert .* give the column a categorical dtype, or name"
    ):
        rg.NadarayaWatsonRegressor().fit(X, y)


def test_names_are_checked_and_kept() -> None:
    age, job, rank, y = rows()
    for X in frames(age, job, rank):
        model = rg.NadarayaWatsonRegressor(bandwidth="scott").fit(X, y)
        assert list(model.feature_names_in_) == ["age", "job", "rank"]
        assert "job 0." in repr(model.selection_)
        with pytest.raises(ValueError, match="The feature names should match those that were passed during fit"):
            model.predict(X[["job", "age", "rank"]])


def test_weights_are_copies() -> None:
    age, job, rank, y = rows(29)
    X, _ = frames(age, job, rank)
    w = np.arange(29) % 3
    a = rg.NadarayaWatsonRegressor(random_state=0).fit(X, y, sample_weight=w)
    at = np.repeat(np.arange(29), w)
    b = rg.NadarayaWatsonRegressor(random_state=0).fit(X.iloc[at], y[at])
    np.testing.assert_array_equal(a.bandwidth_, b.bandwidth_)


def test_sample_weights_are_routed() -> None:
    age, _, _, y = rows()
    w = np.arange(61.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = rg.NadarayaWatsonRegressor(bandwidth="scott")
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        pipe = make_pipeline(FunctionTransformer(), model).fit(age[:, None], y, sample_weight=w)
        np.testing.assert_array_equal(pipe[-1].sample_weight_, w)
        scores = cross_validate(model, age[:, None], y, params={"sample_weight": w}, cv=3, error_score="raise")
        plain = cross_validate(model, age[:, None], y, params={"sample_weight": np.ones(61)}, cv=3)
    assert np.all(scores["test_score"] != plain["test_score"])
