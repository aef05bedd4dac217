"""Partial results: any cut, order and grouping gives the whole, with masks, dropout, NaN and gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

import regard as rg

Q, K, D, V = 5, 17, 2, 3
SCORE = rg.Laplacian(0.7)
LIBRARIES: dict[str, Callable[[Any], Any]] = {"numpy": np.asarray, "torch": lambda x: torch.as_tensor(np.array(x))}
# masks that know the positions of a part from where it starts
MASKS = {
    "none": None,
    "causal": rg.Causal(offset=3),
    "causal_batch": rg.Causal(offset=[-2, 11]),
    "window": rg.Window(2, 4, offset=5),
    "not_self": rg.NotSelf(offset=1),
    "length": rg.ValidLength([4, 15]),
    "combined": rg.Window(1, 1, alignment="start") | ~rg.Causal(offset=9) & rg.ValidLength(14),
}


def data(seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, Q, D)), rng.normal(size=(2, K, D)), rng.normal(size=(2, K, V))


def neutral(lead: tuple[int, ...], c: Callable[[Any], Any] = np.asarray) -> rg.Partial:
    return rg.Partial(c(np.full(lead, -np.inf)), c(np.zeros(lead)), c(np.zeros((*lead, V))))


@pytest.fixture(params=sorted(LIBRARIES))
def library(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return LIBRARIES[request.param]


@settings(max_examples=100, deadline=None)
@given(
    cuts=st.lists(st.integers(0, K), max_size=6),
    rows=st.integers(0, Q),
    name=st.sampled_from(sorted(MASKS)),
    dropout=st.sampled_from([0.0, 0.5]),
    library=st.sampled_from(sorted(LIBRARIES)),
    order=st.randoms(use_true_random=False),
)
def test_any_cut_order_and_grouping_gives_the_whole(cuts, rows, name, dropout, library, order):
    c, options = LIBRARIES[library], {"dropout": dropout, "seed": 8}
    query, key, value = (c(x) for x in data())
    mask = MASKS[name]
    whole = rg.attention_pool(query, key, value, SCORE, mask=mask, **options)
    total = rg.partial_pool(query, key, value, SCORE, mask=mask, **options)
    for i, j in ((0, rows), (rows, Q)):
        edges = [0, *sorted(cuts), K]
        parts = [
            rg.partial_pool(
                query[:, i:j], key[:, a:b], value[:, a:b], SCORE, query_start=i, key_start=a, mask=mask, **options
            )
            for a, b in pairwise(edges)
        ]
        while len(parts) > 1:  # any two next, so any order and any grouping
            order.shuffle(parts)
            parts.append(parts.pop().merge(parts.pop()))
        np.testing.assert_allclose(parts[0].finish(), whole[:, i:j], atol=1e-14)
        np.testing.assert_allclose(parts[0].log_weight_sum, total.log_weight_sum[:, i:j], rtol=1e-14, atol=1e-14)


def test_the_neutral_element_changes_nothing(library, engine):
    query, key, value = (library(x) for x in data())
    partial = rg.partial_pool(query, key, value, SCORE, mask=rg.Causal(offset=-2), engine=engine)
    nobody = rg.partial_pool(query, key[:, :0], value[:, :0], SCORE, mask=rg.Causal(offset=-2), engine=engine)
    empty = neutral((2, Q), library)
    np.testing.assert_array_equal(nobody.max, empty.max)
    np.testing.assert_array_equal(nobody.weight_sum, empty.weight_sum)
    np.testing.assert_array_equal(nobody.value_sum, empty.value_sum)
    for other in (empty, nobody, empty.merge(nobody), nobody.merge(empty)):
        for merged in (partial.merge(other), other.merge(partial)):
            for name in ("max", "weight_sum", "value_sum"):
                np.testing.assert_array_equal(getattr(merged, name), getattr(partial, name))
        np.testing.assert_array_equal(other.merge(other).finish(), np.zeros((2, Q, V)))
        np.testing.assert_array_equal(other.merge(other).log_weight_sum, np.full((2, Q), -np.inf))
        assert (np.asarray(other.merge(other).max) == -np.inf).all()


def test_the_fields_are_what_the_docstring_says(library, engine, small_tiles):
    query, key, value = (library(x) for x in data(1))
    s = np.asarray(SCORE(query, key))
    partial = rg.partial_pool(query, key, value, SCORE, engine=engine)
    w = np.exp(s - np.asarray(partial.max)[..., None])
    if engine != "lowdim":  # whose shift is what its sums are made with
        np.testing.assert_allclose(partial.max, s.max(-1), rtol=1e-14)
    np.testing.assert_allclose(partial.weight_sum, w.sum(-1), rtol=1e-14)
    np.testing.assert_allclose(partial.value_sum, w @ np.asarray(value), atol=1e-14)
    assert not getattr(partial.max, "requires_grad", False)
    by_hand = rg.Partial(*(library(np.array(x)) for x in ([2.0], [4.0], [[6.0, 2.0, 0.0]])))
    np.testing.assert_array_equal(by_hand.finish(), [[1.5, 0.5, 0.0]])
    np.testing.assert_allclose(by_hand.log_weight_sum, [2 + np.log(4)], rtol=1e-15)


@pytest.mark.parametrize("bias", [0.0, 900.0, -900.0])
def test_the_log_weight_sum_is_that_of_the_scores(case, bias, library, engine, small_tiles, to_numpy):
    """In natural logarithms, and whatever shift an engine applied is undone: exp of these scores is 0 or inf."""
    query, key, value = case.arrays(2, Q, K, V, (2,))
    if case.name != "offset_table":
        query, key = query + 64, key + 64  # a common offset, which prepare subtracts from distances
    mask, score = rg.Window(3, 5, offset=1), case.make(library)
    arrays = [library(x) for x in (query, key, value)]
    spread = library(np.full((Q, 1), bias))
    s = to_numpy(score(*arrays[:2])) + np.zeros((2, Q, K)) + bias
    d = np.arange(K) - np.arange(Q)[:, None] - 1
    expected = logsumexp(np.where((d >= -3) & (d <= 5), s, -np.inf), axis=-1)
    partial = rg.partial_pool(*arrays, score, mask=mask, bias=spread, engine=engine)
    np.testing.assert_allclose(to_numpy(partial.log_weight_sum), expected, rtol=2e-14, atol=1e-12)


def test_a_position_counts_from_the_whole(library, engine):
    """The third query of a part that starts at 4 is query 6 of the whole."""
    x = library(np.zeros((4, 1)))
    value = library(np.arange(10.0, 14.0)[:, None])
    options: dict[str, Any] = {"query_start": 4, "key_start": 10, "engine": engine}
    partial = rg.partial_pool(x, x, value, rg.Constant(), mask=rg.Window(0, 0, offset=6), **options)
    np.testing.assert_array_equal(partial.finish()[:, 0], [10, 11, 12, 13])
    partial = rg.partial_pool(x, x, value, rg.Constant(), mask=rg.Causal(offset=5), **options)
    np.testing.assert_array_equal(partial.finish()[:, 0], [0, 10, 10.5, 11])
    partial = rg.partial_pool(x, x, value, rg.Constant(), mask=rg.ValidLength(12), **options)
    np.testing.assert_array_equal(partial.finish()[:, 0], [10.5] * 4)
    partial = rg.partial_pool(x, x, value, rg.Constant(), mask=rg.NotSelf(offset=7), **options)
    np.testing.assert_allclose(partial.finish()[:, 0], [35 / 3, 34 / 3, 11, 11.5], rtol=1e-15)
    assert rg.partial_pool(x, x, value, rg.Constant(), key_start=np.int64(3)).finish().shape == (4, 1)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_merges_in_float32_and_finishes_in_half(name):
    dtype = getattr(torch, name)
    query, key, value = (torch.as_tensor(x).to(dtype) for x in data(3))
    parts = [rg.partial_pool(query, key[:, n : n + 1], value[:, n : n + 1], SCORE, key_start=n) for n in range(K)]
    merged = reduce(rg.Partial.merge, parts)
    assert {merged.max.dtype, merged.weight_sum.dtype, merged.value_sum.dtype, merged.log_weight_sum.dtype} == {
        torch.float32
    }
    whole = rg.attention_pool(query, key, value, SCORE)
    assert merged.finish().dtype == whole.dtype == dtype
    # one rounding to half apart at most, where float32 falls on either side of a tie
    torch.testing.assert_close(merged.finish(), whole, rtol=torch.finfo(dtype).eps, atol=0)
    exact = rg.attention_pool(query.double(), key.double(), value.double(), SCORE)
    torch.testing.assert_close(merged.finish().double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_many_parts_in_float32_lose_nothing():
    """Three fields, and not max + log(sum): at a score of 1e6 the logarithm of a sum has no digits left in float32."""
    rng = np.random.default_rng(4)
    key, value = np.zeros((2000, 1), np.float32), rng.normal(size=(2000, 1)).astype(np.float32)
    bias = (1e6 - rng.integers(0, 3, size=2000)).astype(np.float32)
    parts = [
        rg.partial_pool(key[:1], key[i : i + 1], value[i : i + 1], rg.Constant(), bias=bias[i : i + 1])
        for i in range(2000)
    ]
    w = np.exp(bias.astype(float) - 1e6)
    exact = (w @ value.astype(float)) / w.sum()
    merged = reduce(rg.Partial.merge, parts)
    # 2000 additions in a row, each rounded once; a logarithm of 1e6 would be off by 0.03 and the sum by as much
    atol = 2000 * np.finfo(np.float32).eps / 2
    np.testing.assert_allclose(merged.finish()[0], exact, atol=atol)
    np.testing.assert_allclose(merged.weight_sum, w.sum(), rtol=atol)


@pytest.mark.parametrize("far", [1e3, 1e30, 1e308])
def test_parts_of_any_size_meet(far, library):
    one, other = (
        rg.Partial(library(np.array([top])), library(np.array([2.0])), library(np.array([[v, 4.0, 0.0]])))
        for top, v in ((-far, 2.0), (far, 8.0))
    )
    for merged in (one.merge(other), other.merge(one)):
        np.testing.assert_array_equal(merged.finish(), [[4.0, 2.0, 0.0]])
        np.testing.assert_array_equal(merged.log_weight_sum, [far + np.log(2)])


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("near", [True, False])
def test_what_is_not_finite_survives_a_merge_in_its_own_column(rubbish, near, library, engine):
    key = np.array([0.0, 0.5, 1e5 if not near else 0.8, 1.0])[:, None]  # far: its weight underflows
    value = np.arange(4 * V, dtype=float).reshape(4, V)
    value[2, 1] = rubbish
    query = np.zeros((2, 1))
    mask = rg.Causal(offset=1)  # the first query does not see the third key
    arrays = [library(x) for x in (query, key, value)]
    whole = np.asarray(rg.attention_pool(*arrays, rg.Gaussian(1.0), mask=mask, engine=engine))
    parts = [
        rg.partial_pool(arrays[0], arrays[1][n : n + 1], arrays[2][n : n + 1], rg.Gaussian(1.0),
                        key_start=n, mask=mask, engine=engine)
        for n in range(4)
    ]  # fmt: skip
    np.testing.assert_array_equal(whole[1, 1], rubbish)
    assert np.isfinite(np.delete(whole.ravel(), 4)).all()
    for order in ((0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)):
        merged = reduce(rg.Partial.merge, [parts[n] for n in order])
        np.testing.assert_allclose(merged.finish(), whole, atol=1e-14)


def test_infinities_of_both_signs_are_no_number(library):
    lead = (1,)
    high, low = (
        rg.Partial(library(np.zeros(lead)), library(np.ones(lead)), library(np.array([[x, 1.0, 2.0]])))
        for x in (np.inf, -np.inf)
    )
    np.testing.assert_array_equal(high.merge(low).finish(), [[np.nan, 1.0, 2.0]])
    lost = rg.Partial(library(np.zeros(lead)), library(np.full(lead, np.nan)), library(np.full((1, V), np.nan)))
    only_weights = rg.Partial(library(np.zeros(lead)), library(np.full(lead, np.nan)), library(np.ones((1, V))))
    for merged in (lost.merge(high), high.merge(lost), lost.merge(neutral(lead, library)), only_weights):
        np.testing.assert_array_equal(merged.finish(), np.full((1, V), np.nan))
        np.testing.assert_array_equal(merged.log_weight_sum, [np.nan])


def test_a_nan_key_reaches_the_rows_that_see_it_through_a_merge(library, engine):
    query, key, value = data(5)
    key[:, 6] = np.nan
    arrays, mask = [library(x) for x in (query, key, value)], rg.Causal(offset=4)
    whole = rg.partial_pool(*arrays, SCORE, mask=mask, engine=engine)
    a, b = (
        rg.partial_pool(arrays[0], arrays[1][:, i:j], arrays[2][:, i:j], SCORE, key_start=i, mask=mask, engine=engine)
        for i, j in ((0, 5), (5, K))
    )
    np.testing.assert_allclose(a.merge(b).finish(), whole.finish(), atol=1e-14)
    np.testing.assert_allclose(b.merge(a).log_weight_sum, whole.log_weight_sum, atol=1e-13)
    np.testing.assert_array_equal(np.isnan(np.asarray(whole.log_weight_sum)), [np.arange(Q) >= 2] * 2)


@pytest.mark.parametrize("result", ["finish", "log_weight_sum"])
def test_gradients_run_through_merge(result, engine, small_tiles):
    arrays = [torch.tensor(x, requires_grad=True) for x in data(6)]
    h = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(2, Q, K, dtype=torch.float64, requires_grad=True)
    mask, inputs = rg.Causal(offset=2), [*arrays, h, bias]
    grad = torch.as_tensor(np.random.default_rng(7).normal(size=(2, Q, V)))

    def loss(cuts: list[int]) -> torch.Tensor:
        parts = [
            rg.partial_pool(
                arrays[0], arrays[1][:, i:j], arrays[2][:, i:j], rg.Gaussian(h),
                bias=bias[..., i:j], key_start=i, mask=mask, engine=engine,
            )
            for i, j in pairwise(cuts)
        ]  # fmt: skip
        merged = reduce(rg.Partial.merge, parts[::-1])
        assert not merged.max.requires_grad
        return (merged.finish() * grad).sum() if result == "finish" else (merged.log_weight_sum * grad[..., 0]).sum()

    whole = torch.autograd.grad(loss([0, K]), inputs, allow_unused=True)
    cut = torch.autograd.grad(loss([0, 0, 3, 12, 13, K]), inputs, allow_unused=True)
    for found, expected, name in zip(cut, whole, ("query", "key", "value", "bandwidth", "bias"), strict=True):
        if name == "value" and result == "log_weight_sum":
            assert expected is None or not expected.any()
            continue
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    if result == "log_weight_sum":  # its derivative to the scores is the weights
        w = rg.attention_weights(arrays[0], arrays[1], rg.Gaussian(h), mask=mask)
        torch.testing.assert_close(whole[4], w * grad[..., :1], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(cut[4], w * grad[..., :1], rtol=1e-12, atol=1e-14)


def test_the_gradients_of_a_merge_are_those_of_finite_differences(engine):
    arrays = [torch.tensor(x[:1, :3], requires_grad=True) for x in data(8)]

    def merged(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = rg.partial_pool(query, key[:, :1], value[:, :1], rg.Gaussian(1.0), engine=engine)
        b = rg.partial_pool(query, key[:, 1:], value[:, 1:], rg.Gaussian(1.0), key_start=1, engine=engine)
        both = a.merge(b)
        return both.finish(), both.log_weight_sum

    assert torch.autograd.gradcheck(merged, arrays)
    assert torch.autograd.gradgradcheck(merged, arrays)


def test_gradients_of_rows_without_a_key_or_with_a_nan_stay_clean(engine):
    query, key, value = data(9)
    value[:, 2, 1] = np.nan  # the last two queries see it
    tensors = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    mask = rg.Causal(offset=-1) & rg.KeyPadding(np.arange(K) > 0)  # the first two queries see nothing
    parts = [
        rg.partial_pool(
            tensors[0], tensors[1][:, i:j], tensors[2][:, i:j], SCORE, key_start=i,
            mask=rg.Causal(offset=-1) & rg.KeyPadding(np.arange(i, j) > 0), engine=engine,
        )
        for i, j in ((0, 1), (1, 5), (5, K))
    ]  # fmt: skip
    merged = reduce(rg.Partial.merge, parts)
    out = merged.finish()
    whole = rg.attention_pool(*(torch.tensor(x) for x in (query, key, value)), SCORE, mask=mask)
    np.testing.assert_allclose(out.detach(), whole, atol=1e-14)
    np.testing.assert_array_equal(torch.isnan(out[0, :, 1]), [False, False, False, True, True])
    live = merged.log_weight_sum
    (out.nansum() + live[live > -torch.inf].sum()).backward()
    for x in tensors:
        assert torch.isfinite(x.grad).all()
    assert not tensors[0].grad[:, :2].any()
    assert tensors[0].grad[:, 2:].any()
