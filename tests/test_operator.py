"""What the field's operator needs of the front door: caps, shared heads, cache offsets, biases, scores on request."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard as rg

B, H, G, Q, K, D, V = 2, 3, 5, 7, 11, 4, 13


def arrays(seed=0, heads=(H * G, H, H), lengths=(Q, K, K), width=(D, D, V)):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(B, h, n, d)) for h, n, d in zip(heads, lengths, width, strict=True)]


def tensors(*given):
    return [torch.tensor(x, requires_grad=True) for x in given]


def plain(query, key, value, bias=0.0, live=None, cap=None):
    """The operator as anyone writes it, in torch, with keys repeated."""
    key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
    s = query @ key.mT / query.shape[-1] ** 0.5
    s = s if cap is None else cap * torch.tanh(s / cap)
    s = s + bias
    s = s if live is None else torch.where(live, s, -torch.inf)
    return torch.nan_to_num(torch.softmax(s, -1)) @ value


def shared(query, key, value, score, **options):
    q, k, v = (rg.grouped(x, heads=key.shape[-3]) for x in (query, key, value))
    return rg.ungrouped(rg.attention_pool(q, k, v, score, **options))


# which engine can tell what: "matrix" and "sdpa" know the dot product alone, "sdpa" records nothing
@pytest.mark.parametrize("engine", ["auto", "reference", "tiled", "fused", "matrix"])
@pytest.mark.parametrize("heads", [H, 1])
def test_shared_heads_are_repeated_heads_with_their_gradients(engine, heads):
    given = tensors(*arrays(heads=(H * G, heads, heads)))
    bias = torch.tensor(np.random.default_rng(1).normal(size=(1, H * G, Q, 1)), requires_grad=True)
    out = shared(*given, rg.ScaledDotProduct(), bias=rg.grouped(bias, heads), engine=engine)
    wanted = plain(*given, bias)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-14)
    cotangent = torch.tensor(np.random.default_rng(2).normal(size=out.shape))
    for x, y in zip(*(torch.autograd.grad(o, [*given, bias], cotangent) for o in (out, wanted)), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)


def test_pytorchs_kernel_takes_shared_heads():
    given = [torch.tensor(x) for x in arrays()]
    out = shared(*given, rg.ScaledDotProduct(), engine="sdpa")
    torch.testing.assert_close(out, plain(*given), rtol=0, atol=1e-14)
    turned = [x.swapaxes(1, 2).contiguous().swapaxes(1, 2) for x in given]  # (B, N, H, C) in memory, as layers have it
    torch.testing.assert_close(shared(*turned, rg.ScaledDotProduct(), engine="sdpa"), out, rtol=0, atol=1e-14)


def test_heads_are_split_and_joined_as_views():
    query, key, _ = arrays()
    assert rg.grouped(query, H).shape == (B, H, G, Q, D)
    assert rg.grouped(key, H).shape == (B, H, 1, K, D)
    assert rg.grouped(np.ones((B, 1, Q, K)), H).shape == (B, 1, 1, Q, K)
    for x in (query, query.swapaxes(1, 2).copy().swapaxes(1, 2)):
        assert np.shares_memory(rg.grouped(x, H), x)
    np.testing.assert_array_equal(rg.ungrouped(rg.grouped(query, H)), query)
    with pytest.raises(ValueError, match=r"the 15 heads of `array` \(2, 15, 7, 4\) must be a multiple of the 4 "):
        rg.grouped(query, 4)
    with pytest.raises(ValueError, match=r"`heads` must be a whole number of at least 1; got 0\."):
        rg.grouped(query, 0)
    with pytest.raises(ValueError, match=r"`array` must have a head axis, \(\.\.\., H, N, C\); got \(7, 4\)\."):
        rg.grouped(query[0, 0], 1)
    with pytest.raises(ValueError, match=r"`array` must be \(\.\.\., heads, group, N, C\); got \(15, 7, 4\)\."):
        rg.ungrouped(query[0])


MANY = 16  # query heads that share one


class Bytes(TorchDispatchMode):
    """The largest storage that any operation of torch makes."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, torch.Tensor):
                self.most = max(self.most, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(
    ("engine", "front"),
    [
        ("tiled", "numpy"),
        ("fused", "numpy"),
        ("matrix", "numpy"),
        ("reference", "numpy"),
        ("reference", "torch"),
        ("tiled", "torch"),
        ("sdpa", "torch"),
        ("fused", "torch"),
        ("matrix", "torch"),
    ],
)
def test_no_engine_repeats_a_key(engine, front):
    heads, lengths, width = (2 * MANY, 2, 2), (1, 997, 997), (64, 64, 64)
    given = arrays(heads=heads, lengths=lengths, width=width)
    given = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in given]
    if front == "torch":
        given = [torch.tensor(x) for x in given]
    keys = B * 2 * 997 * 64 * 8
    with Bytes():
        shared(*given, rg.ScaledDotProduct(), engine=engine)  # loads and compiles
    tracemalloc.start()
    try:
        with Bytes() as seen:
            shared(*given, rg.ScaledDotProduct(), engine=engine)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 3 * keys  # what belongs to keys and to values once each, and scores; repeated keys were 16
    assert seen.most < 2 * keys


