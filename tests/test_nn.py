"""The attention modules: each against its formula written out, against torch's own, and all against the laws."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import regard as rg
from regard.datasets import motorcycle
from regard.nn import (
    AdditiveAttention,
    Attention,
    AveragePooling,
    BilinearAttention,
    CosineAttention,
    DensePooling,
    DotProductAttention,
    KernelAttention,
    MaxPooling,
    MultiHeadAttention,
)
from regard.nn.heads import Heads
from regard.scores import kernels

B, Q, K, V, H = 2, 7, 11, 13, 3
HEAD = 5
E = H * HEAD

# module, features of query, key and value, features of the output
MODULES = {
    "kernel": (lambda **o: KernelAttention(dim=5, **o), 5, 5, V, V),
    "kernel by feature": (
        lambda **o: KernelAttention("matern32", 5, "feature", [1.0, 2.0, 3.0, 4.0, 5.0], **o),
        5,
        5,
        V,
        V,
    ),
    "kernel by matrix": (lambda **o: KernelAttention("cauchy", 5, "matrix", 2.0, **o), 5, 5, V, V),
    "additive": (lambda **o: AdditiveAttention(5, 17, 19, **o), 5, 17, V, V),
    "dot product": (lambda **o: DotProductAttention(**o), 5, 5, V, V),
    "bilinear": (lambda **o: BilinearAttention(5, 17, **o), 5, 17, V, V),
    "cosine": (lambda **o: CosineAttention(**o), 5, 5, V, V),
    "heads": (lambda **o: MultiHeadAttention(E, H, kdim=17, vdim=V, **o), E, 17, V, E),
    "gaussian heads": (lambda **o: MultiHeadAttention(E, H, "gaussian", kdim=17, vdim=V, **o), E, 17, V, E),
    "additive heads": (lambda **o: MultiHeadAttention(E, H, "additive", kdim=17, vdim=V, **o), E, 17, V, E),
}
PARAMETRIC = sorted(set(MODULES) - {"dot product"})
every_module = pytest.mark.parametrize("name", sorted(MODULES))
every_parametric = pytest.mark.parametrize("name", PARAMETRIC)

# True may attend; as a mask, and as a Boolean tensor (B, Q, K)
LENGTHS, KEEP = torch.tensor([11, 4]), torch.arange(B * K).reshape(B, K) % 5 != 2
POSITION = torch.arange(K)[None, :] - torch.arange(Q)[:, None]
GIVEN = torch.arange(B * Q * K).reshape(B, Q, K) % 3 != 1
MASKS = {
    "length": (rg.ValidLength(LENGTHS), (torch.arange(K) < LENGTHS[:, None])[:, None].expand(B, Q, K)),
    "length per query": (
        rg.ValidLength(torch.arange(B * Q).reshape(B, Q) % 6, per_query=True),
        torch.arange(K) < (torch.arange(B * Q).reshape(B, Q) % 6)[..., None],
    ),
    "padding": (rg.KeyPadding(KEEP), KEEP[:, None].expand(B, Q, K)),
    "causal": (rg.Causal(alignment="end"), (POSITION <= K - Q).expand(B, Q, K)),
    "window": (rg.Window(2, 1, alignment="start"), ((POSITION >= -2) & (POSITION <= 1)).expand(B, Q, K)),
    "not self": (rg.NotSelf(alignment="start"), (POSITION != 0).expand(B, Q, K)),
    "for all": (GIVEN[0], GIVEN[0].expand(B, Q, K)),
    "by entry": (GIVEN, GIVEN),
    "combined": (
        ~(rg.Causal(alignment="start") & GIVEN) & GIVEN[0] | rg.KeyPadding(KEEP),
        ~((POSITION <= 0) & GIVEN) & GIVEN[0] | KEEP[:, None],
    ),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make(name, dtype=torch.float64, **options):
    """The module with random parameters, and its sizes."""
    build, *sizes = MODULES[name]
    module = build(dtype=dtype, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) / math.sqrt(parameter.shape[-1] if parameter.ndim else 4))
    return module, sizes


def inputs(sizes, *lead, dtype=torch.float64, queries=Q, keys=K):
    query_dim, key_dim, value_dim, _ = sizes
    shapes = (queries, query_dim), (keys, key_dim), (keys, value_dim)
    return tuple(torch.randn(*lead, *shape, dtype=dtype) for shape in shapes)


def gradients(module, loss):
    """The gradients of the parameters, by name; every parameter must have one."""
    named = dict(module.named_parameters())
    got = torch.autograd.grad(loss, list(named.values()), allow_unused=False) if named else ()
    return dict(zip(named, got, strict=True))


def assert_gradients_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], msg=lambda text, name=name: f"{name}: {text}")


def pooled_only(module):
    """The module with an output projection that leaves the heads as they are: then no key means 0."""
    if isinstance(module, MultiHeadAttention):
        with torch.no_grad():
            module.output_projection.weight.copy_(torch.eye(E))
            module.output_projection.bias.zero_()
    return module


# --- what every module promises


@every_module
@pytest.mark.parametrize("kind", [None, *MASKS])
def test_weights_are_those_of_the_forward_and_sum_to_one(name, kind):
    module, sizes = make(name)
    module = pooled_only(module)
    query, key, value = inputs(sizes, B)
    mask, dense = MASKS[kind] if kind else (None, torch.ones(B, Q, K, dtype=torch.bool))
    weights = module.weights(query, key, mask)
    if isinstance(module, MultiHeadAttention):
        value_heads = module.value_projection(value).unflatten(-1, (H, HEAD)).transpose(1, 2)
        pooled, dense = (weights @ value_heads).transpose(1, 2).flatten(2), dense[:, None].expand(B, H, Q, K)
    else:
        pooled = weights @ value
    assert weights.shape == dense.shape
    torch.testing.assert_close(pooled, module(query, key, value, mask))
    torch.testing.assert_close(weights.sum(-1), dense.any(-1).double())
    assert not weights[~dense].any()
    assert (weights[dense] > 0).all()


@every_module
def test_top_is_the_largest_weights(name):
    module, sizes = make(name)
    query, key, _ = inputs(sizes, B)
    mask = rg.ValidLength(torch.tensor([11, 2]))
    weights, indices = module.top(query, key, 3, mask)
    every = module.weights(query, key, mask)
    assert weights.shape == (*every.shape[:-1], 3)
    found = torch.where(indices < 0, 0.0, every.gather(-1, indices.clamp(min=0)))
    torch.testing.assert_close(weights, found)
    torch.testing.assert_close(weights, every.topk(3).values)
    assert (indices[1, ..., 2] == -1).all()
    assert not weights.requires_grad


@every_module
def test_first_and_second_derivatives_of_inputs_and_parameters(name):
    module, sizes = make(name)
    names, parameters = zip(*module.named_parameters(), strict=True) if list(module.parameters()) else ((), ())
    given = [x.requires_grad_() for x in inputs(sizes, queries=3, keys=5)]
    mask = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 1, 0]]) > 0

    def run(*tensors):
        return torch.func.functional_call(module, dict(zip(names, tensors[3:], strict=True)), (*tensors[:3], mask))

    # fast mode: one random direction of all entries together
    torch.autograd.gradcheck(run, (*given, *parameters), fast_mode=True)
    torch.autograd.gradgradcheck(run, (*given, *parameters), fast_mode=True)


@every_module
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_behind_a_mask_is_deleted(name, poison):
    module, sizes = make(name)
    query, key, value = inputs(sizes, B)
    keep = torch.arange(K) % 4 != 1
    bad_key = torch.where(keep[:, None], key, poison).requires_grad_()
    bad_value = torch.where(keep[:, None], value, poison).requires_grad_()
    key, value = key[:, keep].requires_grad_(), value[:, keep].requires_grad_()
    probe = torch.randn(B, Q, sizes[-1], dtype=torch.float64)

    masked = module(query, bad_key, bad_value, mask=rg.KeyPadding(keep))
    deleted = module(query, key, value)
    torch.testing.assert_close(masked, deleted)
    torch.testing.assert_close(
        module.weights(query, bad_key, rg.KeyPadding(keep))[..., keep], module.weights(query, key)
    )
    to_inputs = torch.autograd.grad((masked * probe).sum(), (bad_key, bad_value), retain_graph=True)
    expected = torch.autograd.grad((deleted * probe).sum(), (key, value), retain_graph=True)
    for ours, theirs in zip(to_inputs, expected, strict=True):
        torch.testing.assert_close(ours[:, keep], theirs)
        assert not ours[:, ~keep].any()
    assert_gradients_equal(gradients(module, (masked * probe).sum()), gradients(module, (deleted * probe).sum()))


@every_module
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_a_nan_stays_with_the_queries_that_see_it(name, where):
    """Query 0 sees key 1 and no other query does: the others' outputs and all gradients of theirs are untouched."""
    module, sizes = make(name)
    given = dict(zip(("query", "key", "value"), inputs(sizes, B), strict=True))
    mask = torch.ones(Q, K, dtype=torch.bool)
    mask[1:, 1] = False
    clean = module(**given, mask=mask)
    given[where] = given[where].clone()
    given[where][:, 0 if where == "query" else 1, 2] = math.nan
    spoiled = module(**given, mask=mask)
    assert spoiled[:, 0].isnan().any()
    torch.testing.assert_close(spoiled[:, 1:], clean[:, 1:])
    ours, theirs = (gradients(module, out[:, 1:].square().sum()) for out in (spoiled, clean))
    assert_gradients_equal(ours, theirs)


