"""The front door: check, prepare, choose an engine, run it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from regard.arrays import (
    Array,
    Namespace,
    broadcast_shapes,
    concrete,
    device,
    floating,
    is_torch,
    largest,
    like,
    namespace,
    sum_to,
    surely_finite,
    take_along,
)
from regard.engines.choose import Choice, allowed, choose, directly, engine_for
from regard.extremes import may_overflow, rescaled
from regard.masks.base import Given, Layout, Mask, as_mask
from regard.partial import Partial
from regard.problem import Problem
from regard.reference import Reference
from regard.scores.base import Score, Term
from regard.scores.constant import Constant
from regard.straight import straight
from regard.weights import check_normalizer

HALF = ("float16", "bfloat16")


class Gradients(NamedTuple):
    """Gradients of a pooling to each of its inputs; ``score`` maps the names of the score's parameters to theirs."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    score: dict[str, Array]


def attention_pool(
    query: Array,
    key: Array,
    value: Array,
    score: Score,
    *,
    mask: Mask | Array | None = None,
    bias: Array | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    seed: int | None = None,
    engine: str = "auto",
    rtol: float | None = None,
    threads: int | None = None,
) -> Array:
    """The pooled values: for each query the weighted mean of the values.

        f(q) = sum_i softmax_i(score(q, k_i)) v_i

    NumPy in, NumPy out; torch in, torch out, with gradients. Memory is O(Q + K): the weights are never held.

    Parameters
    ----------
    query : (..., Q, Dq); key : (..., K, Dk); value : (..., K, V). Leading axes broadcast. Three one-dimensional arrays
        are scalars: (Q,), (K,), (K,) give (Q,).
    score : a score, such as ``rg.Gaussian(0.5)`` or ``rg.ScaledDotProduct()``
    mask : True may attend; a mask of ``regard.masks``, or a Boolean array that broadcasts to (..., Q, K)
    bias : added to the scores, broadcasts to (..., Q, K); -inf masks
    normalizer : "softmax"
    dropout : probability that a weight is dropped; survivors are divided by 1 - dropout, the weight sum is not changed
    seed : of the dropout; the same seed drops the same pairs in every engine
    engine : "auto", or the name of one, which then runs or raises
    rtol : the error that an engine may have which approximates ("lowdim"), 0 < rtol < 1: of the weight sum relatively,
        of the pooled value relative to sum w |v| / sum w. None: the answer is exact but for roundings, and within 1e-6
        if "lowdim" is named
    threads : how many an engine may use that runs threads of its own ("fused"); no result depends on it. None: what the
        environment variable OMP_NUM_THREADS says, else torch's own setting where torch is loaded, else one per CPU that
        the process may use

    Returns
    -------
    (..., Q, V), in the units of the value. A query without any key left gets 0.

    Raises
    ------
    ValueError, TypeError : for shapes, dtypes or devices that do not fit, before any work.

    References
    ----------
    Bahdanau, Cho & Bengio (2015), eqs. 5 and 6; Vaswani et al. (2017), eq. 1; Watson (1964), eq. 2.1.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x, y = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 4.0])
    >>> rg.attention_pool(np.array([1.0]), x, y, rg.Gaussian(bandwidth=0.5)).round(4)
    array([2.1065])
    """
    check_normalizer(normalizer)
    inputs = straight(query, key, value, score, mask, bias, dropout, seed, threads)
    found = None if inputs is None or rtol is not None else directly(inputs, engine)
    if found is not None:
        return found
    call = _Call(
        query,
        key,
        value,
        score,
        mask,
        bias,
        normalizer,
        dropout,
        seed,
        threads,
        asked="ratio",
        rtol=rtol,
        engine=engine,
    )
    call.spare()
    return call.output(_partial(call, engine).finish(overwrite=not call.problem.recorded))


