"""Bilinear attention."""

from __future__ import annotations

import torch
from torch import nn

from regard.nn.attention import Attention, check_count, described
from regard.scores import Bilinear


class BilinearAttention(Attention):
    """Attention by a learned matrix between query and key, which may have different sizes.

        score(q, k) = q^T W k

    Parameters
    ----------
    query_dim, key_dim : features of a query and of a key
    dropout, engine : see ``Attention``
    device, dtype : of the parameter

    Shapes
    ------
    weight W (query_dim, key_dim), at first as by ``torch.nn.init.xavier_uniform_``.
    query (..., Q, query_dim), key (..., K, key_dim) and value (..., K, V) give (..., Q, V).

    Raises
    ------
    ValueError : if a size is not positive, or query or key has another one.

    References
    ----------
    Luong, Pham & Manning (2015), Effective Approaches to Attention-based Neural Machine Translation, eq. 8, "general".

    Examples
    --------
    >>> import torch, regard as rg
    >>> attention = rg.nn.BilinearAttention(query_dim=3, key_dim=5)
    >>> attention.weights(torch.randn(7, 3), torch.randn(13, 5)).shape
    torch.Size([7, 13])
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        *,
        dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dropout=dropout, engine=engine)
        self.query_dim = check_count("BilinearAttention", "query_dim", query_dim)
        self.key_dim = check_count("BilinearAttention", "key_dim", key_dim)
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew from torch's generator."""
        nn.init.xavier_uniform_(self.weight)

    def score(self) -> Bilinear:
        """``rg.Bilinear`` of the weight as it is now."""
        return Bilinear(self.weight)

    def extra_repr(self) -> str:
        return described(f"query_dim={self.query_dim}, key_dim={self.key_dim}", super().extra_repr())
