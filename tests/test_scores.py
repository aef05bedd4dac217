"""Scores: formulas against the kernels they are the logarithm of, slopes, edges, composition, errors."""

from __future__ import annotations

import dataclasses
import pickle

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

import regard as rg
from regard.scores import SCORES, named, names
from regard.scores.base import Kernel

# the kernels as the literature writes them, of r = |d| / h; normalised here by K(0)
KERNELS = {
    "gaussian": lambda r: mpmath.exp(-(r**2) / 2),
    "laplacian": lambda r: mpmath.exp(-r),
    "epanechnikov": lambda r: 1 - r**2 if r < 1 else 0,
    "biweight": lambda r: (1 - r**2) ** 2 if r < 1 else 0,
    "triweight": lambda r: (1 - r**2) ** 3 if r < 1 else 0,
    "tricube": lambda r: (1 - r**3) ** 3 if r < 1 else 0,
    "triangular": lambda r: 1 - r if r < 1 else 0,
    "uniform": lambda r: 1 if r <= 1 else 0,
    "cosine_kernel": lambda r: mpmath.cos(mpmath.pi * r / 2) if r < 1 else 0,
    "raised_cosine": lambda r: (1 + mpmath.cos(mpmath.pi * r)) / 2 if r < 1 else 0,
    "parzen": lambda r: mpmath.mpf(4) / 3 - 8 * r**2 + 8 * r**3 if r <= 0.5 else 8 * (1 - r) ** 3 / 3 if r < 1 else 0,
    "logistic": lambda r: 1 / (mpmath.exp(r) + 2 + mpmath.exp(-r)),
    "cauchy": lambda r: 1 / (1 + r**2),
    "rational_quadratic": lambda r: (1 + r**2 / 2) ** -1,
    "matern32": lambda r: (1 + mpmath.sqrt(3) * r) * mpmath.exp(-mpmath.sqrt(3) * r),
    "matern52": lambda r: (1 + mpmath.sqrt(5) * r + 5 * r**2 / 3) * mpmath.exp(-mpmath.sqrt(5) * r),
}
DISTANCES = [0.0, 1e-12, 1e-7, 1e-3, 0.1, 0.3, 0.49, 0.5, 0.51, 0.9, 0.999, 1 - 2.0**-20, 1.001, 1.7, 5.0, 40.0]


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_formula_is_the_logarithm_of_the_kernel(name, dtype):
    mpmath.mp.dps = 60
    x = np.array(DISTANCES, dtype=dtype)[:, None]
    got = SCORES[name](1.0)(x, np.zeros((1, 1), dtype))[:, 0]
    assert got.dtype == dtype
    eps = np.finfo(dtype).eps
    for s, r in zip(got, x[:, 0], strict=True):
        k = KERNELS[name](mpmath.mpf(float(r))) / KERNELS[name](mpmath.mpf(0))
        if k == 0:
            assert s == -np.inf
            continue
        # r^2 is rounded before the formula sees it: an error of eps u times the slope in u
        slope = (
            abs(mpmath.diff(lambda u: mpmath.log(KERNELS[name](mpmath.sqrt(u))), mpmath.mpf(float(r)) ** 2, h=1e-30))
            if r > 0
            else 0
        )
        tolerance = 4 * eps * (1 + abs(float(mpmath.log(k)))) + 2 * eps * float(r) ** 2 * float(slope)
        assert abs(float(s) - float(mpmath.log(k))) <= tolerance


def finite(xp, x):
    return (xp.isfinite(x) if xp is np else torch.isfinite(x)).all()


@pytest.mark.parametrize("score", [s for s in SCORES.values() if getattr(s, "kernel", None)], ids=lambda s: s.__name__)
def test_a_kernel_is_exp_of_its_formula(score: type[Kernel]):
    u = np.concatenate([np.linspace(0, 1.2, 1201), [1e-300, 1e-9, 0.25, 1 - 1e-9, 1.0, 30.0, 1e12]])
    parameters = [np.asarray(x) for x in score().parameters(np, u[:, None]).values()]
    with np.errstate(divide="ignore"):
        expected = np.exp(score.formula(np, u, *(p.reshape(()) for p in parameters)))
    # exp of a logarithm is off by eps times the logarithm's size; near the edge both cancel in 1 - u
    np.testing.assert_allclose(score.kernel(np, u, *(p.reshape(()) for p in parameters)), expected, rtol=2e-14, atol=0)


