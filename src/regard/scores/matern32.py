"""The score of the matern32 kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel
from regard.scores.roots import SQRT3, TINY, root


@dataclass(frozen=True, eq=False)
class Matern32(Kernel):
    """Log of the Matern kernel of smoothness 3/2: an exponential tail, once differentiable.

        s(q, k) = log(1 + a) - a, a = sqrt(3 u),  u = |(q - k) / bandwidth|^2

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
    >>> float(rg.Matern32(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.242215
    """

    tail: ClassVar[str] = "exponential"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        near = u < TINY  # there the formula is its tangent, so that its derivative at 0 is the true one
        a = SQRT3 * xp.sqrt(xp.where(near, 1.0, u))
        return xp.where(near, -1.5 * u, xp.log1p(a) - a)

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        a = SQRT3 * root(xp, u)
        return (1 + a) * xp.exp(-a)

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        return (-1.5 / (1 + SQRT3 * root(xp, u)),)
