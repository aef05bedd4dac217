"""What several formulas need near zero: a square root with a finite derivative, and constants."""

from __future__ import annotations

import math

from regard.arrays import Array, Namespace

PI = math.pi
LOG2 = math.log(2.0)
SQRT3 = math.sqrt(3.0)
SQRT5 = math.sqrt(5.0)
TINY = 1e-20  # below this u a smooth formula equals its tangent at 0 to the last digit of float64


def root(xp: Namespace, u: Array) -> Array:
    """``sqrt(u)``, kept off 0 so that its derivative there is 0 and not infinite."""
    return xp.where(u > 0, xp.sqrt(xp.where(u > 0, u, 1.0)), 0.0)
