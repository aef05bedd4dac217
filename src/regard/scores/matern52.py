"""The score of the matern52 kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel
from regard.scores.roots import SQRT5, TINY, root


@dataclass(frozen=True, eq=False)
class Matern52(Kernel):
    """Log of the Matern kernel of smoothness 5/2: an exponential tail, twice differentiable.

        s(q, k) = log(1 + a + a^2 / 3) - a, a = sqrt(5 u),  u = |(q - k) / bandwidth|^2

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; it divides the difference

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, eq. 4.17.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Matern52(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.187958
    """

    tail: ClassVar[str] = "exponential"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        near = u < TINY  # there the formula is its tangent, so that its derivative at 0 is the true one
        a = SQRT5 * xp.sqrt(xp.where(near, 1.0, u))
        return xp.where(near, -5 * u / 6, xp.log1p(a + a * a / 3) - a)

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        a = SQRT5 * root(xp, u)
        return (1 + a + a * a / 3) * xp.exp(-a)

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        a = SQRT5 * root(xp, u)
        return (-2.5 * (1 + a) / (3 + 3 * a + a * a),)