@pytest.mark.parametrize("engine", ["fused", "matrix"])
def test_no_gradient_repeats_a_key(engine):
    given = arrays(heads=(2 * MANY, 2, 2), lengths=(1, 997, 997), width=(64, 64, 64))
    q, k, v = (rg.grouped(x, 2) for x in given)
    keys = B * 2 * 997 * 64 * 8
    rg.attention_pool_gradients(1.0, q, k, v, rg.ScaledDotProduct(), engine=engine)
    tracemalloc.start()
    try:
        _, grads = rg.attention_pool_gradients(1.0, q, k, v, rg.ScaledDotProduct(), engine=engine)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert grads.key.shape == k.shape
    assert most < 8 * keys  # keys, values, their gradients, and parts of these; repeated, each of them were 16


@pytest.mark.parametrize("engine", ["auto", "reference", "tiled", "fused", "matrix", "sdpa"])
@pytest.mark.parametrize("of", ["entry", "head"])
def test_cache_offsets_per_entry(engine, of):
    given = [torch.tensor(x) for x in arrays(heads=(H, H, H))]
    rng = np.random.default_rng(3)
    offset = torch.tensor(rng.integers(-2, K, size=B if of == "entry" else (B, H)))
    lengths = torch.tensor([K, 5])
    here = offset.reshape(*offset.shape, *(1,) * (4 - offset.ndim))
    i, j = torch.arange(Q)[:, None], torch.arange(K)
    live = (j <= i + here) & (j >= i + here - 3) & (j < lengths[:, None, None, None])
    mask = rg.Causal(offset=offset) & rg.Window(3, 2, offset=offset) & rg.ValidLength(lengths)
    out = rg.attention_pool(*given, rg.ScaledDotProduct(), mask=mask, engine=engine)
    torch.testing.assert_close(out, plain(*given, live=live), rtol=0, atol=1e-14)
    assert (~live.any(-1)).any()  # a query without any key is among them


SHAPES = [
    (),
    (K,),
    (1,),
    (Q, K),
    (Q, 1),
    (1, K),
    (H, Q, K),
    (H, 1, 1),
    (1, Q, K),
    (B, H, Q, K),
    (B, 1, 1, K),
    (B, H, 1, 1),
]