def attention_scores(
    query: Array,
    key: Array,
    score: Score,
    *,
    mask: Mask | Array | None = None,
    bias: Array | None = None,
) -> Array:
    """The scores that the weights are made of, (..., Q, K): with the bias added, -inf where there is no key.

    ``score(query, key)`` is the score alone. So what stands between query and weight can be had step by step: the raw
    scores as ``score(query, key)``, capped ones as ``rg.SoftCap(score, cap)(query, key)``, biased and masked ones here,
    normalised ones from ``attention_weights``, and the logarithm of their sum as ``partial_pool(...).log_weight_sum``.
    Parameters and errors are those of ``attention_pool``; what is not finite shows in its own pairs as NaN.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.array([0.0, 1.0, 2.0])
    >>> rg.attention_scores(x, x, rg.Gaussian(1.0), mask=rg.Causal(), bias=np.array([0.0, 1.0, 0.0]))
    array([[ 0. , -inf, -inf],
           [-0.5,  1. , -inf],
           [-2. ,  0.5,  0. ]])
    """
    call = _Call(query, key, None, score, mask, bias, "softmax", asked="scores")
    xp, p = call.xp, call.problem
    with np.errstate(all="ignore"):
        s = Reference().scores(p)
        for bad in (
            None if p.bad_query is None else p.bad_query[..., :, None],
            None if p.bad_key is None else p.bad_key[..., None, :],
            p.bad_bias,
        ):
            if bad is not None:
                s = xp.where(bad & (s > -xp.inf), xp.nan, s)
        return call.cast(s)


def attention_weights(
    query: Array,
    key: Array,
    score: Score,
    *,
    mask: Mask | Array | None = None,
    bias: Array | None = None,
    normalizer: str = "softmax",
    engine: str = "auto",
    threads: int | None = None,
) -> Array:
    """The weights, (..., Q, K): non-negative, each row sums to one, or is 0 where no key is left.

    The same numbers that ``attention_pool`` uses, before dropout. Its parameters and errors are the same, too.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.array([0.0, 1.0, 2.0])
    >>> rg.attention_weights(np.array([1.0]), x, rg.Gaussian(bandwidth=0.5)).round(4)
    array([[0.1065, 0.787 , 0.1065]])
    """
    call = _Call(query, key, None, score, mask, bias, normalizer, threads=threads)
    with np.errstate(all="ignore"):
        chosen = engine_for(call.problem, engine)
        if is_torch(call.problem.value) and not chosen.native:
            from regard import bridge

            return call.cast(bridge.weights(call.problem))
        return call.cast(chosen.weights(call.problem))


def top_attention(
    query: Array,
    key: Array,
    score: Score,
    *,
    n: int = 10,
    mask: Mask | Array | None = None,
    bias: Array | None = None,
    normalizer: str = "softmax",
    engine: str = "auto",
    threads: int | None = None,
) -> tuple[Array, Array]:
    """The n largest weights of each query and the keys they belong to; never (Q, K) in memory.

    Returns
    -------
    weights, indices : (..., Q, min(n, K)), descending, ties by lower index; a slot without a key has weight 0 and
        index -1. They carry no gradient. Parameters and errors are those of ``attention_pool``.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.array([0.0, 1.0, 2.0])
    >>> weights, indices = rg.top_attention(np.array([1.1]), x, rg.Gaussian(bandwidth=0.5), n=2)
    >>> weights.round(4), indices
    (array([[0.7736, 0.1562]]), array([[1, 2]]))
    """
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"`n` must be a whole number of at least 1; got {n!r}.")
    call = _Call(query, key, None, score, mask, bias, normalizer, threads=threads)
    with np.errstate(all="ignore"):
        weights, indices = engine_for(call.problem, engine).top(_still_problem(call.problem), int(n))
    return call.cast(weights), indices


def partial_pool(
    query: Array,
    key: Array,
    value: Array,
    score: Score,
    *,
    query_start: int = 0,
    key_start: int = 0,
    mask: Mask | Array | None = None,
    bias: Array | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    seed: int | None = None,
    engine: str = "auto",
    rtol: float | None = None,
    threads: int | None = None,
    memo: dict[Any, Any] | None = None,
) -> Partial:
    """A Partial: what these keys contribute, to be merged with those of other keys and finished.

    ``query_start`` and ``key_start`` say where the part stands in the whole, for masks by position and for dropout.
    ``memo`` is a dictionary, at first empty, in which an engine keeps what it made of the keys for the next call with
    the same key, value, score, mask and bias.
    Other parameters and errors are those of ``attention_pool``.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x, y = np.array([0.0, 1.0, 2.0])[:, None], np.array([1.0, 2.0, 4.0])[:, None]
    >>> a = rg.partial_pool(x, x[:2], y[:2], rg.Gaussian(0.5))
    >>> b = rg.partial_pool(x, x[2:], y[2:], rg.Gaussian(0.5), key_start=2)
    >>> a.merge(b).finish()[1].round(4)
    array([2.1065])
    """
    starts = (query_start, key_start)
    call = _Call(
        query,
        key,
        value,
        score,
        mask,
        bias,
        normalizer,
        dropout,
        seed,
        threads,
        starts,
        rtol=rtol,
        memo=memo,
        engine=engine,
    )
    return _partial(call, engine)


