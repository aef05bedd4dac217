"""KeOps: formulas compiled to loops that hold no matrix of pairs."""

from __future__ import annotations

import torch

from benchmarks.cases import Case
from benchmarks.data import Inputs, Pool
from benchmarks.formulas import KERNELS, projections, scaled


class KeOps:
    name = "keops"
    title = "KeOps"
    how = (
        "`LazyTensor`s: one plain sum of `kernel * [value, 1]` and a division. That is faster than its stable softmax, "
        "and right here since no exponential overflows. Tanh, which it lacks, as 1 - 2 / (1 + exp(2x))."
    )
    compiles = False

    def cannot(self, case: Case) -> str | None:
        return "it has no bfloat16 on the CPU" if case.dtype == "bfloat16" else None

    def pool(self, case: Case) -> Pool:
        import pykeops
        from pykeops.torch import LazyTensor

        pykeops.set_verbose(False)

        def weights(given: Inputs) -> LazyTensor:
            if case.score == "additive":
                a, b = projections(given)
                x = LazyTensor(a[..., :, None, :]) + LazyTensor(b[..., None, :, :])
                return ((1 - 2 / (1 + (2 * x).exp())) * LazyTensor(given["value_weight"][None, None])).sum(-1).exp()
            if case.score == "dot_product":
                query, key = given["query"] / case.dim**0.5, given["key"]
                return (LazyTensor(query[..., :, None, :]) * LazyTensor(key[..., None, :, :])).sum(-1).exp()
            query, key = scaled(case, given)
            u = (LazyTensor(query[..., :, None, :]) - LazyTensor(key[..., None, :, :])).square().sum(-1)
            return KERNELS[case.score](u)

        def pooled(given: Inputs) -> torch.Tensor:
            value = given["value"]
            sums = weights(given) @ torch.cat([value, torch.ones_like(value[..., :1])], -1)
            return sums[..., :-1] / sums[..., -1:]

        return pooled
