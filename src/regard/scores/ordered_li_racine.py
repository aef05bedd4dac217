"""The score of the Li-Racine kernel for ordered values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from regard.arrays import Array, Namespace, leading, like
from regard.scores.aitchison_aitken import check_one_column
from regard.scores.base import Leaf
from regard.scores.li_racine import LiRacine, check_share
from regard.scores.pairings import Pairing, absolute_difference


@dataclass(frozen=True, eq=False)
class OrderedLiRacine(Leaf):
    """Log of the Li-Racine kernel for one column of ordered values.

        s(q, k) = |d| log(bandwidth),  d = q - k

    Unlike that of Wang and van Ryzin it reaches equal weights: at bandwidth 1 the column is ignored.

    Parameters
    ----------
    bandwidth : 0 <= number <= 1, no unit; 0 compares for equality. Differences are those of the column's values.

    Raises
    ------
    ValueError : if the bandwidth is out of its range, or query and key are more than one column.

    References
    ----------
    Racine & Li (2004), Journal of Econometrics 119, section 2; Li & Racine (2007), Nonparametric Econometrics, eq. 4.6.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.OrderedLiRacine(0.5)(np.array([[3.0]]), np.array([[3.0], [4.0], [6.0]])).round(6)
    array([[ 0.      , -0.693147, -2.079442]])
    """

    bandwidth: Any
    pairing: ClassVar[Pairing] = absolute_difference

    def __post_init__(self) -> None:
        check_share(self, self.bandwidth)

    @property
    def largest_bandwidth(self) -> float:
        return 1.0

    def check(self, query_dim: int, key_dim: int) -> None:
        check_one_column("OrderedLiRacine", query_dim, key_dim)

    def parameters(self, xp: Namespace, query: Array) -> dict[str, Array]:
        return {"bandwidth": leading(like(xp, self.bandwidth, query))}

    formula = staticmethod(LiRacine.formula)  # of |d| where that of categories has 1
    slope = staticmethod(LiRacine.slope)