def attention_pool_gradients(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    score: Score,
    *,
    mask: Mask | Array | None = None,
    bias: Array | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    seed: int | None = None,
    engine: str = "auto",
    rtol: float | None = None,
    threads: int | None = None,
    memo: dict[Any, Any] | None = None,
) -> tuple[Array, Gradients]:
    """The pooled values of NumPy arrays and the gradients of ``sum(grad_output * pooled)`` to all inputs.

    ``grad_output`` is an array like the output, or a function that makes it from the output. Torch tensors have
    ``backward()`` instead. ``memo`` is that of ``partial_pool``. Other parameters and errors are those of
    ``attention_pool``.

    Returns
    -------
    pooled, gradients : the pooled values, and ``query, key, value, bias`` (each like its input) and ``score``, a
        dictionary of the score's parameters.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x, y = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 4.0])
    >>> _, grads = rg.attention_pool_gradients(np.ones(3), x, x, y, rg.Gaussian(0.5), mask=rg.NotSelf())
    >>> float(grads.score["bandwidth"].round(4))
    0.0592
    """
    call = _Call(
        query, key, value, score, mask, bias, normalizer, dropout, seed, threads, rtol=rtol, memo=memo, engine=engine
    )
    if call.xp is not np:
        raise TypeError("attention_pool_gradients works on NumPy arrays; call backward() on a torch result.")
    with np.errstate(all="ignore"):
        chosen = engine_for(call.problem, engine)
        partial = chosen.pool(call.problem)
        out = partial.finish()
        shown = call.output(out)
        given = grad_output(shown) if callable(grad_output) else grad_output
        grad = np.broadcast_to(np.asarray(given, dtype=shown.dtype), shown.shape)
        grad = grad[..., None] if call.scalars else grad
        # finish divides: d(o / z) = (do - out dz) / z, and what was lost carries no gradient
        lost = ~np.isfinite(out)
        z = np.where((partial.weight_sum == 0) | ~np.isfinite(partial.weight_sum), 1.0, partial.weight_sum)[..., None]
        to_value_sum = (np.where(lost, 0.0, grad) / z).astype(call.problem.value.dtype)
        to_weight_sum = -np.sum(to_value_sum * np.where(lost, 0.0, out), axis=-1)
        got = chosen.backward(call.problem, partial.max, to_weight_sum, to_value_sum)
    return shown, call.pull_back(got)


def average_pool(value: Array, mask: Array | None = None) -> Array:
    """The mean of the values that are left: pooling without a query.

    Parameters
    ----------
    value : (..., K, V)
    mask : Boolean, True is kept; (..., K) gives (..., V), (..., Q, K) gives (..., Q, V)

    Returns
    -------
    (..., V) or (..., Q, V); 0 where nothing is left. Integers give floats.

    Raises
    ------
    ValueError, TypeError : if value is not (..., K, V), or the mask is not Boolean or does not fit.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.average_pool(np.array([[1.0], [2.0], [6.0]]), np.array([True, True, False]))
    array([1.5])
    """
    xp, value, keep, squeeze = _plain(value, mask)
    if not floating(xp, value):
        value = _cast(value, xp.get_default_dtype() if is_torch(value) else xp.float64)
    rows = (*value.shape[:-2], 1 if keep is None else keep.shape[-2], 0)
    query = xp.broadcast_to(xp.sum(value[..., :0], axis=-2, keepdims=True), rows)  # queries without features
    out = attention_pool(query, value[..., :0], value, Constant(), mask=keep)
    return out[..., 0, :] if squeeze else out


