"""Compiled loops over a tree of cells, and over the Chebyshev expansions of their keys and of sums in them.

Those without types are bound to a kernel, and compiled, by ``multipole.summer``.
"""

# ruff: noqa: F821
# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any

from numba import njit

from regard.compiled.products import LANES as ALL_LANES
from regard.compiled.products import more
from regard.engines.lowdim.loops import LOOP

LANES = ALL_LANES["float64"]
CHUNK = 128  # keys that are weighed at once


@njit(**LOOP)
def split(
    x: Any, order: Any, starts: Any, stops: Any, low: Any, scale: float, counts: Any, x_room: Any, room: Any,
    child: Any, begin: Any, i: int, j: int,
) -> None:  # fmt: skip
    """Points of cells i to j put in the order of their children, of which there are ``counts (cells, 2^D)``.

    ``scale`` is 2 over the width of the cells. x_room, room and child are as long as x; begin (2^D,) is room.
    """
    features = x.shape[1]
    for c in range(i, j):
        for n in range(starts[c], stops[c]):
            at = 0
            for d in range(features):
                at = 2 * at + (math.floor((x[n, d] - low[d]) * scale) & 1)
            child[n] = at
            counts[c, at] += 1
        at = starts[c]
        for k in range(len(begin)):
            begin[k] = at
            at += counts[c, k]
        for n in range(starts[c], stops[c]):
            at = begin[child[n]]
            begin[child[n]] += 1
            for d in range(features):
                x_room[at, d] = x[n, d]
            room[at] = order[n]
        for n in range(starts[c], stops[c]):
            for d in range(features):
                x[n, d] = x_room[n, d]
            order[n] = room[n]


@njit(**LOOP)
def differ(x: Any, starts: Any, stops: Any, into: Any) -> None:
    """Whether there are different points among those from starts to stops."""
    for c in range(len(starts)):
        for n in range(starts[c], stops[c]):
            for d in range(x.shape[1]):
                if x[n, d] != x[starts[c], d]:
                    into[c] = True
            if into[c]:
                break


@njit(**LOOP)
def polynomials(
    x: Any, n: int, scale: float, corner: Any, c: int, heads: Any, lengths: Any, values: Any, into: Any
) -> None:
    """into (P,) = T_a(y0) T_b(y1) .. at the place y of a point in its cell, -1 to 1; values (D, p) is room.

    corner (cells, D) is where cells begin, scale 2 over their width. heads (H, D - 1) are all but the last degree; for
    each, ``lengths`` degrees of the last axis.
    """
    last = x.shape[1] - 1
    for d in range(last + 1):
        y = scale * (x[n, d] - corner[c, d]) - 1.0
        values[d, 0] = 1.0
        values[d, 1] = y
        for k in range(2, values.shape[1]):
            values[d, k] = 2.0 * y * values[d, k - 1] - values[d, k - 2]
    at = 0
    for h in range(len(heads)):
        t = 1.0
        for d in range(last):
            t *= values[d, heads[h, d]]
        for k in range(lengths[h]):
            into[at + k] = t * values[last, k]
        at += lengths[h]


@njit(**LOOP)
def add_moments(
    x: Any, w: Any, starts: Any, stops: Any, scale: float, corner: Any, heads: Any, lengths: Any, place: Any,
    into: Any, values: Any, basis: Any, sums: Any, cells: Any, i: int, j: int,
) -> None:  # fmt: skip
    """into (cells, C, P): sums of w (C, K) times the polynomials, each put in its place; sums (C, P) is room."""
    for n in range(i, j):
        c = cells[n]
        sums[:] = 0.0
        for k in range(starts[c], stops[c]):
            polynomials(x, k, scale, corner, c, heads, lengths, values, basis)
            for v in range(len(sums)):
                t, row = w[v, k], sums[v]
                for m in range(len(basis)):
                    row[m] += t * basis[m]
        for v in range(len(sums)):
            for m in range(len(basis)):
                into[c, v, place[m]] = sums[v, m]


