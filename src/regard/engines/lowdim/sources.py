"""Keys that are prepared once for sums over all of them, and which construction prepares them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import combinations_with_replacement
from typing import Any, Protocol, runtime_checkable

import numpy as np

from regard.scores.base import Kernel

Floats = np.ndarray[Any, np.dtype[np.floating]]
Integers = np.ndarray[Any, np.dtype[np.integer]]

# Modules of this folder with ``why_not(kernel, parameters, features) -> str | None`` ("": others are to say why) and
# ``prepare(kernel, parameters, key, weight, rtol, threads) -> Sources``: the first that can, prepares. The last one
# takes every kernel, pair by pair.
WAYS: tuple[str, ...] = ("line", "cells", "multipole", "tree", "pairs")


class Sources(Protocol):
    """Keys that were prepared once: sorted, in cells, with what does not depend on the queries."""

    def sums(self, query: Floats, degree: int = 0) -> tuple[Floats, Floats]:
        """``shift (Q,)`` and ``(Q, M, C)``: sum_j W_jc exp(s(q, k_j) - shift(q)) m(k_j - q).

        The monomials m are those of degree <= ``degree`` in graded lexicographic order (see ``exponents``; in one
        dimension 1, t, t^2, ...), of differences in prepared units (divided by the bandwidth). shift is -inf where no
        key is in the support.
        """
        ...


@runtime_checkable
class Apart(Protocol):
    """Sources that sum without one key of each query faster than pair by pair."""

    def others(self, query: Floats, own: Integers) -> tuple[Floats, Floats]:
        """``sums`` without the key ``own (Q,)``; shift is -inf where there is no other."""
        ...


def exponents(features: int, degree: int) -> list[tuple[int, ...]]:
    """The exponents of the monomials in ``features`` variables up to a degree, in graded lexicographic order.

    >>> exponents(2, 2)
    [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)]
    """
    chosen = (c for total in range(degree + 1) for c in combinations_with_replacement(range(features), total))
    return [tuple(c.count(f) for f in range(features)) for c in chosen]


def why_slow(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str | None:
    """Why these sums take all pairs, or None where a construction takes fewer."""
    reasons = [_way(name).why_not(kernel, parameters, features) for name in WAYS[:-1]]
    return None if None in reasons else "; ".join(r for r in reasons if r) or "its sums take all pairs"


def why_dear(
    kernel: type[Kernel], parameters: tuple[float, ...], query: Floats, key: Floats, rtol: float
) -> str | None:
    """Why these sums cost more than all pairs at once, where their construction knows such data; else None."""
    estimate = getattr(_way(_able(kernel, parameters, key.shape[1])), "why_dear", None)
    return None if estimate is None else estimate(kernel, parameters, query, key, rtol)


def sources(
    kernel: type[Kernel],
    parameters: tuple[float, ...],
    key: Floats,
    weight: Floats,
    rtol: float,
    threads: int | None = None,
) -> Sources:
    """The keys, prepared by the first construction that can.

    ``key (K, D)`` in prepared units; ``weight (K, C)``, column 0 >= 0: what errors are relative to. For a pooling that
    is the weight of the row, and the others are it times a column of the values.
    """
    prepare: Callable[..., Sources] = _way(_able(kernel, parameters, key.shape[1])).prepare
    return prepare(kernel, parameters, key, weight, rtol, threads)


def _able(kernel: type[Kernel], parameters: tuple[float, ...], features: int) -> str:
    return next(name for name in WAYS if _way(name).why_not(kernel, parameters, features) is None)


def _way(name: str) -> Any:
    return import_module(f"regard.engines.lowdim.{name}")
