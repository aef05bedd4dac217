"""Compiled loops over sorted keys and cells of one dimension. Whatever is summed is (weight, weight times values)."""

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
FAINT = 50.0  # exp(-FAINT) of the nearest key's weight is nothing beside it


@njit(**LOOP)
def block_at(cell: int, per: int, ids: Any) -> int:
    """The first kept cell of the block that a cell lies in, plus its place there; -1 where none is kept."""
    block = cell // per
    low, high = 0, len(ids)
    while low < high:
        mid = (low + high) // 2
        if ids[mid] < block:
            low = mid + 1
        else:
            high = mid
    if low < len(ids) and ids[low] == block:
        return low * per + cell - block * per
    return -1


@njit(**LOOP)
def add_moments(
    x: Any, w: Any, first: int, width: float, per: int, ids: Any, into: Any, mass: Any, powers: Any, i: int, j: int
) -> None:
    """into (cells, C, P) += w a^p, a the offset from the cell's centre; mass (cells, C) += |w|; powers (P,) is room."""
    every, columns, count = len(ids) == 0, into.shape[1], into.shape[2]
    for n in range(i, j):
        f = math.floor(x[n] / width)  # width is a power of two: the centre is exact, and so is the offset
        c = int(f) - first
        a = x[n] - (f + 0.5) * width
        if not every:
            c = block_at(c, per, ids)
            if c < 0:
                continue
        t = 1.0
        for p in range(count):
            powers[p] = t
            t *= a
        for v in range(columns):
            t, row = w[n, v], into[c, v]
            mass[c, v] += abs(t)
            for p in range(count):
                row[p] += t * powers[p]


