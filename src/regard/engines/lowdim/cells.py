"""Gaussian sums in two and three dimensions: keys in cells, whose sums become one short polynomial per target cell.

A cell's keys act like charges at Chebyshev nodes; what they send to another cell is a product of small matrices, one an
axis, since the Gaussian is a product. So all cells of a line are served by one product of matrices, axis after axis.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from regard.engines.fused import threads
from regard.engines.fused.threads import Steps
from regard.engines.lowdim import cell_loops, tree
from regard.engines.lowdim.sources import Floats, Integers, exponents
from regard.engines.lowdim.tree import Tree
from regard.scores import Gaussian
from regard.scores.base import Kernel

WIDTHS = (0.5, 1.0, 2.0)  # of a cell, in bandwidths
ROOM = 32, 1 << 23  # coefficients of a column: so many a key, or so many
ORDERS = 4, 20  # of the polynomials along an axis
FAR = 1e15  # widths: cells are not told apart beyond
MARGIN = 1e6  # what is left out beyond the reach is below rtol / MARGIN of a unit mass
LINES = 1 << 22  # numbers that a job holds at once
JOB = 1 << 13  # queries
GRID, SAFETY = 33, 1.25  # places of a cell at which errors are measured, and what the largest may be more than there


FEATURES = 2, 3


def why_not(kernel: type[Kernel], parameters: tuple[float, ...]) -> str | None:
    """Why these sums are not made here, or None."""
    return None if kernel is Gaussian else f"there is no construction for the kernel {kernel.__name__} by cells"


def why_slow(key: Floats, rtol: float) -> str | None:
    """That cells would be too many, and a tree in their place would save nothing."""
    return tree.why_slow(key, rtol) if _plan(key.reshape(-1, key.shape[-1]), rtol) is None else None


def prepare(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    asked: int | None = None,
) -> Cells | Tree:
    """The keys in cells, or in a tree where cells would be too many."""
    plan = _plan(key, rtol)
    return Tree(key, weight, asked) if plan is None else Cells(key, weight, rtol, plan, asked)


class Plan(NamedTuple):
    """Cells that serve some keys."""

    width: float
    order: int
    reach: int
    first: Integers  # (D,) the place of the first cell, in widths
    shape: tuple[int, ...]


def _plan(key: Floats, rtol: float) -> Plan | None:
    """The cells of least cost that are few enough; None where none are."""
    n, d = key.shape
    if not n:
        return None
    low, high = key.min(axis=0), key.max(axis=0)
    found, best = None, math.inf
    for width in WIDTHS:
        order = _order(width, d, rtol)
        if order is None or not max(abs(low).max(), abs(high).max()) / width < FAR:
            continue
        first, last = (np.floor(x / width).astype(np.int64) for x in (low, high))
        cells = float(np.prod(last - first + 1.0))
        reach = _reach(width, rtol)
        cost = 2 * n * order**d + cells * order ** (d + 1) * (2 * reach + 1) * d / 8
        if cells * order**d <= max(ROOM[0] * n, ROOM[1]) and cost < best:
            best, found = cost, Plan(width, order, reach, first, tuple((last - first + 1).tolist()))
    return found


class Cells:
    """Gaussian sums by Chebyshev interpolation of order P in both the key's and the query's cell.

    A target cell where the errors of the interpolants could be more than ``rtol`` of what its keys are sure to weigh is
    not used: its queries go to the tree. Memory: for each column at most 32 numbers a key, or 2^23, three times.
    """

    def __init__(self, key: Floats, weight: Floats, rtol: float, plan: Plan, asked: int | None) -> None:
        self.key, self.weight, self.rtol, self.asked = key, weight, rtol, asked
        self.d = key.shape[1]
        self.width, self.order, self.reach, self.first, self.shape = plan
        self.made: dict[int, tuple[Floats, Any]] = {}

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.key, self.weight, self.asked)

    @cached_property
    def sorted(self) -> tuple[Floats, Floats, Integers, Integers]:
        """Keys and weights by cells, the cells that have any, and where each begins."""
        cell = self._cell(self.key)
        order = np.argsort(cell, kind="stable")
        cell = cell[order]
        begins = np.flatnonzero(np.diff(cell, prepend=-1))
        return self.key[order], self.weight[order], cell[begins], np.append(begins, len(cell))

    def _cell(self, x: Floats) -> Integers:
        """The cell of each row, -1 outside of all."""
        f = np.floor(x / self.width)
        inside = np.all((f >= self.first) & (f < self.first + np.array(self.shape)), axis=1)
        f = np.where(inside[:, None], f - self.first, 0).astype(np.int64)
        return np.where(inside, np.ravel_multi_index(tuple(f.T), self.shape), -1)

    def _local(self, degree: int) -> tuple[Floats, Any]:
        """(cells, C, P, ..., P) Chebyshev coefficients, and which cells are good."""
        if degree not in self.made:
            self.made[degree] = self._expanded(self.order + 2 * degree)
        return self.made[degree]

    def _expanded(self, order: int) -> tuple[Floats, Any]:
        x, w, cells, begins = self.sorted
        count, columns, d = math.prod(self.shape), self.weight.shape[1], self.d
        charges = np.zeros((count, columns, *(order,) * d))
        mass = np.zeros((count, columns))
        flat = charges.reshape(count, columns, order**d)
        step = max(len(cells) // 64, 1)

        def work(i: int) -> Steps:
            room = np.empty((d, order)), np.empty(order * order)
            cell_loops.charge(x, w, cells, begins, self.width, flat, mass, *room, i, min(i + step, len(cells)))
            yield

        threads.run(work, range(0, len(cells), step), self.asked)
        sent = _sent(self.width, order, self.reach)
        local = charges
        for axis in range(d):
            local = self._along(local, axis, sent.matrix)

        def spread(by: list[Floats]) -> Floats:
            found = mass.reshape(count, columns, *(1,) * d)
            for axis, f in enumerate(by):
                found = self._along(found, axis, f[:, None, None])
            return found.reshape(count, columns)

        # a product of d factors, each of them off by an error, is off by one error times the others, for each of them
        wrong = sum(
            spread([sent.error if n == axis else sent.most + sent.error for n in range(d)]) for axis in range(d)
        )
        beyond = math.exp(-((self.width * self.reach) ** 2) / 2) * mass.sum(axis=0)
        good = np.all(wrong + beyond <= self.rtol * spread([sent.least] * d), axis=1)
        return local.reshape(count, columns, order**d), good

    def _along(self, x: Floats, axis: int, sent: Floats) -> Floats:
        """What all cells along an axis send to each other: (2 R + 1, P, P) by offsets, target minus source."""
        _d, count, p = self.d, self.shape[axis], sent.shape[1]
        columns, many = x.shape[1], x.shape[2:]
        before, after = math.prod(self.shape[:axis]), math.prod(self.shape[axis + 1 :])
        inner, outer = math.prod(many[:axis]), math.prod(many[axis + 1 :])
        source = x.reshape(before, count, after, columns, inner, p, outer)
        out = np.empty_like(source)
        reach = min(self.reach, count - 1)
        matrix = sent[self.reach - reach : self.reach + reach + 1][::-1].transpose(1, 0, 2).reshape(p, -1)
        jobs = list(itertools.product(range(before), range(after)))
        each = max(LINES // (columns * inner * (count + 2 * reach) * p * outer), 1)

        def work(i: int) -> Steps:
            some = jobs[i : i + each]
            at, on = (np.array(n) for n in zip(*some, strict=True))
            rows = source[at, :, on].transpose(0, 2, 3, 1, 4, 5)  # (lines, C, inner, count, P, outer)
            wide = np.zeros((*rows.shape[:3], count + 2 * reach, p, outer))
            wide[:, :, :, reach : reach + count] = rows
            tall = wide.reshape(*rows.shape[:3], (count + 2 * reach) * p, outer)
            windows = np.lib.stride_tricks.as_strided(
                tall,
                (*rows.shape[:4], (2 * reach + 1) * p, outer),
                (*tall.strides[:3], p * tall.strides[3], *tall.strides[3:]),
                writeable=False,
            )
            out[at, :, on] = (matrix @ windows).transpose(0, 3, 1, 2, 4, 5)
            yield

        threads.run(work, range(0, len(jobs), each), self.asked)
        return out.reshape(x.shape)

    def sums(self, query: Floats, degree: int = 0) -> tuple[Floats, Floats]:
        """See ``Sources``."""
        powers = np.array(exponents(self.d, degree))
        shift, out = np.zeros(len(query)), np.zeros((len(query), len(powers), self.weight.shape[1]))
        local, good = self._local(degree)
        cell = self._cell(query)
        left = (cell < 0) | ~good[cell]
        rows = np.flatnonzero(~left)
        rows = rows[np.argsort(cell[rows], kind="stable")]
        order = round(local.shape[2] ** (1 / self.d))
        q = np.ascontiguousarray(query)

        def work(i: int) -> Steps:
            some = rows[i : i + JOB]
            room = np.empty((self.d, degree + 1, order)), np.empty((degree + 1,) * self.d)
            cell_loops.evaluate(q, some, cell, self.width, local, powers, out, *room)
            yield

        threads.run(work, range(0, len(rows), JOB), self.asked)
        rest = np.flatnonzero(left)
        if len(rest):
            shift[rest], out[rest] = self.tree.sums(query[rest], degree)
        return shift, out

    def others(self, query: Floats, own: Integers) -> tuple[Floats, Floats]:
        """The sums without the key ``own (Q,)`` of each query, to rounding."""
        return self.tree.others(query, own)


class Sent(NamedTuple):
    """What a cell sends to another along an axis, by their offset, target minus source."""

    matrix: Floats  # (2 R + 1, P, P) from charges to coefficients
    error: Floats  # (2 R + 1,) the largest error that the kernel then has
    most: Floats  # its largest value
    least: Floats  # its smallest value


@lru_cache(maxsize=256)
def _sent(width: float, order: int, reach: int) -> Sent:
    """The errors are measured on a fine grid of places in both cells."""
    offsets = np.arange(-reach, reach + 1)
    k, half = np.arange(order), width / 2
    nodes = np.cos(np.pi * (k + 0.5) / order)
    to_coefficients = np.cos(np.pi * np.outer(k, k + 0.5) / order) * 2 / order
    to_coefficients[0] /= 2

    def kernel(x: Floats) -> Floats:
        apart = half * (x[:, None] - x[None, :]) + width * offsets[:, None, None]
        return np.asarray(np.exp(-(apart**2) / 2))

    matrix = to_coefficients @ kernel(nodes) @ to_coefficients.T
    fine = np.linspace(-1, 1, GRID)
    values = np.cos(k * np.arccos(fine)[:, None])
    error = SAFETY * abs(values @ matrix @ values.T - kernel(fine)).max(axis=(1, 2)) + 1e-16
    near, far = (width * np.maximum(abs(offsets) + side, 0) for side in (-1, 1))
    return Sent(matrix, error, np.exp(-(near**2) / 2), np.exp(-(far**2) / 2))


def _reach(width: float, rtol: float) -> int:
    return math.ceil(math.sqrt(2 * math.log(MARGIN / rtol)) / width) + 1


def _order(width: float, d: int, rtol: float) -> int | None:
    """The order that serves keys of even density; None if it is too large."""
    reach = _reach(width, rtol)
    for order in range(*ORDERS):
        s = _sent(width, order, reach)
        if 2 * d * s.error.sum() * (s.most + s.error).sum() ** (d - 1) <= rtol * s.least.sum() ** d:
            return order
    return None
