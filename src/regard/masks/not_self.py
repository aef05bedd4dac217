"""The mask of leave-one-out."""

from __future__ import annotations

from dataclasses import dataclass

from regard.arrays import Array
from regard.masks.base import Layout, Positional


@dataclass(frozen=True, eq=False)
class NotSelf(Positional):
    """A query sees all keys but its own: j != i + offset. Pooling with it is the leave-one-out prediction.

    Parameters
    ----------
    alignment : "start" (offset 0) or "end" (offset K - Q); one of this and offset is required when Q != K
    offset : int, or one per batch entry (B,): key position of query 0

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x, y = np.zeros(3), np.array([1.0, 2.0, 6.0])
    >>> rg.attention_pool(x, x, y, rg.Gaussian(1.0), mask=rg.NotSelf())
    array([4. , 3.5, 1.5])
    """

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        return self.difference(layout, queries, keys) != 0

    def alive(self, layout: Layout) -> Array | None:
        return super().alive(layout) if layout.queries <= 1 else None  # what one query leaves out, another sees

    def ranges(self, layout: Layout, queries: slice) -> tuple[Array, Array, Array] | None:
        own = self.own(layout, queries)
        gap = layout.xp.where((own >= 0) & (own < layout.keys), own, -1)
        return own * 0, own * 0 + layout.keys, gap
