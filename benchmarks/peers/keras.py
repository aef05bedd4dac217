"""Keras layers, on PyTorch."""

from __future__ import annotations

import torch

from benchmarks.cases import Case
from benchmarks.data import Inputs, Pool
from benchmarks.formulas import projections
from benchmarks.peers.eager import too_large


class Keras:
    name = "keras"
    title = "Keras on PyTorch"
    how = "`AdditiveAttention` of projections made before it, which it has none of its own for; `Attention`."
    compiles = False

    def cannot(self, case: Case) -> str | None:
        if case.score not in ("additive", "dot_product"):
            return "it has no layer whose score is a distance"
        return too_large(case)

    def pool(self, case: Case) -> Pool:
        import keras

        if case.score == "dot_product":
            layer = keras.layers.Attention(dtype=case.dtype)
            return lambda given: layer([given["query"] / case.dim**0.5, given["value"], given["key"]])
        layer = keras.layers.AdditiveAttention(dtype=case.dtype)
        layer.build([(1, case.queries, case.hidden), (1, case.keys, case.values), (1, case.keys, case.hidden)])

        def pooled(given: Inputs) -> torch.Tensor:
            a, b = projections(given)
            arrays = [a[None], given["value"][None], b[None]]
            return layer.stateless_call([given["value_weight"]], [], arrays)[0][0]

        return pooled
