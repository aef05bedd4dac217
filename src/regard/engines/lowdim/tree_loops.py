"""Compiled loops over a k-d tree of keys: node n has the children 2 n + 1 and 2 n + 2, leaves are equal runs of keys."""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from regard.engines.fused import maths
from regard.engines.lowdim.loops import LOOP

STRICT = 16.0  # what is left out of a sum may be so many times smaller after one that left out too much


def score_0(u, p):  # type: ignore[no-untyped-def]
    return formula(maths, u)  # noqa: F821


def score_1(u, p):  # type: ignore[no-untyped-def]
    return formula(maths, u, p[0])  # noqa: F821


def score_2(u, p):  # type: ignore[no-untyped-def]
    return formula(maths, u, p[0], p[1])  # noqa: F821


@njit(**LOOP)
def select(x: Any, order: Any, axis: int, start: int, stop: int, at: int) -> None:
    """Rows start to stop so that none before ``at`` is larger along the axis, and none after it smaller."""
    low, high = start, stop - 1
    while low < high:
        a, b, c = x[low, axis], x[(low + high) // 2, axis], x[high, axis]
        middle = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while x[i, axis] < middle:
                i += 1
            while x[j, axis] > middle:
                j -= 1
            if i <= j:
                for d in range(x.shape[1]):
                    x[i, d], x[j, d] = x[j, d], x[i, d]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if at <= j:
            high = j
        elif at >= i:
            low = i
        else:
            return


@njit(**LOOP)
def grow(x: Any, order: Any, low: Any, high: Any, level: int, node: int, until: int) -> None:
    """The boxes low, high (N, D) of a node and of all below it to a level; keys x (K, D) are put in order."""
    count = len(x)
    for depth in range(until - level + 1):
        wide = level + depth
        for k in range(1 << depth):
            n = ((node + 1) << depth) + k - 1
            place = n + 1 - (1 << wide)
            start, stop = (place * count) >> wide, ((place + 1) * count) >> wide
            for d in range(x.shape[1]):
                low[n, d] = high[n, d] = x[start, d]
            for i in range(start + 1, stop):
                for d in range(x.shape[1]):
                    low[n, d] = min(low[n, d], x[i, d])
                    high[n, d] = max(high[n, d], x[i, d])
            if wide == until:
                continue
            axis = 0
            for d in range(1, x.shape[1]):
                if high[n, d] - low[n, d] > high[n, axis] - low[n, axis]:
                    axis = d
            select(x, order, axis, start, stop, ((2 * place + 1) * count) >> (wide + 1))


@njit(**LOOP)
def gap(q: Any, n: int, low: Any, high: Any, node: int) -> float:
    """The squared distance of a query and a box, from below whatever is rounded."""
    u = 0.0
    for d in range(low.shape[1]):
        t = max(max(low[node, d] - q[n, d], q[n, d] - high[node, d]), 0.0)
        u += t * t
    return u * (1.0 - 1e-14)


@njit(**LOOP)
def reach(q: Any, n: int, low: Any, high: Any, node: int) -> float:
    """The squared distance of a query and the farthest point of a box."""
    u = 0.0
    for d in range(low.shape[1]):
        t = max(high[node, d] - q[n, d], q[n, d] - low[node, d])
        u += t * t
    return u


@njit(**LOOP)
def nearest_leaf(q: Any, low: Any, high: Any, leaves: int, into: Any, i: int, j: int) -> None:
    """into (Q,): a leaf near each query, for an order in which neighbours are near each other."""
    for n in range(i, j):
        node = 0
        while node < leaves - 1:
            node = 2 * node + 1
            if gap(q, n, low, high, node + 1) < gap(q, n, low, high, node):
                node += 1
        into[n] = node - leaves + 1


def walk(  # type: ignore[no-untyped-def]
    q, rows, own, x, w, low, high, mass, p, axes, parents, degree, rtol, shift, out, stack, edges, u, room, sums, i, j
):
    """shift (Q,), out (Q, M, C) of the queries rows[i:j], each down the tree, the nearer child first.

    x (D, K), w (C, K) are the keys in the order of the leaves; mass (N, C) the sums of |w|. Monomial m is that of
    parents[m] times the difference along axes[m]. sums (2, C): of e |w|, which errors are relative to, and of what was
    left out. A node is left out where its largest weight would do if all keys had it, or ``loose`` times as much; a
    query that turns out to have left out too much is summed again with less of that.
    """
    wide_vectors()  # noqa: F821
    features, columns, powers = len(x), len(w), len(axes)
    leaves, count = (len(low) + 1) // 2, x.shape[1]
    loose = 1.0
    for r in range(i, j):
        n = rows[r]
        while True:
            top = MINUS_INF  # noqa: F821
            out[n] = 0.0
            sums[:] = 0.0
            stack[0] = 0
            edges[0] = score(gap(q, n, low, high, 0), p)  # noqa: F821
            depth = 1
            while depth > 0:
                depth -= 1
                node, edge = stack[depth], edges[depth]
                if top > MINUS_INF:  # noqa: F821
                    e = exp2(min(edge - top, 0.0) * LOG2)  # noqa: F821
                    if degree > 0 and e > 0.0:
                        far = math.sqrt(1.0 + reach(q, n, low, high, node))
                        for _ in range(degree):
                            e *= far
                    small = True
                    for v in range(columns):
                        if mass[node, v] > 0.0 and e * mass[0, v] > loose * rtol * sums[0, v]:
                            small = False
                    if small:
                        for v in range(columns):
                            sums[1, v] += e * mass[node, v]
                        continue
                if node < leaves - 1:
                    a, b = 2 * node + 1, 2 * node + 2
                    near, far = gap(q, n, low, high, a), gap(q, n, low, high, b)
                    if far < near:
                        a, b = b, a
                        near, far = far, near
                    for child, g in ((b, far), (a, near)):
                        s = score(g, p)  # noqa: F821
                        if s > MINUS_INF:  # noqa: F821
                            stack[depth], edges[depth] = child, s
                            depth += 1
                    continue
                leaf = node + 1 - leaves
                start, stop = (leaf * count) // leaves, ((leaf + 1) * count) // leaves
                top = add_leaf(q, n, own[r], x, w, p, axes, parents, top, out, u, room, sums, start, stop)  # noqa: F821
            wrong = 0.0  # beside what is allowed
            for v in range(columns):
                if sums[1, v] > 0.0:
                    wrong = max(wrong, sums[1, v] / (rtol * sums[0, v]))
            if wrong <= 1.0 or loose <= 1.0:
                break
            loose = max(loose / STRICT, 1.0)
        shift[n] = top
        if wrong < 1.0 / STRICT:
            loose = min(loose * 2.0, 1e30)


def add_leaf(q, n, own, x, w, p, axes, parents, top, out, u, room, sums, start, stop):  # type: ignore[no-untyped-def]
    """The sums with the keys of a leaf, relative to the largest score, which is returned."""
    features, columns, powers, size = len(x), len(w), len(axes), stop - start
    for k in range(size):
        u[k] = 0.0
    for d in range(features):
        key, at = x[d, start:stop], q[n, d]
        for k in range(size):
            t = key[k] - at
            u[k] += t * t
    if start <= own < stop:
        u[own - start] = FAR  # noqa: F821
    least = -u[0]
    for k in range(size):
        least = larger(least, -u[k])  # noqa: F821
    s = score(-least, p)  # noqa: F821
    if s == MINUS_INF:  # noqa: F821
        return top
    if s > top:
        scale = exp2((top - s) * LOG2)  # noqa: F821
        top = s
        for v in range(columns):
            sums[0, v] *= scale
            sums[1, v] *= scale
            for m in range(powers):
                out[n, m, v] *= scale
    e = room[0]
    for k in range(size):
        e[k] = exp2((score(u[k], p) - top) * LOG2)  # noqa: F821
    for m in range(1, powers):
        key, at, before, now = x[axes[m], start:stop], q[n, axes[m]], room[parents[m]], room[m]
        for k in range(size):
            now[k] = before[k] * (key[k] - at)
    for v in range(columns):
        weight, total, every = w[v, start:stop], 0.0, 0.0
        for k in range(size):
            total += e[k] * weight[k]
            every += e[k] * abs(weight[k])
        out[n, 0, v] += total
        sums[0, v] += every
        for m in range(1, powers):
            now, total = room[m], 0.0
            for k in range(size):
                total += now[k] * weight[k]
            out[n, m, v] += total
    return top
