"""One to three dimensions: kernels with heavy tails, or rough at 0, by expansions in a hierarchy of cells."""

from __future__ import annotations

import math
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numpy.polynomial import chebyshev

from regard.compiled import compiling, maths
from regard.engines.lowdim import multipole_loops as loops
from regard.engines.lowdim import tree
from regard.engines.lowdim.line import each
from regard.engines.lowdim.sources import Floats, Integers
from regard.scores.base import Kernel

DIMENSIONS = 3
PAIR, TERM, VISIT = 0.8, 0.12, 150.0  # nanoseconds of a pair, of a product in an expansion, of two cells looked at
DEGREES = (26, 20, 12)  # of an expansion, at most, by the dimension
DEEPEST = 50  # levels: cells are told apart by their places, which are whole numbers
FACTOR = 4.0  # of the error in one of two cells, which is measured: a bound of that in both, 3.6 where both were
OUTSIDE = 4  # roots beside that of the keys, in which queries have cells of their own
POINT = 4.0  # nanoseconds of a term of the expansion at a point
ERROR = 0.4  # of the tolerance, for what is expanded, and as much for what is left out
USUAL = 0.5  # of the terms of an expansion, between cells that are not next to next
FAINT = 1e-30  # a weight sum below which what is small beside it may be lost
PAIRS = 1 << 20  # numbers that are held at once
KEPT = 1 << 24  # numbers of matrices that may always be kept
SPAN = 1 << 20  # places that are counted rather than sorted


