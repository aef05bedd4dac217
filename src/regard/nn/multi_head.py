"""Multi-head attention with any score."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.masks import Mask
from regard.nn.additive import AdditiveAttention
from regard.nn.attention import check_count
from regard.nn.bilinear import BilinearAttention
from regard.nn.cosine import CosineAttention
from regard.nn.dot_product import DotProductAttention
from regard.nn.heads import Heads, across_heads
from regard.nn.kernel import KernelAttention
from regard.scores import SCORES, kernels
from regard.scores.base import Score

Maker = Callable[[int], nn.Module]  # of the features of a head


class MultiHeadAttention(nn.Module):
    """Attention of several heads, each with its own projections of query, key and value, and with any score.

        head_h = sum_i softmax_i(score_h(W_q,h q, W_k,h k_i)) W_v,h v_i,   f(q) = W_o [head_1; ...; head_H]

    Parameters
    ----------
    embed_dim : features of the query and of the output; each head has embed_dim / num_heads
    num_heads : H
    score : "dot_product", "additive", "bilinear", "cosine" or the name of a kernel ("gaussian": by distance, with a
        learned bandwidth per head); or a function of the features of a head that returns a module with ``score()``.
        It is called once per head, so that each head has its own parameters (once only, if there are none).
    kdim, vdim : features of the key and of the value; None for embed_dim
    bias : whether the four projections have one
    dropout, engine : see ``Attention``
    device, dtype : of the parameters

    Shapes
    ------
    query (..., Q, embed_dim), key (..., K, kdim) and value (..., K, vdim) give (..., Q, embed_dim): the batch comes
    first, and need not be there. Weights are (..., H, Q, K).
    ``query_projection``, ``key_projection`` and ``value_projection`` start by Xavier's uniform, ``output_projection``
    as a ``torch.nn.Linear``, all biases from 0, as those of ``torch.nn.MultiheadAttention``.

    A mask: **True may attend**, which is the opposite of ``torch.nn.MultiheadAttention``. A Boolean tensor for
    (..., Q, K) serves all heads; with one axis more, (..., H, Q, K), it is per head. For padding, (B, K), use
    ``rg.KeyPadding(keep)``.

    Rows of query, key or value that are not finite are kept out of the projections, by selection: they make NaN only of
    the outputs that may attend to them, and never of a parameter's gradient.

    Raises
    ------
    ValueError : if embed_dim is not divisible by num_heads, the score is unknown, or a tensor has other features.

    References
    ----------
    Vaswani et al. (2017), Attention Is All You Need, section 3.2.2.

    Examples
    --------
    >>> import torch, regard as rg
    >>> attention = rg.nn.MultiHeadAttention(embed_dim=6, num_heads=3, score="gaussian")
    >>> x = torch.randn(2, 7, 6)
    >>> attention(x, x, x, mask=rg.Causal() & rg.ValidLength([7, 4])).shape
    torch.Size([2, 7, 6])
    >>> attention.weights(x, x).shape
    torch.Size([2, 3, 7, 7])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        score: str | Maker = "dot_product",
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = check_count("MultiHeadAttention", "embed_dim", embed_dim)
        self.num_heads = check_count("MultiHeadAttention", "num_heads", num_heads)
        self.kdim = embed_dim if kdim is None else check_count("MultiHeadAttention", "kdim", kdim)
        self.vdim = embed_dim if vdim is None else check_count("MultiHeadAttention", "vdim", vdim)
        if embed_dim % num_heads:
            fitting = ", ".join(str(n) for n in range(1, embed_dim + 1) if embed_dim % n == 0)
            raise ValueError(
                f"`embed_dim` must be divisible by `num_heads`; got embed_dim={embed_dim} and num_heads={num_heads}. "
                f"{embed_dim} features divide among {fitting} heads."
            )
        self.head_dim = embed_dim // num_heads
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.query_projection = nn.Linear(embed_dim, embed_dim, **options)
        self.key_projection = nn.Linear(self.kdim, embed_dim, **options)
        self.value_projection = nn.Linear(self.vdim, embed_dim, **options)
        self.output_projection = nn.Linear(embed_dim, embed_dim, **options)
        make = _maker(score) if isinstance(score, str) else score
        self.heads = Heads(_modules(make, num_heads, self.head_dim), dropout=dropout, engine=engine)
        self.heads.to(device=device, dtype=dtype)
        self._reset_projections()

    def reset_parameters(self) -> None:
        """Start all parameters anew, those of the scores too."""
        self._reset_projections()
        for module in self.heads.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()

    def _reset_projections(self) -> None:
        for projection in (self.query_projection, self.key_projection, self.value_projection):
            nn.init.xavier_uniform_(projection.weight)
        self.output_projection.reset_parameters()
        for name, parameter in self.named_parameters():
            if name.endswith("projection.bias"):
                nn.init.zeros_(parameter)

    def score(self) -> Score:
        """The score between projected queries and keys, (..., H, Q, head_dim) and (..., H, K, head_dim)."""
        return self.heads.score()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """The attended values, (..., Q, embed_dim); a query without any key left gets the bias of the output."""
        self._check(query=query, key=key, value=value)
        pooled = self.heads(
            self._split(self.query_projection, query),
            self._split(self.key_projection, key),
            self._split(self.value_projection, value),
            _across(mask, query, key, value),
        )
        return _projected(self.output_projection, pooled.transpose(-3, -2).flatten(-2))

    def weights(self, query: Tensor, key: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """The weights that ``forward`` uses, before dropout, (..., H, Q, K), head by head."""
        return self.heads.weights(*self._query_and_key(query, key), _across(mask, query, key))

    def top(self, query: Tensor, key: Tensor, n: int = 10, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The n largest weights of each head and query and the indices of their keys, (..., H, Q, min(n, K))."""
        return self.heads.top(*self._query_and_key(query, key), n, _across(mask, query, key))

    def extra_repr(self) -> str:
        sizes = f"{self.embed_dim}, num_heads={self.num_heads}"
        sizes += f", kdim={self.kdim}" if self.kdim != self.embed_dim else ""
        return sizes + (f", vdim={self.vdim}" if self.vdim != self.embed_dim else "")

    def _query_and_key(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        self._check(query=query, key=key)
        return self._split(self.query_projection, query), self._split(self.key_projection, key)

    def _split(self, projection: nn.Module, x: Tensor) -> Tensor:
        """(..., H, N, head_dim) of (..., N, features)."""
        projected = _projected(projection, x)
        return projected.reshape(*projected.shape[:-1], self.num_heads, self.head_dim).transpose(-3, -2)

    def _check(self, **given: Tensor) -> None:
        wanted = {"query": ("embed_dim", self.embed_dim), "key": ("kdim", self.kdim), "value": ("vdim", self.vdim)}
        for name, x in given.items():
            what, features = wanted[name]
            if x.ndim < 2 or x.shape[-1] != features:
                raise ValueError(
                    f"`{name}` must be (..., N, {features}), as {what}={features} says; got {tuple(x.shape)}."
                )
        key, value = given["key"], given.get("value")
        if value is not None and key.shape[-2] != value.shape[-2]:
            raise ValueError(
                "`key` and `value` must have the same length; "
                f"got key {tuple(key.shape)} and value {tuple(value.shape)}."
            )


def _projected(projection: nn.Module, x: Tensor) -> Tensor:
    """``projection(x)``, NaN in the rows that are not finite.

    Those rows enter as zeros: what stood behind a mask would else meet the zero gradient of its projection, and
    0 * NaN would be the gradient of the weight (law 1).
    """
    lost = ~x.isfinite().all(dim=-1, keepdim=True)
    projected: Tensor = projection(x.masked_fill(lost, 0.0))
    return projected.masked_fill(lost, torch.nan)


def _across(mask: Mask | Tensor | None, *given: Tensor) -> Mask | None:
    return None if mask is None else across_heads(mask, max(x.ndim for x in given) - 2)


def _modules(make: Maker, num_heads: int, head_dim: int) -> list[nn.Module]:
    """A module per head, or a single one if it has nothing to learn and nothing to keep."""
    first = make(head_dim)
    if not callable(getattr(first, "score", None)):
        raise TypeError(
            "`score` must be a name, or a function of the features of a head that returns a module with `score()`; "
            f"it returned {type(first).__name__}."
        )
    return [first, *(make(head_dim) for _ in range(num_heads - 1))] if first.state_dict() else [first]


def _maker(name: str) -> Maker:
    """What makes the module of a head for a score of this name."""
    makers: dict[str, Maker] = {
        "dot_product": lambda head_dim: DotProductAttention(),
        "additive": lambda head_dim: AdditiveAttention(head_dim, head_dim, head_dim),
        "bilinear": lambda head_dim: BilinearAttention(head_dim, head_dim),
        "cosine": lambda head_dim: CosineAttention(),
    }
    if name in kernels():
        return lambda head_dim: KernelAttention(name, head_dim, bandwidth=_start(name, head_dim))
    if name not in makers:
        raise ValueError(f"unknown score {name!r}; the known ones are {', '.join(sorted([*makers, *kernels()]))}.")
    return makers[name]


def _start(kernel: str, head_dim: int) -> float:
    """A bandwidth for projected features of variance 1, which stand about sqrt(2 head_dim) apart.

    With the fourth root, the Gaussian score is q . k / sqrt(head_dim) less a number of each, as sharp as a scaled dot
    product. A support must hold the keys, or no gradient would ever widen it.
    """
    compact = getattr(SCORES[kernel], "tail", None) == "compact"
    return 2 * math.sqrt(head_dim) if compact else math.sqrt(math.sqrt(head_dim))
