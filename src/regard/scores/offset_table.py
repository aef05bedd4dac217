"""A score by offset alone: what a convolution compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array, Namespace, like, sum_to
from regard.scores.base import Gradients, Leaf
from regard.scores.pairings import Offset, Pairing, squared_distance


@dataclass(frozen=True, eq=False)
class OffsetTable(Leaf):
    """A score looked up by the position of the key minus the position of the query; -inf beyond the table.

        s(q, k) = table[k - q],  offset 0 in the middle

    Query and key are columns of whole positions, one column per axis of the table: (Q, 1) for a sequence,
    (Q, 2) for an image. Translation invariance is that only the offset counts, locality that the table ends.

    Parameters
    ----------
    table : an odd length along each axis, (2 a + 1,) or (2 a + 1, 2 b + 1), ...; entries may be -inf.
        With ``axes=n``, only the last n axes are offsets and those before them are heads.
    axes : int, how many axes of the table are offsets; None for all

    Raises
    ------
    ValueError : if a length is even, or positions and table differ in their number of axes.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> position = np.arange(4.0)[:, None]
    >>> table = np.log(np.array([0.25, 0.5, 0.25]))
    >>> np.exp(rg.OffsetTable(table)(position, position))[1].round(2)
    array([0.25, 0.5 , 0.25, 0.  ])
    """

    table: Any
    axes: int | None = None
    pairing: ClassVar[Pairing] = squared_distance  # replaced by an Offset of this table's shape
    metric: ClassVar[tuple[str, ...]] = ("table", "axes")

    def __post_init__(self) -> None:
        shape = tuple(np.shape(self.table))
        axes = len(shape) if self.axes is None else self.axes
        if not 1 <= axes <= len(shape) or any(n % 2 == 0 for n in shape[len(shape) - axes :]):
            raise ValueError(
                f"`table` of OffsetTable must have an odd length along each offset axis (offset 0 is its middle); "
                f"got shape {shape} with {axes} offset axes."
            )

    @property
    def _offsets(self) -> tuple[int, ...]:
        shape = tuple(int(n) for n in np.shape(self.table))
        return shape if self.axes is None else shape[len(shape) - self.axes :]

    def check(self, query_dim: int, key_dim: int) -> None:
        if not query_dim == key_dim == len(self._offsets):
            raise ValueError(
                f"OffsetTable with {len(self._offsets)} offset axes wants positions of as many columns; "
                f"got query (..., {query_dim}) and key (..., {key_dim})."
            )

    def pairing_for(self, xp: Namespace) -> Pairing:
        return Offset(self._offsets)

    def prepare(self, xp: Namespace, query: Array, key: Array, origin: Array) -> tuple[Array, Array]:
        table = like(xp, self.table, query)
        flat = xp.reshape(table, (*table.shape[: table.ndim - len(self._offsets)], 1, -1))  # (heads..., 1, entries)
        rows = flat + xp.zeros_like(query[..., :1])
        return xp.concat([query + xp.zeros_like(rows[..., :1]), rows], axis=-1), key

    def prepare_backward(
        self, xp: Namespace, query: Array, key: Array, origin: Array, grad_query: Array, grad_key: Array
    ) -> tuple[Array, Array, Gradients]:
        table = like(xp, self.table, query)
        heads = tuple(table.shape[: table.ndim - len(self._offsets)])
        grad = xp.sum(grad_query[..., query.shape[-1] :], axis=-2)
        to_table = sum_to(xp, grad, (*heads, grad.shape[-1])).reshape(table.shape)
        return xp.zeros_like(query), xp.zeros_like(key), {"table": to_table}
