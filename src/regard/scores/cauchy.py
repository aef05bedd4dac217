"""The score of the cauchy kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel


@dataclass(frozen=True, eq=False)
class Cauchy(Kernel):
    """Log of the Cauchy kernel 1 / (1 + u): an inverse-power tail.

        s(q, k) = -log(1 + u),  u = |(q - k) / bandwidth|^2

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; it divides the difference

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, eq. 4.19 with alpha = 1 (bandwidth rescaled).

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Cauchy(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.223144
    """

    tail: ClassVar[str] = "power"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        return -xp.log1p(u)

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        return 1 / (1 + u)

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        return (-1 / (1 + u),)
