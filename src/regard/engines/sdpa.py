"""PyTorch's own attention kernel for the dot product, where no gradient is asked for, in O((Q + K) D + tile) memory.

Its pooled values are exact enough, but gradients that are made from them round more than ours. The kernel returns
``log sum_i exp(s_i)`` beside the pooled value: a Partial whose shift is that number and whose weight sum is 1. Where
that is so large that rounding it would show, maximum and weight sum are computed from the scores. Masks and bias go to
the kernel by blocks of queries, so that only what was given is ever (Q, K).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from regard.arrays import Array, concrete, is_torch, size, surely_finite
from regard.engines.base import Shown
from regard.masks.base import cut
from regard.masks.causal import Causal
from regard.partial import Partial
from regard.problem import (
    BUDGET,
    Problem,
    block,
    new,
    query_tiles,
    score_tile,
    spoiled,
)
from regard.scores.base import Leaf
from regard.scores.pairings import dot_product
from regard.straight import Straight
from regard.weights import exponentials, running_maximum

TRUSTED = 16.0  # log-sum-exps up to this size are a shift as good as the maximum: sums are off by 8 roundings at most


class Sdpa(Shown):
    """``scaled_dot_product_attention`` on the CPU, with the laws: no key left is 0, and its masked keys are deleted."""

    name = "sdpa"
    native = False

    def cannot(self, problem: Problem) -> str | None:
        value, (term, *others) = problem.value, problem.terms
        if not is_torch(value) or value.device.type != "cpu":
            return "it runs on torch tensors in CPU memory"
        if value.dtype not in (problem.xp.float32, problem.xp.float64):
            return f"it computes in float32 and float64, not in {value.dtype}"
        if others or term.pairing is not dot_product or term.formula is not Leaf.formula or term.factor is not None:
            return "PyTorch's kernel knows the dot product alone"
        if problem.dropout:
            return "PyTorch's dropout is not the one that a seed fixes"
        if problem.recorded:
            return "the gradients of PyTorch's kernel round more than ours"
        return None

    def declines(self, problem: Problem) -> str | None:
        return None

    def direct(self, inputs: Straight) -> Array | None:
        xp, (query, key, value) = sys.modules["torch"], inputs[:3]
        if key.shape[-1] != value.shape[-1]:
            return None
        four = (_lines(x.detach().reshape(-1, *x.shape[-3 if x.ndim > 3 else -2 :])) for x in (query, key, value))
        four = (x if x.ndim == 4 else x[None] for x in four)
        options = {"is_causal": inputs.causal, "scale": inputs.scale}
        out, log = xp.ops.aten._scaled_dot_product_flash_attention_for_cpu(*four, **options)
        # what is not finite in a query shows in its log-sum-exp, in a value in the output; a key may hide it. Where all
        # scores of a query are too low for their dtype, the kernel says 0 and 0.
        if not all(surely_finite(xp, x) for x in (log, key, out)) or not xp.all(log != 0):
            return None
        found: Array = out.reshape(value.shape[:-2] + out.shape[-2:])
        return found

    def pool(self, problem: Problem) -> Partial:
        xp, lead, columns = problem.xp, problem.layout.leading, problem.value.shape[-1]
        query, key, value = _same_width(xp, *_four(problem, *problem.arrays[:3]))
        top = None
        for t in _tiles(problem):
            args = query[..., t.queries, :], key[..., t.keys, :], value[..., t.keys, :]
            out, log = xp.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args, **t.options)
            out = out[..., :columns].reshape(*lead, *out.shape[-2:-1], columns)
            log = log.reshape(*lead, log.shape[-1])
            if t.some is None:
                top, weight_sum, value_sum = log, xp.ones_like(log), out
                break
            if top is None:
                top, weight_sum, value_sum = _nothing(problem)
            top[..., t.queries] = xp.where(t.some, log, -xp.inf)
            weight_sum[..., t.queries] = xp.where(t.some, 1.0, xp.zeros_like(log))
            value_sum[..., t.queries, :] = xp.where(t.some[..., None], out, 0.0)
        if top is None:
            top, weight_sum, value_sum = _nothing(problem)
        if problem.asked != "ratio" and _beyond(xp, top):
            top, weight_sum = _maximum(problem)
            value_sum = value_sum * weight_sum[..., None]
        return Partial(top, *spoiled(problem, (weight_sum, value_sum)))

    def backward(
        self, problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array
    ) -> tuple[Array, ...]:
        raise NotImplementedError("it runs nothing that is recorded")


def _nothing(problem: Problem) -> tuple[Array, Array, Array]:
    """Maximum, weight sum and value sum of no key."""
    top, weight_sum = (new(problem, problem.rows, x) for x in (-np.inf, 0.0))
    return top, weight_sum, new(problem, (*problem.rows, problem.value.shape[-1]), 0.0)


class Tile(NamedTuple):
    """Some queries, the keys that they may see, and what the kernel is told about the rest."""

    queries: slice
    keys: slice
    options: dict[str, Any]
    some: Array | None = None  # (..., q): whether a key is left; None for the one tile of all queries that have one


def _tiles(problem: Problem) -> Iterator[Tile]:
    """The calls of the kernel."""
    xp, layout, mask = problem.xp, problem.layout, problem.mask
    queries, keys = slice(0, layout.queries), slice(0, layout.keys)
    if not size(problem.rows) or not layout.keys:
        return
    if problem.bias is None and (mask is None or _top_left(problem)):
        yield Tile(queries, keys, {"is_causal": mask is not None, "scale": 1.0})
        return
    rows = max(BUDGET // (size(layout.leading) * layout.keys), 1)
    for i in range(0, layout.queries, rows):
        queries = slice(i, min(i + rows, layout.queries))
        if mask is not None:
            keys = slice(*mask.bounds(layout, queries))
        if keys.start == keys.stop:
            continue
        added = new(problem, (1, 1), 0.0) if problem.bias is None else cut(problem.bias, queries, keys)
        if mask is not None:
            added = xp.where(mask.tile(layout, queries, keys), added, -xp.inf)
        added = added[(*(None,) * (2 - added.ndim), ...)]
        some = xp.any(added > -xp.inf, dim=-1)
        yield Tile(queries, keys, {"attn_mask": _four_mask(problem, added), "scale": 1.0}, some)


def _top_left(problem: Problem) -> bool:
    """Whether the mask is the kernel's own: query i sees the keys up to i."""
    mask, layout = problem.mask, problem.layout
    if type(mask) is not Causal or layout.query_start != layout.key_start:
        return False
    shift = concrete(mask.shift(layout))
    return shift is not None and not shift.any()


