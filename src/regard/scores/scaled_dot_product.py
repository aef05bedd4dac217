"""The scaled dot-product score of Transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from regard.arrays import Array, Namespace, leading, like, sum_to
from regard.scores.base import Gradients, Leaf, check_equal_size
from regard.scores.pairings import Pairing, dot_product


@dataclass(frozen=True, eq=False)
class ScaledDotProduct(Leaf):
    """The dot product of query and key, divided by the root of their size.

        s(q, k) = scale * q . k,  scale = 1 / sqrt(D) unless given

    Parameters
    ----------
    scale : number, or an array over leading axes (one per head); None for 1 / sqrt(D)

    Raises
    ------
    ValueError : if query and key differ in size.

    References
    ----------
    Vaswani et al. (2017), Attention Is All You Need, eq. 1.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.ScaledDotProduct()(np.ones((1, 4)), np.ones((2, 4)))
    array([[2., 2.]])
    """

    scale: Any = None
    pairing: ClassVar[Pairing] = dot_product
    metric: ClassVar[tuple[str, ...]] = ("scale",)

    def check(self, query_dim: int, key_dim: int) -> None:
        check_equal_size("ScaledDotProduct", query_dim, key_dim)

    def _scale(self, xp: Namespace, query: Array) -> Array:
        size = max(query.shape[-1], 1)
        return leading(like(xp, size**-0.5 if self.scale is None else self.scale, query))

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        return query * self._scale(xp, query), key

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        scale = self._scale(xp, query)
        to_scale = {} if self.scale is None else {"scale": sum_to(xp, grad_query * query, scale.shape)[..., 0, 0]}
        return grad_query * scale, grad_key, to_scale
