"""Gaussian sums in several dimensions from the nearest key outwards: a tree of boxes says which keys do not count."""

from __future__ import annotations

import numpy as np

from regard.engines.fused import threads
from regard.engines.fused.threads import Steps
from regard.engines.lowdim import tree_loops
from regard.engines.lowdim.sources import Floats, Integers, exponents
from regard.scores import Gaussian
from regard.scores.base import Kernel

LEAF = 64  # keys of a leaf, at most
JOB = 256  # queries
FEATURES = (2, 8)
WINDOW = 20.0  # bandwidths: about how wide a query's window is
PRUNED = 0.25  # of all keys, in a window: more, and the tree saves nothing


def why_not(kernel: type[Kernel], parameters: tuple[float, ...]) -> str | None:
    """Why these sums are not made here, or None."""
    return None if kernel is Gaussian else f"the tree of boxes sums Gaussians, not {kernel.__name__}"


def why_slow(key: Floats, rtol: float) -> str | None:
    """That windows hold most of the keys, by the size of the box of all of them."""
    wide = np.ptp(key.reshape(-1, key.shape[-1]), axis=0) if key.size else np.zeros(key.shape[-1])
    if np.prod(np.minimum(WINDOW / np.maximum(wide, 1e-300), 1.0)) <= PRUNED:
        return None
    return "the keys lie within a few bandwidths, so that a tree of boxes prunes nothing"


def prepare(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    asked: int | None = None,
) -> Tree:
    """The keys in boxes."""
    return Tree(key, weight, asked)


class Tree:
    """Keys in a balanced tree of boxes, halved along their longest axis until a box has few keys.

    A box counts for a query unless all its weights are below e^-50 of that of the nearest key. Exact to rounding.
    Memory: 8 (D + columns + 1) bytes for each key.
    """

    def __init__(self, key: Floats, weight: Floats, asked: int | None) -> None:
        n, d = key.shape
        self.levels = max(int(np.ceil(np.log2(max(n, 1) / LEAF))), 0)
        self.order = np.arange(n)
        at = [(0, n)]
        for _ in range(self.levels):  # by levels: a level halves all boxes
            below = []
            for start, stop in at:
                some = self.order[start:stop]
                x = key[some]
                axis = int(np.argmax(np.ptp(x, axis=0))) if len(x) else 0
                half = len(some) // 2
                if len(some):
                    self.order[start:stop] = some[np.argpartition(x[:, axis], half)]
                below += [(start, start + half), (start + half, stop)]
            at = below
        self.bounds = np.array([at[0][0], *(stop for _, stop in at)])
        self.key = np.ascontiguousarray(key[self.order].T)
        self.weight = np.ascontiguousarray(weight[self.order].T)
        # the boxes of the leaves, then of what they are halves of: node i has the halves 2 i + 1 and 2 i + 2
        leaves = 1 << self.levels
        self.low, self.high = np.full((2 * leaves - 1, d), np.inf), np.full((2 * leaves - 1, d), -np.inf)
        for n_leaf, (start, stop) in enumerate(at):
            if stop > start:
                part = self.key[:, start:stop]
                self.low[leaves - 1 + n_leaf], self.high[leaves - 1 + n_leaf] = part.min(axis=1), part.max(axis=1)
        for level in reversed(range(self.levels)):
            i = np.arange((1 << level) - 1, (2 << level) - 1)
            self.low[i] = np.minimum(self.low[2 * i + 1], self.low[2 * i + 2])
            self.high[i] = np.maximum(self.high[2 * i + 1], self.high[2 * i + 2])
        self.asked = asked

    def sums(self, query: Floats, degree: int = 0) -> tuple[Floats, Floats]:
        """See ``Sources``."""
        return self._sums(query, degree, np.full(len(query), -1))

    def others(self, query: Floats, own: Integers) -> tuple[Floats, Floats]:
        """The sums without the key ``own (Q,)`` of each query, to rounding."""
        place = np.empty(len(self.order) + 1, np.int64)
        place[self.order], place[-1] = np.arange(len(self.order)), -1
        return self._sums(query, 0, place[own])

    def _sums(self, query: Floats, degree: int, own: Integers) -> tuple[Floats, Floats]:
        powers = np.array(exponents(len(self.key), degree))
        q = np.ascontiguousarray(query)
        shift, out = np.full(len(q), -np.inf), np.zeros((len(q), len(powers), len(self.weight)))
        tree = self.key, self.weight, self.low, self.high, self.bounds

        def work(i: int) -> Steps:
            room = np.empty(2 * LEAF), np.empty(2 * LEAF), np.empty(2 * self.levels + 2, np.int64)
            tree_loops.sums(q, own, *tree, powers, shift, out, *room, i, min(i + JOB, len(q)))
            yield

        threads.run(work, range(0, len(q), JOB), self.asked)
        return shift, out
