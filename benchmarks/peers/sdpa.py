"""PyTorch's own attention kernel."""

from __future__ import annotations

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from benchmarks.cases import Case
from benchmarks.data import Inputs, Pool
from benchmarks.formulas import scaled


class Sdpa:
    name = "sdpa"
    title = "PyTorch SDPA"
    how = (
        "`scaled_dot_product_attention`; a Gaussian score as a dot product of augmented vectors, "
        "[q, 1] . [k, -|k|^2 / 2], centred at the mean of the keys and padded to a multiple of 16."
    )
    compiles = False

    def cannot(self, case: Case) -> str | None:
        return None if case.score in ("dot_product", "gaussian") else "its score is a dot product"

    def pool(self, case: Case) -> Pool:
        return lambda given: attend(case, given, scaled_dot_product_attention)


def attend(case: Case, given: Inputs, attention: object) -> torch.Tensor:
    """The pooled values by an attention of dot products that wants four axes."""
    query, key, value = given["query"], given["key"], given["value"]
    scale = case.dim**-0.5
    if case.score == "gaussian":
        query, key, scale = *augmented(*scaled(case, given)), 1.0
        width = -(-max(query.shape[-1], case.values) // 16) * 16
        query, key, value = (pad(x, (0, width - x.shape[-1])) for x in (query, key, value))
    lead = (1, 1)[len(case.lead) :] + case.lead
    query, key, value = (x.reshape(*lead, *x.shape[-2:]) for x in (query, key, value))
    out = attention(query, key, value, scale=scale)
    return out.reshape(*case.lead, *out.shape[-2:])[..., : case.values]


def augmented(query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors whose dot product is -|q - k|^2 / 2, up to what is the same for all keys."""
    centre = key.mean(-2, keepdim=True)
    query, key = query - centre, key - centre
    ones = torch.ones_like(query[..., :1])
    return torch.cat([query, ones], -1), torch.cat([key, -key.square().sum(-1, keepdim=True) / 2], -1)
