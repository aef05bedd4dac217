"""The laws of pooling, one grid over score x mask x engine x dtype x front end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import regard as rg
from regard.scores import SCORES
from regard.scores.base import Kernel

pytestmark = pytest.mark.usefixtures("small_tiles")

Q, K, V = 7, 13, 3
# rounding of a sum of K products, with the exponents of scores up to about 30 in size
ATOL = {"float64": 4e-14, "float32": 2e-5}

MASKS = {
    "none": None,
    "length": rg.ValidLength(8),
    "per_query": rg.ValidLength([0, 1, 2, 13, 5, 7, 11], per_query=True),
    "causal": rg.Causal(alignment="start"),
    "window": rg.Window(2, 1, alignment="end"),
    "not_self": rg.NotSelf(offset=3),
    "padding": rg.KeyPadding(np.arange(K) % 3 != 1),
    "segments": rg.Segments([0, 0, 1, 1, 2, -1, 2], [2, 0, 0, 1, 1, 1, -1, 2, 2, 0, 1, 0, 3]),
    "combined": (rg.Causal(alignment="end") & ~rg.Window(1, 0, alignment="end")) | rg.KeyPadding(np.arange(K) == 4),
    "nothing": rg.ValidLength(0),
}


def dense(mask, queries=Q, keys=K):
    """The mask as a matrix, made from its effect on a constant score and nothing else."""
    if mask is None:
        return np.ones((queries, keys), dtype=bool)
    return rg.attention_weights(np.zeros((queries, 1)), np.zeros((keys, 1)), rg.Constant(), mask=mask) > 0


@pytest.fixture(params=sorted(MASKS))
def mask(request):
    return MASKS[request.param]


def test_engines_agree_with_the_definition(case, mask, engine, dtype, front, to_numpy):
    c = front(dtype)
    query, key, value = map(c, case.arrays(0, Q, K, V))
    score = case.make(c)
    s = to_numpy(case.make(front("float64"))(*map(front("float64"), case.arrays(0, Q, K, V)[:2])))
    s = np.where(dense(mask), s, -np.inf)
    top = s.max(axis=1, keepdims=True)
    w = np.exp(s - np.where(np.isfinite(top), top, 0))
    w = w / np.where(w.sum(1, keepdims=True) > 0, w.sum(1, keepdims=True), 1)
    out = rg.attention_pool(query, key, value, score, mask=mask, engine=engine)
    shown = rg.attention_weights(query, key, score, mask=mask, engine=engine)
    assert out.dtype == query.dtype
    np.testing.assert_allclose(to_numpy(shown), w, atol=ATOL[dtype])
    np.testing.assert_allclose(to_numpy(out), w @ case.arrays(0, Q, K, V)[2], atol=4 * ATOL[dtype])


def test_weights_sum_to_one_and_pool_the_values(case, mask, engine, dtype, front, to_numpy):
    c = front(dtype)
    query, key, value = map(c, case.arrays(1, Q, K, V))
    score = case.make(c)
    w = to_numpy(rg.attention_weights(query, key, score, mask=mask, engine=engine))
    out = to_numpy(rg.attention_pool(query, key, value, score, mask=mask, engine=engine))
    some = (w > 0).any(axis=1)
    eps = np.finfo(dtype).eps
    assert (w >= 0).all()
    np.testing.assert_allclose(w.sum(axis=1)[some], 1, atol=K * eps)
    np.testing.assert_array_equal(w.sum(axis=1)[~some], 0)
    np.testing.assert_array_equal(out[~some], 0)
    np.testing.assert_allclose(w @ to_numpy(value), out, atol=8 * K * eps)
    low, high = to_numpy(value).min(0), to_numpy(value).max(0)
    assert ((out[some] >= low - 8 * eps * abs(low)) & (out[some] <= high + 8 * eps * abs(high))).all()
    assert not w[~dense(mask)].any()


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf, 1e30])
def test_a_masked_key_is_a_deleted_key(case, engine, front, rubbish, to_numpy):
    c = front("float64")
    query, key, value = case.arrays(2, Q, K, V)
    keep = np.ones(K, dtype=bool)
    keep[[0, 4, 11]] = False
    expected = rg.attention_pool(c(query), c(key[keep]), c(value[keep]), case.make(c), engine=engine)
    key, value = key.copy(), value.copy()
    key[~keep], value[~keep] = rubbish, rubbish
    out = rg.attention_pool(c(query), c(key), c(value), case.make(c), mask=rg.KeyPadding(keep), engine=engine)
    np.testing.assert_allclose(to_numpy(out), to_numpy(expected), atol=ATOL["float64"])
    w = to_numpy(rg.attention_weights(c(query), c(key), case.make(c), mask=rg.KeyPadding(keep), engine=engine))
    assert not w[:, ~keep].any()
    assert np.isfinite(w).all()


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["key", "value", "query", "bias"])
def test_a_live_non_finite_number_reaches_only_who_sees_it(case, engine, front, rubbish, where, to_numpy):
    c = front("float64")
    query, key, value = (x.copy() for x in case.arrays(3, Q, K, V))
    score = case.make(c)
    mask = rg.Causal(alignment="start")
    bias = np.zeros((Q, K))
    clean = to_numpy(rg.attention_pool(c(query), c(key), c(value), score, mask=mask, engine=engine))
    sees = dense(mask)[:, 4] & (to_numpy(score(c(query), c(key)))[:, 4] > -np.inf if where == "value" else True)
    hit = np.zeros((Q, V), dtype=bool)
    if where == "key":
        key[4] = rubbish
        hit[sees] = True
    elif where == "value":
        value[4, 1] = rubbish
        hit[sees, 1] = True
    elif where == "query":
        query[5] = rubbish
        hit[5] = True
    else:
        bias[5, 3] = rubbish
        bias[5, 9] = rubbish  # behind the mask
        hit[5] = rubbish != -np.inf
    if case.name == "constant" and where in ("key", "query"):
        hit[:] = False  # this score looks at neither
    if where == "bias" and rubbish == -np.inf:
        return  # a bias of -inf is a mask: test_masks
    out = to_numpy(rg.attention_pool(c(query), c(key), c(value), score, mask=mask, bias=c(bias), engine=engine))
    np.testing.assert_allclose(out[~hit], clean[~hit], atol=ATOL["float64"])
    expected = rubbish if where == "value" else np.nan
    np.testing.assert_array_equal(out[hit], np.full(hit.sum(), expected))


def test_a_value_that_is_not_finite_reaches_even_where_its_weight_underflows(engine, front, to_numpy):
    c = front("float64")
    out = rg.attention_pool(
        c([[0.0]]), c([[0.0], [1e3]]), c([[1.0, 2.0], [3.0, np.nan]]), rg.Gaussian(1.0), engine=engine
    )
    np.testing.assert_array_equal(to_numpy(out), [[1.0, np.nan]])


@pytest.mark.parametrize("what", ["mask", "support", "no_keys", "bias"])
def test_no_key_left_is_zero_without_a_warning(engine, dtype, front, what, to_numpy):
    c = front(dtype)
    query, key, value = np.zeros((Q, 2)), np.full((K, 2), 9.0), np.ones((K, V))
    mask, bias, score = None, None, rg.Gaussian(1.0)
    if what == "mask":
        mask = np.zeros((Q, K), dtype=bool)
        mask = torch.as_tensor(mask) if front is not None and isinstance(c(0.0), torch.Tensor) else mask
    elif what == "support":
        score = rg.Epanechnikov(1.0)
    elif what == "no_keys":
        key, value = key[:0], value[:0]
    else:
        bias = c(np.full((1, K), -np.inf))
    args = c(query), c(key)
    np.testing.assert_array_equal(
        to_numpy(rg.attention_pool(*args, c(value), score, mask=mask, bias=bias, engine=engine)), np.zeros((Q, V))
    )
    w = to_numpy(rg.attention_weights(*args, score, mask=mask, bias=bias, engine=engine))
    np.testing.assert_array_equal(w, np.zeros((Q, len(key))))
    partial = rg.partial_pool(*args, c(value), score, mask=mask, bias=bias, engine=engine)
    np.testing.assert_array_equal(to_numpy(partial.log_weight_sum), np.full(Q, -np.inf))
    assert (to_numpy(partial.max) == -np.inf).all()
    assert not to_numpy(partial.weight_sum).any()
    top, index = rg.top_attention(*args, score, n=2, mask=mask, bias=bias, engine=engine)
    assert not to_numpy(top).any()
    assert (to_numpy(index) == -1).all()


def test_parts_merge_to_the_whole_in_any_order(case, engine, dtype, front, to_numpy):
    c = front(dtype)
    query, key, value = map(c, case.arrays(4, Q, K, V))
    score, mask = case.make(c), rg.Causal(offset=2)
    whole = to_numpy(rg.attention_pool(query, key, value, score, mask=mask, engine=engine))
    cuts = [(0, 3), (3, 3), (3, 8), (8, 13)]
    parts = [
        rg.partial_pool(query, key[i:j], value[i:j], score, key_start=i, mask=mask, engine=engine) for i, j in cuts
    ]
    a, b, d, e = parts
    for merged in (a.merge(b).merge(d).merge(e), e.merge(a.merge(d)).merge(b), b.merge(e).merge(d.merge(a))):
        np.testing.assert_allclose(to_numpy(merged.finish()), whole, atol=ATOL[dtype])


def test_what_changes_nothing(case, engine, dtype, front, to_numpy):
    c = front(dtype)
    query, key, value = map(c, case.arrays(5, Q, K, V))
    score = case.make(c)
    plain = to_numpy(rg.attention_pool(query, key, value, score, engine=engine))
    constant = rg.attention_pool(query, key, value, score, bias=c(np.full((Q, 1), 3.0)), engine=engine)
    np.testing.assert_allclose(to_numpy(constant), plain, atol=ATOL[dtype])
    order = np.random.default_rng(0).permutation(K)
    shuffled = rg.attention_pool(query, key[order], value[order], score, engine=engine)
    np.testing.assert_allclose(to_numpy(shuffled), plain, atol=ATOL[dtype])
    equal = to_numpy(rg.attention_pool(query, key, value * 0 + 2.5, score, engine=engine))
    w = to_numpy(rg.attention_weights(query, key, score, engine=engine)).sum(1, keepdims=True)
    np.testing.assert_allclose(equal, 2.5 * w * np.ones(V), atol=8 * K * np.finfo(dtype).eps)


@pytest.mark.parametrize("shift", [1.0, 2.0**20, 2.0**27])
def test_a_common_offset_changes_nothing(kernel, engine, front, shift, to_numpy):
    c = front("float64")
    rng = np.random.default_rng(6)
    query, key = (np.round(rng.normal(size=(n, 2)) * 2**10) / 2**10 for n in (Q, K))  # exact after the shift as well
    value = c(rng.normal(size=(K, V)))
    score = kernel(1.7)
    plain = rg.attention_pool(c(query), c(key), value, score, engine=engine)
    moved = rg.attention_pool(c(query + shift), c(key + shift), value, score, engine=engine)
    np.testing.assert_allclose(to_numpy(moved), to_numpy(plain), atol=ATOL["float64"])


def test_offset_of_a_hundred_million_keeps_unit_distances():
    x = np.array([1e8, 1e8 + 1, 1e8 + 2])
    np.testing.assert_array_equal(
        rg.attention_weights(x, x, rg.Gaussian(0.7)), rg.attention_weights(x - 1e8, x - 1e8, rg.Gaussian(0.7))
    )


def test_equal_query_and_key_have_score_zero(kernel, dtype, front, to_numpy):
    c = front(dtype)
    x = c(np.random.default_rng(7).normal(size=(K, 2)) * 1e3 + 0.1)
    s = to_numpy(kernel(0.37)(x, x))
    np.testing.assert_array_equal(np.diag(s), 0)
    assert (s <= 0).all()


@pytest.mark.parametrize("wide", [1e12, np.inf])
def test_a_wide_kernel_gives_the_mean(kernel, engine, dtype, front, wide, to_numpy):
    c = front(dtype)
    query, key, value = (c(np.random.default_rng(8).normal(size=s)) for s in ((Q, 2), (K, 2), (K, V)))
    out = rg.attention_pool(query, key, value, kernel(wide), engine=engine)
    np.testing.assert_allclose(to_numpy(out), np.tile(to_numpy(value).mean(0), (Q, 1)), atol=ATOL[dtype])


@pytest.mark.parametrize("narrow", [1e-3, 1e-25, 1e-160, 1e-290])
def test_a_narrow_kernel_gives_the_nearest_with_ties_or_inverse_powers(kernel, engine, dtype, front, narrow, to_numpy):
    if dtype == "float32" and narrow < 1e-37:
        narrow = 1e-37  # the smallest bandwidth that float32 holds
    c = front(dtype)
    key = np.array([[0.0], [1.0], [3.0], [3.0]])
    query = np.array([[0.25], [0.5], [2.5], [3.0]])
    value = np.array([[1.0], [2.0], [4.0], [8.0]])
    out = to_numpy(rg.attention_pool(c(query), c(key), c(value), kernel(narrow), engine=engine))[:, 0]
    tail = kernel.tail
    if tail == "compact":
        expected = [0.0, 0.0, 0.0, 6.0]  # law 2, and the tie of equal keys
    elif tail == "power":
        near, far = kernel(1.0)(np.array([[1e20], [1e30]]), np.zeros((1, 1)))[:, 0]
        power = (near - far) / np.log(1e10)
        w = np.abs(query - key.T)[:3] ** -power
        expected = [*(w @ value[:, 0] / w.sum(1)), 6.0]
    else:
        expected = [1.0, 1.5, 6.0, 6.0]
    # inverse powers are reached as (bandwidth / distance)^2
    atol = max(ATOL[dtype], 10 * narrow**2 / 0.25**2) if tail == "power" else ATOL[dtype]
    np.testing.assert_allclose(out, expected, atol=atol)


@pytest.mark.parametrize("distance", [1e2, 1e4])
def test_a_far_query(kernel, engine, front, distance, to_numpy):
    c = front("float64")
    key, value = np.array([[0.0], [0.5], [1.0]]), np.array([[1.0], [2.0], [4.0]])
    out = to_numpy(rg.attention_pool(c([[distance]]), c(key), c(value), kernel(0.1), engine=engine))[0, 0]
    tail = kernel.tail
    if tail == "compact":
        assert out == 0
    elif tail == "gaussian":
        assert out == pytest.approx(4.0, rel=1e-15)
    elif tail == "power":
        assert out == pytest.approx(value.mean(), abs=10 / distance)
    else:  # fixed weights exp(-r) with r in units of the kernel's own rate
        rate = -float(kernel(0.1)(np.array([[distance]]), np.array([[0.0]]))[0, 0]) / distance
        w = np.exp(rate * (key[:, 0] - 1))
        assert out == pytest.approx(float(w @ value[:, 0] / w.sum()), abs=30 / distance)


def test_each_kernel_states_its_tail():
    for name, score in SCORES.items():
        if issubclass(score, Kernel):
            assert score.tail in ("gaussian", "exponential", "power", "compact"), name


def test_distances_beyond_the_range_of_float64_in_many_tiles(engine, front, to_numpy):
    c = front("float64")
    rng = np.random.default_rng(12)
    query, key, value = rng.normal(size=(41, 2)), rng.normal(size=(53, 2)), rng.normal(size=(53, 1))
    nearest = value[((query[:, None] - key) ** 2).sum(-1).argmin(1)]
    out = rg.attention_pool(c(query), c(key), c(value), rg.Gaussian(1e-250), engine=engine)
    np.testing.assert_array_equal(to_numpy(out), nearest)
    narrow, wide = (
        rg.attention_pool(c(query), c(key), c(value), rg.Cauchy(h), engine=engine) for h in (1e-250, 1e-100)
    )
    np.testing.assert_allclose(to_numpy(narrow), to_numpy(wide), atol=ATOL["float64"])


def test_overflow_is_not_absence(engine, front, to_numpy):
    c = front("float32")
    # scores of 1e60 in float32: the exact answer is the larger one
    out = rg.attention_pool(c([[1e30]]), c([[1e30], [2e30]]), c([[1.0], [2.0]]), rg.ScaledDotProduct(), engine=engine)
    np.testing.assert_array_equal(to_numpy(out), [[2.0]])
    out = rg.attention_pool(c([[1e30]]), c([[-1e30], [-2e30]]), c([[1.0], [2.0]]), rg.ScaledDotProduct(), engine=engine)
    np.testing.assert_array_equal(to_numpy(out), [[1.0]])
    partial = rg.partial_pool(c([[1e30]]), c([[-1e30]]), c([[1.0]]), rg.ScaledDotProduct(), engine=engine)
    np.testing.assert_array_equal(to_numpy(partial.merge(partial).finish()), [[1.0]])


def test_scores_of_any_size(engine, dtype, front, to_numpy):
    c = front(dtype)
    for size in (1e2, 1e4, 1e8):
        out = rg.attention_pool(
            c([[size]]), c([[-1.0], [1.0]]), c([[1.0], [2.0]]), rg.ScaledDotProduct(), engine=engine
        )
        np.testing.assert_array_equal(to_numpy(out), [[2.0]])


@settings(max_examples=60, deadline=None)
@given(
    query=arrays(np.float64, (3, 2), elements=st.floats(-1e6, 1e6)),
    key=arrays(np.float64, (5, 2), elements=st.floats(-1e6, 1e6)),
    value=arrays(np.float64, (5, 1), elements=st.floats(-1e3, 1e3)),
    keep=arrays(bool, (3, 5)),
    bandwidth=st.floats(1e-6, 1e6),
    name=st.sampled_from([n for n, s in SCORES.items() if issubclass(s, Kernel)]),
)
def test_pooling_stays_within_the_values_for_any_data(query, key, value, keep, bandwidth, name):
    score = SCORES[name](bandwidth)
    out = rg.attention_pool(query, key, value, score, mask=keep)
    w = rg.attention_weights(query, key, score, mask=keep)
    assert np.isfinite(out).all()
    some = w.sum(1) > 0
    np.testing.assert_allclose(w.sum(1)[some], 1, atol=1e-14)
    assert not w[~keep].any()
    np.testing.assert_allclose(out, w @ value, atol=1e-12 * (1 + np.abs(value).max()))


@settings(max_examples=40, deadline=None)
@given(
    data=arrays(np.float64, (9, 3), elements=st.floats(-50, 50)),
    first=st.integers(0, 9),
    second=st.integers(0, 9),
)
def test_merging_any_cut_is_pooling_the_whole(data, first, second):
    key, value = data[:, :2], data[:, 2:]
    i, j = sorted((first, second))
    score = rg.Laplacian(3.0)
    parts = [rg.partial_pool(key, key[a:b], value[a:b], score) for a, b in ((0, i), (i, j), (j, 9))]
    merged = parts[2].merge(parts[0]).merge(parts[1])
    np.testing.assert_allclose(merged.finish(), rg.attention_pool(key, key, value, score), atol=1e-12)


def test_the_gaussian_kernel_is_a_softmax_and_ours_stays_right_where_the_ratio_does_not():
    rng = np.random.default_rng(9)
    x, y = rng.normal(size=20), rng.normal(size=20)

    def kernel(u):
        return np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi)

    def ratio(at):
        k = kernel(at[:, None] - x)
        with np.errstate(invalid="ignore"):
            return (k / k.sum(1, keepdims=True)) @ y

    def softmax(at):
        s = -((at[:, None] - x) ** 2) / 2
        e = np.exp(s - s.max(1, keepdims=True))
        return (e / e.sum(1, keepdims=True)) @ y

    near, far = np.linspace(-3, 3, 11), np.array([60.0, -60.0, 1e4])
    ours = rg.attention_pool(near, x, y, rg.Gaussian(1.0))
    np.testing.assert_allclose(ours, ratio(near), atol=1e-14)
    np.testing.assert_allclose(ours, softmax(near), atol=1e-14)
    assert np.isnan(ratio(far)).all()
    np.testing.assert_allclose(rg.attention_pool(far, x, y, rg.Gaussian(1.0)), softmax(far), atol=1e-12)
    np.testing.assert_allclose(rg.attention_pool(far[2:], x, y, rg.Gaussian(1.0)), y[x.argmax()], atol=1e-12)


def test_the_additive_score_is_a_perceptron_of_both():
    rng = np.random.default_rng(10)
    wq, wk, v = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), rng.normal(size=5)
    query, key = rng.normal(size=(Q, 3)), rng.normal(size=(K, 2))
    both = np.concatenate([wk, wq], axis=1)
    perceptron = [[v @ np.tanh(both @ np.concatenate([k, q])) for k in key] for q in query]
    np.testing.assert_allclose(rg.Additive(wq, wk, v)(query, key), perceptron, atol=1e-14)


@pytest.mark.parametrize("lead", [(2,), (2, 5)])
def test_leading_axes_are_separate_problems(case, engine, front, lead, to_numpy):
    c = front("float64")
    query, key, value = case.arrays(11, Q, K, V, lead)
    out = to_numpy(rg.attention_pool(c(query), c(key), c(value), case.make(c), engine=engine))
    assert out.shape == (*lead, Q, V)
    for at in np.ndindex(*lead):
        one = rg.attention_pool(c(query[at]), c(key[at]), c(value[at]), case.make(c), engine=engine)
        np.testing.assert_allclose(out[at], to_numpy(one), atol=ATOL["float64"])
    shared = to_numpy(rg.attention_pool(c(query), c(key[0]), c(value[0]), case.make(c), engine=engine))
    again = rg.attention_pool(c(query[1]), c(key[0]), c(value[0]), case.make(c), engine=engine)
    np.testing.assert_allclose(shared[1], to_numpy(again), atol=ATOL["float64"])
