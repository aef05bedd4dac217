"""What a mask is: for any tile of queries and keys, where a query may attend to a key.

A mask is defined by ``tile``, computed from positions, so that only an array that was given is ever (Q, K).
``&``, ``|`` and ``~`` combine tiles. A new mask is one file and one line in ``masks/__init__.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regard.arrays import Array, Namespace, concrete, like

TILE = 1024  # side of the tiles by which combined masks look for keys that nobody may see


@dataclass(frozen=True, eq=False)
class Layout:
    """Where queries and keys stand: a mask and its arrays are checked against it and cut by it."""

    xp: Namespace
    leading: tuple[int, ...]  # of the weights, (..., Q, K)
    queries: int
    keys: int
    like: Array  # an array of the problem: its device
    query_start: int = 0
    key_start: int = 0
    part: bool = False  # whether these queries and keys may be a part of longer ones

    def query_positions(self, queries: slice) -> Array:
        """(q, 1) positions of these queries."""
        return self._range(self.query_start + queries.start, self.query_start + queries.stop)[:, None]

    def key_positions(self, keys: slice) -> Array:
        """(1, k) positions of these keys."""
        return self._range(self.key_start + keys.start, self.key_start + keys.stop)[None, :]

    def _range(self, start: int, stop: int) -> Array:
        if self.xp is np:
            return np.arange(start, stop)
        return self.xp.arange(start, stop, device=self.like.device)

    def integers(self, x: Any) -> Array:
        """An array of whole numbers, in the problem's library and on its device."""
        return like(self.xp, x, self._range(0, 0))

    def booleans(self, x: Any) -> Array:
        """An array of truth values, in the problem's library and on its device."""
        return like(self.xp, x, self._range(0, 0) == 0)

    def aligned_left(self, x: Array, own: int = 0) -> Array:
        """An array over the leading axes from the left and ``own`` more: ``(B,)`` becomes ``(B, 1)`` beside (B, H)."""
        lead = x.ndim - own
        return self.xp.reshape(x, (*x.shape[:lead], *(1,) * (len(self.leading) - lead), *x.shape[lead:]))


def check_whole(name: str, x: Any) -> None:
    """Raise ValueError unless these are whole numbers; a tensor that is being traced is not looked at."""
    value = concrete(x)
    if value is None or not value.size:
        return
    wrong = value if value.dtype.kind not in "iuf" else value[value != np.round(value)]
    if wrong.size:
        raise ValueError(f"{name} must be whole numbers; got {wrong.flat[0]}.")


def check_leading(name: str, shape: tuple[int, ...], leading: tuple[int, ...]) -> None:
    """Raise ValueError unless the shape is that of the leading axes, aligned at the left (axes of size 1 broadcast)."""
    if len(shape) > len(leading) or any(n not in (1, m) for n, m in zip(shape, leading, strict=False)):
        raise ValueError(
            f"{name} has shape {shape}; it must match the leading axes {leading} of (..., Q, K) from the left."
        )


def hull(xp: Namespace, start: Array, stop: Array) -> tuple[int, int]:
    """The smallest range that holds all of these ranges; those that are empty do not count."""
    some = stop > start
    if not bool(xp.any(some)):
        return 0, 0
    return int(xp.min(start[some])), int(xp.max(stop[some]))


class Mask:
    """Where a query may attend to a key. Masks combine with ``&``, ``|`` and ``~``."""

    key_only: ClassVar[bool] = False  # the answer does not depend on the query

    def check(self, layout: Layout) -> None:
        """Raise ValueError where this mask does not fit the layout."""

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        """True where a query of this block may attend to a key of that block; broadcasts to (..., q, k)."""
        raise NotImplementedError

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        """``start, stop`` of the keys outside which these queries see nothing: a hint that lets engines skip keys."""
        return 0, layout.keys

    def ranges(self, layout: Layout, queries: slice) -> tuple[Array, Array, Array] | None:
        """``start, stop, gap``, each (..., q): the keys that each query sees, one left out; None if that is not all.

        They may lie beyond the keys; gap is -1 where nothing is left out.
        """
        return None

    def alive(self, layout: Layout) -> Array | None:
        """(..., K): True where some query of the batch entry may see the key; None where every key is seen."""
        if self.key_only and layout.queries:
            return self.tile(layout, slice(0, 1), slice(0, layout.keys))[..., 0, :]
        keys = []
        for k in range(0, layout.keys, TILE):
            seen = None
            for q in range(0, layout.queries, TILE):
                block = slice(q, min(q + TILE, layout.queries)), slice(k, min(k + TILE, layout.keys))
                found = layout.xp.any(self.tile(layout, *block), axis=-2)
                seen = found if seen is None else seen | found
            width = min(k + TILE, layout.keys) - k
            if seen is None:
                seen = layout.booleans(np.zeros(width, dtype=bool))
            keys.append(seen | layout.booleans(np.zeros(width, dtype=bool)))
        return layout.xp.concat(keys, axis=-1) if keys else None

    def __and__(self, other: Any) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Any) -> Mask:
        return Or(self, as_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)

    __rand__, __ror__ = __and__, __or__
    __array_ufunc__ = None  # `array & mask` asks the mask and not NumPy