def test_slope_is_the_derivative_of_the_formula(kernel: type[Kernel]):
    parameters = [p.item() for p in kernel(1.0).parameters(np, np.zeros(1)).values()]
    u = np.array([d**2 for d in DISTANCES if d not in (0.0, 0.5, 1.001)])
    t = torch.tensor(u, requires_grad=True)
    p = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in parameters]
    s = kernel.formula(torch, t, *p)
    inside = torch.isfinite(s)
    expected = torch.autograd.grad(s[inside].sum(), [t, *p], materialize_grads=True)
    got = kernel.slope(np, u, *parameters)
    mask = inside.numpy()
    # torch differentiates the formula step by step, which cancels near r = 0: an error of eps / r
    rtol = 1e-12 + 8 * np.finfo(float).eps / np.sqrt(u[mask])
    assert (np.abs(got[0][mask] - expected[0].numpy()[mask]) <= rtol * np.abs(got[0][mask])).all()
    for mine, theirs, x in zip(got[1:], expected[1:], parameters, strict=True):
        if x == parameters[0] and kernel.__name__ == "Uniform":
            assert not mine.any()  # the edge is not a parameter to be learned
        else:
            assert mine[mask].sum() == pytest.approx(float(theirs))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_slopes_are_finite_everywhere(kernel: type[Kernel], dtype):
    u = np.array([0.0, 1e-38, 1e-30, 1e-10, 0.25, 1 - 2.0**-24, 1.0, 1 + 1e-6, 2.0, 1e10, 1e18], dtype=dtype)
    parameters = [np.asarray(p.item(), dtype=dtype) for p in kernel(1.0).parameters(np, np.zeros(1)).values()]
    with np.errstate(all="raise", under="ignore"):
        slopes = kernel.slope(np, u, *parameters)
    for s in slopes:
        assert np.isfinite(s).all()
        assert s.dtype == dtype
    if kernel.__name__ in ("Laplacian", "Triangular"):
        assert slopes[0][0] == 0
    if kernel.tail == "compact":
        assert not slopes[0][u > 1 + 1e-5].any()


def test_torch_gradient_of_the_formula_is_finite_everywhere(kernel: type[Kernel]):
    u = torch.tensor([0.0, 1e-30, 0.25, 1.0, 2.0, 1e10], dtype=torch.float64, requires_grad=True)
    parameters = [torch.tensor(p.item()) for p in kernel(1.0).parameters(np, np.zeros(1)).values()]
    s = kernel.formula(torch, u, *parameters)
    g = torch.autograd.grad(torch.where(torch.isfinite(s), s, 0.0).sum(), u, materialize_grads=True)[0]
    assert torch.isfinite(g).all()


def test_the_uniform_kernel_is_closed_and_the_others_are_open(kernel: type[Kernel], dtype):
    if kernel.tail != "compact":
        return
    x = np.array([[0.0], [0.3]], dtype=dtype)
    at_edge = kernel(np.asarray(0.3, dtype))(x[:1], x[1:])[0, 0]
    assert at_edge == (0 if kernel.__name__ == "Uniform" else -np.inf)
    eps = np.finfo(dtype).eps
    beyond = np.array([[0.3 * (1 + 40 * eps)]], dtype)
    assert kernel(np.asarray(0.3, dtype))(x[:1], beyond)[0, 0] == -np.inf


def test_a_new_kernel_is_its_file_and_a_line():
    """A kernel defined here and listed nowhere already runs everywhere: the list only gives it a name."""

    @dataclasses.dataclass(frozen=True, eq=False)
    class QuarticDecay(Kernel):
        """1 / (1 + u)^2 as a score."""

        tail = "power"

        @staticmethod
        def formula(xp, u):
            return -2 * xp.log1p(u)

        @staticmethod
        def slope(xp, u):
            return (-2 / (1 + u),)

    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(5, 2)), rng.normal(size=(7, 2)), rng.normal(size=(7, 3))
    w = (1 + ((query[:, None] - key) ** 2).sum(-1) / 0.49) ** -2
    expected = w / w.sum(1, keepdims=True) @ value
    for engine in ("reference", "tiled"):
        np.testing.assert_allclose(rg.attention_pool(query, key, value, QuarticDecay(0.7), engine=engine), expected)
    t = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    assert torch.autograd.gradcheck(lambda q, k, v: rg.attention_pool(q, k, v, QuarticDecay(0.7)), t)


