"""torch.func over the pooling: vmap, jacobians, hessians and gradients per example, against torch's own operations."""

from __future__ import annotations

import pytest
import torch

import regard as rg

B, Q, K, D, V = 7, 3, 5, 2, 11

TRANSFORMS = {
    "vmap": lambda f, q, k, v: torch.vmap(f)(q, k, v),
    "vmap of queries": lambda f, q, k, v: torch.vmap(f, (0, None, None))(q, k[0], v[0]),
    "vmap of the last axis": lambda f, q, k, v: torch.vmap(f, (None, 2, None), 1)(q[0], k.permute(1, 2, 0), v[0]),
    "vmap of vmap": lambda f, q, k, v: torch.vmap(torch.vmap(f, (0, None, None)), (None, 0, 0))(q, k, v),
    "jacrev": lambda f, q, k, v: torch.func.jacrev(f, (0, 1, 2))(q[0], k[0], v[0]),
    "jacfwd": lambda f, q, k, v: torch.func.jacfwd(f, (0, 1, 2))(q[0], k[0], v[0]),
    "hessian": lambda f, q, k, v: torch.func.hessian(lambda *x: f(*x).square().sum(), (0, 1))(q[0], k[0], v[0]),
    "gradient per example": lambda f, q, k, v: torch.vmap(
        torch.func.grad(lambda *x: f(*x).nan_to_num(0, 0, 0).square().sum(), 1)
    )(q, k, v),
}
MASKS = {
    "none": None,
    "causal": rg.Causal(offset=1),
    "ragged": rg.ValidLength([0, 5, 3], per_query=True),
    "given": torch.arange(Q * K).reshape(Q, K) % 4 > 0,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["tiled", "fused"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform, name, mask):
    generator = torch.Generator().manual_seed(31)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    q, k, v, bias = draw(B, Q, D), draw(B, K, D), draw(B, K, V), draw(Q, K)
    if "vmap" in transform:  # what is not finite reaches who sees it, also in a batch that is hidden
        k[2, 1, 0], v[3, 2, 1], v[0, 1, 4] = torch.nan, torch.inf, -torch.inf
    score = rg.Gaussian(0.7) + 0.5 * rg.ScaledDotProduct()

    def pooled(engine):
        return lambda q, k, v: rg.attention_pool(q, k, v, score, mask=MASKS[mask], bias=bias, engine=engine)

    got, expected = (TRANSFORMS[transform](pooled(engine), q, k, v) for engine in (name, "reference"))
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["tiled", "fused"])
def test_a_batch_of_weights(name):
    q, k = torch.randn(B, Q, D, dtype=torch.float64), torch.randn(B, K, D, dtype=torch.float64)
    k[2, 1, 0] = torch.nan

    def weights(engine):
        return lambda q, k: rg.attention_weights(q, k, rg.Gaussian(0.7), mask=rg.Causal(offset=1), engine=engine)

    for shown in (torch.vmap(weights(name))(q, k), weights(name)(q, k)):
        torch.testing.assert_close(shown, weights("reference")(q, k), equal_nan=True, atol=1e-14, rtol=0)
    jacobians = (torch.func.jacrev(weights(engine), 1)(q[0], k[0]) for engine in (name, "reference"))
    torch.testing.assert_close(*jacobians, atol=1e-13, rtol=0)


def test_heads_have_their_own_parameters_in_a_batch():
    """Leading axes inside, a batch outside: the hidden axis goes before all that are seen."""
    q, k, v = (torch.randn(B, 2, n, d, dtype=torch.float64) for n, d in ((Q, D), (K, D), (K, V)))
    h = torch.tensor([0.5, 1.5], dtype=torch.float64)[:, None, None]

    def grads(engine):
        def loss(h, q, k, v):
            return rg.attention_pool(q, k, v, rg.Gaussian(h), engine=engine, mask=rg.ValidLength([2, 4])).square().sum()

        return torch.vmap(torch.func.grad(loss, (0, 1, 2, 3)), (None, 0, 0, 0))(h, q, k, v)

    for engine in ("tiled", "fused"):
        torch.testing.assert_close(grads(engine), grads("reference"), atol=1e-12, rtol=1e-12)
