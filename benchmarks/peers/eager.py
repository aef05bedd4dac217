"""PyTorch, operation by operation."""

from __future__ import annotations

import torch

from benchmarks.cases import Case
from benchmarks.data import Inputs, Pool
from benchmarks.formulas import KERNELS, plainly, scaled, weighted

PAIRS = 1 << 25  # of a block of queries: 134 MB of float32 scores
HIDDEN = 1 << 28  # entries of a block where every pair has its hidden units: 1.1 GB


class Eager:
    name = "eager"
    title = "PyTorch, eager"
    how = (
        "`torch.softmax(scores, -1) @ value`; distances by `torch.cdist`, or by differences for d = 1. "
        "By blocks of queries where all pairs at once would need more than 134 MB."
    )
    compiles = False

    def cannot(self, case: Case) -> str | None:
        return too_large(case)

    def pool(self, case: Case) -> Pool:
        return lambda given: by_blocks(case, given, whole)


def too_large(case: Case) -> str | None:
    """Why the pairs that autograd would keep do not fit into a machine."""
    size = {"float64": 8, "float32": 4, "bfloat16": 2}[case.dtype]
    kept = case.pairs * max(case.hidden, 1) * size
    if case.backward and kept > 16e9:
        return f"autograd keeps an array of all pairs and hidden units, which takes {kept / 1e9:.0f} GB"
    return None


def by_blocks(case: Case, given: Inputs, of: object, width: int = 1) -> torch.Tensor:
    """The pooled values of some queries at a time."""
    most = HIDDEN // case.hidden if case.hidden else PAIRS // width
    blocks = -(-case.pairs // most)
    if blocks == 1:
        return of(case, given)
    while case.queries % blocks:  # all of one size: another size is compiled anew
        blocks += 1
    parts = given["query"].chunk(blocks, -2)
    return torch.cat([of(case, {**given, "query": part}) for part in parts], -2)


def whole(case: Case, given: Inputs) -> torch.Tensor:
    """The pooled values in the way of eager PyTorch that is fastest."""
    if case.score not in KERNELS:
        return plainly(case, given)
    query, key = scaled(case, given)
    u = (query - key.mT).square() if case.dim == 1 else torch.cdist(query, key).square()
    return weighted(case, u, given["value"])
