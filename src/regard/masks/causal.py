"""The mask of sequences that are read in order."""

from __future__ import annotations

from dataclasses import dataclass

from regard.arrays import Array
from regard.masks.base import Layout, Positional


@dataclass(frozen=True, eq=False)
class Causal(Positional):
    """A query sees its own key and those before it: j <= i + offset.

    Parameters
    ----------
    alignment : "start" (offset 0) or "end" (offset K - Q); one of this and offset is required when Q != K
    offset : int, or one per batch entry (B,): key position of query 0

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.zeros((3, 1))
    >>> rg.attention_weights(x, x, rg.Gaussian(1.0), mask=rg.Causal()).round(2)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 0.5 , 0.  ],
           [0.33, 0.33, 0.33]])
    """

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        return self.difference(layout, queries, keys) <= 0

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        return self.reach(layout, queries, None, 0)

    def alive(self, layout: Layout) -> Array | None:
        if not layout.queries:
            return super().alive(layout)
        return self.tile(layout, slice(layout.queries - 1, layout.queries), slice(0, layout.keys))[..., 0, :]

    def ranges(self, layout: Layout, queries: slice) -> tuple[Array, Array, Array] | None:
        own = self.own(layout, queries)
        return own * 0, own + 1, own * 0 - 1
