"""Engine lowdim for kernels with heavy tails or rough at 0: expansions in a hierarchy of cells, held to all pairs."""

from __future__ import annotations

import numpy as np
import pytest

import regard as rg
from regard.engines.lowdim import multipole
from regard.engines.lowdim.pairs import Pairs

EPS = 2.0**-52
WIDTHS = (1e-7, 1e-4, 3e-3, 0.05, 0.7, 1e3)
DATA = ("uniform", "clusters", "heavy tails", "ties")
KERNELS = ("Cauchy", "RationalQuadratic", "Logistic", "Laplacian", "Matern32", "Matern52")
SHAPES = {"RationalQuadratic": (0.7,)}


def keys(kind: str, features: int, count: int = 3001) -> np.ndarray:
    rng = np.random.default_rng(features)
    if kind == "uniform":
        x = rng.uniform(size=(count, features))
        return x[(x[:, 0] < 0.4) | (x[:, 0] > 0.6)]  # with a gap
    if kind == "clusters":
        middle = rng.uniform(size=(5, features))[rng.integers(0, 5, count)]
        far = [[-50.0] * features, [1e4] * features]
        return np.concatenate([middle + 0.003 * rng.normal(size=(count, features)), far])
    if kind == "heavy tails":
        return rng.standard_cauchy((count, features))
    return np.round(rng.uniform(size=(count, features)), 1)


