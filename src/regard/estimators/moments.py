"""Moments of the keys around each query, and the polynomials of least weighted squares that they determine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from regard.engines.lowdim.sources import Sources, sources, why_slow
from regard.estimators.bandwidths import chosen, parts
from regard.estimators.memory import Floats, Integers, Memory
from regard.estimators.polynomials import ROUNDING, Basis, Solved
from regard.scores import Biweight, Epanechnikov, Gaussian, Laplacian, Uniform
from regard.scores.base import Kernel, Leaf, On, Scaled, Score, Sum

# of a block of queries, in bandwidths, by degree: its 2p-th power costs digits
RADIUS = {0: np.inf, 1: 16.0, 2: 4.0, 3: 2.0, 4: 1.5, 5: 1.0}
QUERIES = 1 << 14  # queries of a block
PAIRS = 1 << 20  # numbers that are held at once where keys are seen one by one
WORTH = 1 << 24  # pairs below which a pooling of all of them costs less than an expansion
LEAST = 1e-12  # the error of an expansion below which pairs are summed instead
SQUARED: dict[type[Kernel], tuple[type[Kernel], float]] = {  # K^2 is this kernel at this multiple of the bandwidth
    Epanechnikov: (Biweight, 1.0),
    Gaussian: (Gaussian, 0.5**0.5),
    Laplacian: (Laplacian, 0.5),
    Uniform: (Uniform, 1.0),
}


def sloped(score: Score, columns: list[int]) -> set[int]:
    """The features along which a polynomial may run: all that the score looks at, but for categories."""
    match score:
        case Sum(parts=parts):
            every = [sloped(part, columns) for part in parts]
            return set().union(*every) - {c for part in parts for c in _categorical(part, columns)}
        case Scaled():
            return sloped(score.score, columns)
        case On():
            return sloped(score.score, chosen(score, columns))
    return {columns[c] for c in score.uses(len(columns))} - _categorical(score, columns)


def _categorical(score: Score, columns: list[int]) -> set[int]:
    match score:
        case Sum(parts=parts):
            return {c for part in parts for c in _categorical(part, columns)}
        case Scaled():
            return _categorical(score.score, columns)
        case On():
            return _categorical(score.score, chosen(score, columns))
        case Leaf() if np.isfinite(score.largest_bandwidth):
            return set(columns)
    return set()


@dataclass(frozen=True, eq=False)
class Windows:
    """The fitted polynomials of some queries, which share a centre."""

    at: Integers  # which queries
    centre: Floats  # (d,)
    shift: Any  # (Q, M, M): monomials about the centre to those about each query; None where sums are about queries
    log_weight_sum: Floats  # (Q,)
    coefficients: Floats  # (Q, M): key i has the share w_i K_i (coefficients . m(x_i)) / sum w K, m about the query
    polynomial: Floats  # (Q, M, V): about the query, in units

    @property
    def about_centre(self) -> Floats:
        """(Q, M): the coefficients for monomials about the centre."""
        return np.asarray(np.einsum("qmn,qm->qn", self.shift, self.coefficients))

    @property
    def polynomial_about_centre(self) -> Floats:
        """(Q, M, V)"""
        return np.asarray(self.shift.mT @ self.polynomial)


@dataclass(frozen=True, eq=False)
class Moments:
    """What the keys around queries say of polynomials.

        S(q) = sum_i w_i K(q, x_i) m_i m_i',  T(q) = sum_i w_i K(q, x_i) m_i v_i,  m_i = m((x_i - q) / unit)

    Queries are taken in blocks of the order of the bandwidth: the monomials about the centre of a block are values of
    one pooling, and a move from there to each query costs no more digits than the radius of the block says.
    """

    memory: Memory
    score: Score
    features: tuple[int, ...]  # along which the polynomials run
    unit: Floats  # (d,), of those features
    degree: int

    @cached_property
    def bases(self) -> tuple[Basis, Basis]:
        return Basis(len(self.features), self.degree), Basis(len(self.features), 2 * self.degree)

    @cached_property
    def pairwise(self) -> Memory:
        """The rows for sums over all pairs, which "lowdim" may have declined."""
        engine = "auto" if self.memory.engine == "lowdim" else self.memory.engine
        return replace(self.memory, engine=engine, rtol=None, kept={})

    @cached_property
    def products(self) -> Integers:
        one, two = self.bases
        return one.products(two)

    @cached_property
    def pairs(self) -> Integers:
        """(2, M M): the two monomials of each entry of ``products``."""
        return np.indices(self.products.shape).reshape(2, -1)

    def monomials(self, x: Floats, centre: Floats, basis: Basis) -> Floats:
        """(n, M): those of the rows of x about a centre."""
        return basis((x[:, list(self.features)] - centre) / self.unit)

    def windows(self, query: Floats, value: Floats) -> Iterator[Windows]:
        """The fits of the values (n, V) at the queries, block by block."""
        if self.linear(len(query)):
            yield self._line(query, value)
            return
        yield from self.exact(query, value)

    def exact(self, query: Floats, value: Floats) -> Iterator[Windows]:
        """The same, by all pairs."""
        one, two = self.bases
        m, m2 = len(one.exponents), len(two.exponents)
        for at, centre in self.blocks(query):
            about = self.monomials(self.memory.key, centre, two)
            first = about[:, :m, None] * value[:, None, :]
            columns = np.concatenate([about[:, 1:], first.reshape(len(value), -1)], axis=1)
            partial = self.pairwise.partial(self.score, query[at], columns)
            sums = partial.finish()
            there = partial.weight_sum > 0
            moments = np.concatenate([there[:, None], sums[:, : m2 - 1]], axis=1)[:, self.products]
            shift = one.shift((query[at][:, list(self.features)] - centre) / self.unit)
            S, size = shift @ moments @ shift.mT, abs(shift) @ abs(moments) @ abs(shift).mT
            T = shift @ sums[:, m2 - 1 :].reshape(len(at), m, -1)
            log_weight_sum = np.asarray(partial.log_weight_sum)
            error = ROUNDING * np.diagonal(size, axis1=1, axis2=2)  # of what would be if nothing had cancelled
            yield self.solved(at, centre, shift, log_weight_sum, S, error, T)

    @staticmethod
    def solved(
        at: Integers, centre: Floats, shift: Any, log_weight_sum: Floats, S: Floats, error: Floats, T: Floats
    ) -> Windows:
        system = Solved.of(S, error)
        unit = np.zeros((len(S), S.shape[1], 1))
        unit[:, 0] = 1.0
        found = system(np.concatenate([unit, T], axis=2))
        return Windows(at, centre, shift, log_weight_sum, found[:, :, 0], found[:, :, 1:])

    def squares(self, windows: Windows, query: Floats, value: Floats) -> Floats:
        """(Q, V): ``sum_i w_i (K_i c . m_i / sum w K)^2 value_i``, the c of the windows."""
        if windows.shift is None:
            return self._line_squares(windows, query, value)
        two = self.bases[1]
        c = windows.about_centre
        about = self.monomials(self.memory.key, windows.centre, two)
        columns = (about[:, :, None] * value[:, None, :]).reshape(len(value), -1)
        q = query[windows.at]
        partial = self.pairwise.partial(2 * self.score, q, columns)
        there = partial.weight_sum > 0
        with np.errstate(invalid="ignore"):
            scale = np.where(there, np.exp(np.where(there, partial.max - 2 * windows.log_weight_sum, 0.0)), 0.0)
        sums = partial.value_sum.reshape(len(q), len(two.exponents), -1)[:, self.products]
        return np.asarray(np.einsum("qm,qmnv,qn->qv", c, sums, c) * scale[:, None])

    def variance(self, query: Floats, value: Floats) -> Floats:
        """(Q, V): the variance of values about the polynomial of each window; NaN where no freedom is left.

        sum_i w_i K_i (v_i - p(x_i))^2 / tr(W - W m S^-1 m' W),  W of the w_i K_i
        """
        one, two = self.bases
        m, m2, v = len(one.exponents), len(two.exponents), value.shape[1]
        out = np.full((len(query), v), np.nan)
        for at, centre in self.blocks(query):
            about = self.monomials(self.memory.key, centre, two)
            first = (about[:, :m, None] * value[:, None, :]).reshape(len(value), -1)
            partial = self.pairwise.partial(self.score, query[at], np.concatenate([about, first, value**2], axis=1))
            squared = self.pairwise.partial(2 * self.score, query[at], about)
            there = partial.weight_sum > 0
            sums = partial.finish()
            shift = one.shift((query[at][:, list(self.features)] - centre) / self.unit)
            moments = sums[:, :m2][:, self.products]
            S, size = shift @ moments @ shift.mT, abs(shift) @ abs(moments) @ abs(shift).mT
            T = shift @ sums[:, m2 : m2 + m * v].reshape(len(at), m, v)
            solved = Solved.of(S, ROUNDING * np.diagonal(size, axis1=1, axis2=2))
            left = sums[:, m2 + m * v :] - np.einsum("qmv,qmv->qv", solved(T), T)
            scale = np.exp(np.where(there, squared.max - 2 * np.asarray(partial.log_weight_sum), -np.inf))
            twice = shift @ squared.value_sum[:, self.products] @ shift.mT
            free = 1 - scale * np.einsum("qmn,qnm->q", solved(np.broadcast_to(np.eye(m), S.shape)), twice)
            some: Any = there & (free > 1e-9)
            out[at] = np.where(some[:, None], left / np.where(some, free, 1.0)[:, None], np.nan)
        return out

    def linear(self, queries: int) -> bool:
        """Whether an expansion in one dimension, with a stated error, costs less than all pairs."""
        part, engine = self._part, self.memory.engine
        if not self.memory.rtol or part is None or engine not in ("auto", "lowdim"):
            return False
        kernel, parameters = type(part.leaf), self._parameters(part.leaf)
        able = kernel in SQUARED and self._rtol >= LEAST and why_slow(kernel, parameters, 1) is None
        return able and (engine == "lowdim" or queries * len(self.memory.key) >= WORTH)

    @cached_property
    def _rtol(self) -> float:
        """The error to ask of sums in units of the bandwidth, so that it is as small in those of the data."""
        x = self.memory.key[:, self._part.columns[0]]
        wide = 2 * float(np.std(x)) / float(np.ravel(self._part.leaf.bandwidth)[0])
        return (self.memory.rtol or 0.0) * min(wide, 1.0) ** (2 * self.degree)

    @cached_property
    def _part(self) -> Any:
        """The one kernel of one feature, if that is all that the score is."""
        found = list(parts(self.score, list(range(self.memory.key.shape[1]))))
        part = found[0] if len(found) == 1 else None
        if part is None or len(part.columns) != 1 or not isinstance(part.leaf, Kernel) or np.any(part.factor != 1):
            return None
        if self.degree and self.features != tuple(part.columns):
            return None
        return part if np.isfinite(float(np.ravel(part.leaf.bandwidth)[0])) else None

    @staticmethod
    def _parameters(kernel: Kernel) -> tuple[float, ...]:
        return tuple(float(p.ravel()[0]) for p in kernel.parameters(np, np.zeros((1, 1))).values())

    def _sums(self, query: Floats, value: Floats, squared: bool) -> tuple[Floats, Floats]:
        """shift (Q,) and (Q, 2p + 1, 1 + V): the sums of w K, or w K^2, with powers of (x_i - q) / unit and values."""
        leaf, column = self._part.leaf, self._part.columns[0]
        h, kernel = float(np.ravel(leaf.bandwidth)[0]), type(leaf)
        if squared:
            kernel, ratio = SQUARED[kernel]
            h *= ratio
        origin = self.memory.key[:1, [column]]
        weight, live = self.memory.weight[:, None], self.memory.weight > 0
        columns = np.concatenate([weight, weight * value], axis=1)[live]
        key = ((self.memory.key[:, [column]] - origin) / h)[live]
        made: Sources = sources(kernel, self._parameters(leaf), key, columns, self._rtol, self.memory.threads)
        shift, found = made.sums((query[:, [column]] - origin) / h, 2 * self.degree)
        if self.degree:
            found *= (h / self.unit[0]) ** np.arange(2 * self.degree + 1)[:, None]
        return shift, found

    def _line(self, query: Floats, value: Floats) -> Windows:
        """All queries at once, by sums about each of them."""
        m = self.degree + 1
        shift, found = self._sums(query, value, squared=False)
        total = found[:, 0, 0].copy()
        there = (shift > -np.inf) & (total > 0)
        found /= np.where(there, total, 1.0)[:, None, None]
        found[~there] = 0.0
        with np.errstate(divide="ignore"):
            log_weight_sum = np.where(there, shift + np.log(np.where(there, total, 1.0)), -np.inf)
        S = found[:, self.products, 0]
        error = np.full(S.shape[:2], 4 * self._rtol)
        error[:, 0] = 0.0
        return self.solved(np.arange(len(query)), np.zeros(0), None, log_weight_sum, S, error, found[:, :m, 1:])

    def _line_squares(self, windows: Windows, query: Floats, value: Floats) -> Floats:
        shift, found = self._sums(query[windows.at], value, squared=True)
        c = windows.coefficients
        with np.errstate(invalid="ignore"):
            scale = np.exp(np.where(np.isfinite(shift), shift - 2 * windows.log_weight_sum, -np.inf))
        return np.asarray(np.einsum("qm,qmnv,qn->qv", c, found[:, self.products, 1:], c) * scale[:, None])

    def without_own(self, rows: Integers, taken: Floats, value: Floats) -> tuple[Floats, Any]:
        """(r, V): the fits of these rows by all others, keys seen one by one; and where there is nothing to go by.

        ``taken (r,)``: how much of the own weight is not there.
        """
        one, two = self.bases
        key, m = self.memory.key, len(one.exponents)
        fit, empty = np.empty((len(rows), value.shape[1])), np.zeros(len(rows), dtype=bool)
        step = max(PAIRS // (len(key) * len(two.exponents)), 1)
        for start in range(0, len(rows), step):
            at = rows[start : start + step]
            weight = np.broadcast_to(self.memory.weight, (len(at), len(key))).astype(np.float64)
            mine = np.arange(len(at)), at
            weight[mine] = np.maximum(weight[mine] - taken[start : start + step], 0.0)
            weight[mine] = np.where(weight[mine] > 1e-12 * taken[start : start + step], weight[mine], 0.0)
            s = np.where(weight > 0, self.score(key[at], key), -np.inf)
            top = s.max(axis=1, keepdims=True)
            there = top[:, 0] > -np.inf
            weight *= np.exp(s - np.where(there[:, None], top, 0.0))
            weight /= np.where(there, weight.sum(axis=1), 1.0)[:, None]
            z = (key[None, :, list(self.features)] - key[at][:, None, list(self.features)]) / self.unit
            about = two(z.reshape(z.shape[0] * z.shape[1], -1)).reshape(len(at), len(key), -1)
            moments = np.einsum("rk,rkm->rm", weight, about)
            size = np.diagonal(np.einsum("rk,rkm->rm", weight, abs(about))[:, self.products], axis1=1, axis2=2)
            T = np.einsum("rk,rkm,kv->rmv", weight, about[:, :, :m], value, optimize=True)
            none = np.zeros((len(at), m, m))  # each row is its own centre
            found = self.solved(at, np.zeros(0), none, none[:, 0, 0], moments[:, self.products], ROUNDING * size, T)
            fit[start : start + step], empty[start : start + step] = found.polynomial[:, 0], ~there
        return fit, empty

    def blocks(self, query: Floats) -> Iterator[tuple[Integers, Floats]]:
        """Which queries are taken together, and the centre of their monomials."""
        x = query[:, list(self.features)]
        every = np.arange(len(query))
        groups = [every]
        radius = RADIUS[self.degree]
        if len(query) and x.shape[1] and np.isfinite(radius):
            with np.errstate(over="ignore", invalid="ignore"):
                cell = np.floor((x - x.min(axis=0)) / (2 * radius * self.unit))
            _, group = np.unique(cell, axis=0, return_inverse=True)
            order = np.argsort(group.ravel(), kind="stable")
            groups = np.split(order, np.cumsum(np.bincount(group.ravel()))[:-1])
        for group in groups:
            for start in range(0, len(group), QUERIES):
                at = group[start : start + QUERIES]
                low, high = x[at].min(axis=0), x[at].max(axis=0)
                yield at, low + (high - low) / 2