@njit(**LOOP)
def to_local(
    moments: Any,
    mass: Any,
    table: Any,
    error: Any,
    least: Any,
    rest: Any,
    rtol: float,
    per: int,
    ids: Any,
    local: Any,
    good: Any,
    i: int,
    j: int,
) -> None:
    """The expansions of target cells i to j, and whether they keep the relative error.

    table (2 R + 1, 2 P): derivatives of the kernel at the distances of cells, factorials apart; error and
    least (2 R + 1,): bounds of the error and of the weight of a unit mass there; rest (C,): the error of all else.
    """
    reach, columns, count = len(error) // 2, local.shape[1], local.shape[2]
    every = len(ids) == 0
    for t in range(i, j):
        at = t if every else ids[t // per] * per + t % per
        if not every and (block_at(at - per, per, ids) < 0 or block_at(at + per, per, ids) < 0):
            continue  # keys of a block that is not kept may count here
        good[t] = 1
        for v in range(columns):
            wrong, right = rest[v], 0.0
            for d in range(-reach, reach + 1):
                s = at - d
                if every:
                    if s < 0 or s >= len(mass):
                        continue
                else:
                    s = block_at(s, per, ids)
                    if s < 0:
                        continue
                m = mass[s, v]
                if m == 0.0:
                    continue
                wrong += m * error[d + reach]
                right += m * least[d + reach]
                into = local[t, v]
                for b in range(count):
                    row, moment = table[d + reach, b : b + count], moments[s, v, b]
                    for a in range(count):
                        into[a] += row[a] * moment
            if not wrong <= rtol * right:
                good[t] = 0
        factorial = 1.0
        for a in range(2, count):
            factorial *= a
            for v in range(columns):
                local[t, v, a] /= factorial


@njit(**LOOP)
def evaluate(
    q: Any, first: int, width: float, per: int, ids: Any, local: Any, good: Any, out: Any, left: Any, i: int, j: int
) -> None:
    """out (Q, M, C) from the expansions; left (Q,) is 1 where there is none that is good."""
    every, columns, count, degree = len(ids) == 0, local.shape[1], local.shape[2], out.shape[1] - 1
    cells = len(local)
    for n in range(i, j):
        f = math.floor(q[n] / width)
        if not (-1e15 < f < 1e15):
            left[n] = 1
            continue
        c = int(f) - first
        if not every:
            c = block_at(c, per, ids)
        if c < 0 or c >= cells or good[c] == 0:
            left[n] = 1
            continue
        b = q[n] - (f + 0.5) * width
        if not degree:
            for v in range(columns):
                row, total = local[c, v], 0.0
                for a in range(count - 1, -1, -1):
                    total = total * b + row[a]
                out[n, 0, v] = total
            continue
        for v in range(columns):
            for m in range(degree + 1):  # the m-th derivative
                total = 0.0
                for a in range(count - 1, m - 1, -1):
                    k = local[c, v, a]
                    for r in range(m):
                        k *= a - r
                    total = total * b + k
                out[n, m, v] = total
            hermite(out, n, v, degree)


@njit(**LOOP)
def hermite(out: Any, n: int, v: int, degree: int) -> None:
    """Moments from derivatives: t^m = sum_k m! / (2^k k! (m - 2 k)!) He_(m - 2 k)(t)."""
    for m in range(degree, 1, -1):
        total, factor = 0.0, 1.0
        k = 0
        while m - 2 * k >= 0:
            total += factor * out[n, m - 2 * k, v]
            factor *= (m - 2 * k) * (m - 2 * k - 1) / (2.0 * (k + 1))
            k += 1
        out[n, m, v] = total


@njit(**LOOP)
def nearby(q: Any, rows: Any, own: Any, x: Any, w: Any, shift: Any, out: Any, i: int, j: int) -> None:
    """Gaussian sums of these queries over sorted keys but one, from the nearest outwards until nothing more counts."""
    count, columns, powers = len(x), w.shape[1], out.shape[1]
    for r in range(i, j):
        n = rows[r]
        low, high = 0, count
        while low < high:
            mid = (low + high) // 2
            if x[mid] < q[n]:
                low = mid + 1
            else:
                high = mid
        d, right, before = math.inf, low, low - 1
        if right == own[r]:
            right += 1
        if before == own[r]:
            before -= 1
        if right < count:
            d = x[right] - q[n]
        if before >= 0 and q[n] - x[before] < d:
            d = q[n] - x[before]
        top = -0.5 * d * d
        shift[n] = top
        for m in range(powers):
            for v in range(columns):
                out[n, m, v] = 0.0
        for side in range(2):
            k = low if side == 0 else low - 1
            while 0 <= k < count:
                if k == own[r]:
                    k += 1 if side == 0 else -1
                    continue
                t = x[k] - q[n]
                s = -0.5 * (abs(t) - d) * (abs(t) + d)
                if s < -FAINT:
                    break
                e = math.exp(s)
                for m in range(powers):
                    for v in range(columns):
                        out[n, m, v] += e * w[k, v]
                    e *= t
                k += 1 if side == 0 else -1


@njit(**LOOP)
def prefixes(x: Any, w: Any, cell: Any, width: float, into: Any, i: int, j: int) -> None:
    """into (K + 1, C, P): running sums of w a^p from the first key of each cell, keys i to j, which begin a cell."""
    columns, count = into.shape[1], into.shape[2]
    for n in range(i, j):
        a = x[n] - (cell[n] + 0.5) * width
        for v in range(columns):
            t = w[n, v]
            for p in range(count):
                before = into[n - 1, v, p] if n > i and cell[n] == cell[n - 1] else 0.0
                into[n, v, p] = before + t
                t *= a


@njit(**LOOP)
def direct(x: Any, w: Any, q: float, inner: int, outer: int, out: Any, start: int, stop: int) -> None:
    """out (M, C) += w K(t) t^m over these keys, all inside, K(t) = (1 - |t|^inner)^outer."""
    columns, powers = out.shape[1], out.shape[0]
    for k in range(start, stop):
        t = x[k] - q
        r = abs(t)
        power, e = 1.0, 1.0
        for _ in range(inner):
            power *= r
        for _ in range(outer):
            e *= 1.0 - power
        for m in range(powers):
            for v in range(columns):
                out[m, v] += e * w[k, v]
            e *= t


@njit(**LOOP)
def past(t: float, limit: float, closed: bool, side: int) -> bool:
    """Whether a key at a distance stands at an edge or beyond: the left one of a support, its right one, or t >= 0."""
    if side == 0:
        return t >= 0
    u = t * t
    inside = u <= limit if closed else u < limit
    return (inside or t > 0) if side < 0 else (not inside and t > 0)


@njit(**LOOP)
def edge(x: Any, q: float, limit: float, closed: bool, side: int, at: int) -> int:
    """The first of the sorted keys from ``at`` that is past an edge, by steps that double."""
    count, step, low = len(x), 1, at
    while low < count and not past(x[low] - q, limit, closed, side):
        at = low + 1
        low += step
        step *= 2
    high = min(low, count)
    while at < high:
        mid = (at + high) // 2
        if past(x[mid] - q, limit, closed, side):
            high = mid
        else:
            at = mid + 1
    return at


@njit(**LOOP)
def windows(
    q: Any,
    x: Any,
    w: Any,
    cell: Any,
    ends: Any,
    width: float,
    prefix: Any,
    series: Any,
    inner: int,
    outer: int,
    limit: float,
    closed: bool,
    few: int,
    shift: Any,
    out: Any,
    room: Any,
    i: int,
    j: int,
) -> None:
    """Sums of a kernel sum_p series_p |t|^p on its support, by prefix sums of whole runs of keys within cells.

    The queries ascend, so that edges are found from those of the last one.
    """
    columns, powers, terms = w.shape[1], out.shape[1], prefix.shape[2]
    start, low, stop = 0, 0, 0
    for n in range(i, j):
        start = edge(x, q[n], limit, closed, -1, start)
        low = edge(x, q[n], limit, closed, 0, max(low, start))
        stop = edge(x, q[n], limit, closed, 1, max(stop, low))
        if stop == start:
            continue
        shift[n] = 0.0
        if stop - start <= few:
            direct(x, w, q[n], inner, outer, out[n], start, stop)
            continue
        most = 0.0
        for side in range(2):
            k, last, sign = (start, low, -1.0) if side == 0 else (low, stop, 1.0)
            while k < last:
                end = min(ends[k], last)
                d = (cell[k] + 0.5) * width - q[n]  # t = d + a
                fresh = k == 0 or cell[k - 1] != cell[k]
                most += prefix[ends[k] - 1, 0, 0]
                for m in range(powers):
                    for p in range(terms):  # the polynomial in t, times t^m, in place to that in a
                        room[p] = 0.0
                    s = 1.0
                    for p in range(len(series)):
                        room[p + m] = s * series[p]
                        s *= sign
                    for first in range(terms - 1):
                        for p in range(terms - 2, first - 1, -1):
                            room[p] += d * room[p + 1]
                    for v in range(columns):
                        total = 0.0
                        for p in range(terms):
                            total += room[p] * (prefix[end - 1, v, p] - (0.0 if fresh else prefix[k - 1, v, p]))
                        out[n, m, v] += total
                k = end
        if not out[n, 0, 0] > 0.05 * most:
            out[n] = 0.0
            direct(x, w, q[n], inner, outer, out[n], start, stop)
