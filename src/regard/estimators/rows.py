"""Training rows in the form in which something is searched or learned from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regard.estimators.memory import Floats, Integers, Memory

SEARCHED = 1e-9  # the error that a criterion over very many rows may have: less than a search looks for


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows.

    ``X (n, D)``, ``value (n, V)`` what is pooled and predicted, ``count (n,)`` how often a row is there,
    ``factor (n,)`` what it weighs besides.
    """

    X: Floats
    value: Floats
    count: Floats
    factor: Floats

    def merged(self) -> Rows:
        """The distinct rows that count, sorted, in float64: any order, and counts or copies, give the same numbers."""
        live = np.flatnonzero(self.count)
        both = np.concatenate([self.X, self.value], axis=1, dtype=np.float64)[live]
        order = np.lexsort(both.T[::-1])
        both = both[order]
        new = np.concatenate([[True], np.any(both[1:] != both[:-1], axis=1)])
        count = np.bincount(np.cumsum(new) - 1, weights=self.count[live][order]).astype(np.float64)
        d = self.X.shape[1]
        return Rows(both[new, :d], both[new, d:], count, self.factor[live][order[new]])

    @property
    def weight(self) -> Floats:
        """(n,) of the rows in pooling and in errors."""
        return self.count * self.factor

    def standardised(self) -> Rows:
        """The same, with values of mean 0 and variance 1 each; constant ones are 0."""
        centred = self.value - self.value[:1]
        centred = centred - self.count @ centred / self.count.sum()
        spread = np.sqrt(self.count @ centred**2 / self.count.sum())
        return replace(self, value=centred / np.where(spread > 0, spread, 1.0))

    def some(self, n: int, random: np.random.RandomState) -> Rows:
        """At most n of the rows."""
        if len(self.X) <= n:
            return self
        return self.at(np.sort(random.choice(len(self.X), n, replace=False)))

    def at(self, rows: Integers) -> Rows:
        """These of the rows."""
        return Rows(self.X[rows], self.value[rows], self.count[rows], self.factor[rows])

    def leaving_one_out(self, outside: str, engine: str, threads: int | None = None) -> Memory:
        """These rows as keys and values, of which query i does not see one count of row i."""
        memory = Memory(self.X, self.value, self.weight, outside, engine, threads, rtol=SEARCHED)
        return memory.without_own(self.count)

    def seeing_all(self, outside: str, engine: str, threads: int | None = None) -> Memory:
        """These rows as keys and values."""
        return Memory(self.X, self.value, self.weight, outside, engine, threads, rtol=SEARCHED)
