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
ROOM = 32  # numbers of expansions that are held at once for each key
LEAST = 1 << 24  # numbers of expansions that may always be held
ALL, SAMPLE = 0.2, 4096  # nanoseconds of a pair where all are taken at once; keys of a sample
TERMS = 24  # at most, to a polynomial
VOLUME = 1 << 18  # cells, of a box
SOME = 64  # keys whose moments are taken at once
SHORT = 32  # cells without keys along an axis, on both sides of those with keys, that are told apart
LONG = 2.0**60  # so many, where all are


def why_not(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str | None:
    """Why these sums are not made here, or None."""
    return None if kernel is Gaussian and features in (2, 3) else ""


def why_dear(
    kernel: type[Kernel], parameters: tuple[float, ...], query: Floats, key: Floats, rtol: float
) -> str | None:
    """Why all pairs take less time, or None: by the cells of a sample, or by a tree, which is there for the others."""
    made, features = table(rtol, key.shape[1], 0), key.shape[1]
    each_cell, each_point = _terms(made, features, 2)
    held = len(np.unique(np.floor(key[:: -(-len(key) // SAMPLE)] / WIDTH), axis=0))
    terms = features * held * each_cell + (len(query) + len(key)) * each_point
    if terms * TERM < len(query) * len(key) * ALL:
        return None
    return tree.why_dear(kernel, parameters, query, key, rtol)


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
    time of a call 8 bytes times 64 more, or 256 MB; and what the tree takes, where it is needed.
    """

    def __init__(self, key: Floats, weight: Floats, rtol: float, asked: int | None) -> None:
        self.key, self.weight, self.rtol, self.asked = key, weight, rtol, asked
        self.count = 0  # of cells with keys
        cells = np.floor(key.T / WIDTH)
        if not len(key) or not (abs(cells) < 1e15).all():  # cells are not told apart there
            return
        for limit in (LONG, SHORT):
            self.axes = [Axis.of(c, limit) for c in cells]
            self.span = tuple(a.span for a in self.axes)
            if math.prod(n + 64 for n in self.span) < 1 << 62:
                break
        else:
            return
        code = np.ravel_multi_index([a(c) for a, c in zip(self.axes, cells, strict=True)], self.span)
        order = np.argsort(code, kind="stable")
        self.x, self.w, code = key[order], weight[order], code[order]
        self.starts = np.flatnonzero(np.diff(code, prepend=-1))
        self.stops = np.append(self.starts[1:], len(code))
        self.count = len(self.starts)
        self.mass = np.add.reduceat(abs(self.w), self.starts, axis=0)
        self.total = self.mass.sum(axis=0)
        self.at = np.stack(np.unravel_index(code[self.starts], self.span), axis=1)  # (cells, D)

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
            todo = list(boxes(targets.at, made.reach))
            while todo:
                cells = todo.pop()
                plan = self._plan(targets, cells, made)
                if plan is None:
                    continue
                if plan.rows > self._room(made) and len(plan.cells) > 1:
                    todo += halves(targets.at, plan.cells, first=True)
                    continue
                for v in range(columns):
                    self._evaluate(q, targets, plan, self._local(plan, made, v), degree, axes, out[:, :, v])
                for c in plan.cells:
                    done[targets.rows[targets.starts[c] : targets.stops[c]]] = True
        left = np.flatnonzero(~done)
        if len(left):
            shift[left], out[left] = self.tree.sums(query[left], degree)
        return shift, out

    def others(self, query: Floats, own: Integers) -> tuple[Floats, Floats]:
        """The sums without the key ``own (Q,)`` of each query."""
        return self.tree.others(query, own)

    def _room(self, made: Table) -> int:
        """How many expansions may be held."""
        return max(ROOM * len(self.key), LEAST) // int(made.terms.shape[1] ** self.key.shape[1])

    def _targets(self, q: Floats, made: Table) -> Targets:
        """The cells of queries that are worth an expansion."""
        reach, features = made.reach, q.shape[1]
        at = np.stack([a(np.floor(x / WIDTH)) for a, x in zip(self.axes, q.T, strict=True)], axis=1)
        rows = np.flatnonzero(((at >= -reach) & (at < np.array(self.span) + reach)).all(axis=1))
        at = at[rows]
        code = np.ravel_multi_index(tuple((at + reach).T), [n + 2 * reach for n in self.span])
        order = np.argsort(code, kind="stable")
        rows, code = rows[order], code[order]
        starts = np.flatnonzero(np.diff(code, prepend=-1))
        stops = np.append(starts[1:], len(code))
        at = at[order[starts]]
        pairs = (stops - starts) * self._near(at)
        each_cell, each_query = _terms(made, features, self.weight.shape[1])
        kept = pairs * PAIR > (features * each_cell + (stops - starts) * each_query) * TERM
        return Targets(at[kept], rows, starts[kept], stops[kept], pairs[kept] * PAIR)

    def _near(self, at: Integers) -> Integers:
        """About how many keys are near these cells: those of coarse cells around them."""
        span = [n // COARSE + 3 for n in self.span]
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

    def _plan(self, targets: Targets, cells: Integers, made: Table) -> Plan | None:
        """Of a box of target cells those whose expansion is good, if they are worth it."""
        features, columns = self.key.shape[1], self.weight.shape[1]
        at, reach, every = targets.at[cells], made.reach, range(self.key.shape[1])
        low, high = at.min(axis=0), at.max(axis=0)
        i, j = np.searchsorted(self.at[:, 0], (low[0] - reach, high[0] + reach + 1))  # they are sorted by this axis
        some = self.at[i:j]
        near = i + np.flatnonzero(((some >= low - reach) & (some <= high + reach)).all(axis=1))
        if not len(near):
            return None
        first, last = self.at[near].min(axis=0), self.at[near].max(axis=0)
        sizes, around = tuple(high - low + 1), tuple(last - first + 1)
        mass = np.zeros((*around, columns))
        mass[tuple((self.at[near] - first).T)] = self.mass[near]
        gaps = [np.arange(sizes[d])[:, None] - np.arange(around[d]) + (low - first)[d] + reach for d in every]
        inside = [(gap >= 0) & (gap <= 2 * reach) for gap in gaps]

        def summed(kernel: Floats) -> Floats:
            x = mass
            for d in every:
                matrix = np.where(inside[d], kernel[np.clip(gaps[d], 0, 2 * reach)], 0.0)
                x = np.moveaxis(np.tensordot(matrix, x, (1, d)), 0, d)
            return x

        most = summed(made.most)
        wrong = summed(made.most + made.wrong) - most + 1e-14 * most + made.beyond * self.total
        good = (wrong <= 0.9 * self.rtol * summed(made.least)).all(axis=-1)
        cells = cells[good[tuple((at - low).T)]]
        wanted = np.zeros(sizes)
        wanted[tuple((targets.at[cells] - low).T)] = 1
        needs = []
        for d in every:
            need = wanted
            for e in range(d + 1, features):
                need = np.moveaxis(np.tensordot(inside[e].T.astype(np.float64), need, (1, e)), 0, e)
            needs.append(np.transpose(need, (*range(d + 1, features), *range(d + 1))).reshape(-1, sizes[d]) > 0)
        each_cell, each_query = _terms(made, features, columns)
        swept = sum(n.sum() * min(len(made.terms), a) for n, a in zip(needs, around, strict=True)) / len(made.terms)
        keys = int((self.stops - self.starts)[near].sum())
        if targets.pairs[cells].sum() <= (swept * each_cell + keys * each_query) * TERM:
            return None
        return Plan(cells, near, low, first, sizes, around, needs, max(len(near), *(int(n.sum()) for n in needs)))

    def _local(self, plan: Plan, made: Table, column: int) -> Floats:
        """The expansions of a plan's cells (cells, P0, P1, P2), in the order of its box."""
        features, count = self.key.shape[1], made.terms.shape[1]
        x, place = self._moments(plan.near, count, column), np.full(plan.around, -1)
        place[tuple((self.at[plan.near] - plan.first).T)] = np.arange(len(plan.near))
        for d, need in enumerate(plan.needs):
            rows = np.where(need, np.cumsum(need).reshape(need.shape) - 1, -1)
            x, live = self._swept(x, place.reshape(plan.around[d], -1), int((plan.low - plan.first)[d]), made, rows)
            place = np.where(live, rows, -1).reshape(*plan.around[d + 1 :], *plan.sizes[: d + 1])
        return x.reshape(-1, *((1,) * (3 - features)), *((count,) * features))

    def _moments(self, used: Integers, count: int, column: int) -> Floats:
        """(cells, P, ..) of the keys of these cells."""
        features = self.key.shape[1]
        into = np.empty((len(used), *((1,) * (3 - features)), *((count,) * features)))
        starts, stops, corner = self.starts[used], self.stops[used], np.floor(self.x[self.starts[used]] / WIDTH)
        w = np.ascontiguousarray(self.w[:, column])

        def do(i: int, j: int) -> None:
            rows, panels = -(-(count ** (features - 1)) // 4) * 4, -(-count // loops.LANES)
            room = np.ones((3, count)), np.zeros((SOME, rows)), np.zeros((panels, SOME, loops.LANES))
            sums = np.empty((panels, rows, loops.LANES))
            loops.add_moments(self.x, w, starts, stops, corner, WIDTH, into, *room, sums, i, j)

        each(len(used), 64, self.asked, do)
        return into.reshape(len(used), count, -1)

    def _swept(self, x: Floats, place: Integers, first: int, made: Table, rows: Integers) -> tuple[Floats, Any]:
        """One axis of ``x (cells, P, L)`` from sources to targets, at the end of the others: those rows, and where."""
        lines, count, terms = len(rows), x.shape[1], made.terms
        into, live = np.zeros((rows.max(initial=-1) + 1, x.shape[2], count)), np.zeros(rows.shape, bool)
        matrix = np.zeros((-(-count // 4) * 4, len(terms), count))
        matrix[:count] = terms[::-1].swapaxes(0, 1)
        matrix = matrix.reshape(len(matrix), -1)

        def do(i: int, j: int) -> None:
            room = np.zeros((len(place) * count, loops.LANES)), np.empty((len(matrix), loops.LANES))
            loops.sweep(x, place, first, matrix, rows, into, live, *room, i, j)

        each(lines, max(lines // 64, 1), self.asked, do)
        return into.reshape(len(into), count, -1), live

    def _evaluate(
        self, q: Floats, targets: Targets, plan: Plan, local: Floats, degree: int, axes: Integers, out: Floats
    ) -> None:
        starts, stops = targets.starts[plan.cells], targets.stops[plan.cells]
        corner = np.floor(q[targets.rows[starts]] / WIDTH)
        place = np.ravel_multi_index(tuple((targets.at[plan.cells] - plan.low).T), plan.sizes)
        place = (np.cumsum(plan.needs[-1]) - 1)[place]

        def do(i: int, j: int) -> None:
            room = np.ones((3, degree + 1, local.shape[-1])), np.empty((2, degree + 1, degree + 1))
            given = WIDTH, local, place, hermite(degree), axes, out
            loops.evaluate(q, targets.rows, starts, stops, corner, *given, *room, i, j)

        each(len(starts), 256, self.asked, do)


class Axis(NamedTuple):
    """Cells along an axis by small numbers: where there is no key for long, it is made shorter."""

    known: Floats  # cells from which one counts
    number: Floats  # of those
    limit: float  # cells that are told apart on both sides of those
    span: int

    @classmethod
    def of(cls, cells: Floats, limit: float) -> Axis:
        known = np.unique(cells) if limit < LONG else np.array([cells.min()])
        number = np.append(0.0, np.cumsum(np.minimum(np.diff(known), 2 * limit)))
        return cls(known, number, limit, int(number[-1] + min(cells.max() - known[-1], limit)) + 1)

    def __call__(self, cells: Floats) -> Integers:
        i = np.maximum(np.searchsorted(self.known, cells, side="right") - 1, 0)
        j = np.minimum(i + 1, len(self.known) - 1)
        after, before = cells - self.known[i], cells - self.known[j]
        near = (after > self.limit) & (before >= -self.limit) & (before < 0)
        found = np.where(near, self.number[j] + before, self.number[i] + np.clip(after, -self.limit, self.limit))
        return found.astype(np.int64)


class Targets(NamedTuple):
    """Cells of queries: where, their queries rows[starts:stops], and the nanoseconds that a tree would take."""

    at: Integers
    rows: Integers
    starts: Integers
    stops: Integers
    pairs: Floats


class Plan(NamedTuple):
    """A box of target cells and the cells of keys around it."""

    cells: Integers  # the targets that are good
    near: Integers  # the cells of keys
    low: Integers  # the corner of the targets' box
    first: Integers  # that of the keys'
    sizes: tuple[int, ...]
    around: tuple[int, ...]
    needs: list[Any]  # for each axis (lines, targets along it), what those after it need
    rows: int  # expansions that are held at once, at most


def _terms(made: Table, features: int, columns: int) -> tuple[int, int]:
    """Multiplications for a cell along one axis, and for a key or query."""
    count = int(made.terms.shape[1])
    return len(made.terms) * count ** (features + 1) * columns, count**features * columns


def boxes(at: Integers, reach: int) -> Iterator[Integers]:
    """Cells at (T, D) in groups that fill their boxes well, or are not worth splitting."""
    todo: list[Integers] = [np.arange(len(at))] if len(at) else []
    while todo:
        cells = todo.pop()
        sizes = np.ptp(at[cells], axis=0) + 1
        volume, side = math.prod(int(n) for n in sizes), sizes.max()
        gap = np.diff(np.sort(at[cells, np.argmax(sizes)])).max(initial=0)
        if volume > VOLUME or (side > 4 * reach and volume > 8 * len(cells)) or gap > 2 * reach:
            todo += halves(at, cells)
        else:
            yield cells


def halves(at: Integers, cells: Integers, first: bool = False) -> list[Integers]:
    """Cells on both sides of the largest gap of the longest axis, or of its middle if there is none.

    Preferably of the first axis, where sums do not repeat what the others share.
    """
    sizes = np.ptp(at[cells], axis=0)
    axis = 0 if first and sizes[0] > 4 else int(np.argmax(sizes))
    values = np.sort(at[cells, axis])
    gaps = np.diff(values)
    cut = values[np.argmax(gaps)] if gaps.max() > 1 else (values[0] + values[-1]) // 2
    return [cells[at[cells, axis] > cut], cells[at[cells, axis] <= cut]]
