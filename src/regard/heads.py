"""Heads of queries that share a head of keys: views, so that no key is ever repeated in memory."""

from __future__ import annotations

import numpy as np

from regard.arrays import Array, namespace


def grouped(array: Array, heads: int) -> Array:
    """A view with the head axis split in two: (..., H, N, C) as (..., heads, H / heads, N, C).

    ``heads`` is that of keys and values. Split so, queries (..., heads, group, Q, D) meet keys (..., heads, 1, K, D) by
    broadcasting: query head h looks at key head h // group (grouped-query attention; multi-query where ``heads`` is 1),
    gradients of the keys are summed over their group, and no engine repeats a key. Masks and biases with a head axis,
    (..., H, Q, K), are split in the same way; without one, or with one of size 1, they broadcast.

    Parameters
    ----------
    array : (..., H, N, C), H a multiple of ``heads``, or 1, which becomes (..., 1, 1, N, C)
    heads : int >= 1, of the keys

    Returns
    -------
    (..., heads, H / heads, N, C), a view; ``ungrouped`` is the way back.

    Raises
    ------
    ValueError : if there is no head axis, or H is not a multiple of ``heads``.

    References
    ----------
    Shazeer (2019), Fast Transformer Decoding, section 3; Ainslie et al. (2023), GQA, section 2.2.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = (rng.normal(size=(5, heads, 7, 3)) for heads in (6, 2, 2))
    >>> q, k, v = (rg.grouped(x, heads=2) for x in (query, key, value))
    >>> q.shape, k.shape
    ((5, 2, 3, 7, 3), (5, 2, 1, 7, 3))
    >>> rg.ungrouped(rg.attention_pool(q, k, v, rg.ScaledDotProduct())).shape
    (5, 6, 7, 3)
    """
    if not isinstance(heads, int | np.integer) or isinstance(heads, bool) or heads < 1:
        raise ValueError(f"`heads` must be a whole number of at least 1; got {heads!r}.")
    shape = tuple(array.shape)
    if len(shape) < 3:
        raise ValueError(f"`array` must have a head axis, (..., H, N, C); got {shape}.")
    *lead, own, rows, columns = shape
    if own != 1 and own % heads:
        raise ValueError(f"the {own} heads of `array` {shape} must be a multiple of the {heads} `heads` of the keys.")
    split = (1, 1) if own == 1 else (int(heads), own // int(heads))
    return namespace(array).reshape(array, (*lead, *split, rows, columns))


def ungrouped(array: Array) -> Array:
    """The heads side by side again: (..., heads, group, N, C) as (..., heads * group, N, C).

    Raises
    ------
    ValueError : if the two axes are not there.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.ungrouped(np.zeros((5, 2, 3, 7, 11))).shape
    (5, 6, 7, 11)
    """
    shape = tuple(array.shape)
    if len(shape) < 4:
        raise ValueError(f"`array` must be (..., heads, group, N, C); got {shape}.")
    *lead, heads, group, rows, columns = shape
    return namespace(array).reshape(array, (*lead, heads * group, rows, columns))
