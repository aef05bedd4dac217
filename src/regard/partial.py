"""What is known after some of the keys: the running maximum, the weight sum, the value sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.arrays import Array, namespace, surely_finite
from regard.weights import divide


@dataclass(frozen=True, eq=False)
class Partial:
    """A pooling that may go on: parts over different keys merge to the whole, in any order (law 6).

        weight_sum = sum_i exp(s_i - max),  value_sum = sum_i exp(s_i - max) v_i

    ``max`` is a constant shift without gradient. The neutral element is (-inf, 0, 0). All in natural logarithms.

    Parameters
    ----------
    max, weight_sum : (..., Q)
    value_sum : (..., Q, V)
    dtype : of the finished result; None for that of value_sum

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x, y = np.arange(4.0)[:, None], np.arange(4.0)[:, None]
    >>> parts = [rg.partial_pool(x, x[i:j], y[i:j], rg.Gaussian(1.0)) for i, j in ((0, 1), (1, 4))]
    >>> whole = rg.attention_pool(x, x, y, rg.Gaussian(1.0))
    >>> bool(np.allclose(parts[0].merge(parts[1]).finish(), whole))
    True
    """

    max: Array
    weight_sum: Array
    value_sum: Array
    dtype: Any = None

    def merge(self, other: Partial) -> Partial:
        """The Partial of all keys of both."""
        xp = namespace(self.max)
        top = xp.maximum(self.max, other.max)
        shift = xp.where(top == -xp.inf, 0.0, top)

        def scaled(factor: Array, x: Array) -> Array:  # a value that is not finite stays, even where its weight is 0
            finite = xp.isfinite(x)
            return xp.where(finite, factor * xp.where(finite, x, 0.0), x)

        with np.errstate(over="ignore", invalid="ignore"):
            a, b = xp.exp(self.max - shift), xp.exp(other.max - shift)
            return Partial(
                top,
                scaled(a, self.weight_sum) + scaled(b, other.weight_sum),
                scaled(a[..., None], self.value_sum) + scaled(b[..., None], other.value_sum),
                self.dtype,
            )

    def finish(self, *, overwrite: bool = False) -> Array:
        """The pooled value, (..., Q, V): 0 where no key was left. What a NaN reached is NaN and carries no gradient.

        ``overwrite`` lets it be computed in the memory of ``value_sum``.
        """
        xp = namespace(self.max)
        if overwrite and bool(xp.all(self.weight_sum == 1)):  # finished by the engine, whatever the values are
            return self._cast(self.value_sum)
        if all(surely_finite(xp, x) for x in (self.weight_sum, self.value_sum)):
            if overwrite:
                self.value_sum[...] /= xp.where(self.weight_sum == 0, 1.0, self.weight_sum)[..., None]
                return self._cast(self.value_sum)
            return self._cast(divide(xp, self.value_sum, self.weight_sum))
        lost = ~xp.isfinite(self.value_sum) | ~xp.isfinite(self.weight_sum)[..., None]
        weight = xp.where(xp.isfinite(self.weight_sum), self.weight_sum, 1.0)
        out = divide(xp, xp.where(lost, 0.0, self.value_sum), weight)
        return self._cast(xp.where(lost, xp.where(xp.isnan(self.weight_sum)[..., None], xp.nan, self.value_sum), out))

    def _cast(self, out: Array) -> Array:
        if self.dtype is None or out.dtype == self.dtype:
            return out
        return out.to(self.dtype) if hasattr(out, "to") else namespace(out).astype(out, self.dtype)

    @property
    def log_weight_sum(self) -> Array:
        """``log sum_i exp(s_i)``, (..., Q); -inf where no key was left."""
        xp = namespace(self.max)
        empty, lost = self.weight_sum == 0, xp.isnan(self.weight_sum)
        log = xp.log(xp.where(empty | lost, 1.0, self.weight_sum))
        log = xp.where(empty, -xp.inf, xp.where(empty, 0.0, self.max) + log)
        return xp.where(lost, xp.nan, log)
