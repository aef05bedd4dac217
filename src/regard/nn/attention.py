"""What the attention modules share: pooling with the score that a module builds from its parameters."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from regard.masks import Mask
from regard.pooling import attention_pool, attention_weights, top_attention
from regard.scores.base import Score


class Attention(nn.Module):
    """Attention pooling with a score of one's own; a subclass says which in ``score()``.

        f(q) = sum_i softmax_i(score(q, k_i)) v_i

    Parameters
    ----------
    dropout : probability that a weight is dropped in training mode; the others are divided by 1 - dropout
    engine : "auto", or the name of an engine, which then runs or raises

    Raises
    ------
    ValueError : if dropout does not lie between 0 and 1.

    Examples
    --------
    >>> import torch, regard as rg
    >>> class Averaging(rg.nn.Attention):
    ...     def score(self):
    ...         return rg.Constant()
    >>> Averaging()(torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([[1.0], [2.0], [6.0]]))
    tensor([[3.]])
    """

    def __init__(self, *, dropout: float = 0.0, engine: str = "auto") -> None:
        super().__init__()
        if not 0 <= dropout <= 1:
            raise ValueError(f"`dropout` must be a number between 0 and 1; got {dropout!r}.")
        self.dropout = dropout
        self.engine = engine

    def reset_parameters(self) -> None:
        """Start all parameters anew; here there is none."""

    def score(self) -> Score:
        """The score, built anew from the parameters as they are now, so that gradients reach them."""
        raise NotImplementedError

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """The pooled values, (..., Q, V), in the units of the value; a query without any key left gets 0.

        query (..., Q, Dq), key (..., K, Dk), value (..., K, V); leading axes broadcast, and three one-dimensional
        tensors are scalars. ``mask``: True may attend; a mask such as ``rg.ValidLength(lengths)``, or a Boolean tensor
        that broadcasts to (..., Q, K).
        """
        options = {"mask": mask, "engine": self.engine, **self._dropout_now()}
        pooled: Tensor = attention_pool(query, key, value, self.score(), **options)
        return pooled

    def weights(self, query: Tensor, key: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """The weights that ``forward`` uses, before dropout, (..., Q, K): each row sums to one, or is 0 without a key.

        ``module.weights(query, key) @ value`` is ``module(query, key, value)``.
        """
        weights: Tensor = attention_weights(query, key, self.score(), mask=mask, engine=self.engine)
        return weights

    def top(self, query: Tensor, key: Tensor, n: int = 10, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The n largest weights of each query and the indices of their keys, (..., Q, min(n, K)), in falling order.

        Weight 0 and index -1 where there are fewer keys. The weights of all pairs are never held; no gradient.
        """
        return top_attention(query, key, self.score(), n=n, mask=mask, engine=self.engine)

    def extra_repr(self) -> str:
        """The options that are not the usual ones."""
        dropout = [f"dropout={self.dropout:g}"] if self.dropout else []
        return ", ".join(dropout + ([f"engine={self.engine!r}"] if self.engine != "auto" else []))

    def _dropout_now(self) -> dict[str, Any]:
        """Dropout and its seed, from torch's generator; nothing is drawn in evaluation mode."""
        if not (self.training and self.dropout):
            return {}
        return {"dropout": self.dropout, "seed": int(torch.randint(2**63 - 1, ()))}


def check_count(owner: str, name: str, value: int) -> int:
    """The value, if it is a whole number of at least 1; else ValueError."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` of {owner} must be a whole number of at least 1; got {value!r}.")
    return int(value)


def uniform(weight: Tensor, fan_in: int) -> None:
    """Fill with numbers uniform on +-1 / sqrt(fan_in), as those of ``torch.nn.Linear``."""
    nn.init.uniform_(weight, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))


def wide(parameter: Tensor) -> Tensor:
    """The parameter in float32 at least: the exponential of a half-precision logarithm would lose most digits."""
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32))


def described(*parts: str) -> str:
    """The parts of an ``extra_repr`` that are not empty."""
    return ", ".join(part for part in parts if part)