@pytest.mark.parametrize("score", ["dot_product", "gaussian", "additive"])
def test_padding_of_a_sequence_may_hold_anything(score):
    """Self-attention: what stands behind the end of a sequence is a query too, and spoils no gradient even so."""
    module = MultiHeadAttention(E, H, score, dtype=torch.float64)
    x = torch.randn(B, K, E, dtype=torch.float64)
    x[1, LENGTHS[1] :] = math.nan
    out = module(x, x, x, rg.ValidLength(LENGTHS))
    alone = [module(*(x[b, :length],) * 3) for b, length in enumerate(LENGTHS)]
    ours, theirs = torch.cat([out[b, :length] for b, length in enumerate(LENGTHS)]), torch.cat(alone)
    torch.testing.assert_close(ours, theirs)
    assert_gradients_equal(*(gradients(module, each.square().sum()) for each in (ours, theirs)))


@every_module
def test_a_query_without_a_key_gets_nothing(name):
    module, sizes = make(name)
    query, key, value = inputs(sizes, B)
    mask = torch.ones(Q, K, dtype=torch.bool)
    mask[3] = False
    out = module(query, key, value, mask)
    nothing = module.output_projection.bias if isinstance(module, MultiHeadAttention) else torch.zeros(sizes[-1])
    torch.testing.assert_close(out[:, 3], nothing.double().expand(B, -1), rtol=0, atol=0)
    assert not module.weights(query, key, mask)[..., 3, :].any()
    others = torch.arange(Q) != 3
    assert_gradients_equal(
        gradients(module, out[:, others].square().sum()),
        gradients(module, module(query[:, others], key, value).square().sum()),
    )
    assert all(g.isfinite().all() for g in gradients(module, module(query, key, value, mask).square().sum()).values())
    none = module(query, key[:, :0], value[:, :0])
    torch.testing.assert_close(none, nothing.double().expand(B, Q, -1), rtol=0, atol=0)


