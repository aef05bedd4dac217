"""Two and three dimensions: the Gaussian by cells and local expansions, axis by axis; what is sparse by a tree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from regard.engines.lowdim import cell_loops as loops
from regard.engines.lowdim import tree
from regard.engines.lowdim.line import each
from regard.engines.lowdim.sources import Floats, Integers, exponents
from regard.scores import Gaussian
from regard.scores.base import Kernel

WIDTH = 1.0  # of a cell, in bandwidths; a power of two
COARSE = 4  # cells to an edge of those that estimate how many keys are near
PAIR, TERM = 5.0, 0.25  # nanoseconds of a pair in a tree, and of a multiplication and addition of expansions
ROOM = 32  # numbers of expansions that are held at once for each key and column
LEAST = 1 << 23  # numbers of expansions that may always be held
TERMS = 24  # at most, to a polynomial
SIDE = 512  # cells, of a box
SOME = 64  # keys whose moments are taken at once
SPAN = 1 << 40  # cells from one end to the other along an axis


def why_not(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str | None:
    """Why these sums are not made here, or None."""
    return None if kernel is Gaussian and features in (2, 3) else ""


def prepare(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    asked: int | None = None,
) -> Cells:
    """The keys in cells."""
    return Cells(key, weight, rtol, asked)


class Table(NamedTuple):
    """The Gaussian between two cells on an axis, as a polynomial in both offsets, for each distance of cells.

    It interpolates at Chebyshev points. wrong, most, least (2 R + 1,): its error, which is measured, for all moments
    that are asked for; the largest moment; the smallest weight.
    """

    terms: Floats  # (2 R + 1, P, P) target, source
    wrong: Floats
    most: Floats
    least: Floats
    beyond: float  # the largest moment beyond its reach

    @property
    def reach(self) -> int:
        return len(self.terms) // 2


@cache
def table(rtol: float, features: int, degree: int) -> Table:
    """The one with the fewest terms whose error would do if keys were as dense everywhere."""
    reach = math.ceil((math.sqrt(2 * (12 - math.log(rtol))) + degree / 4) / WIDTH)
    for count in range(4, TERMS + 1):
        made = _table(count, reach, degree)
        upper, lower = made.most.sum(), made.least.sum()
        if features * made.wrong.sum() * upper ** (features - 1) <= 0.4 * rtol * lower**features:
            break
    return made


def _table(count: int, reach: int, degree: int) -> Table:
    node = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    analysis = chebyshev.chebvander(node, count - 1).T * 2 / count
    analysis[0] /= 2
    to_powers = np.stack([np.pad(c := chebyshev.cheb2poly(row), (0, count - len(c))) for row in np.eye(count)])
    middle = WIDTH * np.arange(-reach, reach + 1)[:, None, None]
    values = np.exp(-np.square(middle + WIDTH / 2 * (node[:, None] - node)) / 2)
    series = (
        analysis @ values @ analysis.T
    )  # its small coefficients are known to rounding of 1: first these, then powers
    terms = to_powers.T @ np.where(abs(series) > 2e-17, series, 0.0) @ to_powers
    y = np.linspace(-1, 1, 4 * count + 1)
    t = middle + WIDTH / 2 * (y[:, None] - y)
    g = np.exp(-t * t / 2)
    powers = np.vander(y, count, increasing=True)
    wrong, most, derived = np.zeros((2, len(terms))), np.zeros(0), [powers]
    wrong, most = wrong
    for _ in range(degree):
        derived.append(np.pad(derived[-1][:, :-1] * np.arange(1, count), ((0, 0), (1, 0))) * 2 / WIDTH)
    for m, row in enumerate(hermite(degree)):
        basis = sum(f * d for f, d in zip(row, derived, strict=True))
        moment = (-t) ** m * g
        wrong = np.maximum(wrong, 1.5 * abs(basis @ terms @ powers.T - moment).max(axis=(1, 2)))
        most = np.maximum(most, abs(moment).max(axis=(1, 2)))
    edge = reach * WIDTH
    return Table(terms, wrong, most, g.min(axis=(1, 2)), max(edge, 1.0) ** degree * math.exp(-edge * edge / 2))


def hermite(degree: int) -> Floats:
    """(m, n): t^m = sum_n He_n(t) m! / (2^k k! n!), m - n = 2 k."""
    made = np.zeros((degree + 1, degree + 1))
    for m in range(degree + 1):
        for k in range(m // 2 + 1):
            made[m, m - 2 * k] = math.factorial(m) / (2**k * math.factorial(k) * math.factorial(m - 2 * k))
    return made


class Cells:
    """Gaussian sums in two and three dimensions over cells one bandwidth wide.

        sum_j w_j prod_d g(q_d - k_jd) = sum_a y^a sum_cells sum_p prod_d M[t_d - s_d]_(a_d p_d) A_p

    A_p = sum w x^p are moments of the offsets x of a cell's keys; M is ``Table``. The sum over cells and p goes along
    one axis after the other, in boxes of target cells with the keys around them. A target cell is used if that costs
    less than a tree, and if a bound of its error is below ``rtol`` times one of its sums, for every column: with the
    largest weight G, its error e and the least weight L between cells, sum |w| (prod (G + e) - prod G) <= rtol sum |w|
    prod L. Queries elsewhere go to the tree. Memory: 8 bytes times (dimensions + columns + 4) for each key, for the
    time of a call 8 bytes times 96 columns more, or 200 MB; and what the tree takes, where it is needed.
    """

    def __init__(self, key: Floats, weight: Floats, rtol: float, asked: int | None) -> None:
        self.key, self.weight, self.rtol, self.asked = key, weight, rtol, asked
        self.count = 0  # of cells with keys
        low, high = (np.floor(f(axis=0, initial=i) / WIDTH) for f, i in ((key.min, np.inf), (key.max, -np.inf)))
        if not len(key) or not np.all(high - low < SPAN) or max(abs(low).max(), abs(high).max()) > 1e15:
            return
        self.first, self.span = low.astype(np.int64), (high - low).astype(np.int64) + 1
        if math.prod(int(n) + 64 for n in self.span) >= 1 << 62:
            return
        code = np.ravel_multi_index(tuple((np.floor(key / WIDTH).astype(np.int64) - self.first).T), tuple(self.span))
        order = np.argsort(code, kind="stable")
        self.x, self.w, code = key[order], weight[order], code[order]
        self.starts = np.flatnonzero(np.diff(code, prepend=-1))
        self.stops = np.append(self.starts[1:], len(code))
        self.codes, self.count = code[self.starts], len(self.starts)
        self.mass = np.add.reduceat(abs(self.w), self.starts, axis=0)
        self.total = self.mass.sum(axis=0)
        self.at = np.stack(np.unravel_index(self.codes, self.span), axis=1)  # (cells, D)

    @cached_property
    def tree(self) -> tree.Tree:
        return tree.prepare(Gaussian, (), self.key, self.weight, self.rtol, self.asked)

    def sums(self, query: Floats, degree: int = 0) -> tuple[Floats, Floats]:
        """See ``Sources``."""
        features, columns = self.key.shape[1], self.weight.shape[1]
        powers = exponents(features, degree)
        shift, out = np.zeros(len(query)), np.empty((len(query), len(powers), columns))
        done = np.zeros(len(query), bool)
        if self.count and len(query):
            q, made = np.ascontiguousarray(query), table(self.rtol, features, degree)
            targets = self._targets(q, made)
            axes = np.array([(0,) * (3 - features) + p for p in powers])
            for cells in boxes(targets.at, self.span, made.reach, self._room(made)):
                found = self._local(targets, cells, made)
                if found is not None:
                    self._evaluate(q, targets, *found, degree, axes, out, done)
        left = np.flatnonzero(~done)
        if len(left):
            shift[left], out[left] = self.tree.sums(query[left], degree)
        return shift, out

    def others(self, query: Floats, own: Integers) -> tuple[Floats, Floats]:
        """The sums without the key ``own (Q,)`` of each query."""
        return self.tree.others(query, own)

    def _room(self, made: Table) -> int:
        """How many expansions may be held."""
        columns = int(self.weight.shape[1])
        numbers = max(ROOM * len(self.key) * columns, LEAST)
        return max(numbers // _terms(made, int(self.key.shape[1]), columns)[1], 1)

    def _targets(self, q: Floats, made: Table) -> Targets:
        """The cells of queries that are worth an expansion."""
        reach, features = made.reach, q.shape[1]
        at = np.floor(q / WIDTH) - self.first
        rows = np.flatnonzero(((at >= -reach) & (at < self.span + reach)).all(axis=1))
        at = at[rows].astype(np.int64)
        code = np.ravel_multi_index(tuple((at + reach).T), tuple(self.span + 2 * reach))
        order = np.argsort(code, kind="stable")
        rows, code = rows[order], code[order]
        starts = np.flatnonzero(np.diff(code, prepend=-1))
        stops = np.append(starts[1:], len(code))
        at = at[order[starts]]
        pairs = (stops - starts) * self._near(at)
        each_cell, each_query = _terms(made, features, self.weight.shape[1])
        kept = pairs * PAIR > (2 * features * each_cell + (stops - starts) * each_query) * TERM
        return Targets(at[kept], rows, starts[kept], stops[kept], pairs[kept] * PAIR)

    def _near(self, at: Integers) -> Integers:
        """About how many keys are near these cells: those of coarse cells around them."""
        span = self.span // COARSE + 3
        codes, inverse = np.unique(np.ravel_multi_index(tuple((self.at // COARSE + 1).T), span), return_inverse=True)
        keys = np.bincount(inverse, self.stops - self.starts).astype(np.int64)
        near = np.zeros(len(at), np.int64)
        for step in np.ndindex(*(3,) * at.shape[1]):
            around = at // COARSE + np.array(step)  # 1 for where it is, -1 for the step
            inside = ((around >= 0) & (around < span)).all(axis=1)
            code = np.ravel_multi_index(tuple(around.T), span, mode="clip")
            found = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
            near += np.where(inside & (codes[found] == code), keys[found], 0)
        return near

    def _local(self, targets: Targets, cells: Integers, made: Table) -> tuple[Floats, Integers, Integers] | None:
        """The expansions of a box of target cells, which cells have one that is good, and where it stands."""
        features, columns, count = self.key.shape[1], self.weight.shape[1], made.terms.shape[1]
        at, reach = targets.at[cells], made.reach
        low, high = at.min(axis=0), at.max(axis=0)
        first, last = np.maximum(low - reach, 0), np.minimum(high + reach, self.span - 1)
        if (last < first).any():
            return None
        sizes, around = tuple(high - low + 1), tuple(last - first + 1)
        grid = np.ravel_multi_index(np.ix_(*(np.arange(a, b + 1) for a, b in zip(first, last, strict=True))), self.span)
        place = np.minimum(np.searchsorted(self.codes, grid), self.count - 1)
        place[self.codes[place] != grid] = -1
        used = place[place >= 0]
        if not len(used):
            return None
        mass = np.zeros((*around, columns))
        mass[place >= 0] = self.mass[used]

        def summed(x: Floats, kernel: Floats, axes: range) -> Floats:
            for d in axes:
                gap = np.arange(sizes[d])[:, None] + (low - first)[d] - np.arange(around[d]) + reach
                matrix = np.where((gap >= 0) & (gap <= 2 * reach), kernel[np.clip(gap, 0, 2 * reach)], 0.0)
                x = np.moveaxis(np.tensordot(matrix, x, (1, d)), 0, d)
            return x

        every = range(features)
        most = summed(mass, made.most, every)
        wrong = summed(mass, made.most + made.wrong, every) - most + 1e-14 * most + made.beyond * self.total
        good = (wrong <= 0.9 * self.rtol * summed(mass, made.least, every)).all(axis=-1)
        cells = cells[good[tuple((at - low).T)]]
        at = targets.at[cells] - low
        each_cell, each_query = _terms(made, features, columns)
        lines = sum(math.prod(sizes[: d + 1]) * math.prod(around[d + 1 :]) for d in every)
        keys = int((self.stops - self.starts)[used].sum())
        if targets.pairs[cells].sum() < (lines * each_cell + keys * each_query) * TERM:
            return None
        wanted = np.zeros(sizes)
        wanted[tuple(at.T)] = 1
        place[place >= 0] = np.arange(len(used))
        x = self._moments(used, count)
        for d in every:
            need = wanted
            for e in range(d + 1, features):
                gap = np.arange(around[e])[:, None] - (low - first)[e] - np.arange(sizes[e])
                need = np.moveaxis(np.tensordot((abs(gap) <= reach).astype(np.float64), need, (1, e)), 0, e)
            need = np.transpose(need, (*range(d + 1, features), *range(d + 1))).reshape(-1, sizes[d]) > 0
            x, live = self._swept(x, place.reshape(around[d], -1), int((low - first)[d]), made.terms, need)
            place = np.where(live, np.arange(live.size).reshape(live.shape), -1)
            place = place.reshape(*around[d + 1 :], *sizes[: d + 1])
        local = x.reshape(-1, columns, *((1,) * (3 - features)), *((count,) * features))
        return local, cells, np.ravel_multi_index(tuple(at.T), sizes)

    def _moments(self, used: Integers, count: int) -> Floats:
        """(cells, P, ..) of the keys of these cells."""
        features, columns = self.key.shape[1], self.weight.shape[1]
        into = np.empty((len(used), *((1,) * (3 - features)), *((count,) * (features - 1)), count * columns))
        starts, stops, corner = self.starts[used], self.stops[used], (self.at[used] + self.first).astype(np.float64)

        def do(i: int, j: int) -> None:
            rows, panels = -(-(count ** (features - 1)) // 4) * 4, -(-count * columns // loops.LANES)
            room = np.ones((3, count)), np.zeros((SOME, rows)), np.zeros((panels, SOME, loops.LANES))
            sums = np.empty((panels, rows, loops.LANES))
            loops.add_moments(self.x, self.w, starts, stops, corner, WIDTH, into, *room, sums, i, j)

        each(len(used), 64, self.asked, do)
        return into.reshape(len(used), count, -1)

    def _swept(self, x: Floats, place: Integers, first: int, terms: Floats, wanted: Any) -> tuple[Floats, Any]:
        """One axis of ``x (rows, P, L)`` from sources to targets, at the end of the others: (rows, P, L), and where."""
        lines, many = wanted.shape
        count = x.shape[1]
        into, live = np.empty((lines * many, x.shape[2], count)), np.zeros(wanted.shape, bool)
        matrix = np.zeros((-(-count // 4) * 4, len(terms), count))
        matrix[:count] = terms[::-1].swapaxes(0, 1)
        matrix = matrix.reshape(len(matrix), -1)

        def do(i: int, j: int) -> None:
            room = np.zeros((len(place) * count, loops.LANES)), np.empty((len(matrix), loops.LANES))
            loops.sweep(x, place, first, matrix, wanted, into, live, *room, i, j)

        each(lines, max(lines // 64, 1), self.asked, do)
        return into.reshape(lines * many, count, -1), live

    def _evaluate(
        self, q: Floats, targets: Targets, local: Floats, cells: Integers, at: Integers, degree: int, axes: Integers,
        out: Floats, done: Any,
    ) -> None:  # fmt: skip
        starts, stops = targets.starts[cells], targets.stops[cells]
        corner, rows = (targets.at[cells] + self.first).astype(np.float64), targets.rows

        def do(i: int, j: int) -> None:
            room = np.ones((3, degree + 1, local.shape[-1])), np.empty((2, degree + 1, degree + 1))
            loops.evaluate(q, rows, starts, stops, corner, WIDTH, local, at, hermite(degree), axes, out, *room, i, j)
            for c in range(i, j):
                done[rows[starts[c] : stops[c]]] = True

        each(len(cells), 256, self.asked, do)


class Targets(NamedTuple):
    """Cells of queries: where, their queries rows[starts:stops], and the nanoseconds that a tree would take."""

    at: Integers
    rows: Integers
    starts: Integers
    stops: Integers
    pairs: Floats


def _terms(made: Table, features: int, columns: int) -> tuple[int, int]:
    """Multiplications for a cell along one axis, and for a key or query."""
    count = int(made.terms.shape[1])
    return len(made.terms) * count ** (features + 1) * columns, count**features * columns


def boxes(at: Integers, span: Integers, reach: int, room: int) -> Iterator[Integers]:
    """Cells at (T, D) in groups that fill their boxes well, or are not worth splitting, and have room with the keys."""
    todo = [np.arange(len(at))] if len(at) else []
    while todo:
        cells = todo.pop()
        low, high = at[cells].min(axis=0), at[cells].max(axis=0)
        sizes = high - low + 1
        axis = int(np.argmax(sizes))
        values = np.sort(at[cells, axis])
        gaps = np.diff(values)
        around = np.minimum(high + reach, span - 1) - np.maximum(low - reach, 0) + 1
        large = math.prod(int(n) for n in np.maximum(sizes, around)) > room and sizes[axis] > 1
        sparse = math.prod(int(n) for n in sizes) > 8 * len(cells) and sizes[axis] > 4 * reach
        if not large and not sparse and sizes[axis] <= SIDE and gaps.max(initial=0) <= 2 * reach:
            yield cells
            continue
        cut = values[int(np.argmax(gaps))] if gaps.max() > reach else (low[axis] + high[axis]) // 2
        before = at[cells, axis] <= cut
        todo += [cells[~before], cells[before]]
