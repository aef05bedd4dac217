"""Rows whose scores overflow: they are computed again where nothing overflows, and get the limit (laws 2, 5 and 8).

An overflow is not an absent key. float32 goes to float64. In float64, distances are divided by the smallest distance
of their query: so far out every tail is at its limit, and a common factor of all distances does not change it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from regard.arrays import Array, Namespace, concrete, is_torch, largest
from regard.problem import Problem, block, query_tiles
from regard.scores.base import Score
from regard.scores.pairings import squared_distance

OUT = 2.0**660  # the squared distance that the nearest key of a rescaled query gets: far out, with room above


def may_overflow(problem: Problem) -> bool:
    """Whether some score might be too large for its dtype, by a bound from the largest query and key."""
    limit = math.sqrt(float(problem.xp.finfo(problem.value.dtype).max))
    for t in problem.terms:
        query, key = (x.detach() if is_torch(x) else x for x in (t.query, t.key))
        bound = t.pairing.bound(problem.xp, query, key)
        if is_torch(bound):
            bound = concrete(bound)  # None while it is traced: then nothing can be said
        if bound is not None and not float(bound) < limit:
            return True
    return False


def rescaled(problem: Problem, score: Score, query: Array, key: Array, origin: Array) -> tuple[Problem, float] | None:
    """The problem with each query's distances rescaled where they overflow, and the factor put on query and key.

    None where the score is not made of distances alone: then there is no common factor.
    """
    xp = problem.xp
    if not all(t.pairing is squared_distance for t in problem.terms):
        return None
    for power in range(128, 1024, 128):
        scale = 2.0**-power
        terms = score.terms(xp, query * scale, key * scale, origin * scale)
        if all(_size(xp, x) < 1e150 for t in terms for x in (t.query, t.key)):
            break
    else:
        return None
    small = replace(problem, terms=tuple(terms))
    nearest = _nearest(small)
    with np.errstate(divide="ignore"):
        overflows = xp.log2(xp.where(nearest > 0, nearest, 1.0)) + 2 * power > 1000
    safe = xp.where(overflows, nearest, 1.0)
    root = xp.where(overflows & (nearest > 0), math.sqrt(OUT) / xp.sqrt(safe), 2.0**power)[..., None]
    return replace(small, terms=tuple(t._replace(root=root) for t in terms)), scale


def _size(xp: Namespace, x: Array) -> float:
    x = x.detach() if is_torch(x) else x
    return float(xp.max(xp.abs(x))) if math.prod(x.shape) else 0.0


def _nearest(problem: Problem) -> Array:
    """(..., Q): the smallest sum of paired numbers over the keys that are there; inf where none is."""
    xp = problem.xp
    rows = []
    for queries, key_tiles in query_tiles(problem):
        least = None
        for keys in key_tiles:
            p = problem.with_arrays(block(problem, queries, keys))
            u = sum(t.pairing(xp, t.query, t.key) for t in p.terms)
            u = u.detach() if is_torch(u) else u
            if problem.mask is not None:
                u = xp.where(problem.mask.tile(problem.layout, queries, keys), u, xp.inf)
            found = -largest(xp, -u, axis=-1)
            least = found if least is None else xp.minimum(least, found)
        shape = (*problem.layout.leading, queries.stop - queries.start)
        rows.append(xp.full(shape, xp.inf) if least is None else xp.broadcast_to(least, shape))
    return xp.concat(rows, axis=-1)