@every_module
def test_batches_are_loops(name):
    module, sizes = make(name)
    query, key, value = inputs(sizes, B)
    mask, dense = MASKS["combined"]
    out, weights = module(query, key, value, mask), module.weights(query, key, mask)
    for b in range(B):
        torch.testing.assert_close(out[b], module(query[b], key[b], value[b], dense[b]))
        torch.testing.assert_close(weights[b], module.weights(query[b], key[b], dense[b]))
    torch.testing.assert_close(module(query, key[0], value[0])[1], module(query[1], key[0], value[0]))
    more = module(query.expand(5, B, -1, -1), key, value, dense)
    torch.testing.assert_close(more, out.expand(5, B, -1, -1))


@every_module
def test_dropout_is_for_training_only(name):
    module, sizes = make(name, dropout=0.4)
    query, key, value = inputs(sizes, B)
    usual = make(name)[0]
    usual.load_state_dict(module.state_dict())
    expected = usual(query, key, value)
    weights = usual.weights(query, key)
    module.eval()
    before = torch.get_rng_state()
    torch.testing.assert_close(module(query, key, value), expected, rtol=0, atol=0)
    assert torch.equal(before, torch.get_rng_state())
    module.train()
    torch.manual_seed(1)
    first, second = module(query, key, value), module(query, key, value)
    torch.manual_seed(1)
    torch.testing.assert_close(first, module(query, key, value), rtol=0, atol=0)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(module.weights(query, key), weights, rtol=0, atol=0)


def test_dropout_drops_weights_and_scales_the_others():
    rate = 0.25
    heads = Heads([DotProductAttention()], dropout=rate)
    query, key = torch.randn(B, H, Q, HEAD), torch.randn(B, H, K, HEAD)
    out = heads(query, key, torch.eye(K))  # the pooled value of key j's indicator is its weight
    weights = heads.weights(query, key)
    kept = out != 0
    torch.testing.assert_close(out[kept], weights[kept] / (1 - rate))
    # 462 pairs: six standard deviations of a binomial share
    assert abs(kept.double().mean() - (1 - rate)) < 6 * math.sqrt(rate * (1 - rate) / kept.numel())
    assert not torch.equal(kept[:, 0], kept[:, 1])
    assert not torch.equal(kept[0], kept[1])


@every_module
def test_the_engine_is_the_one_that_was_named(name):
    module, sizes = make(name)
    named, _ = make(name, engine="reference")
    named.load_state_dict(module.state_dict())
    given = inputs(sizes, B)
    torch.testing.assert_close(named(*given), module(*given))
    with pytest.raises(ValueError, match="unknown engine 'warp'; the known ones are auto, "):
        make(name, engine="warp")[0](*given)


@every_module
def test_state_dict_round_trip(name):
    module, sizes = make(name)
    other, _ = make(name)
    given = inputs(sizes, B)
    if name in PARAMETRIC:
        assert not torch.allclose(module(*given), other(*given))
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(*given), other(*given), rtol=0, atol=0)
    assert list(module.state_dict()) == [key for key, _ in module.named_parameters()]
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(*given), module(*given), rtol=0, atol=0)


@every_parametric
def test_parameters_start_anew(name):
    build = MODULES[name][0]
    module, other = build(), build()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(17.0)
    for again in (module, other):
        torch.manual_seed(3)
        again.reset_parameters()
    for key, x in module.state_dict().items():
        torch.testing.assert_close(x, other.state_dict()[key], rtol=0, atol=0)
        assert not (x == 17).any(), key


@every_module
def test_device_and_dtype(name):
    build, *_ = MODULES[name]
    assert all(p.device.type == "meta" for p in build(device="meta").parameters())
    assert all(p.dtype == torch.float64 for p in build(dtype=torch.float64).parameters())
    assert all(p.dtype == torch.float32 for p in build().parameters())


@every_module
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_inside(name, dtype):
    module, sizes = make(name, dtype=dtype)
    given = inputs(sizes, B, dtype=dtype)
    out = module(*given)
    assert out.dtype == module.weights(*given[:2]).dtype == dtype
    wide, _ = make(name, dtype=torch.float32)
    wide.load_state_dict(module.state_dict())
    exact = wide(*(x.float() for x in given))
    if isinstance(module, MultiHeadAttention):
        # torch rounds all four projections and we the pooled value: five roundings on the way, doubled by the weights'
        # dependence on two of them
        bound = 10 * torch.finfo(dtype).eps * exact.abs().max()
        assert (out.float() - exact).abs().max() <= bound
    else:
        torch.testing.assert_close(out, exact.to(dtype), rtol=0, atol=0)
    assert all(g.isfinite().all() and g.dtype == dtype for g in gradients(module, out.float().square().sum()).values())


