"""Engine lowdim: sums of kernels in linear time, held to all pairs at the error that it promises."""

from __future__ import annotations

import numpy as np
import pytest

import regard as rg
from regard.engines.lowdim import line
from regard.engines.lowdim.pairs import Pairs

RNG = np.random.default_rng(0)
DATA = {
    "uniform": RNG.uniform(0, 1, 1500),
    "clusters": np.concatenate([*(RNG.normal(c, 0.003, 400) for c in (0, 0.3, 1)), [-50.0, 70.0]]),
    "heavy tails": RNG.standard_cauchy(1500),
    "ties": np.round(RNG.uniform(0, 1, 1500), 2),
}
WIDTHS = (1e-9, 1e-5, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e6)


def queries(x: np.ndarray) -> np.ndarray:
    r, rng = np.ptp(x), np.random.default_rng(1)
    spread = rng.uniform(x.min() - 0.1 * r, x.max() + 0.1 * r, 200)
    return np.concatenate([spread, rng.choice(x, 100) + rng.normal(size=100) * 1e-3, x[:20]])


def errors(kernel, parameters, x, h, rtol, degree=0):
    """Of the weight sum and of the pooled value, relative to sum w and sum w |y|; of moments relative to size^m."""
    rng = np.random.default_rng(2)
    y = rng.normal(size=len(x)) * 10 ** rng.uniform(-3, 3, len(x))
    w, k = np.stack([np.ones(len(x)), y, abs(y)], 1), ((x - x[0]) / h)[:, None]
    q = ((queries(x) - x[0]) / h)[:, None]
    top, exact = Pairs(kernel, parameters, k, w).sums(q, degree)
    shift, found = line.prepare(kernel, parameters, k, w, rtol).sums(q, degree)
    live = top > -np.inf
    np.testing.assert_array_equal(shift > -np.inf, live)
    found = found[live] * np.exp(shift[live] - top[live])[:, None, None]
    wrong, exact = abs(found - exact[live]), exact[live]
    if degree:
        size = 1 + abs(k - q[live, 0]).min(axis=0)
        return max((wrong[:, m, 0] / exact[:, 0, 0] / size**m).max(initial=0) for m in range(degree + 1))
    scale = np.stack([exact[:, 0, 0], exact[:, 0, 2], exact[:, 0, 2]], 1)
    return (wrong[:, 0] / scale).max(initial=0)


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("data", sorted(DATA))
def test_the_gaussian_keeps_the_error_at_every_bandwidth(data, rtol):
    for h in WIDTHS:
        assert errors(rg.Gaussian, (), DATA[data], h, rtol) < rtol, h


@pytest.mark.parametrize("kernel", list(line.POLYNOMIALS))
@pytest.mark.parametrize("data", sorted(DATA))
def test_kernels_with_a_support_are_as_exact_as_all_pairs_at_every_bandwidth(data, kernel):
    parameters, x = (1 + 32 * 2.0**-52,) if kernel is rg.Uniform else (), DATA[data]
    inner, outer = line.POLYNOMIALS[kernel]
    w = np.stack([np.ones(len(x)), np.random.default_rng(2).normal(size=len(x))], 1)
    for h in WIDTHS:
        k, q = ((x - x[0]) / h)[:, None], ((queries(x)[::2] - x[0]) / h)[:, None]
        t = abs(q.astype(np.longdouble) - k[:, 0])
        exact = np.where(t < 1, 1 - np.minimum(t, 1) ** inner, 0) ** outer if outer else (t * t <= parameters[0])
        exact = exact.astype(np.longdouble) @ w
        live, found = exact[:, 0] > 0, []
        for made in (Pairs(kernel, parameters, k, w), line.prepare(kernel, parameters, k, w, 1e-6)):
            shift, sums = made.sums(q)
            np.testing.assert_array_equal(shift > -np.inf, live)
            sums = sums[live, 0]
            found.append(abs(sums[:, 1] / sums[:, 0] - exact[live, 1] / exact[live, 0]).max(initial=0) / abs(w).max())
        assert found[1] <= 10 * found[0] + 1e-15, h


@pytest.mark.parametrize("kernel", [rg.Gaussian, rg.Epanechnikov, rg.Tricube])
def test_moments_about_the_query(kernel):
    for h in (1e-3, 0.1, 10.0):
        assert errors(kernel, (), DATA["uniform"], h, 1e-9, degree=4) < 1e-8, h


def test_auto_takes_it_for_many_pairs_where_the_error_is_lost_or_allowed():
    rng = np.random.default_rng(3)
    x, y = rng.uniform(size=(5000, 1)), rng.normal(size=(5000, 1))
    assert rg.choose_engine(x, x, y, rg.Tricube(0.1), rtol=1e-6).name == "lowdim"
    assert rg.choose_engine(x, x, y, rg.Tricube(0.1)).reasons["lowdim"].startswith("the answer is to be exact")
    assert rg.choose_engine(*(a.astype(np.float32) for a in (x, x, y)), rg.Tricube(0.1)).name == "lowdim"
    assert rg.choose_engine(x, x, y, rg.Gaussian(0.1)).name == "lowdim"
    told = rg.choose_engine(x[:300], x[:300], y[:300], rg.Gaussian(0.1)).reasons["lowdim"]
    assert told == "for 90,000 pairs its keys are not worth sorting"
    assert rg.choose_engine(x, x, y, rg.Cauchy(0.1), rtol=1e-6).name == "lowdim"
    exact = rg.attention_pool(x, x, y, rg.Gaussian(0.01), engine="fused")
    near = rg.attention_pool(x, x, y, rg.Gaussian(0.01), rtol=1e-9)
    assert 0 < abs(near - exact).max() < 1e-9 * abs(y).max()


