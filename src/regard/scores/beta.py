"""The beta kernel: for features between two ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from regard.arrays import Array, Namespace, concrete, like, sum_to
from regard.scores.base import Gradients, Leaf, check_equal_size, check_positive
from regard.scores.pairings import Pairing, dot_product


@dataclass(frozen=True, eq=False)
class Beta(Leaf):
    """The logarithm of the beta kernel: no weight lies beyond the ends of the support, where other kernels spill over.

        s(q, k) = sum_c (z log(t / z) + (1 - z) log((1 - t) / (1 - z))) / b,  z, t = (q - low, k - low) / (high - low)

    It is the beta density with parameters z / b + 1 and (1 - z) / b + 1 at t, divided by its largest value, which is at
    t = z: its shape changes with the query, and its variance is about b z (1 - z).

    Parameters
    ----------
    bandwidth : float > 0, or one per feature (D,): b, without a unit; for the variance of a Gaussian of bandwidth h in
        the middle of the support, ``4 (h / (high - low))^2``
    low, high : floats, or one per feature (D,): the ends of the support, in the units of query and key. What is beyond
        is taken to stand at the end, and the logarithm of 0 to be that of the smallest number of full precision.

    Raises
    ------
    ValueError : if a bandwidth is not positive, or low is not below high.

    References
    ----------
    Chen (2000), Beta kernel smoothers for regression curves, Statistica Sinica 10, eq. 2.3; Chen (1999), Beta kernel
    estimators for density functions, Computational Statistics & Data Analysis 31, section 2.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.Beta(0.1)(np.array([[0.0], [0.5]]), np.array([[0.1], [0.25], [0.5]])).round(3)
    array([[-1.054, -2.877, -6.931],
           [-5.108, -1.438, -0.   ]])
    """

    bandwidth: Any = 0.1
    low: Any = 0.0
    high: Any = 1.0
    pairing: ClassVar[Pairing] = dot_product
    metric: ClassVar[tuple[str, ...]] = ("bandwidth", "low", "high")

    def __post_init__(self) -> None:
        check_positive(self, "bandwidth")
        check_ends(self)

    def check(self, query_dim: int, key_dim: int) -> None:
        check_equal_size("Beta", query_dim, key_dim)

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        (z, rest, _), (t, other, _) = (self._inside(xp, x) for x in (query, key))
        b = like(xp, self.bandwidth, query)
        entropy = -z * xp.log(z) - rest * xp.log(rest)
        ones = xp.ones_like(t)
        return xp.concat([z / b, rest / b, entropy / b], axis=-1), xp.concat([xp.log(t), xp.log(other), ones], axis=-1)

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        (z, rest, to_z), (t, other, to_t) = (self._inside(xp, x) for x in (query, key))
        b, d = like(xp, self.bandwidth, query), query.shape[-1]
        up, down, level = (grad_query[..., n * d : (n + 1) * d] for n in range(3))
        to_query = to_z * (up - down + level * (xp.log(rest) - xp.log(z))) / b
        to_key = to_t * (grad_key[..., :d] / t - grad_key[..., d : 2 * d] / other)
        features = up * z + down * rest - level * (z * xp.log(z) + rest * xp.log(rest))
        low, high = like(xp, self.low, query), like(xp, self.high, query)
        to_low = -sum_to(xp, to_query * rest, low.shape) - sum_to(xp, to_key * other, low.shape)
        to_high = -sum_to(xp, to_query * z, high.shape) - sum_to(xp, to_key * t, high.shape)
        return to_query, to_key, {"bandwidth": -sum_to(xp, features / (b * b), b.shape), "low": to_low, "high": to_high}

    def _inside(self, xp: Namespace, x: Array) -> tuple[Array, Array, Array]:
        """The share of the support below x and that above it, and the slope of the first; never 0."""
        low, high = like(xp, self.low, x), like(xp, self.high, x)
        least = float(xp.finfo(x.dtype).smallest_normal)
        z, rest = (x - low) / (high - low), (high - x) / (high - low)
        slope = xp.where((z > least) & (rest > least), xp.ones_like(x) / (high - low), 0.0)
        return xp.clip(z, least, 1.0), xp.clip(rest, least, 1.0), slope


def check_ends(owner: Any) -> None:
    """Raise ValueError unless low is below high; tensors that are being traced are not looked at."""
    low, high = concrete(owner.low), concrete(owner.high)
    if low is not None and high is not None and not (low < high).all():
        raise ValueError(
            f"`low` of {type(owner).__name__} must be below `high`; got low={owner.low!r} and high={owner.high!r}."
        )
