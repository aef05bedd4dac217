"""The mask of several sequences packed into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.arrays import Array
from regard.masks.base import Layout, Mask, check_leading


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

    @property
    def _keys(self) -> Any:
        return self.query_ids if self.key_ids is None else self.key_ids

    def _ids(self, layout: Layout, ids: Any) -> Array:
        ids = layout.integers(ids)
        lead = tuple(ids.shape[:-1])
        return ids.reshape(*lead, *(1,) * (len(layout.leading) - len(lead)), ids.shape[-1])

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        q = self._ids(layout, self.query_ids)[..., queries, None]
        k = self._ids(layout, self._keys)[..., None, keys]
        return (q == k) & (q >= 0)

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        q, k = self._ids(layout, self.query_ids)[..., queries], self._ids(layout, self._keys)
        entries = int(np.prod(k.shape[:-1]))
        if not q.shape[-1] or not k.shape[-1] or not entries or not bool((k[..., 1:] >= k[..., :-1]).all()):
            return 0, layout.keys
        low, high = (x.reshape(-1, 1) for x in (layout.xp.amin(q, axis=-1), layout.xp.amax(q, axis=-1)))
        flat = k.reshape(entries, -1)
        if low.shape[0] not in (1, entries) and entries != 1:
            return 0, layout.keys
        start = (flat < low).sum(-1).min()
        stop = (flat <= high).sum(-1).max()
        return int(start), max(int(stop), int(start))

    def alive(self, layout: Layout) -> Array | None:
        q, k = self._ids(layout, self.query_ids), self._ids(layout, self._keys)
        if q.ndim > 1 or k.ndim > 1:
            return super().alive(layout)
        return layout.xp.isin(k, q) & (k >= 0)
