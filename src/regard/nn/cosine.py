"""Cosine attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.nn.attention import Attention, described, wide
from regard.scores import CosineSimilarity


class CosineAttention(Attention):
    """Attention by the angle between query and key, with a learned scale.

        score(q, k) = scale * (q . k) / (|q| |k|)

    Parameters
    ----------
    scale : what the scale starts from, > 0. It bounds how sharp the weights can be: no two scores of a query are
        further apart than 2 * scale. Its logarithm is the parameter, so it stays positive.
    dropout, engine : see ``Attention``
    device, dtype : of the parameter

    Shapes
    ------
    log_scale (); query (..., Q, D), key (..., K, D) and value (..., K, V) give (..., Q, V).

    Raises
    ------
    ValueError : if the scale is not positive and finite, or query and key differ in size.

    References
    ----------
    Graves, Wayne & Danihelka (2014), Neural Turing Machines, eqs. 5 and 6; the scale is their key strength.

    Examples
    --------
    >>> import torch, regard as rg
    >>> attention = rg.nn.CosineAttention(scale=2.0)
    >>> attention.score()(torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0], [-4.0, 3.0]])).detach()
    tensor([[2., 0.]])
    """

    def __init__(
        self,
        scale: float = 10.0,
        *,
        dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dropout=dropout, engine=engine)
        if not 0 < scale < math.inf:
            raise ValueError(f"`scale` of CosineAttention must be positive and finite; got {scale!r}.")
        self.initial_scale = float(scale)
        self.log_scale = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scale to what it started from."""
        nn.init.constant_(self.log_scale, math.log(self.initial_scale))

    @property
    def scale(self) -> Tensor:
        """The scale as it is now."""
        return wide(self.log_scale).exp()

    def score(self) -> CosineSimilarity:
        """``rg.CosineSimilarity`` of the scale as it is now."""
        return CosineSimilarity(self.scale)

    def extra_repr(self) -> str:
        return described(f"scale={self.initial_scale:g}", super().extra_repr())