def why_not(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str | None:
    """Why these sums are not made here, or None."""
    if kernel.tail not in ("exponential", "power"):
        return ""
    if features > DIMENSIONS:
        return f"expansions of the kernel {kernel.__name__} are of 1 to {DIMENSIONS} dimensions, not of {features}"
    return None


def why_dear(
    kernel: type[Kernel], parameters: tuple[float, ...], query: Floats, key: Floats, rtol: float
) -> str | None:
    """Why all pairs take less time, or None: by the cells that halve the work, or by a tree where tails fall fast."""
    features, all_pairs = key.shape[1], PAIR * len(query) * len(key)
    terms = len(basis(kernel, parameters, features, ERROR * rtol / 2).powers)  # type: ignore[arg-type]
    through = 2 * (USUAL * terms) ** 2 * TERM
    cells = max(math.sqrt(all_pairs / (4**features * through)), 1.0)
    near = (6 if kernel.tail == "power" else 12) ** features
    cost = (
        all_pairs * 3**features / cells + cells * min(near, cells) * through + (len(query) + len(key)) * POINT * terms
    )
    if cost < all_pairs:
        return None
    if kernel.tail != "power":
        return tree.why_dear(kernel, parameters, query, key, rtol)
    return f"expansions of so many terms, {terms}, cost more than all pairs at once"


def prepare(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    asked: int | None = None,
) -> Multipole:
    """The keys in cells. A pooled value is the ratio of two sums, and may be off by the errors of both."""
    return Multipole(kernel, parameters, key, weight, rtol / 2, asked)


class Cells(NamedTuple):
    """Cells of one level: the points starts to stops of each, and where it is, in widths from the lowest key."""

    starts: Integers
    stops: Integers
    at: Integers  # (cells, D)
    first: Integers  # its first child in the next level
    children: Integers  # how many; 0 for a leaf

    @property
    def counts(self) -> Integers:
        return self.stops - self.starts


class Multipole:
    """Sums of a radial kernel over a hierarchy of cells: a fast multipole method that asks only for kernel values.

        sum_j w_j K(|q - k_j|) = sum_a T_a(q) sum_cells sum_b M_ab(t - s) A_b,   A_b = sum w T_b(k)

    T are products of Chebyshev polynomials of the offset in a cell (see ``Basis``); M interpolates the kernel at
    Chebyshev points of both cells. Its error is measured, for each width of cells and each distance. Of two
    cells of a width, the sums of one over the other are expanded if that error is within the tolerance; left out, if
    the largest weight is; taken pair by pair, if they are few; else put off to their children.

    Memory: 8 bytes times (2 dimensions + columns + 3) for each key and each query while they are sorted, and expansions
    of the cells. Measured, for two columns and all of it: 190 MB for a million of each on a line, 310 MB in the plane,
    390 MB for a million keys and 100,000 queries in space.

    References
    ----------
    Fong & Darve (2009), The black-box fast multipole method, Journal of Computational Physics 228, section 3: the
    interpolation is eq. 8 and 9, moments (1), their transfer (2, 3) and local expansions (4) are eq. 11 to 14.
    """

    def __init__(
        self,
        kernel: type[Kernel],
        parameters: tuple[float, ...],
        key: Floats,
        weight: Floats,
        rtol: float,
        asked: int | None = None,
    ) -> None:
        self.kernel, self.parameters, self.rtol, self.asked = kernel, parameters, rtol, asked
        self.given, self.made = (key, weight), dict[tuple[float, int, tuple[int, ...]], Floats]()
        self.error = ERROR * rtol
        features, columns = key.shape[1], weight.shape[1]
        self.basis = basis(kernel, parameters, features, self.error)  # type: ignore[arg-type]  # frozen classes
        terms = len(self.basis.powers) * USUAL
        self.through = terms * (terms * TERM + 1.0) * columns + VISIT  # nanoseconds of an expansion into another
        self.few = int(2**features * math.sqrt(self.through / PAIR)) + 8  # keys that are not worth splitting
        self.count, self.order = len(key), np.arange(len(key))
        if not len(key):
            return
        x = key.astype(np.float64, order="C")
        low = x.min(axis=0)
        wide = max(float((x.max(axis=0) - low).max()), float(np.finfo(np.float64).tiny), 1e-15 * float(abs(x).max()))
        # powers of two, so that corners of cells are exact, and so are places in a cell
        self.width = 2.0 ** math.ceil(math.log2(wide) + 0.01)
        self.low = np.floor(low / (self.width / 512)) * (self.width / 512)
        self.levels: list[Cells] = []
        none = np.zeros(1, np.int64)
        cells = Cells(none, none + len(key), np.zeros((1, features), np.int64), none, none)
        room = rooms(x)
        for level in range(DEEPEST + 1):
            some = np.flatnonzero((cells.counts > self.few) & (level < DEEPEST))
            some = some[self._differ(x, cells, some)]
            cells, below = self._split(x, self.order, cells, some, level, room)
            self.levels.append(cells)
            if not len(some):
                break
            cells = below
        del room
        self.single = np.ones(len(x), bool)
        self.x, self.w = np.ascontiguousarray(x.T), np.ascontiguousarray(weight[self.order].T, dtype=np.float64)
        for n, cells in enumerate(self.levels):  # keys of a leaf that are all the same become one
            large = np.flatnonzero((cells.children == 0) & (cells.counts > self.few))
            stops = cells.stops.copy()
            for c in large[~self._differ(x, cells, large)]:
                i = cells.starts[c]
                self.w[:, i], self.w[:, i + 1 : stops[c]] = self.w[:, i : stops[c]].sum(axis=1), 0.0
                self.single[i : stops[c]] = False
                stops[c] = i + 1
            self.levels[n] = cells._replace(stops=stops)
        self._mass()
        self._moments(x)

    def _differ(self, x: Floats, cells: Cells, some: Integers) -> Any:
        """Whether there are different points in these cells."""
        found = np.zeros(len(some), bool)
        loops.differ(x, cells.starts[some], cells.stops[some], found)
        return found

    def _split(
        self, x: Floats, order: Integers, cells: Cells, some: Integers, level: int, room: tuple[Any, ...]
    ) -> tuple[Cells, Cells]:
        """The cells with their children, and those; some are split."""
        features = x.shape[1]
        starts, stops = cells.starts[some], cells.stops[some]
        counts = np.zeros((len(some), 1 << features), np.int64)
        scale = 2.0 ** (level + 1) / self.width

        def do(i: int, j: int) -> None:
            begin = np.empty(1 << features, np.int64)
            loops.split(x, order, starts, stops, self.low, scale, counts, *room, begin, i, j)

        each(len(some), max(len(some) // 64, 1), self.asked, do)
        parent, child = np.nonzero(counts)
        first, children = np.zeros((2, len(cells.starts)), np.int64)
        children[some] = (counts > 0).sum(axis=1)
        first[some] = np.cumsum(children[some]) - children[some]
        end = (starts[:, None] + np.cumsum(counts, axis=1))[parent, child]
        bits = child[:, None] >> np.arange(features)[::-1] & 1
        none = np.zeros(len(parent), np.int64)
        below = Cells(end - counts[parent, child], end, 2 * cells.at[some[parent]] + bits, none, none)
        return cells._replace(first=first, children=children), below

    def _corners(self, cells: Cells, level: int) -> Floats:
        corners: Floats = self.low + cells.at * (self.width / 2.0**level)
        return corners

    def _mass(self) -> None:
        """The logarithms of the sums of |w| in each cell, from below."""
        self.mass: list[Floats] = []
        for cells in reversed(self.levels):
            mass, leaves = np.zeros((len(cells.starts), len(self.w))), np.flatnonzero(cells.children == 0)
            ends = np.stack([cells.starts[leaves], cells.stops[leaves]], axis=1).reshape(-1)
            for v, w in enumerate(self.w):
                mass[leaves, v] = np.add.reduceat(np.append(abs(w), 0.0), ends)[::2] if len(ends) else 0.0
            some = np.flatnonzero(cells.children)
            if len(some):
                mass[some] = np.add.reduceat(self.mass[-1], cells.first[some], axis=0)
            self.mass.append(mass)
        self.mass.reverse()

    def _moments(self, x: Floats) -> None:
        """(cells, C, P) for each level, from below."""
        b, self.moments = self.basis, list[Floats]()
        for level in reversed(range(len(self.levels))):
            cells = self.levels[level]
            into = np.zeros((len(cells.starts), len(self.w), len(b.powers)))
            leaves, corner = np.flatnonzero(cells.children == 0), self._corners(cells, level)
            scale = 2.0 ** (level + 1) / self.width

            def do(i: int, j: int) -> None:
                given = x, self.w, cells.starts, cells.stops, scale, corner, *b.runs  # noqa: B023
                loops.add_moments(*given, into, *b.room(len(self.w)), leaves, i, j)  # noqa: B023

            each(len(leaves), max(len(leaves) // 64, 1), self.asked, do)
            some = np.flatnonzero(cells.children)
            if len(some):
                below = self.levels[level + 1]
                parent = np.repeat(some, cells.children[some])
                self._shift(self.moments[-1], np.arange(len(parent)), into, parent, below.at & 1, up=True)
            self.moments.append(into)
        self.moments.reverse()

    def _shift(
        self, source: Floats, sources: Integers, into: Floats, targets: Integers, bits: Integers, up: bool
    ) -> None:
        """Expansions from children to parents, or back; bits (children, D) say where a child is."""
        code = bits @ (1 << np.arange(bits.shape[1])[::-1])
        plain = np.arange(source.shape[2]), np.ones(source.shape[2])
        for child, matrix in enumerate(self.basis.shifts):
            rows = np.flatnonzero(code == child)
            made = padded(matrix.T if up else matrix)
            a, b = sources[rows], targets[rows]

            def do(i: int, j: int) -> None:
                room = np.zeros((matrix.shape[0], loops.LANES)), np.empty((len(made), loops.LANES))  # noqa: B023
                loops.add_through(made, *plain, source, a, into, b, *room, i, j)  # noqa: B023

            each(len(rows), 512, self.asked, do)

    def sums(self, query: Floats, degree: int = 0) -> tuple[Floats, Floats]:
        """See ``Sources``. Of a degree above 0 from the nearest keys outwards, by a tree."""
        if degree or not self.count or not len(query):
            return self.tree.sums(query, degree)
        return self._sums(query, None)

    def others(self, query: Floats, own: Integers) -> tuple[Floats, Floats]:
        """The sums without the key ``own (Q,)`` of each query."""
        shift, out = np.zeros(len(query)), np.zeros((len(query), 1, len(self.w)))
        place = np.empty(self.count, np.int64)
        place[self.order] = np.arange(self.count)
        met = (query == self.given[0][own]).all(axis=1) & self.single[place[own]]  # in the cell of their own keys
        for rows in (np.flatnonzero(met), np.flatnonzero(~met)):
            if len(rows):
                sums = self._sums if met[rows[0]] else self.tree.others
                shift[rows], out[rows] = sums(query[rows], own[rows])
        return shift, out

    @cached_property
    def tree(self) -> tree.Tree:
        """For what expansions do not serve."""
        return tree.Tree(self.kernel, self.parameters, *self.given, self.rtol, self.asked)

    def _sums(self, query: Floats, own: Integers | None) -> tuple[Floats, Floats]:
        q = np.array(query, np.float64, order="C")
        shift, out = np.zeros(len(q)), np.zeros((len(q), 1, len(self.w)))
        with np.errstate(over="ignore"):
            place = np.floor((q - self.low) / self.width)
        near = (abs(place) <= OUTSIDE).all(axis=1)
        left = np.ones(len(q), bool)
        far = np.flatnonzero(~near)
        if len(far) and self._smooth_afar():
            shift[far], out[far, 0] = self._afar(q[far])
            left[far] = False
        rows = np.flatnonzero(near)
        if len(rows):
            spans = 2 * OUTSIDE + 1
            code = np.ravel_multi_index(tuple((place[rows].astype(np.int64) + OUTSIDE).T), (spans,) * q.shape[1])
            at = np.argsort(code, kind="stable")
            rows, code = rows[at], code[at]
            starts = np.flatnonzero(np.diff(code, prepend=-1))
            roots = place[rows[starts]].astype(np.int64)
            none = np.zeros(len(starts), np.int64)
            cells = Cells(starts, np.append(starts[1:], len(rows)), roots, none, none)
            hidden = np.full(len(rows), -1)
            if own is not None:
                places = np.empty(len(self.order), np.int64)
                places[self.order] = np.arange(len(self.order))
                hidden = places[own[rows]]
            found = np.zeros((len(rows), len(self.w)))
            order = self._descend(q[rows], hidden, cells, found, own is not None)
            out[rows[order], 0] = found
            left[rows[order]] = ~(found[:, 0] > FAINT)
        rest = np.flatnonzero(left)
        if len(rest):
            shift[rest], out[rest] = self.tree.sums(q[rest]) if own is None else self.tree.others(q[rest], own[rest])
        return shift, out

    def _smooth_afar(self) -> bool:
        """Whether an expansion about all keys serves queries that are far from them."""
        b = self.basis
        at = np.zeros((1, len(self.low)), np.int64)
        at[0, -1] = OUTSIDE
        _, ratio = b.errors(self.kernel, self.parameters, self.width, at)
        return self.kernel.tail == "power" and bool(ratio[0] <= self.error)

    def _afar(self, q: Floats) -> tuple[Floats, Floats]:
        """shift (Q,) and sums (Q, C) from the moments of all keys."""
        b = self.basis
        weight = b.analysis.T @ self.moments[0][0].T  # (p^D, C)
        node = self.low + self.width * (1 + b.nodes) / 2
        shift, out = np.empty(len(q)), np.empty((len(q), weight.shape[1]))
        tall = max(PAIRS // len(node), 1)
        for i in range(0, len(q), tall):
            u = np.square(q[i : i + tall, None] - node).sum(axis=2)
            s = np.asarray(self.kernel.formula(np, u, *self.parameters))
            shift[i : i + tall] = top = s.max(axis=1)
            out[i : i + tall] = np.exp(s - top[:, None]) @ weight
        return shift, out

    def _descend(self, q: Floats, own: Integers, roots: Cells, out: Floats, alone: bool) -> Integers:
        """out (Q, C): level by level, from large cells to small ones. Queries are put in an order, which is returned.

        Where ``alone``, no cell of keys is expanded in itself, so that each query meets its own key, and is told apart.
        """
        features, columns, b, log_error = q.shape[1], len(self.w), self.basis, math.log(self.error)
        cells, order, room = roots, np.arange(len(q)), rooms(q)
        with np.errstate(divide="ignore"):
            total = np.log(self.mass[0][0])
        there = total > -np.inf
        targets: Integers = np.arange(len(cells.starts))
        sources: Integers = np.zeros(len(cells.starts), np.int64)
        settled = np.full((len(targets), columns), -np.inf)  # the logarithms of what sums are known to be at least
        local, held = np.zeros((len(targets), columns, len(b.powers))), np.zeros(len(targets), bool)
        direct: list[tuple[Integers, ...]] = []
        for level, keys in enumerate(self.levels):
            gap, width = cells.at[targets] - keys.at[sources], self.width / 2.0**level
            offsets, kind = distinct(np.sort(abs(gap), axis=1))
            with np.errstate(all="ignore"):
                least, most = b.range(self.kernel, self.parameters, width, offsets)
                wrong, ratio = (np.log(e) for e in b.errors(self.kernel, self.parameters, width, offsets))
                sums = np.log(self.mass[level])[sources] + least[kind, None]
                if alone:  # the own key may be most of what is there
                    sums[(gap == 0).all(axis=1)] = -np.inf
                lower = added(settled, targets, sums) - total
            allowed = log_error + lower[:, there].min(axis=1, initial=np.inf)[targets]  # for each unit of mass
            pairs = cells.counts[targets] * keys.counts[sources] * PAIR
            live = most[kind] > allowed
            expand = live & ((ratio <= log_error)[kind] | (wrong[kind] <= allowed)) & (pairs > self.through)
            if alone:
                expand &= (gap != 0).any(axis=1)
            one = live & ~expand & ((keys.children[sources] == 0) | (pairs < 4**features * self.through))
            rest = np.flatnonzero(live & ~expand & ~one)
            some = np.flatnonzero(expand)
            if len(some):
                held[targets[some]] = True
                asked = np.full(len(offsets), np.inf)
                np.minimum.at(asked, kind[some], allowed[some])
                degrees = self._degrees(width, offsets, asked)
                self._expand(width, offsets, degrees, kind[some], gap[some], targets[some], sources[some], local)
            if one.any():
                s, t = sources[one], targets[one]
                direct.append((t, cells.starts[t], cells.stops[t], keys.starts[s], keys.stops[s]))
            split = np.unique(targets[rest])
            held_here = held.copy()
            held_here[split] = False
            self._evaluate(q, cells, level, local, np.flatnonzero(held_here), out)
            if not len(rest):
                break
            done = np.flatnonzero(expand | one)
            settled = added(settled, targets[done], sums[done])
            cells, below = self._split(q, order, cells, split, level, room)
            parent = np.repeat(split, cells.children[split])
            known = np.flatnonzero(held[parent])
            passed = np.zeros((len(parent), *local.shape[1:]))
            self._shift(local, parent[known], passed, known, below.at[known] & 1, up=False)
            local, held, settled = passed, held[parent], settled[parent]
            # each child of a target with each child of its sources
            of, child = spread(keys.first[sources[rest]], keys.children[sources[rest]])
            of = targets[rest][of]
            begin = np.searchsorted(of, parent)
            targets, at = spread(begin, np.searchsorted(of, parent, side="right") - begin)
            cells, sources = below, child[at]
        self._pairwise(q, own[order], direct, out)
        return order

    def _expand(
        self,
        width: float,
        offsets: Integers,
        degrees: Integers,
        kind: Integers,
        gap: Integers,
        targets: Integers,
        sources: Integers,
        local: Floats,
    ) -> None:
        """Moments of cells of keys into expansions in cells of queries, by the place of one to the other."""
        signed, group = distinct(gap)
        order = np.argsort(group, kind="stable")
        begin = np.append(np.flatnonzero(np.diff(group[order], prepend=-1)), len(order))
        kind, targets, sources = kind[order], targets[order], sources[order]
        matrices = {
            int(k): self._matrix(width, int(degrees[k]), tuple(int(n) for n in offsets[k])) for k in np.unique(kind)
        }
        made = [
            (matrices[int(kind[i])], *polynomials(int(degrees[kind[i]]), len(self.low)).turned(signed[n]))
            for n, i in enumerate(begin[:-1])
        ]
        moments = self.moments[round(math.log2(self.width / width))]
        size = max(len(local) // 32, 64)

        def do(first: int, last: int) -> None:
            for n, (matrix, place, sign) in enumerate(made):
                room = np.zeros((matrix.shape[1], loops.LANES)), np.empty((len(matrix), loops.LANES))
                t, s = targets[begin[n] : begin[n + 1]], sources[begin[n] : begin[n + 1]]
                i, j = np.searchsorted(t, (first, last))
                if i < j:
                    loops.add_through(matrix, place, sign, moments, s, local, t, *room, i, j)

        each(len(local), size, self.asked, do)

    def _degrees(self, width: float, offsets: Integers, allowed: Floats) -> Integers:
        """For each distance of cells the fewest polynomials, by their degree, whose error would do."""
        found = np.full(len(offsets), self.basis.count)
        some = np.flatnonzero(allowed < np.inf)
        for count in range(self.basis.count - 1, 3, -1 if offsets.shape[1] < DIMENSIONS else -2):
            wrong, ratio = polynomials(count, offsets.shape[1]).errors(
                self.kernel, self.parameters, width, offsets[some]
            )
            with np.errstate(divide="ignore"):
                some = some[(ratio <= self.error) | (np.log(wrong) <= allowed[some])]
            found[some] = count
            if not len(some):
                break
        return found

    def _matrix(self, width: float, degree: int, offset: tuple[int, ...]) -> Floats:
        """From moments to an expansion. Kept for other queries, as long as that is little beside the keys."""
        name = width, degree, offset
        if name in self.made:
            return self.made[name]
        basis = polynomials(degree, len(offset))
        found = padded(basis.matrix(self.kernel, self.parameters, width, offset))
        if (len(self.made) + 1) * found.size <= max(self.count, KEPT):
            self.made[name] = found
        return found

    def _evaluate(self, q: Floats, cells: Cells, level: int, local: Floats, some: Integers, out: Floats) -> None:
        corner, b = self._corners(cells, level), self.basis

        def do(i: int, j: int) -> None:
            given = 2.0 ** (level + 1) / self.width, corner, *b.runs, local, out
            loops.evaluate(q, cells.starts, cells.stops, *given, *b.room(len(self.w)), some, i, j)

        each(len(some), max(len(some) // 64, 1), self.asked, do)

    def _pairwise(self, q: Floats, own: Integers, direct: list[tuple[Integers, ...]], out: Floats) -> None:
        """Pair by pair, level after level: cells of one level share no queries."""
        p, add = np.array(self.parameters, np.float64), summer(self.kernel, len(self.parameters))
        for targets, first, last, start, stop in direct:
            begin = np.flatnonzero(np.diff(targets, prepend=-1))
            first, last, begin = first[begin], last[begin], np.append(begin, len(targets))

            def do(i: int, j: int) -> None:
                given = q, own, first, last, begin, start, stop  # noqa: B023
                add(*given, self.x, self.w, p, out, np.empty(loops.CHUNK), i, j)

            each(len(first), max(len(first) // 256, 1), self.asked, do)


def rooms(x: Floats) -> tuple[Floats, Integers, Integers]:
    """Room to put points in another order."""
    return np.empty_like(x), np.empty(len(x), np.int64), np.empty(len(x), np.int64)


def added(base: Floats, at: Integers, logs: Floats) -> Floats:
    """log(exp(base) + sums of exp(logs) for each place), in a new array; places (n,) are in order."""
    found = base.copy()
    begin = np.flatnonzero(np.diff(at, prepend=-1))
    if len(begin):
        top = np.maximum.reduceat(logs, begin, axis=0)
        top[top == -np.inf] = 0.0
        e = np.exp(logs - np.repeat(top, np.diff(np.append(begin, len(at))), axis=0))
        with np.errstate(divide="ignore"):
            found[at[begin]] = np.logaddexp(found[at[begin]], top + np.log(np.add.reduceat(e, begin, axis=0)))
    return found


def spread(first: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """n and first[n] + 0, 1, .. counts[n] - 1, for each n."""
    of = np.repeat(np.arange(len(first)), counts)
    return of, np.arange(len(of)) + np.repeat(first - np.cumsum(counts) + counts, counts)


def distinct(rows: Integers) -> tuple[Integers, Integers]:
    """The different rows (n, D), and which of them each one is."""
    low = rows.min(axis=0)
    sizes = rows.max(axis=0) - low + 1
    if float(np.prod(sizes.astype(np.float64))) > SPAN:
        found, inverse = np.unique(rows, axis=0, return_inverse=True)
        return found, inverse.reshape(-1)
    code = np.ravel_multi_index(tuple((rows - low).T), tuple(sizes))
    codes = np.flatnonzero(np.bincount(code))
    number = np.empty(int(np.prod(sizes)), np.int64)
    number[codes] = np.arange(len(codes))
    return np.stack(np.unravel_index(codes, tuple(sizes)), axis=1) + low, number[code]


def padded(matrix: Floats) -> Floats:
    """With rows of zeros up to a multiple of 8."""
    return np.ascontiguousarray(np.pad(matrix, ((0, -len(matrix) % 8), (0, 0))))


class Basis:
    """Products of Chebyshev polynomials, and the points that interpolate them.

    Those with degrees in a ball, the root of the sum of their squares below ``count`` - 1/2: Trefethen (2017),
    Multivariate polynomial approximation in the hypercube.
    """

    def __init__(self, count: int, features: int) -> None:
        self.count = count
        inside = (p for p in np.ndindex(*(count,) * features) if sum(n * n for n in p) < (count - 0.5) ** 2)
        powers: list[tuple[int, ...]] = sorted(
            inside, key=lambda p: (sum(n * n for n in p), p)
        )  # a smaller ball is their beginning
        self.number = {p: n for n, p in enumerate(powers)}
        self.powers = np.array(powers)
        self.node = np.cos(np.pi * (np.arange(count) + 0.5) / count)
        self.series = chebyshev.chebvander(self.node, count - 1).T * 2 / count  # from values at the points, on an axis
        self.series[0] /= 2
        self.nodes = grid(self.node, features)
        self.analysis = self._products([self.series] * features)  # (P, p^D)
        edge = np.unique(np.append(np.cos(np.pi * np.array([0, 1, count // 2, count]) / count), 0.0))
        self.seen = np.concatenate([grid(edge, features), self.nodes[:1]])
        middles = grid(np.array([-1.0, 0.0, 1.0]), features)
        self.sources = np.concatenate([middles[middles[:, -1] == 1], np.zeros((1, features)), self.nodes[:1]])
        self.carry = self.analysis.T @ self.at(self.seen).T  # from values at the points to those of the polynomial

    def _products(self, tables: list[Floats]) -> Floats:
        """(P, N1 N2 ..): the products of rows (p, N) for each axis."""
        found = np.ones((len(self.powers), 1))
        for d, t in enumerate(tables):
            found = (found[:, :, None] * t[self.powers[:, d], None, :]).reshape(len(found), -1)
        return found

    def at(self, x: Floats) -> Floats:
        """The polynomials (N, P) at points (N, D)."""
        found = np.ones((len(x), len(self.powers)))
        for d in range(x.shape[1]):
            found *= chebyshev.chebvander(x[:, d], self.count - 1)[:, self.powers[:, d]]
        return found

    @cached_property
    def shifts(self) -> list[Any]:
        """For each child the matrix (P, P) from an expansion of its parent to its own."""
        halves = [self.series @ chebyshev.chebvander((self.node + side) / 2, self.count - 1) for side in (-1, 1)]
        found = []
        for child in np.ndindex(*(2,) * self.powers.shape[1]):
            made = np.ones((len(self.powers),) * 2)
            for d, bit in enumerate(child):
                made *= np.tril(halves[bit].T).T[self.powers[:, None, d], self.powers[:, d]]
            found.append(made)
        return found

    def turned(self, gap: Integers) -> tuple[Integers, Floats]:
        """Where each polynomial goes, and its sign, if axes are turned so that a gap has no sign and is in order."""
        axes = np.argsort(abs(gap), kind="stable")
        place = np.array([self.number[tuple(p)] for p in self.powers[:, axes].tolist()])
        return place, np.where((self.powers[:, gap < 0].sum(axis=1) & 1) == 1, -1.0, 1.0)

    @cached_property
    def runs(self) -> tuple[Integers, Integers, Integers]:
        """In another order, all but the last of their degrees, how many last degrees those have, and where they are."""
        place = np.lexsort(self.powers.T[::-1])
        heads, lengths = np.unique(self.powers[:, :-1], axis=0, return_counts=True)
        return np.ascontiguousarray(heads), lengths, place

    def room(self, columns: int) -> tuple[Floats, Floats, Floats]:
        """For the values of polynomials at a point, and for expansions."""
        features, terms = self.powers.shape[1], len(self.powers)
        return np.empty((features, max(self.count, 2))), np.empty(terms), np.empty((columns, terms))

    def matrix(
        self, kernel: type[Kernel], parameters: tuple[float, ...], width: float, offset: tuple[int, ...]
    ) -> Floats:
        """(P, P): the kernel between two cells, target and source."""
        p, features = self.count, len(offset)
        u = np.zeros((p,) * (2 * features))
        for d, n in enumerate(offset):
            gap = np.square(width * (n + (self.node[:, None] - self.node) / 2))
            u += gap.reshape([p if a % features == d else 1 for a in range(2 * features)])
        k = weights(kernel, parameters, u)
        for _ in range(2 * features):  # one axis after the other, each to the end
            k = k.reshape(p, -1).T @ self.series.T
        places = np.ravel_multi_index(tuple(self.powers.T), (p,) * features)
        found: Floats = k.reshape(p**features, -1)[np.ix_(places, places)]
        return found

    def range(
        self, kernel: type[Kernel], parameters: tuple[float, ...], width: float, offsets: Integers
    ) -> tuple[Floats, Floats]:
        """The least and the largest score between cells."""
        far = np.square(width * (offsets + 1.0)).sum(axis=1) * (1 + 1e-14)
        near = np.square(width * np.maximum(offsets - 1.0, 0.0)).sum(axis=1) * (1 - 1e-14)
        return tuple(np.asarray(kernel.formula(np, u, *parameters)) for u in (far, near))  # type: ignore[return-value]

    def errors(
        self, kernel: type[Kernel], parameters: tuple[float, ...], width: float, offsets: Integers
    ) -> tuple[Floats, Floats]:
        """Of the polynomial in a target cell, for keys in corners and middles of the near face of a source: measured.

        First the largest error, then the largest beside the kernel there.
        """
        most, ratio = np.empty((2, len(offsets)))
        step = max(PAIRS // (len(self.sources) * len(self.nodes)), 1)
        with np.errstate(all="ignore"):
            for i in range(0, len(offsets), step):
                middle = offsets[i : i + step, None, None, :] - self.sources[None, :, None, :] / 2
                at_nodes, at_seen = (
                    weights(kernel, parameters, np.square(width * (middle + x / 2)).sum(axis=3))
                    for x in (self.nodes, self.seen)
                )
                wrong = abs(at_nodes @ self.carry - at_seen)
                most[i : i + step] = FACTOR * wrong.max(axis=(1, 2))
                ratio[i : i + step] = FACTOR * np.where(at_seen > 0, wrong / at_seen, np.inf).max(axis=(1, 2))
        return most, ratio


def weights(kernel: type[Kernel], parameters: tuple[float, ...], u: Floats) -> Floats:
    """The kernel, for squared distances."""
    found: Floats = kernel.kernel(np, u, *parameters) if kernel.kernel else np.exp(kernel.formula(np, u, *parameters))
    return found


def grid(x: Floats, features: int) -> Floats:
    """All points (N^D, D) with these coordinates."""
    return np.stack(np.meshgrid(*(x,) * features, indexing="ij"), axis=-1).reshape(-1, features)


@cache
def polynomials(count: int, features: int) -> Basis:
    """The basis with so many polynomials along an axis."""
    return Basis(count, features)


@cache
def basis(kernel: type[Kernel], parameters: tuple[float, ...], features: int, error: float) -> Basis:
    """The fewest polynomials with which the error between cells that have a cell between them would do.

    For kernels with an exponential tail that is asked of cells up to two bandwidths wide; for others of all, if it can
    be had.
    """
    apart = np.array([o for o in np.ndindex(*(3,) * features) if list(o) == sorted(o) and o[-1] == 2])
    for widths in ((-6, 20), (-6, 3), (-6, 1)) if kernel.tail == "power" else ((-6, 2), (-6, 1)):
        for count in range(3, DEGREES[features - 1] + 1):
            made = polynomials(count, features)
            if all(
                (made.errors(kernel, parameters, 2.0**n, apart)[1] <= error).all() for n in reversed(range(*widths))
            ):
                return made
    return made


def summer(kernel: type[Kernel], parameters: int) -> Any:
    """The sums pair by pair, compiled with a kernel, or with its logarithm."""
    of = kernel.kernel or kernel.formula
    with compiling.LOCK:
        if ("pairwise", of) not in compiling.MADE:
            tag = f"{parameters}_{compiling.fingerprint(of)}_{compiling.VERSION}"
            names = compiling.constants(np.float64)
            names["formula"] = compiling.formula(of)
            names["score"] = njit(compiling.bound(loops.SCORES[parameters], tag, names), **maths.EXACT)
            for part in loops.PARTS:
                names[part.__name__] = njit(compiling.bound(part, tag, names), **maths.SUMS)
            weigh = loops.weigh_kernel if kernel.kernel else loops.weigh_score
            names["weigh"] = njit(compiling.bound(weigh, tag, names), **maths.SUMS)
            n, real = types.int64, types.float64
            whole, (row, matrix) = types.Array(n, 1, "C"), (types.Array(real, d, "C") for d in (1, 2))
            signature = types.void(matrix, *(whole,) * 6, matrix, matrix, row, matrix, row, n, n)
            made = compiling.compiled(loops.pairwise, tag, names, signature)
            compiling.MADE["pairwise", of] = next(iter(made.overloads.values())).entry_point
        return compiling.MADE["pairwise", of]
