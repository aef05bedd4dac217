"""Loop bodies of the matrix engine: the softmax between two products of matrices, block by block, forward and backward.

A block of scores is (BLOCK keys, LANES queries): queries stand side by side in the lanes of a vector, so that maximum
and sum over the keys of each are vertical, and keys and values are read where they are. They are bound to a dtype, and
compiled, by ``binding``, as the bodies in ``loops`` are.
"""

# ruff: noqa: F821
# mypy: ignore-errors

from __future__ import annotations

BLOCK = 192  # keys of a block, a multiple of the 32 of a tile
NARROW = 96  # keys of a block in bfloat16, whose scores and weights stay in the first cache beside the tiles
SUMMED = 32  # keys of one sum
GROUPS = 8  # of LANES queries, which a block of keys serves in turn


def fill(key, j0, m, q, s, shift):
    """s[j, i] = k_j . q_i - shift_i."""
    features, r = key.shape[1], 0
    while r + 8 <= m:
        less(key, (j0 + r) * features, features, 1, q, 0, s, r * LANES, shift, features)
        r += 8
    while r < m:
        less_one(key, (j0 + r) * features, features, 1, q, 0, s, r * LANES, shift, features)
        r += 1


def add(x, j0, m, s, into, spare):
    """into[c, i] += sum_j x[j, c] s[j, i], by some keys at a time: a long sum rounds more than its parts."""
    columns = x.shape[1]
    for j in range(0, m, SUMMED):
        count, at, r = min(SUMMED, m - j), (j0 + j) * columns, 0
        while r + 8 <= columns:
            more(x, at + r, 1, columns, s, j * LANES, into, r * LANES, spare, count)
            r += 8
        while r < columns:
            more_one(x, at + r, 1, columns, s, j * LANES, into, r * LANES, spare, count)
            r += 1


