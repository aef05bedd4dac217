"""The mask of several sequences packed into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.arrays import Array, broadcast_shapes, size
from regard.masks.base import Layout, Mask, check_leading, check_whole, hull


@dataclass(frozen=True, eq=False)
class Segments(Mask):
    """A query sees the keys of its own segment: equal ids attend, negative ids never do.

    Parameters
    ----------
    query_ids : whole numbers (Q,) or (B, Q), aligned at the left; sorted or not
    key_ids : (K,) or (B, K); None for those of the queries

    Raises
    ------
    ValueError : if the shapes do not fit.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.zeros((3, 1))
    >>> rg.attention_weights(x, x, rg.Constant(), mask=rg.Segments([0, 0, 1]))
    array([[0.5, 0.5, 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0. , 1. ]])
    """

    query_ids: Any
    key_ids: Any = None

    def check(self, layout: Layout) -> None:
        for name, ids, n in (("query_ids", self.query_ids, layout.queries), ("key_ids", self._keys, layout.keys)):
            shape = tuple(np.shape(ids))
            if not shape or shape[-1] != n:
                raise ValueError(f"`{name}` of Segments must end in {n}; got shape {shape}.")
            check_leading(f"`{name}` of Segments", shape[:-1], layout.leading)
            check_whole(f"`{name}` of Segments", ids)

    @property
    def _keys(self) -> Any:
        return self.query_ids if self.key_ids is None else self.key_ids

    def _ids(self, layout: Layout, ids: Any) -> Array:
        return layout.aligned_left(layout.integers(ids), own=1)

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        q = self._ids(layout, self.query_ids)[..., queries, None]
        k = self._ids(layout, self._keys)[..., None, keys]
        return (q == k) & (q >= 0)

    def _seen(self, layout: Layout, queries: slice) -> Array:
        """(..., K): True where one of these queries sees the key."""
        xp = layout.xp
        q, k = self._ids(layout, self.query_ids)[..., queries], self._ids(layout, self._keys)
        if not hasattr(xp, "isin"):
            return xp.any((q[..., None] == k[..., None, :]) & (q[..., None] >= 0), axis=-2)
        lead = broadcast_shapes(tuple(q.shape[:-1]), tuple(k.shape[:-1]))
        rows = [xp.reshape(xp.broadcast_to(x, (*lead, x.shape[-1])), (size(lead), x.shape[-1])) for x in (q, k)]
        seen = [xp.isin(rows[1][n, :], rows[0][n, :]) for n in range(size(lead))]
        return (k >= 0) & (xp.reshape(xp.stack(seen), (*lead, layout.keys)) if seen else k >= 0)

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        xp, seen = layout.xp, self._seen(layout, queries)
        at = xp.broadcast_to(layout.key_positions(slice(0, layout.keys))[0, :] - layout.key_start, seen.shape)
        return hull(xp, at, xp.where(seen, at + 1, at))

    def alive(self, layout: Layout) -> Array | None:
        return self._seen(layout, slice(0, layout.queries))
