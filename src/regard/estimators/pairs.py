"""Fits of few rows to themselves: all their pairs at once, block by block, with gradients to the bandwidths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from regard.estimators.bandwidths import Part, parts
from regard.estimators.memory import Floats, Integers
from regard.estimators.polynomials import ROUNDING, Basis, Solved
from regard.estimators.rows import Rows
from regard.scores import Gaussian
from regard.scores.base import Kernel, Score

HELD = 1 << 24  # numbers that may be kept from one bandwidth to the next: 128 MiB in float64
BLOCK = 1 << 17  # pairs of a block: they stay in the cache
CLOSE = 30.0  # numbers whose squared difference may be taken from their squares: 900 units in the last place
# logarithms of weights are cut off below, since numbers without all their digits are ten times as slow; and sums of
# weights, from which on that is beyond all digits: smaller ones are taken again, in units of the largest weight
SMALL = {"float32": (-75.0, 1e-23), "float64": (-600.0, 1e-200)}
FALL = 40.0  # of a logarithm: what is less by that is no part of a sum


def supported(score: Score, features: int) -> bool:
    """Whether all parts of the score are kernels of a distance, or of categories: then ``Pairs`` can have it."""
    found = parts(score, list(range(features)))
    return all(p is not None and (isinstance(p.leaf, Kernel) or p.leaf.largest_bandwidth < np.inf) for p in found)


class Block(NamedTuple):
    """Some rows as queries, their keys, and what does not depend on bandwidths."""

    at: slice
    centre: Floats
    squares: Any  # (L, B * n) or None: the squared differences of the features that have a length
    codes: Any  # (B, n) or None: which kind of pair of categories
    columns: Floats  # (n, M2 + M1 V): monomials about the centre, then those that meet the values
    shift: Any  # (B, M1, M1) or None


class Seen(NamedTuple):
    """A block at some bandwidths."""

    block: Block
    keys: slice  # that count
    weight: Floats  # (B, k)
    parts: list[Floats]  # of each radial part, its squared distances; of a Gaussian one, its score
    coefficients: Floats  # (B, M1): the weights of the fit are ``weight * (coefficients . monomials)``
    polynomial: Floats  # (B, M1, V): the fitted polynomials about the centre
    fit: Floats  # (B, V)
    own: Floats  # (B,)
    diagonal: Floats  # (B,): the own key's weight


@dataclass(frozen=True, eq=False)
class Pairs:
    """Local polynomials of rows at themselves, by the weights of a product of kernels.

        f(x_i) = e_1' S_i^-1 T_i,  S_i = sum_j w_j K_ij m_ij m_ij',  T_i = sum_j w_j K_ij m_ij v_j,  m_ij = m(x_j - x_i)

    ``own`` is the share that a row has in its own fit, the diagonal of the hat matrix. With ``leaves_out`` one count of
    the own row is taken out of its sums before they are solved, which loses no digits. Of a row without any key the fit
    is NaN. Degree 0 is Nadaraya-Watson; the slopes are those along the features with a length.

    Up to ``HELD`` squared differences are computed once, and reused at all bandwidths; beyond that, block by block.
    """

    rows: Rows
    score: Score
    spread: Floats  # (D,), > 0: the unit of each feature
    leaves_out: bool
    degree: int = 0
    dtype: Any = np.float64

    @cached_property
    def parts(self) -> list[Part]:
        return [p for p in parts(self.score, list(range(self.rows.X.shape[1]))) if p is not None]

    @cached_property
    def radial(self) -> list[tuple[Part, Integers]]:
        """The kernels of lengths, and the positions of their features among the lengths."""
        place = {c: n for n, c in enumerate(self.lengths)}
        return [
            (p, np.array([place[c] for c in p.columns if c in place], dtype=int))
            for p in self.parts
            if isinstance(p.leaf, Kernel)
        ]

    @cached_property
    def coded(self) -> list[Part]:
        return [p for p in self.parts if not isinstance(p.leaf, Kernel)]

    @cached_property
    def lengths(self) -> list[int]:
        """The features that have a length and vary."""
        used = {c for p in self.parts if isinstance(p.leaf, Kernel) for c in p.columns}
        return [c for c in sorted(used) if np.ptp(self.rows.X[:, c]) > 0]

    @cached_property
    def z(self) -> Floats:
        """(n, L): what the squared differences are of."""
        X = self.rows.X[:, self.lengths]
        return np.asarray((X - X.mean(axis=0)) / self.spread[self.lengths])

    @cached_property
    def kinds(self) -> tuple[list[tuple[Integers, Integers]], list[Floats]]:
        """For each part of categories, the code of each row and the kind of each pair of codes; each kind's numbers."""
        found: list[tuple[Integers, Integers]] = []
        tables: list[Floats] = []
        for p in self.coded:
            levels, code = np.unique(self.rows.X[:, p.columns[0]], return_inverse=True)
            u = p.leaf.pairing_for(np)(np, levels[:, None], levels[:, None])
            values, kind = np.unique(u, return_inverse=True)
            size = len(tables[0]) if tables else 1
            found.append((code, kind.reshape(u.shape) * size))
            tables = [np.tile(t, len(values)) for t in tables] + [np.repeat(values, size)]
        return found, tables

    @cached_property
    def sorted(self) -> bool:
        """Whether keys of a block are neighbours: one length alone, and rows in its order."""
        alone = len(self.lengths) == 1 and len(self.radial) == 1 and not self.coded
        return alone and bool(np.all(np.diff(self.z[:, 0]) >= 0))

    @cached_property
    def own_weight(self) -> Floats:
        """(n,) of the own key: of the whole row, or of what leaving out one count leaves of it."""
        w, count = self.rows.weight, self.rows.count
        return w * np.maximum(count - 1, 0) / count if self.leaves_out else w

    @cached_property
    def gap(self) -> Floats:
        """(n,) the distance to the nearest key that has a weight, in one dimension."""
        z = self.z[:, 0]
        d = np.concatenate([[np.inf], np.diff(z), [np.inf]])
        return np.where(self.own_weight > 0, 0.0, np.minimum(d[:-1], d[1:]))

    @cached_property
    def bases(self) -> tuple[Basis, Basis]:
        d = len(self.lengths)
        return Basis(d, self.degree), Basis(d, 2 * self.degree)

    @cached_property
    def held(self) -> list[Block] | None:
        """All blocks, where there is room for them."""
        n, columns = len(self.rows.X), 0 if self.sorted else len(self.lengths) + len(self.coded)
        monomials = len(self.bases[1].exponents) + len(self.bases[0].exponents) * self.rows.value.shape[1]
        room = n * n * columns + n * monomials * math.ceil(n / self.size)
        return list(self._blocks()) if room <= HELD else None

    @property
    def size(self) -> int:
        """Rows of a block."""
        return max(min(BLOCK // len(self.rows.X), len(self.rows.X)), 1)

    def _blocks(self) -> Iterator[Block]:
        n = len(self.rows.X)
        one, two = self.bases
        flat = np.concatenate([np.ones((n, 1)), self.rows.value], axis=1).astype(self.dtype)
        for start in range(0, n, self.size):
            at = slice(start, min(start + self.size, n))
            centre = self.z[at].mean(axis=0)
            squares, codes, shift, columns = None, None, None, flat
            if not self.sorted and self.lengths:
                d = self.z[at].T[:, :, None] - self.z.T[:, None, :]
                squares = (d * d).reshape(len(d), -1).astype(self.dtype)
            if self.coded:
                codes = sum(kind[code[at, None], code[None, :]] for code, kind in self.kinds[0])
            if self.degree:
                moments = two(self.z - centre)
                first = moments[:, : len(one.exponents), None] * self.rows.value[:, None, :]
                columns = np.concatenate([moments, first.reshape(n, -1)], axis=1).astype(self.dtype)
                shift = one.shift(self.z[at] - centre)
            yield Block(at, centre, squares, codes, columns, shift)

    # ---- forward

    def fit(self, h: Floats, keep: bool = True) -> tuple[Floats, Floats, list[Seen] | None]:
        """(n, V) the fits and (n,) own shares at bandwidths (D,); the blocks as they were seen, if they may stay."""
        n = len(self.rows.X)
        keep = keep and self.held is not None and n * n * (1 + len(self.radial)) <= HELD
        fit, own, kept = np.empty((n, self.rows.value.shape[1])), np.empty(n), []
        for seen in self.blocks(h, keep):
            fit[seen.block.at], own[seen.block.at] = seen.fit, seen.own
            if keep:
                kept.append(seen)
        return fit, own, kept if keep else None

    def blocks(self, h: Floats, keep: bool = False) -> Iterator[Seen]:
        """The blocks at bandwidths (D,), one by one; unless they are to be kept, all in the same memory."""
        ratio = (h / self.spread)[self.lengths]
        reach = self._reach(float(ratio[0])) if self.sorted else None
        table = self._table(h)
        for n, block in enumerate(self.held if self.held is not None else self._blocks()):
            keys = slice(0, len(self.rows.X))
            if reach is not None:
                z = self.z[:, 0]
                low, high = z[block.at.start] - reach[n], z[block.at.stop - 1] + reach[n]
                keys = slice(int(np.searchsorted(z, low)), int(np.searchsorted(z, high, "right")))
            yield self._look(block, keys, ratio, table, block.at.start if keep else 0)

    def _reach(self, ratio: float) -> Floats:
        """(blocks,): beyond this distance nothing counts, beside what the nearest key of each row gives."""
        part, _ = self.radial[0]
        starts = np.arange(0, len(self.gap), self.size)
        near = np.maximum.reduceat(self.gap, starts) / ratio
        u, fall = self._profile
        at = np.searchsorted(fall, FALL - part.factor * self._formula(part, near**2))
        return np.asarray(ratio * np.sqrt(np.append(u, np.inf)[at]))

    @cached_property
    def _profile(self) -> tuple[Floats, Floats]:
        """Squared distances, and how far the logarithm of the kernel has fallen there."""
        part, _ = self.radial[0]
        u = np.geomspace(1e-12, 1e12, 481)
        return u, -part.factor * self._formula(part, u)

    @staticmethod
    def _formula(part: Part, u: Floats) -> Floats:
        parameters = [p.ravel()[0].astype(u.dtype) for p in part.leaf.parameters(np, np.zeros((1, 1))).values()]
        return np.asarray(type(part.leaf).formula(np, u, *parameters))

    @staticmethod
    def _slope(part: Part, u: Floats) -> Any:
        parameters = [p.ravel()[0].astype(u.dtype) for p in part.leaf.parameters(np, np.zeros((1, 1))).values()]
        return type(part.leaf).slope(np, u, *parameters)[0]

    def _table(self, h: Floats) -> Floats | None:
        """The scores of all kinds of pairs of categories."""
        if not self.coded:
            return None
        found: Any = sum(
            p.factor * self._formula(p._replace(leaf=replace(p.leaf, bandwidth=float(h[p.columns[0]]))), u)
            for p, u in zip(self.coded, self.kinds[1], strict=True)
        )
        return np.asarray(found, dtype=self.dtype)

    def _look(self, block: Block, keys: slice, ratio: Floats, table: Floats | None, place: int) -> Seen:
        at = block.at
        rows = np.arange(at.start, at.stop)
        parts: list[Floats] = []
        score: Any = 0.0
        for part, features in self.radial:
            if type(part.leaf) is Gaussian:
                parts.append(self._squared((part.name, place), block, keys, ratio, features, -float(part.factor) / 2))
                score = parts[-1] if isinstance(score, float) else score + parts[-1]
            else:
                parts.append(self._squared((part.name, place), block, keys, ratio, features))
                score = score + part.factor * self._formula(part, parts[-1])
        if table is not None:
            score = score + table[block.codes]
        if isinstance(score, float):
            score = np.zeros((len(rows), keys.stop - keys.start), dtype=self.dtype)
        least, small = SMALL[np.dtype(self.dtype).name]
        weight = np.maximum(score, least, out=self._room(("weight", place), score.shape))
        np.exp(weight, out=weight)
        if self._weighs:
            weight *= self.rows.weight[keys]
        own = self.own_weight[at].astype(self.dtype)
        weight[rows - at.start, rows - keys.start] = own
        columns = block.columns[keys]
        sums = (weight @ columns).astype(np.float64)
        thin = np.flatnonzero(sums[:, 0] < small)
        if thin.size:  # all keys are far: in units of the nearest
            few = np.where(self.rows.weight[keys] > 0, score[thin], -np.inf)
            few[np.arange(thin.size)[own[thin] == 0], (rows[thin] - keys.start)[own[thin] == 0]] = -np.inf
            top = few.max(axis=1, keepdims=True)
            weight[thin] = np.exp(few - np.where(np.isfinite(top), top, 0.0)) * self.rows.weight[keys]
            there = own[thin] > 0
            weight[thin[there], rows[thin[there]] - keys.start] *= own[thin[there]] / self.rows.weight[at][thin[there]]
            sums[thin] = weight[thin] @ columns
        diagonal = weight[rows - at.start, rows - keys.start].astype(np.float64)
        coefficients, polynomial, fit, share = self._solve(block, sums)
        return Seen(block, keys, weight, parts, coefficients, polynomial, fit, diagonal * share, diagonal)

    @cached_property
    def _weighs(self) -> bool:
        return bool(np.any(self.rows.weight != 1))

    def _room(self, key: tuple[str, int], shape: tuple[int, ...]) -> Floats:
        """Memory that is written again at each bandwidth: fresh pages cost as much as the numbers in them."""
        size = math.prod(shape)
        if key not in self.scratch or self.scratch[key].size < size:
            self.scratch[key] = np.empty(size + size // 4, dtype=self.dtype)
        return self.scratch[key][:size].reshape(shape)

    @cached_property
    def scratch(self) -> dict[tuple[str, int], Floats]:
        return {}

    def _squared(
        self,
        place: tuple[str, int],
        block: Block,
        keys: slice,
        ratio: Floats,
        features: Integers,
        factor: float | None = None,
    ) -> Floats:
        """(B, k) the squared distances, times the factor if there is one."""
        shape = block.at.stop - block.at.start, keys.stop - keys.start
        if not features.size:
            return np.zeros(shape, dtype=self.dtype)
        out = self._room(place, shape)
        if block.squares is None:  # the block's centre first: narrow kernels far from the middle keep their digits
            z = (self.z[:, 0] - block.centre[0]) / ratio[0]
            q, k = z[block.at], z[keys]
            if factor is not None and max(abs(k[0]), abs(k[-1])) < CLOSE:
                left = np.stack([q * q * factor, q, np.ones_like(q)], axis=1)
                right = np.stack([np.ones_like(k), k * (-2 * factor), k * k * factor])
                return np.matmul(left.astype(self.dtype), right.astype(self.dtype), out=out)
            # a product of matrices is several times as fast as broadcasting, and rounds the same
            left, right = np.stack([q, np.ones_like(q)], axis=1), np.stack([np.ones_like(k), -k])
            d = np.matmul(left.astype(self.dtype), right.astype(self.dtype), out=out)
            d *= d
            return d if factor is None else np.multiply(d, factor, out=d)
        inverse = np.zeros(len(ratio))
        inverse[features] = ratio[features] ** -2.0
        inverse *= 1.0 if factor is None else factor
        np.matmul(inverse.astype(self.dtype), block.squares, out=out.reshape(-1))
        return out

    def _solve(self, block: Block, sums: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """What makes weights of kernels those of the fit, the polynomial, the fit, the own share by own weight."""
        if not self.degree:
            some = sums[:, :1] > 0
            c = some / np.where(some, sums[:, :1], 1.0)
            fit = sums[:, 1:] * c
            return c, fit[:, None, :], np.where(some, fit, np.nan), c[:, 0]
        one, two = self.bases
        m = len(one.exponents)
        T, about = block.shift, sums[:, one.products(two)]
        S, size = T @ about @ T.mT, abs(T) @ abs(about) @ abs(T).mT
        # of a moment that is 0 at the row, a move to it leaves rounding, of either sign
        solved = Solved.of(S, ROUNDING * np.diagonal(size, axis1=1, axis2=2))
        lonely = ~(sums[:, 0] > 0)
        right = np.zeros((len(S), m, 1 + self.rows.value.shape[1]))
        right[:, 0, 0] = 1.0
        right[:, :, 1:] = T @ sums[:, len(two.exponents) :].reshape(len(S), m, -1)
        found = solved(right)
        found[lonely] = 0.0
        about = T.mT @ found  # in monomials about the centre of the block
        fit = np.where(lonely[:, None], np.nan, found[:, 0, 1:])
        return about[:, :, 0], about[:, :, 1:], fit, found[:, 0, 0]

    # ---- backward

    def backward(self, h: Floats, seen: list[Seen] | None, to_fit: Floats, to_own: Floats | None) -> dict[str, Floats]:
        """The gradients to the bandwidths, by the names of ``leaves``, from those to fits and own shares."""
        ratio = (h / self.spread)[self.lengths]
        to_inverse = [np.zeros(len(features)) for _, features in self.radial]
        kinds = np.zeros(len(self.kinds[1][0])) if self.coded else None
        for s in seen if seen is not None else self.blocks(h):
            b = s.block
            g = self._to_scores(s, to_fit[b.at], None if to_own is None else to_own[b.at])
            for n, (part, features) in enumerate(self.radial):
                if not features.size:
                    continue
                own = s.parts[n]
                if type(part.leaf) is Gaussian:
                    factor, to_u = -float(part.factor) / 2, g
                    along = None if b.squares is not None else np.vdot(g, own) * ratio**2
                else:
                    factor, to_u = float(part.factor), g * self._slope(part, own)
                    along = None if b.squares is not None else factor * np.vdot(to_u, own) * ratio**2
                to_inverse[n] += factor * (b.squares @ to_u.ravel())[features] if along is None else along
            if kinds is not None:
                kinds += np.bincount(b.codes.ravel(), weights=g.ravel(), minlength=len(kinds))
        out: dict[str, Floats] = {}
        for (part, features), slope in zip(self.radial, to_inverse, strict=True):
            to_h = np.zeros(len(part.columns))
            vary = [c in self.lengths for c in part.columns]
            to_h[vary] = -2 * slope * ratio[features] ** -2.0 / h[[c for c in part.columns if c in self.lengths]]
            out[part.name] = to_h
        for p, u in zip(self.coded, self.kinds[1], strict=True):
            leaf = replace(p.leaf, bandwidth=float(h[p.columns[0]]))
            parameters = leaf.parameters(np, np.zeros((1, 1)))
            slopes = type(leaf).slope(np, u, *(x.ravel()[0] for x in parameters.values()))
            out[p.name] = np.array([p.factor * float(kinds @ slopes[1 + list(parameters).index("bandwidth")])])
        return out

    def _to_scores(self, s: Seen, to_fit: Floats, to_own: Floats | None) -> Floats:
        """(B, k): the gradient to the scores of a block."""
        b = s.block
        pull = np.einsum("bmv,bv->bm", s.polynomial, to_fit)
        lost = np.isnan(s.fit).any(axis=1)  # nothing was near: what it got instead is constant
        if not self.degree:  # one product: weight * a * (to_fit . (value - fit) - to_own * share)
            to_sum = pull if to_own is None else pull + (to_own * s.diagonal)[:, None] * s.coefficients
            left = np.concatenate([-to_sum, to_fit], axis=1) * s.coefficients
            left[lost] = 0.0
            out = self._room(("gradient", 0), s.weight.shape)
            g = np.matmul(left.astype(self.dtype), b.columns[s.keys].T, out=out)
        else:
            first = b.columns[s.keys, : s.coefficients.shape[1]]
            share = s.coefficients.astype(self.dtype) @ first.T
            g = to_fit.astype(self.dtype) @ self.rows.value[s.keys].astype(self.dtype).T
            g -= pull.astype(self.dtype) @ first.T
            if to_own is not None:
                g -= (to_own * s.diagonal).astype(self.dtype)[:, None] * share
            g *= share
            g[lost] = 0.0
        g *= s.weight
        return np.asarray(g)
