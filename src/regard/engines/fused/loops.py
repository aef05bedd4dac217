"""Loop bodies of the fused engine. They are bound to a dtype, a pairing and a formula, and compiled, by ``binding``.

A tile of scores in a small buffer is the meeting place: scorers write it (several where scores are summed), bias and
masks edit it, one shared exp-and-pool reads it. Rows are queries; the inner loop runs over keys, which stand transposed
(one row per prepared feature), so that it is SIMD. Names in capitals and ``exp2``, ``larger``, ``formula_at``,
``slope_at``, ``squares``, ``gather``, ``times``, ``pair``, ``pair_back`` are bound by ``binding``. Each body with a
loop calls ``wide_vectors``, since it is vectorised before it is inlined.
"""

# ruff: noqa: F821
# mypy: ignore-errors

from __future__ import annotations

import numpy as np

TALL = 8  # queries of a tile
BYTES = 4096  # of a row of a tile, at most
SPACE = {"forward": 2 * TALL + 2, "scores": 2 * TALL + 2, "backward": 4 * TALL + 2}  # rows of scratch that a loop takes
SLOTS = 4  # terms of a score
BLOCK = {"dot_product": 4}  # features that a pairing takes at once; 8 for the others
FOLD = {"additive_small": 2}  # rows that the key has for each feature; 1 for the others
SCALE = {"float32": 2.0**-12, "float64": 1.0}  # of the additive pairing's denominators


# --- pairings: features c to d of one row of paired numbers, and the way back -----------------------------------------
def pair_squared_distance(q, k, i, c, d, j0, n, u):
    """u[j] = sum_c (q[i, c] - k[c, j])^2, of up to eight features."""
    wide_vectors()
    if d - c == 8:
        a, b, w, v = q[i, c], q[i, c + 1], q[i, c + 2], q[i, c + 3]
        s, m, o, r = q[i, c + 4], q[i, c + 5], q[i, c + 6], q[i, c + 7]
        x, y, z, t = k[c, j0 : j0 + n], k[c + 1, j0 : j0 + n], k[c + 2, j0 : j0 + n], k[c + 3, j0 : j0 + n]
        e, f, g, h = k[c + 4, j0 : j0 + n], k[c + 5, j0 : j0 + n], k[c + 6, j0 : j0 + n], k[c + 7, j0 : j0 + n]
        if c == 0:
            for j in range(n):
                low = squares_4(a - x[j], b - y[j], w - z[j], v - t[j])
                u[j] = low + squares_4(s - e[j], m - f[j], o - g[j], r - h[j])
        else:
            for j in range(n):
                low = squares_4(a - x[j], b - y[j], w - z[j], v - t[j])
                u[j] += low + squares_4(s - e[j], m - f[j], o - g[j], r - h[j])
        return
    if c == 0:
        for j in range(n):
            u[j] = ZERO
    while c + 2 <= d:
        a, b, x, y = q[i, c], q[i, c + 1], k[c, j0 : j0 + n], k[c + 1, j0 : j0 + n]
        for j in range(n):
            u[j] += squares_2(a - x[j], b - y[j], ZERO, ZERO)
        c += 2
    if c < d:
        a, x = q[i, c], k[c, j0 : j0 + n]
        for j in range(n):
            u[j] += squares_1(a - x[j], ZERO, ZERO, ZERO)


