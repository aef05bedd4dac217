"""The score of the uniform kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace, leading, like
from regard.scores.base import Kernel


@dataclass(frozen=True, eq=False)
class Uniform(Kernel):
    """Log of the uniform kernel: 0 within the bandwidth, -inf beyond it.

        s(q, k) = 0 for u <= 1, else -inf,  u = |(q - k) / bandwidth|^2

    The support is closed: a key at exactly the bandwidth counts, to 32 roundings.

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; the radius of the support

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Wand & Jones (1995), Kernel Smoothing, table 2.1 and section 2.7.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Uniform(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    0.0
    """

    tail: ClassVar[str] = "compact"

    def parameters(self, xp: Namespace, query: Array) -> dict[str, Array]:
        # the edge depends on the dtype, so it travels as a parameter
        return {"edge": leading(like(xp, 1 + 32 * float(xp.finfo(query.dtype).eps), query))}

    @staticmethod
    def formula(xp: Namespace, u: Array, edge: Array) -> Array:
        return xp.where(u <= edge, 0.0 * u, -xp.inf)

    @staticmethod
    def kernel(xp: Namespace, u: Array, edge: Array) -> Array:
        return xp.where(u <= edge, xp.ones_like(u), xp.zeros_like(u))

    @staticmethod
    def slope(xp: Namespace, u: Array, edge: Array) -> tuple[Array, ...]:
        return xp.zeros_like(u), xp.zeros_like(u)