def max_pool(value: Array, mask: Array | None = None) -> Array:
    """The elementwise maximum of the values that are left: the cue that catches the eye most, without a query.

    Parameters
    ----------
    value : (..., K, V)
    mask : Boolean, True is kept; (..., K) gives (..., V), (..., Q, K) gives (..., Q, V)

    Returns
    -------
    (..., V) or (..., Q, V), in the dtype of value; 0 where nothing is left. Ties share the gradient.

    Raises
    ------
    ValueError, TypeError : if value is not (..., K, V), or the mask is not Boolean or does not fit.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> rg.max_pool(np.array([[1, 5], [2, 3], [6, 4]]), np.array([True, True, False]))
    array([2, 5])
    """
    xp, value, keep, squeeze = _plain(value, mask)
    everything = xp.ones(value.shape[:-1], dtype=xp.bool, device=device(value))[..., None, :]
    keep = everything if keep is None else keep & everything
    rows = [_max_row(xp, value, keep[..., i, :]) for i in range(keep.shape[-2])]  # one query at a time: never (Q, K, V)
    out = xp.stack(rows, axis=-2) if rows else value[..., :0, :]
    return out[..., 0, :] if squeeze else out


def choose_engine(
    query: Array,
    key: Array,
    value: Array,
    score: Score,
    mask: Mask | Array | None = None,
    *,
    bias: Array | None = None,
    dropout: float = 0.0,
    rtol: float | None = None,
) -> Choice:
    """Which engine "auto" takes for this call, and why not the others.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.zeros((5, 1))
    >>> print(rg.choose_engine(x, x, x, rg.Gaussian(1.0)))
    tiled: chosen
    matrix: for 25 pairs its loops are not worth loading
    sdpa: it runs on torch tensors in CPU memory
    lowdim: for 25 pairs its keys are not worth sorting
    fused: for 25 pairs its loops are not worth loading
    reference: it would hold all 25 scores at once
    """
    return choose(_Call(query, key, value, score, mask, bias, "softmax", dropout, 0, asked="ratio", rtol=rtol).problem)