def test_repr_tells_the_options():
    assert repr(KernelAttention()) == 'KernelAttention("gaussian", dim=1, width="scalar", bandwidth=1)'
    by_feature = KernelAttention("tricube", 2, "feature", (0.5, 2))
    assert repr(by_feature) == 'KernelAttention("tricube", dim=2, width="feature", bandwidth=[0.5, 2])'
    assert repr(AdditiveAttention(3, 5, 7)) == "AdditiveAttention(query_dim=3, key_dim=5, hidden_dim=7)"
    dropping = BilinearAttention(3, 5, dropout=0.1, engine="tiled")
    assert repr(dropping) == "BilinearAttention(query_dim=3, key_dim=5, dropout=0.1, engine='tiled')"
    assert repr(DotProductAttention()) == "DotProductAttention()"
    assert repr(DotProductAttention(0.5)) == "DotProductAttention(scale=0.5)"
    assert repr(CosineAttention()) == "CosineAttention(scale=10)"
    assert repr(DensePooling(7)) == "DensePooling(7)"
    assert repr(DensePooling(7, 3)) == "DensePooling(7, num_outputs=3)"
    lines = repr(MultiHeadAttention(6, 2, "cosine", kdim=5, dropout=0.1)).splitlines()
    assert lines[1].strip() == "6, num_heads=2, kdim=5"
    assert sum("CosineAttention(scale=10)" in line for line in lines) == 1  # torch folds equal ones: "(0-1): 2 x"
    assert any("dropout=0.1" in line for line in lines)


# --- one by one, against the formula written out


def softmax_pool(scores, value):
    return torch.softmax(scores, dim=-1) @ value


def test_gaussian_with_a_learned_w():
    """f(x) = sum_i softmax(-((x - x_i) w)^2 / 2) y_i."""
    w = 1.7
    module = KernelAttention(bandwidth=1 / w, dtype=torch.float64)
    x, x_i, y = (torch.randn(n, dtype=torch.float64) for n in (Q, K, K))
    expected = softmax_pool(-(((x[:, None] - x_i) * w) ** 2) / 2, y)
    torch.testing.assert_close(module(x, x_i, y), expected)
    columns = module(x[:, None], x_i[:, None], y[:, None])
    torch.testing.assert_close(columns[:, 0], expected)


def test_width_by_feature_and_by_matrix():
    query, key, value = inputs((5, 5, V, V))
    difference = query[:, None] - key
    h = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5], dtype=torch.float64)
    by_feature = KernelAttention("gaussian", 5, "feature", h.tolist(), dtype=torch.float64)
    torch.testing.assert_close(by_feature.bandwidth, h)
    torch.testing.assert_close(by_feature(query, key, value), softmax_pool(-((difference / h) ** 2).sum(-1) / 2, value))
    by_matrix = KernelAttention("gaussian", 5, "matrix", 2.0, dtype=torch.float64)
    torch.testing.assert_close(by_matrix.weight.data, torch.eye(5, dtype=torch.float64) / 2)
    with torch.no_grad():
        by_matrix.weight.normal_()
    expected = softmax_pool(-((difference @ by_matrix.weight.T) ** 2).sum(-1) / 2, value)
    torch.testing.assert_close(by_matrix(query, key, value), expected)


@pytest.mark.parametrize("kernel", kernels())
def test_every_kernel_has_a_module(kernel):
    query, key, value = inputs((5, 5, V, V))
    module = KernelAttention(kernel, 5, bandwidth=3.5, dtype=torch.float64)
    score = rg.scores.named(kernel, bandwidth=3.5)
    torch.testing.assert_close(module(query, key, value), rg.attention_pool(query, key, value, score))
    (gradient,) = gradients(module, module(query, key, value).square().sum()).values()
    assert gradient != 0 or kernel == "uniform"  # inside its support the uniform kernel does not know its width


def test_additive_is_a_perceptron_with_one_hidden_layer():
    """v^T tanh([W_k W_q] [k; q]), without bias."""
    module, sizes = make("additive")
    query, key, value = inputs(sizes, B)
    hidden, output = nn.Linear(17 + 5, 19, bias=False).double(), nn.Linear(19, 1, bias=False).double()
    with torch.no_grad():
        hidden.weight.copy_(torch.cat([module.key_weight, module.query_weight], dim=1))
        output.weight.copy_(module.value_weight[None])
    pairs = torch.cat([key[:, None].expand(B, Q, K, 17), query[:, :, None].expand(B, Q, K, 5)], dim=-1)
    scores = output(torch.tanh(hidden(pairs)))[..., 0]
    torch.testing.assert_close(module.score()(query, key), scores)
    torch.testing.assert_close(module(query, key, value), softmax_pool(scores, value))
    torch.testing.assert_close(module.weights(query, key), torch.softmax(scores, -1))


def test_bilinear_cosine_and_scale():
    query, key, value = inputs((5, 5, V, V))
    bilinear = BilinearAttention(5, 5, dtype=torch.float64)
    torch.testing.assert_close(bilinear(query, key, value), softmax_pool(query @ bilinear.weight @ key.T, value))
    cosine = CosineAttention(3.0, dtype=torch.float64)
    similarity = functional.cosine_similarity(query[:, None], key[None], dim=-1)
    torch.testing.assert_close(cosine(query, key, value), softmax_pool(3 * similarity, value))
    torch.testing.assert_close(cosine.scale, torch.tensor(3.0, dtype=torch.float64))
    scaled = DotProductAttention(0.3)
    torch.testing.assert_close(scaled(query, key, value), softmax_pool(0.3 * query @ key.T, value))


@pytest.mark.parametrize("kind", [None, *sorted(set(MASKS) - {"length per query"})])
def test_dot_product_is_torchs(kind):
    query, key, value = inputs((5, 5, V, V), B)
    mask, dense = MASKS[kind] if kind else (None, None)
    theirs = functional.scaled_dot_product_attention(query, key, value, attn_mask=dense)
    torch.testing.assert_close(DotProductAttention()(query, key, value, mask), theirs)


# --- learning


