"""Engine lowdim in two dimensions and more: cells and trees, held to all pairs at the error that they promise."""

from __future__ import annotations

import numpy as np
import pytest

import regard as rg
from regard.engines.lowdim import cells, tree
from regard.engines.lowdim.pairs import Pairs
from regard.engines.lowdim.sources import exponents
from regard.scores import SCORES

EPS = 2.0**-52
WIDTHS = (1e-7, 1e-3, 0.02, 0.2, 1.0, 1e3)
DATA = ("uniform", "clusters", "heavy tails", "ties")
PARAMETERS = {"uniform": (1 + 32 * EPS,)}
FALLING = ("gaussian", "laplacian", "uniform", "epanechnikov")  # each must be compiled


def keys(kind: str, features: int, count: int = 1200) -> np.ndarray:
    rng = np.random.default_rng(features)
    if kind == "uniform":
        return rng.uniform(size=(count, features))
    if kind == "clusters":
        middle = rng.uniform(size=(5, features))[rng.integers(0, 5, count)]
        return np.concatenate([middle + 0.003 * rng.normal(size=(count, features)), [[-50.0] * features]])
    if kind == "heavy tails":
        return rng.standard_cauchy((count, features))
    return np.round(rng.uniform(size=(count, features)), 1)


def queries(x: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(1)
    low, high = x.min(axis=0), x.max(axis=0)
    spread = low - 0.1 * (high - low) + 1.2 * (high - low) * rng.uniform(size=(100, x.shape[1]))
    return np.concatenate([spread, rng.choice(x, 60) + 1e-3 * rng.normal(size=(60, x.shape[1])), x[:20]])


def weights(count: int) -> np.ndarray:
    """Row weights, values of very different sizes, and the sizes of those; a class that few keys have."""
    rng = np.random.default_rng(2)
    y = rng.normal(size=count) * 10 ** rng.uniform(-3, 3, count)
    return np.stack([np.ones(count), y, abs(y), rng.uniform(size=count) < 0.02], 1)


def errors(prepare, name, x, h, rtol, degree=0):
    """Of weight sums and pooled values, beside sum w and sum w |y|, as multiples of what they may be."""
    kernel, given = SCORES[name], PARAMETERS.get(name, ())
    k, q, w = (x - x[0]) / h, (queries(x) - x[0]) / h, weights(len(x))
    top, exact = Pairs(kernel, given, k, w).sums(q, degree)
    shift, found = prepare(kernel, given, k, w, rtol).sums(q, degree)
    live = top > -np.inf
    np.testing.assert_array_equal(shift > -np.inf, live)
    shifted = live & (shift != 0)  # cells have none, a tree has the score of the nearest key
    np.testing.assert_allclose(shift[shifted], top[shifted], rtol=1e-12, atol=1e-9)
    live &= top > -1e12  # beyond that the rounding of scores is all there is
    found, exact, top = found[live] * np.exp(shift[live] - top[live])[:, None, None], exact[live], top[live]
    wrong = abs(found - exact)
    allowed = rtol + 16 * EPS * (1 + abs(top))  # the scores themselves are rounded
    scale = exact[:, 0, [0, 2, 2, 3]]
    worst = (wrong[:, 0] / (scale + 1e-290) / allowed[:, None]).max(initial=0)  # not of what is next to underflow
    if degree:
        size = 1 + np.sqrt(((q[live, None] - k) ** 2).sum(axis=2).min(axis=1))
        order = [sum(p) for p in exponents(x.shape[1], degree)]
        moments = wrong[:, :, 0] / exact[:, :1, 0] / size[:, None] ** order / allowed[:, None]
        worst = max(worst, moments.max(initial=0))
    return worst


@pytest.fixture
def eager(monkeypatch):
    """Expansions wherever their error allows it."""
    monkeypatch.setattr(cells, "PAIR", 1e6)


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("data", DATA)
def test_cells_keep_the_error_at_every_bandwidth(data, rtol, eager):
    for h in (*WIDTHS, 0.05, 0.5):
        assert errors(cells.prepare, "gaussian", keys(data, 2), h, rtol) < 1, h
    for h in (1e-7, 0.02, 0.5, 1e3):
        assert errors(cells.prepare, "gaussian", keys(data, 3), h, rtol) < 1, h


@pytest.mark.parametrize("rtol", [1e-4, 1e-6])
def test_moments_about_the_query_from_cells(rtol, eager):
    for features, h, degree in ((2, 0.05, 4), (2, 10.0, 3), (3, 0.5, 2)):
        assert errors(cells.prepare, "gaussian", keys("uniform", features), h, rtol, degree) < 1, (features, h)


def test_cells_are_used_where_they_are_good_and_worth_it():
    rng = np.random.default_rng(5)
    x, w = rng.uniform(size=(20_000, 2)), np.ones((20_000, 1))
    for h, alone in ((0.1, True), (1e-4, False), (1e-12, False)):
        made = cells.prepare(rg.Gaussian, (), x / h, w, 1e-6)
        made.sums(x[:5000] / h)
        assert ("tree" not in vars(made)) == alone, h
    made = cells.prepare(rg.Gaussian, (), x / 0.1, w, 1e-6)  # some queries are far from all keys
    q = np.concatenate([x[:5000], 30 + x[:5]]) / 0.1
    shift, found = made.sums(q)
    exact = Pairs(rg.Gaussian, (), x / 0.1, w).sums(q[-5:])
    np.testing.assert_allclose(shift[-5:], exact[0])
    np.testing.assert_allclose(found[-5:], exact[1], rtol=1e-6)
    assert (shift[:5000] == 0).all()


def test_keys_far_away_leave_cells_to_the_others():
    rng = np.random.default_rng(8)
    cloud = 0.3 * rng.normal(size=(5000, 3))
    for far in (1e5, 1e8, 1e12):
        x = np.concatenate([cloud, [[far] * 3, [-3 * far, 0, far]], cloud[:4000] + far / 7])
        q = np.concatenate([x[::10], [[far / 2] * 3, [1e100] * 3]])
        made = cells.prepare(rg.Gaussian, (), x, weights(len(x)), 1e-6)
        shift, found = made.sums(q)
        top, exact = Pairs(rg.Gaussian, (), x, weights(len(x))).sums(q)
        assert (shift == 0).mean() > 0.9, far
        near = top > -1e6
        np.testing.assert_allclose((found[:, 0, 0] * np.exp(shift - top))[near], exact[near, 0, 0], rtol=1e-6)


def test_boxes_hold_each_cell_once():
    rng = np.random.default_rng(6)
    at = np.unique(np.concatenate([rng.integers(0, 60, (500, 3)), 5000 + rng.integers(0, 9, (300, 3))]), axis=0)
    for reach in (2, 8):
        found = list(cells.boxes(at, reach))
        assert sorted(np.concatenate(found)) == list(range(len(at)))
        assert all(np.ptp(at[c], axis=0).max() < 60 for c in found)
    assert list(cells.boxes(at[:0], 8)) == []


def test_boxes_without_room_are_halved(monkeypatch):
    rng = np.random.default_rng(7)
    x, w = rng.uniform(size=(20_000, 2)), np.ones((20_000, 1))
    shift, found = cells.prepare(rg.Gaussian, (), x / 0.03, w, 1e-6).sums(x / 0.03)
    monkeypatch.setattr(cells, "LEAST", 0)
    monkeypatch.setattr(cells, "ROOM", 3)
    again = cells.prepare(rg.Gaussian, (), x / 0.03, w, 1e-6).sums(x / 0.03)
    assert (shift == 0).all()
    assert (again[0] == 0).all()
    np.testing.assert_allclose(again[1], found, rtol=1e-7)


@pytest.mark.parametrize("name", FALLING)
@pytest.mark.parametrize("data", DATA)
def test_a_tree_keeps_the_error_at_every_bandwidth(name, data):
    for features, h in zip((2, 3, 4, 5, 6, 8), WIDTHS, strict=True):
        assert errors(tree.prepare, name, keys(data, features), h, 1e-6) < 1, (features, h)
    for features, h in zip((8, 6, 5, 4, 3, 2), WIDTHS, strict=True):
        assert errors(tree.prepare, name, keys(data, features), h, 1e-4) < 1, (features, h)


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-9])
def test_moments_about_the_query_from_a_tree(rtol):
    for name in ("gaussian", "laplacian", "epanechnikov"):
        for features, h in ((2, 0.003), (2, 0.1), (3, 0.03), (4, 1.0)):
            assert errors(tree.prepare, name, keys("clusters", features), h, rtol, degree=3) < 1, (name, h)


