"""What a score is: it prepares query and key once, a pairing makes one number of a pair, a formula makes that a score.

    a(q, k) = formula(pairing(prepare(q), prepare(k)))

Scores are small frozen objects. They add (kernels multiply), take a positive factor, look at some columns with ``.on``
and through a matrix with ``.through``. A new score is one file and one line in ``scores/__init__.py``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from regard.arrays import Array, Namespace, concrete, is_torch, leading, like, namespace, sum_to
from regard.scores.pairings import Pairing, squared_distance

Gradients = dict[str, Array]


class Term(NamedTuple):
    """One prepared score, all an engine sees of it: everything is per query or per key."""

    pairing: Pairing
    formula: Callable[..., Array]
    slope: Callable[..., tuple[Array, ...]]
    query: Array  # (..., Q, C)
    key: Array  # (..., K, C')
    parameters: tuple[Array, ...] = ()  # of the formula, each (..., 1 or Q, 1)
    factor: Array | None = None  # multiplies the formula, (..., 1 or Q, 1)
    kernel: Callable[..., Array] | None = None  # exp of the formula, see ``Leaf``
    root: Array | None = None  # its square multiplies the paired number, (..., Q, 1); without gradient, see extremes

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What can have a gradient, in the order that gradients come back."""
        return (self.query, self.key, *self.parameters, *(() if self.factor is None else (self.factor,)))

    def with_arrays(self, arrays: tuple[Array, ...]) -> Term:
        """The same term of other arrays, in the order of ``arrays``."""
        end = 2 + len(self.parameters)
        return self._replace(
            query=arrays[0],
            key=arrays[1],
            parameters=tuple(arrays[2:end]),
            factor=None if self.factor is None else arrays[end],
        )


class Score:
    """A comparison of one query with one key; ``exp`` of it is an unnormalised weight.

    Calling it gives the matrix of scores, before bias and mask: ``score(query, key) -> (..., Q, K)``.
    """

    shift_invariant: ClassVar[bool] = False  # only the difference of query and key matters

    def terms(self, xp: Namespace, query: Array, key: Array, origin: Array) -> list[Term]:
        """The prepared terms, whose scores add up to this score. ``origin (..., 1, D)`` is one live key."""
        raise NotImplementedError

    def terms_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grads: Iterator[Term]
    ) -> tuple[Array, Array, Gradients]:
        """Gradients to query, key and the score's own parameters from those of its terms (taken from the iterator)."""
        raise NotImplementedError

    def check(self, query_dim: int, key_dim: int) -> None:
        """Raise ValueError unless queries and keys of these sizes can be compared."""

    def uses(self, features: int) -> list[int]:
        """The positions of the features that this score looks at: a NaN elsewhere is nobody's business."""
        return list(range(features))

    def __call__(self, query: Array, key: Array) -> Array:
        xp = namespace(query, key)
        if not is_torch(query) and not hasattr(query, "__array_namespace__"):
            query, key = np.asarray(query), np.asarray(key)
        self.check(query.shape[-1], key.shape[-1])
        origin = key[..., :1, :] if key.shape[-2] else xp.zeros_like(query[..., :1, :])
        origin = origin.detach() if is_torch(origin) else origin
        return total_score(xp, self.terms(xp, query, key, origin))

    def __add__(self, other: Score) -> Sum:
        if not isinstance(other, Score):
            return NotImplemented
        return Sum((*_parts(self), *_parts(other)))

    def __rmul__(self, factor: Any) -> Scaled:
        return Scaled(self, factor)

    __mul__ = __rmul__

    def on(self, columns: slice | list[int] | tuple[int, ...]) -> Score:
        """This score, looking only at these positions of the last axis, the same in query and key.

        >>> import regard as rg
        >>> product = rg.Gaussian(0.5).on([0, 1]) + rg.AitchisonAitken(0.2, levels=3).on([2])
        """
        return Sum(tuple(On(p, columns) for p in self.parts)) if isinstance(self, Sum) else On(self, columns)

    def through(self, weight: Array) -> Score:
        """This score of ``W q`` and ``W k``: weight ``(P, D)``, or with leading head axes.

        >>> import numpy as np, regard as rg
        >>> metric = rg.Gaussian(1.0).through(np.array([[1.0, 0.5]]))
        """
        return Sum(tuple(Through(p, weight) for p in self.parts)) if isinstance(self, Sum) else Through(self, weight)


def _parts(score: Score) -> tuple[Score, ...]:
    return score.parts if isinstance(score, Sum) else (score,)


FAR = 1e300  # rescaled numbers beyond it are as far as anything can be


