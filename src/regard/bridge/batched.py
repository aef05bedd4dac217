"""A batch that ``torch.vmap`` hides, as one more leading axis of a problem: leading axes broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from regard.arrays import Array
from regard.masks.base import Layout, Mask
from regard.problem import Problem

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, eq=False)
class Within(Mask):
    """A mask that is asked in its own layout, one of fewer leading axes: what it says broadcasts at the right."""

    mask: Mask
    layout: Layout

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        return self.mask.tile(self.layout, queries, keys)

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        return self.mask.bounds(self.layout, queries)

    def ranges(self, layout: Layout, queries: slice) -> tuple[Array, Array, Array] | None:
        return self.mask.ranges(self.layout, queries)


def widened(problem: Problem, batch: int) -> Problem:
    """The problem with one more leading axis, the first."""
    layout = problem.layout
    mask = None if problem.mask is None else Within(problem.mask, layout)
    return replace(problem, layout=replace(layout, leading=(batch, *layout.leading)), mask=mask, memo=None)


def in_front(
    problem: Problem, xs: Sequence[torch.Tensor], axes: Sequence[int | None], batch: int | None = None
) -> Tensors:
    """Each tensor with its batch as the first of the leading axes; those without one broadcast, or get ``batch``."""
    rank = 2 + len(problem.layout.leading)
    moved = []
    for x, axis in zip(xs, axes, strict=True):
        if axis is not None:
            x = x.movedim(axis, 0)
        elif batch is not None:
            x = x.expand(batch, *x.shape)
        if axis is not None or batch is not None:
            x = x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])
        moved.append(x)
    return tuple(moved)
