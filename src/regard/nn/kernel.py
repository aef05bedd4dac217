"""Nadaraya-Watson pooling with a learned width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from regard.nn.attention import Attention, check_count, described, wide
from regard.scores import kernels, named
from regard.scores.base import Score

Width = Literal["scalar", "feature", "matrix"]


class KernelAttention(Attention):
    """Attention by distance: Nadaraya-Watson kernel regression with a learned width.

        f(x) = sum_i softmax_i(log K(W (x - x_i))) y_i;  Gaussian: softmax_i(-|W (x - x_i)|^2 / 2)

    ``width="scalar"`` learns one bandwidth h (W = 1 / h), ``"feature"`` one per feature (W = diag(1 / h)), ``"matrix"``
    all of W. Train it by leave-one-out, each point predicted from the others: ``module(x, x, y, mask=rg.NotSelf())``.
    Without that mask the best width is 0, where each point predicts itself.

    Parameters
    ----------
    kernel : name of a radial kernel, such as "gaussian", "epanechnikov", "matern32"
    dim : features of a query and of a key; a scalar width takes any number of them
    width : "scalar", "feature" or "matrix"
    bandwidth : what the width starts from, > 0, in the units of the features; for "feature" also one per feature. Of a
        compact kernel it is the radius of the support: start wide, a key outside gives no gradient.
    dropout, engine : see ``Attention``
    device, dtype : of the parameter

    Shapes
    ------
    log_bandwidth () or (dim,), the logarithm of h, so that h stays positive; for "matrix" weight W (dim, dim), at first
    the identity / bandwidth. query (..., Q, dim), key (..., K, dim) and value (..., K, V) give (..., Q, V); three
    one-dimensional tensors are scalars.

    Raises
    ------
    ValueError : if the kernel or width is unknown, a bandwidth is not positive and finite, or query or key has another
        number of features.

    References
    ----------
    Nadaraya (1964), Theory of Probability and Its Applications 9, eq. 1; Watson (1964), Sankhya A 26, eq. 2.1.

    Examples
    --------
    >>> import torch, regard as rg
    >>> x = torch.linspace(0, 6, 50)
    >>> y = torch.sin(x)
    >>> attention = rg.nn.KernelAttention(bandwidth=1.0)
    >>> optimizer = torch.optim.Adam(attention.parameters(), lr=0.1)
    >>> for _ in range(50):
    ...     optimizer.zero_grad()
    ...     loss = (attention(x, x, y, mask=rg.NotSelf()) - y).square().mean()
    ...     loss.backward()
    ...     _ = optimizer.step()
    >>> bool(attention.bandwidth < 0.3)
    True
    """

    log_bandwidth: nn.Parameter
    weight: nn.Parameter

    def __init__(
        self,
        kernel: str = "gaussian",
        dim: int = 1,
        width: Width = "scalar",
        bandwidth: float | Sequence[float] = 1.0,
        *,
        dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dropout=dropout, engine=engine)
        named(kernel, of=kernels())  # an unknown one is named here, not in the first forward
        self.kernel = kernel
        self.dim = check_count("KernelAttention", "dim", dim)
        if width not in get_args(Width):
            raise ValueError(f'`width` of KernelAttention must be "scalar", "feature" or "matrix"; got {width!r}.')
        self.width = width
        start = torch.as_tensor(bandwidth, dtype=torch.float64)
        if start.ndim and (width != "feature" or tuple(start.shape) != (dim,)):
            wanted = f"one number or {dim}, one per feature" if width == "feature" else "one number"
            raise ValueError(
                f'`bandwidth` of KernelAttention(dim={dim}, width="{width}") must be {wanted}; got {bandwidth!r}.'
            )
        if not bool(((start > 0) & start.isfinite()).all()):
            raise ValueError(f"`bandwidth` of KernelAttention must be positive and finite; got {bandwidth!r}.")
        self.initial_bandwidth: float | list[float] = start.tolist()
        shape = {"scalar": (), "feature": (dim,), "matrix": (dim, dim)}[width]
        parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.register_parameter("weight" if width == "matrix" else "log_bandwidth", parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the width to what it started from."""
        h = torch.as_tensor(self.initial_bandwidth, dtype=torch.float64)
        with torch.no_grad():
            if self.width == "matrix":
                self.weight.copy_(torch.eye(self.dim, dtype=torch.float64) / h)
            else:
                self.log_bandwidth.copy_(h.log())

    @property
    def bandwidth(self) -> Tensor:
        """The bandwidth as it is now, () or (dim,), in the units of the features; a matrix width has none."""
        log = wide(self.log_bandwidth)
        # a width that no longer matters drifts on: were it infinite, its gradient would be 0 * inf
        return log.clamp(max=math.log(torch.finfo(log.dtype).max) * (1 - 1e-6)).exp()

    def score(self) -> Score:
        """The kernel's score, of the width as it is now."""
        if self.width == "matrix":
            return named(self.kernel, bandwidth=1.0).through(self.weight)
        return named(self.kernel, bandwidth=self.bandwidth)

    def extra_repr(self) -> str:
        start = self.initial_bandwidth
        shown = f"{start:g}" if isinstance(start, float) else f"[{', '.join(f'{h:g}' for h in start)}]"
        options = f'"{self.kernel}", dim={self.dim}, width="{self.width}", bandwidth={shown}'
        return described(options, super().extra_repr())
