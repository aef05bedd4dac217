"""Up to eight dimensions: a k-d tree that leaves out what cannot matter at the tolerance, with exact leaves."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit, types

from regard.engines.fused import compiling, maths
from regard.engines.fused.threads import Steps, run
from regard.engines.lowdim import tree_loops as loops
from regard.engines.lowdim.line import each
from regard.engines.lowdim.sources import Floats, Integers, exponents
from regard.scores.base import Kernel

LEAF = 64  # keys at most
JOB = 1024  # queries
TOP = 3  # levels of the tree that are made before the rest of it is made on several threads
DIMENSIONS = 8


def why_not(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str | None:
    """Why these sums are not made here, or None."""
    if not 1 <= features <= DIMENSIONS:
        return f"a tree is of 1 to {DIMENSIONS} dimensions, not of {features}"
    if kernel.tail == "power":
        return "" if features == 1 else f"the kernel {kernel.__name__} falls too slowly for keys to be left out"
    return None


def prepare(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    asked: int | None = None,
) -> Tree:
    """The keys in a tree."""
    return Tree(kernel, parameters, key, weight, rtol, asked)


class Tree:
    """Sums over the leaves of a k-d tree, for any kernel that falls with the distance.

    A node is left out of a query's sums if what all that is left out could add is within ``rtol`` of what has been
    summed: sum over nodes of K(distance of the box) sum |w| <= rtol sum K |w|, for every column. A kernel with a support
    leaves out what is outside, and nothing else where rtol is 0. Memory: 8 bytes times (dimensions + columns + 1) for
    each key, and twice as much for an instant.
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
        count, features = key.shape
        levels = max(-(-count // LEAF) - 1, 0).bit_length()
        self.leaves = 1 << levels
        x, self.order = key.astype(np.float64, order="C"), np.arange(count)
        self.low, self.high = np.empty((2, 2 * self.leaves - 1, features))
        if count:
            top = min(levels, TOP)
            loops.grow(x, self.order, self.low, self.high, 0, 0, levels if levels <= TOP else TOP)

            def below(n: int) -> Steps:
                loops.grow(x, self.order, self.low, self.high, top, n, levels)
                yield

            if levels > TOP:
                run(below, range((1 << top) - 1, (2 << top) - 1), asked)
        self.x, self.w = np.ascontiguousarray(x.T), np.ascontiguousarray(weight[self.order].T)
        starts = (np.arange(self.leaves) * count) // self.leaves
        self.mass = np.zeros((2 * self.leaves - 1, weight.shape[1]))
        if count:
            self.mass[self.leaves - 1 :] = np.add.reduceat(abs(self.w), starts, axis=1).T
        for level in reversed(range(levels)):
            n = (1 << level) - 1
            self.mass[n : 2 * n + 1] = self.mass[2 * n + 1 : 4 * n + 3].reshape(n + 1, 2, -1).sum(axis=1)

    def sums(self, query: Floats, degree: int = 0) -> tuple[Floats, Floats]:
        """See ``Sources``."""
        return self._sums(query, degree, np.full(len(query), -1))

    def others(self, query: Floats, own: Integers) -> tuple[Floats, Floats]:
        """The sums without the key ``own (Q,)`` of each query."""
        place = np.empty(len(self.order) + 1, np.int64)
        place[self.order], place[-1] = np.arange(len(self.order)), -1
        return self._sums(query, 0, place[own])

    def _sums(self, query: Floats, degree: int, own: Integers) -> tuple[Floats, Floats]:
        q = np.ascontiguousarray(query, dtype=np.float64)
        features, columns = len(self.x), len(self.w)
        powers = exponents(features, degree)
        axes, parents = (np.array(a) for a in zip(*(_step(powers, m) for m in range(len(powers))), strict=True))
        shift, out = np.full(len(q), -np.inf), np.zeros((len(q), len(powers), columns))
        if not self.x.shape[1] or not len(q):
            return shift, out
        leaf = np.empty(len(q), np.int64)
        each(len(q), 1 << 15, self.asked, lambda i, j: loops.nearest_leaf(q, self.low, self.high, self.leaves, leaf, i, j))
        rows = np.argsort(leaf, kind="stable")
        own, p, walk = own[rows], np.array(self.parameters, np.float64), walker(self.kernel, len(self.parameters))
        depth = 2 * self.leaves.bit_length() + 2

        def do(i: int, j: int) -> None:
            room = np.empty((len(powers) + 1, LEAF)), np.empty((2, columns))
            walk(
                q, rows, own, self.x, self.w, self.low, self.high, self.mass, p, axes, parents, degree, self.rtol,
                shift, out, np.empty(depth, np.int64), np.empty(depth), room[0][-1], room[0][:-1], room[1], i, j,
            )  # fmt: skip

        each(len(q), JOB, self.asked, do)
        return shift, out


def _step(powers: list[tuple[int, ...]], m: int) -> tuple[int, int]:
    """Along which axis a monomial is one more than which other."""
    if not m:
        return 0, 0
    axis = next(d for d, p in enumerate(powers[m]) if p)
    less = tuple(p - (d == axis) for d, p in enumerate(powers[m]))
    return axis, powers.index(less)


@cache
def walker(kernel: type[Kernel], parameters: int) -> Any:
    """The walk down the tree, compiled with the formula of a kernel."""
    with compiling.LOCK:
        tag = f"{parameters}_{compiling.fingerprint(kernel.formula)}_{compiling.VERSION}"
        names = compiling.constants(np.float64)
        names["formula"] = compiling.formula(kernel.formula)
        body = getattr(loops, f"score_{parameters}")
        names["score"] = njit(compiling.bound(body, tag, names), **maths.EXACT)
        names["add_leaf"] = njit(compiling.bound(loops.add_leaf, tag, names), **maths.SUMS)
        n, real = types.int64, types.float64
        whole, row, matrix = types.Array(n, 1, "C"), types.Array(real, 1, "C"), types.Array(real, 2, "C")
        signature = types.void(
            matrix, whole, whole, matrix, matrix, matrix, matrix, matrix, row, whole, whole, n, real,
            row, types.Array(real, 3, "C"), whole, row, row, matrix, matrix, n, n,
        )  # fmt: skip
        made = compiling.compiled(loops.walk, tag, names, signature)
        return next(iter(made.overloads.values())).entry_point
