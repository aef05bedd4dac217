"""Scores to weights, and the one rule for a query that has no key left: its weights are zero."""

from __future__ import annotations

from regard.arrays import Array, Namespace, largest

NORMALIZERS = ("softmax",)


def check_normalizer(normalizer: str) -> None:
    """Raise ValueError for a normaliser that is not known."""
    if normalizer not in NORMALIZERS:
        raise ValueError(f"unknown normalizer {normalizer!r}; the known ones are {', '.join(NORMALIZERS)}.")


def running_maximum(xp: Namespace, scores: Array) -> Array:
    """The largest score of each query, (..., Q); -inf without a key. A shift: constant, without gradient."""
    top = largest(xp, scores, axis=-1) if scores.shape[-1] else xp.sum(scores, axis=-1) - xp.inf
    return top.detach() if hasattr(top, "detach") else top


def exponentials(xp: Namespace, scores: Array, maximum: Array) -> Array:
    """``exp(scores - maximum)``, 0 where there is no key. ``maximum (..., Q)`` may be -inf."""
    return xp.exp(scores - xp.where(maximum == -xp.inf, 0.0, maximum)[..., None])


def weighted_sum(weights: Array, value: Array) -> Array:
    """``weights @ value``, (..., Q, K), (..., K, V) -> (..., Q, V), by 64 keys at a time.

    One long sum of products rounds more than the sum of its parts. A pooled value that is off by a few roundings
    turns into a gradient of query and key that is off by as many, for all keys in the same direction.
    """
    total, keys = weights[..., :0] @ value[..., :0, :], value.shape[-2]
    for j in range(0, keys, 64):
        part = slice(j, min(j + 64, keys))
        total = total + weights[..., part] @ value[..., part, :]
    return total


def divide(xp: Namespace, x: Array, weight_sum: Array) -> Array:
    """``x / weight_sum``, where an empty row stays 0. ``x (..., Q, V)``, ``weight_sum (..., Q)``."""
    return x / xp.where(weight_sum == 0, 1.0, weight_sum)[..., None]


def softmax(xp: Namespace, scores: Array) -> Array:
    """Weights that sum to one over the keys that are left (score > -inf); all 0 where none is."""
    e = exponentials(xp, scores, running_maximum(xp, scores))
    return divide(xp, e, xp.sum(e, axis=-1))