def test_leave_one_out_reaches_the_minimum_of_the_motorcycle_data():
    """The published minimum: h = 0.9138289, mean squared leave-one-out error 595.93634."""
    times, accel = (torch.as_tensor(x) for x in motorcycle())
    module = KernelAttention(bandwidth=3.0, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(module.parameters(), line_search_fn="strong_wolfe", max_iter=100)

    def error():
        return (module(times, times, accel, mask=rg.NotSelf()) - accel).square().mean()

    def closure():
        optimizer.zero_grad()
        loss = error()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert module.bandwidth.item() == pytest.approx(0.9138289, abs=1e-6)  # seven digits were published
    assert error().item() == pytest.approx(595.93634, abs=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop])
def test_widths_by_feature_find_the_feature_that_matters(optimizer):
    x = torch.rand(43, 2)
    y = torch.sin(6 * x[:, :1])
    module = KernelAttention(dim=2, width="feature", bandwidth=0.3)
    learner = optimizer(module.parameters(), lr=0.1)
    start = (module(x, x, y, mask=rg.NotSelf()) - y).square().mean()
    for _ in range(60):
        learner.zero_grad()
        error = (module(x, x, y, mask=rg.NotSelf()) - y).square().mean()
        error.backward()
        learner.step()
    assert error < start / 20
    assert module.bandwidth[0] < 0.1
    assert module.bandwidth[1] > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bandwidth_beyond_all_numbers_is_one_that_does_not_matter(dtype: torch.dtype) -> None:
    x, y = torch.randn(11, 2, dtype=dtype), torch.randn(11, 3, dtype=dtype)
    module = KernelAttention(dim=2, width="feature", dtype=dtype)
    with torch.no_grad():
        module.log_bandwidth[1] = 1000.0
    found = module(x, x, y, mask=rg.NotSelf())
    found.square().sum().backward()
    assert torch.equal(found, rg.attention_pool(x[:, :1], x[:, :1], y, rg.Gaussian(1.0), mask=rg.NotSelf()))
    assert module.log_bandwidth.grad is not None
    assert module.log_bandwidth.grad.isfinite().all()
    assert module.log_bandwidth.grad[1] == 0


# --- heads


def torch_twin(score="dot_product", **options):
    """Our module and torch's with the same weights."""
    theirs = nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64, **options)
    ours = MultiHeadAttention(E, H, score, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
        separate = theirs.in_proj_weight is None
        weights = (
            (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
            if separate
            else theirs.in_proj_weight.chunk(3)
        )
        projections = ours.query_projection, ours.key_projection, ours.value_projection
        for n, (projection, weight) in enumerate(zip(projections, weights, strict=True)):
            projection.weight.copy_(weight)
            if projection.bias is not None:
                projection.bias.copy_(theirs.in_proj_bias.chunk(3)[n])
        ours.output_projection.load_state_dict(theirs.out_proj.state_dict())
    return ours, theirs


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 17, "vdim": V}])
@pytest.mark.parametrize("kind", [None, *sorted(set(MASKS) - {"length per query"})])
def test_heads_are_torchs(options, kind):
    """torch's masks say True where a key is to be ignored; a row with no key at all is NaN there, and left out here."""
    ours, theirs = torch_twin(**options)
    query, key, value = inputs((E, options.get("kdim", E), options.get("vdim", E), E), B)
    mask, dense = MASKS[kind] if kind else (None, torch.ones(B, Q, K, dtype=torch.bool))
    expected, weights = theirs(
        query, key, value, attn_mask=~dense.repeat_interleave(H, dim=0), average_attn_weights=False
    )
    torch.testing.assert_close(ours(query, key, value, mask), expected)
    torch.testing.assert_close(ours.weights(query, key, mask), weights)


def test_heads_are_torchs_in_float32_with_padding_and_gradients():
    ours, theirs = (module.float() for module in torch_twin())
    query, key, value = inputs((E, E, E, E), B, dtype=torch.float32)
    expected, _ = theirs(query, key, value, key_padding_mask=~KEEP)
    out = ours(query, key, value, mask=rg.KeyPadding(KEEP))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    to_ours, to_theirs = (gradients(m, x.square().sum()) for m, x in ((ours, out), (theirs, expected)))
    stacked = torch.cat([to_ours[f"{name}_projection.weight"] for name in ("query", "key", "value")])
    # sums of B Q terms: some float32 roundings of the largest gradient
    largest = stacked.abs().max().item()
    torch.testing.assert_close(stacked, to_theirs["in_proj_weight"], rtol=0, atol=8e-7 * largest)


@pytest.mark.parametrize("kind", [None, *sorted(MASKS)])
@pytest.mark.parametrize("per_head", [False, True])
def test_masks_reach_all_heads_or_each(kind, per_head):
    module, sizes = make("heads")
    query, key, value = inputs(sizes, B)
    mask, dense = MASKS[kind] if kind else (None, torch.ones(B, Q, K, dtype=torch.bool))
    dense = dense[:, None]
    if per_head:
        own = (torch.arange(H * K).reshape(H, 1, K) % 4 != 1).expand(B, H, Q, K)
        mask, dense = own if mask is None else rg.masks.as_mask(mask) & own, dense & own
    q, k, v = (
        projection(x).unflatten(-1, (H, HEAD)).transpose(1, 2)
        for projection, x in (
            (module.query_projection, query),
            (module.key_projection, key),
            (module.value_projection, value),
        )
    )
    pooled = functional.scaled_dot_product_attention(q, k, v, attn_mask=dense).nan_to_num(0.0)
    expected = module.output_projection(pooled.transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(query, key, value, mask), expected)


