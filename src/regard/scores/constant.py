"""The score of average pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Leaf
from regard.scores.pairings import Pairing, squared_distance


@dataclass(frozen=True, eq=False)
class Constant(Leaf):
    """The same score for every pair: pooling with it is averaging.

        s(q, k) = 0

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.attention_pool(np.zeros((1, 1)), np.zeros((2, 3)), np.array([[1.0], [3.0]]), rg.Constant())
    array([[2.]])
    """

    pairing: ClassVar[Pairing] = squared_distance

    def uses(self, features: int) -> list[int]:
        return []

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        return query[..., :0], key[..., :0]  # no feature is compared

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, dict[str, Array]]:
        return xp.zeros_like(query), xp.zeros_like(key), {}
