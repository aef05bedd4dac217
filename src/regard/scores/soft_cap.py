"""A score that is kept within a cap, smoothly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from regard.arrays import Array, Namespace, leading, like, sum_to
from regard.scores.base import Gradients, Leaf, Score, Sum, Term, check_positive

formula, slope = Leaf.formula, Leaf.slope  # what the functions below name; ``composed`` puts others in their place


@dataclass(frozen=True, eq=False)
class SoftCap(Score):
    """A score bent so that it stays between -cap and cap; near 0 it is the score itself.

        s(q, k) = cap tanh(score(q, k) / cap)

    Bias and mask come after it, so what is masked stays masked, and what lies outside a compact kernel stays outside.

    Parameters
    ----------
    score : one score, which may look ``.on`` columns, ``.through`` a matrix or have a factor, but is no sum of several
    cap : number > 0, no unit, or an array over leading axes (one per head)

    Raises
    ------
    ValueError : if the cap is not positive and finite, or the score is a sum.
    TypeError : if the score is none.

    References
    ----------
    Gemma Team (2024), Gemma 2: Improving Open Language Models at a Practical Size, section 2, logit soft-capping.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.SoftCap(rg.ScaledDotProduct(scale=1.0), cap=5.0)(np.array([[3.0]]), np.array([[0.1], [100.0]])).round(4)
    array([[0.2996, 5.    ]])
    """

    score: Score
    cap: Any

    def __post_init__(self) -> None:
        if not isinstance(self.score, Score):
            kind = type(self.score).__name__
            raise TypeError(f"`score` of SoftCap must be a score, such as regard.ScaledDotProduct(); got {kind}.")
        inner: Any = self.score
        while inner is not None:
            if isinstance(inner, Sum) and len(inner.parts) > 1:
                raise ValueError(
                    f"SoftCap caps one score; got a sum of {len(inner.parts)}. Cap each of them, SoftCap(a, cap) + "
                    "SoftCap(b, cap), or pass what is to be added after the cap as `bias`."
                )
            inner = getattr(inner, "score", None)
        check_positive(self, "cap")

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        return self.score.shift_invariant

    def check(self, query_dim: int, key_dim: int) -> None:
        self.score.check(query_dim, key_dim)

    def uses(self, features: int) -> list[int]:
        return self.score.uses(features)

    def _parts(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Term]:
        (term,) = self.score.terms(xp, query, key, origin)
        return leading(like(xp, self.cap, query)), term

    def terms(self, xp: Namespace, query: Array, key: Array, origin: Array) -> list[Term]:
        cap, t = self._parts(xp, query, key, origin)
        if t.factor is not None:  # cap tanh(f s / cap) = f (cap / f) tanh(s / (cap / f))
            cap = cap / t.factor
        capped, bent = composed(t.formula, t.slope, len(t.parameters))
        return [t._replace(formula=capped, slope=bent, parameters=(cap, *t.parameters), kernel=None)]

    def terms_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grads: Iterator[Term]
    ) -> tuple[Array, Array, Gradients]:
        cap, t = self._parts(xp, query, key, origin)
        g = next(grads)
        to_cap, *parameters = g.parameters
        inner = g._replace(parameters=tuple(parameters))
        if t.factor is not None:
            by_cap = sum_to(xp, to_cap * cap / (t.factor * t.factor), t.factor.shape)
            to_cap, inner = to_cap / t.factor, inner._replace(factor=g.factor - by_cap)
        to_query, to_key, names = self.score.terms_backward(xp, query, key, origin, iter([inner]))
        return to_query, to_key, {**names, "cap": sum_to(xp, to_cap, cap.shape)[..., 0, 0]}


@cache
def composed(formula: Callable[..., Any], slope: Callable[..., Any], parameters: int) -> tuple[Any, Any]:
    """The capped formula and its slope, made once: compiled engines know a formula by its code and what that names."""
    names = {"formula": formula, "slope": slope}
    bent = (slope_of_0, slope_of_1, slope_of_more)[min(parameters, 2)]
    names |= {"bend": bend}
    return FunctionType(capped.__code__, names, "capped"), FunctionType(bent.__code__, names, "slope_of_capped")


def capped(xp: Namespace, u: Array, cap: Array, *parameters: Array) -> Array:
    s = formula(xp, u, *parameters)
    outside = s == -xp.inf  # stays so
    return xp.where(outside, s, cap * xp.tanh(xp.where(outside, 0.0, s) / cap))


def bend(xp: Namespace, s: Array, cap: Array) -> tuple[Array, Array]:
    """What the capped score changes by with the score, and with the cap."""
    r = xp.where(s == -xp.inf, 0.0, s) / cap
    e = xp.exp(xp.where(r < 0, 2 * r, -2 * r))
    by_score = 4 * e / ((1 + e) * (1 + e))  # 1 - tanh^2, which would be a difference of nearly equal numbers
    return by_score, xp.tanh(r) - r * by_score


def slope_of_0(xp: Namespace, u: Array, cap: Array) -> tuple[Array, ...]:
    by_score, by_cap = bend(xp, formula(xp, u), cap)
    (to_u,) = slope(xp, u)
    return by_score * to_u, by_cap


def slope_of_1(xp: Namespace, u: Array, cap: Array, a: Array) -> tuple[Array, ...]:
    by_score, by_cap = bend(xp, formula(xp, u, a), cap)
    to_u, to_a = slope(xp, u, a)
    return by_score * to_u, by_cap, by_score * to_a


def slope_of_more(xp: Namespace, u: Array, cap: Array, *parameters: Array) -> tuple[Array, ...]:
    by_score, by_cap = bend(xp, formula(xp, u, *parameters), cap)
    to_u, *others = slope(xp, u, *parameters)
    return (by_score * to_u, by_cap, *(by_score * x for x in others))
