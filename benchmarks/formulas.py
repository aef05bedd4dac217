"""The scores by plain formulas, for the exact answers and for peers that have no such score themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import Case

Tensor = torch.Tensor

# kernels of u = |(q - k) / h|^2, for whatever has these methods
KERNELS: dict[str, Callable[[Any], Any]] = {
    "gaussian": lambda u: (-u / 2).exp(),
    "epanechnikov": lambda u: (1 - u).relu(),
    "tricube": lambda u: (1 - u * u.sqrt()).relu() ** 3,
    "laplacian": lambda u: (-u.sqrt()).exp(),
    "cauchy": lambda u: 1 / (1 + u),
}
# the radius of a compact kernel is such that each query has some keys
BANDWIDTHS = {"gaussian": 1.0, "epanechnikov": 4.0, "tricube": 4.0, "laplacian": 1.0, "cauchy": 1.0}


def projections(given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """W_q q and W_k k of the additive score."""
    return given["query"] @ given["query_weight"].mT, given["key"] @ given["key_weight"].mT


def scaled(case: Case, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Query and key in units of the bandwidth."""
    h = BANDWIDTHS[case.score]
    return given["query"] / h, given["key"] / h


def plainly(case: Case, given: dict[str, Tensor]) -> Tensor:
    """The pooled values from whole matrices, differences taken pair by pair."""
    value = given["value"]
    if case.score == "additive":
        a, b = projections(given)
        return torch.softmax(torch.tanh(a[..., :, None, :] + b[..., None, :, :]) @ given["value_weight"], -1) @ value
    if case.score == "dot_product":
        return torch.softmax(given["query"] @ given["key"].mT / case.dim**0.5, -1) @ value
    query, key = scaled(case, given)
    u = (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)
    return weighted(case, u, value)


def weighted(case: Case, u: Tensor, value: Tensor) -> Tensor:
    """The weighted means, from all squared distances."""
    if case.score == "gaussian":
        return torch.softmax(-u / 2, -1) @ value
    w = KERNELS[case.score](u)
    return w @ value / w.sum(-1, keepdim=True)
