"""The score of the raised cosine kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel
from regard.scores.roots import PI, TINY


@dataclass(frozen=True, eq=False)
class RaisedCosine(Kernel):
    """Log of the raised cosine kernel (1 + cos(pi r)) / 2; -inf outside the support.

        s(q, k) = log((1 + cos(pi r)) / 2) = 2 log(cos(pi r / 2)) for r < 1, else -inf,  r = |(q - k) / bandwidth|

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; the radius of the support

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Stata, Base Reference Manual, lpoly: `cosine` there is this kernel with bandwidth 1/2.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.RaisedCosine(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.693147
    """

    tail: ClassVar[str] = "compact"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        inside = u < 1
        near = u < TINY
        r = xp.sqrt(xp.where(inside & ~near, u, 0.25))
        return xp.where(inside, xp.where(near, -PI * PI / 4 * u, 2 * xp.log(xp.sin(PI / 2 * (1 - r)))), -xp.inf)

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        inside = u < 1
        near = u < TINY
        r = xp.sqrt(xp.where(inside & ~near, u, 0.25))
        tangent = xp.sin(PI / 2 * r) / xp.sin(PI / 2 * (1 - r))  # tan(pi r / 2), exact near the edge
        return (xp.where(inside, xp.where(near, -PI * PI / 4, -PI / 2 * tangent / r), 0.0),)