@njit(**LOOP)
def evaluate(
    x: Any, starts: Any, stops: Any, scale: float, corner: Any, heads: Any, lengths: Any, place: Any,
    local: Any, out: Any, values: Any, basis: Any, rows: Any, cells: Any, i: int, j: int,
) -> None:  # fmt: skip
    """out (Q, C) += the expansions ``local (cells, C, P)`` at the queries of these cells; rows (C, P) is room."""
    for n in range(i, j):
        c = cells[n]
        for v in range(len(rows)):
            for m in range(len(basis)):
                rows[v, m] = local[c, v, place[m]]
        for k in range(starts[c], stops[c]):
            polynomials(x, k, scale, corner, c, heads, lengths, values, basis)
            for v in range(len(rows)):
                t, row = 0.0, rows[v]
                for m in range(len(basis)):
                    t += row[m] * basis[m]
                out[k, v] += t


@njit(**LOOP)
def add_through(
    matrix: Any, place: Any, sign: Any, source: Any, sources: Any, into: Any, targets: Any, left: Any, sums: Any,
    i: int, j: int,
) -> None:  # fmt: skip
    """into[targets[n]] += S^T matrix S source[sources[n]] for n from i to j, S a permutation with signs.

    source, into (cells, C, P or more); matrix (P and up to 7 more, P); left (P, LANES) and sums are room. No target
    comes twice.
    """
    columns, terms = source.shape[1], matrix.shape[1]
    per = max(LANES // columns, 1)
    for first in range(i, j, per):
        count = min(per, j - first)
        for begin in range(0, columns, LANES):
            end = min(begin + LANES, columns)
            lane = 0
            for n in range(first, first + count):
                for v in range(begin, end):
                    row = source[sources[n], v]
                    for m in range(terms):
                        left[place[m], lane] = sign[m] * row[m]
                    lane += 1
            sums[:] = 0.0
            for a in range(0, len(sums), 8):
                more(matrix, a * terms, terms, 1, left, 0, sums, a * LANES, sums[0], terms)
            lane = 0
            for n in range(first, first + count):
                for v in range(begin, end):
                    row = into[targets[n], v]
                    for m in range(terms):
                        row[m] += sign[m] * sums[place[m], lane]
                    lane += 1


def score_0(u, p):
    return formula(maths, u)


def score_1(u, p):
    return formula(maths, u, p[0])


def score_2(u, p):
    return formula(maths, u, p[0], p[1])


def pairwise(q, own, first, last, begin, sstart, sstop, x, w, p, out, u, i, j):
    """out (Q, C) += the sums over the keys sstart[n] to sstop[n], for the queries first[g] to last[g].

    n goes from begin[g] to begin[g + 1], g from i to j. x (D, K), w (C, K); own (Q,) is the place of a key that a query
    does not see; u (CHUNK,) is room.
    """
    wide_vectors()
    for g in range(i, j):
        for k in range(first[g], last[g]):
            for n in range(begin[g], begin[g + 1]):
                for low in range(sstart[n], sstop[n], CHUNK):
                    high = min(low + CHUNK, sstop[n])
                    e = u[: high - low]
                    square(e, x[0, low:high], q[k, 0])
                    for d in range(1, len(x)):
                        add_square(e, x[d, low:high], q[k, d])
                    weigh(e, p)
                    if low <= own[k] < high:
                        e[own[k] - low] = ZERO
                    for v in range(len(w)):
                        out[k, v] += product(e, w[v, low:high])


# each a function of its own, since a loop is vectorised before it is inlined
def square(u, x, q):
    wide_vectors()
    for k in range(len(u)):
        t = x[k] - q
        u[k] = t * t


def add_square(u, x, q):
    wide_vectors()
    for k in range(len(u)):
        t = x[k] - q
        u[k] += t * t


def weigh_kernel(u, p):
    wide_vectors()
    for k in range(len(u)):
        u[k] = score(u[k], p)


def weigh_score(u, p):
    wide_vectors()
    for k in range(len(u)):
        u[k] = exp2(score(u[k], p) * LOG2)


def product(e, w):
    wide_vectors()
    total = ZERO
    for k in range(len(e)):
        total += e[k] * w[k]
    return total


PARTS = (square, add_square, product)
SCORES = (score_0, score_1, score_2)