def test_one_axis_more_than_the_batch_is_per_head():
    module, sizes = make("heads")
    query, key, value = inputs(sizes)
    per_head = torch.arange(H * Q * K).reshape(H, Q, K) % 5 != 1
    batch = module(query[None], key[None], value[None], per_head[None])
    torch.testing.assert_close(module(query, key, value, per_head), batch[0])
    torch.testing.assert_close(
        module(query, key, value, per_head[0]), module(query, key, value, per_head[:1].expand(H, Q, K))
    )


SCORES = ["additive", "bilinear", "cosine", "dot_product", *kernels()]


@pytest.mark.parametrize("score", SCORES)
def test_each_head_has_its_own_score(score):
    """All heads in one pooling are the heads one by one."""
    module = MultiHeadAttention(E, H, score, dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.heads.parameters():
            parameter.add_(torch.randn(parameter.shape) / 4)
    query, key, value = inputs((E, E, E, E), B)
    out, weights = module(query, key, value, GIVEN), module.weights(query, key, GIVEN)
    heads = []
    for h in range(H):
        part = slice(h * HEAD, (h + 1) * HEAD)
        q, k, v = (
            projection(x)[..., part]
            for projection, x in (
                (module.query_projection, query),
                (module.key_projection, key),
                (module.value_projection, value),
            )
        )
        own = module.heads.heads[h if score != "dot_product" else 0]
        heads.append(own(q, k, v, GIVEN))
        torch.testing.assert_close(weights[:, h], own.weights(q, k, GIVEN))
    torch.testing.assert_close(out, module.output_projection(torch.cat(heads, dim=-1)))
    assert_gradients_equal(
        gradients(module, out.square().sum()),
        gradients(module, module.output_projection(torch.cat(heads, dim=-1)).square().sum()),
    )


@pytest.mark.parametrize("score", kernels())
def test_named_kernels_start_with_keys_in_reach(score):
    """Of projected standard normal data, every query sees a key, in heads of one feature as of many."""
    for embed_dim in (4, 128):
        module = MultiHeadAttention(embed_dim, 2, score)
        x = torch.randn(K, embed_dim)
        torch.testing.assert_close(module.weights(x, x, rg.NotSelf()).sum(-1), torch.ones(2, K))


class Sharp(Attention):
    """Two terms, a factor, a shape parameter and a feature of its own."""

    def __init__(self, head_dim):
        super().__init__()
        self.alpha = nn.Parameter(torch.rand(()) + 0.5)
        self.factor = nn.Parameter(torch.rand(()) + 0.5)
        self.h = nn.Parameter(torch.rand(head_dim) + 0.5)

    def score(self):
        return self.factor * rg.RationalQuadratic(self.h, self.alpha) + rg.ScaledDotProduct().on([0, 1])


def test_a_score_of_ones_own_is_called_once_per_head():
    made = []

    def per_head(head_dim):
        made.append(head_dim)
        return Sharp(head_dim)

    module = MultiHeadAttention(E, H, per_head, dtype=torch.float64)
    assert made == [HEAD] * H
    query, key, value = inputs((E, E, E, E), B)
    q, k = (p(x).unflatten(-1, (H, HEAD)) for p, x in ((module.query_projection, query), (module.key_projection, key)))
    weights = module.weights(query, key)
    for h, own in enumerate(module.heads.heads):
        torch.testing.assert_close(weights[:, h], own.weights(q[..., h, :], k[..., h, :]))
    got = gradients(module, module(query, key, value).square().sum())
    assert all(g.any() for name, g in got.items() if "bias" not in name)
    assert sorted(name for name in got if name.startswith("heads.heads.1.")) == [
        "heads.heads.1.alpha",
        "heads.heads.1.factor",
        "heads.heads.1.h",
    ]
    assert len(MultiHeadAttention(E, H, lambda head_dim: DotProductAttention()).heads.heads) == 1


def test_one_head_and_one_feature():
    for heads, features in ((1, 7), (7, 7)):
        module = MultiHeadAttention(features, heads, "gaussian")
        x = torch.randn(B, Q, features)
        assert module(x, x, x).shape == (B, Q, features)
        assert module.weights(x, x).shape == (B, heads, Q, Q)


# --- a convolution as attention


@pytest.mark.parametrize("axes", [1, 2])
def test_an_offset_table_is_a_convolution_shared_by_the_channels(axes):
    """The kernel is non-negative and sums to one; at the border attention makes what is left sum to one again."""
    size, window = ((17,), (5,)) if axes == 1 else ((7, 11), (3, 5))
    position = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in size)).reshape(-1, axes)
    table = torch.randn(window, dtype=torch.float64)
    kernel = torch.softmax(table.flatten(), 0).reshape(window)
    image = torch.randn(B, V, *size, dtype=torch.float64)
    convolve = functional.conv1d if axes == 1 else functional.conv2d
    padding = tuple(n // 2 for n in window)
    by_channel = convolve(image.flatten(0, 1)[:, None], kernel[None, None], padding=padding).reshape(image.shape)
    inside = convolve(torch.ones(1, 1, *size, dtype=torch.float64), kernel[None, None], padding=padding)
    value = image.flatten(2).mT  # one key per pixel
    pooled = rg.attention_pool(position, position, value, rg.OffsetTable(table))
    torch.testing.assert_close(pooled.mT.reshape(image.shape), by_channel / inside[0])
    away = inside[0, 0] > 1 - 1e-12
    assert away.any()
    torch.testing.assert_close(pooled.mT.reshape(image.shape)[..., away], by_channel[..., away])


def test_a_head_per_tap_with_its_own_values_is_any_convolution():
    """A head sees one offset alone, with weight 1; beyond the border it sees no key, and its pooled value is 0."""
    height, width, window, channels, outputs = 5, 7, (3, 5), 2, 3
    kernel = torch.randn(outputs, channels, *window, dtype=torch.float64, requires_grad=True)
    image = torch.randn(B, channels, height, width, dtype=torch.float64)
    taps = window[0] * window[1]
    table = torch.where(torch.eye(taps) > 0, 0.0, -torch.inf).reshape(taps, *window)
    position = torch.cartesian_prod(torch.arange(height), torch.arange(width)).double()
    w_v = kernel.flatten(2).permute(2, 1, 0)  # (taps, channels, outputs): a W_v for each head
    value = image.flatten(2).mT[:, None] @ w_v  # (B, taps, pixels, outputs)
    heads = rg.attention_pool(position, position, value, rg.OffsetTable(table, axes=2))
    summed = heads.sum(1).mT.reshape(B, outputs, height, width)
    expected = functional.conv2d(image, kernel, padding=(window[0] // 2, window[1] // 2))
    torch.testing.assert_close(summed, expected)
    ours, theirs = (torch.autograd.grad(out.square().sum(), kernel, retain_graph=True)[0] for out in (summed, expected))
    torch.testing.assert_close(ours, theirs)


# --- without a query


def test_average_and_max_pooling():
    value = torch.randn(B, K, V, dtype=torch.float64)
    for module, plain in ((AveragePooling(), torch.mean), (MaxPooling(), torch.amax)):
        torch.testing.assert_close(module(value), plain(value, dim=1))
        for mask in (rg.ValidLength(LENGTHS), torch.arange(K) < LENGTHS[:, None]):
            pooled = module(value, mask)
            for b, length in enumerate(LENGTHS):
                torch.testing.assert_close(pooled[b], plain(value[b, :length], dim=0))
        torch.testing.assert_close(module(value, rg.KeyPadding(KEEP)), module(value, KEEP))
        torch.testing.assert_close(
            module(value, rg.KeyPadding(KEEP) & rg.ValidLength(7)), module(value[:, :7], KEEP[:, :7])
        )
        rows = module(value, GIVEN)
        torch.testing.assert_close(rows[1, 3], plain(value[1, GIVEN[1, 3]], dim=0))
        assert not module(value, rg.ValidLength(0)).any()
        with pytest.raises(TypeError, match="`mask` must be a Boolean array where there is no query; got Causal"):
            module(value, rg.Causal(alignment="end"))


def test_dense_pooling_is_a_linear_layer_over_positions():
    value = torch.randn(B, K, V)
    dense = DensePooling(K, num_outputs=Q)
    torch.testing.assert_close(dense(value), functional.linear(value.mT, dense.weight).mT)
    single = DensePooling(K)
    torch.testing.assert_close(single(value), functional.linear(value.mT, single.weight)[..., 0])
    assert single(value).shape == (B, V)
    # what attention is not: the order of the keys matters
    order = torch.arange(K).flip(0)
    assert not torch.allclose(single(value[:, order]), single(value))
    torch.testing.assert_close(AveragePooling()(value[:, order]), AveragePooling()(value))
    bound = 1 / math.sqrt(K)
    weight = DensePooling(K, num_outputs=1009).weight
    assert bound * 0.98 < weight.abs().max() <= bound
    other = DensePooling(K)
    other.load_state_dict(single.state_dict())
    torch.testing.assert_close(other(value), single(value), rtol=0, atol=0)


# --- where parameters start


def test_parameters_start_as_torchs_do():
    additive = AdditiveAttention(3, 5, 1009)
    for weight in (additive.query_weight, additive.key_weight, additive.value_weight):
        bound = 1 / math.sqrt(weight.shape[-1])
        assert bound * 0.98 < weight.abs().max() <= bound
    heads = MultiHeadAttention(60, 2, kdim=30)
    for projection, features in (
        (heads.query_projection, 60),
        (heads.key_projection, 30),
        (heads.value_projection, 60),
    ):
        bound = math.sqrt(6 / (features + 60))
        assert bound * 0.98 < projection.weight.abs().max() <= bound
        assert not projection.bias.any()
    assert 0.98 / math.sqrt(60) < heads.output_projection.weight.abs().max() <= 1 / math.sqrt(60)
    assert not heads.output_projection.bias.any()
    assert BilinearAttention(31, 37).weight.abs().max() <= math.sqrt(6 / (31 + 37))
    assert KernelAttention(bandwidth=0.25).bandwidth.item() == 0.25


# --- mistakes


X, Y = torch.zeros(Q, 6), torch.zeros(K, 6)
MISTAKES = {
    "embed_dim": (
        lambda: MultiHeadAttention(10, 3),
        "`embed_dim` must be divisible by `num_heads`; got embed_dim=10 and num_heads=3. "
        "10 features divide among 1, 2, 5, 10 heads.",
    ),
    "heads": (
        lambda: MultiHeadAttention(10, 0),
        "`num_heads` of MultiHeadAttention must be a whole number of at least 1; got 0.",
    ),
    "name": (
        lambda: MultiHeadAttention(6, 2, "dotproduct"),
        "unknown score 'dotproduct'; the known ones are additive, bilinear, biweight, cauchy, cosine, ",
    ),
    "maker": (
        lambda: MultiHeadAttention(6, 2, lambda head_dim: nn.Linear(head_dim, head_dim)),
        "`score` must be a name, or a function of the features of a head that returns a module with `score()`; "
        "it returned Linear.",
    ),
    "kinds": (
        lambda: Heads([KernelAttention("gaussian", 6), KernelAttention("cauchy", 6)])(
            X.expand(2, Q, 6), Y.expand(2, K, 6), Y.expand(2, K, 6)
        ),
        "the scores of all heads must be of one kind, with parameters of their own; got Gaussian, Cauchy.",
    ),
    "query features": (
        lambda: MultiHeadAttention(4, 2)(X, Y, Y),
        "`query` must be (..., N, 4), as embed_dim=4 says; got (7, 6).",
    ),
    "key features": (
        lambda: MultiHeadAttention(6, 2, kdim=5)(X, Y, Y),
        "`key` must be (..., N, 5), as kdim=5 says; got (11, 6).",
    ),
    "value features": (
        lambda: MultiHeadAttention(6, 2, vdim=5)(X, Y, Y),
        "`value` must be (..., N, 5), as vdim=5 says; got (11, 6).",
    ),
    "weights features": (
        lambda: MultiHeadAttention(4, 2).weights(X, Y),
        "`query` must be (..., N, 4), as embed_dim=4 says; got (7, 6).",
    ),
    "one axis": (
        lambda: MultiHeadAttention(6, 2)(X[0], Y, Y),
        "`query` must be (..., N, 6), as embed_dim=6 says; got (6,).",
    ),
    "lengths": (
        lambda: MultiHeadAttention(6, 2)(X, Y, X),
        "`key` and `value` must have the same length; got key (11, 6) and value (7, 6).",
    ),
    "lengths without heads": (
        lambda: DotProductAttention()(X, Y, X),
        "`key` and `value` must have the same length; got key (11, 6) and value (7, 6).",
    ),
    "float mask": (
        lambda: MultiHeadAttention(6, 2)(X, Y, Y, torch.zeros(Q, K)),
        "`mask` must be Boolean, True where a query may attend, or a mask of regard.masks; got float32.",
    ),
    "padding as an array": (
        lambda: MultiHeadAttention(6, 2)(X.expand(2, Q, 6), Y.expand(2, K, 6), Y.expand(2, K, 6), KEEP),
        "For one row of keys per batch entry, (B, K), use regard.KeyPadding(keep).",
    ),
    "additive features": (
        lambda: AdditiveAttention(5, 6, 3)(X, Y, Y),
        "`query_weight` (3, 5) wants query (..., 5); got query (..., 6).",
    ),
    "bilinear features": (
        lambda: BilinearAttention(5, 6)(X, Y, Y),
        "`weight` of Bilinear (5, 6) must be (Dq, Dk); got query (..., 6) and key (..., 6).",
    ),
    "widths": (
        lambda: KernelAttention(dim=5, width="feature")(X, Y, Y),
        "`bandwidth` of Gaussian must be one number or one per feature; got 5 bandwidths for 6 features.",
    ),
    "matrix features": (
        lambda: KernelAttention(dim=5, width="matrix")(X, Y, Y),
        "`weight` (5, 5) maps 5 features; got query (..., 6).",
    ),
    "kernel": (
        lambda: KernelAttention("gauss"),
        "unknown score 'gauss'; the known ones are biweight, cauchy, ",
    ),
    "width": (
        lambda: KernelAttention(width="full"),
        '`width` of KernelAttention must be "scalar", "feature" or "matrix"; got \'full\'.',
    ),
    "bandwidth": (
        lambda: KernelAttention(bandwidth=-2.0),
        "`bandwidth` of KernelAttention must be positive and finite; got -2.0.",
    ),
    "bandwidths": (
        lambda: KernelAttention(dim=3, width="feature", bandwidth=[1.0, 2.0]),
        '`bandwidth` of KernelAttention(dim=3, width="feature") must be one number or 3, one per feature; '
        "got [1.0, 2.0].",
    ),
    "one bandwidth": (
        lambda: KernelAttention(dim=2, bandwidth=[1.0, 2.0]),
        '`bandwidth` of KernelAttention(dim=2, width="scalar") must be one number; got [1.0, 2.0].',
    ),
    "scale": (
        lambda: CosineAttention(0.0),
        "`scale` of CosineAttention must be positive and finite; got 0.0.",
    ),
    "dropout": (
        lambda: DotProductAttention(dropout=1.5),
        "`dropout` must be a number between 0 and 1; got 1.5.",
    ),
    "dense": (
        lambda: DensePooling(5)(torch.zeros(2, 7, 3)),
        "`value` must be (..., 5, V), one row for each of the 5 weights; got (2, 7, 3). "
        "A dense layer has one length only; attention takes any.",
    ),
    "length without a query": (
        lambda: AveragePooling()(Y, rg.ValidLength(12)),
        "`lengths` of ValidLength must lie between 0 and 11 keys; got 12.",
    ),
    "padding without a query": (
        lambda: MaxPooling()(Y, rg.KeyPadding(KEEP[0, :7])),
        "`keep` of KeyPadding must end in 11, one per key; got shape (7,).",
    ),
    "hidden": (
        lambda: AdditiveAttention(3, 5, 2.5),
        "`hidden_dim` of AdditiveAttention must be a whole number of at least 1; got 2.5.",
    ),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_mistakes_are_named(mistake):
    call, text = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert text in str(caught.value)


def test_numpy_is_refused_by_name():
    with pytest.raises(TypeError, match="`query` must be a torch tensor like the others; got ndarray"):
        DotProductAttention()(np.zeros((2, 3)), torch.zeros(5, 3), torch.zeros(5, 3))
