"""scikit-learn: it has kernels, and no regression with them."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.cases import Case
from benchmarks.data import Inputs, Pool
from benchmarks.peers.eager import PAIRS


class ScikitLearn:
    name = "sklearn"
    title = "scikit-learn"
    how = "`rbf_kernel` of some queries at a time, `weights @ value` and a division."
    compiles = False

    def cannot(self, case: Case) -> str | None:
        if case.score != "gaussian":
            return "it has no such kernel for pairs of rows"
        return "it has no gradients" if case.backward else None

    def pool(self, case: Case) -> Pool:
        from sklearn.metrics.pairwise import rbf_kernel

        rows = max(PAIRS // case.keys, 1)

        def pooled(given: Inputs) -> torch.Tensor:
            query, key, value = (given[name].numpy() for name in ("query", "key", "value"))
            out = np.empty((case.queries, case.values), value.dtype)
            for i in range(0, case.queries, rows):
                w = rbf_kernel(query[i : i + rows], key, gamma=0.5)
                out[i : i + rows] = w @ value / w.sum(1, keepdims=True)
            return torch.from_numpy(out)

        return pooled
