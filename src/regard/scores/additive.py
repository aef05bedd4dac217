"""The additive score of Bahdanau attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array, Namespace, like, sum_to
from regard.scores.base import Gradients, Leaf
from regard.scores.pairings import Pairing, additive


@dataclass(frozen=True, eq=False)
class Additive(Leaf):
    """The additive score: a perceptron with one hidden layer, of query and key together.

        s(q, k) = value_weight . tanh(query_weight q + key_weight k)

    Query and key may have different sizes.

    Parameters
    ----------
    query_weight : (H, Dq), or with leading head axes
    key_weight : (H, Dk), or with leading head axes
    value_weight : (H,), or with leading head axes; shape parameter

    Raises
    ------
    ValueError : if the three do not share the hidden size H.

    References
    ----------
    Bahdanau, Cho & Bengio (2015), Neural Machine Translation by Jointly Learning to Align and Translate, A.1.2.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> score = rg.Additive(np.ones((2, 1)), np.ones((2, 3)), np.ones(2))
    >>> score(np.zeros((5, 1)), np.zeros((7, 3))).shape
    (5, 7)
    """

    query_weight: Any
    key_weight: Any
    value_weight: Any
    pairing: ClassVar[Pairing] = additive
    metric: ClassVar[tuple[str, ...]] = ("query_weight", "key_weight", "value_weight")

    def __post_init__(self) -> None:
        q, k, v = (tuple(np.shape(w)) for w in (self.query_weight, self.key_weight, self.value_weight))
        if len(q) < 2 or len(k) < 2 or not v or not q[-2] == k[-2] == v[-1]:
            raise ValueError(
                "Additive wants query_weight (H, Dq), key_weight (H, Dk) and value_weight (H,) of one hidden size H; "
                f"got {q}, {k} and {v}."
            )

    def check(self, query_dim: int, key_dim: int) -> None:
        for name, weight, n in (("query", self.query_weight, query_dim), ("key", self.key_weight, key_dim)):
            if np.shape(weight)[-1] != n:
                raise ValueError(
                    f"`{name}_weight` {tuple(np.shape(weight))} wants {name} (..., {np.shape(weight)[-1]}); "
                    f"got {name} (..., {n})."
                )

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        a = query @ like(xp, self.query_weight, query).mT
        v = like(xp, self.value_weight, query)[..., None, :]
        # zeros_like and not `a * 0`: an infinite projection must not spoil the weight
        return xp.concat([a + xp.zeros_like(v), v + xp.zeros_like(a)], axis=-1), key @ like(xp, self.key_weight, key).mT

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        wq, wk, v = (like(xp, w, query) for w in (self.query_weight, self.key_weight, self.value_weight))
        hidden = wk.shape[-2]
        to_a, to_v = grad_query[..., :hidden], grad_query[..., hidden:]
        to_weights = {
            "query_weight": sum_to(xp, to_a.mT @ query, wq.shape),
            "key_weight": sum_to(xp, grad_key.mT @ key, wk.shape),
            "value_weight": sum_to(xp, xp.sum(to_v, axis=-2), v.shape),
        }
        return to_a @ wq, grad_key @ wk, to_weights
