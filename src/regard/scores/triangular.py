"""The score of the triangular kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel
from regard.scores.roots import root


@dataclass(frozen=True, eq=False)
class Triangular(Kernel):
    """Log of the triangular kernel 1 - r; -inf outside the support.

        s(q, k) = log(1 - r), r = sqrt(u) < 1, else -inf,  u = |(q - k) / bandwidth|^2

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
    >>> float(rg.Triangular(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.693147
    """

    tail: ClassVar[str] = "compact"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        inside = u < 1
        return xp.where(inside, xp.log1p(-root(xp, xp.where(inside, u, 0.0))), -xp.inf)

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        return xp.where(u < 1, 1 - root(xp, u), 0.0)

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        inside = (u < 1) & (u > 0)  # the derivative diverges at 0; the kink has slope 0 there
        r = xp.sqrt(xp.where(inside, u, 0.25))
        return (xp.where(inside, -0.5 / (r * (1 - r)), 0.0),)
