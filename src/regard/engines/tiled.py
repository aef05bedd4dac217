"""Tiles with an online softmax: any score and mask, NumPy, and torch on any device, in O((Q + K) D + tile) memory.

One pass keeps a running maximum and rescales what it has summed when the maximum rises (Milakov & Gimelshein 2018,
Online normalizer calculation for softmax, algorithm 3); the backward computes each tile again from the maximum.
"""

from __future__ import annotations

import numpy as np

from regard.arrays import Array, is_torch
from regard.engines.base import Shown
from regard.partial import Partial
from regard.problem import (
    Problem,
    block,
    dropout,
    new,
    pool_backward,
    put,
    query_tiles,
    reached,
    score_tile,
    spoil,
)
from regard.weights import exponentials, running_maximum, weighted_sum


class Tiled(Shown):
    """Pools tile by tile."""

    name = "tiled"
    native = False

    def cannot(self, problem: Problem) -> str | None:
        if problem.xp is not np and not is_torch(problem.value):
            return "it runs on NumPy arrays and torch tensors only"
        return None

    def declines(self, problem: Problem) -> str | None:
        return None

    def pool(self, problem: Problem) -> Partial:
        xp, value = problem.xp, problem.value
        top, weight_sum = (new(problem, problem.rows, x) for x in (-np.inf, 0.0))
        value_sum = new(problem, (*problem.rows, value.shape[-1]), 0.0)
        for queries, key_tiles in query_tiles(problem):
            m, z, o = top[..., queries], weight_sum[..., queries], value_sum[..., queries, :]
            seen_row, seen_column = None, None
            for keys in key_tiles:
                s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
                highest = xp.maximum(m, running_maximum(xp, s))
                shrink = exponentials(xp, m[..., None], highest)[..., 0]
                w = exponentials(xp, s, highest)
                kept = w * dropout(problem, queries, keys) if problem.dropout else w
                m, z = highest, z * shrink + xp.sum(w, axis=-1)
                o = o * shrink[..., None] + weighted_sum(kept, value[..., keys, :])
                row, column = reached(problem, s, queries, keys)
                seen_row = row if seen_row is None else seen_row + row
                seen_column = column if seen_column is None else seen_column + column
            z, o = spoil(xp, (z, o), seen_row, seen_column)
            top[..., queries], weight_sum[..., queries], value_sum[..., queries, :] = m, z, o
        return Partial(top, weight_sum, value_sum)

    def exponentials(self, problem: Problem) -> tuple[Array, Array]:
        """``max`` and ``exp(s - max)``, (..., Q, K): what torch differentiates when it shows weights."""
        top = self.pool(problem).max
        out = new(problem, (*problem.rows, problem.layout.keys), 0.0)
        for queries, key_tiles in query_tiles(problem):
            for keys in key_tiles:
                s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
                out[..., queries, keys] = exponentials(problem.xp, s, top[..., queries])
        return top, out

    def backward(
        self, problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array
    ) -> tuple[Array, ...]:
        xp = problem.xp
        grads = [xp.zeros_like(a) for a in problem.arrays]
        for queries, key_tiles in query_tiles(problem):
            rows = (
                maximum[..., queries, None],
                grad_weight_sum[..., queries, None],
                grad_value_sum[..., queries, :],
            )
            for keys in key_tiles:
                parts = pool_backward(problem, block(problem, queries, keys), queries, keys, *rows)
                for grad, label, part in zip(grads, problem.labels, parts, strict=True):
                    put(grad, label, queries, keys, part)
        return tuple(grads)