@pytest.mark.parametrize("engine", ["auto", "reference", "tiled", "fused", "matrix"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_and_biases_of_every_rank_with_the_gradient_summed(engine, shape):
    given = tensors(*arrays(heads=(H, H, H)))
    rng = np.random.default_rng(4)
    bias = torch.tensor(rng.normal(size=shape), requires_grad=True)
    live = torch.tensor(rng.random(shape) < 0.6) if shape not in ((), (1,)) else torch.ones(shape, dtype=torch.bool)
    out = rg.attention_pool(*given, rg.ScaledDotProduct(), mask=live, bias=bias, engine=engine)
    wanted = plain(*given, bias, live)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-14)
    cotangent = torch.tensor(rng.normal(size=out.shape))
    pairs = zip(*(torch.autograd.grad(o, [*given, bias], cotangent) for o in (out, wanted)), strict=True)
    for x, y in pairs:
        assert x.shape == y.shape
        torch.testing.assert_close(x, torch.nan_to_num(y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["auto", "reference", "tiled", "fused"])
def test_a_cap_comes_before_the_mask_and_has_its_gradient(engine):
    given = tensors(*arrays(heads=(H, H, H)))
    cap = torch.tensor([0.3, 0.9, 2.0], dtype=torch.float64, requires_grad=True)  # one per head
    bias = torch.full((Q, K), 0.5, dtype=torch.float64).index_fill(1, torch.tensor([2]), -torch.inf)
    out = rg.attention_pool(
        *given, rg.SoftCap(rg.ScaledDotProduct(), cap), mask=rg.Causal(offset=1), bias=bias, engine=engine
    )
    live = torch.arange(K) <= torch.arange(Q)[:, None] + 1
    wanted = plain(*given, bias, live, cap[:, None, None])
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-14)
    for x, y in zip(*(torch.autograd.grad(o.square().sum(), [*given, cap]) for o in (out, wanted)), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


def test_caps_compose_and_keep_supports():
    x = np.linspace(-2, 2, 17)[:, None]
    inside = rg.Epanechnikov(1.0)(x, x) > -np.inf
    s = rg.SoftCap(rg.Epanechnikov(1.0), 0.5)(x, x)
    np.testing.assert_array_equal(s > -np.inf, inside)
    assert np.abs(s[inside]).max() <= 0.5
    raw = rg.Gaussian(0.3)(x, x)
    twice = rg.SoftCap(2.0 * rg.SoftCap(rg.Gaussian(0.3), 3.0), 1.5)(x, x)
    np.testing.assert_allclose(twice, 1.5 * np.tanh(2 * 3 * np.tanh(raw / 3) / 1.5), rtol=0, atol=1e-15)
    assert rg.SoftCap(rg.Gaussian(1.0), 2.0).shift_invariant
    assert not rg.SoftCap(rg.ScaledDotProduct(), 2.0).shift_invariant


def test_what_cannot_be_capped():
    with pytest.raises(TypeError, match=r"`score` of SoftCap must be a score, such as .*; got str"):
        rg.SoftCap("gaussian", 1.0)
    with pytest.raises(ValueError, match=r"SoftCap caps one score; got a sum of 2\. Cap each of them"):
        rg.SoftCap(2 * (rg.Gaussian(1.0) + rg.Constant()), 1.0)
    with pytest.raises(ValueError, match=r"`cap` of SoftCap must be positive and finite; got 0\."):
        rg.SoftCap(rg.Gaussian(1.0), 0.0)


def test_scores_step_by_step():
    given = tensors(*arrays(heads=(H, H, H)))
    query, key, _ = given
    bias = torch.tensor(np.random.default_rng(5).normal(size=(H, 1, K)), requires_grad=True)
    score, mask = rg.SoftCap(rg.ScaledDotProduct(), 0.7), rg.Causal(offset=-2)
    raw = query @ key.mT / 2
    torch.testing.assert_close(rg.attention_scores(query, key, score.score), raw, rtol=0, atol=1e-15)
    capped = 0.7 * torch.tanh(raw / 0.7)
    torch.testing.assert_close(rg.attention_scores(query, key, score), capped, rtol=0, atol=1e-15)
    live = torch.arange(K) <= torch.arange(Q)[:, None] - 2
    biased = rg.attention_scores(query, key, score, mask=mask, bias=bias)
    wanted = torch.where(live, capped + bias, -torch.inf)
    torch.testing.assert_close(biased, wanted, rtol=0, atol=1e-15)
    weights = rg.attention_weights(query, key, score, mask=mask, bias=bias)
    torch.testing.assert_close(weights, torch.nan_to_num(torch.softmax(wanted, -1)), rtol=0, atol=1e-15)
    log = rg.partial_pool(*given, score, mask=mask, bias=bias).log_weight_sum
    torch.testing.assert_close(log, torch.logsumexp(wanted, -1), rtol=0, atol=1e-14)
    cotangent = torch.tensor(np.random.default_rng(6).normal(size=biased.shape))
    shown = (torch.where(live, s, 0.0) for s in (biased, wanted))
    grads = (torch.autograd.grad(s, [query, key, bias], cotangent, retain_graph=True) for s in shown)
    for x, y in zip(*grads, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)


def test_scores_that_are_not_finite_show_in_their_own_pairs():
    query, key, _ = (x[0, 0] for x in arrays())
    query[1], key[2], bias = np.nan, np.inf, np.zeros((Q, K))
    bias[3, 4] = np.nan
    bad = np.zeros((Q, K), bool)
    bad[1], bad[:, 2], bad[3, 4] = True, True, True
    mask = np.ones((Q, K), bool)
    mask[:, 5], mask[3] = False, False
    s = rg.attention_scores(query, key, rg.ScaledDotProduct(), mask=mask, bias=bias)
    np.testing.assert_array_equal(np.isnan(s), bad & mask)
    np.testing.assert_array_equal(np.isneginf(s), ~mask)
    huge = np.full((1, 1), 1e200)  # a distance that overflows is shown as it is
    assert rg.attention_scores(huge, -huge, rg.Gaussian(1.0)).item() == -np.inf


LEADING = {
    "bandwidth": lambda c: rg.Gaussian(c([0.5, 0.9, 1.7]).reshape(H, 1, 1)),
    "alpha": lambda c: rg.RationalQuadratic(0.8, alpha=c([0.5, 0.9, 1.7])),
    "scale": lambda c: rg.ScaledDotProduct(c([0.5, 0.9, 1.7])),
}


@pytest.mark.parametrize("engine", ["auto", "reference", "tiled", "fused"])
@pytest.mark.parametrize("name", sorted(LEADING))
def test_heads_that_only_the_score_has(engine, name):
    query, key, value = (x[0, 0] for x in arrays())
    make, mask = LEADING[name], np.random.default_rng(7).random((H, Q, K)) < 0.8
    whole = [np.broadcast_to(x, (H, *x.shape)) for x in (query, key, value)]
    out, grads = rg.attention_pool_gradients(1.0, query, key, value, make(np.array), mask=mask, engine=engine)
    wanted, of_whole = rg.attention_pool_gradients(1.0, *whole, make(np.array), mask=mask, engine="reference")
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-14)
    for x, y in zip(grads[:3], of_whole[:3], strict=True):
        np.testing.assert_allclose(x, y.sum(0), rtol=0, atol=1e-13)
    assert grads.score[name].shape == of_whole.score[name].shape
    np.testing.assert_allclose(grads.score[name], of_whole.score[name], rtol=0, atol=1e-13)


def test_heads_of_the_score_that_do_not_fit():
    query, key, value = (x[0, :5] for x in arrays(heads=(5, 5, 5)))
    match = r"the parameters of `score` do not broadcast with query \(5, 7, 4\) and key \(5, 11, 4\): one number"
    with pytest.raises(ValueError, match=match):
        rg.attention_pool(query, key, value, rg.ScaledDotProduct(np.ones(3)))