class _Call:
    """One call of the front door: checked, with non-finite inputs set aside, and prepared."""

    def __init__(
        self,
        query: Array,
        key: Array,
        value: Array | None,
        score: Score,
        mask: Mask | Array | None,
        bias: Array | None,
        normalizer: str,
        dropout: float = 0.0,
        seed: int | None = None,
        threads: int | None = None,
        starts: tuple[int, int] | None = None,  # of a part
        asked: str = "sums",  # see Problem
        rtol: float | None = None,
        memo: dict[Any, Any] | None = None,
        engine: str = "auto",
    ) -> None:
        check_normalizer(normalizer)
        if rtol is not None and (not isinstance(rtol, int | float | np.number) or not 0 < rtol < 1):
            raise ValueError(f"`rtol` must be a number between 0 and 1, or None for an exact answer; got {rtol!r}.")
        if not isinstance(score, Score):
            raise TypeError(f"`score` must be a score, such as regard.Gaussian(1.0); got {type(score).__name__}.")
        if not isinstance(dropout, int | float | np.number) or not 0 <= dropout <= 1:
            raise ValueError(f"`dropout` must be a number between 0 and 1; got {dropout!r}.")
        if seed is not None and not isinstance(seed, int | np.integer):
            raise ValueError(f"`seed` must be a whole number; got {seed!r}.")
        if dropout and seed is None:
            raise ValueError(f"dropout={dropout:g} needs a `seed`, a whole number: the same seed drops the same pairs.")
        if threads is not None and (
            not isinstance(threads, int | np.integer) or isinstance(threads, bool) or threads < 1
        ):
            raise ValueError(f"`threads` must be a whole number of at least 1, or None; got {threads!r}.")
        self.xp, arrays, bias = _same_library(query, key, value, bias)
        self.scalars, arrays = _as_matrices(arrays, has_value=value is not None)
        self.given = arrays
        self.dtype = arrays[0].dtype
        self.score = score
        self.bias_given = bias
        layout = _layout(self.xp, arrays, starts)
        score.check(int(arrays[0].shape[-1]), int(arrays[1].shape[-1]))
        layout = _with_axes_of(score, self.xp, arrays, layout)
        checked = None if mask is None else as_mask(mask)
        if checked is not None:
            checked.check(layout)
        if bias is not None:
            _check_bias(bias, layout)
        wide = _inside(self.xp, self.dtype)
        self.layout, self.mask = layout, checked
        self.dropout, self.seed = float(dropout), int(seed or 0)
        self.threads = None if threads is None else int(threads)
        self.scale = 1.0
        self.asked = asked
        self.rtol, self.memo = allowed(rtol, engine), memo
        with np.errstate(all="ignore"):
            self.problem = self._prepare(arrays, bias, wide)
            pooled = asked != "scores"  # which are what they are, and overflow where they do
            if pooled and self.problem.value.dtype == self.xp.float32 and may_overflow(self.problem):
                self.problem = self._prepare(arrays, bias, self.xp.float64)
            if pooled and self.problem.value.dtype == self.xp.float64 and may_overflow(self.problem):
                found = rescaled(self.problem, score, self.query, self.key, self.origin)
                if found is not None:
                    self.problem, self.scale = found
        if is_torch(self.problem.value):
            from regard import bridge

            self.problem = replace(self.problem, recorded=bridge.recorded(self.problem))

    def _prepare(self, arrays: tuple[Array, ...], bias: Array | None, dtype: Any) -> Problem:
        """Set non-finite inputs and keys that nobody sees to zero, by selection, and prepare the score."""
        xp, score, layout = self.xp, self.score, self.layout
        query, key, value = (_cast(x, dtype) for x in arrays)
        alive = None if self.mask is None else self.mask.alive(layout)
        bad_query, bad_key = (_bad_rows(xp, x, score) for x in (query, key))
        bad_value = None if surely_finite(xp, value) else _present(xp, ~xp.isfinite(value))
        if alive is not None:
            alive = _absent(xp, alive)
        live = alive if bad_key is None else ~bad_key if alive is None else alive & ~bad_key
        self.keep_query = None if bad_query is None else ~bad_query[..., None]
        self.keep_key = None if live is None else live[..., None]
        keep_value = None if alive is None else alive[..., None]
        if bad_value is not None:
            keep_value = ~bad_value if keep_value is None else keep_value & ~bad_value
        self.keep_value = keep_value
        if bad_value is not None:
            seen = bad_value if alive is None else bad_value & alive[..., None]
            if _present(xp, seen) is not None:
                flags = [xp.isnan(value) & seen, (value == xp.inf) & seen, (value == -xp.inf) & seen]
                bad_value = _cast(xp.concat(flags, axis=-1), dtype)
            else:
                bad_value = None
        if bad_key is not None and alive is not None:
            bad_key = _present(xp, bad_key & alive)
        bad_bias = self.keep_bias = None
        if bias is not None:
            bias = _cast(bias, dtype)
            bad_bias = _present(xp, ~(bias < xp.inf))
            self.keep_bias = None if bad_bias is None else ~bad_bias
            bias = bias if bad_bias is None else xp.where(bad_bias, 0.0, bias)
        zeroed = [
            x if keep is None else xp.where(keep, x, xp.zeros_like(x))
            for x, keep in ((query, self.keep_query), (key, self.keep_key), (value, self.keep_value))
        ]
        self.query, self.key, value = zeroed
        self.origin = _origin(xp, self.key, live)
        terms = tuple(score.terms(xp, self.query, self.key, self.origin))
        return Problem(
            xp,
            layout,
            terms,
            value,
            self.mask,
            bias,
            dropout=self.dropout,
            seed=self.seed,
            threads=self.threads,
            bad_query=bad_query,
            bad_key=bad_key,
            bad_bias=bad_bias,
            bad_value=bad_value,
            asked=self.asked,
            rtol=self.rtol,
            memo=self.memo,
            given=None if dtype == self.dtype else self.dtype,
        )

    def spare(self) -> None:
        """Lets the engine write where the prepared queries stand, if they are a copy and nothing else needs them."""
        problem = self.problem
        bad = (problem.bad_query, problem.bad_key, problem.bad_bias, problem.bad_value)
        if problem.recorded or len(problem.terms) != 1 or any(x is not None for x in bad):
            return
        if is_torch(problem.value):
            place = problem.terms[0].query.untyped_storage().data_ptr()
            others = {x.untyped_storage().data_ptr() for x in (*self.given, self.key, problem.terms[0].key)}
            self.problem = replace(problem, spare=place not in others)
        elif isinstance(problem.value, np.ndarray):
            query = problem.terms[0].query
            shared = any(np.may_share_memory(query, x) for x in (*self.given, problem.terms[0].key))
            self.problem = replace(problem, spare=not shared)

    def output(self, out: Array) -> Array:
        """The pooled value as the caller knows it."""
        out = self.cast(out)
        return out[..., 0] if self.scalars else out

    def cast(self, x: Array) -> Array:
        """A result in the dtype of the inputs."""
        return _cast(x, self.dtype)

    def pull_back(self, grads: tuple[Array, ...]) -> Gradients:
        """From gradients of the problem's arrays to those of the inputs and of the score's parameters."""
        xp, problem = self.xp, self.problem
        terms: list[Term] = []
        at = 0
        for t in problem.terms:
            n = len(t.arrays)
            terms.append(t.with_arrays(grads[at : at + n]))
            at += n
        s = self.scale
        inputs = (self.query * s, self.key * s, self.origin * s) if s != 1.0 else (self.query, self.key, self.origin)
        to_query, to_key, names = self.score.terms_backward(xp, *inputs, iter(terms))
        pulled = [
            sum_to(xp, g if keep is None else xp.where(keep, g, 0.0), tuple(x.shape))
            for g, keep, x in (
                (to_query * s, self.keep_query, self.given[0]),
                (to_key * s, self.keep_key, self.given[1]),
                (grads[at], self.keep_value, self.given[2]),
            )
        ]
        q, k, v = (self.cast(g[..., 0] if self.scalars else g) for g in pulled)
        bias = None
        if self.bias_given is not None:
            bias = self.cast(grads[at + 1] if self.keep_bias is None else xp.where(self.keep_bias, grads[at + 1], 0.0))
        return Gradients(q, k, v, bias, names)


