"""The score of the tricube kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel
from regard.scores.roots import root


@dataclass(frozen=True, eq=False)
class Tricube(Kernel):
    """Log of the tricube kernel (1 - r^3)^3; -inf outside the support.

        s(q, k) = 3 log(1 - r^3), r = sqrt(u) < 1, else -inf,  u = |(q - k) / bandwidth|^2

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; the radius of the support

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Cleveland (1979), Journal of the American Statistical Association 74, section 2.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Tricube(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.400594
    """

    tail: ClassVar[str] = "compact"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        inside = u < 1
        r = root(xp, xp.where(inside, u, 0.0))
        return xp.where(inside, 3 * xp.log1p(-r * r * r), -xp.inf)

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        r = root(xp, u)
        inside = xp.where(u < 1, 1 - r * r * r, 0.0)
        return inside * inside * inside

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        inside = u < 1
        r = root(xp, xp.where(inside, u, 0.0))
        return (xp.where(inside, -4.5 * r / (1 - r * r * r), 0.0),)
