"""The error yardstick: no path is less exact than eager torch in the same dtype, gradients included.

The error is max |out - exact| / max |value| against float64 (long double for float64), as the median of ten seeds; a
path may have 1.1 times that of eager torch and 4 units in the last place.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import regard as rg

Q, K, V = 29, 211, 5
SEEDS = range(10)


def rounded(x, dtype):
    """A tensor of the numbers as the dtype holds them."""
    return torch.as_tensor(np.asarray(x)).to(getattr(torch, dtype))


def wide(x, dtype):
    """The same numbers in a dtype beyond ``dtype``, as NumPy."""
    return x.to(torch.float64).numpy().astype(np.longdouble if dtype == "float64" else np.float64)


def eager(query, key, value, score):
    """softmax, then matmul, as anyone writes it."""
    return torch.softmax(score(query, key), dim=-1) @ value


def live_rows(case, seed):
    """Queries with a key in their support: eager softmax is NaN without one."""
    query, key, _ = case.arrays(seed, Q, K, V)
    return (case.make(lambda x: np.asarray(x, float))(query, key) > -np.inf).any(1)


def errors(case, dtype, run):
    """Errors of ``run(arrays, score)`` and of eager torch, seed by seed."""
    inside = "float32" if dtype in ("bfloat16", "float16") else dtype  # what half precision is computed in
    score, exact_score = case.make(lambda x: rounded(x, inside)), case.make(lambda x: wide(rounded(x, inside), dtype))
    ours, theirs = [], []
    for seed in SEEDS:
        rows = live_rows(case, seed)
        arrays = [rounded(x, dtype) for x in case.arrays(seed, Q, K, V)]
        exact_arrays = [wide(a, dtype) for a in arrays]
        truth = rg.attention_pool(*exact_arrays, exact_score, engine="reference")
        peer = eager(*(a.to(getattr(torch, inside)) for a in arrays), score).to(getattr(torch, dtype))
        for found, out in ((ours, run(arrays, score)), (theirs, peer)):
            found.append(float(np.abs(wide(out, dtype) - truth)[rows].max() / np.abs(exact_arrays[2]).max()))
    return ours, theirs


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_pooled_values_are_as_exact_as_eager_torch(case, engine, dtype):
    ours, theirs = errors(case, dtype, lambda arrays, score: rg.attention_pool(*arrays, score, engine=engine))
    assert np.median(ours) <= 1.1 * np.median(theirs) + 4 * torch.finfo(getattr(torch, dtype)).eps


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_values_are_as_exact_as_eager_torch(case, engine, dtype):
    score = case.make(lambda x: rounded(x, dtype).numpy())

    def run(arrays, _):
        return torch.as_tensor(rg.attention_pool(*(a.numpy() for a in arrays), score, engine=engine))

    ours, theirs = errors(case, dtype, run)
    assert np.median(ours) <= 1.1 * np.median(theirs) + 4 * np.finfo(dtype).eps


def gradients(case, seed, dtype, how):
    """Gradients to query, key and value in float64, of the same float32 numbers computed in ``dtype``."""
    rows = torch.as_tensor(live_rows(case, seed))
    tensors = [rounded(x, "float32").to(dtype).requires_grad_() for x in case.arrays(seed, Q, K, V)]
    cotangent = rounded(np.random.default_rng(100 + seed).normal(size=(Q, V)), "float32").to(dtype)
    out = how(*tensors, case.make(lambda x: rounded(x, "float32").to(dtype)))[rows]
    found = torch.autograd.grad(out, tensors, cotangent[rows], allow_unused=True, materialize_grads=True)
    return [g.double() for g in found]


def test_gradients_are_as_exact_as_eager_torch(case, engine):
    def run(query, key, value, score):
        return rg.attention_pool(query, key, value, score, engine=engine)

    ours, theirs = [], []
    for seed in SEEDS:
        truth = gradients(case, seed, torch.float64, run)
        for found, how in ((ours, run), (theirs, eager)):
            pairs = zip(gradients(case, seed, torch.float32, how), truth, strict=True)
            found.append([float((a - b).abs().max() / (b.abs().max() + 1e-30)) for a, b in pairs])
    eps = np.finfo(np.float32).eps
    for mine, peer in zip(np.median(ours, axis=0), np.median(theirs, axis=0), strict=True):
        assert mine <= 1.1 * peer + 4 * eps
