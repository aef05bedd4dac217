"""Compiled loops over a k-d tree of keys: node n has the children 2 n + 1 and 2 n + 2, a leaf is one or two blocks.

Those without types are bound to the formula of a kernel, and compiled, by ``tree.walker``.
"""

# ruff: noqa: F821
# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any

from numba import njit

from regard.compiled import maths
from regard.engines.lowdim.loops import LOOP

BLOCK = 64  # keys, a number that compiled loops know
LOOSEST = 1e6
STRICT = 16.0  # what is left out of a sum may be so many times smaller after one that left out too much


def score_0(u, p):
    return formula(maths, u)


def score_1(u, p):
    return formula(maths, u, p[0])


def score_2(u, p):
    return formula(maths, u, p[0], p[1])


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
    blocks = -(-len(x) // BLOCK)
    for depth in range(until - level + 1):
        wide = level + depth
        for k in range(1 << depth):
            n = ((node + 1) << depth) + k - 1
            place = n + 1 - (1 << wide)
            start, stop = BLOCK * ((place * blocks) >> wide), min(BLOCK * (((place + 1) * blocks) >> wide), len(x))
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
            select(x, order, axis, start, stop, BLOCK * (((2 * place + 1) * blocks) >> (wide + 1)))


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


def walk(
    q, rows, own, x, w, low, high, mass, p, axes, parents, degree, rtol, shift, out, stack, edges, u, room, sums, i, j
):
    """shift (Q,), out (Q, M, C) of the queries rows[i:j], each down the tree, the nearer child first.

    x (B, D, 64), w (B, C, 64) are the keys in the order of the leaves; mass (N, C) the sums of |w|. Monomial m is that
    of parents[m] times the difference along axes[m]. sums (2, C): of e |w|, which errors are relative to, and of what
    was left out. A node is left out where its largest weight would do if all keys had it, or ``loose`` times as much; a
    query that turns out to have left out too much is summed again with less of that.
    """
    wide_vectors()
    columns, leaves = w.shape[1], (len(low) + 1) // 2
    loose = 1.0
    for r in range(i, j):
        n = rows[r]
        while True:
            top = MINUS_INF
            out[n] = 0.0
            sums[:] = 0.0
            stack[0] = 0
            edges[0] = score(gap(q, n, low, high, 0), p)
            depth = 1
            while depth > 0:
                depth -= 1
                node, edge = stack[depth], edges[depth]
                if edge <= top:
                    e = exp2((edge - top) * LOG2)
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
                        s = score(g, p)
                        if s > MINUS_INF:
                            stack[depth], edges[depth] = child, s
                            depth += 1
                    continue
                leaf = node + 1 - leaves
                for b in range(leaf * len(x) // leaves, (leaf + 1) * len(x) // leaves):
                    top = add_block(q[n], own[r] - b * BLOCK, x[b], w[b], p, axes, parents, top, out[n], u, room, sums)
            wrong = 0.0  # beside what is allowed
            for v in range(columns):
                if sums[1, v] > 0.0:
                    wrong = max(wrong, sums[1, v] / (rtol * sums[0, v]))
            if wrong <= 1.0 or loose <= 1.0:
                break
            loose = max(loose / STRICT, 1.0)
        shift[n] = top
        if wrong < 1.0 / STRICT:
            loose = min(loose * 2.0, LOOSEST)


def add_block(q, own, x, w, p, axes, parents, top, out, u, room, sums):
    """The sums with the keys of a block, relative to the largest score, which is returned."""
    columns, powers = len(w), len(axes)
    square(u, x[0], q[0])
    for d in range(1, len(x)):
        add_square(u, x[d], q[d])
    if 0 <= own < BLOCK:
        u[own] = FAR
    s = score(least(u), p)
    if s == MINUS_INF:
        return top
    if s > top:
        scale = exp2((top - s) * LOG2)
        top = s
        for v in range(columns):
            sums[0, v] *= scale
            sums[1, v] *= scale
            for m in range(powers):
                out[m, v] *= scale
    weigh(room[0], u, top, p)
    for m in range(1, powers):
        times_gap(room[m], room[parents[m]], x[axes[m]], q[axes[m]])
    for v in range(columns):
        total, every = sum_both(room[0], w[v])
        out[0, v] += total
        sums[0, v] += every
        for m in range(1, powers):
            out[m, v] += sum_one(room[m], w[v])
    return top


# each a function of its own, since a loop is vectorised before it is inlined
def square(u, x, q):
    wide_vectors()
    for k in range(BLOCK):
        t = x[k] - q
        u[k] = t * t


def add_square(u, x, q):
    wide_vectors()
    for k in range(BLOCK):
        t = x[k] - q
        u[k] += t * t


def least(u):
    wide_vectors()
    found = -u[0]
    for k in range(BLOCK):
        found = larger(found, -u[k])
    return -found


def weigh(e, u, top, p):
    wide_vectors()
    for k in range(BLOCK):
        e[k] = exp2((score(u[k], p) - top) * LOG2)


def times_gap(now, before, x, q):
    wide_vectors()
    for k in range(BLOCK):
        now[k] = before[k] * (x[k] - q)


def sum_both(e, w):
    wide_vectors()
    total, every = ZERO, ZERO
    for k in range(BLOCK):
        total += e[k] * w[k]
        every += e[k] * abs(w[k])
    return total, every


def sum_one(e, w):
    wide_vectors()
    total = ZERO
    for k in range(BLOCK):
        total += e[k] * w[k]
    return total


PARTS = (square, add_square, least, weigh, times_gap, sum_both, sum_one, add_block)
SCORES = (score_0, score_1, score_2)