def queries(x: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(1)
    low, high = x.min(axis=0), x.max(axis=0)
    spread = low - 0.1 * (high - low) + 1.2 * (high - low) * rng.uniform(size=(53, x.shape[1]))
    near = rng.choice(x, 101) + 1e-3 * rng.normal(size=(101, x.shape[1]))
    return np.concatenate([spread, near, x[:41], x[:3] + 20 * (high - low)])


def weights(count: int) -> np.ndarray:
    """Row weights, values of very different sizes, and the sizes of those; a class that few keys have."""
    rng = np.random.default_rng(2)
    y = rng.normal(size=count) * 10 ** rng.uniform(-3, 3, count)
    return np.stack([np.ones(count), y, abs(y), rng.uniform(size=count) < 0.02], 1)


def exact_sums(kernel, given, k, w, q, own=None):
    """All pairs with long double, relative to the largest: shift (Q,) and sums (Q, C)."""
    wide = np.longdouble
    u = sum((q[:, None, c].astype(wide) - k[None, :, c]) ** 2 for c in range(k.shape[1]))
    s = kernel.formula(np, u, *given)
    if own is not None:
        s[np.arange(len(q)), own] = -np.inf
    top = s.max(axis=1)
    return top, np.exp(s - top[:, None]) @ w.astype(wide)


def worst(found, exact, rtol):
    """Of weight sums and pooled values, beside sum w and sum w |y|, as multiples of what they may be."""
    (shift, sums), (top, true) = found, exact
    seen = top > -1e12  # beyond that the rounding of scores is all there is
    sums = (sums[:, 0].astype(np.longdouble) * np.exp(shift - top)[:, None])[seen]
    top, true = top[seen], true[seen]
    allowed = rtol + 16 * EPS * (1 + abs(top))
    scale = true[:, [0, 2, 2, 3]] + np.longdouble(1e-270)  # not of what is next to underflow
    return float((abs(sums - true) / scale / allowed[:, None]).max())


@pytest.fixture
def eager(monkeypatch):
    """Expansions wherever their error allows it, and small cells."""
    monkeypatch.setattr(multipole, "VISIT", 0.0)
    monkeypatch.setattr(multipole, "PAIR", 20.0)


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("features", [1, 2, 3])
def test_the_error_is_kept_at_every_bandwidth(features, data, rtol, eager):
    x = keys(data, features, 1801 if features < 3 else 701)
    w, number = weights(len(x)), [1e-4, 1e-6, 1e-9].index(rtol) + DATA.index(data)
    for n, h in enumerate(WIDTHS if features < 3 else WIDTHS[number % 3 :: 3]):
        name = KERNELS[(number + n) % 6]
        kernel, given = getattr(rg, name), SHAPES.get(name, ())
        k, q = (x - x[0]) / h, (queries(x) - x[0]) / h
        found = multipole.prepare(kernel, given, k, w, rtol).sums(q)
        assert worst(found, exact_sums(kernel, given, k, w, q), rtol) < 1, (name, h)


@pytest.mark.parametrize(("features", "count"), [(1, 9), (2, 8), (2, 13), (3, 7)])
def test_the_measured_error_bounds_that_between_any_two_points(features, count):
    rng = np.random.default_rng(11)
    made = multipole.polynomials(count, features)
    middles = multipole.grid(np.array([-1.0, 0.0, 1.0]), features)
    y = np.concatenate([middles, rng.uniform(-1, 1, (211, features))])
    for name in ("Cauchy", "Laplacian", "Matern52"):
        for width in (0.5, 2.0):
            offsets = np.array([[0] * (features - 1) + [2], [1] * (features - 1) + [3], [2] * features])
            bounds = np.stack(made.errors(getattr(rg, name), (), width, offsets), axis=1)
            for offset, bound in zip(offsets, bounds, strict=True):
                u = np.square(width * (offset + (y[:, None] - y) / 2)).sum(axis=2)
                exact = multipole.weights(getattr(rg, name), (), u)
                t = made.at(y)
                wrong = abs(t @ made.matrix(getattr(rg, name), (), width, tuple(offset)) @ t.T - exact)
                assert 0.02 * bound[0] < wrong.max() < bound[0]
                assert (wrong / exact).max() < bound[1]


def test_queries_far_outside():
    rng = np.random.default_rng(5)
    for features in (1, 2, 3):
        k = rng.uniform(size=(907, features)) * 30
        way = rng.normal(size=(41, features))
        q = 30 * way * 10.0 ** rng.uniform(0, 40, (41, 1))
        for name in ("Cauchy", "RationalQuadratic", "Laplacian", "Logistic"):
            kernel, given, w = getattr(rg, name), SHAPES.get(name, ()), weights(len(k))
            near = np.sqrt((q**2).sum(axis=1)) < (1e40 if kernel.tail == "power" else 1e4)
            found = multipole.prepare(kernel, given, k, w, 1e-6).sums(q[near])
            assert worst(found, exact_sums(kernel, given, k, w, q[near]), 1e-6) < 1, (features, name)


def test_places_in_a_cell_keep_their_digits_beside_keys_far_away():
    rng = np.random.default_rng(6)
    k = np.concatenate([rng.uniform(size=(4001, 1)), [[1e9], [-3e12]]])
    q, w = rng.uniform(size=(211, 1)), weights(len(k))
    found = multipole.prepare(rg.Matern52, (), k * 3, w, 1e-9)
    assert worst(found.sums(q * 3), exact_sums(rg.Matern52, (), k * 3, w, q * 3), 1e-9) < 1


def test_many_equal_keys_are_one():
    rng = np.random.default_rng(7)
    k = np.concatenate([np.zeros((5003, 2)), rng.uniform(size=(811, 2))]) * 4
    w, q = weights(len(k)), np.concatenate([k[:7], rng.uniform(size=(101, 2)) * 4])
    for name in ("Cauchy", "Laplacian"):
        made = multipole.prepare(getattr(rg, name), (), k, w, 1e-6)
        assert worst(made.sums(q), exact_sums(getattr(rg, name), (), k, w, q), 1e-6) < 1
        own = np.concatenate([np.arange(7), np.arange(5003, 5050)])
        exact = exact_sums(getattr(rg, name), (), k, w, k[own], own)
        assert worst(made.others(k[own], own), exact, 1e-6) < 1


@pytest.mark.parametrize("name", ["Cauchy", "Matern32"])
def test_without_one_key_of_each_query(name, eager):
    kernel = getattr(rg, name)
    for features, h in ((1, 1e-6), (2, 1e-4), (3, 3e-2), (1, 0.2)):
        x, own = keys("clusters", features, 1201), np.arange(5, 607)
        k, w = x / h, weights(len(x))
        found = multipole.prepare(kernel, (), k, w, 1e-6).others(k[own], own)
        assert worst(found, exact_sums(kernel, (), k, w, k[own], own), 1e-6) < 1, h
    moved = k[own] + 1e-9
    found = multipole.prepare(kernel, (), k, w, 1e-6).others(moved, own)
    assert worst(found, exact_sums(kernel, (), k, w, moved, own), 1e-6) < 1


def test_leaving_one_out_through_the_front_door():
    rng = np.random.default_rng(8)
    x, y = rng.uniform(size=(1009, 2)), rng.normal(size=(1009, 2))
    for score in (rg.Cauchy(1e-4), rg.Cauchy(0.2), rg.Laplacian(0.02)):
        found, exact = (
            rg.attention_pool(x, x, y, score, mask=rg.NotSelf(), engine=name) for name in ("lowdim", "tiled")
        )
        assert 0 < abs(found - exact).max() < 1e-6 * abs(y).max()


def test_moments_of_a_degree_come_from_a_tree():
    rng = np.random.default_rng(9)
    k, q = rng.uniform(size=(503, 2)), rng.uniform(size=(31, 2))
    w = weights(len(k))
    shift, found = multipole.prepare(rg.Cauchy, (), k, w, 1e-9).sums(q, 2)
    top, exact = Pairs(rg.Cauchy, (), k, w).sums(q, 2)
    np.testing.assert_allclose(shift, top, atol=1e-12)
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9 * abs(exact).max())