@pytest.mark.parametrize(
    ("kernel", "features", "dtype"),
    [
        (rg.Gaussian, 1, "float64"),
        *((kernel, 1, "float32") for kernel in (rg.Gaussian, rg.Epanechnikov, rg.Tricube, rg.Uniform, rg.Triangular)),
        (rg.Gaussian, 2, "float32"),
    ],
)
@pytest.mark.parametrize("h", [1e-3, 0.1, 30.0])
def test_what_auto_takes_for_exact_is_as_exact_as_all_pairs(kernel, features, dtype, h):
    errors = {"auto": [], "fused": []}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        q, k = (rng.normal(size=(n, features)).astype(dtype) for n in (4100, 4500))
        v = rng.normal(size=(4500, 2)).astype(dtype)
        assert rg.choose_engine(q, k, v, kernel(h)).name == ("lowdim" if (features, h) != (2, 0.1) else "fused")
        rows = slice(0, 4100, 40)
        wide = [x.astype(np.longdouble if dtype == "float64" else np.float64) for x in (q[rows], k, v)]
        if kernel.tail == "compact":  # at an edge the very rounding of a distance decides
            gap = abs(abs(q[rows] - k.T) / np.asarray(h, dtype) - 1).min(axis=1) > 1e-5
        else:
            gap = np.ones(len(wide[0]), bool)
        exact = rg.attention_pool(*wide, kernel(h), engine="reference")
        for engine, found in errors.items():
            out = rg.attention_pool(q, k, v, kernel(h), engine=engine)[rows]
            found.append(float(abs(out - exact)[gap].max(initial=0) / abs(v).max()))
    assert np.median(errors["auto"]) <= np.median(errors["fused"]) + 4 * np.finfo(dtype).eps


@pytest.mark.parametrize("rtol", [0, 1.0, -1e-6, "1e-6"])
def test_an_error_that_is_none_is_refused(rtol):
    x = np.zeros(3)
    with pytest.raises(ValueError, match="`rtol` must be a number between 0 and 1, or None for an exact answer"):
        rg.attention_pool(x, x, x, rg.Gaussian(1.0), rtol=rtol)


# not float32 at 1e-5: keys are 250 bandwidths apart, which multiplies the rounding of the pooled value
@pytest.mark.parametrize(
    ("h", "dtype"), [(1e-5, "float64"), (1e-2, "float64"), (1.0, "float64"), (1e-2, "float32"), (1.0, "float32")]
)
def test_leave_one_out_and_its_gradients(h, dtype):
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(size=400), [3.0, 3.1]]).astype(dtype)
    y, g = (rng.normal(size=402).astype(dtype) for _ in range(2))
    bias = np.log(rng.integers(1, 5, 402)).astype(dtype)[None, :]
    own = {"mask": rg.NotSelf(), "bias": bias}
    out, found = rg.attention_pool_gradients(g, x, x, y, rg.Gaussian(h), **own, engine="lowdim", rtol=1e-9)
    plain, exact = rg.attention_pool_gradients(g, x, x, y, rg.Gaussian(h), **own, engine="tiled")
    eps = {"float64": 1e-8, "float32": 2e-4}[dtype]
    np.testing.assert_allclose(out, plain, atol=eps)
    for a, b in zip(found[:4], exact[:4], strict=True):
        np.testing.assert_allclose(a, b, atol=eps * abs(b).max())
    np.testing.assert_allclose(
        found.score["bandwidth"], exact.score["bandwidth"], atol=eps * abs(exact.key).max(), rtol=100 * eps
    )


def test_prepared_keys_are_kept_for_the_next_call_and_for_the_same_score():
    rng = np.random.default_rng(5)
    X, y = rng.uniform(size=(5000, 1)), rng.normal(size=5000)
    model = rg.NadarayaWatsonRegressor(bandwidth=0.05).fit(X, y)
    first = model.predict(X)
    (kept,) = model._memory.kept.values()
    (made,) = kept.values()
    np.testing.assert_array_equal(model.predict(X), first)
    assert next(iter(next(iter(model._memory.kept.values())).values())) is made
    exact = rg.NadarayaWatsonRegressor(bandwidth=0.05, engine="fused").fit(X, y).predict(X)
    np.testing.assert_allclose(first, exact, atol=1e-6 * abs(y).max())


def test_the_number_of_threads_changes_no_bit():
    rng = np.random.default_rng(6)
    x, y = rng.uniform(size=(70_000, 1)), rng.normal(size=(70_000, 1))
    for score in (rg.Gaussian(1e-3), rg.Epanechnikov(1e-3)):
        one, two = (rg.attention_pool(x, x, y, score, rtol=1e-6, threads=n) for n in (1, 2))
        np.testing.assert_array_equal(one, two)