def add_outer(s, j0, m, keys, rows, into, spare):
    """into[panel, j0 + j, c] += sum_i s[j, i] rows[panel, i, c], in panels of LANES columns."""
    for p in range(rows.shape[0] // (LANES * LANES)):
        at, r = (p * keys + j0) * LANES, 0
        while r + 8 <= m:
            more(s, r * LANES, LANES, 1, rows, p * LANES * LANES, into, at + r * LANES, spare, LANES)
            r += 8
        while r < m:
            more_one(s, r * LANES, LANES, 1, rows, p * LANES * LANES, into, at + r * LANES, spare, LANES)
            r += 1


def edit(s, j0, m, a, n, start, stop, gap, live, bias):
    """Adds the bias; -inf where a query has no key."""
    if bias.shape[0]:
        rows, columns = bias.shape[0] > 1, bias.shape[1] > 1
        inside = min(m, bias.shape[1] - j0) if columns else m
        for i in range(n):
            for j in range(inside):
                s[j * LANES + i] += bias[a + i if rows else 0, j0 + j if columns else 0]
    for i in range(n):
        low, high, hole = start[a + i] - j0, stop[a + i] - j0, gap[a + i] - j0
        for j in range(min(max(low, 0), m)):
            s[j * LANES + i] = MINUS_INF
        for j in range(min(max(high, 0), m), m):
            s[j * LANES + i] = MINUS_INF
        if 0 <= hole < m:
            s[hole * LANES + i] = MINUS_INF
    if live.shape[0]:
        inside = min(m, live.shape[1] - j0)
        for i in range(n):
            for j in range(inside):
                if not live[a + i, j0 + j]:
                    s[j * LANES + i] = MINUS_INF


def hull(a, n, start, stop, gap, keys, seen):
    """The keys that some of these queries see, those that all see, and a range that holds all gaps."""
    low, high, inner_low, inner_high, first_gap, last_gap = keys, 0, 0, keys, keys, -1
    for i in range(a, a + n):
        if start[i] < stop[i]:
            low, high = min(low, start[i]), max(high, stop[i])
        inner_low, inner_high = max(inner_low, start[i]), min(inner_high, stop[i])
        if gap[i] >= 0:
            first_gap, last_gap = min(first_gap, gap[i]), max(last_gap, gap[i])
    seen[0], seen[1], seen[2], seen[3], seen[4], seen[5] = low, high, inner_low, inner_high, first_gap, last_gap


def whole(seen, j0, m):
    """Whether all of these queries see all of these keys."""
    return seen[2] <= j0 and j0 + m <= seen[3] and (seen[5] < j0 or seen[4] >= j0 + m)


def stand(x, a, n, q):
    """q[c, i] = x[a + i, c], 0 beyond the rows."""
    columns, side = x.shape[1], LANES // 2
    across = columns // side * side if n == LANES else 0
    for i in range(0, LANES, side):
        for c in range(0, across, side):
            turn(x, (a + i) * columns + c, columns, q, c * LANES + i, LANES)
    for j in range(across * LANES, columns * LANES):
        q[j] = 0
    for i in range(n):
        for c in range(across, columns):
            q[c * LANES + i] = x[a + i, c]


def lie(q, a, n, x):
    """x[a + i, c] = q[c, i]."""
    columns, side = x.shape[1], LANES // 2
    across = columns // side * side if n == LANES else 0
    for i in range(0, LANES, side):
        for c in range(0, across, side):
            turn(q, c * LANES + i, LANES, x, (a + i) * columns + c, columns)
    for i in range(n):
        for c in range(across, columns):
            x[a + i, c] = q[c * LANES + i]


def rise(s, m, shift, high, seen, factor, z, o, unit):
    """The shift of each query becomes its largest score so far; ``high`` is how far it rose. True if any did.

    ``unit`` is the logarithm to base 2 of a weight per score.
    """
    wide_vectors()
    for i in range(LANES):
        high[i] = MINUS_INF
    largest_of_columns(s, high, m)
    rose = False
    for i in range(LANES):
        rose |= high[i] > ZERO or (seen[i] == ZERO and high[i] > MINUS_INF)
    if not rose:
        for i in range(LANES):
            high[i] = ZERO
        return False
    for i in range(LANES):
        first = seen[i] == ZERO and high[i] > MINUS_INF
        d = high[i] if first or high[i] > ZERO else ZERO
        factor[i] = ZERO if first else exp2(-d * unit)
        seen[i] = ONE if first else seen[i]
        shift[i] += d
        z[i] *= factor[i]
        high[i] = d
    times_row(o, factor, o.shape[0] // LANES)
    return True


def exponentials(s, count):
    """exp(s), in place; exactly 0 of -inf."""
    wide_vectors()
    for x in range(count):
        s[x] = exp2(s[x] * LOG2)


def weigh(s, less, unit, out, total, pairs):
    """``weigh_halves``, compiled without leave to reassociate: it rounds by adding and subtracting a large number."""
    wide_vectors()
    weigh_halves(s, less, unit, out, total, pairs)


def forward(
    query, key, value, start, stop, gap, live, bias, top, weight_sum, value_sum, s, spare, sight, q_all, o_all, rows
):
    """(max, weight_sum, value_sum) of these queries; what follows is scratch.

    The keys of a block serve some groups of queries before the next ones are read.
    """
    wide_vectors()
    keys, arrays = key.shape[0], live.shape[0] > 0 or bias.shape[0] > 0
    for a0 in range(0, query.shape[0], GROUPS * LANES):
        groups = min(GROUPS, (query.shape[0] - a0 + LANES - 1) // LANES)
        for g in range(groups):
            a = a0 + g * LANES
            n, o, state = min(LANES, query.shape[0] - a), o_all[g], rows[g]
            stand(query, a, n, q_all[g])
            hull(a, n, start, stop, gap, keys, sight[g])
            for x in range(o.shape[0]):
                o[x] = ZERO
            for r in range(5):
                for i in range(LANES):
                    state[r, i] = ZERO
        for j in range(0, keys, BLOCK):
            for g in range(groups):
                a, seen_by = a0 + g * LANES, sight[g]
                j0, m = max(j, seen_by[0]), min(j + BLOCK, seen_by[1]) - max(j, seen_by[0])
                if m <= 0:
                    continue
                q, o, state, n = q_all[g], o_all[g], rows[g], min(LANES, query.shape[0] - a)
                shift, high, seen, factor, z = state[0], state[1], state[2], state[3], state[4]
                fill(key, j0, m, q, s, shift)
                if arrays or not whole(seen_by, j0, m):
                    edit(s, j0, m, a, n, start, stop, gap, live, bias)
                if rise(s, m, shift, high, seen, factor, z, o, LOG2):
                    less_row(s, high, m)
                exponentials(s, m * LANES)
                for i in range(LANES):
                    high[i] = ZERO
                add_columns(s, high, m)
                for i in range(LANES):
                    z[i] += high[i]
                add(value, j0, m, s, o, shift)
        finish(a0, groups, rows, o_all, top, weight_sum, value_sum)


def finish(a0, groups, rows, o_all, top, weight_sum, value_sum):
    """What was pooled, to where it belongs."""
    for g in range(groups):
        a, state = a0 + g * LANES, rows[g]
        n = min(LANES, top.shape[0] - a)
        for i in range(n):
            top[a + i] = state[0, i] if state[2, i] > ZERO else MINUS_INF
            weight_sum[a + i] = state[4, i]
        lie(o_all[g], a, n, value_sum)


def backward(
    query,
    key,
    value,
    start,
    stop,
    gap,
    live,
    bias,
    top,
    to_z,
    to_o,
    to_query,
    to_key,
    to_value,
    to_bias,
    s,
    g,
    sight,
    q_all,
    o_all,
    d_all,
    q_rows_all,
    o_rows_all,
    rows,
):
    """Gradients of the two sums; ``to_key`` and ``to_value`` in panels, see ``add_outer``. The rest is scratch."""
    wide_vectors()
    features, columns, keys = key.shape[1], value.shape[1], key.shape[0]
    arrays = live.shape[0] > 0 or bias.shape[0] > 0
    for a0 in range(0, query.shape[0], GROUPS * LANES):
        groups = min(GROUPS, (query.shape[0] - a0 + LANES - 1) // LANES)
        for group in range(groups):
            a = a0 + group * LANES
            n, q, o, d, state = min(LANES, query.shape[0] - a), q_all[group], o_all[group], d_all[group], rows[group]
            q_rows, o_rows = q_rows_all[group], o_rows_all[group]
            hull(a, n, start, stop, gap, keys, sight[group])
            for x in range(features * LANES):
                q[x] = d[x] = ZERO
            for x in range(columns * LANES):
                o[x] = ZERO
            for x in range(q_rows.shape[0]):
                q_rows[x] = ZERO
            for x in range(o_rows.shape[0]):
                o_rows[x] = ZERO
            for i in range(LANES):
                state[0, i] = state[1, i] = ZERO
            for i in range(n):
                if top[a + i] == MINUS_INF:
                    continue
                state[0, i], state[1, i] = top[a + i], -to_z[a + i]
                for c in range(features):
                    q[c * LANES + i] = query[a + i, c]
                    q_rows[(c // LANES * LANES + i) * LANES + c % LANES] = query[a + i, c]
                for c in range(columns):
                    o[c * LANES + i] = to_o[a + i, c]
                    o_rows[(c // LANES * LANES + i) * LANES + c % LANES] = to_o[a + i, c]
        for j in range(0, keys, BLOCK):
            for group in range(groups):
                a, seen_by, state = a0 + group * LANES, sight[group], rows[group]
                j0, m = max(j, seen_by[0]), min(j + BLOCK, seen_by[1]) - max(j, seen_by[0])
                if m <= 0:
                    continue
                n, shift = min(LANES, query.shape[0] - a), state[0]
                fill(key, j0, m, q_all[group], s, shift)
                if arrays or not whole(seen_by, j0, m):
                    edit(s, j0, m, a, n, start, stop, gap, live, bias)
                exponentials(s, m * LANES)
                fill(value, j0, m, o_all[group], g, state[1])
                for x in range(m * LANES):
                    g[x] *= s[x]
                add_outer(s, j0, m, keys, o_rows_all[group], to_value, shift)
                add_outer(g, j0, m, keys, q_rows_all[group], to_key, shift)
                add(key, j0, m, g, d_all[group], shift)
                if to_bias.shape[0]:
                    for i in range(n):
                        for k in range(m):
                            to_bias[a + i, j0 + k] = g[k * LANES + i]
        for group in range(groups):
            a = a0 + group * LANES
            lie(d_all[group], a, min(LANES, query.shape[0] - a), to_query)


def pack_value(value, out):
    """Values, 32 keys of each column side by side: out[key // 32, column, key % 32], which is zero beyond."""
    wide_vectors()
    rows, columns, wide = value.shape[0], value.shape[1], out.shape[1]
    across = columns // 32 * 32
    for b in range(0, rows, 32):
        done = across if b + 32 <= rows else 0
        for c in range(0, done, 32):
            turn(value, b * columns + c, columns, out, (b // 32 * wide + c) * 32, 32)
        for j in range(b, min(b + 32, rows)):
            for c in range(done, columns):
                out[b // 32, c, j - b] = value[j, c]


def finish_halves(a, n, state, o, flat, out):
    """What was pooled, divided by the weight sum and rounded to bfloat16, to where it belongs."""
    wide_vectors()
    factor, z = state[3], state[4]
    for i in range(LANES):
        factor[i] = ONE / z[i] if z[i] > ZERO else ZERO
    times_row(o, factor, o.shape[0] // LANES)
    lie(o, 0, n, flat)
    for i in range(n):
        for c in range(out.shape[1]):
            word = bits(flat[i, c])
            out[a + i, c] = (word + WORD(0x7FFF) + ((word >> WORD(16)) & WORD(1))) >> WORD(16)


def halves(query, key, value, start, stop, gap, live, bias, unit, out, s, p, sight, q_all, o_all, rows, flat):
    """The pooled values in bfloat16: of queries as words of two features, of keys, and of values from ``pack_value``.

    Features are filled with zeros to a multiple of 32 in the keys. A score times ``unit`` is the logarithm to base 2 of
    a weight.
    """
    wide_vectors()
    features, wide, keys = key.shape[1], value.shape[1], key.shape[0]
    open_tiles()
    for a0 in range(0, query.shape[0], GROUPS * LANES):
        groups = min(GROUPS, (query.shape[0] - a0 + LANES - 1) // LANES)
        for g in range(groups):
            a = a0 + g * LANES
            n, q, o, state = min(LANES, query.shape[0] - a), q_all[g], o_all[g], rows[g]
            hull(a, n, start, stop, gap, keys, sight[g])
            stand(query, a, n, q)
            for x in range(query.shape[1] * LANES, q.shape[0]):
                q[x] = 0
            for x in range(o.shape[0]):
                o[x] = ZERO
            for r in range(5):
                for i in range(LANES):
                    state[r, i] = ZERO
        for j in range(0, keys, NARROW):
            for g in range(groups):
                a, seen_by = a0 + g * LANES, sight[g]
                j0 = max(j, seen_by[0] // 32 * 32)
                m = min(j + NARROW, (seen_by[1] + 31) // 32 * 32) - j0
                if m <= 0:
                    continue
                q, o, state, n = q_all[g], o_all[g], rows[g], min(LANES, query.shape[0] - a)
                shift, high, seen, factor, z = state[0], state[1], state[2], state[3], state[4]
                for i in range(LANES):
                    high[i] = -shift[i]
                for r in range(0, m, 32):
                    at = (j0 + r) * features
                    tiles_less(key, at, features, 32, q, 0, s, r * LANES, high, features // 32)
                if not whole(seen_by, j0, m):
                    edit(s, j0, m, a, n, start, stop, gap, live, bias)
                rise(s, m, shift, high, seen, factor, z, o, unit)
                weigh(s, high, unit, p, factor, m // 2)
                for i in range(LANES):
                    z[i] += factor[i]
                for r in range(0, wide, 32):
                    tiles_more(value, j0 * wide + r * 32, 32, wide * 32, p, 0, o, r * LANES, shift, m // 32)
        for g in range(groups):
            a = a0 + g * LANES
            finish_halves(a, min(LANES, query.shape[0] - a), rows[g], o_all[g], flat, out)
    close_tiles()
