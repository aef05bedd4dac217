"""The gamma kernel: for features that are positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from regard.arrays import Array, Namespace, like, sum_to
from regard.scores.base import Gradients, Leaf, check_equal_size, check_positive
from regard.scores.pairings import Pairing, dot_product


@dataclass(frozen=True, eq=False)
class Gamma(Leaf):
    """The logarithm of the gamma kernel: no weight lies below the end of the support, where other kernels spill over.

        s(q, k) = sum_c (z log(t / z) - t + z) / b,  z = q - low, t = k - low

    It is the gamma density of shape z / b + 1 and scale b at t, divided by its largest value, which it has at t = z: it
    widens with the query, and its variance is about b z.

    Parameters
    ----------
    bandwidth : float > 0, or one per feature (D,): b, in the units of query and key
    low : float, or one per feature (D,): the end of the support. What is below is taken to stand there, and the
        logarithm of 0 to be that of the smallest number of full precision.

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Chen (2000), Probability density function estimation using gamma kernels, Annals of the Institute of Statistical
    Mathematics 52, eq. 2.2.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.Gamma(0.1)(np.array([[1.0]]), np.array([[0.5], [1.0], [2.0]])).round(3)
    array([[-1.931,  0.   , -3.069]])
    """

    bandwidth: Any = 0.1
    low: Any = 0.0
    pairing: ClassVar[Pairing] = dot_product
    metric: ClassVar[tuple[str, ...]] = ("bandwidth", "low")

    def __post_init__(self) -> None:
        check_positive(self, "bandwidth")

    def check(self, query_dim: int, key_dim: int) -> None:
        check_equal_size("Gamma", query_dim, key_dim)

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        (z, _), (t, _) = (self._above(xp, x) for x in (query, key))
        b = like(xp, self.bandwidth, query)
        ones = xp.ones_like(z)
        return (
            xp.concat([z / b, -ones / b, (z - z * xp.log(z)) / b], axis=-1),
            xp.concat([xp.log(t), t, xp.ones_like(t)], axis=-1),
        )

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        (z, to_z), (t, to_t) = (self._above(xp, x) for x in (query, key))
        b, d = like(xp, self.bandwidth, query), query.shape[-1]
        shape, scale, level = (grad_query[..., n * d : (n + 1) * d] for n in range(3))
        to_query = to_z * (shape - level * xp.log(z)) / b
        to_key = to_t * (grad_key[..., :d] / t + grad_key[..., d : 2 * d])
        features = shape * z - scale + level * (z - z * xp.log(z))
        low = like(xp, self.low, query)
        to_low = -sum_to(xp, to_query, low.shape) - sum_to(xp, to_key, low.shape)
        return to_query, to_key, {"bandwidth": -sum_to(xp, features / (b * b), b.shape), "low": to_low}

    def _above(self, xp: Namespace, x: Array) -> tuple[Array, Array]:
        """How far x is above the end, never 0, and the slope of that."""
        z = x - like(xp, self.low, x)
        least = float(xp.finfo(x.dtype).smallest_normal)
        return xp.clip(z, least, None), xp.where(z > least, xp.ones_like(x), 0.0)
