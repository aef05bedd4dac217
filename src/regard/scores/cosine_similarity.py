"""The cosine score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from regard.arrays import Array, Namespace, largest, leading, like, sum_to
from regard.scores.base import Gradients, Leaf, check_equal_size
from regard.scores.pairings import Pairing, dot_product


@dataclass(frozen=True, eq=False)
class CosineSimilarity(Leaf):
    """The cosine of the angle between query and key, times a scale; 0 where either is the zero vector.

        s(q, k) = scale * (q . k) / (|q| |k|)

    Parameters
    ----------
    scale : number, or an array over leading axes (one per head)

    Raises
    ------
    ValueError : if query and key differ in size.

    References
    ----------
    Graves, Wayne & Danihelka (2014), Neural Turing Machines, eqs. 5 and 6.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.CosineSimilarity(2.0)(np.array([[3.0, 4.0]]), np.array([[6.0, 8.0], [0.0, 0.0]]))
    array([[2., 0.]])
    """

    scale: Any = 1.0
    pairing: ClassVar[Pairing] = dot_product
    metric: ClassVar[tuple[str, ...]] = ("scale",)

    def check(self, query_dim: int, key_dim: int) -> None:
        check_equal_size("CosineSimilarity", query_dim, key_dim)

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        return _unit(xp, query)[0] * leading(like(xp, self.scale, query)), _unit(xp, key)[0]

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        scale = leading(like(xp, self.scale, query))
        to_scale = sum_to(xp, grad_query * _unit(xp, query)[0], scale.shape)[..., 0, 0]
        return _unit_backward(xp, query, grad_query * scale), _unit_backward(xp, key, grad_key), {"scale": to_scale}


def _unit(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """``x / |x|`` and ``1 / |x|``, both 0 for the zero vector; scaled first, so that no square overflows."""
    if not x.shape[-1]:
        return x, xp.sum(x, axis=-1, keepdims=True)
    size = largest(xp, xp.abs(x), axis=-1, keepdims=True)
    size = size.detach() if hasattr(size, "detach") else size
    live = size > 0
    y = x / xp.where(live, size, 1.0)
    square = xp.sum(y * y, axis=-1, keepdims=True)
    inverse = xp.where(live, 1 / xp.sqrt(xp.where(live, square, 1.0)), 0.0)
    return y * inverse, inverse / xp.where(live, size, 1.0)


def _unit_backward(xp: Namespace, x: Array, grad: Array) -> Array:
    unit, inverse = _unit(xp, x)
    return (grad - unit * xp.sum(grad * unit, axis=-1, keepdims=True)) * inverse
