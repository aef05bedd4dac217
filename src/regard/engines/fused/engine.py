"""Cuts a problem into jobs of some queries each, and runs compiled loops over them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from regard.arrays import Array, is_torch, traced
from regard.compiled import threads
from regard.compiled.threads import Steps
from regard.engines.fused.binding import driver, known, scorer
from regard.engines.fused.loops import BYTES, SCALE, SLOTS, SPACE, TALL
from regard.partial import Partial
from regard.problem import Problem, row_hashes, spoiled
from regard.scores.base import FAR, Term

ROWS = 512  # queries of a job, a multiple of the rows of a tile
PAIRS = 1 << 19  # of a job that has arrays of them: of a mask, of the gradient of a bias
WORK = 1 << 26  # numbers that one call of a loop looks at: far below a second, and then an interrupt is seen
PARTS = 8  # how many sums over keys a backward keeps side by side; fixed, so that no result depends on the threads


def numpy_of(x: Array) -> np.ndarray[Any, Any]:
    """The same memory as a NumPy array."""
    return x.detach().numpy() if is_torch(x) else np.asarray(x)


def like_of(problem: Problem, x: np.ndarray[Any, Any]) -> Array:
    """The same memory as an array of the problem's library."""
    return problem.xp.from_numpy(x) if is_torch(problem.value) else x


def why_not(problem: Problem) -> str | None:
    """Why there is no loop for the problem."""
    if len(problem.terms) > SLOTS:
        return f"it adds up to {SLOTS} scores, not {len(problem.terms)}"
    for t in problem.terms:
        if not known(t.pairing):
            return f'it has no loop for the pairing "{t.pairing.name}"'
        if len(t.parameters) > 2 or t.formula.__closure__:
            return "it cannot compile the formula"
        if t.pairing.name != "offset" and not all(traced(x) or np.isfinite(numpy_of(x)).all() for x in t.arrays):
            return "a prepared query, key or parameter is not finite"
    return None


