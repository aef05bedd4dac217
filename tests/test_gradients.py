"""Gradients of every order against finite differences, torch's own, and each other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import regard as rg
from regard.scores.base import Kernel, Score

Q, K, V = 3, 5, 2


@pytest.fixture(autouse=True)
def few_tiles(monkeypatch):
    """Two tiles along each axis, of sizes that fit nothing."""
    monkeypatch.setattr("regard.problem.query_tiles", cut_in_two)
    for module in ("regard.engines.tiled", "regard.bridge.tile_sum", "regard.extremes"):
        monkeypatch.setattr(f"{module}.query_tiles", cut_in_two)


def cut_in_two(problem):
    middle = min(2, problem.layout.queries - 1)
    for i, j in ((0, middle), (middle, problem.layout.queries)):
        queries = slice(i, j)
        start, stop = (0, problem.layout.keys) if problem.mask is None else problem.mask.bounds(problem.layout, queries)
        half = min(start + 3, stop)
        if i < j:
            yield queries, [slice(a, b) for a, b in ((start, half), (half, stop)) if a < b]


double = lambda x: np.asarray(x, dtype=float)  # noqa: E731


def smooth(case):
    """Arrays away from kinks: no distance at the edge of a support, no ties."""
    query, key, value = case.arrays(20, Q, K, V)
    return query, key, value


def leaves(score):
    """The parameters of a score that have a gradient, by the names that gradients have."""
    if isinstance(score, rg.scores.base.Sum):
        return {f"{n}.{k}": v for n, p in enumerate(score.parts) for k, v in leaves(p).items()}
    if isinstance(score, rg.scores.base.On):
        return leaves(score.score)
    if isinstance(score, rg.scores.base.Scaled):
        return {**leaves(score.score), "factor": score.factor}
    if isinstance(score, rg.SoftCap):
        return {**leaves(score.score), "cap": score.cap}
    if isinstance(score, rg.scores.base.Through):
        return {**leaves(score.score), "weight": score.weight}
    fields = {f.name: getattr(score, f.name) for f in dataclasses.fields(score)}
    return {k: v for k, v in fields.items() if v is not None and k not in ("levels", "axes")}


def with_leaf(score, name, value):
    """The score with one parameter replaced."""
    if isinstance(score, rg.scores.base.Sum):
        n, rest = name.split(".", 1)
        parts = list(score.parts)
        parts[int(n)] = with_leaf(parts[int(n)], rest, value)
        return dataclasses.replace(score, parts=tuple(parts))
    own = {f.name for f in dataclasses.fields(score)} - {"score"}
    if name not in own:
        return dataclasses.replace(score, score=with_leaf(score.score, name, value))
    return dataclasses.replace(score, **{name: value})


def difference(f, x, step=1e-6):
    """Central differences of a scalar function of an array."""
    x = np.array(x, dtype=float)
    grad = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        grad[at] = (f(up) - f(down)) / (2 * step)
    return grad


MASKS = {"none": None, "not_self": rg.NotSelf(offset=0), "ragged": rg.ValidLength([0, 5, 3], per_query=True)}


@pytest.mark.parametrize("mask", sorted(MASKS))
def test_numpy_backward_against_finite_differences(case, engine, mask):
    query, key, value = smooth(case)
    score: Score = case.make(double)
    rng = np.random.default_rng(21)
    bias, cotangent = rng.normal(size=(Q, K)), rng.normal(size=(Q, V))
    options = {"mask": MASKS[mask], "engine": engine}

    def loss(query=query, key=key, value=value, bias=bias, score=score):
        return float((cotangent * rg.attention_pool(query, key, value, score, bias=bias, **options)).sum())

    out, grads = rg.attention_pool_gradients(cotangent, query, key, value, score, bias=bias, **options)
    np.testing.assert_array_equal(out, rg.attention_pool(query, key, value, score, bias=bias, **options))
    for name, given in (("query", query), ("key", key), ("value", value), ("bias", bias)):
        got = getattr(grads, name)
        assert got.shape == given.shape
        if case.coded and name in ("query", "key"):
            continue
        numeric = difference(lambda x, name=name: loss(**{name: x}), given)
        if case.name == "product" and name in ("query", "key"):
            got, numeric = got[..., :2], numeric[..., :2]  # the third column holds codes
        np.testing.assert_allclose(got, numeric, atol=3e-8, err_msg=name)
    assert set(grads.score) == set(leaves(score))
    for name, given in leaves(score).items():
        numeric = difference(lambda x, name=name: loss(score=with_leaf(score, name, x)), given)
        np.testing.assert_allclose(grads.score[name], numeric, atol=3e-8, err_msg=name)

    rng = np.random.default_rng(22)
    query, key, value = rng.normal(size=(2, 3, Q, 2)), rng.normal(size=(3, K, 2)), rng.normal(size=(2, 1, K, V))
    bias, cotangent = rng.normal(size=(3, 1, K)), rng.normal(size=(2, 3, Q, V))
    score = rg.RationalQuadratic(rng.uniform(1, 2, size=(3, 1, 2)), alpha=rng.uniform(1, 2, size=3))
    _, grads = rg.attention_pool_gradients(cotangent, query, key, value, score, bias=bias)
    t = {n: torch.tensor(x, requires_grad=True) for n, x in (("q", query), ("k", key), ("v", value), ("b", bias))}
    h, a = (torch.tensor(x, requires_grad=True) for x in (score.bandwidth, score.alpha))
    out = rg.attention_pool(t["q"], t["k"], t["v"], rg.RationalQuadratic(h, alpha=a), bias=t["b"], engine="reference")
    expected = torch.autograd.grad(out, [*t.values(), h, a], torch.tensor(cotangent))
    got = [grads.query, grads.key, grads.value, grads.bias, grads.score["bandwidth"], grads.score["alpha"]]
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == tuple(theirs.shape)
        np.testing.assert_allclose(mine, theirs.numpy(), atol=1e-13)


def torch_inputs(case):
    """Tensors with gradient: query, key, value, bias, then the score's parameters; and the score of the latter."""
    query, key, value = smooth(case)
    base = case.make(double)
    names = list(leaves(base))
    tensors = [torch.tensor(x, dtype=torch.float64) for x in (query, key, value)]
    tensors.append(torch.tensor(np.random.default_rng(23).normal(size=(Q, K))))
    tensors += [torch.tensor(double(leaves(base)[n])) for n in names]
    coded = case.coded or case.name in ("product", "constant")
    for n, t in enumerate(tensors):
        t.requires_grad_(not (coded and n < 2))

    def score(*parameters):
        made = base
        for name, value in zip(names, parameters, strict=True):
            made = with_leaf(made, name, value)
        return made

    return tensors, score


