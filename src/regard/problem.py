"""One pooling as engines see it: prepared arrays, a mask, a bias, and what a tile of it means.

Non-finite inputs never enter the arithmetic. They are replaced by zero beforehand and remembered here as flags;
what they reach is set to NaN afterwards, by selection (law 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from regard.arrays import Array, Namespace, device, like, size, sum_to, take_along
from regard.masks.base import Layout, Mask, cut
from regard.scores.base import FAR, Term, paired, term_score
from regard.weights import exponentials

LOW = 0xFFFFFFFF  # the low 32 bits
BUDGET = 1 << 21  # numbers that a tile may hold at once


@dataclass(frozen=True, eq=False)
class Problem:
    """What crosses into an engine: only arrays, numbers and names."""

    xp: Namespace
    layout: Layout
    terms: tuple[Term, ...]
    value: Array  # (..., K, V), finite
    mask: Mask | None = None
    bias: Array | None = None  # broadcasts to (..., Q, K); finite or -inf
    dropout: float = 0.0
    seed: int = 0
    threads: int | None = None  # of an engine that runs its own; None: as many as it finds right
    bad_query: Array | None = None  # (..., Q) True where something was not finite; None where all is
    bad_key: Array | None = None  # (..., K)
    bad_bias: Array | None = None  # like bias
    bad_value: Array | None = None  # (..., K, 3 V): 1 where the value is NaN, inf, -inf; else 0
    recorded: bool = False  # whether torch will ask for derivatives
    spare: bool = False  # whether the queries of its one term are a copy that nobody reads again
    asked: str = "sums"  # what will be seen: the "sums", their "ratio" alone, or the "scores"
    rtol: float = 0.0  # the error that an engine may have which approximates; 0: none
    memo: dict[Any, Any] | None = None  # what an engine keeps of these very keys for the next call
    given: Any = None  # dtype of the inputs, and of a ratio, where it is not that of the arrays

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All that can have a gradient: the terms' arrays in order, the value, the bias."""
        terms = tuple(a for t in self.terms for a in t.arrays)
        return (*terms, self.value, *(() if self.bias is None else (self.bias,)))

    def with_arrays(self, arrays: tuple[Array, ...]) -> Problem:
        """The same problem of other arrays, in the order of ``arrays``."""
        terms, at = [], 0
        for t in self.terms:
            n = len(t.arrays)
            terms.append(t.with_arrays(tuple(arrays[at : at + n])))
            at += n
        return replace(self, terms=tuple(terms), value=arrays[at], bias=None if self.bias is None else arrays[at + 1])

    @property
    def labels(self) -> tuple[str, ...]:
        """The axes along which each of ``arrays`` is cut: "q" (..., Q, .), "k" (..., K, .) or "qk" (..., Q, K)."""
        terms = tuple(label for t in self.terms for label in ("q", "k", *"q" * (len(t.arrays) - 2)))
        return (*terms, "k", *(() if self.bias is None else ("qk",)))

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of what there is one of per query."""
        return (*self.layout.leading, self.layout.queries)


def take(x: Array, label: str, queries: slice, keys: slice) -> Array:
    """The block of an array by its label; axes of size 1 stay."""
    if label == "qk":
        return cut(x, queries, keys)
    return x if x.shape[-2] == 1 else x[..., queries if label == "q" else keys, :]


def put(into: Array, label: str, queries: slice, keys: slice, part: Array) -> None:
    """Add a block to the array that it was taken from."""
    if not into.ndim:
        into += part
    elif label == "qk":
        i = queries if into.ndim > 1 and into.shape[-2] != 1 else slice(None)
        j = keys if into.shape[-1] != 1 else slice(None)
        into[(..., i, j) if into.ndim > 1 else j] += part
    elif into.shape[-2] == 1:
        into += part
    else:
        into[..., queries if label == "q" else keys, :] += part


def block(problem: Problem, queries: slice, keys: slice) -> tuple[Array, ...]:
    """All arrays of a tile."""
    return tuple(take(x, a, queries, keys) for x, a in zip(problem.arrays, problem.labels, strict=True))


def query_tiles(problem: Problem) -> Iterator[tuple[slice, list[slice]]]:
    """Blocks of queries, each with the blocks of keys that the mask's bounds leave to it."""
    layout = problem.layout
    width = 4 + sum(t.pairing.width(t.query, t.key) for t in problem.terms)
    pairs = max(BUDGET // (width * max(size(layout.leading), 1)), 16)
    tall = max(min(layout.queries, int(pairs**0.5 / 2)), 1)
    wide = max(min(layout.keys, pairs // tall), 1)
    tall = max(min(layout.queries, pairs // wide), 1)
    for i in range(0, layout.queries, tall):
        queries = slice(i, min(i + tall, layout.queries))
        start, stop = (0, layout.keys) if problem.mask is None else problem.mask.bounds(layout, queries)
        yield queries, [slice(j, min(j + wide, stop)) for j in range(start, stop, wide)]


def of_tile(problem: Problem, arrays: tuple[Array, ...], queries: slice, keys: slice) -> Problem:
    """The problem of a tile's arrays; what travels with the queries and has no gradient is cut here."""
    p = problem.with_arrays(arrays)
    if all(t.root is None for t in p.terms):
        return p
    return replace(p, terms=tuple(t._replace(root=take(t.root, "q", queries, keys)) for t in p.terms))


class Tile(NamedTuple):
    """The scores of a tile, -inf where there is no key, and what made them."""

    scores: Array  # (..., q, k)
    paired: tuple[Array, ...]  # the pairing of each term


def score_tile(problem: Problem, arrays: tuple[Array, ...], queries: slice, keys: slice) -> Tile:
    """The scores of a tile with bias and mask; ``arrays`` are those of the tile, in the order of ``Problem.arrays``."""
    xp, p = problem.xp, of_tile(problem, arrays, queries, keys)
    numbers = tuple(paired(xp, t) for t in p.terms)
    s = sum(term_score(xp, t, u) for t, u in zip(p.terms, numbers, strict=True))
    if p.bias is not None:
        s = s + p.bias
    if problem.mask is not None:
        s = xp.where(problem.mask.tile(problem.layout, queries, keys), s, -xp.inf)
    return Tile(s, numbers)


def scores_backward(
    problem: Problem, arrays: tuple[Array, ...], queries: slice, keys: slice, tile: Tile, grad: Array
) -> list[Array]:
    """Gradients to the terms' arrays of a tile, from that of its scores (0 where there is no key)."""
    xp, out = problem.xp, []
    for t, u in zip(of_tile(problem, arrays, queries, keys).terms, tile.paired, strict=True):
        g = grad if t.factor is None else grad * t.factor
        to_u, *to_parameters = t.slope(xp, u, *t.parameters)
        if t.root is not None:
            to_u = xp.where(u < FAR, to_u * t.root * t.root, 0.0)
        grads = [*t.pairing.backward(xp, t.query, t.key, g * to_u)]
        grads += [xp.sum(g * slope, axis=-1, keepdims=True) for slope in to_parameters]
        if t.factor is not None:
            s = t.formula(xp, u, *t.parameters)
            grads.append(xp.sum(grad * xp.where(s == -xp.inf, 0.0, s), axis=-1, keepdims=True))
        out += [sum_to(xp, g, tuple(x.shape)) for g, x in zip(grads, t.arrays, strict=True)]
    return out


def new(problem: Problem, shape: tuple[int, ...], fill: float, *, integer: bool = False) -> Array:
    """A new array of the problem's library, dtype and device."""
    xp, value = problem.xp, problem.value
    return xp.full(shape, fill, dtype=xp.int64 if integer else value.dtype, device=device(value))


def weights_of(problem: Problem, maximum: Array, weight_sum: Array) -> Array:
    """The weights, (..., Q, K), from the pooling's maximum and weight sum, (..., Q)."""
    xp = problem.xp
    out = new(problem, (*problem.rows, problem.layout.keys), 0.0)
    for queries, key_tiles in query_tiles(problem):
        z = weight_sum[..., queries, None]
        z = xp.where(z == 0, 1.0, z)
        for keys in key_tiles:
            s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
            w = exponentials(xp, s, maximum[..., queries]) / z
            out[..., queries, keys] = xp.where(s > -xp.inf, w, 0.0)  # a row with NaN keeps its masked zeros
    return out


def top_of(problem: Problem, maximum: Array, weight_sum: Array, n: int) -> tuple[Array, Array]:
    """The n largest weights and their keys, (..., Q, n), from the pooling's maximum and weight sum, (..., Q)."""
    xp = problem.xp
    n = min(n, problem.layout.keys)
    best = new(problem, (*problem.rows, n), -np.inf)
    index = new(problem, (*problem.rows, n), -1, integer=True)
    for queries, key_tiles in query_tiles(problem):
        s, at = best[..., queries, :], index[..., queries, :]
        for keys in key_tiles:
            more = score_tile(problem, block(problem, queries, keys), queries, keys).scores
            here = problem.layout.key_positions(keys) - problem.layout.key_start
            more = xp.broadcast_to(more, (*s.shape[:-1], more.shape[-1]))
            both = xp.concat([s, more], axis=-1)
            where = xp.concat([at, xp.broadcast_to(here, more.shape)], axis=-1)
            # what was found before stands first and has the lower index, so a stable sort breaks ties by index
            order = xp.argsort(-both, axis=-1, stable=True)[..., :n]
            s, at = take_along(xp, both, order), take_along(xp, where, order)
        best[..., queries, :], index[..., queries, :] = s, at
    z = weight_sum[..., None]
    weights = exponentials(xp, best, maximum) / xp.where(z == 0, 1.0, z)
    return xp.where(best > -xp.inf, weights, 0.0), index  # an empty slot of a row with NaN is 0 as well


def pool_backward(
    problem: Problem,
    arrays: tuple[Array, ...],
    queries: slice,
    keys: slice,
    maximum: Array,
    grad_weight_sum: Array,
    grad_value_sum: Array,
) -> list[Array]:
    """Gradients of a tile's part of weight_sum and value_sum; the maximum is a constant.

    ``G = exp(s - max) (grad_value_sum . v + grad_weight_sum)`` goes to the scores. Row arrays are (..., q, 1 or V).
    """
    xp, value = problem.xp, problem.with_arrays(arrays).value
    tile = score_tile(problem, arrays, queries, keys)
    w = exponentials(xp, tile.scores, maximum[..., 0])
    to_weight, kept = grad_value_sum @ value.mT, w
    if problem.dropout:
        keep = dropout(problem, queries, keys)
        to_weight, kept = to_weight * keep, w * keep
    g = w * (to_weight + grad_weight_sum)
    to_value = sum_to(xp, kept.mT @ grad_value_sum, tuple(value.shape))
    grads = [*scores_backward(problem, arrays, queries, keys, tile, g), to_value]
    return grads if problem.bias is None else [*grads, sum_to(xp, g, tuple(arrays[-1].shape))]


def exponentials_backward(
    problem: Problem, arrays: tuple[Array, ...], queries: slice, keys: slice, maximum: Array, grad: Array
) -> list[Array]:
    """Gradients of a tile of ``exp(s - max)``, for the weights that are shown; the value has none."""
    xp, value = problem.xp, problem.with_arrays(arrays).value
    tile = score_tile(problem, arrays, queries, keys)
    g = exponentials(xp, tile.scores, maximum[..., 0]) * grad
    grads = [*scores_backward(problem, arrays, queries, keys, tile, g), xp.zeros_like(value)]
    return grads if problem.bias is None else [*grads, sum_to(xp, g, tuple(arrays[-1].shape))]


def reached(problem: Problem, scores: Array, queries: slice, keys: slice) -> tuple[Array | None, Array | None]:
    """How many non-finite things each query of a tile sees: (..., q, 1) whole rows, (..., q, 3 V) by value column."""
    xp, row, column = problem.xp, None, None
    live = None if problem.mask is None else problem.mask.tile(problem.layout, queries, keys)
    if problem.bias is not None:
        sees = cut(problem.bias, queries, keys) > -xp.inf
        live = sees if live is None else live & sees
    bad = None
    for flags in (
        None if problem.bad_query is None else problem.bad_query[..., queries, None],
        None if problem.bad_key is None else problem.bad_key[..., None, keys],
        None if problem.bad_bias is None else cut(problem.bad_bias, queries, keys),
    ):
        if flags is not None:
            bad = flags if bad is None else bad | flags
    if bad is not None:
        bad = bad if live is None else bad & live
        row = xp.sum(xp.where(bad, xp.ones_like(scores), 0.0), axis=-1, keepdims=True)
    if problem.bad_value is not None:
        sees = xp.where(scores > -xp.inf, xp.ones_like(scores), 0.0)
        column = sees @ problem.bad_value[..., keys, :]
    return row, column


def spoil(xp: Namespace, sums: tuple[Array, Array], row: Array | None, column: Array | None) -> tuple[Array, Array]:
    """(weight_sum, value_sum) with NaN or inf where something non-finite is seen; by selection, so without gradient."""
    weight_sum, value_sum = sums
    if row is not None:
        weight_sum = xp.where(row[..., 0] > 0, xp.nan, weight_sum)
        value_sum = xp.where(row > 0, xp.nan, value_sum)
    if column is not None:
        n = value_sum.shape[-1]
        nan, high, low = (column[..., i * n : (i + 1) * n] > 0 for i in range(3))
        value_sum = xp.where(high & ~low, xp.inf, xp.where(low & ~high, -xp.inf, value_sum))
        value_sum = xp.where(nan | (high & low), xp.nan, value_sum)
    return weight_sum, value_sum


def dropout(problem: Problem, queries: slice, keys: slice) -> Array:
    """What multiplies each weight of a tile: 0, or 1 / (1 - dropout).

    A hash of (seed, batch index, query position, key position), so the same for every engine, tile and thread, and
    again in the backward: ``mix(start + step * key)``, where start and step are two hashes of the row, so that no row
    repeats another. The mixing function is a 32-bit permutation (C. Wellons, hash-prospector, 16-15-15).
    """
    start, step = row_hashes(problem, queries)
    h = mix((start + step * problem.layout.key_positions(keys)) & LOW)
    keep = like(problem.xp, h >= int(problem.dropout * 2**32), problem.value)
    return keep / (1 - problem.dropout) if problem.dropout < 1 else keep


def row_hashes(problem: Problem, queries: slice) -> tuple[Array, Array]:
    """(..., q, 1): where the hashes of each query start, and their step from key to key."""
    layout, seed = problem.layout, problem.seed
    entries = layout.integers(np.arange(size(layout.leading)).reshape(*layout.leading, 1, 1))
    rows, first = layout.query_positions(queries), mix(mix(seed & LOW) ^ ((seed >> 32) & LOW))
    second = mix(first ^ 1)
    start = mix((mix((entries + first) & LOW) + rows) & LOW)
    return start, mix((mix((rows + second) & LOW) + entries) & LOW) | 1


def mix(x: Any) -> Any:
    """A permutation of the 32-bit numbers."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & LOW
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & LOW
    return x ^ (x >> 15)


def spoiled(problem: Problem, sums: tuple[Array, Array]) -> tuple[Array, Array]:
    """The sums of an engine whose loops know nothing of non-finite inputs, with NaN or inf where these are seen."""
    if all(x is None for x in (problem.bad_query, problem.bad_key, problem.bad_bias, problem.bad_value)):
        return sums
    weight_sum, value_sum = sums
    for queries, key_tiles in query_tiles(problem):
        row, column = None, None
        for keys in key_tiles:
            s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
            more_row, more_column = reached(problem, s, queries, keys)
            row = more_row if row is None else row + more_row
            column = more_column if column is None else column + more_column
        part = spoil(problem.xp, (weight_sum[..., queries], value_sum[..., queries, :]), row, column)
        weight_sum[..., queries], value_sum[..., queries, :] = part
    return weight_sum, value_sum