@dataclass(frozen=True, eq=False)
class Given(Mask):
    """A Boolean array, broadcast at the right to (..., Q, K); axes of size 1 are never expanded."""

    array: Array

    def check(self, layout: Layout) -> None:
        full = (*layout.leading, layout.queries, layout.keys)
        shape = tuple(self.array.shape)
        fits = len(shape) <= len(full) and all(n in (1, m) for n, m in zip(shape[::-1], full[::-1], strict=False))
        if not fits:
            raise ValueError(
                f"`mask` of shape {shape} does not broadcast to (..., Q, K) = {full}. "
                "For one row of keys per batch entry, (B, K), use regard.KeyPadding(keep)."
            )

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        array = self.array[(*(None,) * (2 - self.array.ndim), ...)]
        return layout.booleans(cut(array, queries, keys))  # cut first: only the tile is converted

    def alive(self, layout: Layout) -> Array | None:
        seen = layout.xp.any(self.tile(layout, slice(0, layout.queries), slice(0, layout.keys)), axis=-2)
        if not layout.queries:
            seen = seen & False
        return seen | layout.booleans(np.zeros(layout.keys, dtype=bool))


def cut(x: Array, queries: slice, keys: slice) -> Array:
    """The block of an array that broadcasts at the right to (..., Q, K); axes of size 1 stay."""
    if x.ndim >= 1 and x.shape[-1] != 1:
        x = x[..., keys]
    if x.ndim >= 2 and x.shape[-2] != 1:
        x = x[..., queries, :]
    return x


