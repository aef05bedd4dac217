"""All pairs on our own fused engine, for some of the queries: what linear sums are held to."""

from __future__ import annotations

import torch

import regard as rg
from benchmarks.cases import Case
from benchmarks.data import Inputs, Pool, sample
from benchmarks.peers.ours import arguments

QUERIES = 2048


class Brute:
    name = "brute"
    title = "all pairs, extrapolated"
    how = f"`rg.attention_pool(..., engine='fused')` of {QUERIES:,} queries, and in proportion for all of them."
    compiles = False

    def cannot(self, case: Case) -> str | None:
        return "it is held against linear sums only" if case.rtol is None or case.backward else None

    def share(self, case: Case) -> float:
        """Of the queries that it runs."""
        return min(QUERIES / case.queries, 1.0)

    def pool(self, case: Case) -> Pool:
        rows = sample(case)
        some = torch.cat([rows, torch.arange(case.queries)])[: max(round(self.share(case) * case.queries), len(rows))]

        def pooled(given: Inputs) -> torch.Tensor:
            out = torch.full((case.queries, case.values), torch.nan, dtype=given["value"].dtype)
            query, *others = arguments(case, given)
            found = rg.attention_pool(query[some.numpy()], *others, engine="fused")
            out[some] = torch.as_tensor(found)
            return out

        return pooled
