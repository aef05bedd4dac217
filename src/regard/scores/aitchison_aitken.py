"""The score of the Aitchison-Aitken kernel for unordered categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array, Namespace, concrete, leading, like
from regard.scores.base import Leaf, check_equal_size
from regard.scores.pairings import Pairing, mismatch


def check_one_column(owner: str, query_dim: int, key_dim: int) -> None:
    """Raise ValueError unless query and key are one column of codes."""
    check_equal_size(owner, query_dim, key_dim)
    if query_dim != 1:
        raise ValueError(
            f"{owner} compares one column; got {query_dim}. "
            f"Add one score per column: {owner}(...).on([0]) + {owner}(...).on([1])."
        )


@dataclass(frozen=True, eq=False)
class AitchisonAitken(Leaf):
    """Log of the Aitchison-Aitken kernel for one column of codes without order.

        s(q, k) = 0 if q = k, else log(bandwidth / ((levels - 1) (1 - bandwidth)))

    which is log K(q, k) - log K(q, q), with K = 1 - bandwidth if equal, else bandwidth / (levels - 1).

    Parameters
    ----------
    bandwidth : 0 <= number <= (levels - 1) / levels, no unit; 0 compares for equality, the upper end ignores the column
    levels : int >= 2, how many categories there are; given, never counted from the keys

    Raises
    ------
    ValueError : if either is out of its range, or query and key are more than one column.

    References
    ----------
    Aitchison & Aitken (1976), Biometrika 63, eq. 3.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.AitchisonAitken(0.5, levels=3)(np.array([[2.0]]), np.array([[2.0], [0.0]])).round(6)
    array([[ 0.      , -0.693147]])
    """

    bandwidth: Any
    levels: int
    pairing: ClassVar[Pairing] = mismatch

    def __post_init__(self) -> None:
        if not isinstance(self.levels, int | np.integer) or self.levels < 2:
            raise ValueError(f"`levels` of AitchisonAitken must be a whole number of at least 2; got {self.levels!r}.")
        value = concrete(self.bandwidth)
        highest = self.largest_bandwidth
        if value is not None and not np.all((value >= 0) & (value <= highest * (1 + 1e-12))):
            raise ValueError(
                f"`bandwidth` of AitchisonAitken must lie between 0 and {highest:g} for {self.levels} levels; "
                f"got {self.bandwidth!r}."
            )

    @property
    def largest_bandwidth(self) -> float:
        return (self.levels - 1) / self.levels

    def check(self, query_dim: int, key_dim: int) -> None:
        check_one_column("AitchisonAitken", query_dim, key_dim)

    def parameters(self, xp: Namespace, query: Array) -> dict[str, Array]:
        return {
            "bandwidth": leading(like(xp, self.bandwidth, query)),
            "others": leading(like(xp, self.levels - 1, query)),
        }

    @staticmethod
    def formula(xp: Namespace, u: Array, bandwidth: Array, others: Array) -> Array:
        some = bandwidth > 0
        odds = xp.where(some, bandwidth / ((1 - bandwidth) * others), 1.0)
        return xp.where(u > 0, xp.where(some, xp.log(odds), -xp.inf), 0.0 * u)

    @staticmethod
    def slope(xp: Namespace, u: Array, bandwidth: Array, others: Array) -> tuple[Array, ...]:
        some = (bandwidth > 0) & (u > 0)
        b = xp.where(some, bandwidth, 0.5)
        return xp.zeros_like(u), xp.where(some, 1 / (b * (1 - b)), 0.0), xp.zeros_like(u)