def as_mask(mask: Any, name: str = "mask") -> Mask:
    """A mask, or a Boolean array as a mask; anything else is a TypeError that says what to do."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, bool | list | tuple):
        mask = np.asarray(mask)
    kind = str(getattr(mask, "dtype", type(mask).__name__)).rpartition(".")[2]  # torch.bool, array_api_strict.bool
    if kind != "bool":
        raise TypeError(
            f"`{name}` must be Boolean, True where a query may attend, or a mask of regard.masks; got {kind}. "
            f"Pass numbers that are added to the scores as `bias`; turn 0 and 1 into Booleans with `{name} != 0`."
        )
    return Given(mask)


@dataclass(frozen=True, eq=False)
class And(Mask):
    """Both masks let the query attend."""

    left: Mask
    right: Mask

    @property
    def key_only(self) -> bool:  # type: ignore[override]
        return self.left.key_only and self.right.key_only

    def check(self, layout: Layout) -> None:
        self.left.check(layout)
        self.right.check(layout)

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        return self.left.tile(layout, queries, keys) & self.right.tile(layout, queries, keys)

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        (a, b), (c, d) = self.left.bounds(layout, queries), self.right.bounds(layout, queries)
        return max(a, c), max(min(b, d), max(a, c))

    def ranges(self, layout: Layout, queries: slice) -> tuple[Array, Array, Array] | None:
        left, right = self.left.ranges(layout, queries), self.right.ranges(layout, queries)
        if left is None or right is None:
            return None
        xp = layout.xp
        if not (bool(xp.all(left[2] < 0)) or bool(xp.all(right[2] < 0))):
            return None
        return xp.maximum(left[0], right[0]), xp.minimum(left[1], right[1]), xp.maximum(left[2], right[2])

    def alive(self, layout: Layout) -> Array | None:
        if not (self.left.key_only or self.right.key_only):
            return super().alive(layout)
        left, right = self.left.alive(layout), self.right.alive(layout)
        return right if left is None else left if right is None else left & right


@dataclass(frozen=True, eq=False)
class Or(Mask):
    """At least one of the masks lets the query attend."""

    left: Mask
    right: Mask

    @property
    def key_only(self) -> bool:  # type: ignore[override]
        return self.left.key_only and self.right.key_only

    def check(self, layout: Layout) -> None:
        self.left.check(layout)
        self.right.check(layout)

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        return self.left.tile(layout, queries, keys) | self.right.tile(layout, queries, keys)

    def bounds(self, layout: Layout, queries: slice) -> tuple[int, int]:
        (a, b), (c, d) = self.left.bounds(layout, queries), self.right.bounds(layout, queries)
        if a == b:
            return c, d
        return (a, b) if c == d else (min(a, c), max(b, d))

    def alive(self, layout: Layout) -> Array | None:
        left, right = self.left.alive(layout), self.right.alive(layout)
        return None if left is None or right is None else left | right


@dataclass(frozen=True, eq=False)
class Not(Mask):
    """Where the other mask takes keys away."""

    mask: Mask

    @property
    def key_only(self) -> bool:  # type: ignore[override]
        return self.mask.key_only

    def check(self, layout: Layout) -> None:
        self.mask.check(layout)

    def tile(self, layout: Layout, queries: slice, keys: slice) -> Array:
        return ~self.mask.tile(layout, queries, keys)


@dataclass(frozen=True, eq=False, kw_only=True)
class Positional(Mask):
    """A mask by positions: query i stands at ``i + offset``, key j at j.

    ``alignment="start"`` is offset 0, ``alignment="end"`` is K - Q, so that the last query meets the last key.
    """

    alignment: str | None = None
    offset: Any = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.alignment is not None and self.alignment not in ("start", "end"):
            raise ValueError(f'`alignment` of {name} must be "start" or "end"; got {self.alignment!r}.')
        if self.alignment is not None and self.offset is not None:
            raise ValueError(
                f"{name} takes `alignment` or `offset`, not both; got {self.alignment!r} and {self.offset!r}."
            )

    def check(self, layout: Layout) -> None:
        name = type(self).__name__
        if self.alignment is None and self.offset is None and layout.queries != layout.keys:
            raise ValueError(
                f"{name} needs to know where {layout.queries} queries stand beside {layout.keys} keys: give "
                '`alignment="start"` (query 0 at key 0), `alignment="end"` (last query at the last key) or `offset=`.'
            )
        if self.alignment == "end" and layout.part:
            raise ValueError(
                f'{name}(alignment="end") does not know the whole length of a part; give `offset=` instead.'
            )
        if self.offset is not None:
            check_leading(f"`offset` of {name}", tuple(np.shape(self.offset)), layout.leading)
            check_whole(f"`offset` of {name}", self.offset)

    def shift(self, layout: Layout) -> Array:
        """The offset as an array that meets (..., q, k)."""
        if self.offset is None:
            return layout.integers(layout.keys - layout.queries if self.alignment == "end" else 0)
        return layout.aligned_left(layout.integers(self.offset))[..., None, None]

    def own(self, layout: Layout, queries: slice) -> Array:
        """(..., q): the index of each query's own key, which may lie beyond the keys."""
        return (layout.query_positions(queries) + self.shift(layout) - layout.key_start)[..., 0]

    def difference(self, layout: Layout, queries: slice, keys: slice) -> Array:
        """Position of the key minus position of the query, (..., q, k)."""
        return layout.key_positions(keys) - layout.query_positions(queries) - self.shift(layout)

    def reach(self, layout: Layout, queries: slice, before: int | None, after: int | None) -> tuple[int, int]:
        """Bounds of the keys from ``before`` keys before each query's own to ``after`` keys after it (None: no end)."""
        xp, shift = layout.xp, self.shift(layout) + (layout.query_start - layout.key_start)
        first = shift * 0 if before is None else xp.clip(shift + (queries.start - before), 0, layout.keys)
        last = shift * 0 + layout.keys if after is None else xp.clip(shift + (queries.stop + after), 0, layout.keys)
        return hull(xp, first, last)
