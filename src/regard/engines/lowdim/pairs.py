"""All pairs, in blocks: exact for every kernel; what the other constructions fall back to, and are held to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from regard.engines.lowdim.sources import Floats, Integers, exponents
from regard.scores.base import Kernel

PAIRS = 1 << 20  # that are held at once


def why_not(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str | None:
    """It can sum every kernel."""
    return None


def prepare(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    threads: int | None = None,
) -> Pairs:
    """Nothing needs to be prepared."""
    return Pairs(kernel, parameters, key, weight)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sums over ``key (K, D)`` with ``weight (K, C)``, pair by pair."""

    kernel: type[Kernel]
    parameters: tuple[float, ...]
    key: Floats
    weight: Floats

    def sums(self, query: Floats, degree: int = 0, own: Integers | None = None) -> tuple[Floats, Floats]:
        """See ``Sources``; ``own (Q,)`` is the key that a query does not see, -1 for none."""
        powers = exponents(self.key.shape[1], degree)
        shift = np.full(len(query), -np.inf)
        out = np.zeros((len(query), len(powers), self.weight.shape[1]))
        for rows in self._blocks(len(query)):
            s, _ = self._scores(query[rows], None if own is None else own[rows])
            shift[rows] = top = s.max(axis=1, initial=-np.inf)
            w = np.exp(s - np.where(top > -np.inf, top, 0.0)[:, None])
            for m, power in enumerate(powers):
                at = w
                for c, p in enumerate(power):
                    if p:
                        at = at * (self.key[:, c] - query[rows, c, None]) ** p
                out[rows, m] = at @ self.weight
        return shift, out

    def slopes(self, query: Floats, shift: Floats, own: Integers | None = None) -> Floats:
        """(Q, D, C): the gradients to the query of sum_j W_jc exp(s(q, k_j) - shift(q)), the shift being constant."""
        out = np.zeros((len(query), self.key.shape[1], self.weight.shape[1]))
        for rows in self._blocks(len(query)):
            s, u = self._scores(query[rows], None if own is None else own[rows])
            w = np.exp(s - np.where(shift[rows] > -np.inf, shift[rows], 0.0)[:, None])
            w = 2 * w * self.kernel.slope(np, u, *self.parameters)[0]
            for c in range(self.key.shape[1]):
                out[rows, c] = (w * (query[rows, c, None] - self.key[:, c])) @ self.weight
        return out

    def _blocks(self, queries: int) -> Iterator[slice]:
        tall = max(PAIRS // max(len(self.key), 1), 1)
        return (slice(i, min(i + tall, queries)) for i in range(0, queries, tall))

    def _scores(self, query: Floats, own: Integers | None) -> tuple[Floats, Floats]:
        u = np.zeros((len(query), len(self.key)))
        for q, k in zip(query.T, self.key.T, strict=True):
            u += (q[:, None] - k) ** 2
        s = np.asarray(self.kernel.formula(np, u, *self.parameters))
        if own is not None:
            some = np.flatnonzero(own >= 0)
            s[some, own[some]] = -np.inf
        return s, u
