"""The engine for kernels in few dimensions over very many keys: in linear time, with a stated relative error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.arrays import Array, is_torch, size
from regard.engines.base import Shown
from regard.engines.lowdim.pairs import Pairs
from regard.engines.lowdim.sources import Apart, Floats, Integers, Sources, sources, why_dear, why_slow
from regard.masks.not_self import NotSelf
from regard.partial import Partial
from regard.problem import Problem, block, pool_backward, put, query_tiles, spoiled
from regard.scores import SCORES, Biweight, Epanechnikov, Gaussian, Triangular, Tricube, Triweight, Uniform
from regard.scores.base import Kernel

LEAST = {"float32": 1e-8, "float64": 1e-15}  # errors that are lost among the roundings of all pairs
DIMENSIONS = 8
LINEAR = 3  # dimensions up to which gradients are sums, too
WORTH = 1 << 24  # pairs below which the fused engine is done before keys are sorted
POLYNOMIALS = {Biweight, Epanechnikov, Triangular, Tricube, Triweight, Uniform}  # with a support, see line
SHARE = 0.5  # of the own key, above which a row is summed again without it: what is left has twice the error at most
SPREAD = 500.0  # of the logarithms of row weights, and of shifts, whose exponentials are still far from 0
NEAR = 30.0  # log of the weight of the nearest key, below which a row has its gradient key by key
KERNELS = {found.formula: found for found in SCORES.values() if issubclass(found, Kernel)}


@dataclass(frozen=True, eq=False)
class Entry:
    """One entry of the leading axes: live keys in float64, with their row weights."""

    query: Floats  # (Q, D)
    key: Floats  # (K, D), those that are there
    weight: Floats  # (K, 1 + V): row weights, then those times the values
    shift: float  # the log of what row weights were divided by
    live: Integers | None  # which of the given keys they are; None for all
    own: Integers | None  # (Q,) the key that each query does not see, -1 for none


class LowDim(Shown):
    """Sums of kernels of a distance in 1 to 8 dimensions over cells, prefixes or trees of keys.

    The weight sum is within ``rtol`` relatively, the pooled value within ``rtol`` of sum w |y| / sum w.
    """

    name = "lowdim"
    native = False
    rtol = 1e-6  # where it is named and no error is asked for

    def cannot(self, problem: Problem) -> str | None:
        value = problem.value
        if not isinstance(value, np.ndarray) and not (is_torch(value) and value.device.type == "cpu"):
            return "it runs on NumPy arrays and on torch tensors in CPU memory"
        if _dtype(problem) not in LEAST:
            return f"it computes for float32 and float64, not for {value.dtype}"
        if len(problem.terms) != 1 or problem.terms[0].formula not in KERNELS:
            return "it sums one radial kernel, and no other score or sum of scores"
        t = problem.terms[0]
        if t.factor is not None or t.root is not None:
            return "a kernel with a factor, or of distances that overflow, is none that it sums"
        if any(size(tuple(p.shape)) != 1 for p in t.parameters):
            return "the parameters of the kernel must be the same for all queries"
        if not 1 <= t.key.shape[-1] <= DIMENSIONS:
            return f"it works in 1 to {DIMENSIONS} dimensions, not in {t.key.shape[-1]}"
        if problem.dropout:
            return "dropout looks at every pair"
        mask, bias = problem.mask, problem.bias
        if mask is not None and not mask.key_only and type(mask) is not NotSelf:
            return f"the mask {type(mask).__name__} is not of keys alone, and not NotSelf"
        if bias is not None and bias.ndim > 1 and bias.shape[-2] != 1:
            return "the bias must be one number per key, (K,) or (..., 1, K)"
        if bias is not None and size(tuple(bias.shape)):
            b = _numpy(bias)
            if float(np.max(b, initial=-np.inf)) - float(np.min(b, where=b > -np.inf, initial=np.inf)) > SPREAD:
                return f"the bias spans more than {SPREAD:g}"
        if not all(np.isfinite(_numpy(x).sum()) for x in t.arrays):
            return "a prepared query, key or parameter is not finite"
        return None

    def declines(self, problem: Problem) -> str | None:
        pairs = size(problem.rows) * problem.layout.keys
        if pairs < WORTH:
            return f"for {pairs:,} pairs its keys are not worth sorting"
        if not (problem.rtol or _as_exact(problem)):
            return "the answer is to be exact; `rtol` says how far off it may be"
        why = self.cannot(problem)
        if why is None:
            t = problem.terms[0]
            of = KERNELS[t.formula], _numbers(t.parameters)
            query, key = (_numpy(x).reshape(-1, x.shape[-1]).astype(np.float64, copy=False) for x in (t.query, t.key))
            why = why_slow(*of, key.shape[1]) or why_dear(*of, query, key, _rtol(problem))
        return why

    def pool(self, problem: Problem) -> Partial:
        rows, columns = problem.rows, problem.value.shape[-1]
        if len(rows) == 1 and size(rows) and problem.layout.keys:  # nothing is copied
            entry = entry_of(problem, ())
            if len(entry.key):
                shift, found = self._sums(problem, entry, ())
                shift += entry.shift
                parts = [_like(problem, x) for x in (shift, found[:, 0], found[:, 1:])]
                return Partial(parts[0], *spoiled(problem, (parts[1], parts[2])))
        top, weight_sum, value_sum = np.full(rows, -np.inf), np.zeros(rows), np.zeros((*rows, columns))
        for at in np.ndindex(*problem.layout.leading):
            entry = entry_of(problem, at)
            if len(entry.key) and len(entry.query):
                shift, found = self._sums(problem, entry, at)
                top[at] = shift + entry.shift
                weight_sum[at], value_sum[at] = found[:, 0], found[:, 1:]
        out = [_like(problem, x) for x in (top, weight_sum, value_sum)]
        return Partial(out[0], *spoiled(problem, (out[1], out[2])))

    def backward(
        self, problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array
    ) -> tuple[Array, ...]:
        """Of the Gaussian in up to three dimensions by the same sums, from queries to keys too; else by tiles."""
        t, bias = problem.terms[0], problem.bias
        plain = t.key.shape[-1] <= LINEAR and KERNELS[t.formula] is Gaussian and not problem.layout.leading
        if (
            plain
            and (bias is None or bias.shape[-1] == problem.layout.keys)
            and size((*problem.rows, problem.layout.keys))
        ):
            return self._linear(problem, *(_numpy(x) for x in (maximum, grad_weight_sum, grad_value_sum)))
        grads = [problem.xp.zeros_like(a) for a in problem.arrays]
        for queries, key_tiles in query_tiles(problem):
            rows = maximum[..., queries, None], grad_weight_sum[..., queries, None], grad_value_sum[..., queries, :]
            for keys in key_tiles:
                parts = pool_backward(problem, block(problem, queries, keys), queries, keys, *rows)
                for grad, label, part in zip(grads, problem.labels, parts, strict=True):
                    put(grad, label, queries, keys, part)
        return tuple(grads)

    def _linear(self, problem: Problem, maximum: Floats, to_weight: Floats, to_value: Floats) -> tuple[Array, ...]:
        """The sums of w G and w G (k - q): w_ij = b_j exp(s_ij - max_i), G_ij = to_weight_i + to_value_i . v_j."""
        e = entry_of(problem, ())
        q, k, w = e.query, e.key, e.weight
        top = maximum - e.shift
        if maximum.dtype != np.float64 and len(k):  # the sums were made with the shift before it was rounded
            top = self._sums(problem, e, ())[0]
        grads = np.concatenate([to_weight[:, None], to_value], axis=1).astype(np.float64)  # (Q, 1 + V)
        to_q, to_k, to_sums = np.zeros(q.shape), np.zeros(k.shape), np.zeros(w.shape)
        first = slice(1, 1 + k.shape[1])  # the moments of degree 1
        if len(k):
            shift, found = prepared(problem, e, ()).sums(q, 1)
            factor = np.exp(np.minimum(shift - top, SPREAD))[:, None]
            own = np.zeros(w.shape[1]), np.empty(0, np.int64), np.empty(0, np.int64)
            near = (top > -NEAR) & np.isfinite(top)
            if e.own is not None:
                seen = e.own >= 0
                u = np.square(q - k[e.own]).sum(axis=1)
                share = np.where(seen, w[e.own, 0] * np.exp(-u / 2 - np.maximum(top, -NEAR)), 0.0)
                near &= share <= SHARE * found[:, 0, 0] * factor[:, 0]
                own = share, np.flatnonzero(near & seen), e.own[near & seen]
            rows = np.flatnonzero(near)
            to_q[rows] = np.einsum("qv,qcv->qc", grads * factor, found[:, first])[rows]
            back = grads[rows] * np.exp(-top[rows])[:, None]
            back = np.concatenate([np.abs(back).sum(axis=1, keepdims=True), back], axis=1)
            rtol = _rtol(problem)
            shift, found = sources(Gaussian, (), q[rows], back, rtol, problem.threads).sums(k, 1)
            found = found[:, :, 1:] * np.exp(shift)[:, None, None]
            to_sums += found[:, 0]
            to_k += np.einsum("kv,kcv->kc", w, found[:, first])
            _, i, j = own
            if len(i):
                part = np.exp(-np.square(q[i] - k[j]).sum(axis=1) / 2 - top[i])[:, None] * grads[i]
                moved = (part * w[j]).sum(axis=1)[:, None] * (k[j] - q[i])
                to_q[i] -= moved
                to_k[j] += moved
                to_sums[j] -= part
            order = np.argsort(k[:, 0], kind="stable")
            for n in np.flatnonzero(~near & (top > -np.inf)):  # far from all others: the keys that count are few
                reach = math.sqrt(2 * max(-top[n], 0.0) + 100.0) + 1.0
                start, stop = (int(np.searchsorted(k[:, 0], q[n, 0] + side * reach, sorter=order)) for side in (-1, 1))
                at = order[start:stop]
                if e.own is not None:
                    at = at[at != e.own[n]]
                u = np.square(q[n] - k[at]).sum(axis=1)
                part = np.exp(-u / 2 - top[n])[:, None] * grads[n]
                moved = (part * w[at]).sum(axis=1)[:, None] * (k[at] - q[n])
                to_q[n] += moved.sum(axis=0)
                to_k[at] -= moved
                to_sums[at] += part
        live = slice(None) if e.live is None else e.live
        out = [np.zeros(tuple(a.shape)) for a in problem.arrays]
        out[0][:], out[1][live], out[2][live] = to_q, to_k, to_sums[:, 1:] * w[:, :1]
        if problem.bias is not None:
            out[3].reshape(-1)[live] = (to_sums * w).sum(axis=1)
        return tuple(_like(problem, g) for g in out)

    def _sums(self, problem: Problem, entry: Entry, at: tuple[int, ...]) -> tuple[Floats, Floats]:
        """shift (Q,) and sums (Q, 1 + V), own keys taken out."""
        keys = prepared(problem, entry, at)
        shift, found = keys.sums(entry.query)
        sums = found[:, 0]
        if entry.own is None:
            return shift, sums
        kernel, parameters = _kernel(problem)
        there = (entry.own >= 0) & (shift > -np.inf)
        rows: Any = slice(None) if there.all() else np.flatnonzero(there)
        own: Any = entry.own[rows]
        if len(own) <= len(entry.key) and np.array_equal(own, np.arange(len(own))):
            own = slice(0, len(own))  # no copies of keys and weights where queries stand as keys do
        u = np.square(entry.query[rows] - entry.key[own]).sum(axis=1)
        w = np.asarray(kernel.formula(np, u, *parameters)) - shift[rows]
        w = np.exp(w, out=w)[:, None] * entry.weight[own]
        again = np.flatnonzero(w[:, 0] > SHARE * sums[rows, 0])
        again = again if isinstance(rows, slice) else rows[again]
        sums[rows] -= w
        if len(again):
            if isinstance(keys, Apart):
                shift[again], redone = keys.others(entry.query[again], entry.own[again])
            else:
                exact = Pairs(kernel, parameters, entry.key, entry.weight)
                shift[again], redone = exact.sums(entry.query[again], own=entry.own[again])
            sums[again] = redone[:, 0]
        return shift, sums


def prepared(problem: Problem, entry: Entry, at: tuple[int, ...]) -> Sources:
    """The keys of an entry, prepared now or by an earlier call with the same ``memo``."""
    rtol = _rtol(problem)
    if problem.memo is None:
        return sources(*_kernel(problem), entry.key, entry.weight, rtol, problem.threads)
    name = (*_kernel(problem), at, rtol)
    if name not in problem.memo:
        problem.memo[name] = sources(*_kernel(problem), entry.key, entry.weight, rtol, problem.threads)
    kept: Sources = problem.memo[name]
    return kept


def entry_of(problem: Problem, at: tuple[int, ...]) -> Entry:
    """One entry of the leading axes."""
    (t,) = problem.terms
    query, key, value = (_at(x, at).astype(np.float64, copy=False) for x in (t.query, t.key, problem.value))
    log = None
    if problem.bias is not None:
        bias = problem.bias if problem.bias.ndim > 1 else problem.bias[None, :]
        log = np.broadcast_to(_at(bias, at)[0], len(key)).astype(np.float64)
    mask, layout = problem.mask, problem.layout
    if mask is not None and mask.key_only and layout.queries:
        seen = np.broadcast_to(
            _numpy(mask.tile(layout, slice(0, 1), slice(0, layout.keys))), (*layout.leading, 1, len(key))
        )
        log = np.where(seen[at][0], 0.0 if log is None else log, -np.inf)
    live, shift = None, 0.0
    weight = np.ones(len(key))
    if log is not None:
        shift = float(np.max(log, initial=-np.inf))
        if not (log > -np.inf).all():
            live = np.flatnonzero(log > -np.inf)
            key, value, log = key[live], value[live], log[live]
        weight = np.exp(log - shift) if len(log) else log
    own = None
    if type(mask) is NotSelf:
        gap = _numpy(mask.own(layout, slice(0, layout.queries)))
        own = np.broadcast_to(gap, problem.rows)[at].copy()
        own[(own < 0) | (own >= layout.keys)] = -1
        if live is not None:
            place = np.full(layout.keys + 1, -1)
            place[live] = np.arange(len(live))
            own = place[own]
    return Entry(query, key, np.concatenate([weight[:, None], weight[:, None] * value], axis=1), shift, live, own)


def _rtol(problem: Problem) -> float:
    """The error that is allowed; where the answer is to be exact, one that is lost among roundings."""
    return problem.rtol or LEAST[_dtype(problem)]


def _as_exact(problem: Problem) -> bool:
    """Whether pooled values of the least error are as exact as those of all pairs, and surely take less time."""
    if problem.recorded or problem.asked != "ratio" or len(problem.terms) != 1:
        return False
    (t,), narrow = problem.terms, _dtype(problem) == "float32"
    kernel, features = KERNELS.get(t.formula), t.key.shape[-1]
    if kernel is Gaussian:
        return features == 1 or (features == 2 and narrow)
    return features == 1 and narrow and kernel in POLYNOMIALS


def _dtype(problem: Problem) -> str:
    return str(problem.value.dtype).removeprefix("torch.")


def _kernel(problem: Problem) -> tuple[type[Kernel], tuple[float, ...]]:
    (t,) = problem.terms
    return KERNELS[t.formula], _numbers(t.parameters)


def _numbers(parameters: tuple[Array, ...]) -> tuple[float, ...]:
    return tuple(float(_numpy(p).reshape(-1)[0]) for p in parameters)


def _at(x: Array, at: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The matrix of one entry of an array that may lack leading axes or have them at size 1."""
    lead = tuple(x.shape[:-2])
    found: np.ndarray[Any, Any] = _numpy(x)[
        tuple(0 if n == 1 else i for n, i in zip(lead, at[len(at) - len(lead) :], strict=True))
    ]
    return found


def _numpy(x: Array) -> np.ndarray[Any, Any]:
    return x.detach().numpy() if is_torch(x) else np.asarray(x)


def _like(problem: Problem, x: Floats) -> Array:
    x = x.astype(_dtype(problem), copy=False)
    return problem.xp.from_numpy(x) if is_torch(problem.value) else x
