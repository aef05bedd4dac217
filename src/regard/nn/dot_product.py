"""Scaled dot-product attention."""

from __future__ import annotations

import torch

from regard.nn.attention import Attention, described
from regard.scores import ScaledDotProduct


class DotProductAttention(Attention):
    """Attention by the scaled dot product, without a parameter of its own.

        score(q, k) = scale * q . k,  scale = 1 / sqrt(D) unless given

    Parameters
    ----------
    scale : number; None for 1 / sqrt(D)
    dropout, engine : see ``Attention``
    device, dtype : taken as by the other modules; there is no parameter to put there

    Shapes
    ------
    query (..., Q, D), key (..., K, D) and value (..., K, V) give (..., Q, V).

    Raises
    ------
    ValueError : if query and key differ in size.

    References
    ----------
    Vaswani et al. (2017), Attention Is All You Need, eq. 1.

    Examples
    --------
    >>> import torch, regard as rg
    >>> x = torch.randn(2, 7, 3)
    >>> rg.nn.DotProductAttention()(x, x, x, mask=rg.Causal()).shape
    torch.Size([2, 7, 3])
    """

    def __init__(
        self,
        scale: float | None = None,
        *,
        dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dropout=dropout, engine=engine)
        self.scale = scale

    def score(self) -> ScaledDotProduct:
        """``rg.ScaledDotProduct`` of the scale."""
        return ScaledDotProduct(self.scale)

    def extra_repr(self) -> str:
        return described("" if self.scale is None else f"scale={self.scale:g}", super().extra_repr())
