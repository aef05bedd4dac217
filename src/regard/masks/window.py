"""The mask of local attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regard.arrays import Array
from regard.masks.base import Layout, Positional


@dataclass(frozen=True, eq=False)
class Window(Positional):
    """A query sees its own key, ``before`` keys before it and ``after`` keys after it.

        -before <= j - (i + offset) <= after

    Parameters
    ----------
    before, after : int >= 0, keys besides the own one
    alignment : "start" (offset 0) or "end" (offset K - Q); one of this and offset is required when Q != K
    offset : int, or one per batch entry (B,): key position of query 0

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.zeros((3, 1))
    >>> rg.attention_weights(x, x, rg.Gaussian(1.0), mask=rg.Window(1, 0)).round(2)
    array([[1. , 0. , 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]])
    """

    before: int
    after: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("before", self.before), ("after", self.after)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
                raise ValueError(f"`{name}` of Window must be a whole number of at least 0; got {value!r}.")

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        d = self.difference(layout, queries, keys)
        return (d >= -self.before) & (d <= self.after)

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        return self.reach(layout, queries, self.before, self.after)

    def alive(self, layout: Layout) -> Array | None:
        if not layout.queries:
            return super().alive(layout)
        # queries stand side by side, so what they see together has no gap
        keys = slice(0, layout.keys)
        first = self.difference(layout, slice(0, 1), keys)
        last = self.difference(layout, slice(layout.queries - 1, layout.queries), keys)
        return ((first >= -self.before) & (last <= self.after))[..., 0, :]

    def ranges(self, layout: Layout, queries: slice) -> tuple[Array, Array, Array] | None:
        own = self.own(layout, queries)
        return own - self.before, own + self.after + 1, own * 0 - 1
