"""The score of the Wang-van Ryzin kernel for ordered values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array, Namespace, concrete, leading, like
from regard.scores.aitchison_aitken import check_one_column
from regard.scores.base import Leaf
from regard.scores.pairings import Pairing, absolute_difference
from regard.scores.roots import LOG2


@dataclass(frozen=True, eq=False)
class WangVanRyzin(Leaf):
    """Log of the Wang-van Ryzin kernel for one column of ordered values.

        s(q, k) = 0 if d = 0, else |d| log(bandwidth) - log 2,  d = q - k

    which is log K(d) - log K(0), with K(0) = 1 - bandwidth and K(d) = (1 - bandwidth) bandwidth^|d| / 2.

    Parameters
    ----------
    bandwidth : 0 <= number <= 1, no unit; 0 compares for equality. Differences are those of the column's values.

    Raises
    ------
    ValueError : if the bandwidth is out of its range, or query and key are more than one column.

    References
    ----------
    Wang & van Ryzin (1981), Biometrika 68, section 2.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.WangVanRyzin(0.5)(np.array([[3.0]]), np.array([[3.0], [4.0], [6.0]])).round(6)
    array([[ 0.      , -1.386294, -2.772589]])
    """

    bandwidth: Any
    pairing: ClassVar[Pairing] = absolute_difference

    def __post_init__(self) -> None:
        value = concrete(self.bandwidth)
        if value is not None and not np.all((value >= 0) & (value <= 1)):
            raise ValueError(f"`bandwidth` of WangVanRyzin must lie between 0 and 1; got {self.bandwidth!r}.")

    @property
    def largest_bandwidth(self) -> float:
        return 1.0

    def check(self, query_dim: int, key_dim: int) -> None:
        check_one_column("WangVanRyzin", query_dim, key_dim)

    def parameters(self, xp: Namespace, query: Array) -> dict[str, Array]:
        return {"bandwidth": leading(like(xp, self.bandwidth, query))}

    @staticmethod
    def formula(xp: Namespace, u: Array, bandwidth: Array) -> Array:
        some = bandwidth > 0
        decay = u * xp.log(xp.where(some, bandwidth, 1.0)) - LOG2
        return xp.where(u > 0, xp.where(some, decay, -xp.inf), 0.0)

    @staticmethod
    def slope(xp: Namespace, u: Array, bandwidth: Array) -> tuple[Array, ...]:
        some = (bandwidth > 0) & (u > 0)
        b = xp.where(some, bandwidth, 1.0)
        return xp.where(some, xp.log(b), 0.0), xp.where(some, u / b, 0.0)
