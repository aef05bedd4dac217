"""Loop bodies of the fused engine. They are bound to a dtype, a pairing and a formula, and compiled, by ``compiling``.

A tile of scores in a small buffer is the meeting place: scorers write it (several where scores are summed), bias and
masks edit it, one shared exp-and-pool reads it. Rows are queries; the inner loop runs over keys, which stand transposed
(one row per prepared feature), so that it is SIMD. Names in capitals and ``exp2``, ``bits``, ``formula_at``,
``slope_at``, ``pair``, ``pair_back`` are bound by ``compiling``.
"""

# ruff: noqa: F821
# mypy: ignore-errors

from __future__ import annotations

import numpy as np

TALL = 8  # queries of a tile
WIDE = 512  # keys of a tile
SLOTS = 4  # terms of a score


# --- pairings: one row of paired numbers, and the way back ------------------------------------------------------------
def pair_squared_distance(q, k, i, j0, n, u):
    """u[j] = sum_c (q[i, c] - k[c, j])^2, up to four features at a time."""
    features = k.shape[0]
    if features == 0:
        for j in range(n):
            u[j] = ZERO
        return
    c = features % 4
    if c == 1:
        a, x = q[i, 0], k[0, j0 : j0 + n]
        for j in range(n):
            d = a - x[j]
            u[j] = d * d
    elif c == 2:
        a, b = q[i, 0], q[i, 1]
        x, y = k[0, j0 : j0 + n], k[1, j0 : j0 + n]
        for j in range(n):
            d = a - x[j]
            e = b - y[j]
            u[j] = d * d + e * e
    elif c == 3:
        a, b, w = q[i, 0], q[i, 1], q[i, 2]
        x, y, z = k[0, j0 : j0 + n], k[1, j0 : j0 + n], k[2, j0 : j0 + n]
        for j in range(n):
            d = a - x[j]
            e = b - y[j]
            f = w - z[j]
            u[j] = d * d + e * e + f * f
    else:
        for j in range(n):
            u[j] = ZERO
    while c < features:
        a, b, w, v = q[i, c], q[i, c + 1], q[i, c + 2], q[i, c + 3]
        x, y, z, t = k[c, j0 : j0 + n], k[c + 1, j0 : j0 + n], k[c + 2, j0 : j0 + n], k[c + 3, j0 : j0 + n]
        for j in range(n):
            d = a - x[j]
            e = b - y[j]
            f = w - z[j]
            g = v - t[j]
            u[j] += (d * d + e * e) + (f * f + g * g)
        c += 4


