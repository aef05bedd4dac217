"""The score of the gaussian kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from regard.arrays import Array, Namespace
from regard.scores.base import Kernel

HALF_LOG2E = -0.5 * math.log2(math.e)


@dataclass(frozen=True, eq=False)
class Gaussian(Kernel):
    """Log of the Gaussian kernel: attention by distance, softmax(-u / 2).

        s(q, k) = -u / 2,  u = |(q - k) / bandwidth|^2

    Parameters
    ----------
    bandwidth : float > 0 or one per feature, in the units of the query and key features; it divides the difference

    Raises
    ------
    ValueError : if a bandwidth is not positive.

    References
    ----------
    Nadaraya (1964), Theory of Probability and Its Applications 9, eq. 1; Watson (1964), Sankhya A 26, eq. 2.1.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> float(rg.Gaussian(1.0)(np.array([[0.5]]), np.array([[0.0]]))[0, 0].round(6))
    -0.125
    """

    tail: ClassVar[str] = "gaussian"

    @staticmethod
    def formula(xp: Namespace, u: Array) -> Array:
        return -u / 2

    @staticmethod
    def kernel(xp: Namespace, u: Array) -> Array:
        return xp.exp2(HALF_LOG2E * u)

    @staticmethod
    def slope(xp: Namespace, u: Array) -> tuple[Array, ...]:
        return (xp.full_like(u, -0.5),)