def test_categorical_kernels_are_their_definitions():
    q, k = np.array([[0.0], [2.0]]), np.array([[0.0], [1.0], [2.0]])
    lam = 0.3
    aitken = np.where(q == k.T, 1 - lam, lam / 2)
    np.testing.assert_allclose(rg.AitchisonAitken(lam, levels=3)(q, k), np.log(aitken / (1 - lam)), atol=1e-15)
    d = np.abs(q - k.T)
    ryzin = np.where(d == 0, 1 - lam, (1 - lam) * lam**d / 2)
    np.testing.assert_allclose(rg.WangVanRyzin(lam)(q, k), np.log(ryzin / (1 - lam)), atol=1e-15)
    np.testing.assert_allclose(rg.LiRacine(lam)(q, k), np.log(np.where(q == k.T, 1, lam)), atol=1e-15)
    np.testing.assert_allclose(rg.OrderedLiRacine(lam)(q, k), np.log(lam**d), atol=1e-15)
    for exact in (rg.AitchisonAitken(0.0, levels=3), rg.WangVanRyzin(0.0), rg.LiRacine(0.0), rg.OrderedLiRacine(0.0)):
        np.testing.assert_array_equal(exact(q, k), np.where(q == k.T, 0, -np.inf))
    np.testing.assert_array_equal(rg.AitchisonAitken(2 / 3, levels=3)(q, k).round(15), np.zeros((2, 3)))
    for ignored in (rg.LiRacine(1.0), rg.OrderedLiRacine(1.0)):
        np.testing.assert_array_equal(ignored(q, k), np.zeros((2, 3)))


def test_dot_products_and_cosine():
    rng = np.random.default_rng(1)
    q, k, w = rng.normal(size=(5, 3)), rng.normal(size=(7, 3)), rng.normal(size=(3, 3))
    np.testing.assert_allclose(rg.ScaledDotProduct()(q, k), q @ k.T / np.sqrt(3))
    np.testing.assert_allclose(rg.ScaledDotProduct(scale=2.0)(q, k), 2 * q @ k.T)
    np.testing.assert_allclose(rg.Bilinear(w)(q, k), q @ w @ k.T)
    k[2] = 0
    cosine = q @ k.T / np.linalg.norm(q, axis=1)[:, None] / np.maximum(np.linalg.norm(k, axis=1), 1e-300)
    np.testing.assert_allclose(rg.CosineSimilarity(3.0)(q, k), 3 * cosine, atol=1e-15)
    np.testing.assert_allclose(rg.CosineSimilarity(3.0)(q * 1e200, k * 1e-200), 3 * cosine, atol=1e-15)


def test_scores_add_scale_and_look_at_columns():
    rng = np.random.default_rng(2)
    q, k = rng.normal(size=(5, 4)), rng.normal(size=(7, 4))
    a, b = rg.Gaussian(0.7), rg.Cauchy(1.3)
    np.testing.assert_allclose((a + b)(q, k), a(q, k) + b(q, k))
    np.testing.assert_allclose((2 * a)(q, k), 2 * a(q, k))
    np.testing.assert_allclose((a * 2)(q, k), 2 * a(q, k))
    np.testing.assert_allclose(a.on([2, 0])(q, k), a(q[:, [2, 0]], k[:, [2, 0]]))
    np.testing.assert_allclose(a.on(slice(1, 3))(q, k), a(q[:, 1:3], k[:, 1:3]))
    np.testing.assert_allclose(a.on([-1])(q, k), a(q[:, 3:], k[:, 3:]))
    np.testing.assert_allclose((a + b).on([1])(q, k), a(q[:, 1:2], k[:, 1:2]) + b(q[:, 1:2], k[:, 1:2]))
    np.testing.assert_allclose((2 * (a + b).on([1])).on([3, 2])(q, k), 2 * (a + b)(q[:, 2:3], k[:, 2:3]))
    w = rng.normal(size=(2, 4))
    np.testing.assert_allclose(a.through(w)(q, k), a(q @ w.T, k @ w.T), atol=1e-14)
    support = rg.Epanechnikov(1.0).on([0]) + rg.Uniform(1.0).on([1])
    inside = (np.abs(q[:, None, 0] - k[:, 0]) < 1) & (np.abs(q[:, None, 1] - k[:, 1]) < 1)
    np.testing.assert_array_equal(support(q, k) > -np.inf, inside)


