"""The score of the Li-Racine kernel for unordered categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array, Namespace, concrete, leading, like
from regard.scores.aitchison_aitken import check_one_column
from regard.scores.base import Leaf, Score
from regard.scores.pairings import Pairing, mismatch


def check_share(owner: Score, bandwidth: Any) -> None:
    """Raise ValueError unless the bandwidth lies between 0 and 1."""
    value = concrete(bandwidth)
    if value is not None and not np.all((value >= 0) & (value <= 1)):
        raise ValueError(f"`bandwidth` of {type(owner).__name__} must lie between 0 and 1; got {bandwidth!r}.")


@dataclass(frozen=True, eq=False)
class LiRacine(Leaf):
    """Log of the Li-Racine kernel for one column of codes without order.

        s(q, k) = 0 if q = k, else log(bandwidth)

    Unlike that of Aitchison and Aitken it does not need to know how many categories there are.

    Parameters
    ----------
    bandwidth : 0 <= number <= 1, no unit; 0 compares for equality, 1 ignores the column

    Raises
    ------
    ValueError : if the bandwidth is out of its range, or query and key are more than one column.

    References
    ----------
    Racine & Li (2004), Journal of Econometrics 119, section 2; Li & Racine (2007), Nonparametric Econometrics, eq. 4.4.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.LiRacine(0.5)(np.array([[2.0]]), np.array([[2.0], [0.0]])).round(6)
    array([[ 0.      , -0.693147]])
    """

    bandwidth: Any
    pairing: ClassVar[Pairing] = mismatch

    def __post_init__(self) -> None:
        check_share(self, self.bandwidth)

    @property
    def largest_bandwidth(self) -> float:
        return 1.0

    def check(self, query_dim: int, key_dim: int) -> None:
        check_one_column("LiRacine", query_dim, key_dim)

    def parameters(self, xp: Namespace, query: Array) -> dict[str, Array]:
        return {"bandwidth": leading(like(xp, self.bandwidth, query))}

    @staticmethod
    def formula(xp: Namespace, u: Array, bandwidth: Array) -> Array:
        some = bandwidth > 0
        decay = u * xp.log(xp.where(some, bandwidth, 1.0))
        return xp.where(u > 0, xp.where(some, decay, -xp.inf), 0.0)

    @staticmethod
    def slope(xp: Namespace, u: Array, bandwidth: Array) -> tuple[Array, ...]:
        some = (bandwidth > 0) & (u > 0)
        b = xp.where(some, bandwidth, 1.0)
        return xp.where(some, xp.log(b), 0.0), xp.where(some, u / b, 0.0)
