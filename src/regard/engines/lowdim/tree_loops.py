"""Compiled loops over a tree of boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from regard.engines.fused.maths import exp2_64, wide_vectors

LOOP: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"},
}
FAINT = 50.0  # exp(-FAINT) of the nearest key's weight is nothing beside it
HALF = -0.7213475204444817  # of the logarithm of e to base 2: exp(-u / 2) = 2^(HALF u)


@njit(**LOOP)
def distance(q: Any, n: int, low: Any, high: Any, box: int) -> float:
    """The squared distance of a query from a box; inf from an empty one."""
    total = 0.0
    for c in range(q.shape[1]):
        d = max(max(low[box, c] - q[n, c], q[n, c] - high[box, c]), 0.0)
        total += d * d
    return total


@njit(**LOOP)
def squares(q: Any, n: int, key: Any, start: int, stop: int, u: Any) -> None:
    """u = |k - q|^2 for the keys of a leaf."""
    wide_vectors()
    row = key[0, start:stop]
    x = q[n, 0]
    for j in range(len(row)):
        d = row[j] - x
        u[j] = d * d
    for c in range(1, q.shape[1]):
        row, x = key[c, start:stop], q[n, c]
        for j in range(len(row)):
            d = row[j] - x
            u[j] += d * d


@njit(**LOOP)
def nearest(q: Any, n: int, own: int, key: Any, low: Any, high: Any, bounds: Any, u: Any, stack: Any) -> float:
    """The squared distance of the nearest key that is not the own one; inf if there is none."""
    leaves, best, depth = len(bounds) - 1, np.inf, 1
    stack[0] = 0
    while depth:
        depth -= 1
        box = stack[depth]
        if not distance(q, n, low, high, box) < best:
            continue
        if box >= leaves - 1:
            start, stop = bounds[box - leaves + 1], bounds[box - leaves + 2]
            squares(q, n, key, start, stop, u)
            for j in range(stop - start):
                if u[j] < best and start + j != own:
                    best = u[j]
            continue
        left = distance(q, n, low, high, 2 * box + 1) <= distance(q, n, low, high, 2 * box + 2)
        stack[depth], stack[depth + 1] = 2 * box + (2 if left else 1), 2 * box + (1 if left else 2)
        depth += 2
    return best


@njit(**LOOP)
def weigh(u: Any, least: float, count: int) -> None:
    """u becomes exp(-(u - least) / 2)."""
    wide_vectors()
    for j in range(count):
        u[j] = exp2_64(HALF * (u[j] - least))


@njit(**LOOP)
def dot(u: Any, row: Any) -> float:
    """sum_j u_j row_j."""
    wide_vectors()
    total = 0.0
    for j in range(len(row)):
        total += u[j] * row[j]
    return total


@njit(**LOOP)
def times(a: Any, b: Any, x: float, power: int, out: Any) -> None:
    """out = a (b - x)^power."""
    wide_vectors()
    for j in range(len(b)):
        t = a[j]
        for _ in range(power):
            t *= b[j] - x
        out[j] = t


@njit(**LOOP)
def sums(
    q: Any,
    own: Any,
    key: Any,
    weight: Any,
    low: Any,
    high: Any,
    bounds: Any,
    powers: Any,
    shift: Any,
    out: Any,
    u: Any,
    room: Any,
    stack: Any,
    i: int,
    j: int,
) -> None:
    """shift (Q,) and out (Q, M, C) of queries i to j."""
    leaves, columns = len(bounds) - 1, len(weight)
    for n in range(i, j):
        least = nearest(q, n, own[n], key, low, high, bounds, u, stack)
        if least == np.inf:
            continue
        shift[n] = -0.5 * least
        depth = 1
        stack[0] = 0
        while depth:
            depth -= 1
            box = stack[depth]
            if distance(q, n, low, high, box) - least > 2 * FAINT:
                continue
            if box < leaves - 1:
                stack[depth], stack[depth + 1] = 2 * box + 2, 2 * box + 1
                depth += 2
                continue
            start, stop = bounds[box - leaves + 1], bounds[box - leaves + 2]
            squares(q, n, key, start, stop, u)
            weigh(u, least, stop - start)
            if start <= own[n] < stop:
                u[own[n] - start] = 0.0
            for m in range(len(powers)):
                if m == 0:
                    for v in range(columns):
                        out[n, 0, v] += dot(u, weight[v, start:stop])
                    continue
                first = True
                for c in range(q.shape[1]):
                    if powers[m, c]:
                        times(u if first else room, key[c, start:stop], q[n, c], powers[m, c], room)
                        first = False
                for v in range(columns):
                    out[n, m, v] += dot(room, weight[v, start:stop])