def test_a_product_of_gaussians_is_a_gaussian_with_a_bandwidth_per_feature():
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=(5, 2)), rng.normal(size=(7, 2))
    product = rg.Gaussian(0.7).on([0]) + rg.Gaussian(1.9).on([1])
    np.testing.assert_allclose(product(q, k), rg.Gaussian([0.7, 1.9])(q, k))
    np.testing.assert_allclose(rg.Gaussian([0.7, np.inf])(q, k), rg.Gaussian(0.7).on([0])(q, k))


def test_the_offset_table_is_looked_up():
    table = np.arange(15.0).reshape(5, 3)
    q = np.array([[i, j] for i in range(6) for j in range(4)], dtype=float)
    s = rg.OffsetTable(table)(q, q)
    for a, (i, j) in enumerate(q):
        for b, (k, m) in enumerate(q):
            y, x = int(k - i) + 2, int(m - j) + 1
            assert s[a, b] == (table[y, x] if 0 <= y < 5 and 0 <= x < 3 else -np.inf)
    heads = rg.OffsetTable(np.stack([table, 2 * table]), axes=2)(q, q)
    np.testing.assert_array_equal(heads, np.stack([s, np.where(np.isinf(s), s, 2 * s)]))


def test_scores_pickle(case):
    score = case.make(lambda x: np.asarray(x, dtype=float))
    query, key, _ = case.arrays(4, 5, 7, 1)
    again = pickle.loads(pickle.dumps(score))
    np.testing.assert_array_equal(again(query, key), score(query, key))


def test_numbers_inside_a_score_never_promote(case, front):
    c = front("float32")
    query, key, _ = case.arrays(5, 5, 7, 1)
    score = case.make(front("float64"))
    assert score(c(query), c(key)).dtype == c(query).dtype


def test_names():
    assert names() == sorted(names())
    assert {"gaussian", "matern32", "rational_quadratic", "wang_van_ryzin", "scaled_dot_product"} <= set(names())
    assert isinstance(named("rational_quadratic", bandwidth=2.0, alpha=3.0), rg.RationalQuadratic)
    with pytest.raises(ValueError, match=r"unknown score 'gausian'; the known ones are additive, .*, gaussian, "):
        named("gausian")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rg.Gaussian(0.0), "`bandwidth` of Gaussian must be positive; got 0."),
        (lambda: rg.Gaussian([1.0, -2.0]), "`bandwidth` of Gaussian must be positive; got -2."),
        (lambda: rg.Gaussian(np.nan), "`bandwidth` of Gaussian must be positive; got nan."),
        (lambda: rg.Gaussian("wide"), "`bandwidth` of Gaussian must be a number or an array of numbers"),
        (
            lambda: rg.RationalQuadratic(1.0, alpha=0.0),
            "`alpha` of RationalQuadratic must be positive and finite; got 0.",
        ),
        (lambda: rg.RationalQuadratic(1.0, alpha=np.inf), "`alpha` of RationalQuadratic must be positive and finite"),
        (lambda: -1.0 * rg.Gaussian(1.0), "`factor` of Scaled must be positive and finite; got -1."),
        (lambda: rg.AitchisonAitken(0.8, levels=3), "must lie between 0 and 0.666667 for 3 levels; got 0.8"),
        (lambda: rg.AitchisonAitken(0.2, levels=1), "`levels` of AitchisonAitken must be a whole number of at least 2"),
        (lambda: rg.WangVanRyzin(1.5), "`bandwidth` of WangVanRyzin must lie between 0 and 1; got 1.5"),
        (lambda: rg.LiRacine(-0.5), "`bandwidth` of LiRacine must lie between 0 and 1; got -0.5"),
        (lambda: rg.OrderedLiRacine(2), "`bandwidth` of OrderedLiRacine must lie between 0 and 1; got 2"),
        (lambda: rg.OffsetTable(np.zeros(4)), r"must have an odd length along each offset axis .* got shape \(4,\)"),
        (
            lambda: rg.Additive(np.zeros((5, 2)), np.zeros((4, 2)), np.zeros(5)),
            r"of one hidden size H; got \(5, 2\), \(4",
        ),
        (lambda: rg.Bilinear(np.zeros(3)), r"must be a matrix \(Dq, Dk\); got shape \(3,\)"),
        (lambda: rg.Gaussian(1.0).on([0, 0]), r"`columns` must be distinct; got \[0, 0\]"),
        (
            lambda: rg.Gaussian(1.0).on(["age"]),
            r"must be whole numbers, .* Names of columns are known to the estimators",
        ),
        (lambda: rg.Gaussian(1.0).through(np.zeros(3)), r"Write weight\[None, :\] for one row"),
    ],
)
def test_errors_at_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("score", "dims", "message"),
    [
        (rg.Gaussian(1.0), (2, 3), r"Gaussian compares .* the same size; got query \(..., 2\) and key \(..., 3\)"),
        (rg.Gaussian([1.0, 2.0]), (3, 3), "got 2 bandwidths for 3 features"),
        (rg.Gaussian(1.0).on([3]), (3, 3), r"column 3 is not there: query has 3 features \(0 to 2\)"),
        (rg.Gaussian(1.0).on([0, -2]), (2, 2), r"`columns` must be distinct; got \[0, -2\] of 2 features"),
        (rg.AitchisonAitken(0.2, levels=3), (2, 2), r"compares one column; got 2. Add one score per column"),
        (
            rg.Additive(np.zeros((5, 2)), np.zeros((5, 3)), np.zeros(5)),
            (2, 2),
            r"wants key \(..., 3\); got key \(..., 2\)",
        ),
        (rg.Bilinear(np.zeros((2, 3))), (3, 2), r"must be \(Dq, Dk\); got query \(..., 3\) and key \(..., 2\)"),
        (rg.OffsetTable(np.zeros((3, 3))), (1, 1), "with 2 offset axes wants positions of as many columns"),
        (rg.ScaledDotProduct(), (2, 3), "ScaledDotProduct compares queries and keys of the same size"),
        (rg.Gaussian(1.0).through(np.zeros((2, 3))), (2, 2), r"maps 3 features; got query \(..., 2\)"),
    ],
)
def test_errors_before_any_work(score, dims, message):
    with pytest.raises(ValueError, match=message):
        rg.attention_weights(np.zeros((5, dims[0])), np.zeros((7, dims[1])), score)


