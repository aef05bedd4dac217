"""Compiled loops over keys and queries in cells of two and three dimensions."""

from __future__ import annotations

import math
from typing import Any

from numba import njit

LOOP: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"},
}


@njit(**LOOP)
def polynomials(x: float, width: float, into: Any) -> None:
    """The Chebyshev polynomials at the place of x in its cell, from -1 to 1."""
    t = 2 * (x / width - math.floor(x / width)) - 1
    into[0], into[1] = 1.0, t
    for k in range(2, len(into)):
        into[k] = 2 * t * into[k - 1] - into[k - 2]


@njit(**LOOP)
def charge(
    x: Any, w: Any, cells: Any, begins: Any, width: float, into: Any, mass: Any, t: Any, both: Any, i: int, j: int
) -> None:
    """into (cells, C, P^d) += w T_a(x) T_b(y) ..., mass (cells, C) += |w|, keys of cells i to j."""
    d, p, columns = t.shape[0], t.shape[1], w.shape[1]
    for c in range(i, j):
        cell = cells[c]
        for n in range(begins[c], begins[c + 1]):
            for axis in range(d):
                polynomials(x[n, axis], width, t[axis])
            for v in range(columns):
                weight = w[n, v]
                mass[cell, v] += abs(weight)
                target = into[cell, v]
                rows = p
                if d == 2:
                    for a in range(p):
                        both[a] = weight * t[0, a]
                else:
                    rows = p * p
                    for a in range(p):
                        for b in range(p):
                            both[a * p + b] = weight * t[0, a] * t[1, b]
                last = t[d - 1]
                for r in range(rows):
                    part, factor = target[r * p : (r + 1) * p], both[r]
                    for b in range(p):
                        part[b] += factor * last[b]


@njit(**LOOP)
def derivatives(x: float, width: float, into: Any) -> None:
    """The derivatives of the Chebyshev polynomials to x: into (degree + 1, P)."""
    t = 2 * (x / width - math.floor(x / width)) - 1
    slope = 2 / width
    for m in range(into.shape[0]):
        into[m, 0] = 1.0 if m == 0 else 0.0
        into[m, 1] = t if m == 0 else slope if m == 1 else 0.0
        for k in range(2, into.shape[1]):
            into[m, k] = 2 * t * into[m, k - 1] - into[m, k - 2]
            if m:
                into[m, k] += 2 * m * slope * into[m - 1, k - 1]


@njit(**LOOP)
def moment(found: Any, axis: int) -> None:
    """From derivatives along an axis to moments: t^m = sum_k m! / (2^k k! (m - 2 k)!) He_(m - 2 k)(t), in place.

    ``found`` is (before, degree + 1, after).
    """
    for m in range(found.shape[1] - 1, 1, -1):
        for x in range(found.shape[0]):
            for y in range(found.shape[2]):
                total, factor, k = 0.0, 1.0, 0
                while m - 2 * k >= 0:
                    total += factor * found[x, m - 2 * k, y]
                    factor *= (m - 2 * k) * (m - 2 * k - 1) / (2.0 * (k + 1))
                    k += 1
                found[x, m, y] = total


@njit(**LOOP)
def evaluate(q: Any, rows: Any, cell: Any, width: float, local: Any, powers: Any, out: Any, t: Any, found: Any) -> None:
    """out (Q, M, C) of these rows from the coefficients of their cells."""
    d, many, p, columns = q.shape[1], t.shape[1], t.shape[2], local.shape[1]
    flat = found.reshape(-1)
    for n in rows:
        for axis in range(d):
            derivatives(q[n, axis], width, t[axis])
        for v in range(columns):
            c = local[cell[n], v]
            flat[:] = 0.0
            for a in range(p if d == 3 else 1):
                for b in range(p):
                    part = c[(a * p + b) * p : (a * p + b + 1) * p]
                    for z in range(many):
                        total, last = 0.0, t[d - 1, z]
                        for k in range(p):
                            total += part[k] * last[k]
                        for y in range(many - z):
                            inner = total * t[d - 2, y, b]
                            if d == 2:
                                flat[y * many + z] += inner
                            else:
                                for x in range(many - z - y):
                                    flat[(x * many + y) * many + z] += inner * t[0, x, a]
            if many > 2:
                for axis in range(d):
                    before, after = many**axis, many ** (d - 1 - axis)
                    moment(flat.reshape((before, many, after)), axis)
            for m in range(len(powers)):
                at = 0
                for axis in range(d):
                    at = at * many + powers[m, axis]
                out[n, m, v] = flat[at]