def _partial(call: _Call, engine: str) -> Partial:
    problem = call.problem
    with np.errstate(all="ignore"):
        chosen = engine_for(problem, engine)
        if is_torch(problem.value) and not chosen.native and problem.recorded:
            from regard import bridge

            partial = bridge.pool(chosen, problem)
        else:
            partial = chosen.pool(problem)
        inside = _inside(call.xp, call.dtype)
        if partial.value_sum.dtype != inside:  # computed wider for the sake of range
            lowest = float(call.xp.finfo(inside).min)
            top = call.xp.where((partial.weight_sum != 0) & (partial.max < lowest), lowest, partial.max)
            partial = Partial(*(_cast(x, inside) for x in (top, partial.weight_sum, partial.value_sum)))
    return replace(partial, dtype=call.dtype)


def _same_library(
    query: Array, key: Array, value: Array | None, bias: Array | None
) -> tuple[Namespace, tuple[Array, ...], Array | None]:
    """All arrays in one library, dtype and device; a missing value has no columns."""
    named = {"query": query, "key": key, "value": value, "bias": bias}
    given = {name: x for name, x in named.items() if x is not None}
    xp = namespace(*given.values())
    if xp.__name__ == "torch":
        strangers = [name for name, x in given.items() if not is_torch(x)]
        if strangers:
            raise TypeError(
                f"`{strangers[0]}` must be a torch tensor like the others; got {type(given[strangers[0]]).__name__}. "
                "Convert it with torch.as_tensor."
            )
        kinds = {name: (x.dtype, x.device) for name, x in given.items()}
        if len(set(kinds.values())) > 1:
            told = ", ".join(f"{name} {str(d).removeprefix('torch.')} on {where}" for name, (d, where) in kinds.items())
            raise TypeError(f"torch tensors must share one dtype and one device; got {told}.")
        if not query.is_floating_point():
            raise TypeError(
                f"torch tensors must be floating; got {str(query.dtype).removeprefix('torch.')}. Use .float()."
            )
    elif xp is np:
        given = {name: np.asarray(x) for name, x in given.items()}
        for name, x in given.items():
            if x.dtype.kind not in "fiub":
                raise TypeError(f"`{name}` must hold real numbers; got dtype {x.dtype}.")
        if "bias" in given and given["bias"].dtype.kind == "b":
            raise TypeError("`bias` is added to the scores; got Booleans. Pass what a query may attend to as `mask`.")
        dtype = np.result_type(*(x for name, x in given.items() if name != "bias"))
        dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
        given = {name: _cast(x, dtype) for name, x in given.items()}
    else:
        for name, x in given.items():
            if not floating(xp, x):
                raise TypeError(f"`{name}` must be floating; got {x.dtype}.")
        dtype = xp.result_type(*(x for name, x in given.items() if name != "bias"))
        given = {name: _cast(x, dtype) for name, x in given.items()}
    if value is None:
        k = given["key"]
        given["value"] = k[..., :0]
    return xp, (given["query"], given["key"], given["value"]), given.get("bias")