def test_a_tree_without_one_key_of_each_query():
    x, own = keys("clusters", 3), np.arange(900)
    w = weights(len(x))
    for h in (1e-7, 1e-3, 0.1):
        k = x / h
        exact = Pairs(rg.Laplacian, (), k, w).sums(k[own], own=own)
        found = tree.prepare(rg.Laplacian, (), k, w, 1e-9).others(k[own], own)
        np.testing.assert_allclose(found[0], exact[0], rtol=1e-12)
        np.testing.assert_allclose(found[1][:, 0, 0], exact[1][:, 0, 0], rtol=1e-6)


def test_few_keys_and_none():
    w = np.ones((70, 1))
    for count in (0, 1, 63, 64, 65, 70):
        x = np.arange(count * 2.0).reshape(count, 2)
        shift, found = tree.prepare(rg.Gaussian, (), x, w[:count], 1e-9).sums(x + 0.5)
        top, exact = Pairs(rg.Gaussian, (), x, w[:count]).sums(x + 0.5)
        np.testing.assert_allclose(shift, top)
        np.testing.assert_allclose(found, exact, rtol=1e-9)


def test_kernels_that_fall_slowly_are_left_to_all_pairs():
    rng = np.random.default_rng(3)
    x, y = rng.uniform(size=(5000, 4)), rng.normal(size=(5000, 1))
    told = rg.choose_engine(x, x, y, rg.Cauchy(0.1), rtol=1e-6).reasons["lowdim"]
    assert told == (
        "expansions of the kernel Cauchy are of 1 to 3 dimensions, not of 4; "
        "the kernel Cauchy falls too slowly for keys to be left out"
    )
    exact = rg.attention_pool(x, x, y, rg.Laplacian(0.03))
    near = rg.attention_pool(x, x, y, rg.Laplacian(0.03), rtol=1e-6, engine="lowdim")
    assert 0 < abs(near - exact).max() < 1e-6 * abs(y).max()


