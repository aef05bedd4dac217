"""Bandwidths: rules of thumb, the search by leave-one-out, products of kernels, and what happens outside a support."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import regard as rg
from regard.datasets import motorcycle
from regard.estimators.bandwidths import canonical_bandwidth
from regard.estimators.criteria import CRITERIA
from regard.estimators.pairs import Pairs
from regard.estimators.rows import Rows
from regard.estimators.search import Log, Objective, Paired, Pooled, Variables, _line
from regard.scores import kernels, named

DATA = Path(__file__).parent / "data"
mixed = rg.Gaussian(0.5).on([0]) + rg.AitchisonAitken(0.2, levels=3).on([1]) + rg.WangVanRyzin(0.3).on([2])


def table(name: str) -> Any:
    return np.loadtxt(DATA / f"{name}.csv", delimiter=",", skiprows=1).T


def mixed_data(n: int = 61) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=n), rng.integers(0, 3, size=n), rng.integers(0, 5, size=n)], axis=1)
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=n)


def loo_error(x: Any, y: Any, h: float) -> float:
    """The criterion as its formula says."""
    K = np.exp(-0.5 * ((x[:, None] - x) / h) ** 2)
    np.fill_diagonal(K, 0)
    return float(np.mean((y - K @ y / K.sum(axis=1)) ** 2))


# ---- numbers that others found


def test_motorcycle() -> None:
    times, accel = motorcycle()
    model = rg.NadarayaWatsonRegressor().fit(times[:, None], accel)
    assert model.bandwidth_[0] == pytest.approx(0.9138289, abs=5e-8)
    assert np.mean((model.leave_one_out() - accel) ** 2) == pytest.approx(595.93634, abs=5e-6)


def test_old_faithful() -> None:
    eruptions, waiting = table("faithful")
    # the published minimum, h = 0.5842948 with 32.369518, is a local one: a narrower dip is lower
    assert loo_error(eruptions, waiting, 0.5842948) == pytest.approx(32.369518, abs=5e-7)
    wide = [loo_error(eruptions, waiting, 0.5842948 * f) for f in (0.999, 1, 1.001)]
    assert wide[1] == min(wide)
    model = rg.NadarayaWatsonRegressor().fit(eruptions[:, None], waiting)
    found = float(np.mean((model.leave_one_out() - waiting) ** 2))
    assert found == pytest.approx(loo_error(eruptions, waiting, float(model.bandwidth_[0])), rel=1e-12)
    assert found == pytest.approx(32.296059, abs=5e-7)
    grid = np.geomspace(0.05, 5, 400)
    assert found <= min(loo_error(eruptions, waiting, h) for h in grid)


def test_italy_on_ordered_years() -> None:
    year, gdp = table("italy")
    model = rg.NadarayaWatsonRegressor(rg.WangVanRyzin(0.5)).fit(year[:, None], gdp)
    assert model.bandwidth_[0] == pytest.approx(0.1390096, abs=5e-8)
    fit = model.predict(year[:, None])
    assert fit[0] == pytest.approx(6.190486, abs=5e-7)
    a, b = gdp - gdp.mean(), fit - gdp.mean()
    assert (a @ b) ** 2 / ((a @ a) * (b @ b)) == pytest.approx(0.1435323, abs=5e-8)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_regressors(seed: int) -> None:
    rs = np.random.RandomState(123456)
    shape = (60, 1)
    rs.binomial(2, 0.7, size=shape), rs.binomial(3, 0.7, size=shape)
    c1, c2 = rs.normal(size=shape), rs.normal(10, 1, size=shape)
    rs.normal(10, 2, size=shape)
    y = (0.3 + 1.2 * c1 + 3.7 * c2 + rs.normal(size=shape))[:, 0]
    X = np.concatenate([c1, c2], axis=1)
    model = rg.NadarayaWatsonRegressor(random_state=seed).fit(X, y)
    np.testing.assert_allclose(model.bandwidth_, [0.6163835, 0.1649656], atol=1e-5)
    fit = model.predict(X)
    np.testing.assert_allclose(fit[:5], [31.49157, 37.29536, 43.72332, 40.58997, 36.80711], atol=1e-5)
    a, b = y - y.mean(), fit - y.mean()
    assert (a @ b) ** 2 / ((a @ a) * (b @ b)) == pytest.approx(0.95638, abs=5e-6)


@pytest.mark.parametrize(
    ("kernel", "delta"),
    [  # Marron & Nolan (1988), table 1
        (rg.Gaussian(), 0.7764),
        (rg.Uniform(), 1.3510),
        (rg.Epanechnikov(), 1.7188),
        (rg.Biweight(), 2.0362),
        (rg.Triweight(), 2.3122),
    ],
)
def test_canonical_bandwidths(kernel: Any, delta: float) -> None:
    assert canonical_bandwidth(kernel) == pytest.approx(delta, abs=5e-5)


def test_canonical_bandwidths_of_exact_integrals() -> None:
    # exp(-|x|): mass 2, R = 1/4, variance 2
    assert canonical_bandwidth(rg.Laplacian()) == pytest.approx((1 / 4 / 4) ** 0.2, rel=1e-8)
    a = np.sqrt(3)  # (1 + a |x|) exp(-a |x|): mass 4 / a, integral of the square 5 / (2 a), variance 4 / a^2
    roughness, variance = 5 / (2 * a) / (4 / a) ** 2, 4 / 3
    assert canonical_bandwidth(rg.Matern32()) == pytest.approx((roughness / variance**2) ** 0.2, rel=1e-8)


# ---- rules of thumb


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize(("rule", "factor"), [("scott", 1.0), ("silverman", (4 / 5) ** (1 / 7))])
def test_rules_of_thumb(kernel: str, rule: str, factor: float) -> None:
    X = np.random.default_rng(0).normal(size=(31, 3)) * [1, 10, 0] + [0, 1e6, 4]
    estimator = rg.NadarayaWatsonRegressor(kernel, rule)
    if kernel in ("cauchy", "rational_quadratic"):
        with pytest.raises(ValueError, match=f'finite variance; that of {kernel} is infinite. Use bandwidth="loo"'):
            estimator.fit(X, X[:, 0])
        return
    found = estimator.fit(X, X[:, 0]).bandwidth_
    ratio = canonical_bandwidth(named(kernel)) / canonical_bandwidth(rg.Gaussian())  # type: ignore[arg-type]
    expected = X.std(axis=0, ddof=1)[:2] * 31 ** (-1 / 7) * factor * ratio
    np.testing.assert_allclose(found, [*expected, 1.0], rtol=1e-9)


def test_a_heavy_tail_with_a_variance_has_a_rule() -> None:
    X = np.arange(5.0)[:, None]
    found = rg.NadarayaWatsonRegressor(rg.RationalQuadratic(alpha=2.5), "scott").fit(X, X[:, 0]).bandwidth_
    # K = (1 + x^2 / 5)^-2.5 is the density of Student's t with 4 degrees of freedom, whose variance is 2, at x / width
    from scipy.stats import t

    width = np.sqrt(5 / 4)
    x = np.linspace(-400, 400, 2_000_001)
    roughness = np.trapezoid((t.pdf(x / width, 4) / width) ** 2, x)
    delta = (roughness / (2 * width**2) ** 2) ** 0.2
    expected = X.std(ddof=1) * 5 ** (-1 / 5) * delta / canonical_bandwidth(rg.Gaussian())
    assert found[0] == pytest.approx(expected, rel=1e-6)


def test_rules_count_weights() -> None:
    X = np.random.default_rng(0).normal(size=(11, 2))
    w = np.arange(11)
    for rule in ("scott", "silverman"):
        a = rg.NadarayaWatsonRegressor(bandwidth=rule).fit(X, X[:, 0], sample_weight=w)
        b = rg.NadarayaWatsonRegressor(bandwidth=rule).fit(np.repeat(X, w, axis=0), np.repeat(X[:, 0], w))
        np.testing.assert_allclose(a.bandwidth_, b.bandwidth_, rtol=1e-14)


def test_rules_leave_categories_as_they_are() -> None:
    X, y = mixed_data()
    found = rg.NadarayaWatsonRegressor(mixed, "scott").fit(X, y).bandwidth_
    np.testing.assert_allclose(found, [X[:, 0].std(ddof=1) * 61 ** (-1 / 5), 0.2, 0.3], rtol=1e-9)


# ---- what a bandwidth may be


def test_given_bandwidths_are_used_as_given() -> None:
    X, y = mixed_data()
    X[:, 1] = 1.0
    assert list(rg.NadarayaWatsonRegressor(bandwidth=0.3).fit(X, y).bandwidth_) == [0.3, 0.3, 0.3]
    assert list(rg.NadarayaWatsonRegressor(bandwidth=[0.3, np.inf, 2]).fit(X, y).bandwidth_) == [0.3, np.inf, 2]
    assert list(rg.NadarayaWatsonRegressor(bandwidth=None).fit(X, y).bandwidth_) == [1, 1, 1]
    own = rg.NadarayaWatsonRegressor(rg.Cauchy([0.1, 0.2, 0.3]), None).fit(X, y)
    assert list(own.bandwidth_) == [0.1, 0.2, 0.3]


def test_scores_without_a_bandwidth_pool_too() -> None:
    X, y = mixed_data(11)
    score = rg.ScaledDotProduct().on([0, 1])
    model = rg.NadarayaWatsonRegressor(score, None).fit(X, y)
    np.testing.assert_array_equal(model.bandwidth_, [np.nan, np.nan, np.inf])
    np.testing.assert_allclose(model.predict(X[:3]), rg.attention_pool(X[:3], X, y[:, None], score)[:, 0], rtol=1e-14)
    with pytest.raises(ValueError, match="`kernel` has no bandwidth to set; give bandwidth=None to use it as it is"):
        rg.NadarayaWatsonRegressor(score).fit(X, y)


def test_scaled_and_mapped_parts_keep_what_they_have() -> None:
    X, y = mixed_data(11)
    metric = rg.Gaussian(0.9).through(np.ones((2, 2))).on([1, 2])
    model = rg.NadarayaWatsonRegressor(2 * rg.RationalQuadratic(1.0, alpha=3.0).on([0]) + metric, 0.4).fit(X, y)
    np.testing.assert_array_equal(model.bandwidth_, [0.4, np.nan, np.nan])
    same = 2 * rg.RationalQuadratic(0.4, alpha=3.0).on([0]) + metric
    np.testing.assert_array_equal(model.score_(X, X), same(X, X))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"kernel": "boxcar"},
            "unknown `kernel` 'boxcar'; the known ones are biweight, cauchy, .*, uniform. Or give a score",
        ),
        ({"kernel": "additive"}, "unknown `kernel` 'additive'"),
        ({"kernel": rg.WangVanRyzin(0.1)}, "WangVanRyzin compares one column; got 2"),
        ({"kernel": {"age": "gaussian"}}, "`kernel` names the column 'age'; X has 0, 1"),
        ({"kernel": {5: "gaussian"}}, "`kernel` names the column 5; X has 0, 1"),
        ({"bandwidth": "cv"}, "`bandwidth` must be a number, one per feature, None, or one of loo, .*; got 'cv'"),
        ({"bandwidth": ["a", "b"]}, r"`bandwidth` must be a number, .*; got \['a', 'b'\]"),
        ({"bandwidth": [1.0, 2.0, 3.0]}, "`bandwidth` must be one number or one per feature; got 3 for 2 features"),
        ({"bandwidth": [[[1.0, 2.0]]]}, "`bandwidth` must be one number or one per feature"),
        ({"bandwidth": [[1.0, 2.0, 3.0]]}, r"as a matrix must map the 2 features .*, \(P, 2\), .*; got shape \(1, 3\)"),
        (
            {"bandwidth": np.eye(2), "kernel": {0: "gaussian", 1: "gaussian"}},
            "a metric needs one radial kernel .* has 2",
        ),
        ({"bandwidth": np.eye(2), "bandwidth_type": "nearest"}, 'a matrix needs bandwidth_type="fixed"'),
        (
            {"bandwidth": "scott", "metric": "learned"},
            'metric="learned" needs .* one of loo, .*; got .scott. and .fixed.',
        ),
        ({"bandwidth": "scott", "bandwidth_type": "nearest"}, "gives lengths; bandwidth_type=.nearest. needs a number"),
        ({"bandwidth": 1.5, "bandwidth_type": "adaptive"}, "must be a whole number of neighbours, .*; got 1.5"),
        ({"bandwidth_type": "knn"}, "`bandwidth_type` must be one of fixed, nearest, adaptive; got 'knn'"),
        ({"metric": "w"}, "`metric` must be one of features, learned; got 'w'"),
        ({"unseen": "zero"}, "`unseen` must be one of error, ignore; got 'zero'"),
        ({"missing": "nan"}, "`missing` must be one of error, drop; got 'nan'"),
        ({"bandwidth": -1.0}, "`bandwidth` of Gaussian must be positive; got -1"),
        ({"bandwidth": [1.0, np.nan]}, "`bandwidth` of Gaussian must be positive; got nan"),
        ({"outside": "zero"}, "`outside` must be one of nearest, nan, mean, error; got 'zero'"),
    ],
)
def test_mistakes(options: Any, told: str) -> None:
    for estimator in (rg.NadarayaWatsonRegressor(**options), rg.NadarayaWatsonClassifier(**options)):
        with pytest.raises(ValueError, match=told):
            estimator.fit([[1.0, 2.0], [3.0, 4.0]], [0, 1])


def test_a_kernel_is_a_name_or_a_score() -> None:
    with pytest.raises(TypeError, match=r"`kernel` must be the name of a kernel, a score .* or a dictionary .*; got 3"):
        rg.NadarayaWatsonRegressor(3).fit([[1.0]], [1.0])


# ---- products


def test_a_product_by_column() -> None:
    import polars as pl

    X, y = mixed_data()
    frame = pl.DataFrame(X, schema=["age", "job", "rank"], orient="row")
    byname = {"age": "gaussian", "job": rg.AitchisonAitken(0.2, levels=3), "rank": rg.WangVanRyzin(0.3)}
    models = [
        rg.NadarayaWatsonRegressor(mixed, random_state=0).fit(X, y),
        rg.NadarayaWatsonRegressor(byname, random_state=0).fit(frame, y),
        rg.NadarayaWatsonRegressor(dict(enumerate(byname.values())), random_state=0).fit(X, y),
    ]
    for model in models[1:]:
        np.testing.assert_allclose(model.bandwidth_, models[0].bandwidth_, rtol=1e-9)
    one = rg.NadarayaWatsonRegressor({"age": "gaussian"}, 0.5).fit(frame, y)
    np.testing.assert_array_equal(one.bandwidth_, [0.5, np.inf, np.inf])


def test_categorical_numbers_are_searched_within_their_interval() -> None:
    X, y = mixed_data()
    model = rg.NadarayaWatsonRegressor(mixed, random_state=0).fit(X, y)
    length, job, rank = model.bandwidth_
    assert 0.05 < length < 1
    assert 0 < job < 0.1  # y jumps by job
    assert 0.9 < rank <= 1  # and does not ask for rank
    best = np.mean((model.leave_one_out() - y) ** 2)
    for h in ([length, job, 0.3], [length, 0.5, rank], [1.3 * length, job, rank], [0.7 * length, job, rank]):
        other = rg.NadarayaWatsonRegressor(mixed, h).fit(X, y)
        assert np.mean((other.leave_one_out() - y) ** 2) > best


def test_a_constant_category_keeps_its_number() -> None:
    X, y = mixed_data(11)
    X[:, 2] = 2
    assert rg.NadarayaWatsonRegressor(mixed, random_state=0).fit(X, y).bandwidth_[2] == 0.3


# ---- the search


def variables(score: Any, X: Any, y: Any, w: Any, shared: bool) -> tuple[Rows, Variables]:
    rows = Rows(X, y, w, np.linspace(1, 2, len(X))).merged()
    return rows, Variables.of(score, rows, shared)


def objectives(rows: Rows, score: Any, v: Variables, criterion: str = "loo", degree: int = 0) -> list[Objective]:
    """The criterion by the front door, if it can, and by all pairs."""
    named = CRITERIA[criterion]
    memory = rows.leaving_one_out("nearest", "auto") if named.leaves_out else rows.seeing_all("nearest", "auto")
    loss = named.loss(rows)
    spread = np.where(np.ptp(rows.X, axis=0) > 0, 1.7, 1.0)
    pairs = Paired(rows, memory, v, named, Pairs(rows, score, spread, named.leaves_out, degree), True)
    return [pairs] if degree else [Pooled(rows, memory, v, loss), pairs]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kernel", [k for k in kernels() if k != "uniform"])
def test_slopes_of_the_criterion(kernel: str, shared: bool) -> None:
    X, _ = mixed_data(23)
    X = np.concatenate([X, X[:3]])
    Y = np.stack([X[:, 0] ** 2, np.sin(X[:, 0])], axis=1)
    w = np.array([2.0, 0.5, 3.0, *np.ones(23)])
    score = named(kernel).on([0, 2]) + rg.AitchisonAitken(0.2, levels=3).on([1])
    rows, v = variables(score, X, Y, w, shared)
    t = np.array([*np.full(v.logarithms, 1.4), 0.3])  # wide enough that no edge of a support is near
    step = 1e-6
    for criterion in objectives(rows, score, v):
        value, slope = criterion.slope(t)
        assert value == pytest.approx(criterion(t), rel=1e-13)
        differences = [(criterion(t + step * e) - criterion(t - step * e)) / (2 * step) for e in np.eye(t.size)]
        np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-9)  # of a central difference at this step


@pytest.mark.parametrize("degree", [0, 1, 2])
@pytest.mark.parametrize("criterion", ["loo", "aicc", "gcv"])
def test_slopes_of_criteria_with_own_shares(criterion: str, degree: int) -> None:
    X, y = mixed_data(53)
    rows, v = variables(mixed, X, y[:, None], np.ones(53), False)
    (*_, objective) = objectives(rows, mixed, v, criterion, degree)
    t = np.array([0.3, 0.25, 0.4])
    value, slope = objective.slope(t)
    assert value == pytest.approx(objective(t), rel=1e-13)
    step = 1e-6
    differences = [(objective(t + step * e) - objective(t - step * e)) / (2 * step) for e in np.eye(3)]
    np.testing.assert_allclose(slope, differences, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("criterion", ["loo", "aicc", "gcv", "log_loss", "brier"])
def test_all_pairs_are_the_front_door(criterion: str) -> None:
    X, y = mixed_data(53)
    Y = np.eye(2)[(y > 0).astype(int)] if CRITERIA[criterion].classes else y[:, None]
    rows, v = variables(mixed, X, Y, np.arange(53) % 3.0, False)
    door, pairs = objectives(rows, mixed, v, criterion)
    for t in ([-1.0, 0.01, 0.9], [0.3, 0.2, 0.4], [-6.0, 0.0, 0.3]):  # at the last, the nearest answers
        assert pairs(np.array(t)) == pytest.approx(door(np.array(t)), rel=1e-11)


def test_the_criterion_counts() -> None:
    X, y = mixed_data(13)
    w = np.arange(13.0)
    copies = np.repeat(X, w.astype(int), axis=0), np.repeat(y, w.astype(int))
    model = rg.NadarayaWatsonRegressor(bandwidth=0.8)
    errors = (model.fit(*copies).leave_one_out() - copies[1]) ** 2
    rows = Rows(X, y[:, None], w, np.ones(13)).merged()
    v = Variables.of(rg.Gaussian(), rows, False)
    for criterion in objectives(rows, rg.Gaussian(), v):
        assert criterion(np.log(0.8 / v.spread)) == pytest.approx(errors.mean(), rel=1e-12)


def test_bounds() -> None:
    X = np.array([[0.0, 3.0], [0.25, 3.0], [1.0, 3.0], [8.0, 3.0]])
    rows = Rows(X, X[:, :1], np.ones(4), np.ones(4))
    v = Variables.of(rg.Gaussian(), rows, False)
    np.testing.assert_allclose(v.bandwidth(v.low), [0.125, 1.0], rtol=1e-14)
    np.testing.assert_allclose(v.bandwidth(v.high), [400.0, 1.0], rtol=1e-14)


def test_what_does_not_matter_gets_a_wide_kernel() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(101, 3))
    y = np.sin(7 * X[:, 1]) + 0.1 * rng.normal(size=101)
    h = rg.NadarayaWatsonRegressor(random_state=0).fit(X, y).bandwidth_
    assert h[1] < 0.1
    assert min(h[0], h[2]) > 0.3


def test_one_shared_factor() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(61, 2)) * [1, 100]
    y = np.sin(X[:, 0]) + np.cos(X[:, 1] / 100)
    model = rg.NadarayaWatsonRegressor(bandwidth="loo_shared").fit(X, y)
    spread = X.std(axis=0, ddof=1)
    factor = model.bandwidth_ / spread
    assert factor[0] == pytest.approx(factor[1], rel=1e-13)
    best = np.mean((model.leave_one_out() - y) ** 2)
    for f in np.geomspace(0.01, 10, 100):
        other = rg.NadarayaWatsonRegressor(bandwidth=f * spread).fit(X, y)
        assert np.mean((other.leave_one_out() - y) ** 2) >= best


@pytest.mark.parametrize("kernel", ["epanechnikov", "uniform", "cauchy", "laplacian"])
def test_no_point_of_a_fine_grid_is_lower(kernel: str) -> None:
    times, accel = motorcycle()
    X, y = times[:101, None], accel[:101]
    model = rg.NadarayaWatsonRegressor(kernel).fit(X, y)
    best = np.mean((model.leave_one_out() - y) ** 2)
    others = [
        np.mean((rg.NadarayaWatsonRegressor(kernel, h).fit(X, y).leave_one_out() - y) ** 2)
        for h in np.geomspace(0.1, 50, 200)
    ]
    # the uniform kernel's criterion is a staircase: a step may hide between two points of the search's own grid
    assert best <= min(others) * (1.01 if kernel == "uniform" else 1 + 1e-9)


def test_of_nearly_equal_dips_the_one_with_the_lowest_ground_wins() -> None:
    class Dips:
        """Two dips; the grid comes near to the ground of the wide one, and hardly into the narrow, deeper one."""

        variables = SimpleNamespace(low=np.array([0.0]), high=np.array([10.0]), side="")
        rows, smooth = None, False

        def __call__(self, t: Any) -> float:
            return float(1 - 0.1 * np.exp(-((t[0] - 3) ** 2)) - 0.12 * np.exp(-(((t[0] - 7.1) / 0.12) ** 2)))

    dips: Any = Dips()
    assert dips([7.0]) > dips([3.0]) > dips([7.1])
    assert _line(dips, dips, None, np.array([5.0]), Log())[0] == pytest.approx(7.1, abs=1e-6)


def test_a_feature_is_found_that_matters_alone() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0, 1, size=30), rng.uniform(50, 51, size=30)])
    y = np.sin(6 * x) + 0.1 * rng.normal(size=60)
    X = np.stack([x, rng.normal(size=60)], axis=1)  # no narrow window in both features leaves every row a neighbour
    model = rg.NadarayaWatsonRegressor("uniform", outside="nan", random_state=0).fit(X, y)
    assert np.mean((model.leave_one_out() - y) ** 2) < 0.021  # that of the first feature alone is 0.0208


def test_a_look_along_one_variable_leaves_a_local_minimum() -> None:
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(60, 4))
    y = np.sin(9 * X[:, 0] * (1 + X[:, 1])) + (X[:, 2] > 0.5) * X[:, 0] + 0.3 * rng.normal(size=60)
    model = rg.NadarayaWatsonRegressor(random_state=0).fit(X, y)
    assert np.mean((model.leave_one_out() - y) ** 2) < 0.5  # descents alone stop at twice the least


def test_many_rows_are_searched_through_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(401, 2))
    y = np.sin(9 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=401)
    whole = rg.NadarayaWatsonRegressor(random_state=0)
    one, both = whole.fit(X[:, :1], y).bandwidth_, clone(whole).fit(X, y).bandwidth_
    monkeypatch.setattr("regard.estimators.search.LOOK", 1.0)  # 150 rows
    some = rg.NadarayaWatsonRegressor(random_state=0)
    np.testing.assert_allclose(some.fit(X[:, :1], y).bandwidth_, one, rtol=1e-4)  # the digits that are asked for then
    np.testing.assert_allclose(some.fit(X, y).bandwidth_, both, rtol=1e-5)


def test_the_classifier_minimises_the_brier_score() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(101, 1))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=101) > 0, "b", "a")
    model = rg.NadarayaWatsonClassifier().fit(X, y)

    def brier(of: Any) -> float:
        return float(np.mean(np.sum((of.leave_one_out() - (y[:, None] == of.classes_)) ** 2, axis=1)))

    for h in np.geomspace(0.01, 10, 100):
        assert brier(rg.NadarayaWatsonClassifier(bandwidth=h).fit(X, y)) >= brier(model) - 1e-12


def test_the_scale_of_weights_and_outputs_does_not_matter_to_the_search() -> None:
    X, y = mixed_data()
    a = rg.NadarayaWatsonRegressor().fit(X[:, :1], y)
    b = rg.NadarayaWatsonRegressor().fit(X[:, :1], 1e9 + 1e3 * y)
    np.testing.assert_allclose(a.bandwidth_, b.bandwidth_, rtol=1e-6)  # y is known to 1e-10 there


# ---- outside the support

X_GAP, Y_GAP = np.array([[0.0], [1.0], [2.0], [10.0]]), np.array([1.0, 2.0, 4.0, 7.0])


def far(outside: str, **options: Any) -> Any:
    return rg.NadarayaWatsonRegressor("epanechnikov", 1.5, outside=outside, **options)


def test_outside_says_what_a_far_row_gets() -> None:
    Q = [[0.5], [6.0], [4.0], [-90.0], [1e200]]
    inside = 1.5  # two rows at the same distance
    expected = {
        "nearest": [inside, 5.5, 4.0, 1.0, 3.5],  # 6 is as far from 2 as from 10, and 1e200 from all
        "nan": [inside, *4 * [np.nan]],
        "mean": [inside, 3.5, 3.5, 3.5, 3.5],
    }
    for outside, values in expected.items():
        model = far(outside).fit(X_GAP, Y_GAP)
        np.testing.assert_allclose(model.predict(Q), values, rtol=1e-14)
        weights, rows = model.attention(Q, n=4)
        shown = np.where(rows >= 0, Y_GAP[rows], 0)
        np.testing.assert_allclose(np.sum(weights * shown, axis=1), np.nan_to_num(values), rtol=1e-14)
        assert np.all((weights > 0) == (rows >= 0))
    model = far("error").fit(X_GAP, Y_GAP)
    told = r"no training row is within the support of the kernel for 4 of 5 rows \(1, 2, 3, 4\). Widen `bandwidth`"
    for ask in (model.predict, model.attention):
        with pytest.raises(ValueError, match=told):
            ask(Q)
    np.testing.assert_allclose(model.predict(Q[:1]), [inside])


def test_outside_counts_weights_and_forgets_rows_without() -> None:
    w = np.array([1.0, 1.0, 3.0, 1.0])
    assert far("nearest").fit(X_GAP, Y_GAP, sample_weight=w).predict([[6.0]])[0] == pytest.approx((3 * 4 + 7) / 4)
    assert far("mean").fit(X_GAP, Y_GAP, sample_weight=w).predict([[6.0]])[0] == pytest.approx(22 / 6)
    w[2] = 0
    assert far("nearest").fit(X_GAP, Y_GAP, sample_weight=w).predict([[5.9]])[0] == 7.0
    assert far("nearest").fit(X_GAP, Y_GAP, sample_weight=w).predict([[3.0]])[0] == 2.0


def test_distances_that_overflow_when_squared_are_compared() -> None:
    model = rg.NadarayaWatsonRegressor("epanechnikov", 1.0).fit([[0.0], [1e200]], [1.0, 2.0])
    np.testing.assert_array_equal(model.predict([[3e200], [4e199]]), [2.0, 1.0])


def test_nearest_is_by_the_scores_own_distance() -> None:
    X, y = np.array([[0.0, 0.0], [5.0, 5.0]]), np.array([1.0, 2.0])
    model = rg.NadarayaWatsonRegressor("uniform", [10.0, 0.1]).fit(X, y)
    np.testing.assert_array_equal(model.predict([[0.0, 4.0], [5.0, 1.0]]), [2.0, 1.0])
    codes = rg.Epanechnikov(0.1).on([0]) + rg.AitchisonAitken(0.0, levels=3).on([1])
    model = rg.NadarayaWatsonRegressor(codes, None).fit([[0.0, 1.0], [5.0, 2.0]], y)
    np.testing.assert_array_equal(model.predict([[0.0, 2.0], [5.0, 1.0]]), [2.0, 1.0])  # of its own category


def test_ties_are_ties_in_decimals_too() -> None:
    for dtype in (np.float64, np.float32):
        X = np.array([[0.2], [0.4]], dtype=dtype)
        model = rg.NadarayaWatsonRegressor("epanechnikov", 0.01).fit(X, [1.0, 2.0])
        assert model.predict(np.array([[0.3]], dtype=dtype))[0] == 1.5


def test_far_rows_of_kernels_without_a_support_follow_their_tails() -> None:
    Q = np.array([[1e6]])
    for kernel, expected in (("gaussian", 7.0), ("cauchy", 3.5)):
        model = rg.NadarayaWatsonRegressor(kernel, 1.0, outside="error").fit(X_GAP, Y_GAP)
        assert model.predict(Q)[0] == pytest.approx(expected, rel=1e-4)


def test_a_classifier_without_an_answer_says_so() -> None:
    model = rg.NadarayaWatsonClassifier("epanechnikov", 1.5, outside="nan").fit(X_GAP, list("abab"))
    assert np.all(np.isnan(model.predict_proba([[6.0]])))
    with pytest.raises(ValueError, match=r"1 of 2 rows have no class \(the first is row 1\).*Use predict_proba"):
        model.predict([[0.0], [6.0]])
    model.set_params(outside="mean").fit(X_GAP, list("abab"))
    np.testing.assert_allclose(model.predict_proba([[6.0]]), [[0.5, 0.5]])


def test_the_search_asks_outside_too() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.uniform(0, 1, size=(30, 1)), [[10.0]]])
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=31)
    for outside in ("nan", "error"):  # the row at 10 may not be left alone: the kernel reaches it
        h = rg.NadarayaWatsonRegressor("epanechnikov", outside=outside).fit(X, y).bandwidth_
        assert h[0] > 10 - X[:30].max()
    for outside in ("nearest", "mean"):
        h = rg.NadarayaWatsonRegressor("epanechnikov", outside=outside).fit(X, y).bandwidth_
        assert h[0] < 1


def test_no_bandwidth_may_be_admissible() -> None:
    score = rg.Gaussian(1.0).on([0]) + rg.OffsetTable(np.zeros(3)).on([1])
    X = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 5.0]])
    with pytest.raises(ValueError, match=r'no bandwidth leaves every row another one .* outside="nan" gives such rows'):
        rg.NadarayaWatsonRegressor(score, outside="nan").fit(X, [1.0, 2.0, 3.0])
