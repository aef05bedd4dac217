"""The score of the rational quadratic kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel


@dataclass(frozen=True, eq=False)
class RationalQuadratic(Kernel):
    """Log of the rational quadratic kernel: a Gaussian score with a heavy tail.

        s(q, k) = -alpha log(1 + u / (2 alpha)),  u = |(q - k) / bandwidth|^2

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; it divides the difference
    alpha : float > 0, no unit; an array holds one per head. The score nears the Gaussian score as it grows.

    Raises
    ------
    ValueError : if a bandwidth or alpha is not positive.

    References
    ----------
    Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, eq. 4.19.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.RationalQuadratic(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.117783
    """

    alpha: Any = 1.0
    tail: ClassVar[str] = "power"

    @staticmethod
    def formula(xp: Namespace, u: Array, alpha: Array) -> Array:
        return -alpha * xp.log1p(u / (2 * alpha))

    @staticmethod
    def slope(xp: Namespace, u: Array, alpha: Array) -> tuple[Array, ...]:
        return -alpha / (2 * alpha + u), u / (2 * alpha + u) - xp.log1p(u / (2 * alpha))