def paired(xp: Namespace, term: Term) -> Array:
    """The paired numbers of a term, (..., Q, K), rescaled if it says so."""
    u = term.pairing(xp, term.query, term.key)
    if term.root is None:
        return u
    u = u * term.root * term.root
    return xp.where(u < FAR, u, FAR)


def term_score(xp: Namespace, term: Term, u: Array) -> Array:
    """The score of one term from its paired numbers."""
    s = term.formula(xp, u, *term.parameters)
    if term.factor is None:
        return s
    outside = s == -xp.inf  # selected, so that the factor's gradient is not 0 times infinity
    return xp.where(outside, s, xp.where(outside, 0.0, s) * term.factor)


def total_score(xp: Namespace, terms: list[Term] | tuple[Term, ...]) -> Array:
    """The sum of all terms' scores, (..., Q, K): the supports intersect, since -inf plus a number is -inf."""
    return sum(term_score(xp, t, paired(xp, t)) for t in terms)


def snake_case(name: str) -> str:
    """``RationalQuadratic`` -> ``rational_quadratic``, ``Matern32`` -> ``matern32``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def check_positive(owner: Score, name: str, *, infinite: bool = False) -> None:
    """Raise ValueError unless the parameter is positive everywhere; tensors that are being traced are not looked at."""
    value = concrete(getattr(owner, name))
    if value is None:
        return
    if value.dtype.kind not in "iuf":
        raise ValueError(f"`{name}` of {type(owner).__name__} must be a number or an array of numbers; got {value!r}.")
    if not np.all(value > 0) or (not infinite and not np.all(np.isfinite(value))):
        wrong = value[~((value > 0) & (np.isfinite(value) | infinite))].flat[0]
        what = "positive" if infinite else "positive and finite"
        raise ValueError(f"`{name}` of {type(owner).__name__} must be {what}; got {wrong:g}.")


def check_equal_size(owner: str, query_dim: int, key_dim: int) -> None:
    """Raise ValueError unless query and key have the same number of features."""
    if query_dim != key_dim:
        raise ValueError(
            f"{owner} compares queries and keys of the same size; "
            f"got query (..., {query_dim}) and key (..., {key_dim}). Use Additive or Bilinear for sizes that differ."
        )


class Leaf(Score):
    """A score that is one formula of one pairing."""

    pairing: ClassVar[Pairing]
    metric: ClassVar[tuple[str, ...]] = ()  # the fields that act in prepare; all others are parameters of the formula

    @property
    def largest_bandwidth(self) -> float:
        """The upper end of what the bandwidth may be, if there is one: inf for a length."""
        return np.inf

    @staticmethod
    def formula(xp: Namespace, u: Array, *parameters: Array) -> Array:
        """The score of the paired number."""
        return u

    @staticmethod
    def slope(xp: Namespace, u: Array, *parameters: Array) -> tuple[Array, ...]:
        """ds/du, then ds/d(each parameter)."""
        return (xp.ones_like(u),)

    kernel: ClassVar[Callable[..., Array] | None] = None
    """exp of the formula, where that is less work than the formula: an engine may sum it as it stands. At most 1."""

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        """Query and key as the pairing wants them."""
        return query, key

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        """Gradients to query, key and the metric parameters."""
        return grad_query, grad_key, {}

    def parameters(self, xp: Namespace, query: Array) -> dict[str, Array]:
        """The formula's parameters by name, each (..., 1, 1)."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in self.metric]  # type: ignore[arg-type]
        return {n: leading(like(xp, getattr(self, n), query)) for n in names}

    def pairing_for(self, xp: Namespace) -> Pairing:
        """The pairing of this very score."""
        return type(self).pairing

    def terms(self, xp: Namespace, query: Array, key: Array, origin: Array) -> list[Term]:
        q, k = self.prepare(xp, query, key, origin)
        parameters = tuple(self.parameters(xp, query).values())
        own = type(self)
        return [Term(self.pairing_for(xp), own.formula, own.slope, q, k, parameters, kernel=own.kernel)]

    def terms_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grads: Iterator[Term]
    ) -> tuple[Array, Array, Gradients]:
        grad = next(grads)
        to_query, to_key, to_metric = self.prepare_backward(xp, query, key, origin, grad.query, grad.key)
        values = self.parameters(xp, query)
        to_shape = {
            name: sum_to(xp, g, value.shape)[..., 0, 0]
            for (name, value), g in zip(values.items(), grad.parameters, strict=True)
            if hasattr(self, name)
        }
        return to_query, to_key, {**to_metric, **to_shape}


