"""The score of the parzen kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel
from regard.scores.roots import LOG2, root


@dataclass(frozen=True, eq=False)
class Parzen(Kernel):
    """Log of the Parzen kernel, a cubic spline; -inf outside the support.

        s(q, k) = log(1 - 6 r^2 + 6 r^3) for r <= 1/2, log(2 (1 - r)^3) for r < 1, else -inf,  r = |(q - k) / bandwidth|

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; the radius of the support

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Parzen (1961), Technometrics 3, section 5.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Parzen(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -1.386294
    """

    tail: ClassVar[str] = "compact"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        inside = u < 1
        r = root(xp, xp.where(inside, u, 0.0))
        inner = r <= 0.5
        a = xp.where(inner, r, 0.25)
        b = xp.where(inner, 0.75, r)
        return xp.where(inside, xp.where(inner, xp.log1p(-6 * a * a * (1 - a)), LOG2 + 3 * xp.log1p(-b)), -xp.inf)

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        r = root(xp, u)
        outer = xp.where(u < 1, 1 - r, 0.0)
        return xp.where(r <= 0.5, 1 - 6 * r * r * outer, 2 * outer * outer * outer)

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        inside = u < 1
        r = root(xp, xp.where(inside, u, 0.0))
        inner = r <= 0.5
        a = xp.where(inner, r, 0.25)
        b = xp.where(inner, 0.75, r)
        spline = (9 * a - 6) / (1 - 6 * a * a * (1 - a))
        return (xp.where(inside, xp.where(inner, spline, -1.5 / (b * (1 - b))), 0.0),)
