"""Dot products whose inputs an engine may take as they were given: nothing has to be prepared, cut out or set aside.

Preparing is a few passes over the inputs, which is what PyTorch's kernel needs for a few dozen keys.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from regard.arrays import Array, size, traced
from regard.masks.causal import Causal
from regard.scores.scaled_dot_product import ScaledDotProduct

DTYPES = ("torch.float32", "torch.float64", "torch.bfloat16")


class Straight(NamedTuple):
    """Torch tensors in CPU memory, (..., N, C) with equal leading axes, none empty, and nothing recorded."""

    query: Array
    key: Array
    value: Array
    scale: float
    causal: bool  # query i sees the keys up to i
    threads: int | None

    @property
    def work(self) -> float:
        """Pairs, of four features each."""
        return float(size(tuple(self.query.shape[:-1])) * self.key.shape[-2] * self.key.shape[-1] / 4)


def straight(
    query: Any, key: Any, value: Any, score: Any, mask: Any, bias: Any, dropout: Any, seed: Any, threads: Any
) -> Straight | None:
    """The inputs of a call that is that simple, or None: then it is checked and prepared."""
    torch = sys.modules.get("torch")
    if torch is None or type(score) is not ScaledDotProduct or bias is not None or dropout != 0 or seed is not None:
        return None
    if threads is not None and (type(threads) is not int or threads < 1):
        return None
    arrays = query, key, value
    if any(type(x) not in (torch.Tensor, torch.nn.Parameter) for x in arrays):
        return None
    if any(traced(x) or x.device.type != "cpu" or x.layout != torch.strided for x in arrays):
        return None
    if torch.is_grad_enabled() and any(x.requires_grad for x in arrays):
        return None
    if torch.autograd.forward_ad._current_level >= 0 or len({x.dtype for x in arrays}) > 1:
        return None
    if str(query.dtype) not in DTYPES or query.ndim < 2 or not all(x.numel() for x in arrays):
        return None
    (*lead, queries, features), (*same, keys, width), (*too, count, _) = (x.shape for x in arrays)
    if lead != same or lead != too or features != width or keys != count:
        return None
    scale = features**-0.5 if score.scale is None else score.scale
    if not isinstance(scale, int | float) or not 0 < scale < float("inf"):
        return None
    if mask is not None and (type(mask) is not Causal or mask.offset is not None or queries != keys):
        return None
    return Straight(query, key, value, float(scale), mask is not None, threads)
