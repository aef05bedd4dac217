"""Training rows as keys and values: what a fitted estimator pools, and what a search leaves one out of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from regard.masks import NotSelf
from regard.partial import Partial
from regard.pooling import attention_pool_gradients, partial_pool, top_attention
from regard.scores.base import Score, term_score
from regard.scores.pairings import squared_distance

Floats = np.ndarray[Any, np.dtype[np.floating]]
Integers = np.ndarray[Any, np.dtype[np.integer]]

OUTSIDE = ("nearest", "nan", "mean", "error")
PAIRS = 1 << 20  # how many distances are held at once where a support is left


@dataclass(frozen=True, eq=False)
class Memory:
    """Rows with weights, and what a query gets that no row is near enough to answer.

        f(q) = sum_i w_i exp(s(q, k_i)) v_i / sum_i w_i exp(s(q, k_i))

    Parameters
    ----------
    key : (K, D)
    value : (K, V)
    weight : (K,), >= 0; a row of weight 0 is not there
    outside : one of ``OUTSIDE``
    engine, threads : of the pooling
    leaves_out : query i does not see key i: leave-one-out
    rtol : the error that "auto" may trade for time, None for none
    kept : what an engine made of these keys for the last score; no part of a copy or a pickle
    """

    key: Floats
    value: Floats
    weight: Floats
    outside: str = "nearest"
    engine: str = "auto"
    threads: int | None = None
    leaves_out: bool = False
    rtol: float | None = None
    kept: dict[Score, dict[Any, Any]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": {}}

    def without_own(self, count: Floats) -> Memory:
        """The same rows for leave-one-out of one count each: a row's own key keeps ``max(count - 1, 0)`` of its counts.

        A row that counts more than once becomes two keys, and the query that is left out masks the first of them alone.
        """
        again = np.flatnonzero(count > 1)
        first = self.weight.copy()
        first[again] /= count[again]
        return replace(
            self,
            key=np.concatenate([self.key, self.key[again]]),
            value=np.concatenate([self.value, self.value[again]]),
            weight=np.concatenate([first, self.weight[again] - first[again]]),
            leaves_out=True,
            kept={},
        )

    def pool(self, score: Score, query: Floats) -> Floats:
        """(Q, V): the weighted mean of the values; ``outside`` has spoken where no key is in the support."""
        partial = partial_pool(query, self.key, self.value, score, **self._options, **self._tolerant(score))
        return self.filled(score, query, partial.finish(), partial.weight_sum == 0)

    def partial(self, score: Score, query: Floats, value: Floats) -> Partial:
        """The pooling of other values (K, B), before it is finished."""
        return partial_pool(query, self.key, value, score, **self._options)

    def slopes(self, score: Score, query: Floats, value: Floats, grad_output: Floats) -> Floats:
        """(Q, D): the gradient of ``sum(grad_output * pooled values)`` to the queries, for other values (K, B)."""
        _, grads = attention_pool_gradients(grad_output, query, self.key, value, score, **self._options)
        return np.asarray(grads.query)

    def with_values(self, value: Floats) -> Memory:
        """The same rows with other values (K, B)."""
        return replace(self, value=value, kept={})

    def pool_with_sum(self, score: Score, query: Floats) -> tuple[Floats, Floats]:
        """The same, and (Q,) the logarithm of the sum of the weights before they are made to sum to one."""
        partial = partial_pool(query, self.key, self.value, score, **self._options, rtol=self.rtol)
        log_weight_sum = np.asarray(partial.log_weight_sum)
        return self.filled(score, query, partial.finish(), partial.weight_sum == 0), log_weight_sum

    def top(self, score: Score, query: Floats, n: int) -> tuple[Floats, Integers]:
        """(Q, min(n, K)): the largest weights, descending, and their rows; weight 0 and row -1 where there is none."""
        weights, rows = top_attention(query, self.key, score, n=n, **self._options)
        for at, every in self.outside_weights(score, query, rows[:, 0] == -1):
            order = np.argsort(-every, axis=1, stable=True)[:, : rows.shape[1]]
            found = np.nan_to_num(np.take_along_axis(every, order, axis=1))
            weights[at], rows[at] = found, np.where(found > 0, order, -1)
        return weights, rows

    def gradients(
        self, score: Score, query: Floats, loss: Callable[[Floats], tuple[float, Floats]]
    ) -> tuple[float, dict[str, Floats]]:
        """The loss of the pooled values and its gradients to the parameters of the score.

        ``loss`` gives its value and its gradient to the pooled values. What a query gets from ``outside`` is constant.
        """
        found = 0.0

        def grad_output(out: Floats) -> Floats:
            nonlocal found
            empty = out[:, -1:] == 0  # the pooled value of a column of ones: 0 without a key
            found, grad = loss(self.filled(score, query, out[:, :-1], empty[:, 0]))
            return np.concatenate([grad, np.zeros_like(grad[:, :1])], axis=1)

        ones = np.ones((len(self.key), 1), dtype=self.value.dtype)
        value = np.concatenate([self.value, ones], axis=1)
        _, grads = attention_pool_gradients(grad_output, query, self.key, value, score, **self._options, rtol=self.rtol)
        return found, grads.score

    def _tolerant(self, score: Score) -> dict[str, Any]:
        """The error, and what was kept for this score."""
        if score not in self.kept:
            self.kept.clear()
        return {"rtol": self.rtol, "memo": self.kept.setdefault(score, {})}

    @property
    def _options(self) -> dict[str, Any]:
        bias = None
        if np.ptp(self.weight):  # equal weights are none
            with np.errstate(divide="ignore"):
                bias = np.log(self.weight)[None, :]
        mask = NotSelf(alignment="start") if self.leaves_out else None
        return {"bias": bias, "mask": mask, "engine": self.engine, "threads": self.threads}

    def filled(self, score: Score, query: Floats, out: Floats, empty: Any) -> Floats:
        out = out.copy() if empty.any() else out
        for at, every in self.outside_weights(score, query, empty):
            out[at] = every @ self.value
        return out

    def outside_weights(self, score: Score, query: Floats, empty: Any) -> Iterator[tuple[Integers, Floats]]:
        """For queries without any key in the support, in portions: which they are, and their weights (r, K).

        Each row sums to one; it is NaN where there is no answer.
        """
        queries = np.flatnonzero(empty)
        if queries.size and self.outside == "error":
            shown = ", ".join(map(str, queries[:5])) + (", ..." if queries.size > 5 else "")
            raise ValueError(
                f"no training row is within the support of the kernel for {queries.size} of {len(query)} rows "
                f'({shown}). Widen `bandwidth`, or set `outside` to "nearest", "mean" or "nan".'
            )
        step = max(PAIRS // max(len(self.key), 1), 1)
        for start in range(0, queries.size, step):
            at = queries[start : start + step]
            weights = np.broadcast_to(self.weight, (len(at), len(self.key))).astype(np.float64)
            if self.leaves_out:
                weights[np.arange(len(at)), at] = 0.0
            if self.outside == "nan":
                weights[:] = 0.0
            if self.outside == "nearest":
                weights *= nearest(score, query[at], self.key, weights > 0)
            total = weights.sum(axis=1, keepdims=True)
            yield at, np.where(total > 0, weights, np.nan) / np.where(total > 0, total, 1.0)


def nearest(score: Score, query: Floats, key: Floats, live: Any) -> Any:
    """(Q, K): True for the live keys that are nearest to the query by the score's own distance; ties to rounding.

    distance^2 = sum over terms of |(q - k) / h|^2, or of max(-2 s, 0) for a term without a squared distance
    """
    q, k = query.astype(np.float64), key.astype(np.float64)
    distance, size = np.zeros((len(q), len(k))), np.zeros((len(q), len(k)))
    with np.errstate(all="ignore"):
        for t in score.terms(np, q, k, k[:1]):
            if t.pairing is squared_distance:
                for a, b in zip(t.query.T[:, :, None], t.key.T[:, None, :], strict=True):
                    distance = np.hypot(distance, a - b)  # which does not overflow, however far the query is
                    size += np.abs(a) + np.abs(b)
            else:
                s = term_score(np, t, t.pairing(np, t.query, t.key))
                distance = np.hypot(distance, np.sqrt(np.maximum(-2 * s, 0.0)))
        distance = np.where(live, distance, np.inf)
        least = np.min(distance, axis=1, keepdims=True, initial=np.inf)
        return live & (distance <= least + 8 * np.finfo(query.dtype).eps * size)
