"""The mask of padded keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array
from regard.masks.base import Layout, Mask, as_mask, check_leading


@dataclass(frozen=True, eq=False)
class KeyPadding(Mask):
    """One row of keys per batch entry: True where the key is there.

    Parameters
    ----------
    keep : Boolean (B, K), aligned at the left: it serves (B, Q, K) and (B, H, Q, K); or (K,)

    Raises
    ------
    TypeError : if it is not Boolean. ValueError : if its shape does not fit.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> keep = np.array([[True, False, True]])
    >>> rg.attention_weights(np.zeros((1, 1, 1)), np.zeros((1, 3, 1)), rg.Constant(), mask=rg.KeyPadding(keep))
    array([[[0.5, 0. , 0.5]]])
    """

    keep: Any
    key_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        as_mask(self.keep, "keep")

    def check(self, layout: Layout) -> None:
        shape = tuple(np.shape(self.keep))
        if not shape or shape[-1] != layout.keys:
            raise ValueError(f"`keep` of KeyPadding must end in {layout.keys}, one per key; got shape {shape}.")
        check_leading("`keep` of KeyPadding", shape[:-1], layout.leading)

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        return layout.aligned_left(layout.booleans(self.keep)[..., keys], own=1)[..., None, :]