def _as_matrices(arrays: tuple[Array, ...], *, has_value: bool) -> tuple[bool, tuple[Array, ...]]:
    """(..., N, D) for all; one-dimensional arrays are scalars if all of them are."""
    names = ("query", "key", "value")[: 3 if has_value else 2]
    lone = [name for name, x in zip(names, arrays, strict=False) if x.ndim < 2]
    if not lone:
        return False, arrays
    if len(lone) == len(names) and all(x.ndim == 1 for x in arrays[: len(names)]):
        query, key, *rest = (x[:, None] for x in arrays[: len(names)])
        return True, (query, key, rest[0] if rest else key[..., :0])
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(names, arrays, strict=False))
    raise ValueError(
        f"`{lone[0]}` must have at least two axes, (..., N, D), unless all arrays have one; got {shapes}. "
        f"Write {lone[0]}[:, None] for one feature."
    )


def _layout(xp: Namespace, arrays: tuple[Array, ...], starts: tuple[int, int] | None) -> Layout:
    query, key, value = arrays
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"`key` and `value` must have the same length; got key {tuple(key.shape)} and value {tuple(value.shape)}."
        )
    try:
        lead = broadcast_shapes(*(tuple(x.shape[:-2]) for x in arrays))
    except ValueError:
        raise ValueError(
            "the leading axes of `query`, `key` and `value` must broadcast; "
            f"got query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)}."
        ) from None
    for name, start in zip(("query_start", "key_start"), starts or (), strict=False):
        if not isinstance(start, int | np.integer):
            raise ValueError(f"`{name}` must be a whole number; got {start!r}.")
    query_start, key_start = starts or (0, 0)
    part = starts is not None
    return Layout(xp, lead, int(query.shape[-2]), int(key.shape[-2]), query, int(query_start), int(key_start), part)


def _with_axes_of(score: Score, xp: Namespace, arrays: tuple[Array, ...], layout: Layout) -> Layout:
    """The layout with the leading axes that only parameters of the score have: one bandwidth per head of one query."""
    if not _has_axes(score):
        return layout
    query, key = (xp.zeros_like(x[..., :1, :]) for x in arrays[:2])  # shapes alone: what stands there may be anything
    try:
        terms = score.terms(xp, query, key, key if key.shape[-2] else xp.zeros_like(query))
        lead = broadcast_shapes(layout.leading, *(tuple(a.shape[:-2]) for t in terms for a in t.arrays))
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"the parameters of `score` do not broadcast with query {tuple(arrays[0].shape)} and key "
            f"{tuple(arrays[1].shape)}: one number per head, say, wants as many heads there, or 1, or no such axis "
            f"({error})."
        ) from None
    return replace(layout, leading=lead)


def _has_axes(x: Any) -> bool:
    """Whether some parameter is an array."""
    if isinstance(x, Score | tuple):
        return any(_has_axes(inner) for inner in (vars(x).values() if isinstance(x, Score) else x))
    return getattr(x, "ndim", 0) > 0


def _check_bias(bias: Array, layout: Layout) -> None:
    full, shape = (*layout.leading, layout.queries, layout.keys), tuple(bias.shape)
    if len(shape) > len(full) or any(n not in (1, m) for n, m in zip(shape[::-1], full[::-1], strict=False)):
        raise ValueError(f"`bias` of shape {shape} does not broadcast to (..., Q, K) = {full}.")


def _inside(xp: Namespace, dtype: Any) -> Any:
    """The dtype that everything is computed in: float32 for half precision."""
    return xp.float32 if str(dtype).removeprefix("torch.") in HALF else dtype