def back_squared_distance(q, k, i, c, d, j0, n, g, to_q, to_k):
    """Adds the gradient of row i, of u's gradient g, to query and key."""
    wide_vectors()
    while c < d:
        a, total, x, y = q[i, c], ZERO, k[c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        for j in range(n):
            e = g[j] * (a - x[j])
            total += e
            y[j] -= e + e
        to_q[i, c] += total + total
        c += 1


def pair_dot_product(q, k, i, c, d, j0, n, u):
    """u[j] = sum_c q[i, c] k[c, j], of up to four features."""
    wide_vectors()
    if c == 0:
        for j in range(n):
            u[j] = ZERO
    if d - c == 4:
        a, b, w, v = q[i, c], q[i, c + 1], q[i, c + 2], q[i, c + 3]
        x, y, z, t = k[c, j0 : j0 + n], k[c + 1, j0 : j0 + n], k[c + 2, j0 : j0 + n], k[c + 3, j0 : j0 + n]
        for j in range(n):
            u[j] += (a * x[j] + b * y[j]) + (w * z[j] + v * t[j])
        return
    while c < d:
        a, x = q[i, c], k[c, j0 : j0 + n]
        for j in range(n):
            u[j] += a * x[j]
        c += 1


def back_dot_product(q, k, i, c, d, j0, n, g, to_q, to_k):
    wide_vectors()
    while c < d:
        a, total, x, y = q[i, c], ZERO, k[c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        for j in range(n):
            total += g[j] * x[j]
            y[j] += g[j] * a
        to_q[i, c] += total
        c += 1


def pair_additive(q, k, i, c, d, j0, n, u):
    """u[j] = sum_h v_h tanh(a_h + b_h) = sum_h v_h - 2 sum_h v_h / (1 + e^2a e^2b), of q = [s e^2a | v], k = e^2b.

    Eight fractions have one division. SCALE, s, keeps their common denominator, of factors s (1 + e^2a e^2b), within
    the numbers, see ``engine``; so does dividing by the largest v, for their numerator.
    """
    wide_vectors()
    hidden = k.shape[0]
    h = hidden + c
    if c == 0:
        total = ZERO
        for m in range(hidden, 2 * hidden):
            total += q[i, m]
        for j in range(n):
            u[j] = total
    if d - c == 8:
        most = ZERO
        for m in range(h, h + 8):
            most = larger(most, abs(q[i, m]))
        if most == ZERO:
            return
        s = SCALE / most
        a0, a1, a2, a3 = q[i, c], q[i, c + 1], q[i, c + 2], q[i, c + 3]
        a4, a5, a6, a7 = q[i, c + 4], q[i, c + 5], q[i, c + 6], q[i, c + 7]
        v0, v1, v2, v3 = times(s, q[i, h]), times(s, q[i, h + 1]), times(s, q[i, h + 2]), times(s, q[i, h + 3])
        v4, v5, v6, v7 = times(s, q[i, h + 4]), times(s, q[i, h + 5]), times(s, q[i, h + 6]), times(s, q[i, h + 7])
        x0, x1 = k[c, j0 : j0 + n], k[c + 1, j0 : j0 + n]
        x2, x3 = k[c + 2, j0 : j0 + n], k[c + 3, j0 : j0 + n]
        x4, x5 = k[c + 4, j0 : j0 + n], k[c + 5, j0 : j0 + n]
        x6, x7 = k[c + 6, j0 : j0 + n], k[c + 7, j0 : j0 + n]
        most += most
        for j in range(n):
            d0, d1 = SCALE + a0 * x0[j], SCALE + a1 * x1[j]
            d2, d3 = SCALE + a2 * x2[j], SCALE + a3 * x3[j]
            d4, d5 = SCALE + a4 * x4[j], SCALE + a5 * x5[j]
            d6, d7 = SCALE + a6 * x6[j], SCALE + a7 * x7[j]
            d01, d23, d45, d67 = d0 * d1, d2 * d3, d4 * d5, d6 * d7
            low = (v0 * d1 + v1 * d0) * d23 + (v2 * d3 + v3 * d2) * d01
            high = (v4 * d5 + v5 * d4) * d67 + (v6 * d7 + v7 * d6) * d45
            d03, d47 = d01 * d23, d45 * d67
            u[j] -= times(most, (low * d47 + high * d03) / (d03 * d47))
        return
    while c < d:
        a, v, x = q[i, c], TWO * q[i, h], k[c, j0 : j0 + n]
        for j in range(n):
            u[j] -= v * (SCALE / (SCALE + a * x[j]))
        c += 1
        h += 1


def back_additive(q, k, i, c, d, j0, n, g, to_q, to_k):
    """With r = 1 / (1 + e^2a e^2b): tanh = 1 - 2 r, and its slope is 4 (r - r^2). Four fractions have one division."""
    wide_vectors()
    hidden = k.shape[0]
    whole = ZERO
    for j in range(n):
        whole += g[j]
    while c + 4 <= d:
        a0, a1, a2, a3 = q[i, c], q[i, c + 1], q[i, c + 2], q[i, c + 3]
        h = hidden + c
        v0, v1, v2, v3 = FOUR * q[i, h], FOUR * q[i, h + 1], FOUR * q[i, h + 2], FOUR * q[i, h + 3]
        x0, x1 = k[c, j0 : j0 + n], k[c + 1, j0 : j0 + n]
        x2, x3 = k[c + 2, j0 : j0 + n], k[c + 3, j0 : j0 + n]
        y0, y1 = to_k[c, j0 : j0 + n], to_k[c + 1, j0 : j0 + n]
        y2, y3 = to_k[c + 2, j0 : j0 + n], to_k[c + 3, j0 : j0 + n]
        s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
        t0, t1, t2, t3 = ZERO, ZERO, ZERO, ZERO
        for j in range(n):
            d0, d1 = SCALE + a0 * x0[j], SCALE + a1 * x1[j]
            d2, d3 = SCALE + a2 * x2[j], SCALE + a3 * x3[j]
            d01, d23 = d0 * d1, d2 * d3
            r = SCALE / (d01 * d23)
            r01, r23 = r * d23, r * d01
            r0, r1, r2, r3 = r01 * d1, r01 * d0, r23 * d3, r23 * d2
            p0, p1, p2, p3 = g[j] * r0, g[j] * r1, g[j] * r2, g[j] * r3
            s0 += p0
            s1 += p1
            s2 += p2
            s3 += p3
            p0, p1, p2, p3 = p0 - p0 * r0, p1 - p1 * r1, p2 - p2 * r2, p3 - p3 * r3
            t0 += p0
            t1 += p1
            t2 += p2
            t3 += p3
            y0[j] += v0 * p0
            y1[j] += v1 * p1
            y2[j] += v2 * p2
            y3[j] += v3 * p3
        to_q[i, c] += v0 * t0
        to_q[i, c + 1] += v1 * t1
        to_q[i, c + 2] += v2 * t2
        to_q[i, c + 3] += v3 * t3
        to_q[i, h] += whole - (s0 + s0)
        to_q[i, h + 1] += whole - (s1 + s1)
        to_q[i, h + 2] += whole - (s2 + s2)
        to_q[i, h + 3] += whole - (s3 + s3)
        c += 4
    while c < d:
        a, x, y = q[i, c], k[c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        v = FOUR * q[i, hidden + c]
        s, t = ZERO, ZERO
        for j in range(n):
            r = SCALE / (SCALE + a * x[j])
            p = g[j] * r
            s += p
            p = p - p * r
            t += p
            y[j] += v * p
        to_q[i, c] += v * t
        to_q[i, hidden + c] += whole - (s + s)
        c += 1


def pair_additive_small(q, k, i, c, d, j0, n, u):
    """The same for small projections, as exact as tanh: q = [e^2a - 1 | v], k = [e^2b; e^2b - 1]."""
    wide_vectors()
    hidden = k.shape[0] // 2
    if c == 0:
        for j in range(n):
            u[j] = ZERO
    while c < d:
        a, v = q[i, c], q[i, hidden + c]
        x, z = k[c, j0 : j0 + n], k[hidden + c, j0 : j0 + n]
        for j in range(n):
            t = a * x[j] + z[j]
            u[j] += v * (t / (TWO + t))
        c += 1


def back_additive_small(q, k, i, c, d, j0, n, g, to_q, to_k):
    wide_vectors()
    hidden = k.shape[0] // 2
    while c < d:
        a, v = q[i, c], q[i, hidden + c]
        x, z, y = k[c, j0 : j0 + n], k[hidden + c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        to_a, to_v = ZERO, ZERO
        for j in range(n):
            t = a * x[j] + z[j]
            t = t / (TWO + t)
            s = g[j] * v * (ONE - t * t)
            to_v += g[j] * t
            to_a += s
            y[j] += s
        to_q[i, c] += to_a
        to_q[i, hidden + c] += to_v
        c += 1


def pair_additive_large(q, k, i, c, d, j0, n, u):
    """The same for projections whose exponentials overflow: q = [a | v], k = b, an exponential a pair."""
    wide_vectors()
    hidden = k.shape[0]
    if c == 0:
        for j in range(n):
            u[j] = ZERO
    while c < d:
        a, v, x = q[i, c], q[i, hidden + c], k[c, j0 : j0 + n]
        for j in range(n):
            u[j] += v * tanh(a + x[j])
        c += 1


def back_additive_large(q, k, i, c, d, j0, n, g, to_q, to_k):
    wide_vectors()
    hidden = k.shape[0]
    while c < d:
        a, v, x, y = q[i, c], q[i, hidden + c], k[c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        to_a, to_v = ZERO, ZERO
        for j in range(n):
            t = tanh(a + x[j])
            s = g[j] * v * (ONE - t * t)
            to_v += g[j] * t
            to_a += s
            y[j] += s
        to_q[i, c] += to_a
        to_q[i, hidden + c] += to_v
        c += 1


def pair_mismatch(q, k, i, c, d, j0, n, u):
    """u[j] = 1 where the codes differ."""
    wide_vectors()
    a, x = q[i, 0], k[0, j0 : j0 + n]
    for j in range(n):
        u[j] = ONE if a != x[j] else ZERO


def back_mismatch(q, k, i, c, d, j0, n, g, to_q, to_k):
    """Codes have no gradient."""


def pair_absolute_difference(q, k, i, c, d, j0, n, u):
    """u[j] = |q - k[j]|."""
    wide_vectors()
    a, x = q[i, 0], k[0, j0 : j0 + n]
    for j in range(n):
        u[j] = abs(a - x[j])


def back_absolute_difference(q, k, i, c, d, j0, n, g, to_q, to_k):
    wide_vectors()
    a, total, x, y = q[i, 0], ZERO, k[0, j0 : j0 + n], to_k[0, j0 : j0 + n]
    for j in range(n):
        e = a - x[j]
        s = g[j] if e > ZERO else (-g[j] if e < ZERO else ZERO)
        total += s
        y[j] -= s
    to_q[i, 0] += total


def pair_offset(q, k, i, c, d, j0, n, u):
    """u[j] = table[k - q], -inf beyond it; q = [positions | sizes of the table | table]."""
    wide_vectors()
    axes = k.shape[0]
    for j in range(n):
        at, inside = 0, True
        for c in range(axes):
            size = int(q[i, axes + c])
            e = k[c, j0 + j] - q[i, c]
            whole = int(np.rint(e))
            inside = inside and e == whole and -(size // 2) <= whole <= size // 2
            at = at * size + whole + size // 2
        u[j] = q[i, 2 * axes + at] if inside else MINUS_INF


def back_offset(q, k, i, c, d, j0, n, g, to_q, to_k):
    wide_vectors()
    axes = k.shape[0]
    for j in range(n):
        at, inside = 0, True
        for c in range(axes):
            size = int(q[i, axes + c])
            e = k[c, j0 + j] - q[i, c]
            whole = int(np.rint(e))
            inside = inside and e == whole and -(size // 2) <= whole <= size // 2
            at = at * size + whole + size // 2
        if inside:
            to_q[i, 2 * axes + at] += g[j]


# --- scorers: a formula of a pairing, for a tile; one signature, so that several stand side by side ------------------
def fill(first, q, k, p, i0, i1, j0, n, tile, u, most, value, pooled):
    """Writes the first term's scores into the tile and the largest of each row into most; adds those of the others.

    The last two columns of p are the factor and the root, see ``Term``. Of kernels instead of their logarithms, the sum
    of each row goes into most (``gather`` and START say which), and the one that the value weighs, if it has one
    column, into pooled.
    """
    wide_vectors()
    last, into = p.shape[1] - 2, tile if first else u
    pair_tile(q, k, i0, i1, j0, n, into, k.shape[0] // FOLD)
    for i in range(i0, i1):
        row, factor, best = into[i - i0, :n], p[i, last], START
        rescale(row, n, p[i, last + 1])
        for j in range(n):
            s = factor * formula_at(row[j], p, i)
            row[j] = s
            best = gather(best, s)
        most[i - i0] = best
        if not first:
            add(row, tile[i - i0, :n])
        elif KERNEL and value.shape[0] == 1:
            pooled[i - i0] = weighed(row, value[0, j0 : j0 + n])


def fill_near(first, q, k, p, i0, i1, j0, n, tile, u, most, value, pooled):
    """``fill`` of a squared distance without factor and root: its last one to four features and the formula at once."""
    wide_vectors()
    f, last = k.shape[0] - NEAR, k.shape[0] - 1
    c, e = min(f + 1, last), min(f + 2, last)  # what there is not is not read, see ``squares``
    x, y, z, t = k[f, j0 : j0 + n], k[c, j0 : j0 + n], k[e, j0 : j0 + n], k[last, j0 : j0 + n]
    into = tile if first else u
    if MORE:
        pair_tile(q, k, i0, i1, j0, n, into, f)
    for i in range(i0, i1):
        row, best = into[i - i0, :n], START
        a, b, w, v = q[i, f], q[i, c], q[i, e], q[i, last]
        if KERNEL and value.shape[0] == 1:
            total, o = ZERO, value[0, j0 : j0 + n]
            for j in range(n):
                d = (row[j] if MORE else ZERO) + squares(a - x[j], b - y[j], w - z[j], v - t[j])
                s = formula_at(d, p, i)
                row[j] = s
                best = gather(best, s)
                total += s * o[j]
            pooled[i - i0] = total
        else:
            for j in range(n):
                d = (row[j] if MORE else ZERO) + squares(a - x[j], b - y[j], w - z[j], v - t[j])
                s = formula_at(d, p, i)
                row[j] = s
                best = gather(best, s)
        most[i - i0] = best
        if not first:
            add(row, tile[i - i0, :n])


def pair_tile(q, k, i0, i1, j0, n, into, features):
    """The pairing of a tile: some features at a time, whose keys stay in cache from row to row."""
    for c in range(0, max(features, 1), BLOCK):
        for i in range(i0, i1):
            pair(q, k, i, c, min(c + BLOCK, features), j0, n, into[i - i0])


def back_tile(q, k, i0, i1, j0, n, g, to_q, to_k):
    features = k.shape[0] // FOLD
    for c in range(0, features, BLOCK):
        for i in range(i0, i1):
            pair_back(q, k, i, c, min(c + BLOCK, features), j0, n, g[i - i0], to_q, to_k)


def add(row, into):
    wide_vectors()
    for j in range(row.shape[0]):
        into[j] += row[j]


def sum_of(a, b):
    return a + b


def larger_of(a, b):
    return larger(a, b)


def squares_1(d, e, f, g):
    return d * d


def squares_2(d, e, f, g):
    return d * d + e * e


def squares_3(d, e, f, g):
    return d * d + e * e + f * f


def squares_4(d, e, f, g):
    return (d * d + e * e) + (f * f + g * g)


def back(q, k, p, i0, i1, j0, n, tile, u, g, to_q, to_k, to_p):
    """Adds the gradients of the term's arrays; the tile holds those of the scores. to_p has no factor if p's is 1."""
    wide_vectors()
    last = p.shape[1] - 2
    pair_tile(q, k, i0, i1, j0, n, u, k.shape[0] // FOLD)
    for i in range(i0, i1):
        row, x, y, factor, root = tile[i - i0, :n], u[i - i0, :n], g[i - i0, :n], p[i, last], p[i, last + 1]
        rescale(x, n, root)
        for j in range(n):
            y[j] = factor * row[j] * slope_at(x[j], p, i)[0]
        for m in range(last):
            total = ZERO
            for j in range(n):
                total += factor * row[j] * slope_at(x[j], p, i)[1 + m]
            to_p[i, m] += total
        if to_p.shape[1] > last:
            total = ZERO
            for j in range(n):
                s = formula_at(x[j], p, i)
                total += row[j] * (s if s > MINUS_INF else ZERO)
            to_p[i, last] += total
        rescale_slope(x, y, n, root)
    back_tile(q, k, i0, i1, j0, n, g, to_q, to_k)


def back_near(q, k, p, i0, i1, j0, n, tile, u, g, to_q, to_k, to_p):
    """``back`` of what ``fill_near`` is for, where the formula has no parameters."""
    wide_vectors()
    f, last = k.shape[0] - NEAR, k.shape[0] - 1
    c, e = min(f + 1, last), min(f + 2, last)
    x, y, z, t = k[f, j0 : j0 + n], k[c, j0 : j0 + n], k[e, j0 : j0 + n], k[last, j0 : j0 + n]
    if MORE:
        pair_tile(q, k, i0, i1, j0, n, u, f)
    for i in range(i0, i1):
        row, more, into = tile[i - i0, :n], u[i - i0, :n], g[i - i0, :n]
        a, b, w, v = q[i, f], q[i, c], q[i, e], q[i, last]
        for j in range(n):
            d = (more[j] if MORE else ZERO) + squares(a - x[j], b - y[j], w - z[j], v - t[j])
            into[j] = row[j] * slope_at(d, p, i)[0]
    back_tile(q, k, i0, i1, j0, n, g, to_q, to_k)


def rescale(u, n, root):
    """Paired numbers times root^2, where there is one; not reassociated, since root^2 may overflow."""
    wide_vectors()
    if root != ONE:
        for j in range(n):
            u[j] = min(u[j] * root * root, FAR)


def rescale_slope(u, g, n, root):
    """The way back of ``rescale``, of rescaled u."""
    wide_vectors()
    if root != ONE:
        for j in range(n):
            g[j] = g[j] * root * root if u[j] < FAR else ZERO


def _formula_at0(u, p, i):
    return formula(maths, u)


def _formula_at1(u, p, i):
    return formula(maths, u, p[i, 0])


def _formula_at2(u, p, i):
    return formula(maths, u, p[i, 0], p[i, 1])


def _slope_at0(u, p, i):
    return slope(maths, u)


def _slope_at1(u, p, i):
    return slope(maths, u, p[i, 0])


def _slope_at2(u, p, i):
    return slope(maths, u, p[i, 0], p[i, 1])


# --- the meeting place ------------------------------------------------------------------------------------------------
def edit(row, i, j0, start, stop, gap, live, bias, gone):
    """Bias, range, gap ("not myself") and truth values of a row; gone where there is no key. Whether it changed."""
    wide_vectors()
    n, changed = row.shape[0], False
    if bias.shape[0]:
        changed = True
        b = bias[i % bias.shape[0]]
        if bias.shape[1] == 1:
            for j in range(n):
                row[j] += b[0]
        else:
            x = b[j0 : j0 + n]
            for j in range(n):
                row[j] += x[j]
    low, high = min(max(start[i] - j0, 0), n), min(max(stop[i] - j0, 0), n)
    if low > 0 or high < n:
        changed = True
        for j in range(low):
            row[j] = gone
        for j in range(high, n):
            row[j] = gone
    if j0 <= gap[i] < j0 + n:
        changed = True
        row[gap[i] - j0] = gone
    if live.shape[0]:
        changed = True
        x = live[i, j0 : j0 + n]
        for j in range(n):
            row[j] = row[j] if x[j] else gone
    return changed


def copy(row, into):
    wide_vectors()
    for j in range(row.shape[0]):
        into[j] = row[j]


def largest(row):
    wide_vectors()
    best = MINUS_INF
    for j in range(row.shape[0]):
        best = larger(best, row[j])
    return best


def summed(row):
    wide_vectors()
    total = ZERO
    for j in range(row.shape[0]):
        total += row[j]
    return total


def weighed(row, x):
    wide_vectors()
    total = ZERO
    for j in range(row.shape[0]):
        total += row[j] * x[j]
    return total


def add_values(tile, a, b, value, j0, n, value_sum):
    """Adds the values times the weights of a tile: two queries, four columns at a time."""
    wide_vectors()
    columns = value.shape[0]
    for c in range(0, columns - columns % 4, 4):
        x0, x1 = value[c, j0 : j0 + n], value[c + 1, j0 : j0 + n]
        x2, x3 = value[c + 2, j0 : j0 + n], value[c + 3, j0 : j0 + n]
        for i in range(a, b, 2):
            h = min(i + 1, b - 1)
            e, f = tile[i - a, :n], tile[h - a, :n]
            s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
            t0, t1, t2, t3 = ZERO, ZERO, ZERO, ZERO
            for j in range(n):
                s0 += e[j] * x0[j]
                s1 += e[j] * x1[j]
                s2 += e[j] * x2[j]
                s3 += e[j] * x3[j]
                t0 += f[j] * x0[j]
                t1 += f[j] * x1[j]
                t2 += f[j] * x2[j]
                t3 += f[j] * x3[j]
            value_sum[i, c] += s0
            value_sum[i, c + 1] += s1
            value_sum[i, c + 2] += s2
            value_sum[i, c + 3] += s3
            if h > i:
                value_sum[h, c] += t0
                value_sum[h, c + 1] += t1
                value_sum[h, c + 2] += t2
                value_sum[h, c + 3] += t3
    for c in range(columns - columns % 4, columns):
        x = value[c, j0 : j0 + n]
        for i in range(a, b):
            e, s0 = tile[i - a, :n], ZERO
            for j in range(n):
                s0 += e[j] * x[j]
            value_sum[i, c] += s0


def fill_term(t, f0, f1, f2, f3, q, k, p, a, b, j0, n, tile, u, most, value, pooled):
    """The scorer of term t. They stand side by side, since a tuple of functions would be compiled for each length."""
    if t == 0:
        f0(True, q, k, p, a, b, j0, n, tile, u, most, value, pooled)
    elif t == 1:
        f1(False, q, k, p, a, b, j0, n, tile, u, most, value, pooled)
    elif t == 2:
        f2(False, q, k, p, a, b, j0, n, tile, u, most, value, pooled)
    else:
        f3(False, q, k, p, a, b, j0, n, tile, u, most, value, pooled)


def back_term(t, b0, b1, b2, b3, q, k, p, a, b, j0, n, tile, u, g, to_q, to_k, to_p):
    if t == 0:
        b0(q, k, p, a, b, j0, n, tile, u, g, to_q, to_k, to_p)
    elif t == 1:
        b1(q, k, p, a, b, j0, n, tile, u, g, to_q, to_k, to_p)
    elif t == 2:
        b2(q, k, p, a, b, j0, n, tile, u, g, to_q, to_k, to_p)
    else:
        b3(q, k, p, a, b, j0, n, tile, u, g, to_q, to_k, to_p)


def drop(row, n, hashes, start, least, scale):
    """Dropout of a row of weights: the last step of the hash that ``regard.problem.dropout`` takes."""
    wide_vectors()
    first, step = hashes[0], hashes[1]
    for j in range(n):
        h = (first + step * (start + j)) & 0xFFFFFFFF
        h = ((h ^ (h >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
        h = ((h ^ (h >> 15)) * 0xD35A2D97) & 0xFFFFFFFF
        row[j] = row[j] * scale if (h ^ (h >> 15)) >= least else ZERO


def forward(
    count,
    f0,
    f1,
    f2,
    f3,
    terms,
    value,
    start,
    stop,
    gap,
    live,
    bias,
    hashes,
    start_key,
    least,
    scale,
    kernels,
    top,
    weight_sum,
    value_sum,
    space,
    i0,
    i1,
):
    """(max, weight_sum, value_sum) of queries i0 to i1; value stands transposed, (V, K).

    Where the scorer writes kernels instead of their logarithms, there is nothing to exponentiate and the shift is 0.
    """
    wide_vectors()
    columns = value.shape[0]
    gone = ZERO if kernels else MINUS_INF
    tile, u, most, pooled = space[:TALL], space[TALL : 2 * TALL], space[2 * TALL], space[2 * TALL + 1]
    together = columns == 1 and not hashes.shape[0]  # one column is pooled as the weights are made
    for a in range(i0, i1, TALL):
        b = min(a + TALL, i1)
        low, high = start[a], stop[a]
        for i in range(a + 1, b):
            low, high = min(low, start[i]), max(high, stop[i])
        for j0 in range(low, high, space.shape[1]):
            n = min(space.shape[1], high - j0)
            for t in range(count):
                q, k, p = terms[t]
                fill_term(t, f0, f1, f2, f3, q, k, p, a, b, j0, n, tile, u, most, value, pooled)
            for i in range(a, b):
                row, found, total, part = tile[i - a, :n], most[i - a], ZERO, pooled[i - a]
                if edit(row, i, j0, start, stop, gap, live, bias, gone) or count > 1:
                    if kernels:
                        found = summed(row)
                        part = weighed(row, value[0, j0 : j0 + n]) if together else ZERO
                    else:
                        found = largest(row)
                if found == gone:
                    for j in range(n):
                        row[j] = ZERO
                    continue
                if kernels:
                    top[i] = ZERO
                    total = found
                else:
                    m = top[i]
                    if found > m:
                        r = exp2((m - found) * LOG2)
                        weight_sum[i] *= r
                        for c in range(columns):
                            value_sum[i, c] *= r
                        top[i] = m = found
                    if together:
                        part = ZERO
                        x = value[0, j0 : j0 + n]
                        for j in range(n):
                            e = exp2((row[j] - m) * LOG2)
                            total += e
                            part += e * x[j]
                    else:
                        for j in range(n):
                            e = exp2((row[j] - m) * LOG2)
                            row[j] = e
                            total += e
                weight_sum[i] += total
                if together:
                    value_sum[i, 0] += part
                elif hashes.shape[0]:
                    drop(row, n, hashes[i], start_key + j0, least, scale)
            if not together:
                add_values(tile, a, b, value, j0, n, value_sum)


def backward(
    count,
    f0,
    f1,
    f2,
    f3,
    b0,
    b1,
    b2,
    b3,
    terms,
    grads,
    value,
    start,
    stop,
    gap,
    live,
    bias,
    hashes,
    start_key,
    least,
    scale,
    top,
    to_z,
    to_o,
    to_v,
    to_b,
    space,
    i0,
    i1,
):
    """Gradients of the two sums, whose gradients are to_z and to_o; the maximum is constant."""
    wide_vectors()
    tile, u, most, pooled = space[:TALL], space[TALL : 2 * TALL], space[2 * TALL], space[2 * TALL + 1]
    g, weights = space[2 * TALL + 2 : 3 * TALL + 2], space[3 * TALL + 2 :]
    for a in range(i0, i1, TALL):
        b = min(a + TALL, i1)
        low, high = start[a], stop[a]
        for i in range(a + 1, b):
            low, high = min(low, start[i]), max(high, stop[i])
        for j0 in range(low, high, space.shape[1]):
            n = min(space.shape[1], high - j0)
            for t in range(count):
                q, k, p = terms[t]
                fill_term(t, f0, f1, f2, f3, q, k, p, a, b, j0, n, tile, u, most, value, pooled)
            for i in range(a, b):
                row, m, kept = tile[i - a, :n], top[i], weights[i - a, :n]
                edit(row, i, j0, start, stop, gap, live, bias, MINUS_INF)
                if m == MINUS_INF:
                    for j in range(n):
                        row[j] = ZERO
                else:
                    for j in range(n):
                        row[j] = exp2((row[j] - m) * LOG2)
                copy(row, kept)
                if hashes.shape[0]:
                    drop(kept, n, hashes[i], start_key + j0, least, scale)
            to_weights(to_o, value, a, b, j0, n, g)
            to_values(to_o, weights, a, b, j0, n, to_v)
            for i in range(a, b):
                row, kept, x, z = tile[i - a, :n], weights[i - a, :n], g[i - a, :n], to_z[i]
                for j in range(n):
                    row[j] = kept[j] * x[j] + row[j] * z
                if to_b.shape[0]:
                    copy(row, to_b[i, j0 : j0 + n])
            for t in range(count):
                q, k, p = terms[t]
                to_q, to_k, to_p = grads[t]
                back_term(t, b0, b1, b2, b3, q, k, p, a, b, j0, n, tile, u, g, to_q, to_k, to_p)


def to_weights(o, value, a, b, j0, n, g):
    """g[i, j] = sum_c o[i, c] value[c, j], four columns at a time."""
    wide_vectors()
    columns = value.shape[0]
    for i in range(a, b):
        row = g[i - a, :n]
        for j in range(n):
            row[j] = ZERO
    for c in range(0, columns - columns % 4, 4):
        x, y = value[c, j0 : j0 + n], value[c + 1, j0 : j0 + n]
        z, t = value[c + 2, j0 : j0 + n], value[c + 3, j0 : j0 + n]
        for i in range(a, b):
            row, e, f, s, v = g[i - a, :n], o[i, c], o[i, c + 1], o[i, c + 2], o[i, c + 3]
            for j in range(n):
                row[j] += (e * x[j] + f * y[j]) + (s * z[j] + v * t[j])
    for c in range(columns - columns % 4, columns):
        x = value[c, j0 : j0 + n]
        for i in range(a, b):
            row, e = g[i - a, :n], o[i, c]
            for j in range(n):
                row[j] += e * x[j]


def to_values(o, weights, a, b, j0, n, to_v):
    """to_v[c, j] += sum_i o[i, c] weights[i, j], four queries at a time."""
    wide_vectors()
    for c in range(to_v.shape[0]):
        into = to_v[c, j0 : j0 + n]
        for i in range(a, b - (b - a) % 4, 4):
            e, f, g, h = o[i, c], o[i + 1, c], o[i + 2, c], o[i + 3, c]
            x, y = weights[i - a, :n], weights[i + 1 - a, :n]
            z, t = weights[i + 2 - a, :n], weights[i + 3 - a, :n]
            for j in range(n):
                into[j] += (e * x[j] + f * y[j]) + (g * z[j] + h * t[j])
        for i in range(b - (b - a) % 4, b):
            e, x = o[i, c], weights[i - a, :n]
            for j in range(n):
                into[j] += e * x[j]


def scores(count, f0, f1, f2, f3, terms, value, start, stop, gap, live, bias, out, space, i0, i1):
    """All scores of queries i0 to i1, (i1 - i0, K); -inf where there is no key."""
    wide_vectors()
    keys = out.shape[1]
    tile, u, most, pooled = space[:TALL], space[TALL : 2 * TALL], space[2 * TALL], space[2 * TALL + 1]
    for a in range(i0, i1, TALL):
        b = min(a + TALL, i1)
        for j0 in range(0, keys, space.shape[1]):
            n = min(space.shape[1], keys - j0)
            for t in range(count):
                q, k, p = terms[t]
                fill_term(t, f0, f1, f2, f3, q, k, p, a, b, j0, n, tile, u, most, value, pooled)
            for i in range(a, b):
                edit(tile[i - a, :n], i, j0, start, stop, gap, live, bias, MINUS_INF)
                copy(tile[i - a, :n], out[i - i0, j0 : j0 + n])
