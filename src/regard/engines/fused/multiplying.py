"""Cuts a problem of dot products into jobs of some queries each, and runs the loops of ``blocks`` over them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types

from regard.arrays import Array
from regard.compiled import maths, products, threads
from regard.compiled.compiling import LOCK, MADE, VERSION, bound, compiled
from regard.compiled.threads import Steps
from regard.engines.fused import blocks
from regard.engines.fused.binding import constants
from regard.engines.fused.blocks import BLOCK, GROUPS
from regard.engines.fused.engine import Matrix, Run, add_rows, entry, like_of, lines, numpy_of, plain, reduced
from regard.partial import Partial
from regard.problem import Problem, spoiled

HELPERS = (
    "fill",
    "add",
    "add_outer",
    "edit",
    "hull",
    "whole",
    "stand",
    "lie",
    "finish",
    "rise",
    "exponentials",
    "weigh",
    "finish_halves",
)
JOBS = 32  # of a problem, about; the same for any number of threads, since sums over keys are cut with them
MOST = 1 << 33  # multiplications of a job


def driver(name: str, dtype: Any) -> Any:
    """A loop of ``blocks`` in a dtype."""
    with LOCK:
        if (name, "matrix", dtype) not in MADE:
            names = {
                **constants(dtype),
                "LANES": products.LANES[dtype.name],
                "WORD": np.int32,
                "bits": maths.bits32,
                **{n: found for n, found in vars(products).items() if n[0].islower()},
            }
            tag = f"{dtype}_{VERSION}"
            for n in HELPERS:
                flags = maths.EXACT if n == "weigh" else maths.SUMS
                names[n] = njit(bound(getattr(blocks, n), tag, names), **flags)
            MADE[name, "matrix", dtype] = compiled(getattr(blocks, name), tag, names, _signature(name, dtype))
        return MADE[name, "matrix", dtype]


def _signature(name: str, dtype: Any) -> Any:
    real, n = types.float32 if dtype == np.float32 else types.float64, types.int64
    row, matrix, whole = types.Array(real, 1, "C"), types.Array(real, 2, "C"), types.Array(n, 1, "C")
    words, pairs = (types.Array(types.int32, n, "C") for n in (1, 2))
    half, panels = (types.Array(types.int16, n, "C") for n in (2, 3))
    if name == "pack_value":
        return types.void(half, panels)
    edits = (whole, whole, whole, types.Array(types.boolean, 2, "C"), matrix)
    sight, state = types.Array(n, 2, "C"), types.Array(real, 3, "C")
    if name == "halves":
        scratch = row, words, sight, pairs, matrix, state, matrix
        return types.void(pairs, half, panels, *edits, real, half, *scratch)
    if name == "forward":
        return types.void(*(matrix,) * 3, *edits, row, row, matrix, row, row, sight, matrix, matrix, state)
    out = matrix, row, row, matrix
    return types.void(*(matrix,) * 3, *edits, row, row, matrix, *out, row, row, sight, *(matrix,) * 5, state)


class Blocks(Run):
    """A problem as jobs of whole blocks of queries: no result depends on how they are cut."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.lanes = products.LANES[self.dtype.name]
        self.arrays = [whole(numpy_of(x)) for x in problem.arrays[:3]]
        self.plain = problem.mask is None and problem.bias is None
        count = self.layout.queries
        rows = max(-(-count * len(self.entries) // JOBS), GROUPS * self.lanes)
        columns = sum(x.shape[-1] for x in self.arrays[1:])
        rows = min(rows, MOST // max(self.layout.keys * columns, 1))  # so that an interrupt need not wait long
        if (problem.bias is not None or not self.by_ranges) and self.blocks:
            rows = min(rows, self.blocks[0].stop)  # what arrays of all pairs leave, where there are some
        rows = -(-max(rows, 1) // self.lanes) * self.lanes
        self.blocks = [slice(i, min(i + rows, count)) for i in range(0, count, rows)]
        self._own = threading.local()
        self._edits: dict[int, tuple[Matrix, ...]] = {}

    def edits(self, at: tuple[int, ...], queries: slice) -> tuple[Matrix, ...]:
        if not self.plain:
            return (*self._seen(at, queries), self._bias(at, queries))
        count = queries.stop - queries.start
        if count not in self._edits:  # the same for all
            self._edits[count] = (*self._seen(at, queries), self._bias(at, queries))
        return self._edits[count]

    def rows(self, at: tuple[int, ...], queries: slice, *arrays: Matrix) -> tuple[Matrix, ...]:
        """These rows of an entry of arrays of all queries."""
        return tuple(x[at][queries] for x in arrays)

    def own(self, make: Callable[[], tuple[Matrix, ...]]) -> tuple[Matrix, ...]:
        """The scratch of this thread."""
        if not hasattr(self._own, "scratch"):
            self._own.scratch = make()
        found: tuple[Matrix, ...] = self._own.scratch
        return found


def room(dtype: Any, *rows: int) -> tuple[Matrix, ...]:
    """Two blocks of scores, what each group sees, rows of lanes for each group, so many, and five for its state."""
    lanes = products.LANES[np.dtype(dtype).name]
    blocks = (lines(1, BLOCK * lanes, dtype)[0] for _ in range(2))
    groups = (lines(GROUPS, max(n, 1) * lanes, dtype) for n in rows)
    state = lines(GROUPS * 5, lanes, dtype).reshape(GROUPS, 5, lanes)
    return *blocks, np.empty((GROUPS, 7), np.int64), *groups, state


def whole(x: Matrix) -> Matrix:
    """With the last two axes contiguous; a copy only where they are not."""
    rows, columns = x.strides[-2:]
    inside = columns == x.itemsize and rows == x.itemsize * x.shape[-1]
    return x if inside and x.flags.writeable else np.array(x, order="C")


def pool(problem: Problem) -> Partial:
    run = Blocks(problem)
    query, key, value = run.arrays
    features, columns = key.shape[-1], value.shape[-1]
    shape = (*problem.rows, columns)
    # a job has read its queries when it writes what it pooled; memory that is in use costs no new pages
    value_sum = query if problem.spare and query.shape == shape else np.empty(shape, run.dtype)
    out = np.empty(problem.rows, run.dtype), np.empty(problem.rows, run.dtype), value_sum
    loop = driver("forward", run.dtype)

    def work(place: tuple[tuple[int, ...], slice]) -> Steps:
        at, queries = place
        q, k, v = entry(query, at)[queries], entry(key, at), entry(value, at)
        scratch = run.own(lambda: room(run.dtype, features, columns))
        loop(q, k, v, *run.edits(at, queries), *run.rows(at, queries, *out), *scratch)
        yield

    threads.run(work, run.places(), problem.threads)
    top, *sums = (like_of(problem, x) for x in out)
    return Partial(top, *spoiled(problem, (sums[0], sums[1])))


def backward(problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array) -> tuple[Array, ...]:
    run = Blocks(problem)
    loop, lanes, keys = driver("backward", run.dtype), run.lanes, problem.layout.keys
    given = tuple(plain(numpy_of(x), run.dtype) for x in (maximum, grad_weight_sum, grad_value_sum))
    query, key, value = run.arrays
    widths = query.shape[-1], value.shape[-1]
    panels = [-(-n // lanes) for n in widths]
    grads = [np.zeros(tuple(a.shape), run.dtype) for a in problem.arrays]

    def make() -> tuple[Matrix, ...]:
        return room(run.dtype, *widths, widths[0], *(p * lanes for p in panels))

    def work(part: tuple[tuple[int, ...], list[slice]]) -> Steps:
        at, some = part
        to_keys, to_values = (np.zeros(p * keys * lanes, run.dtype) for p in panels)
        k, v, rows = entry(key, at), entry(value, at), []
        for queries in some:
            q = entry(query, at)[queries]
            to_query = np.empty_like(q)
            to_bias = np.zeros((len(q), keys) if problem.bias is not None else (0, 0), run.dtype)
            to = to_query, to_keys, to_values, to_bias
            loop(q, k, v, *run.edits(at, queries), *run.rows(at, queries, *given), *to, *run.own(make))
            rows.append((queries, to_query, to_bias))
            yield
        return at, to_keys, to_values, rows

    def add(done: Any) -> None:  # in order, so that sums are the same for any number of threads
        at, to_keys, to_values, rows = done
        for x, found, width, count in zip(grads[1:3], (to_keys, to_values), widths, panels, strict=True):
            flat = found.reshape(count, keys, lanes).transpose(1, 0, 2).reshape(keys, count * lanes)
            x[reduced(x, at)] += flat[:, :width]
        for queries, to_query, to_bias in rows:
            add_rows(grads[0], at, queries, to_query)
            if problem.bias is not None:
                wide = grads[3].reshape((1,) * (2 - grads[3].ndim) + grads[3].shape)
                one = to_bias.sum(axis=0, keepdims=True) if wide.shape[-2] == 1 else to_bias
                add_rows(wide, at, queries, one.sum(axis=1, keepdims=True) if wide.shape[-1] == 1 else one)

    threads.run(work, run.parts(), problem.threads, then=add)
    return tuple(like_of(problem, g) for g in grads)