@dataclass(frozen=True, eq=False)
class Kernel(Leaf):
    """A radial kernel by its logarithm: a formula of ``u = |(q - k) / bandwidth|^2`` that is 0 at u = 0.

    Parameters
    ----------
    bandwidth : float > 0, or one per feature (D,), or broadcastable to (..., N, D); in the units of query and key.
        inf ignores a feature. For a compact kernel it is the radius of the support.

    Raises
    ------
    ValueError : if a bandwidth is not positive.
    """

    bandwidth: Any = 1.0
    pairing: ClassVar[Pairing] = squared_distance
    metric: ClassVar[tuple[str, ...]] = ("bandwidth",)
    shift_invariant: ClassVar[bool] = True
    tail: ClassVar[str] = "gaussian"  # "gaussian", "exponential", "power" or "compact": what a far query sees (law 8)

    def __post_init__(self) -> None:
        check_positive(self, "bandwidth", infinite=True)
        for f in dataclasses.fields(self):
            if f.name != "bandwidth":
                check_positive(self, f.name)

    def check(self, query_dim: int, key_dim: int) -> None:
        check_equal_size(type(self).__name__, query_dim, key_dim)
        shape = tuple(
            getattr(self.bandwidth, "shape", np.shape(self.bandwidth) if not is_torch(self.bandwidth) else ())
        )
        if shape and shape[-1] not in (1, query_dim):
            raise ValueError(
                f"`bandwidth` of {type(self).__name__} must be one number or one per feature; "
                f"got {shape[-1]} bandwidths for {query_dim} features."
            )

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        h = like(xp, self.bandwidth, query)
        return (query - origin) / h, (key - origin) / h  # subtract first: a common offset costs no digits

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        h = like(xp, self.bandwidth, query)
        q, k = self.prepare(xp, query, key, origin)
        to_h = -sum_to(xp, grad_query * q / h, h.shape) - sum_to(xp, grad_key * k / h, h.shape)
        return grad_query / h, grad_key / h, {"bandwidth": to_h}


@dataclass(frozen=True, eq=False)
class Sum(Score):
    """The sum of scores, which is the product of their kernels; the supports intersect."""

    parts: tuple[Score, ...]

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        return all(p.shift_invariant for p in self.parts)

    def check(self, query_dim: int, key_dim: int) -> None:
        for part in self.parts:
            part.check(query_dim, key_dim)

    def uses(self, features: int) -> list[int]:
        return sorted({c for part in self.parts for c in part.uses(features)})

    def terms(self, xp: Namespace, query: Array, key: Array, origin: Array) -> list[Term]:
        return [t for part in self.parts for t in part.terms(xp, query, key, origin)]

    def terms_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grads: Iterator[Term]
    ) -> tuple[Array, Array, Gradients]:
        got = [part.terms_backward(xp, query, key, origin, grads) for part in self.parts]
        names = {f"{n}.{name}": g for n, (_, _, gradients) in enumerate(got) for name, g in gradients.items()}
        return sum(g[0] for g in got), sum(g[1] for g in got), names


@dataclass(frozen=True, eq=False)
class Scaled(Score):
    """``factor * score``; the factor is a positive number, or an array over leading axes (one per head)."""

    score: Score
    factor: Any

    def __post_init__(self) -> None:
        check_positive(self, "factor")

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        return self.score.shift_invariant

    def check(self, query_dim: int, key_dim: int) -> None:
        self.score.check(query_dim, key_dim)

    def uses(self, features: int) -> list[int]:
        return self.score.uses(features)

    def terms(self, xp: Namespace, query: Array, key: Array, origin: Array) -> list[Term]:
        factor = leading(like(xp, self.factor, query))
        terms = self.score.terms(xp, query, key, origin)
        return [t._replace(factor=factor if t.factor is None else factor * t.factor) for t in terms]

    def terms_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grads: Iterator[Term]
    ) -> tuple[Array, Array, Gradients]:
        factor = leading(like(xp, self.factor, query))
        inner = self.score.terms(xp, query, key, origin)
        taken = [next(grads) for _ in inner]
        to_factor = sum(
            sum_to(xp, g.factor if t.factor is None else g.factor * t.factor, factor.shape)
            for t, g in zip(inner, taken, strict=True)
        )
        through = [
            g._replace(factor=None if t.factor is None else g.factor * factor)
            for t, g in zip(inner, taken, strict=True)
        ]
        to_query, to_key, names = self.score.terms_backward(xp, query, key, origin, iter(through))
        return to_query, to_key, {**names, "factor": to_factor[..., 0, 0]}