def test_the_number_of_threads_changes_no_bit():
    rng = np.random.default_rng(6)
    x, y = rng.uniform(size=(20_000, 2)), rng.normal(size=(20_000, 1))
    for score in (rg.Gaussian(0.01), rg.Epanechnikov(0.01)):
        one, two = (rg.attention_pool(x, x, y, score, engine="lowdim", rtol=1e-6, threads=n) for n in (1, 2))
        np.testing.assert_array_equal(one, two)


def test_auto_takes_all_pairs_where_a_tree_could_leave_out_little():
    rng = np.random.default_rng(4)
    x, y = rng.uniform(size=(20_000, 4)), rng.normal(size=(20_000, 1))
    assert rg.choose_engine(x, x, y, rg.Laplacian(1e-3), rtol=1e-6).name == "lowdim"
    told = rg.choose_engine(x, x, y, rg.Laplacian(1.0), rtol=1e-6).reasons["lowdim"]
    assert told == "a query would look at 100% of the keys, which costs more than all pairs at once"


@pytest.mark.parametrize("d", [2, 3, 5])
def test_leaving_one_out_in_several_dimensions(d):
    x = np.concatenate([np.random.default_rng(7).uniform(size=(800, d)), np.full((1, d), 40.0)])
    y = np.random.default_rng(7).normal(size=(801, 2))
    for h in (0.01, 0.3):
        for options in ({}, {"bias": np.random.default_rng(7).normal(size=801)}):
            options |= {"mask": rg.NotSelf()}
            found, exact = (
                rg.attention_pool(x, x, y, rg.Gaussian(h), engine=name, **options) for name in ("lowdim", "tiled")
            )
            np.testing.assert_allclose(found, exact, atol=1e-6 * abs(y).max())


@pytest.mark.parametrize("d", [2, 3])
def test_linear_gradients_in_several_dimensions(d):
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(size=(600, d)), np.full((1, d), 9.0)])
    y, cotangent = rng.normal(size=(601, 2)), rng.normal(size=(601, 2))
    for options in ({}, {"mask": rg.NotSelf()}, {"bias": rng.normal(size=601)}):
        found, exact = (
            rg.attention_pool_gradients(cotangent, x, x, y, rg.Gaussian(np.full(d, 0.2)), engine=name, **options)[1]
            for name in ("lowdim", "tiled")
        )
        for a, b in zip((*found[:3], found.score["bandwidth"]), (*exact[:3], exact.score["bandwidth"]), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6 * abs(b).max())
