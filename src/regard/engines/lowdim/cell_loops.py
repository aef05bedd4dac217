"""Compiled loops over cells in two and three dimensions; expansions are polynomials in offsets of -1 to 1 in a cell.

A tensor of two dimensions is one of three whose first axis has one entry.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from regard.compiled.products import LANES as ALL_LANES
from regard.compiled.products import more, more_four
from regard.engines.lowdim.loops import LOOP

LANES = ALL_LANES["float64"]


@njit(**LOOP)
def offsets(x: Any, n: int, corner: Any, c: int, width: float, powers: Any) -> None:
    """powers (3, P): of the offsets of a point from the middle of a cell, in half widths, along the last axes."""
    features = x.shape[1]
    for d in range(features):
        y, t = 2.0 * ((x[n, d] - corner[c, d] * width) / width) - 1.0, 1.0
        for p in range(powers.shape[1]):
            powers[3 - features + d, p] = t
            t *= y


@njit(**LOOP)
def add_moments(
    x: Any, w: Any, starts: Any, stops: Any, corner: Any, width: float, into: Any, powers: Any, left: Any, right: Any,
    sums: Any, i: int, j: int
) -> None:  # fmt: skip
    """into (cells, P0, P1, P2) = sum w y0^p0 y1^p1 y2^p2 of the keys starts to stops of each cell.

    corner (cells, D) is where a cell begins, in widths. It is a product of left (keys, P0 P1 and up to 3 more) and
    right (P2 / LANES, keys, LANES), some keys at a time.
    """
    some, rows = left.shape
    p0, p1, wide = into.shape[1:]
    for c in range(i, j):
        sums[:] = 0.0
        for first in range(starts[c], stops[c], some):
            count = min(some, stops[c] - first)
            for k in range(count):
                offsets(x, first + k, corner, c, width, powers)
                for a in range(p0):
                    for b in range(p1):
                        left[k, a * p1 + b] = powers[0, a] * powers[1, b]
                for p in range(wide):
                    right[p // LANES, k, p % LANES] = powers[2, p] * w[first + k]
            for panel in range(len(right)):
                for a in range(0, rows - 4, 8):
                    more(left, a, 1, rows, right[panel], 0, sums[panel], a * LANES, sums[0, 0], count)
                if rows % 8:
                    a = rows - 4
                    more_four(left, a, 1, rows, right[panel], 0, sums[panel], a * LANES, sums[0, 0], count)
        for a in range(p0):
            for b in range(p1):
                for k in range(wide):
                    into[c, a, b, k] = sums[k // LANES, a * p1 + b, k % LANES]


@njit(**LOOP)
def sweep(
    x: Any, place: Any, first: int, matrix: Any, rows: Any, into: Any, live: Any, line: Any, sums: Any, i: int, j: int
) -> None:
    """Expansions along one axis: into[rows[r, t]] = sum_s matrix[s - t] x[place[s, r]], its axes turned by one.

    x (cells, P, L); place (S, R) is -1 where there is nothing; into (rows, L, P); rows (R, T) is -1 where nothing is
    needed; t is ``first`` cells after s. matrix (P and up to 3 more, (2 reach + 1) P) are the blocks for all s - t side
    by side. live (R, T) becomes 1 where there is something. line (S P, LANES) and sums (like matrix, LANES) are room.
    """
    many, count, wide, across = live.shape[1], x.shape[1], x.shape[2], matrix.shape[1]
    reach = across // count // 2
    for r in range(i, j):
        for start in range(0, wide, LANES):
            size, begin, end = min(LANES, wide - start), len(place), -1
            for s in range(len(place)):
                n = place[s, r]
                if n >= 0:
                    begin, end = min(begin, s), s + 1
                for p in range(count):
                    if n < 0:
                        line[s * count + p] = 0.0
                    else:
                        for k in range(size):
                            line[s * count + p, k] = x[n, p, start + k]
            for t in range(many):
                at = t + first
                low, high = max(at - reach, begin), min(at + reach + 1, end)
                if rows[r, t] < 0 or low >= high:
                    continue
                live[r, t] = 1
                of, cells = (low - at + reach) * count, (high - low) * count
                sums[:] = 0.0
                for a in range(0, len(sums) - 4, 8):
                    more(matrix, a * across + of, across, 1, line, low * count * LANES, sums, a * LANES, sums[0], cells)
                if len(sums) % 8:
                    a = len(sums) - 4
                    more_four(
                        matrix, a * across + of, across, 1, line, low * count * LANES, sums, a * LANES, sums[0], cells
                    )
                for k in range(size):
                    for a in range(count):
                        into[rows[r, t], start + k, a] = sums[a, k]


@njit(**LOOP)
def evaluate(
    q: Any,
    rows: Any,
    starts: Any,
    stops: Any,
    corner: Any,
    width: float,
    local: Any,
    at: Any,
    hermite: Any,
    axes: Any,
    out: Any,
    basis: Any,
    part: Any,
    i: int,
    j: int,
) -> None:
    """out (Q, M) of the queries rows[starts:stops] of each target cell, from local (cells, P0, P1, P2).

    hermite (m, n): t^m = sum_n hermite[m, n] He_n(t), and He_n(t) g is the n-th derivative of g. axes (M, 3) exponents.
    """
    features, degree = q.shape[1], len(hermite) - 1
    p0, p1, p2 = local.shape[1:]
    for c in range(i, j):
        for r in range(starts[c], stops[c]):
            n = rows[r]
            offsets(q, n, corner, c, width, basis[:, 0])
            for e in range(3 - features, 3):
                for m in range(1, degree + 1):  # derivatives of y^p, then their sums
                    for p in range(p2 - 1, -1, -1):
                        basis[e, m, p] = 2.0 / width * p * basis[e, m - 1, p - 1] if p else 0.0
                for m in range(degree, 1, -1):
                    for p in range(p2):
                        total = 0.0
                        for k in range(m + 1):
                            total += hermite[m, k] * basis[e, k, p]
                        basis[e, m, p] = total
            out[n] = 0.0
            for a in range(p0):
                part[1] = 0.0
                for b in range(p1):
                    for m in range(degree + 1):
                        total = 0.0
                        for p in range(p2):
                            total += local[at[c], a, b, p] * basis[2, m, p]
                        part[0, m, 0] = total
                    for m in range(degree + 1):
                        for k in range(degree + 1 - m):
                            part[1, m, k] += basis[1, m, b] * part[0, k, 0]
                for m in range(len(axes)):
                    out[n, m] += basis[0, axes[m, 0], a] * part[1, axes[m, 1], axes[m, 2]]