def pooled(score, mask, engine):
    return lambda q, k, v, b, *p: rg.attention_pool(q, k, v, score(*p), bias=b, mask=mask, engine=engine)


def test_torch_gradients_of_first_order_and_forward_mode(case, engine):
    tensors, score = torch_inputs(case)
    f = pooled(score, MASKS["ragged"], engine)
    assert torch.autograd.gradcheck(f, tensors, check_forward_ad=True)


def test_torch_gradients_of_second_order(case):
    tensors, score = torch_inputs(case)
    assert torch.autograd.gradgradcheck(pooled(score, None, "tiled"), tensors)


def test_engines_agree_in_gradients_and_with_the_numpy_backward(case):
    tensors, score = torch_inputs(case)
    cotangent = torch.tensor(np.random.default_rng(24).normal(size=(Q, V)))
    found = {}
    live = [t for t in tensors if t.requires_grad]
    for engine in ("reference", "tiled"):
        out = pooled(score, MASKS["ragged"], engine)(*tensors)
        found[engine] = torch.autograd.grad(out, live, cotangent, allow_unused=True)
    for a, b in zip(found["reference"], found["tiled"], strict=True):
        np.testing.assert_allclose(0 if a is None else a, 0 if b is None else b, atol=2e-14)
    query, key, value = smooth(case)
    _, grads = rg.attention_pool_gradients(
        cotangent.numpy(), query, key, value, case.make(double), bias=tensors[3].detach().numpy(), mask=MASKS["ragged"]
    )
    flat = [grads.query, grads.key, grads.value, grads.bias, *(grads.score[n] for n in leaves(case.make(double)))]
    flat = [g for g, t in zip(flat, tensors, strict=True) if t.requires_grad]
    for mine, theirs in zip(flat, found["reference"], strict=True):
        np.testing.assert_allclose(mine, 0 if theirs is None else theirs.numpy(), atol=2e-14)


def test_weights_have_gradients_of_first_and_second_order(case):
    tensors, score = torch_inputs(case)
    live = [t for n, t in enumerate(tensors) if n != 2]

    def shown(q, k, b, *p):
        return rg.attention_weights(q, k, score(*p), bias=b, mask=MASKS["ragged"])

    assert torch.autograd.gradcheck(shown, live, check_forward_ad=True)
    dense = rg.attention_weights(live[0], live[1], score(*live[3:]), bias=live[2], engine="reference")
    ours = rg.attention_weights(live[0], live[1], score(*live[3:]), bias=live[2])
    cotangent = torch.tensor(np.random.default_rng(25).normal(size=(Q, K)))
    wanted = [t for t in live if t.requires_grad]
    for a, b in zip(
        torch.autograd.grad(dense, wanted, cotangent, allow_unused=True),
        torch.autograd.grad(ours, wanted, cotangent, allow_unused=True),
        strict=True,
    ):
        np.testing.assert_allclose(0 if b is None else b, 0 if a is None else a, atol=2e-14)


