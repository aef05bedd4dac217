"""One dimension: the Gaussian by cells and local expansions, polynomials with a support by restarted prefix sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from regard.compiled import threads
from regard.compiled.threads import Steps
from regard.engines.lowdim import loops
from regard.engines.lowdim.sources import Floats, Integers, Sources
from regard.scores import Biweight, Epanechnikov, Gaussian, Triangular, Tricube, Triweight, Uniform
from regard.scores.base import Kernel

WIDTH = 0.5  # of a cell, in bandwidths of the Gaussian
REACH = 18  # cells: the weight beyond is below exp(-9^2 / 2) = 3e-18
BLOCK = 32  # cells that are kept or not
MANY = 64  # keys around a block that make it worth keeping where blocks are many
AROUND, CLOSE = 14.0, 6.0  # bandwidths: beside a key so close, those beyond weigh less than exp(-80)
RUNS = 4  # of queries, whose surroundings are looked for in all keys
JOB = 1 << 15  # queries
CELL = 0.5  # of prefix sums, in radii of the support; a power of two, so that offsets are exact
FEW = 24  # keys of a window that are summed one by one
POLYNOMIALS: dict[type[Kernel], tuple[int, int]] = {  # (1 - |t|^inner)^outer on |t| < 1
    Uniform: (1, 0),
    Triangular: (1, 1),
    Epanechnikov: (2, 1),
    Biweight: (2, 2),
    Triweight: (2, 3),
    Tricube: (3, 3),
}


def why_not(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str | None:
    """Why these sums are not made here, or None."""
    return None if features == 1 and (kernel is Gaussian or kernel in POLYNOMIALS) else ""


def prepare(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    asked: int | None = None,
) -> Sources:
    """The keys in cells, or sorted with their prefix sums."""
    x, w = np.ascontiguousarray(key[:, 0]), np.ascontiguousarray(weight)
    if kernel is Gaussian:
        return Cells(x, w, rtol, asked)
    edge = parameters[0] if kernel is Uniform else 1.0
    return Windows(x, w, POLYNOMIALS[kernel], edge, kernel is Uniform, asked)


def each(count: int, size: int, asked: int | None, do: Callable[[int, int], None]) -> None:
    """``do(i, j)`` for ranges of so many, on several threads."""

    def work(i: int) -> Steps:
        do(i, min(i + size, count))
        yield

    threads.run(work, range(0, count, size), asked)


class Cells:
    """Gaussian sums over cells half a bandwidth wide.

        sum_j w_j g(c + b - k_j) = sum_a b^a / a! sum_cells sum_p g^(a + p)(c - c_s) (-1)^p A_p

    A_p = sum w (k - c_s)^p / p! are the moments of a cell's keys about its centre. A target cell whose expansion could
    miss the relative error, by Cramer's bound |g^(n)(x)| <= 1.09 sqrt(n!) exp(-x^2 / 4), is not used: its queries are
    summed from the nearest key outwards. Memory: 8 bytes times (columns + 2) for each key where keys must be sorted,
    and at most 16 (terms + 1) columns for each cell, of which there are no more than 4 a key and 4,096.
    """

    def __init__(self, x: Floats, w: Floats, rtol: float, asked: int | None) -> None:
        self.x, self.w, self.rtol, self.asked = x, w, rtol, asked
        low, high = (float(x.min()), float(x.max())) if len(x) else (0.0, 0.0)
        self.first = int(np.floor(low / WIDTH))
        cells = (high - low) / WIDTH + 2
        self.ids = np.empty(0, np.int64)  # of the blocks that are kept; empty: all are
        self.count = int(cells) if cells <= max(4 * len(x), 4096) else 0
        if not self.count:
            self._keep_some()
        self.made: dict[int, tuple[Floats, Any]] = {}

    def _keep_some(self) -> None:
        """Blocks with many keys in and around them, and what lies beside those."""
        found = np.floor(self.sorted[0] / WIDTH)
        if max(-found[0], found[-1]) > 1e15:  # cells are not told apart there
            return
        ids, keys = np.unique((found.astype(np.int64) - self.first) // BLOCK, return_counts=True)
        around = np.unique(np.concatenate([ids - 1, ids, ids + 1]))
        near = np.zeros(len(around), np.int64)
        for step in (-1, 0, 1):
            near[np.searchsorted(around, ids + step)] += keys
        dense = around[near >= MANY]
        self.ids = np.unique(np.concatenate([dense - 1, dense, dense + 1]))
        self.count = len(self.ids) * BLOCK

    @cached_property
    def sorted(self) -> tuple[Floats, Floats]:
        return self.x[self.order], self.w[self.order]

    @cached_property
    def order(self) -> Integers:
        return np.argsort(self.x)

    def _local(self, degree: int) -> tuple[Floats, Any]:
        """The expansions for moments up to a degree, and which are good."""
        if degree not in self.made:
            self.made[degree] = self._expanded(degree)
        return self.made[degree]

    def _expanded(self, degree: int) -> tuple[Floats, Any]:
        a, terms = WIDTH / 2, 4
        while 100 * a**terms / math.sqrt(math.factorial(terms)) > self.rtol:
            terms += 1
        bound = 2.2 * a**terms / math.sqrt(math.factorial(terms))
        terms += 2 * degree
        shape = (self.count, self.w.shape[1])
        parts = 8 if self.count * 8 < len(self.x) else 2  # by the sizes alone: no result depends on the threads
        size = max(-(-len(self.x) // parts), 1)
        moments, mass = np.zeros((*shape, terms)), np.zeros(shape)

        def work(i: int) -> Steps:
            own = np.zeros((*shape, terms)), np.zeros(shape)
            room, end = np.empty(terms), min(i + size, len(self.x))
            loops.add_moments(self.x, self.w, self.first, WIDTH, BLOCK, self.ids, *own, room, i, end)
            yield
            return own

        def add(own: tuple[Floats, Floats]) -> None:
            np.add(moments, own[0], out=moments)
            np.add(mass, own[1], out=mass)

        threads.run(work, range(0, len(self.x), size), self.asked, then=add)
        moments *= (-1.0) ** np.arange(terms) / np.cumprod(np.maximum(np.arange(terms), 1.0))
        d = WIDTH * np.arange(-REACH, REACH + 1)
        table = np.empty((len(d), 2 * terms))  # (-1)^n He_n(d) exp(-d^2 / 2)
        table[:, 0] = np.exp(-d * d / 2)
        table[:, 1] = -d * table[:, 0]
        for n in range(1, 2 * terms - 1):
            table[:, n + 1] = -d * table[:, n] - n * table[:, n - 1]
        error = bound * np.exp(-(np.maximum(abs(d) - WIDTH, 0) ** 2) / 4)
        least = np.exp(-((abs(d) + WIDTH) ** 2) / 2)
        rest = mass.sum(axis=0) * math.exp(-((REACH * WIDTH) ** 2) / 2)
        local, good = np.zeros((*shape, terms)), np.zeros(self.count, np.uint8)

        def do(i: int, j: int) -> None:
            loops.to_local(moments, mass, table, error, least, rest, self.rtol, BLOCK, self.ids, local, good, i, j)

        each(self.count, 1024, self.asked, do)
        return local, good

    def sums(self, query: Floats, degree: int = 0) -> tuple[Floats, Floats]:
        """See ``Sources``."""
        q = np.ascontiguousarray(query[:, 0])
        shift, out = np.zeros(len(q)), np.empty((len(q), degree + 1, self.w.shape[1]))
        left: Any = np.zeros(len(q), np.uint8)
        if self.count:
            local, good = self._local(degree)

            def do(i: int, j: int) -> None:
                loops.evaluate(q, self.first, WIDTH, BLOCK, self.ids, local, good, out, left, i, j)

            each(len(q), JOB, self.asked, do)
        else:
            left[:] = 1
        rows: Integers = np.flatnonzero(left)
        if len(rows):
            x, w = self._around(q[rows])
            own = np.full(len(rows), -1)
            each(len(rows), 1024, self.asked, lambda i, j: loops.nearby(q, rows, own, x, w, shift, out, i, j))
        return shift, out

    def _around(self, q: Floats) -> tuple[Floats, Floats]:
        """Sorted keys that hold all that counts for these queries: those nearby, if they are a few runs; else all."""
        ends = np.sort(q)
        breaks = np.flatnonzero(np.diff(ends) > 2 * AROUND)
        if "sorted" in self.__dict__ or len(breaks) >= RUNS:
            return self.sorted
        first, last = np.append(0, breaks + 1), np.append(breaks, len(ends) - 1)
        near = np.zeros(len(self.x), bool)
        for i, j in zip(first, last, strict=True):
            near |= (self.x >= ends[i] - AROUND) & (self.x <= ends[j] + AROUND)
        at = np.flatnonzero(near)
        at = at[np.argsort(self.x[at])]
        x = self.x[at]
        gaps = np.append(x, np.inf)[np.searchsorted(x, ends)] - ends
        gaps = np.minimum(gaps, ends - np.insert(x, 0, -np.inf)[np.searchsorted(x, ends)])
        return (x, self.w[at]) if (gaps <= CLOSE).all() else self.sorted

    def others(self, query: Floats, own: Integers) -> tuple[Floats, Floats]:
        """The sums without the key ``own (Q,)`` of each query, to rounding."""
        x, w = self.sorted
        place = np.empty(len(x), np.int64)
        place[self.order] = np.arange(len(x))
        q, rows, own = np.ascontiguousarray(query[:, 0]), np.arange(len(query)), place[own]
        shift, out = np.zeros(len(q)), np.empty((len(q), 1, self.w.shape[1]))
        each(len(q), 1024, self.asked, lambda i, j: loops.nearby(q, rows, own, x, w, shift, out, i, j))
        return shift, out


class Windows:
    """Sums of a polynomial kernel on its support, by prefix sums of moments that begin anew in each cell.

    Exact to rounding. Where the weight sum is small beside what the prefixes had summed, and where keys are few, it is
    summed key by key. Memory: 8 bytes times (columns (terms + degree + 1) + 4) for each key.
    """

    def __init__(
        self, x: Floats, w: Floats, form: tuple[int, int], limit: float, closed: bool, asked: int | None
    ) -> None:
        order = np.argsort(x)
        self.x, self.w = x[order], w[order]
        inner, outer = self.form = form
        self.series = np.zeros(inner * outer + 1)  # by powers of |t|
        self.series[:: max(inner, 1)][: outer + 1] = [(-1) ** n * math.comb(outer, n) for n in range(outer + 1)]
        self.limit, self.closed, self.asked = limit, closed, asked
        self.cell = np.floor(self.x / CELL)
        begins = np.flatnonzero(np.diff(self.cell, prepend=-np.inf))
        self.ends = np.repeat(np.append(begins[1:], len(x)), np.diff(np.append(begins, len(x))))
        self.begins = begins
        self.made: dict[int, Floats] = {}

    def _prefix(self, degree: int) -> Floats:
        if degree not in self.made:
            into = np.empty((len(self.x), self.w.shape[1], len(self.series) + degree))
            step = max(len(self.begins) // 64, 1)
            starts = np.append(self.begins[::step], len(self.x))

            def do(i: int, j: int) -> None:
                loops.prefixes(self.x, self.w, self.cell, CELL, into, int(starts[i]), int(starts[j]))

            each(len(starts) - 1, 1, self.asked, do)
            self.made[degree] = into
        return self.made[degree]

    def sums(self, query: Floats, degree: int = 0) -> tuple[Floats, Floats]:
        """See ``Sources``."""
        q = np.ascontiguousarray(query[:, 0])
        order = np.argsort(q)
        shift, out = np.empty(len(q)), np.empty((len(q), degree + 1, self.w.shape[1]))
        prefix = self._prefix(degree)
        sorted_keys = self.x, self.w, self.cell, self.ends, CELL
        form = self.series, *self.form, self.limit, self.closed, FEW

        def do(i: int, j: int) -> None:
            at, room = order[i:j], np.empty(prefix.shape[2])
            some = q[at], np.full(j - i, -np.inf), np.zeros((j - i, *out.shape[1:]))
            loops.windows(some[0], *sorted_keys, prefix, *form, *some[1:], room, 0, j - i)
            shift[at], out[at] = some[1:]

        each(len(q), JOB, self.asked, do)
        return shift, out