# --- kernels of bounded supports --------------------------------------------------------------------------------------
@pytest.mark.parametrize("b", [0.01, 0.1, 2.0])
def test_beta_and_gamma_are_the_densities_over_their_largest_values(b):
    rng = np.random.default_rng(1)
    z, t = rng.uniform(size=(5, 1)), rng.uniform(size=(7, 1))
    beta = [stats.beta(q / b + 1, (1 - q) / b + 1) for q in z[:, 0]]
    expected = [p.logpdf(t[:, 0]) - p.logpdf(q) for p, q in zip(beta, z[:, 0], strict=True)]
    np.testing.assert_allclose(rg.Beta(b, low=-2.0, high=2.0)(4 * z - 2, 4 * t - 2), expected, rtol=1e-9, atol=1e-9)
    gamma = [stats.gamma(q / b + 1, scale=b) for q in z[:, 0]]
    expected = [p.logpdf(t[:, 0]) - p.logpdf(q) for p, q in zip(gamma, z[:, 0], strict=True)]
    np.testing.assert_allclose(rg.Gamma(b, low=3.0)(z + 3, t + 3), expected, rtol=1e-9, atol=1e-9)


def test_at_the_ends_of_a_support_the_bias_is_smaller_than_that_of_a_kernel_that_spills_over():
    x = np.linspace(0.0, 1.0, 401)[:, None]
    ends, h = np.array([[0.0], [1.0]]), 0.05
    bias = {
        score: abs(rg.attention_pool(ends, x, np.exp(x), score) - np.exp(ends))[:, 0]
        for score in (rg.Gaussian(h), rg.Beta(4 * h**2), rg.Gamma(2 * h**2))
    }
    gaussian, beta, gamma = bias.values()
    assert (beta < 0.3 * gaussian).all()
    assert gamma[0] < 0.3 * gaussian[0]


def test_what_is_beyond_a_support_stands_at_its_end():
    keys = np.array([[0.1], [0.5]])
    for score in (rg.Beta(0.2), rg.Gamma(0.2)):
        np.testing.assert_array_equal(score(np.array([[-3.0]]), keys), score(np.array([[0.0]]), keys))
        assert np.isfinite(score(keys, np.array([[-1.0], [0.0], [2.0]]))).all()
    np.testing.assert_array_equal(rg.Beta(0.2)(np.array([[7.0]]), keys), rg.Beta(0.2)(np.array([[1.0]]), keys))


def test_ends_of_a_support_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match=r"`low` of Beta must be below `high`; got low=2\.0 and high=1\.0\."):
        rg.Beta(0.1, low=2.0, high=1.0)
    with pytest.raises(ValueError, match=r"Beta compares queries and keys of the same size"):
        rg.Beta(0.1)(np.zeros((1, 2)), np.zeros((1, 3)))