def test_hessian_at_equal_query_and_key(kernel: type[Kernel]):
    """The double backward of a smooth kernel is right where query and key meet, for both engines."""
    if kernel.tail == "compact" or kernel.__name__ == "Laplacian":
        pytest.skip("a kernel with a kink or an edge has no second derivative there")
    x = torch.tensor([[0.0], [0.4], [1.1]], dtype=torch.float64)
    v = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)

    def f(q, engine):
        return rg.attention_pool(q, x, v, kernel(0.9), engine=engine).sum()

    step = 1e-4
    numeric = (
        sum(sign * float(f(x[1:2] + at, "reference")) for sign, at in ((1, step), (-2, 0.0), (1, -step))) / step**2
    )
    for engine in ("reference", "tiled"):
        second = torch.autograd.functional.hessian(lambda q, engine=engine: f(q, engine), x[1:2].clone())
        # central differences: Matern 3/2 has a third derivative that jumps, hence an error of order step
        assert float(second.squeeze()) == pytest.approx(numeric, abs=2e-2 if kernel.__name__ == "Matern32" else 1e-5)


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, 1e30])
def test_gradients_behind_a_mask_are_those_of_deletion(case, front, rubbish):
    query, key, value = smooth(case)
    keep = np.array([True, False, True, True, False])
    cotangent = np.random.default_rng(26).normal(size=(Q, V))
    _, expected = rg.attention_pool_gradients(cotangent, query, key[keep], value[keep], case.make(double))
    key, value = key.copy(), value.copy()
    key[~keep], value[~keep] = rubbish, rubbish
    mask = rg.KeyPadding(keep)
    if front("float64")(0.0) is not None and not isinstance(front("float64")(0.0), torch.Tensor):
        _, got = rg.attention_pool_gradients(cotangent, query, key, value, case.make(double), mask=mask)
        grads = got.query, got.key, got.value
        parameters = got.score
    else:
        t = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
        names = list(leaves(case.make(double)))
        p = [torch.tensor(double(leaves(case.make(double))[n]), requires_grad=True) for n in names]
        score = case.make(double)
        for name, x in zip(names, p, strict=True):
            score = with_leaf(score, name, x)
        out = rg.attention_pool(*t, score, mask=mask)
        found = torch.autograd.grad(out, [*t, *p], torch.tensor(cotangent), materialize_grads=True, allow_unused=True)
        grads = tuple(g.numpy() for g in found[:3])
        parameters = {n: g.numpy() for n, g in zip(names, found[3:], strict=True)}
    np.testing.assert_allclose(grads[0], expected.query, atol=2e-14)
    for mine, theirs in ((grads[1], expected.key), (grads[2], expected.value)):
        np.testing.assert_allclose(mine[keep], theirs, atol=2e-14)
        assert not mine[~keep].any()
    for name, g in expected.score.items():
        np.testing.assert_allclose(parameters[name], g, atol=2e-13)


@pytest.mark.parametrize("where", ["key", "value", "query"])
def test_a_live_nan_leaves_the_gradients_of_other_queries_alone(case, where):
    query, key, value = (x.copy() for x in smooth(case))
    mask = rg.Causal(offset=0)
    {"key": key, "value": value, "query": query}[where][1] = np.nan
    t = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    out = rg.attention_pool(*t, case.make(double), mask=mask)
    clean = torch.isfinite(out).all(-1)
    found = torch.autograd.grad(out[clean].sum(), t, materialize_grads=True)
    query, key, value = smooth(case)  # the same loss, of the same queries, without the NaN
    t = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    out = rg.attention_pool(*t, case.make(double), mask=mask)
    expected = torch.autograd.grad(out[clean].sum(), t, materialize_grads=True)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-14)


def test_gradients_of_distances_beyond_the_range_of_float64(engine):
    """Inverse powers have the gradients of their limit, which a bandwidth of 1e-100 has reached as well."""
    query, key, value = np.random.default_rng(28).normal(size=(3, 5, 2))
    cotangent = np.random.default_rng(29).normal(size=(5, 2))
    limit, beyond = (
        rg.attention_pool_gradients(cotangent, query, key, value, rg.Cauchy(h), engine=engine)[1]
        for h in (1e-100, 1e-250)
    )
    for mine, theirs in zip(beyond[:3], limit[:3], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    t = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    out = rg.attention_pool(*t, rg.Cauchy(1e-250), engine=engine)
    for mine, theirs in zip(torch.autograd.grad(out, t, torch.tensor(cotangent)), limit[:3], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_an_empty_row_has_no_gradient(case, engine):
    tensors, score = torch_inputs(case)
    live = [t for t in tensors if t.requires_grad]
    out = pooled(score, rg.ValidLength(0), engine)(*tensors)
    for g in torch.autograd.grad(out.sum(), live, materialize_grads=True, allow_unused=True):
        assert not g.any()


def test_forward_mode_and_double_backward_need_no_matrix(case):
    """torch.func.jvp of the tiled engine equals the directional derivative of the reference."""
    tensors, score = torch_inputs(case)
    moving = [n for n, t in enumerate(tensors) if t.requires_grad]
    rng = np.random.default_rng(27)
    tangents = [torch.tensor(rng.normal(size=tuple(tensors[n].shape))) for n in moving]

    def of(engine):
        def f(*xs):
            full = [t.detach() for t in tensors]
            for n, x in zip(moving, xs, strict=True):
                full[n] = x
            return pooled(score, MASKS["ragged"], engine)(*full)

        return torch.func.jvp(f, tuple(tensors[n].detach() for n in moving), tuple(tangents))[1]

    np.testing.assert_allclose(of("tiled"), of("reference"), atol=5e-14)
