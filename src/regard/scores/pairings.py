"""Pairings: one number from a prepared query and a prepared key, and the way its gradient goes back to both.

There are few, and every engine knows each by its name. A formula (see a score's file) is arithmetic on the number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from regard.arrays import Array, Namespace, is_torch, take_along


class Pairing(Protocol):
    """``pairing(xp, query (..., Q, C), key (..., K, C')) -> (..., Q, K)``."""

    @property
    def name(self) -> str: ...

    def __call__(self, xp: Namespace, query: Array, key: Array) -> Array: ...

    def backward(self, xp: Namespace, query: Array, key: Array, grad: Array) -> tuple[Array, Array]:
        """Gradients to query and key from the gradient of the paired numbers; leading axes are not yet summed."""
        ...

    def width(self, query: Array, key: Array) -> int:
        """How many numbers of a pair the array code holds at once; engines size their tiles by it."""
        ...

    def bound(self, xp: Namespace, query: Array, key: Array) -> Array:
        """A number no smaller than any of the paired numbers in absolute value (may be inf)."""
        ...


def _size(xp: Namespace, x: Array) -> Array:
    """The largest absolute value, 0 for an empty array."""
    if not math.prod(x.shape):
        return xp.sum(x)
    low, high = xp.aminmax(x) if hasattr(xp, "aminmax") else (xp.min(x), xp.max(x))
    return xp.maximum(high, -low)


@dataclass(frozen=True)
class SquaredDistance:
    """``u = sum_c (q_c - k_c)^2``."""

    name: str = "squared_distance"

    def __call__(self, xp: Namespace, query: Array, key: Array) -> Array:
        columns = query.shape[-1]
        if not columns:  # no feature: all keys are at distance zero
            return xp.sum(query, axis=-1)[..., :, None] + xp.sum(key, axis=-1)[..., None, :]
        u: Array = 0.0
        for c in range(columns):  # column by column: no (..., Q, K, C) tensor
            d = query[..., :, None, c] - key[..., None, :, c]
            u = u + d * d
        return u

    def backward(self, xp: Namespace, query: Array, key: Array, grad: Array) -> tuple[Array, Array]:
        to_query, to_key = [], []
        for c in range(query.shape[-1]):  # the difference itself, not q sum(g) - g k, which cancels
            g = 2 * grad * (query[..., :, None, c] - key[..., None, :, c])
            to_query.append(xp.sum(g, axis=-1))
            to_key.append(-xp.sum(g, axis=-2))
        if not to_query:
            return xp.zeros_like(query), xp.zeros_like(key)
        return xp.stack(to_query, axis=-1), xp.stack(to_key, axis=-1)

    def width(self, query: Array, key: Array) -> int:
        return 3

    def bound(self, xp: Namespace, query: Array, key: Array) -> Array:
        return query.shape[-1] * (_size(xp, query) + _size(xp, key)) ** 2


@dataclass(frozen=True)
class ScaledDistance:
    """``u = sum_c ((q_c - k_c) a_c b_c)^2``; the scales ride along, ``query = [q | a]``, ``key = [k | b]``."""

    name: str = "scaled_distance"

    def __call__(self, xp: Namespace, query: Array, key: Array) -> Array:
        columns = query.shape[-1] // 2
        u: Array = 0.0
        for c in range(columns):
            d = query[..., :, None, c] - key[..., None, :, c]
            d = d * query[..., :, None, columns + c] * key[..., None, :, columns + c]
            u = u + d * d
        return u

    def backward(self, xp: Namespace, query: Array, key: Array, grad: Array) -> tuple[Array, Array]:
        columns = query.shape[-1] // 2
        to_query, to_key = [], []
        for c in range(columns):
            d = query[..., :, None, c] - key[..., None, :, c]
            a, b = query[..., :, None, columns + c], key[..., None, :, columns + c]
            g = 2 * grad * d * a * b
            to_query.append((xp.sum(g * a * b, axis=-1), xp.sum(g * d * b, axis=-1)))
            to_key.append((-xp.sum(g * a * b, axis=-2), xp.sum(g * d * a, axis=-2)))
        (q, k) = (xp.stack([pair[n] for n in (0, 1) for pair in of], axis=-1) for of in (to_query, to_key))
        return q, k

    def width(self, query: Array, key: Array) -> int:
        return 4

    def bound(self, xp: Namespace, query: Array, key: Array) -> Array:
        n = query.shape[-1] // 2
        scale = _size(xp, query[..., n:]) * _size(xp, key[..., n:])
        return n * ((_size(xp, query[..., :n]) + _size(xp, key[..., :n])) * scale) ** 2


@dataclass(frozen=True)
class DotProduct:
    """``u = sum_c q_c k_c``."""

    name: str = "dot_product"

    def __call__(self, xp: Namespace, query: Array, key: Array) -> Array:
        if not self._shared(query, key):
            return query @ key.mT
        u = _stacked(xp, query) @ key[..., 0, :, :].mT
        return xp.reshape(u, (*u.shape[:-2], *query.shape[-3:-1], key.shape[-2]))

    def backward(self, xp: Namespace, query: Array, key: Array, grad: Array) -> tuple[Array, Array]:
        if not self._shared(query, key):
            return grad @ key, grad.mT @ query
        rows = _stacked(xp, grad)
        to_query = rows @ key[..., 0, :, :]
        to_key = (rows.mT @ _stacked(xp, query))[..., None, :, :]
        return xp.reshape(to_query, (*to_query.shape[:-2], *query.shape[-3:])), to_key

    def _shared(self, query: Array, key: Array) -> bool:
        """Whether heads of queries share a head of keys: torch would repeat it, where one product does for all."""
        return bool(query.ndim == key.ndim and query.ndim > 2 and key.shape[-3] == 1 and query.shape[-3] > 1)

    def width(self, query: Array, key: Array) -> int:
        return 2

    def bound(self, xp: Namespace, query: Array, key: Array) -> Array:
        return query.shape[-1] * _size(xp, query) * _size(xp, key)


def _stacked(xp: Namespace, x: Array) -> Array:
    """(..., G, N, C) as (..., G N, C)."""
    *lead, heads, rows, columns = x.shape
    return xp.reshape(x, (*lead, heads * rows, columns))


@dataclass(frozen=True)
class AdditivePairing:
    """``u = sum_h v_h tanh(a_h + b_h)``; the value weight rides on the prepared query, ``query = [a | v]``."""

    name: str = "additive"

    def __call__(self, xp: Namespace, query: Array, key: Array) -> Array:
        hidden = key.shape[-1]
        t = xp.tanh(query[..., :, None, :hidden] + key[..., None, :, :])
        return (t @ query[..., :, hidden:, None])[..., 0]

    def backward(self, xp: Namespace, query: Array, key: Array, grad: Array) -> tuple[Array, Array]:
        hidden = key.shape[-1]
        t = xp.tanh(query[..., :, None, :hidden] + key[..., None, :, :])
        to_weight = (grad[..., None, :] @ t)[..., 0, :]
        g = (1 - t * t) * grad[..., None] * query[..., :, None, hidden:]
        return xp.concat([xp.sum(g, axis=-2), to_weight], axis=-1), xp.sum(g, axis=-3)

    def width(self, query: Array, key: Array) -> int:
        return 3 * int(key.shape[-1])

    def bound(self, xp: Namespace, query: Array, key: Array) -> Array:
        return key.shape[-1] * _size(xp, query[..., key.shape[-1] :])


@dataclass(frozen=True)
class Mismatch:
    """``u = 1`` where the codes differ, else 0; one column, no gradient to the codes."""

    name: str = "mismatch"

    def __call__(self, xp: Namespace, query: Array, key: Array) -> Array:
        a, b = query[..., :, None, 0], key[..., None, :, 0]
        return xp.where(a != b, xp.ones_like(a), xp.zeros_like(a))

    def backward(self, xp: Namespace, query: Array, key: Array, grad: Array) -> tuple[Array, Array]:
        return xp.zeros_like(query), xp.zeros_like(key)

    def width(self, query: Array, key: Array) -> int:
        return 2

    def bound(self, xp: Namespace, query: Array, key: Array) -> Array:
        return xp.ones_like(_size(xp, query))


@dataclass(frozen=True)
class AbsoluteDifference:
    """``u = |q - k|``, of one column."""

    name: str = "absolute_difference"

    def __call__(self, xp: Namespace, query: Array, key: Array) -> Array:
        return xp.abs(query[..., :, None, 0] - key[..., None, :, 0])

    def backward(self, xp: Namespace, query: Array, key: Array, grad: Array) -> tuple[Array, Array]:
        g = grad * xp.sign(query[..., :, None, 0] - key[..., None, :, 0])
        return xp.sum(g, axis=-1)[..., None], -xp.sum(g, axis=-2)[..., None]

    def width(self, query: Array, key: Array) -> int:
        return 3

    def bound(self, xp: Namespace, query: Array, key: Array) -> Array:
        return _size(xp, query) + _size(xp, key)


@dataclass(frozen=True)
class Offset:
    """``u = table[k - q]`` for columns of whole positions, -inf beyond the table; ``query = [positions | table]``.

    ``shape`` is the table's: odd along each axis, offset 0 in the middle.
    """

    shape: tuple[int, ...]
    name: str = "offset"

    def _index(self, xp: Namespace, query: Array, key: Array) -> tuple[Array, Array]:
        inside: Array = None
        index: Array = 0
        for c, n in enumerate(self.shape):
            at = key[..., None, :, c] - query[..., :, None, c] + n // 2
            here = (at >= 0) & (at <= n - 1) & (at == xp.round(at))
            inside = here if inside is None else inside & here
            index = index * n + xp.where(here, at, xp.zeros_like(at))
        integer = index.detach().long() if is_torch(index) else xp.astype(index, xp.int64)
        return inside, integer

    def __call__(self, xp: Namespace, query: Array, key: Array) -> Array:
        inside, index = self._index(xp, query, key)
        table = query[..., len(self.shape) :]
        table = xp.reshape(table, (*(1,) * (index.ndim - table.ndim), *table.shape))
        return xp.where(inside, take_along(xp, table, index), -xp.inf)

    def backward(self, xp: Namespace, query: Array, key: Array, grad: Array) -> tuple[Array, Array]:
        inside, index = self._index(xp, query, key)
        grad = xp.where(inside, grad, xp.zeros_like(grad))
        cells = math.prod(self.shape)
        index = index + xp.zeros_like(grad, dtype=index.dtype)
        if hasattr(xp, "scatter_add"):
            table = xp.zeros(*grad.shape[:-1], cells, dtype=grad.dtype, device=grad.device)
            table = xp.scatter_add(table, -1, index, grad)
        else:
            rows = np.arange(math.prod(grad.shape[:-1]))[:, None] * cells
            flat = (index.reshape(rows.size, -1) + rows).ravel()
            table = np.bincount(flat, weights=np.ravel(grad), minlength=rows.size * cells).astype(grad.dtype)
            table = table.reshape(*grad.shape[:-1], cells)
        still = xp.zeros_like(table[..., :1]) + xp.zeros_like(query[..., : len(self.shape)])
        return xp.concat([still, table], axis=-1), xp.zeros_like(key)

    def width(self, query: Array, key: Array) -> int:
        return 4 + len(self.shape)

    def bound(self, xp: Namespace, query: Array, key: Array) -> Array:
        table = query[..., len(self.shape) :]
        return _size(xp, xp.where(xp.isfinite(table), table, xp.zeros_like(table)))


squared_distance = SquaredDistance()
scaled_distance = ScaledDistance()
dot_product = DotProduct()
additive = AdditivePairing()
mismatch = Mismatch()
absolute_difference = AbsoluteDifference()
