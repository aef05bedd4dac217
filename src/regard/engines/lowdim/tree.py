"""Up to eight dimensions: a k-d tree that leaves out what cannot matter at the tolerance, with exact leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from regard.compiled import compiling, maths
from regard.compiled.threads import Steps, run
from regard.engines.lowdim import tree_loops as loops
from regard.engines.lowdim.line import each
from regard.engines.lowdim.sources import Floats, Integers, exponents
from regard.engines.lowdim.tree_loops import BLOCK
from regard.scores.base import Kernel

JOB = 1024  # queries
TOP = 3  # levels of the tree that are made before the rest of it is made on several threads
DIMENSIONS = 8
SAMPLE = 32, 2048  # queries and keys
DEAR = 6.0


def why_not(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str | None:
    """Why these sums are not made here, or None."""
    if not 1 <= features <= DIMENSIONS:
        return f"a tree is of 1 to {DIMENSIONS} dimensions, not of {features}"
    if kernel.tail == "power":
        return f"the kernel {kernel.__name__} falls too slowly for keys to be left out"
    return None


def why_dear(
    kernel: type[Kernel], parameters: tuple[float, ...], query: Floats, key: Floats, rtol: float
) -> str | None:
    """Why all pairs take less time, or None: from a sample of queries and keys.

    A query looks at the blocks that its ball meets, outside of which what is left out is small enough; a pair of those
    takes ``DEAR`` times as long as one of all pairs.
    """
    q, k = query[:: -(-len(query) // SAMPLE[0])], key[:: -(-len(key) // SAMPLE[1])]
    low, high = np.quantile(k, (0.1, 0.9), axis=0)
    block = float(np.linalg.norm(high - low)) / 1.6 * (BLOCK / len(key)) ** (1 / key.shape[1])  # half a diagonal
    u = np.square(q[:, None] - k).sum(axis=2)
    with np.errstate(all="ignore"):
        s = np.asarray(kernel.formula(np, u, *parameters))
        top = s.max(axis=1, keepdims=True)
        least = top + np.log(rtol * np.exp(s - top).mean(axis=1, keepdims=True))
        radius = np.sqrt(np.where((s >= least) & (s > -np.inf), u, 0.0).max(axis=1, keepdims=True))
    share = float((np.sqrt(u) <= radius + block).mean())
    if share * DEAR < 1:
        return None
    return f"a query would look at {share:.0%} of the keys, which costs more than all pairs at once"


def prepare(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    asked: int | None = None,
) -> Tree:
    """The keys in a tree. A pooled value is the ratio of two sums, and may be off by the errors of both."""
    return Tree(kernel, parameters, key, weight, rtol / 2, asked)


class Tree:
    """Sums over the leaves of a k-d tree, for any kernel that falls with the distance.

    A node is left out of a query's sums if what all that is left out could add is within ``rtol`` of what has been
    summed: sum over nodes of K(distance of the box) sum |w| <= rtol sum K |w|, for every column. What is outside of a
    support is nothing. Memory: 8 bytes times (dimensions + columns + 1) for each key, and twice as much for an instant.
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
        blocks = max(-(-count // BLOCK), 1)
        levels = blocks.bit_length() - 1
        self.leaves = 1 << levels
        x, self.order = key.astype(np.float64, order="C"), np.arange(count)
        self.low, self.high = np.zeros((2, 2 * self.leaves - 1, features))
        if count:
            top = min(levels, TOP)
            loops.grow(x, self.order, self.low, self.high, 0, 0, top)

            def below(n: int) -> Steps:
                loops.grow(x, self.order, self.low, self.high, top, n, levels)
                yield

            if levels > top:
                run(below, range((1 << top) - 1, (2 << top) - 1), asked)
        self.x, self.w = np.zeros((blocks, features, BLOCK)), np.zeros((blocks, weight.shape[1], BLOCK))
        for b in range(0, blocks, 1024):
            at = np.minimum(np.arange(b * BLOCK, min(b + 1024, blocks) * BLOCK), count - 1)
            if count:
                self.x[b : b + 1024] = x[at].reshape(-1, BLOCK, features).swapaxes(1, 2)
                self.w[b : b + 1024] = weight[self.order[at]].reshape(-1, BLOCK, weight.shape[1]).swapaxes(1, 2)
        full = count - (blocks - 1) * BLOCK  # keys of the last block, which is filled up with some far away
        self.x[-1, :, full:], self.w[-1, :, full:] = 1e150, 0.0
        starts = (np.arange(self.leaves) * blocks) // self.leaves
        self.mass = np.zeros((2 * self.leaves - 1, weight.shape[1]))
        self.mass[self.leaves - 1 :] = np.add.reduceat(abs(self.w).sum(axis=2), starts, axis=0)
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
        features, columns = self.x.shape[1], self.w.shape[1]
        powers = exponents(features, degree)
        axes, parents = (np.array(a) for a in zip(*(_step(powers, m) for m in range(len(powers))), strict=True))
        shift, out = np.full(len(q), -np.inf), np.zeros((len(q), len(powers), columns))
        if not len(self.order) or not len(q):
            return shift, out
        leaf = np.empty(len(q), np.int64)
        each(
            len(q),
            1 << 15,
            self.asked,
            lambda i, j: loops.nearest_leaf(q, self.low, self.high, self.leaves, leaf, i, j),
        )
        rows = np.argsort(leaf, kind="stable")
        own, p, walk = own[rows], np.array(self.parameters, np.float64), walker(self.kernel, len(self.parameters))
        depth = 2 * self.leaves.bit_length() + 2

        def do(i: int, j: int) -> None:
            room = np.empty((len(powers) + 1, BLOCK)), np.empty((2, columns))
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


def walker(kernel: type[Kernel], parameters: int) -> Any:
    """The walk down the tree, compiled with the formula of a kernel."""
    with compiling.LOCK:
        if ("walk", kernel.formula) not in compiling.MADE:
            tag = f"{parameters}_{compiling.fingerprint(kernel.formula)}_{compiling.VERSION}"
            names = compiling.constants(np.float64)
            names["formula"] = compiling.formula(kernel.formula)
            names["score"] = njit(compiling.bound(loops.SCORES[parameters], tag, names), **maths.EXACT)
            for part in loops.PARTS:
                names[part.__name__] = njit(compiling.bound(part, tag, names), **maths.SUMS)
            n, real = types.int64, types.float64
            whole, (row, matrix, cube) = types.Array(n, 1, "C"), (types.Array(real, d, "C") for d in (1, 2, 3))
            keys, tree, given = (cube, cube), (matrix,) * 3, (row, whole, whole, n, real)
            rooms = (whole, row, row, matrix, matrix)
            signature = types.void(matrix, whole, whole, *keys, *tree, *given, row, cube, *rooms, n, n)
            made = compiling.compiled(loops.walk, tag, names, signature)
            compiling.MADE["walk", kernel.formula] = next(iter(made.overloads.values())).entry_point
        return compiling.MADE["walk", kernel.formula]