def _four(problem: Problem, *arrays: Array) -> tuple[Array, ...]:
    """(B, H, N, C) of each array: all leading axes but the last are one, and the last is repeated by strides alone."""
    lead = problem.layout.leading
    both = size(lead[:-1]), size(lead[-1:])

    def four(x: Array) -> Array:
        own = x.shape[-3] if lead and x.ndim > 2 else 1
        wide = x.expand(*lead[:-1], own, *x.shape[-2:]) if lead else x
        return _lines(wide.reshape(both[0], own, *x.shape[-2:])).expand(*both, *x.shape[-2:])

    return tuple(four(x) for x in arrays)


def _lines(x: Array) -> Array:
    """With contiguous rows: the kernel takes them for that, and says nothing where they are not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _four_mask(problem: Problem, added: Array) -> Array:
    """The same of (..., q, k), whose leading axes stay 1 where they can."""
    lead, own = problem.layout.leading, tuple(added.shape[:-2])
    if not any(n != 1 for n in own):
        return added.reshape(1, 1, *added.shape[-2:])
    if len(lead) > 2:
        return _four(problem, added)[0]
    return added.reshape(*(1,) * (2 - len(own)), *added.shape)


def _same_width(xp: Any, *arrays: Array) -> tuple[Array, ...]:
    """The kernel wants features and value columns of one number: the fewer are filled with zeros."""
    width = max(1, *(x.shape[-1] for x in arrays))
    return tuple(x if x.shape[-1] == width else xp.nn.functional.pad(x, (0, width - x.shape[-1])) for x in arrays)


def _beyond(xp: Any, top: Array) -> bool:
    """Whether some log-sum-exp is too large to be trusted."""
    return bool(xp.any((xp.abs(top) > TRUSTED) & (top > -xp.inf)))


def _maximum(problem: Problem) -> tuple[Array, Array]:
    """The largest score and the weight sum of each query."""
    xp = problem.xp
    top, weight_sum = (new(problem, problem.rows, x) for x in (-np.inf, 0.0))
    for queries, key_tiles in query_tiles(problem):
        m, z = top[..., queries], weight_sum[..., queries]
        for keys in key_tiles:
            s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
            highest = xp.maximum(m, running_maximum(xp, s))
            z = z * exponentials(xp, m[..., None], highest)[..., 0] + xp.sum(exponentials(xp, s, highest), dim=-1)
            m = highest
        top[..., queries], weight_sum[..., queries] = m, z
    return top, weight_sum
