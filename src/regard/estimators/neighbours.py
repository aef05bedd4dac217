"""Kernels that are as wide as the data are sparse: bandwidths are distances to a nearest neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array, Namespace
from regard.estimators.bandwidths import chosen
from regard.estimators.memory import Floats
from regard.estimators.rows import Rows
from regard.scores.base import Gradients, Kernel, On, Scaled, Score, Sum, Term
from regard.scores.pairings import scaled_distance

TYPES = {"fixed": "", "nearest": "query", "adaptive": "key"}  # bandwidth_type, and whose neighbours are meant


@dataclass(frozen=True, eq=False)
class Neighbours:
    """A feature of the rows: its distinct values in order, and how many rows there are up to each."""

    values: Floats
    total: Floats  # (n + 1,), 0 first

    @staticmethod
    def of(x: Floats, count: Floats) -> Neighbours:
        values, back = np.unique(x[count > 0].astype(np.float64), return_inverse=True)
        return Neighbours(values, np.concatenate([[0.0], np.cumsum(np.bincount(back, count[count > 0]))]))

    def distance(self, x: Floats, k: float) -> Floats:
        """(m,): how far the k-th nearest row is, by counts; where that is 0, how far the nearest other value is."""
        v, total = self.values, self.total
        if len(v) < 2:
            return np.ones(len(x))
        k = min(k, float(total[-1]))
        first = np.flatnonzero(total[-1] - total[:-1] >= k - 1e-9)  # where k rows in a row can begin
        last = np.searchsorted(total, total[first] + k - 1e-9) - 1
        # the further it begins, the nearer its first row and the further its last: they meet at the best
        meet = np.searchsorted(v[first] + v[last], 2 * x)
        reach = [
            np.maximum(x - v[first[at]], v[last[at]] - x)
            for at in (np.minimum(meet, len(first) - 1), np.maximum(meet - 1, 0))
        ]
        low, high = np.searchsorted(v, x, "left"), np.searchsorted(v, x, "right")
        below = np.where(low > 0, x - v[low - 1], np.inf)
        above = np.where(high < len(v), v[np.minimum(high, len(v) - 1)] - x, np.inf)
        found = np.minimum(*reach)
        return np.asarray(np.where(found > 0, found, np.minimum(below, above)))


@dataclass(frozen=True, eq=False)
class NeighbourKernel(Score):
    """A radial kernel of which each query, or each key, has bandwidths of its own, one per feature.

        s(q, k) = formula(sum_c (q_c - k_c)^2 / h_c^2),  h_c the distance from q_c, or k_c, to its nearest rows

    Parameters
    ----------
    kernel : whose formula it is
    features : the rows, by feature
    k : (D,), which neighbour
    side : "query" or "key", whose neighbours. A key is one of the rows and does not count itself.
    own : the queries are rows, too, and do not count themselves: leave-one-out
    """

    kernel: Kernel
    features: tuple[Neighbours, ...]
    k: Floats
    side: str
    own: bool = False
    shift_invariant: ClassVar[bool] = True

    def check(self, query_dim: int, key_dim: int) -> None:
        self.kernel.check(query_dim, key_dim)

    def uses(self, features: int) -> list[int]:
        return self.kernel.uses(features)

    def terms(self, xp: Namespace, query: Array, key: Array, origin: Array) -> list[Term]:
        x = query if self.side == "query" else key
        itself = 1.0 if self.own or self.side == "key" else 0.0
        width = np.stack(
            [
                f.distance(column.astype(np.float64), k + itself)
                for column, f, k in zip(np.moveaxis(x, -1, 0), self.features, self.k, strict=True)
            ],
            axis=-1,
        )
        shape = 1 / width.astype(query.dtype)
        on_query = shape if self.side == "query" else np.ones_like(query)
        on_key = shape if self.side == "key" else np.ones_like(key)
        parameters = tuple(self.kernel.parameters(xp, query).values())
        formula, slope = type(self.kernel).formula, type(self.kernel).slope
        q = np.concatenate([query - origin, on_query], axis=-1)
        k = np.concatenate([key - origin, on_key], axis=-1)
        return [Term(scaled_distance, formula, slope, q, k, parameters)]

    def terms_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grads: Iterator[Term]
    ) -> tuple[Array, Array, Gradients]:
        grad = next(grads)
        d = query.shape[-1]
        return grad.query[..., :d], grad.key[..., :d], {}  # a number of neighbours has no gradient


def with_neighbours(score: Score, rows: Rows, k: Floats, side: str, own: bool = False) -> Score:
    """The score with kernels of neighbours in place of its radial kernels; k (D,), one per feature."""
    match score:
        case Sum(parts=parts):
            return Sum(tuple(with_neighbours(part, rows, k, side, own) for part in parts))
        case On():
            at = chosen(score, list(range(len(k))))
            these = replace(rows, X=rows.X[:, at])
            return replace(score, score=with_neighbours(score.score, these, k[at], side, own))
        case Scaled():
            return replace(score, score=with_neighbours(score.score, rows, k, side, own))
        case Kernel():
            features = tuple(Neighbours.of(x, rows.count) for x in rows.X.T)
            return NeighbourKernel(replace(score, bandwidth=1.0), features, k, side, own)
    return score


def of_others(score: Score) -> Score:
    """The score for leave-one-out: no query counts itself among its neighbours."""
    match score:
        case Sum(parts=parts):
            return Sum(tuple(map(of_others, parts)))
        case On() | Scaled():
            return replace(score, score=of_others(score.score))
        case NeighbourKernel():
            return replace(score, own=True)
    return score


def numbers_of_neighbours(bandwidth: Any, count: Floats, lengths: Any) -> Floats:
    """(D,) numbers of neighbours: below 1 they are shares of the rows. What has no length keeps its number."""
    found = np.array(bandwidth, dtype=np.float64)
    n = float(count.sum())
    of = found[lengths]
    of = np.where(of < 1, np.maximum(np.ceil(of * n - 1e-9), 1), of)
    if not np.all((of >= 1) & (of == np.round(of)) & (found[lengths] > 0)):
        wrong = found[lengths][~((of >= 1) & (of == np.round(of)) & (found[lengths] > 0))][0]
        raise ValueError(
            '`bandwidth` of bandwidth_type="nearest" and "adaptive" must be a whole number of neighbours, or a share '
            f"of the rows between 0 and 1; got {wrong:g}."
        )
    found[lengths] = np.minimum(of, max(n - 1, 1))
    return found
