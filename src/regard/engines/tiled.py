"""Tiles with an online softmax: any score and mask, NumPy, and torch on any device, in O((Q + K) D + tile) memory.

One pass keeps a running maximum and rescales what it has summed when the maximum rises (Milakov & Gimelshein 2018,
Online normalizer calculation for softmax, algorithm 3); the backward computes each tile again from the maximum.
"""

from __future__ import annotations

import numpy as np

from regard.arrays import Array, is_torch, take_along
from regard.partial import Partial
from regard.problem import (
    Problem,
    block,
    dropout,
    pool_backward,
    put,
    query_tiles,
    reached,
    score_tile,
    spoil,
)
from regard.weights import exponentials, running_maximum, weighted_sum


class Tiled:
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
        top, weight_sum = (_new(problem, problem.rows, x) for x in (-np.inf, 0.0))
        value_sum = _new(problem, (*problem.rows, value.shape[-1]), 0.0)
        for queries, key_tiles in query_tiles(problem):
            m, z, o = top[..., queries], weight_sum[..., queries], value_sum[..., queries, :]
            seen_row, seen_column = None, None
            for keys in key_tiles:
                s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
                new = xp.maximum(m, running_maximum(xp, s))
                shrink = exponentials(xp, m[..., None], new)[..., 0]
                w = exponentials(xp, s, new)
                kept = w * dropout(problem, queries, keys) if problem.dropout else w
                m, z = new, z * shrink + xp.sum(w, axis=-1)
                o = o * shrink[..., None] + weighted_sum(kept, value[..., keys, :])
                row, column = reached(problem, s, queries, keys)
                seen_row = row if seen_row is None else seen_row + row
                seen_column = column if seen_column is None else seen_column + column
            z, o = spoil(xp, (z, o), seen_row, seen_column)
            top[..., queries], weight_sum[..., queries], value_sum[..., queries, :] = m, z, o
        return Partial(top, weight_sum, value_sum)

    def weights(self, problem: Problem) -> Array:
        xp = problem.xp
        partial = self.pool(problem)
        out = _new(problem, (*problem.rows, problem.layout.keys), 0.0)
        for queries, key_tiles in query_tiles(problem):
            z = partial.weight_sum[..., queries, None]
            z = xp.where(z == 0, 1.0, z)
            for keys in key_tiles:
                s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
                w = exponentials(xp, s, partial.max[..., queries]) / z
                out[..., queries, keys] = xp.where(s > -xp.inf, w, 0.0)  # a row with NaN keeps its masked zeros
        return out

    def exponentials(self, problem: Problem) -> tuple[Array, Array]:
        """``max`` and ``exp(s - max)``, (..., Q, K): what torch differentiates when it shows weights."""
        top = self.pool(problem).max
        out = _new(problem, (*problem.rows, problem.layout.keys), 0.0)
        for queries, key_tiles in query_tiles(problem):
            for keys in key_tiles:
                s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
                out[..., queries, keys] = exponentials(problem.xp, s, top[..., queries])
        return top, out

    def top(self, problem: Problem, n: int) -> tuple[Array, Array]:
        xp = problem.xp
        partial = self.pool(problem)
        n = min(n, problem.layout.keys)
        best = _new(problem, (*problem.rows, n), -np.inf)
        index = _new(problem, (*problem.rows, n), -1, integer=True)
        for queries, key_tiles in query_tiles(problem):
            s, at = best[..., queries, :], index[..., queries, :]
            for keys in key_tiles:
                new = score_tile(problem, block(problem, queries, keys), queries, keys).scores
                here = problem.layout.key_positions(keys) - problem.layout.key_start
                new = xp.broadcast_to(new, (*s.shape[:-1], new.shape[-1]))
                both = xp.concat([s, new], axis=-1)
                where = xp.concat([at, xp.broadcast_to(here, new.shape)], axis=-1)
                # what was found before stands first and has the lower index, so a stable sort breaks ties by index
                order = xp.argsort(-both, axis=-1, stable=True)[..., :n]
                s, at = take_along(xp, both, order), take_along(xp, where, order)
            best[..., queries, :], index[..., queries, :] = s, at
        z = partial.weight_sum[..., None]
        weights = exponentials(xp, best, partial.max) / xp.where(z == 0, 1.0, z)
        return xp.where(best > -xp.inf, weights, 0.0), index  # an empty slot of a row with NaN is 0 as well

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


def _new(problem: Problem, shape: tuple[int, ...], fill: float, *, integer: bool = False) -> Array:
    """A new array of the problem's library, dtype and device."""
    if problem.xp is np:
        return np.full(shape, fill, dtype=np.int64 if integer else problem.value.dtype)
    dtype = problem.xp.int64 if integer else problem.value.dtype
    return problem.xp.full(shape, fill, dtype=dtype, device=problem.value.device)
