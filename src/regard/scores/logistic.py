"""The score of the logistic kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel
from regard.scores.roots import LOG2, TINY, root


@dataclass(frozen=True, eq=False)
class Logistic(Kernel):
    """Log of the logistic kernel 1 / (e^r + 2 + e^-r): smooth at zero, with an exponential tail.

        s(q, k) = -r - 2 log((1 + e^-r) / 2), r = sqrt(u),  u = |(q - k) / bandwidth|^2

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; it divides the difference

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Wand & Jones (1995), Kernel Smoothing, table 2.1 and section 2.7.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Logistic(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.06186
    """

    tail: ClassVar[str] = "exponential"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        near = u < TINY
        r = xp.sqrt(xp.where(near, 1.0, u))
        return xp.where(near, -u / 4, 2 * LOG2 - r - 2 * xp.log1p(xp.exp(-r)))

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        e = xp.exp(-root(xp, u))
        return 4 * e / ((1 + e) * (1 + e))

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        near = u < TINY
        r = xp.sqrt(xp.where(near, 1.0, u))
        return (xp.where(near, -0.25, -0.5 * xp.tanh(r / 2) / r),)