@dataclass(frozen=True, eq=False)
class On(Score):
    """A score of some columns of query and key; see ``Score.on``."""

    score: Score
    columns: Any

    def __post_init__(self) -> None:
        if isinstance(self.columns, slice):
            return
        columns = [self.columns] if isinstance(self.columns, int | np.integer) else list(self.columns)
        if not all(isinstance(c, int | np.integer) and not isinstance(c, bool) for c in columns):
            raise ValueError(
                f"`columns` must be whole numbers, the positions of features; got {columns!r}. "
                "Names of columns are known to the estimators only."
            )
        if len(set(columns)) < len(columns):
            raise ValueError(f"`columns` must be distinct; got {columns!r}.")
        object.__setattr__(self, "columns", [int(c) for c in columns])

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        return self.score.shift_invariant

    def check(self, query_dim: int, key_dim: int) -> None:
        if isinstance(self.columns, slice):
            chosen = [len(range(*self.columns.indices(n))) for n in (query_dim, key_dim)]
        else:
            for c in self.columns:
                for name, n in (("query", query_dim), ("key", key_dim)):
                    if not -n <= c < n:
                        raise ValueError(f"column {c} is not there: {name} has {n} features (0 to {n - 1}).")
            positions = [c % query_dim for c in self.columns]
            if len(set(positions)) < len(positions):
                raise ValueError(f"`columns` must be distinct; got {self.columns!r} of {query_dim} features.")
            chosen = [len(self.columns)] * 2
        self.score.check(*chosen)

    def uses(self, features: int) -> list[int]:
        columns = range(features)[self.columns] if isinstance(self.columns, slice) else self.columns
        chosen = [c % features for c in columns]
        return [chosen[n] for n in self.score.uses(len(chosen))]

    def terms(self, xp: Namespace, query: Array, key: Array, origin: Array) -> list[Term]:
        return self.score.terms(xp, self._take(xp, query), self._take(xp, key), self._take(xp, origin))

    def terms_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grads: Iterator[Term]
    ) -> tuple[Array, Array, Gradients]:
        q, k, o = self._take(xp, query), self._take(xp, key), self._take(xp, origin)
        to_q, to_k, names = self.score.terms_backward(xp, q, k, o, grads)
        return self._put(xp, to_q, query.shape[-1]), self._put(xp, to_k, key.shape[-1]), names

    def _take(self, xp: Namespace, x: Array) -> Array:
        if isinstance(self.columns, slice):
            return x[..., self.columns]
        return xp.stack([x[..., c] for c in self.columns], axis=-1) if self.columns else x[..., :0]

    def _put(self, xp: Namespace, grad: Array, features: int) -> Array:
        columns = range(features)[self.columns] if isinstance(self.columns, slice) else self.columns
        place = {c % features: n for n, c in enumerate(columns)}
        zero = xp.sum(grad, axis=-1) * 0
        return xp.stack([grad[..., place[c]] if c in place else zero for c in range(features)], axis=-1)


@dataclass(frozen=True, eq=False)
class Through(Score):
    """A score of ``W q`` and ``W k``; see ``Score.through``."""

    score: Score
    weight: Any

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        return self.score.shift_invariant

    def __post_init__(self) -> None:
        if len(self.weight.shape if hasattr(self.weight, "shape") else np.shape(self.weight)) < 2:
            raise ValueError(
                f"`weight` must be a matrix (P, D); got shape {np.shape(self.weight)}. "
                "Write weight[None, :] for one row."
            )

    def _shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape if hasattr(self.weight, "shape") else np.shape(self.weight))

    def check(self, query_dim: int, key_dim: int) -> None:
        rows, columns = self._shape()[-2:]
        for name, n in (("query", query_dim), ("key", key_dim)):
            if n != columns:
                raise ValueError(f"`weight` {self._shape()} maps {columns} features; got {name} (..., {n}).")
        self.score.check(rows, rows)

    def _mapped(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, ...]:
        w = like(xp, self.weight, query)
        if self.score.shift_invariant:  # subtract before W as well: large offsets cancel exactly only here
            query, key, origin = query - origin, key - origin, origin * 0
        return w, query, key, query @ w.mT, key @ w.mT, origin @ w.mT

    def terms(self, xp: Namespace, query: Array, key: Array, origin: Array) -> list[Term]:
        return self.score.terms(xp, *self._mapped(xp, query, key, origin)[3:])

    def terms_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grads: Iterator[Term]
    ) -> tuple[Array, Array, Gradients]:
        w, query, key, q, k, o = self._mapped(xp, query, key, origin)
        to_q, to_k, names = self.score.terms_backward(xp, q, k, o, grads)
        to_w = sum_to(xp, to_q.mT @ query, w.shape) + sum_to(xp, to_k.mT @ key, w.shape)
        return to_q @ w, to_k @ w, {**names, "weight": to_w}
