"""The score of the epanechnikov kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel


@dataclass(frozen=True, eq=False)
class Epanechnikov(Kernel):
    """Log of the epanechnikov kernel 1 - u; -inf outside the support.

        s(q, k) = log(1 - u) for u < 1, else -inf,  u = |(q - k) / bandwidth|^2

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; the radius of the support

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Epanechnikov (1969), Theory of Probability and Its Applications 14, section 4.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Epanechnikov(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.287682
    """

    tail: ClassVar[str] = "compact"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        inside = u < 1
        return xp.where(inside, xp.log1p(-xp.where(inside, u, 0.0)), -xp.inf)

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        return xp.where(u < 1, 1 - u, 0.0)

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        inside = u < 1
        return (xp.where(inside, -1.0 / (1 - xp.where(inside, u, 0.0)), 0.0),)
