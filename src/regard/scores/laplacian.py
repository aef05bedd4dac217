"""The score of the laplacian kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel
from regard.scores.roots import root


@dataclass(frozen=True, eq=False)
class Laplacian(Kernel):
    """Log of the Laplacian kernel exp(-|d|): an exponential tail and a kink at zero.

        s(q, k) = -sqrt(u),  u = |(q - k) / bandwidth|^2

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; it divides the difference

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, eq. 4.18.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Laplacian(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.5
    """

    tail: ClassVar[str] = "exponential"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        return -root(xp, u)

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        return xp.exp(-root(xp, u))

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        # the derivative diverges at 0; the kink has slope 0 there
        return (xp.where(u > 0, -0.5 / xp.sqrt(xp.where(u > 0, u, 1.0)), 0.0),)
