"""Several heads in one pooling: their scores side by side, and masks for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from regard.arrays import Namespace, broadcast_shapes
from regard.masks import Mask, as_mask
from regard.masks.base import And, Given, Not, Or
from regard.nn.attention import Attention
from regard.scores.base import Score, Term


@dataclass(frozen=True, eq=False)
class PerHead(Score):
    """One score per head, of torch tensors query (..., H, Q, D) and key (..., H, K, D): one call pools all heads.

    A prepared score is arrays per query and per key, so the heads' arrays are stacked; only pairing and formula must be
    the same for all.
    """

    heads: tuple[Score, ...]

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        return all(score.shift_invariant for score in self.heads)

    def check(self, query_dim: int, key_dim: int) -> None:
        for score in self.heads:
            score.check(query_dim, key_dim)

    def uses(self, features: int) -> list[int]:
        return sorted({c for score in self.heads for c in score.uses(features)})

    def terms(self, xp: Namespace, query: Tensor, key: Tensor, origin: Tensor) -> list[Term]:
        prepared = [
            score.terms(xp, *(x[..., h, :, :] for x in (query, key, origin))) for h, score in enumerate(self.heads)
        ]
        kinds = [[(t.pairing, t.formula, t.factor is None) for t in terms] for terms in prepared]
        if any(kind != kinds[0] for kind in kinds):
            names = ", ".join(dict.fromkeys(type(score).__name__ for score in self.heads))
            raise ValueError(f"the scores of all heads must be of one kind, with parameters of their own; got {names}.")
        return [
            first.with_arrays(tuple(map(_stack, zip(*(t.arrays for t in (first, *others)), strict=True))))
            for first, *others in zip(*prepared, strict=True)
        ]


def _stack(of_heads: tuple[Tensor, ...]) -> Tensor:
    """(..., H, N, C) of (..., N, C) each."""
    shape = broadcast_shapes(*(tuple(x.shape) for x in of_heads))
    return torch.stack([x.expand(shape) for x in of_heads], dim=-3)


class HasScore(Protocol):
    """A module that says how one query and one key compare."""

    def score(self) -> Score: ...


class Heads(Attention):
    """Attention of several heads with a module each, of query (..., H, Q, D), key (..., H, K, D), value (..., H, K, V).

    Parameters
    ----------
    modules : with ``score()``, one per head, or one that serves all
    dropout, engine : see ``Attention``

    Examples
    --------
    >>> import torch
    >>> from regard.nn import KernelAttention
    >>> from regard.nn.heads import Heads
    >>> heads = Heads([KernelAttention(bandwidth=h) for h in (0.1, 10.0)])
    >>> x = torch.tensor([[0.0], [1.0]]).expand(2, 2, 1)
    >>> heads.weights(x, x).detach().round(decimals=2)
    tensor([[[1.0000, 0.0000],
             [0.0000, 1.0000]],
    <BLANKLINE>
            [[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """

    def __init__(self, modules: Iterable[nn.Module], *, dropout: float = 0.0, engine: str = "auto") -> None:
        super().__init__(dropout=dropout, engine=engine)
        self.heads = nn.ModuleList(modules)

    def score(self) -> Score:
        """The score of each head as its module builds it now."""
        scores = tuple(cast(HasScore, module).score() for module in self.heads)
        return scores[0] if len(scores) == 1 else PerHead(scores)


def across_heads(mask: Mask | Tensor, batch_axes: int) -> Mask:
    """A mask for (..., Q, K), without the head axis, as one for (..., H, Q, K).

    Arrays get the axis inserted, unless they have it already: one axis more than the batch has is per head. All other
    masks match batch axes from the left, and fit as they are.
    """
    match as_mask(mask):
        case Given(array) if 3 <= array.ndim < batch_axes + 3:
            return Given(array[..., None, :, :])
        case And(left, right):
            return And(across_heads(left, batch_axes), across_heads(right, batch_axes))
        case Or(left, right):
            return Or(across_heads(left, batch_axes), across_heads(right, batch_axes))
        case Not(inner):
            return Not(across_heads(inner, batch_axes))
        case found:
            return found