Matrix = np.ndarray[Any, Any]
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Job:
    """Some queries of one entry of the leading axes, as plain matrices, and where they stand in the whole."""

    at: tuple[int, ...]
    queries: slice
    count: int  # of terms; their slots hold the first one again where there are fewer
    scorers: tuple[Any, ...]
    terms: tuple[tuple[Matrix, Matrix, Matrix], ...]  # query (q, C), key (C', K), the formula's numbers (q, P + 2)
    value: Matrix  # (V, K)
    edits: tuple[Matrix, ...]  # start, stop and gap (q,), live (q, K) or (0, 0), bias (1 or q, 1 or K) or (0, 0)
    dropout: tuple[Any, ...]  # hashes (q, 2) or (0, 2), position of key 0, what a hash must reach to stay, scale

    @property
    def width(self) -> int:
        """About how many numbers a loop looks at for each pair."""
        return 8 + len(self.value) + sum(len(k) for _, k, _ in self.terms[: self.count])

    def steps(self, keys: int) -> Iterator[tuple[int, int]]:
        """Ranges of its queries, whole tiles each, for calls of a loop that do not take long for so many keys."""
        count = self.queries.stop - self.queries.start
        tall = max(WORK // (max(keys, 1) * self.width) // TALL, 1) * TALL
        return ((i, min(i + tall, count)) for i in range(0, count, tall))

    def pieces(self) -> Iterator[tuple[tuple[Matrix, ...], int, int]]:
        """The same for a loop that adds up, with the edits: one tile of queries may have keys for many calls."""
        start, stop, *others = self.edits
        wide = max(WORK // (TALL * self.width) // BYTES, 1) * BYTES  # whole tiles in every dtype
        for i, j in self.steps(int(stop.max() - start.min())):
            low, high = int(start[i:j].min()), int(stop[i:j].max())
            if j - i > TALL or high - low <= wide:
                yield self.edits, i, j
                continue
            for k in range(low, high, wide):
                yield (np.clip(start, k, k + wide), np.clip(stop, k, k + wide), *others), i, j

    def rows(self, i: int, j: int) -> Job:
        """The job of some of its queries only."""
        start, stop, gap, live, bias = self.edits
        edits = start[i:j], stop[i:j], gap[i:j], live[i:j], bias[i:j] if bias.shape[0] > 1 else bias
        terms = tuple((q[i:j], k, p[i:j]) for q, k, p in self.terms)
        hashes, *rate = self.dropout
        queries = slice(self.queries.start + i, self.queries.start + j)
        return replace(self, queries=queries, terms=terms, edits=edits, dropout=(hashes[i:j], *rate))


class Run:
    """A problem as jobs. What belongs to keys is made once for all jobs that share it."""

    def __init__(self, problem: Problem, *kinds: str, kernels: bool = False) -> None:
        self.kinds, self.kernels = kinds or ("fill",), kernels
        self.problem, self.layout = problem, problem.layout
        self.dtype = numpy_of(problem.value).dtype
        self._made: dict[Any, Any] = {}
        self._making = threading.Lock()
        tiles = -(-self.layout.queries // (PARTS * TALL))
        ranges = self._by_ranges(slice(0, 1))
        self.by_ranges = ranges is not None
        self._sight = np.broadcast_shapes(*(tuple(x.shape[:-1]) for x in ranges or ()))  # whose ranges differ
        pairs = ranges is None or ("back" in self.kinds and problem.bias is not None)
        most = max(PAIRS // max(self.layout.keys, 1), TALL) if pairs else ROWS  # fewer where a job has arrays of pairs
        rows = TALL * min(max(tiles, 1), min(most, ROWS) // TALL)  # whole tiles: no result depends on how jobs are cut
        self.blocks = [slice(i, min(i + rows, self.layout.queries)) for i in range(0, self.layout.queries, rows)]
        self.entries = list(np.ndindex(*self.layout.leading))

    def places(self) -> list[tuple[tuple[int, ...], slice]]:
        """Where there is a job: some queries of every entry."""
        return [(at, queries) for at in self.entries for queries in self.blocks]

    def parts(self) -> list[tuple[tuple[int, ...], list[slice]]]:
        """The jobs of each entry in at most PARTS groups, which sum over keys side by side."""
        size = max(-(-len(self.blocks) // PARTS), 1)
        return [(at, self.blocks[n : n + size]) for at in self.entries for n in range(0, len(self.blocks), size)]

    def job(self, at: tuple[int, ...], queries: slice) -> Job:
        """What one call of a loop takes; made when its turn comes, since a mask may be an array of all its pairs."""
        terms, modes = [], []
        for n, t in enumerate(self.problem.terms):
            query = rows_of(numpy_of(t.query), at, queries)
            mode = t.pairing.name
            if mode == "additive":
                mode, query = self._additive(n, t, at, query)
            if mode == "offset":  # the table's sizes travel with it
                axes = t.key.shape[-1]
                sizes = np.broadcast_to(np.asarray(t.pairing.shape, self.dtype), (len(query), axes))  # type: ignore[attr-defined]
                query = np.concatenate([query[:, :axes], sizes, query[:, axes:]], axis=1)
            modes.append(mode)
            terms.append((query, self._key(n, t, at, mode), self._parameters(t, at, queries)))
        scorers = tuple(
            slots(
                scorer(
                    kind, mode, near(kind, t), self.kernels, self._formula(t), t.slope, len(t.parameters), self.dtype
                )
                for mode, t in zip(modes, self.problem.terms, strict=True)
            )
            for kind in self.kinds
        )
        edits = (*self._seen(at, queries), self._bias(at, queries))
        dropout = self._dropout(at, queries)
        return Job(at, queries, len(terms), sum(scorers, ()), slots(terms), self._value(at), edits, dropout)

    def _formula(self, t: Term) -> Any:
        return t.kernel if self.kernels else t.formula

    def _additive(self, n: int, t: Term, at: tuple[int, ...], query: Matrix) -> tuple[str, Matrix]:
        """Which form of the additive pairing is exact and finite for these queries and all keys."""
        hidden = t.key.shape[-1]
        a, v = query[:, :hidden], query[:, hidden:]
        b = self._kept(("extent", n, reduced(t.key, at)), lambda: extent(entry(numpy_of(t.key), at)))
        e = extent(a)
        if e.max() + b.max() <= SMALL:
            return "additive_small", np.concatenate([np.expm1(2 * a), v], axis=1)
        if (e[0] + b[0]).max() <= LARGE[self.dtype.name] and max(e.max(), b.max()) <= ALONE:
            return "additive", np.concatenate([SCALE[self.dtype.name] * np.exp(2 * a), v], axis=1)
        return "additive_large", query

    def _key(self, n: int, t: Term, at: tuple[int, ...], mode: str) -> Matrix:
        def make() -> Matrix:
            key = entry(numpy_of(t.key), at).T
            if mode == "additive_small":
                key = np.concatenate([np.exp(2 * key), np.expm1(2 * key)])
            elif mode == "additive":
                key = np.exp(2 * key)
            return lined(key)

        return self._kept(("key", n, mode, reduced(t.key, at)), make)

    def _value(self, at: tuple[int, ...]) -> Matrix:
        value = self.problem.value
        return self._kept(("value", reduced(value, at)), lambda: lined(entry(numpy_of(value), at).T))

    def _parameters(self, t: Term, at: tuple[int, ...], queries: slice) -> Matrix:
        p = np.ones((queries.stop - queries.start, len(t.parameters) + 2), self.dtype)
        for n, x in enumerate((*t.parameters, t.factor, t.root)):
            if x is not None:
                p[:, n] = rows_of(numpy_of(x), at, queries)[:, 0]
        return p

    def _seen(self, at: tuple[int, ...], queries: slice) -> tuple[Matrix, ...]:
        """start, stop, gap of each query, and an array of truth values where the mask is no range.

        Ranges are made once for all entries that share them.
        """
        if self.by_ranges and math.prod(self._sight) < len(self.entries):
            entry_of_mask = index(self._sight, at)
            return self._kept(("seen", queries.start, queries.stop, entry_of_mask), lambda: self._see(at, queries))
        return self._see(at, queries)

    def _see(self, at: tuple[int, ...], queries: slice) -> tuple[Matrix, ...]:
        count, keys, mask = queries.stop - queries.start, self.layout.keys, self.problem.mask
        whole = np.zeros(count, np.int64), np.full(count, keys), np.full(count, -1)
        if mask is None:
            return (*whole, np.empty((0, 0), bool))
        ranges = self._by_ranges(queries)
        if ranges is not None:
            start, stop, gap = (np.broadcast_to(entry(numpy_of(x)[..., None], at)[:, 0], count) for x in ranges)
            kept = np.clip(start, 0, keys), np.clip(stop, 0, keys), gap
            return (*(plain(x, np.int64) for x in kept), np.empty((0, 0), bool))
        low, high = mask.bounds(self.layout, queries)
        live = np.zeros((count, keys), bool)
        live[:, low:high] = entry(numpy_of(mask.tile(self.layout, queries, slice(low, high))), at)
        return whole[0] + low, whole[1] * 0 + high, whole[2], live

    def _by_ranges(self, queries: slice) -> tuple[Array, ...] | None:
        """start, stop and gap of the mask; None if it is more than that."""
        mask = self.problem.mask
        return () if mask is None else mask.ranges(self.layout, queries)

    def _bias(self, at: tuple[int, ...], queries: slice) -> Matrix:
        if self.problem.bias is None:
            return np.empty((0, 0), self.dtype)
        bias = numpy_of(self.problem.bias)
        return rows_of(bias.reshape((1,) * (2 - bias.ndim) + bias.shape), at, queries)

    def _dropout(self, at: tuple[int, ...], queries: slice) -> tuple[Any, ...]:
        p, start = self.problem.dropout, self.layout.key_start
        if not p:
            return np.empty((0, 2), np.int64), start, 0, self.dtype.type(1)
        hashes = np.stack([entry(numpy_of(h), at)[:, 0] for h in row_hashes(self.problem, queries)], axis=1)
        return hashes, start, int(p * 2**32), self.dtype.type(1 / (1 - p) if p < 1 else 0)

    def _kept(self, key: Any, make: Callable[[], Made]) -> Made:
        """What was made before under this key, or what is made now."""
        with self._making:
            if key not in self._made:
                self._made[key] = make()
            found: Made = self._made[key]
            return found


FAINT = 1e-12  # sums of kernels below are summed again by logarithms
FEW = 8  # of them are summed one by one, more with all queries of the job
FINE = 1e-18  # the largest value must not be below, so that the faintest sum of them is a number in float32
SMALL = 0.5  # |a| + |b| up to which the form for small projections is as exact as tanh
# a + b up to which (SCALE (1 + e^2a e^2b))^8 does not overflow float32; beyond 20, tanh is 1 where fractions are not
LARGE = {"float32": 9.6, "float64": 20.0}
ALONE = 35.0  # |a| and |b| up to which SCALE e^2a and e^2b are far from the ends of float32


def near(kind: str, t: Term) -> int:
    """How many features are paired together with the formula, see ``scorer``."""
    features = t.key.shape[-1]
    if t.pairing.name != "squared_distance" or not features or t.factor is not None or t.root is not None:
        return 0
    return 0 if kind == "back" and t.parameters else (features - 1) % 4 + 1 + 4 * (features > 4)


def slots(found: Iterable[Any]) -> tuple[Any, ...]:
    """As many as there are slots, the first one again where there are fewer."""
    some = tuple(found)
    return some + some[:1] * (SLOTS - len(some))


def extent(x: Matrix) -> Matrix:
    """(2, H): how far each column goes up, and down."""
    return np.stack([x.max(axis=0), -x.min(axis=0)]) if x.size else np.zeros((2, x.shape[1]), x.dtype)


def reduced(x: Array, at: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an entry in an array that may lack leading axes or have them at size 1."""
    return index(tuple(x.shape[:-2]), at)


def index(lead: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an entry among leading axes that may lack some of the problem's or have them at size 1."""
    return tuple(0 if n == 1 else i for n, i in zip(lead, at[len(at) - len(lead) :], strict=True))


def entry(x: Matrix, at: tuple[int, ...]) -> Matrix:
    """The matrix of one entry."""
    found: Matrix = x[reduced(x, at)]
    return found


def rows_of(x: Matrix, at: tuple[int, ...], queries: slice) -> Matrix:
    """These rows of one entry, or its one row, contiguous."""
    found = entry(x, at)
    return plain(found if found.shape[0] == 1 and x.shape[-2] == 1 else found[queries])


def space(loop: str, problem: Problem, dtype: Any) -> Matrix:
    """Scratch of a loop, as wide as a tile."""
    return lines(SPACE[loop], BYTES // dtype.itemsize, dtype)


def lined(x: Matrix) -> Matrix:
    """A copy whose rows begin with a cache line; the matrix itself if it is one contiguous row."""
    if x.shape[0] == 1 and x.flags.c_contiguous and x.flags.writeable:
        return x
    copy = lines(x.shape[0], x.shape[1], x.dtype)
    copy[:, : x.shape[1]] = x
    return copy


def lines(rows: int, columns: int, dtype: Any) -> Matrix:
    """Zeros, at least so many columns wide, whose rows begin with a cache line: a vector across two takes two loads."""
    line = 64 // dtype.itemsize
    wide = -(-columns // line) * line
    room = np.zeros(rows * wide + line, dtype)
    skip = -room.ctypes.data % 64 // dtype.itemsize
    return room[skip : skip + rows * wide].reshape(rows, wide)


def plain(x: Matrix, dtype: Any = None) -> Matrix:
    """Contiguous and writable, as the compiled signatures have it; a copy only where it is not."""
    return np.require(x, dtype, ("C", "W"))


def by_kernels(problem: Problem) -> bool:
    """Whether kernels can be summed as they stand, with the shift 0: one score, whose logarithm nothing changes."""
    t, *more = problem.terms
    changed = t.factor is not None or t.root is not None or problem.bias is not None
    if problem.asked != "ratio" or more or t.kernel is None or changed:
        return False
    value = numpy_of(problem.value)
    return not value.size or max(float(value.max()), -float(value.min())) >= FINE


def endless(t: Term) -> bool:
    """Whether the kernel is nowhere 0."""
    return bool(t.formula(np, np.full(1, FAR), *(np.zeros(1) for _ in t.parameters))[0] > -np.inf)


def pool(problem: Problem) -> Partial:
    run = Run(problem, kernels=by_kernels(problem))
    logarithms, tail = Run(problem), run.kernels and endless(problem.terms[0])
    forward = driver("forward", run.dtype)
    top, weight_sum = np.full(problem.rows, -np.inf, run.dtype), np.zeros(problem.rows, run.dtype)
    value_sum = np.zeros((*problem.rows, problem.value.shape[-1]), run.dtype)

    def work(place: tuple[tuple[int, ...], slice]) -> Steps:
        job = run.job(*place)
        out = tuple(x[job.at][job.queries] for x in (top, weight_sum, value_sum))
        room = space("forward", problem, run.dtype)

        def loop(job: Job, kernels: bool, into: tuple[Matrix, ...]) -> Steps:
            for edits, i, j in job.pieces():
                arrays = job.terms, job.value, *edits, *job.dropout
                forward(job.count, *job.scorers, *arrays, kernels, *into, room, i, j)
                yield

        yield from loop(job, run.kernels, out)
        if run.kernels:  # where only far keys are seen, what is lost of a kernel is kept by its logarithm
            seen = out[1] < FAINT
            faint = np.flatnonzero(seen if tail else seen & (out[1] > 0))
            again = logarithms.job(*place) if faint.size else job
            rows = [(0, len(seen))] if faint.size > FEW else [(int(i), int(i) + 1) for i in faint]
            for i, j in rows:
                into = tuple(x[i:j] for x in out)
                for x, start in zip(into, (-np.inf, 0, 0), strict=True):
                    x[...] = start
                yield from loop(again.rows(i, j), False, into)

    threads.run(work, run.places(), problem.threads)
    sums = like_of(problem, weight_sum), like_of(problem, value_sum)
    return Partial(like_of(problem, top), *spoiled(problem, sums))


def backward(problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array) -> tuple[Array, ...]:
    run = Run(problem, "fill", "back")
    loop = driver("backward", run.dtype)
    top, to_z, to_o = (plain(numpy_of(x), run.dtype) for x in (maximum, grad_weight_sum, grad_value_sum))
    grads = [np.zeros(tuple(a.shape), run.dtype) for a in problem.arrays]
    places = [len(t.arrays) for t in problem.terms]

    def work(part: tuple[tuple[int, ...], list[slice]]) -> Steps:
        keys = problem.layout.keys
        to_keys = [lines(t.key.shape[-1], keys, run.dtype) for t in problem.terms]
        to_value = lines(problem.value.shape[-1], keys, run.dtype)
        rows, room = [], space("backward", problem, run.dtype)
        at, blocks = part
        for job in (run.job(at, queries) for queries in blocks):
            count = job.queries.stop - job.queries.start
            to_rows = [
                (np.zeros_like(q), np.zeros((len(p), n - 2), run.dtype))  # parameters, and the factor if there is one
                for (q, _, p), n in zip(job.terms, places, strict=False)
            ]
            to_bias = np.zeros((count, problem.layout.keys) if problem.bias is not None else (0, 0), run.dtype)
            to_terms = tuple((q, k, p) for (q, p), k in zip(to_rows, to_keys, strict=True))
            out = tuple(x[job.at][job.queries] for x in (top, to_z, to_o))
            arrays = job.terms, slots(to_terms), job.value
            for edits, i, j in job.pieces():
                loop(job.count, *job.scorers, *arrays, *edits, *job.dropout, *out, to_value, to_bias, room, i, j)
                yield
            rows.append((job.queries, to_rows, _reduced(problem, to_bias)))
        return at, to_keys, to_value, rows

    def add(done: Any) -> None:  # in order, so that sums are the same for any number of threads
        at, to_keys, to_value, rows = done
        grads[sum(places)][reduced(problem.value, at)] += to_value.T[: problem.layout.keys]
        first = 0
        for n, t in enumerate(problem.terms):
            grads[first + 1][reduced(t.key, at)] += to_keys[n].T[: problem.layout.keys]
            for queries, to_rows, _ in rows:
                to_query, to_parameters = to_rows[n]
                if t.pairing.name == "offset":
                    axes = t.key.shape[-1]
                    to_query = np.delete(to_query, range(axes, 2 * axes), axis=1)
                add_rows(grads[first], at, queries, to_query)
                for m in range(places[n] - 2):  # the factor, if there is one, stands behind the parameters
                    add_rows(grads[first + 2 + m], at, queries, to_parameters[:, m : m + 1])
            first += places[n]
        if problem.bias is not None:
            for queries, _, to_bias in rows:
                wide = grads[-1].reshape((1,) * (2 - grads[-1].ndim) + grads[-1].shape)
                add_rows(wide, at, queries, to_bias)

    threads.run(work, run.parts(), problem.threads, then=add)
    return tuple(like_of(problem, g) for g in grads)


def _reduced(problem: Problem, to_bias: Matrix) -> Matrix | None:
    """Summed over the axes along which the bias was broadcast."""
    if problem.bias is None:
        return None
    shape = (1,) * (2 - problem.bias.ndim) + tuple(problem.bias.shape)
    to_bias = to_bias.sum(axis=0, keepdims=True) if shape[-2] == 1 else to_bias
    return to_bias.sum(axis=1, keepdims=True) if shape[-1] == 1 else to_bias


def weights(problem: Problem) -> Array:
    partial = pool(problem)
    run = Run(problem)
    out = np.empty((*problem.rows, problem.layout.keys), run.dtype)
    top, z = numpy_of(partial.max), numpy_of(partial.weight_sum)
    loop = driver("scores", run.dtype)

    def work(place: tuple[tuple[int, ...], slice]) -> Steps:
        job = run.job(*place)
        room = space("scores", problem, run.dtype)
        for i, j in job.steps(problem.layout.keys):
            here = job.rows(i, j)
            s, m = out[here.at][here.queries], top[here.at][here.queries]
            loop(here.count, *here.scorers, here.terms, here.value, *here.edits, s, room, 0, len(s))
            gone = s == -np.inf
            s -= np.where(m == -np.inf, 0.0, m)[:, None]
            np.exp(s, out=s)
            total = z[here.at][here.queries][:, None]
            s /= np.where(total == 0, 1, total)
            s[gone] = 0  # also where the row's weight sum is NaN
            yield

    threads.run(work, run.places(), problem.threads)
    return like_of(problem, out)


def top(problem: Problem, n: int) -> tuple[Array, Array]:
    partial = pool(problem)
    run, keys = Run(problem), problem.layout.keys
    n = min(n, keys)
    weights, index = np.zeros((*problem.rows, n), run.dtype), np.full((*problem.rows, n), -1)
    top, z = numpy_of(partial.max), numpy_of(partial.weight_sum)
    loop = driver("scores", run.dtype)

    def work(place: tuple[tuple[int, ...], slice]) -> Steps:
        job, room = run.job(*place), space("scores", problem, run.dtype)
        count, tall = job.queries.stop - job.queries.start, max(min(PAIRS // max(keys, 1), TALL), 1)
        for i in range(0, count, tall):
            here = job.rows(i, min(i + tall, count))
            rows = here.queries
            s = np.empty((rows.stop - rows.start, keys), run.dtype)
            loop(here.count, *here.scorers, here.terms, here.value, *here.edits, s, room, 0, len(s))
            order = best(s, n)
            found = np.take_along_axis(s, order, -1)
            live = found > -np.inf
            m, total = top[job.at][rows][:, None], z[job.at][rows][:, None]
            w = np.exp(found - np.where(m == -np.inf, 0, m)) / np.where(total == 0, 1, total)
            weights[job.at][rows], index[job.at][rows] = np.where(live, w, 0), np.where(live, order, -1)
            yield

    threads.run(work, run.places(), problem.threads)
    return like_of(problem, weights), like_of(problem, index)


def best(s: Matrix, n: int) -> Matrix:
    """The places of the n largest entries of each row, descending, ties by lower index."""
    keys = s.shape[-1]
    if n < keys // 4:  # all that is not smaller than the n-th largest, and a stable sort of these few
        least = np.partition(s, keys - n, axis=-1)[:, keys - n, None]
        rows = []
        for row, edge in zip(s, least[:, 0], strict=True):
            some = np.flatnonzero(row >= edge)
            rows.append(some[np.argsort(-row[some], kind="stable")[:n]])
        return np.stack(rows)
    return np.argsort(-s, axis=-1, kind="stable")[:, :n]


def add_rows(into: Matrix, at: tuple[int, ...], queries: slice, rows: Matrix) -> None:
    """Adds some queries' rows to an array that may have one row for all."""
    one = into.shape[-2] == 1
    found = into[reduced(into, at)]
    if one:
        found += rows.sum(axis=0, keepdims=True)
    else:
        found[queries] += rows
