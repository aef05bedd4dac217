"""Additive attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.nn.attention import Attention, check_count, described, uniform
from regard.scores import Additive


class AdditiveAttention(Attention):
    """Attention by a perceptron of query and key together, for queries and keys of any two sizes.

        score(q, k) = v . tanh(W_q q + W_k k) = v^T tanh([W_k W_q] [k; q])

    Parameters
    ----------
    query_dim, key_dim : features of a query and of a key
    hidden_dim : H, hidden units
    dropout, engine : see ``Attention``
    device, dtype : of the parameters

    Shapes
    ------
    query_weight W_q (H, query_dim), key_weight W_k (H, key_dim), value_weight v (H,): uniform on +-1 / sqrt(columns) at
    first, as those of three ``torch.nn.Linear`` without bias.
    query (..., Q, query_dim), key (..., K, key_dim) and value (..., K, V) give (..., Q, V).

    Raises
    ------
    ValueError : if a size is not positive, or query or key has another one.

    References
    ----------
    Bahdanau, Cho & Bengio (2015), Neural Machine Translation by Jointly Learning to Align and Translate, A.1.2.

    Examples
    --------
    >>> import torch, regard as rg
    >>> attention = rg.nn.AdditiveAttention(query_dim=3, key_dim=5, hidden_dim=11)
    >>> query, key, value = torch.randn(2, 7, 3), torch.randn(2, 13, 5), torch.randn(2, 13, 17)
    >>> attention(query, key, value, mask=rg.ValidLength([13, 4])).shape
    torch.Size([2, 7, 17])
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dropout=dropout, engine=engine)
        self.query_dim = check_count("AdditiveAttention", "query_dim", query_dim)
        self.key_dim = check_count("AdditiveAttention", "key_dim", key_dim)
        self.hidden_dim = check_count("AdditiveAttention", "hidden_dim", hidden_dim)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.query_weight = nn.Parameter(torch.empty(hidden_dim, query_dim, **options))
        self.key_weight = nn.Parameter(torch.empty(hidden_dim, key_dim, **options))
        self.value_weight = nn.Parameter(torch.empty(hidden_dim, **options))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the three weights anew from torch's generator."""
        for weight in (self.query_weight, self.key_weight, self.value_weight):
            uniform(weight, weight.shape[-1])

    def score(self) -> Additive:
        """``rg.Additive`` of the weights as they are now."""
        return Additive(self.query_weight, self.key_weight, self.value_weight)

    def extra_repr(self) -> str:
        sizes = f"query_dim={self.query_dim}, key_dim={self.key_dim}, hidden_dim={self.hidden_dim}"
        return described(sizes, super().extra_repr())