def back_squared_distance(q, k, i, j0, n, g, to_q, to_k):
    """Adds the gradient of row i, of u's gradient g, to query and key."""
    for c in range(k.shape[0]):
        a, total, x, y = q[i, c], ZERO, k[c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        for j in range(n):
            d = g[j] * (a - x[j])
            d += d
            total += d
            y[j] -= d
        to_q[i, c] += total


def pair_dot_product(q, k, i, j0, n, u):
    """u[j] = sum_c q[i, c] k[c, j]."""
    for j in range(n):
        u[j] = ZERO
    features = k.shape[0]
    c = 0
    while c + 4 <= features:
        a, b, w, v = q[i, c], q[i, c + 1], q[i, c + 2], q[i, c + 3]
        x, y, z, t = k[c, j0 : j0 + n], k[c + 1, j0 : j0 + n], k[c + 2, j0 : j0 + n], k[c + 3, j0 : j0 + n]
        for j in range(n):
            u[j] += (a * x[j] + b * y[j]) + (w * z[j] + v * t[j])
        c += 4
    while c < features:
        a, x = q[i, c], k[c, j0 : j0 + n]
        for j in range(n):
            u[j] += a * x[j]
        c += 1


def back_dot_product(q, k, i, j0, n, g, to_q, to_k):
    for c in range(k.shape[0]):
        a, total, x, y = q[i, c], ZERO, k[c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        for j in range(n):
            total += g[j] * x[j]
            y[j] += g[j] * a
        to_q[i, c] += total


def pair_additive(q, k, i, j0, n, u):
    """u[j] = sum_h v_h tanh(a_h + b_h) = sum_h v_h - 2 sum_h v_h / (1 + e^2a e^2b), of q = [e^2a | v], k = e^2b."""
    hidden = k.shape[0]
    total = ZERO
    for j in range(n):
        u[j] = ZERO
    c = 0
    while c + 4 <= hidden:  # four fractions have one division: their common denominator does not overflow, see engine
        a0, a1, a2, a3 = q[i, c], q[i, c + 1], q[i, c + 2], q[i, c + 3]
        v0, v1, v2, v3 = q[i, hidden + c], q[i, hidden + c + 1], q[i, hidden + c + 2], q[i, hidden + c + 3]
        x0, x1 = k[c, j0 : j0 + n], k[c + 1, j0 : j0 + n]
        x2, x3 = k[c + 2, j0 : j0 + n], k[c + 3, j0 : j0 + n]
        for j in range(n):
            d0, d1 = ONE + a0 * x0[j], ONE + a1 * x1[j]
            d2, d3 = ONE + a2 * x2[j], ONE + a3 * x3[j]
            d01, d23 = d0 * d1, d2 * d3
            u[j] += ((v0 * d1 + v1 * d0) * d23 + (v2 * d3 + v3 * d2) * d01) / (d01 * d23)
        total += (v0 + v1) + (v2 + v3)
        c += 4
    while c < hidden:
        a, v, x = q[i, c], q[i, hidden + c], k[c, j0 : j0 + n]
        for j in range(n):
            u[j] += v / (ONE + a * x[j])
        total += v
        c += 1
    for j in range(n):
        u[j] = total - (u[j] + u[j])


def back_additive(q, k, i, j0, n, g, to_q, to_k):
    """With r = 1 / (1 + e^2a e^2b): tanh = 1 - 2 r, and its slope is 4 (r - r^2)."""
    hidden = k.shape[0]
    c = 0
    while c + 2 <= hidden:  # one division for two fractions
        a, b = q[i, c], q[i, c + 1]
        v, w = FOUR * q[i, hidden + c], FOUR * q[i, hidden + c + 1]
        x, y = k[c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        z, t = k[c + 1, j0 : j0 + n], to_k[c + 1, j0 : j0 + n]
        to_a, to_b, to_v, to_w = ZERO, ZERO, ZERO, ZERO
        for j in range(n):
            d, e = ONE + a * x[j], ONE + b * z[j]
            both = ONE / (d * e)
            r, s = both * e, both * d
            p, o = g[j] * r, g[j] * s
            to_v += g[j] - (p + p)
            to_w += g[j] - (o + o)
            p, o = v * (p - p * r), w * (o - o * s)
            to_a += p
            to_b += o
            y[j] += p
            t[j] += o
        to_q[i, c] += to_a
        to_q[i, c + 1] += to_b
        to_q[i, hidden + c] += to_v
        to_q[i, hidden + c + 1] += to_w
        c += 2
    while c < hidden:
        a, x, y = q[i, c], k[c, j0 : j0 + n], to_k[c, j0 : j0 + n]
        v4 = FOUR * q[i, hidden + c]
        to_a, to_v = ZERO, ZERO
        for j in range(n):
            r = ONE / (ONE + a * x[j])
            p = g[j] * r
            s = v4 * (p - p * r)
            to_v += g[j] - (p + p)
            to_a += s
            y[j] += s
        to_q[i, c] += to_a
        to_q[i, hidden + c] += to_v
        c += 1


def pair_additive_small(q, k, i, j0, n, u):
    """The same for small projections, as exact as tanh: q = [e^2a - 1 | v], k = [e^2b; e^2b - 1]."""
    hidden = k.shape[0] // 2
    for j in range(n):
        u[j] = ZERO
    for c in range(hidden):
        a, v = q[i, c], q[i, hidden + c]
        x, z = k[c, j0 : j0 + n], k[hidden + c, j0 : j0 + n]
        for j in range(n):
            t = a * x[j] + z[j]
            u[j] += v * (t / (TWO + t))


def back_additive_small(q, k, i, j0, n, g, to_q, to_k):
    hidden = k.shape[0] // 2
    for c in range(hidden):
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


def pair_additive_large(q, k, i, j0, n, u):
    """The same for projections whose exponentials overflow: q = [a | v], k = b, an exponential a pair."""
    hidden = k.shape[0]
    for j in range(n):
        u[j] = ZERO
    for c in range(hidden):
        a, v, x = q[i, c], q[i, hidden + c], k[c, j0 : j0 + n]
        for j in range(n):
            u[j] += v * tanh(a + x[j])


def back_additive_large(q, k, i, j0, n, g, to_q, to_k):
    hidden = k.shape[0]
    for c in range(hidden):
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


def pair_mismatch(q, k, i, j0, n, u):
    """u[j] = 1 where the codes differ."""
    a, x = q[i, 0], k[0, j0 : j0 + n]
    for j in range(n):
        u[j] = ONE if a != x[j] else ZERO


def back_mismatch(q, k, i, j0, n, g, to_q, to_k):
    """Codes have no gradient."""


def pair_absolute_difference(q, k, i, j0, n, u):
    """u[j] = |q - k[j]|."""
    a, x = q[i, 0], k[0, j0 : j0 + n]
    for j in range(n):
        u[j] = abs(a - x[j])


def back_absolute_difference(q, k, i, j0, n, g, to_q, to_k):
    a, total, x, y = q[i, 0], ZERO, k[0, j0 : j0 + n], to_k[0, j0 : j0 + n]
    for j in range(n):
        d = a - x[j]
        s = g[j] if d > ZERO else (-g[j] if d < ZERO else ZERO)
        total += s
        y[j] -= s
    to_q[i, 0] += total


def pair_offset(q, k, i, j0, n, u):
    """u[j] = table[k - q], -inf beyond it; q = [positions | sizes of the table | table]."""
    axes = k.shape[0]
    for j in range(n):
        at, inside = 0, True
        for c in range(axes):
            size = int(q[i, axes + c])
            d = k[c, j0 + j] - q[i, c]
            whole = int(np.rint(d))
            inside = inside and d == whole and -(size // 2) <= whole <= size // 2
            at = at * size + whole + size // 2
        u[j] = q[i, 2 * axes + at] if inside else MINUS_INF


def back_offset(q, k, i, j0, n, g, to_q, to_k):
    axes = k.shape[0]
    for j in range(n):
        at, inside = 0, True
        for c in range(axes):
            size = int(q[i, axes + c])
            d = k[c, j0 + j] - q[i, c]
            whole = int(np.rint(d))
            inside = inside and d == whole and -(size // 2) <= whole <= size // 2
            at = at * size + whole + size // 2
        if inside:
            to_q[i, 2 * axes + at] += g[j]


# --- scorers: a formula of a pairing, for a tile; one signature, so that several stand side by side ------------------
def fill(first, q, k, p, i0, i1, j0, n, tile, u):
    """Writes the first term's scores into the tile, and adds those of the others.

    The last two columns of p are the factor and the root, see ``Term``.
    """
    last = p.shape[1] - 2
    for i in range(i0, i1):
        row, factor = tile[i - i0], p[i, last]
        if first:
            pair(q, k, i, j0, n, row)
            rescale(row, n, p[i, last + 1])
            for j in range(n):
                row[j] = factor * formula_at(row[j], p, i)
        else:
            pair(q, k, i, j0, n, u)
            rescale(u, n, p[i, last + 1])
            for j in range(n):
                row[j] += factor * formula_at(u[j], p, i)


def back(q, k, p, i0, i1, j0, n, tile, u, g, to_q, to_k, to_p):
    """Adds the gradients of the term's arrays; the tile holds those of the scores."""
    last = p.shape[1] - 2
    for i in range(i0, i1):
        pair(q, k, i, j0, n, u)
        root = p[i, last + 1]
        rescale(u, n, root)
        row, factor = tile[i - i0], p[i, last]
        for j in range(n):
            g[j] = factor * row[j] * slope_at(u[j], p, i)[0]
        for m in range(last):
            total = ZERO
            for j in range(n):
                total += factor * row[j] * slope_at(u[j], p, i)[1 + m]
            to_p[i, m] += total
        total = ZERO
        for j in range(n):
            s = formula_at(u[j], p, i)
            total += row[j] * (s if s > MINUS_INF else ZERO)
        to_p[i, last] += total
        rescale_slope(u, g, n, root)
        pair_back(q, k, i, j0, n, g, to_q, to_k)


def rescale(u, n, root):
    """Paired numbers times root^2, where there is one; not reassociated, since root^2 may overflow."""
    if root != ONE:
        for j in range(n):
            u[j] = min(u[j] * root * root, FAR)


def rescale_slope(u, g, n, root):
    """The way back of ``rescale``, of rescaled u."""
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
def edit(tile, i0, i1, j0, n, start, stop, gap, live, bias):
    """Bias, ranges, the gap ("not myself") and an array of truth values; -inf where there is no key."""
    for i in range(i0, i1):
        row = tile[i - i0]
        if bias.shape[0]:
            b = bias[i % bias.shape[0]]
            if bias.shape[1] == 1:
                for j in range(n):
                    row[j] += b[0]
            else:
                x = b[j0 : j0 + n]
                for j in range(n):
                    row[j] += x[j]
        for j in range(min(max(start[i] - j0, 0), n)):
            row[j] = MINUS_INF
        for j in range(min(max(stop[i] - j0, 0), n), n):
            row[j] = MINUS_INF
        if j0 <= gap[i] < j0 + n:
            row[gap[i] - j0] = MINUS_INF
        if live.shape[0]:
            x = live[i, j0 : j0 + n]
            for j in range(n):
                row[j] = row[j] if x[j] else MINUS_INF


def largest(row):
    """The largest entry, by its bits: a maximum of floats does not vectorise, one of integers does."""
    best = LOWEST
    for j in range(row.shape[0]):
        w = bits(row[j])
        w ^= (w >> SIGN) & POSITIVE  # negative floats order by their bits backwards
        best = w if w > best else best
    return of_bits(INT(best ^ ((best >> SIGN) & POSITIVE)))


def fill_term(t, f0, f1, f2, f3, q, k, p, a, b, j0, n, tile, u):
    """The scorer of term t. They stand side by side, since a tuple of functions would be compiled for each length."""
    if t == 0:
        f0(True, q, k, p, a, b, j0, n, tile, u)
    elif t == 1:
        f1(False, q, k, p, a, b, j0, n, tile, u)
    elif t == 2:
        f2(False, q, k, p, a, b, j0, n, tile, u)
    else:
        f3(False, q, k, p, a, b, j0, n, tile, u)


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
    top,
    weight_sum,
    value_sum,
    i0,
    i1,
):
    """(max, weight_sum, value_sum) of queries i0 to i1; value stands transposed, (V, K)."""
    columns, keys = value.shape
    tile, u = np.empty((TALL, WIDE), value.dtype), np.empty(WIDE, value.dtype)
    first = value[0] if columns else np.zeros(keys, value.dtype)  # pooled with the weights, the others after them
    for a in range(i0, i1, TALL):
        b = min(a + TALL, i1)
        low, high = keys, 0
        for i in range(a, b):
            low, high = min(low, start[i]), max(high, stop[i])
        for j0 in range(max(low, 0), min(high, keys), WIDE):
            n = min(WIDE, min(high, keys) - j0)
            for t in range(count):
                q, k, p = terms[t]
                fill_term(t, f0, f1, f2, f3, q, k, p, a, b, j0, n, tile, u)
            edit(tile, a, b, j0, n, start, stop, gap, live, bias)
            for i in range(a, b):
                row = tile[i - a, :n]
                highest = largest(row)
                if highest == MINUS_INF:
                    continue
                m = top[i]
                if highest > m:
                    r = exp2((m - highest) * LOG2)
                    weight_sum[i] *= r
                    for c in range(columns):
                        value_sum[i, c] *= r
                    top[i] = m = highest
                total, pooled, x = ZERO, ZERO, first[j0 : j0 + n]
                for j in range(n):
                    e = exp2((row[j] - m) * LOG2)
                    row[j] = e
                    total += e
                    pooled += e * x[j]
                weight_sum[i] += total
                if hashes.shape[0]:
                    drop(row, n, hashes[i], start_key + j0, least, scale)
                    pooled = ZERO
                    for j in range(n):
                        pooled += row[j] * x[j]
                if columns:
                    value_sum[i, 0] += pooled
                c = 1
                while c + 4 <= columns:
                    x0, x1 = value[c, j0 : j0 + n], value[c + 1, j0 : j0 + n]
                    x2, x3 = value[c + 2, j0 : j0 + n], value[c + 3, j0 : j0 + n]
                    s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
                    for j in range(n):
                        e = row[j]
                        s0 += e * x0[j]
                        s1 += e * x1[j]
                        s2 += e * x2[j]
                        s3 += e * x3[j]
                    value_sum[i, c] += s0
                    value_sum[i, c + 1] += s1
                    value_sum[i, c + 2] += s2
                    value_sum[i, c + 3] += s3
                    c += 4
                while c < columns:
                    x, total = value[c, j0 : j0 + n], ZERO
                    for j in range(n):
                        total += row[j] * x[j]
                    value_sum[i, c] += total
                    c += 1


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
    i0,
    i1,
):
    """Gradients of the two sums, whose gradients are to_z and to_o; the maximum is constant."""
    columns, keys = value.shape
    tile, u = np.empty((TALL, WIDE), value.dtype), np.empty(WIDE, value.dtype)
    g, spare = np.empty(WIDE, value.dtype), np.empty(WIDE, value.dtype)
    for a in range(i0, i1, TALL):
        b = min(a + TALL, i1)
        low, high = keys, 0
        for i in range(a, b):
            low, high = min(low, start[i]), max(high, stop[i])
        for j0 in range(max(low, 0), min(high, keys), WIDE):
            n = min(WIDE, min(high, keys) - j0)
            for t in range(count):
                q, k, p = terms[t]
                fill_term(t, f0, f1, f2, f3, q, k, p, a, b, j0, n, tile, u)
            edit(tile, a, b, j0, n, start, stop, gap, live, bias)
            for i in range(a, b):
                row, m = tile[i - a, :n], top[i]
                if m == MINUS_INF:
                    row[:] = ZERO
                    continue
                z, kept = to_z[i], spare[:n]
                for j in range(n):
                    row[j] = exp2((row[j] - m) * LOG2)
                    kept[j] = row[j]
                    g[j] = ZERO
                if hashes.shape[0]:
                    drop(kept, n, hashes[i], start_key + j0, least, scale)
                for c in range(columns):
                    x, y, o = value[c, j0 : j0 + n], to_v[c, j0 : j0 + n], to_o[i, c]
                    for j in range(n):
                        g[j] += o * x[j]
                        y[j] += o * kept[j]
                for j in range(n):
                    row[j] = kept[j] * g[j] + row[j] * z
                if to_b.shape[0]:
                    x = to_b[i, j0 : j0 + n]
                    for j in range(n):
                        x[j] = row[j]
            for t in range(count):
                q, k, p = terms[t]
                to_q, to_k, to_p = grads[t]
                back_term(t, b0, b1, b2, b3, q, k, p, a, b, j0, n, tile, u, g, to_q, to_k, to_p)


def scores(count, f0, f1, f2, f3, terms, value, start, stop, gap, live, bias, out, i0, i1):
    """All scores of queries i0 to i1, (i1 - i0, K); -inf where there is no key."""
    keys = out.shape[1]
    tile, u = np.empty((TALL, WIDE), value.dtype), np.empty(WIDE, value.dtype)
    for a in range(i0, i1, TALL):
        b = min(a + TALL, i1)
        for j0 in range(0, keys, WIDE):
            n = min(WIDE, keys - j0)
            for t in range(count):
                q, k, p = terms[t]
                fill_term(t, f0, f1, f2, f3, q, k, p, a, b, j0, n, tile, u)
            edit(tile, a, b, j0, n, start, stop, gap, live, bias)
            for i in range(a, b):
                out[i - i0, j0 : j0 + n] = tile[i - a, :n]
