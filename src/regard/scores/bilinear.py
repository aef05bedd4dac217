"""The bilinear score of Luong's general attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array, Namespace, like, sum_to
from regard.scores.base import Gradients, Leaf
from regard.scores.pairings import Pairing, dot_product


@dataclass(frozen=True, eq=False)
class Bilinear(Leaf):
    """A dot product through a matrix, for queries and keys of any two sizes.

        s(q, k) = q^T weight k

    Parameters
    ----------
    weight : (Dq, Dk), or with leading head axes

    Raises
    ------
    ValueError : if the weight is not a matrix of these sizes.

    References
    ----------
    Luong, Pham & Manning (2015), Effective Approaches to Attention-based Neural Machine Translation, eq. 8, "general".

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.Bilinear(np.ones((1, 2)))(np.ones((1, 1)), np.ones((3, 2)))
    array([[2., 2., 2.]])
    """

    weight: Any
    pairing: ClassVar[Pairing] = dot_product
    metric: ClassVar[tuple[str, ...]] = ("weight",)

    def __post_init__(self) -> None:
        if len(np.shape(self.weight)) < 2:
            raise ValueError(
                f"`weight` of Bilinear must be a matrix (Dq, Dk); got shape {tuple(np.shape(self.weight))}."
            )

    def check(self, query_dim: int, key_dim: int) -> None:
        if tuple(np.shape(self.weight)[-2:]) != (query_dim, key_dim):
            raise ValueError(
                f"`weight` of Bilinear {tuple(np.shape(self.weight))} must be (Dq, Dk); "
                f"got query (..., {query_dim}) and key (..., {key_dim})."
            )

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        return query @ like(xp, self.weight, query), key

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        w = like(xp, self.weight, query)
        return grad_query @ w.mT, grad_key, {"weight": sum_to(xp, query.mT @ grad_query, w.shape)}
