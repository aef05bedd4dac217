"""Pooling without a query: what catches the eye by itself, and what attention is not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.masks import Layout, Mask
from regard.nn.attention import check_count, uniform
from regard.pooling import average_pool, max_pool


class AveragePooling(nn.Module):
    """The mean of the values that are left: every key gets the same weight.

        f = sum_i v_i / n

    Examples
    --------
    >>> import torch, regard as rg
    >>> rg.nn.AveragePooling()(torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([True, True, False]))
    tensor([1.5000])
    """

    def forward(self, value: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """(..., V) of value (..., K, V), in its units; 0 where nothing is left.

        ``mask``: True is kept; ``rg.ValidLength`` or ``rg.KeyPadding``, or a Boolean tensor (..., K);
        a Boolean tensor (..., Q, K) gives (..., Q, V).
        """
        pooled: Tensor = average_pool(value, _keep(value, mask))
        return pooled


class MaxPooling(nn.Module):
    """The elementwise maximum of the values that are left: the cue that catches the eye most.

        f_c = max_i v_ic

    Examples
    --------
    >>> import torch, regard as rg
    >>> rg.nn.MaxPooling()(torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([True, True, False]))
    tensor([2.])
    """

    def forward(self, value: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """(..., V) of value (..., K, V), in its units; 0 where nothing is left; ties share the gradient.

        ``mask``: True is kept; ``rg.ValidLength`` or ``rg.KeyPadding``, or a Boolean tensor (..., K);
        a Boolean tensor (..., Q, K) gives (..., Q, V).
        """
        pooled: Tensor = max_pool(value, _keep(value, mask))
        return pooled


def _keep(value: Tensor, mask: Mask | Tensor | None) -> Mask | Tensor | None:
    """A mask that asks for the key alone as the Boolean tensor (..., K) that pooling without a query takes."""
    if not isinstance(mask, Mask) or not mask.key_only or value.ndim < 2:
        return mask
    *lead, keys, _ = value.shape
    layout = Layout(torch, tuple(lead), 1, keys, value)
    mask.check(layout)
    keep: Tensor = mask.tile(layout, slice(0, 1), slice(0, keys))[..., 0, :]
    return keep.expand(value.shape[:-1])


class DensePooling(nn.Module):
    """A dense layer over positions: sums of the values with one learned weight per position.

        f_q = sum_k w_qk v_k

    This is what attention is *not*. The weight of a key depends on where it stands and never on what it is, nor on
    what is asked for: shuffle keys and values together, and the result changes; another number of keys, and there are
    no weights for it. Weights may be negative and need not sum to one.

    Parameters
    ----------
    num_keys : K, the number of positions
    num_outputs : Q; None for a single output without an axis of its own
    device, dtype : of the weight, which starts uniform on +-1 / sqrt(K), as that of ``torch.nn.Linear``

    Shapes
    ------
    weight (Q, K), or (1, K) for a single output; value (..., K, V) gives (..., Q, V), or (..., V).

    Raises
    ------
    ValueError : if a number is not positive, or the value has another number of positions.

    Examples
    --------
    >>> import torch, regard as rg
    >>> rg.nn.DensePooling(7)(torch.zeros(2, 7, 3)).shape
    torch.Size([2, 3])
    >>> rg.nn.DensePooling(7, num_outputs=5)(torch.zeros(2, 7, 3)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        num_keys: int,
        num_outputs: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_keys = check_count("DensePooling", "num_keys", num_keys)
        self.num_outputs = None if num_outputs is None else check_count("DensePooling", "num_outputs", num_outputs)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(self.num_outputs or 1, num_keys, **options))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew from torch's generator."""
        uniform(self.weight, self.num_keys)

    def forward(self, value: Tensor) -> Tensor:
        """The weighted sums, (..., Q, V) or (..., V), in the units of the value."""
        if value.ndim < 2 or value.shape[-2] != self.num_keys:
            raise ValueError(
                f"`value` must be (..., {self.num_keys}, V), one row for each of the {self.num_keys} weights; "
                f"got {tuple(value.shape)}. A dense layer has one length only; attention takes any."
            )
        pooled = self.weight @ value
        return pooled[..., 0, :] if self.num_outputs is None else pooled

    def extra_repr(self) -> str:
        return f"{self.num_keys}" + ("" if self.num_outputs is None else f", num_outputs={self.num_outputs}")
