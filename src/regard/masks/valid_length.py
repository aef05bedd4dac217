"""The mask of sequences of different lengths in one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.arrays import Array, concrete, largest
from regard.masks.base import Layout, Mask, check_leading, check_whole, hull


@dataclass(frozen=True, eq=False)
class ValidLength(Mask):
    """Only the first ``lengths`` keys of each batch entry are there: j < length.

    Parameters
    ----------
    lengths : whole numbers over the leading axes, aligned at the left: (B,) serves (B, Q, K) and (B, H, Q, K);
        with ``per_query=True`` one more axis, one length per query: (B, Q)
    per_query : bool

    Raises
    ------
    ValueError : if a length is negative or larger than the number of keys.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.zeros((2, 1, 3))
    >>> rg.attention_weights(x[..., :1], np.zeros((2, 3, 1)), rg.Constant(), mask=rg.ValidLength([3, 1])).round(2)
    array([[[0.33, 0.33, 0.33]],
    <BLANKLINE>
           [[1.  , 0.  , 0.  ]]])
    """

    lengths: Any
    per_query: bool = False

    @property
    def key_only(self) -> bool:  # type: ignore[override]
        return not self.per_query

    def check(self, layout: Layout) -> None:
        shape = tuple(np.shape(self.lengths))
        if self.per_query:
            if not shape or shape[-1] != layout.queries:
                raise ValueError(
                    f"`lengths` of ValidLength(per_query=True) must end in {layout.queries}, one per query; "
                    f"got {shape}."
                )
            shape = shape[:-1]
        check_leading("`lengths` of ValidLength", shape, layout.leading)
        check_whole("`lengths` of ValidLength", self.lengths)
        value = concrete(self.lengths)
        if value is None or not value.size:
            return
        if value.min() < 0 or (not layout.part and value.max() > layout.keys):
            wrong = value.min() if value.min() < 0 else value.max()
            raise ValueError(f"`lengths` of ValidLength must lie between 0 and {layout.keys} keys; got {int(wrong)}.")

    def _lengths(self, layout: Layout, queries: slice) -> Array:
        """(..., 1 or q, 1)."""
        lengths = layout.aligned_left(layout.integers(self.lengths), own=int(self.per_query))
        return lengths[..., queries, None] if self.per_query else lengths[..., None, None]

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        return layout.key_positions(keys) < self._lengths(layout, queries)

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        stop = layout.xp.clip(self._lengths(layout, queries) - layout.key_start, 0, layout.keys)
        return hull(layout.xp, stop * 0, stop)

    def alive(self, layout: Layout) -> Array | None:
        if not layout.queries:
            return super().alive(layout)
        longest = largest(layout.xp, self._lengths(layout, slice(0, layout.queries)), axis=-2, keepdims=True)
        return (layout.key_positions(slice(0, layout.keys)) < longest)[..., 0, :]

    def ranges(self, layout: Layout, queries: slice) -> tuple[Array, Array, Array] | None:
        stop = (self._lengths(layout, queries) - layout.key_start)[..., 0]
        return stop * 0, stop, stop * 0 - 1