def test_few_keys_and_none():
    for count in (0, 1, 2, 30):
        k, w = np.arange(3.0 * count).reshape(count, 3), np.ones((count, 2))
        shift, found = multipole.prepare(rg.Cauchy, (), k, w, 1e-9).sums(np.ones((5, 3)))
        top, exact = Pairs(rg.Cauchy, (), k, w).sums(np.ones((5, 3)))
        np.testing.assert_array_equal(shift > -np.inf, top > -np.inf)
        if count:
            np.testing.assert_allclose(found * np.exp(shift - top)[:, None, None], exact, rtol=1e-9)
    assert multipole.prepare(rg.Cauchy, (), np.ones((4, 1)), np.ones((4, 1)), 1e-6).sums(np.ones((0, 1)))[1].size == 0


def test_the_number_of_threads_changes_no_bit():
    rng = np.random.default_rng(6)
    for features in (1, 2, 3):
        x, y = rng.uniform(size=(9011, features)), rng.normal(size=(9011, 1))
        for score in (rg.Cauchy(0.05), rg.Laplacian(0.05)):
            one, three = (rg.attention_pool(x, x, y, score, engine="lowdim", threads=n) for n in (1, 3))
            np.testing.assert_array_equal(one, three)


def test_most_pairs_are_never_looked_at(monkeypatch):
    seen = []
    whole = multipole.Multipole._pairwise

    def counted(self, q, own, direct, out):
        seen.append(sum(((last - first) * (stop - start)).sum() for _, first, last, start, stop in direct))
        whole(self, q, own, direct, out)

    monkeypatch.setattr(multipole.Multipole, "_pairwise", counted)
    rng = np.random.default_rng(4)
    for features, share in ((1, 0.01), (2, 0.05)):
        x = rng.uniform(size=(50_021, features))
        for kernel in (rg.Cauchy, rg.Laplacian):
            made = multipole.prepare(kernel, (), x / 0.05, np.ones((len(x), 1)), 1e-6)
            made.sums(x / 0.05)
            assert seen.pop() < share * len(x) ** 2
            assert "tree" not in vars(made)


def test_auto_takes_expansions_where_they_cost_less():
    rng = np.random.default_rng(4)
    x, y = rng.uniform(size=(20_011, 2)), rng.normal(size=(20_011, 1))
    for score in (rg.Cauchy(0.1), rg.RationalQuadratic(0.1, 2.0), rg.Laplacian(0.1), rg.Matern52(0.1)):
        assert rg.choose_engine(x, x, y, score, rtol=1e-6).name == "lowdim"
    x = rng.uniform(size=(5003, 3))
    told = rg.choose_engine(x, x, y[:5003], rg.Cauchy(0.1), rtol=1e-6).reasons["lowdim"]
    assert told == "expansions of so many terms, 757, cost more than all pairs at once"
