"""Engine lowdim in several dimensions: cells and trees, held to all pairs at the error that they promise."""

from __future__ import annotations

import numpy as np
import pytest

import regard as rg
from regard.engines.lowdim import cells, tree
from regard.engines.lowdim.pairs import Pairs
from regard.engines.lowdim.sources import exponents

RNG = np.random.default_rng(0)
WIDTHS = (1e-9, 1e-4, 1e-2, 0.05, 0.2, 1.0, 1e6)


def clusters(d):
    parts = [RNG.normal(c, 0.003, (400, d)) for c in (0.0, 0.3, 1.0)]
    return np.concatenate([*parts, np.full((1, d), -50.0), np.full((1, d), 70.0)])


DATA = {
    "uniform": lambda d: RNG.uniform(0, 1, (1200, d)),
    "clusters": clusters,
    "heavy tails": lambda d: RNG.standard_cauchy((1200, d)),
    "ties": lambda d: np.round(RNG.uniform(0, 1, (1200, d)), 1),
    "a line": lambda d: np.linspace(0, 1, 1200)[:, None] * np.arange(d),
}


def queries(x):
    r, rng = np.ptp(x, axis=0), np.random.default_rng(1)
    spread = rng.uniform(x.min(axis=0) - 0.1 * r, x.max(axis=0) + 0.1 * r, (150, x.shape[1]))
    return np.concatenate([spread, rng.choice(x, 100) + rng.normal(size=(100, x.shape[1])) * 1e-3, x[:20]])


def errors(make, x, h, degree=0):
    """Of the weight sum and of pooled values, relative to sum w and sum w |y|; of moments relative to size^m."""
    rng = np.random.default_rng(2)
    y = rng.normal(size=len(x)) * 10 ** rng.uniform(-3, 3, len(x))
    w, k, q = np.stack([np.ones(len(x)), y, abs(y)], 1), (x - x[0]) / h, (queries(x) - x[0]) / h
    top, exact = Pairs(rg.Gaussian, (), k, w).sums(q, degree)
    made = make(k, w)
    shift, found = made.sums(q, degree)
    np.testing.assert_allclose(shift + np.log(found[:, 0, 0]), top + np.log(exact[:, 0, 0]), rtol=1e-14, atol=1e-3)
    near = top > -1e6  # farther out a score is rounded by more than its sums
    top, exact, found = top[near], exact[near], found[near] * np.exp(shift[near] - top[near])[:, None, None]
    wrong = abs(found - exact)
    if degree:
        size = 1 + np.sqrt(-2 * top)
        order = np.array([sum(p) for p in exponents(x.shape[1], degree)])
        return made, (wrong[:, :, 0] / exact[:, :1, 0] / size[:, None] ** order).max()
    scale = np.stack([exact[:, 0, 0], exact[:, 0, 2], exact[:, 0, 2]], 1)
    return made, (wrong[:, 0] / scale).max()


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("data", sorted(DATA))
@pytest.mark.parametrize("d", [2, 3])
def test_cells_keep_the_error_at_every_bandwidth(d, data, rtol):
    x, taken = DATA[data](d), 0
    for h in WIDTHS if rtol == 1e-6 else WIDTHS[2::2]:
        made, wrong = errors(lambda k, w: cells.prepare(rg.Gaussian, (), k, w, rtol), x, h)
        assert wrong < rtol, h
        taken += isinstance(made, cells.Cells)
    assert taken


@pytest.mark.parametrize("data", sorted(DATA))
@pytest.mark.parametrize("d", [2, 4, 7])
def test_the_tree_is_as_exact_as_all_pairs(d, data):
    x = DATA[data](d)
    for h in WIDTHS[1:]:
        _, wrong = errors(lambda k, w: tree.prepare(rg.Gaussian, (), k, w, 1e-6), x, h)
        assert wrong < 1e-9, h  # which a score of 1e6 may be rounded by


@pytest.mark.parametrize("d", [2, 3])
def test_moments_about_the_query(d):
    x = DATA["uniform"](d)
    for h in (0.05, 0.2, 1.0):
        made, wrong = errors(lambda k, w: cells.prepare(rg.Gaussian, (), k, w, 1e-6), x, h, 2)
        assert isinstance(made, cells.Cells)
        assert wrong < 1e-6
        assert errors(lambda k, w: tree.Tree(k, w, None), x, h, 2)[1] < 1e-13


def test_most_queries_are_answered_by_cells(monkeypatch):
    rest = []
    sums = tree.Tree.sums
    monkeypatch.setattr(tree.Tree, "sums", lambda self, q, degree=0: rest.append(len(q)) or sums(self, q, degree))
    x = RNG.uniform(size=(20_000, 2))
    rg.attention_pool(x[:5000], x, x[:, :1], rg.Gaussian(0.05), engine="lowdim")
    assert sum(rest) < 50


@pytest.mark.parametrize("d", [2, 3, 5])
def test_leaving_one_out_in_several_dimensions(d):
    x = np.concatenate([RNG.uniform(size=(800, d)), np.full((1, d), 40.0)])
    y = RNG.normal(size=(801, 2))
    for h in (0.01, 0.3):
        for options in ({}, {"bias": RNG.normal(size=801)}):
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


def test_the_number_of_threads_changes_no_bit():
    rng = np.random.default_rng(6)
    for d, h in ((2, 0.02), (3, 0.1), (5, 0.01)):
        x, y = rng.uniform(size=(6000, d)), rng.normal(size=(6000, 1))
        one, two = (rg.attention_pool(x, x, y, rg.Gaussian(h), engine="lowdim", threads=n) for n in (1, 2))
        np.testing.assert_array_equal(one, two)


def test_auto_takes_it_where_it_saves_something():
    x = RNG.uniform(size=(6000, 2))
    score = rg.Gaussian(0.02)
    assert rg.choose_engine(x, x, x, score, rtol=1e-6).name == "lowdim"
    assert rg.choose_engine(x, x, x, score).name != "lowdim"
    x = RNG.normal(size=(6000, 5))
    assert rg.choose_engine(x, x, x, rg.Gaussian(0.01), rtol=1e-6).name == "lowdim"
    wide = rg.choose_engine(x, x, x, rg.Gaussian(1.0), rtol=1e-6)
    assert wide.reasons["lowdim"] == "the keys lie within a few bandwidths, so that a tree of boxes prunes nothing"
