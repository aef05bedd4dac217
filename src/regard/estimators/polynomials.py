"""Polynomials of several variables: their monomials, moved about, and the systems that fit them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from regard.estimators.memory import Floats, Integers

TOLERANCE = 1e-10  # the part of a monomial that those before it leave unexplained; below it the window says nothing
ROUNDING = 64 * np.finfo(float).eps


@dataclass(frozen=True, eq=False)
class Basis:
    """Monomials of d variables up to a degree, in graded order, and what moves them to another centre."""

    d: int
    degree: int

    @cached_property
    def exponents(self) -> Integers:
        """(M, d)"""
        chosen = (c for n in range(self.degree + 1) for c in itertools.combinations_with_replacement(range(self.d), n))
        found = [[c.count(f) for f in range(self.d)] for c in chosen]
        return np.array(found, dtype=int).reshape(len(found), self.d)

    def __call__(self, z: Floats) -> Floats:
        """(n, M): all monomials of the rows of z (n, d)."""
        out = np.ones((len(z), len(self.exponents)), dtype=z.dtype)
        place = {tuple(e): n for n, e in enumerate(self.exponents)}
        for n, e in enumerate(self.exponents[1:], start=1):
            c = int(np.flatnonzero(e)[0])
            less = e.copy()
            less[c] -= 1
            out[:, n] = out[:, place[tuple(less)]] * z[:, c]
        return out

    def products(self, twice: Basis) -> Integers:
        """(M, M): where the product of two monomials stands among those of twice the degree."""
        return _products(self.d, self.degree, twice.degree)

    def shift(self, q: Floats) -> Floats:
        """(n, M, M): ``m(z - q) = T m(z)`` for each row of q (n, d)."""
        out = np.zeros((len(q), len(self.exponents), len(self.exponents)))
        for (i, a), (j, b) in itertools.product(enumerate(self.exponents), repeat=2):
            if np.all(a >= b):
                ways = math.prod(math.comb(int(m), int(n)) for m, n in zip(a, b, strict=True))
                out[:, i, j] = ways * np.prod((-q) ** (a - b), axis=1)
        return out


@lru_cache(maxsize=32)
def _products(d: int, degree: int, twice: int) -> Integers:
    place = {tuple(e): n for n, e in enumerate(Basis(d, twice).exponents)}
    own = Basis(d, degree).exponents
    return np.array([[place[tuple(a + b)] for b in own] for a in own])


@dataclass(frozen=True, eq=False)
class Solved:
    """Factors of the systems of many windows, in which monomials that a window does not determine are left out.

    ``S = D L L' D`` with ``D = diag(S)^1/2``: the pivot of a monomial is the part of it, 1 - R^2, that those before it
    do not explain. They stand in graded order, so a window of too few distinct points keeps the highest degree that it
    determines.
    """

    lower: Floats  # (Q, M, M)
    kept: Any  # (Q, M)
    scale: Floats  # (Q, M), of which D is the inverse

    @staticmethod
    def of(S: Floats, error: Floats) -> Solved:
        """S (Q, M, M); ``error (Q, M)`` that its diagonal may have."""
        diagonal = np.diagonal(S, axis1=1, axis2=2)
        scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        A = S * scale[:, :, None] * scale[:, None, :]
        least = TOLERANCE + error * scale**2
        L, kept = np.zeros_like(A), np.zeros(scale.shape, dtype=bool)
        for j in range(A.shape[1]):
            column = A[:, j:, j] - np.einsum("qik,qk->qi", L[:, j:, :j], L[:, j, :j])
            kept[:, j] = column[:, 0] > least[:, j]
            root = np.sqrt(np.where(kept[:, j], column[:, 0], 1.0))
            L[:, j:, j] = np.where(kept[:, j, None], column / root[:, None], 0.0)
            L[:, j, j] = root
        return Solved(L, kept, scale)

    def __call__(self, right: Floats) -> Floats:
        """(Q, M, V): the solutions for right sides (Q, M, V)."""
        L, x = self.lower, right * self.scale[:, :, None]
        m = x.shape[1]
        for j in range(m):
            x[:, j] -= np.einsum("qk,qkv->qv", L[:, j, :j], x[:, :j])
            x[:, j] = np.where(self.kept[:, j, None], x[:, j] / L[:, j, j, None], 0.0)
        for j in reversed(range(m)):
            x[:, j] -= np.einsum("qk,qkv->qv", L[:, j + 1 :, j], x[:, j + 1 :])
            x[:, j] = np.where(self.kept[:, j, None], x[:, j] / L[:, j, j, None], 0.0)
        return x * self.scale[:, :, None]