def _cast(x: Array, dtype: Any) -> Array:
    if x.dtype == dtype:
        return x
    if is_torch(x):
        return x.to(dtype)
    return x.astype(dtype) if isinstance(x, np.ndarray | np.generic) else namespace(x).astype(x, dtype)


def _present(xp: Namespace, flags: Array) -> Array | None:
    """Flags, or None where none is set (a tensor that is being traced cannot be asked, and stays)."""
    if is_torch(flags) and concrete(flags[..., :0] if flags.ndim else flags) is None:
        return flags
    return flags if bool(xp.any(flags)) else None


def _absent(xp: Namespace, flags: Array) -> Array | None:
    """Flags, or None where all are set."""
    return flags if _present(xp, ~flags) is not None else None


def _bad_rows(xp: Namespace, x: Array, score: Score) -> Array | None:
    """(..., N): True where a feature that the score looks at is not finite; None where all are finite."""
    if surely_finite(xp, x):
        return None
    features = int(x.shape[-1])
    used = score.uses(features)
    if not used:
        return None
    chosen = x if len(used) == features else xp.stack([x[..., c] for c in used], axis=-1)
    return _present(xp, ~xp.all(xp.isfinite(chosen), axis=-1))


def _origin(xp: Namespace, key: Array, live: Array | None) -> Array:
    """(..., 1, D): one live key, without gradient; zeros where there is none."""
    key = _still(key)
    if not key.shape[-2]:
        return xp.sum(key, axis=-2, keepdims=True)
    if live is None:
        return key[..., :1, :]
    live = live | xp.zeros_like(xp.sum(key, axis=-1), dtype=live.dtype)
    first = xp.argmax(live.astype(np.int8) if xp is np else xp.asarray(live, dtype=xp.int8), axis=-1)
    return take_along(xp, key, first[..., None, None] + xp.zeros_like(key[..., :1, :], dtype=first.dtype), -2)


def _still(x: Any) -> Any:
    """Without gradient."""
    return x.detach() if is_torch(x) else x


def _still_problem(problem: Problem) -> Problem:
    return problem.with_arrays(tuple(_still(a) for a in problem.arrays))


def _plain(value: Array, mask: Array | None) -> tuple[Namespace, Array, Array | None, bool]:
    """Value (..., K, V) and keep (..., Q, K) of the pooling without a query, and whether Q is to be dropped."""
    xp = namespace(value)
    value = np.asarray(value) if xp is np else value
    if value.ndim < 2:
        raise ValueError(
            f"`value` must be (..., K, V); got {tuple(value.shape)}. Write value[:, None] for one feature."
        )
    if mask is None:
        return xp, value, None, True
    given = as_mask(mask)
    if not isinstance(given, Given):
        raise TypeError(
            f"`mask` must be a Boolean array where there is no query; got {type(given).__name__}. "
            "Use attention_pool with regard.Constant() for a mask of regard.masks."
        )
    keep = like(xp, given.array, value[..., :0, :0] == 0)
    lead, keys = tuple(value.shape[:-2]), value.shape[-2]
    if keep.ndim and keep.shape[-1] == keys:
        for axes, squeeze in ((keep.shape[:-1], True), (keep.shape[:-2], False)):
            if (
                len(axes) == len(lead)
                and (squeeze or keep.ndim >= 2)
                and all(a in (1, b) for a, b in zip(axes, lead, strict=True))
            ):
                return xp, value, keep[..., None, :] if squeeze else keep, squeeze
    raise ValueError(
        f"`mask` must be (..., K) or (..., Q, K) beside value {tuple(value.shape)}; got {tuple(keep.shape)}."
    )


def _max_row(xp: Namespace, value: Array, keep: Array) -> Array:
    """The maximum over the kept keys, (..., V)."""
    keep = keep[..., None]
    zero = xp.zeros((*value.shape[:-2], value.shape[-1]), dtype=value.dtype, device=device(value))
    if not value.shape[-2]:
        return zero
    if floating(xp, value):
        lowest: Any = -xp.inf
    else:
        lowest = False if "bool" in str(value.dtype) else int((np if xp is np else xp).iinfo(value.dtype).min)
    chosen = xp.where(keep, value, xp.full_like(value, lowest))
    top = largest(xp, chosen, axis=-2)
    return xp.where(xp.any(keep, axis=-2), top, zero)
