"""The bandwidths of least criterion: bounded, in their logarithms, from several starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.optimize import Bounds, minimize, minimize_scalar, newton, toms748

from regard.estimators.bandwidths import (
    compact,
    deviations,
    leaves,
    own_bandwidth,
    parts,
    upper_ends,
    with_bandwidth,
)
from regard.estimators.binned import binned_fits, narrowest, windowed_fits
from regard.estimators.criteria import CRITERIA, REFUSED, Criterion, Loss
from regard.estimators.memory import Floats, Memory
from regard.estimators.neighbours import with_neighbours
from regard.estimators.pairs import Pairs, supported
from regard.estimators.rows import Rows
from regard.scores.base import Kernel, Score

MANY = 100_000  # rows on a line, whose last steps go by values alone
BRACKET = 0.1  # in log h, around where a look at all rows on nodes was lowest
STEP = 0.2  # of the grid in log h: narrower dips than that are rare
LOOK, END = 4e5, 4e9  # pairs times features that one look of a wide search may cost, and its last descent
SLOPES = 2.5  # times as many where slopes are fitted: few rows say too little of these
ROUGH = 1e-5  # the relative change of a step that ends a first descent
NEAR = 0.05  # of the lowest point of a first look, in log h
SECANT = 1e-6  # a step of a secant after which the next one is beyond all that matters: their errors multiply
LINE = 4000  # rows whose errors are looked at where all rows are seen on nodes
FEW = 2000  # rows, up to which all pairs in NumPy are the fastest


@dataclass(frozen=True, eq=False)
class Variables:
    """What a search varies: logarithms of lengths, in standard deviations of their features, then all other numbers."""

    score: Score
    fixed: Floats  # (D,) the bandwidths that are not varied
    lengths: Any  # positions of the features that have a length
    spread: Floats  # the standard deviations of these
    others: Any  # positions of the features whose bandwidth has an interval of its own
    low: Floats
    high: Floats
    rows: Rows
    side: str = ""  # "query" or "key": lengths are numbers of their neighbours
    own: bool = False

    @staticmethod
    def of(score: Score, rows: Rows, shared: bool, side: str = "", own: bool = False) -> Variables:
        """A length lies between half the smallest gap and 50 times the range; a constant feature's is 1.

        A number of neighbours lies between 1 and all rows but one.
        """
        d = rows.X.shape[1]
        upper = upper_ends(score, d)
        varies = np.ptp(rows.X, axis=0) > 0
        lengths, others = np.flatnonzero(np.isinf(upper) & varies), np.flatnonzero(np.isfinite(upper) & varies)
        X = rows.X[:, lengths]
        spread = deviations(X, rows.count)
        low = np.log([np.diff(np.unique(x)).min() / 2 for x in X.T] / spread)
        high = np.log(50 * np.ptp(X, axis=0) / spread)
        if side:
            spread = np.ones_like(spread)
            low, high = np.zeros_like(low), np.full_like(high, math.log(max(rows.count.sum() - 1, 1)))
        if shared and lengths.size:
            low, high = low.min(keepdims=True), high.max(keepdims=True)
        ends = np.concatenate([low, 1e-6 * upper[others]]), np.concatenate([high, upper[others]])
        fixed = np.where(np.isinf(upper), 1.0, own_bandwidth(score, d))
        return Variables(score, fixed, lengths, spread, others, *ends, rows, side, own)

    @property
    def logarithms(self) -> int:
        """How many of the variables are logarithms."""
        return int(self.low.size - self.others.size)

    def bandwidth(self, t: Floats) -> Floats:
        """(D,) from the variables."""
        h = self.fixed.copy()
        h[self.lengths] = self.spread * np.exp(t[: self.logarithms])
        h[self.others] = t[self.logarithms :]
        if self.side:
            h[self.lengths] = np.round(h[self.lengths])
        return h

    def score_at(self, t: Floats) -> Score:
        """The score with these bandwidths."""
        h = self.bandwidth(t)
        score = with_bandwidth(self.score, h)
        return with_neighbours(score, self.rows, h, self.side, self.own) if self.side else score

    def ends(self, t: Floats) -> tuple[list[int], list[int]]:
        """The features whose bandwidths are at their narrow end, and at their wide one."""
        low, high = t - self.low < 1e-6, self.high - t < 1e-6
        n = self.logarithms
        of = [list(self.lengths)] if n < len(self.lengths) else [[c] for c in self.lengths]
        features = [*of, *([c] for c in self.others)]
        return tuple([int(c) for at, cs in zip(end, features, strict=True) if at for c in cs] for end in (low, high))  # type: ignore[return-value]

    def pull_back(self, t: Floats, grads: dict[str, Floats]) -> Floats:
        """The gradient to the variables from those to the parameters of the score."""
        h = self.bandwidth(t)
        to_h = np.zeros(h.size)
        for name, _, columns in leaves(self.score, list(range(h.size))):
            to_h[columns] += grads[name]
        to_log = to_h[self.lengths] * h[self.lengths]
        if self.logarithms < to_log.size:
            to_log = to_log.sum(keepdims=True)
        return np.concatenate([to_log, to_h[self.others]])


class Objective(Protocol):
    """A criterion by the variables of a search."""

    rows: Rows
    variables: Variables
    smooth: bool  # nothing but descents is needed
    sloped: bool  # there is a gradient
    evaluations: int

    def __call__(self, t: Floats) -> float: ...

    def slope(self, t: Floats) -> tuple[float, Floats]:
        """The criterion and its gradient."""
        ...


@dataclass(eq=False)
class Pooled:
    """A criterion of Nadaraya-Watson fits by the front door: any score, any number of rows.

    ``REFUSED`` where a row is left without any key and ``outside`` does not say what it gets. The own shares, if asked
    for, are ``w_i exp(-log_weight_sum)``: a kernel's score of equal rows is 0. They have no gradient here.
    """

    rows: Rows
    memory: Memory
    variables: Variables
    loss: Loss
    smooth: bool = True
    sloped: bool = True
    evaluations: int = 0
    known: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, t: Floats) -> float:
        h = self.variables.bandwidth(t).tobytes()
        if h not in self.known:
            self.evaluations += 1
            self.known[h] = self._value(self.variables.score_at(t))
        return self.known[h]

    def _value(self, score: Score) -> float:
        if self.memory.leaves_out:
            return self.loss(self.memory.pool(score, self.rows.X), np.zeros(len(self.rows.X)))[0]
        fit, log_weight_sum = self.memory.pool_with_sum(score, self.rows.X)
        return self.loss(fit, self.rows.weight * np.exp(-log_weight_sum))[0]

    def slope(self, t: Floats) -> tuple[float, Floats]:
        self.evaluations += 1
        none = np.zeros(len(self.rows.X))
        loss = self.loss
        value, grads = self.memory.gradients(
            self.variables.score_at(t), self.rows.X, lambda pooled: loss(pooled, none)[:2]
        )
        return value, self.variables.pull_back(t, grads)


@dataclass(eq=False)
class Paired:
    """A criterion of local polynomial fits of few rows, with the gradient of whatever it asks for."""

    rows: Rows
    memory: Memory  # what a row gets outside all supports
    variables: Variables
    criterion: Criterion
    pairs: Pairs
    smooth: bool
    sloped: bool = True
    evaluations: int = 0
    known: dict[bytes, float] = field(default_factory=dict)
    parts: dict[int, Loss] = field(default_factory=dict)

    @cached_property
    def loss(self) -> Loss:
        return self.criterion.loss(self.rows)

    def __call__(self, t: Floats) -> float:
        if t.tobytes() in self.known:
            return self.known[t.tobytes()]
        self.evaluations += 1
        h = self.variables.bandwidth(t)
        fit, own, _ = self.pairs.fit(h, keep=False)
        self.known[t.tobytes()] = self.loss(self._filled(t, fit), own)[0]
        return self.known[t.tobytes()]

    def slope(self, t: Floats) -> tuple[float, Floats]:
        self.evaluations += 1
        h = self.variables.bandwidth(t)
        found = self._by_blocks(h) if self.pairs.leaves_out else None
        if found is not None:
            self.known[t.tobytes()] = found[0]
            return found[0], self.variables.pull_back(t, found[1])
        fit, own, seen = self.pairs.fit(h)
        value, to_fit, to_own = self.loss(self._filled(t, fit), own)
        self.known[t.tobytes()] = value
        if value == REFUSED:
            return value, np.zeros_like(t)
        grads = self.pairs.backward(h, seen, to_fit, None if self.pairs.leaves_out else to_own)
        return value, self.variables.pull_back(t, grads)

    def _by_blocks(self, h: Floats) -> tuple[float, dict[str, Floats]] | None:
        """The criterion and its gradient, block by block while it is in the cache; None if it is not so easy.

        The criterion of all rows is the mean of those of the blocks, by their weights, if they were left out.
        """
        value, grads, weight = 0.0, dict[str, Floats](), self.rows.weight
        to_fit = np.zeros_like(self.rows.value)
        for seen in self.pairs.blocks(h):
            at = seen.block.at
            if at.start not in self.parts:
                self.parts[at.start] = self.criterion.loss(self.rows.at(np.arange(at.start, at.stop)))
            share = weight[at].sum() / weight.sum()
            found, to_fit[at], _ = self.parts[at.start](seen.fit, seen.own)
            if found == REFUSED:
                return None
            to_fit[at] *= share
            value += share * found
            for name, grad in self.pairs.backward(h, [seen], to_fit, None).items():
                grads[name] = grads[name] + grad if name in grads else grad
        return value, grads

    def _filled(self, t: Floats, fit: Floats) -> Floats:
        empty = np.isnan(fit).any(axis=1)
        if not empty.any() or self.memory.outside == "nan":
            return fit
        return self.memory.filled(self.variables.score_at(t), self.rows.X, fit, empty)


class Smoother(Protocol):
    """Fits of the rows that it was made of."""

    def fit(self, query: Floats) -> Floats:
        """(Q, V)"""
        ...

    def leave_one_out(self) -> Floats:
        """(n, V): what each row gets from all the others."""
        ...

    def own(self) -> Floats:
        """(n,): the share that one count of each row has in its own fit."""
        ...


@dataclass(eq=False)
class Smoothed:
    """A criterion of whatever smoother a score makes of the rows, by its fits and own shares; without gradients.

    f_{-i} = (f_i - l_i v_i) / (1 - l_i)
    """

    rows: Rows
    variables: Variables
    criterion: Criterion
    smoother: Callable[[Score, Rows], Smoother]
    smooth: bool = False
    sloped: bool = False
    evaluations: int = 0
    known: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, t: Floats) -> float:
        key = self.variables.bandwidth(t).tobytes()
        if key not in self.known:
            self.evaluations += 1
            made = self.smoother(self.variables.score_at(t), self.rows)
            if self.criterion.leaves_out:
                found = made.leave_one_out(), np.zeros(len(self.rows.X))
            else:
                found = made.fit(self.rows.X), self.rows.count * made.own()
            self.known[key] = self.criterion.loss(self.rows)(*found)[0]
        return self.known[key]

    def slope(self, t: Floats) -> tuple[float, Floats]:
        raise NotImplementedError("a smoother has no gradients.")


@dataclass(frozen=True)
class Selection:
    """How bandwidths were found.

    Parameters
    ----------
    criterion : the name, or the rule
    value : what it came to, in the units of the targets; NaN for a rule that needs no search
    bandwidth : one per feature
    names : of the features
    starts : for each descent, the criterion before and after it
    evaluations : how often the criterion was computed, of all rows or of some
    converged : whether the last descent ended by itself
    lower, upper : the features whose bandwidth ended at the narrow or the wide end of what it may be; those of
        ``upper`` are smoothed out: they do not matter to the fit

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x = np.random.default_rng(0).uniform(size=(100, 2))
    >>> model = rg.NadarayaWatsonRegressor(random_state=0).fit(x, np.sin(6 * x[:, 0]))
    >>> model.selection_.converged, model.selection_.upper
    (True, ('1',))
    """

    criterion: str
    value: float
    bandwidth: tuple[float, ...]
    names: tuple[str, ...] = ()
    starts: tuple[tuple[float, float], ...] = ()
    evaluations: int = 0
    converged: bool = True
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()

    @staticmethod
    def of(rule: str, bandwidth: Floats, names: Sequence[str] | None) -> Selection:
        """What a rule without a search says."""
        labels = tuple(map(str, range(len(bandwidth)) if names is None else names))
        return Selection(rule, math.nan, tuple(map(float, bandwidth)), labels)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{n} {h:.6g}" for n, h in zip(self.names, self.bandwidth, strict=False))
        if not self.evaluations:
            return f"bandwidths by {self.criterion!r}: {pairs}"
        lines = [
            f"bandwidths by {self.criterion!r}: {pairs}",
            f"  criterion {self.value:.8g}, after {self.evaluations} evaluations and {len(self.starts)} starts"
            + ("" if self.converged else "; the last descent was cut short"),
        ]
        if self.starts:
            lines.append("  starts reached " + ", ".join(f"{after:.6g}" for _, after in self.starts))
        if self.lower:
            lines.append(f"  at the narrow end: {', '.join(self.lower)}")
        if self.upper:
            lines.append(f"  smoothed out: {', '.join(self.upper)}")
        return "\n".join(lines)


@dataclass
class Log:
    """What happens in a search."""

    starts: list[tuple[float, float]] = field(default_factory=list)
    converged: bool = True


def search(
    score: Score,
    rows: Rows,
    *,
    criterion: str,
    outside: str,
    engine: str,
    threads: int | None,
    random: np.random.RandomState,
    names: Sequence[str] | None = None,
    degree: int = 0,
    variance: float = 1.0,
    side: str = "",
    smoother: Callable[[Score, Rows], Smoother] | None = None,
) -> tuple[Floats, Selection]:
    """(D,): the bandwidths of the score that make the criterion of ``CRITERIA`` least, and how they were found.

    One variable: a grid, then each of its deep dips. Several: L-BFGS-B with gradients from several starts, and from
    wherever a look along one variable finds less; for kernels with a support, where the criterion has edges and
    steps, Powell's method after it. Of many rows, the wide search sees some, the last steps all. ``degree`` is that of
    the local polynomials, ``variance`` what the squared values were divided by. With a ``side``, "query" or "key",
    lengths are numbers of its neighbours. ``smoother`` makes the fits where pairs cannot: of many rows on a line, and
    of scores that are no product of kernels.
    """
    named = CRITERIA[criterion]
    variables = Variables.of(score, rows, named.shared, side, named.leaves_out)
    d = rows.X.shape[1]
    labels = tuple(map(str, range(d) if names is None else names))
    if not variables.low.size:
        return variables.fixed, Selection.of(criterion, variables.fixed, names)

    def objective(of: Rows, dtype: Any = np.float64) -> Objective:
        return _objective(score, of, variables, named, outside, engine, threads, degree, dtype, smoother)

    some = rows.some(max(int(math.sqrt(LOOK * (SLOPES if degree else 1) / d)), 150), random)
    whole = objective(rows)
    wide = whole if some is rows else objective(some)
    look = objective(some, np.float32) if isinstance(wide, Paired) and wide.smooth and not degree else wide
    start = np.full(variables.low.size, -math.log(len(rows.X)) / (d + 4))
    start[variables.logarithms :] = 0.3 * variables.high[variables.logarithms :]
    start = np.clip(start, variables.low, variables.high)
    log = Log()
    if start.size == 1:
        line = None if degree else Line.of(score, rows, variables, named)
        best = _line(look, whole, line, start, log)
    else:
        best = _field(look, wide, whole, start, random, log)
    value = whole(best)
    if value == REFUSED:
        raise ValueError(_inadmissible(named, outside))
    h = variables.bandwidth(best)
    lower, upper = variables.ends(best)
    found = Selection(
        criterion,
        named.scale(value, variance),
        tuple(map(float, h)),
        labels,
        tuple((named.scale(a, variance), named.scale(b, variance)) for a, b in log.starts),
        sum({id(o): o.evaluations for o in (look, wide, whole)}.values()),
        log.converged,
        tuple(labels[c] for c in lower),
        tuple(labels[c] for c in upper),
    )
    return h, found


def _inadmissible(criterion: Criterion, outside: str) -> str:
    if not criterion.leaves_out:
        return (
            "no bandwidth leaves the fit fewer degrees of freedom than there are rows: the criterion needs more rows. "
            'Use bandwidth="loo", or give `bandwidth` as a number.'
        )
    return (
        f'no bandwidth leaves every row another one within the support, and outside="{outside}" gives such rows '
        'nothing. Set `outside` to "nearest" or "mean", or give `bandwidth` as a number.'
    )


def _objective(
    score: Score,
    rows: Rows,
    variables: Variables,
    criterion: Criterion,
    outside: str,
    engine: str,
    threads: int | None,
    degree: int,
    dtype: Any,
    smoother: Callable[[Score, Rows], Smoother] | None,
) -> Objective:
    """By all pairs where that is the fastest, or the only way to the gradient; else by the front door."""
    d = rows.X.shape[1]
    outside = "nan" if outside == "error" else outside
    loss, smooth = criterion.loss(rows), not compact(score, d)
    memory = (rows.leaving_one_out if criterion.leaves_out else rows.seeing_all)(outside, engine, threads)
    own = not criterion.leaves_out
    paired = not variables.side and supported(score, d)
    if smoother is not None and degree and (not paired or (len(rows.X) > FEW and variables.low.size == 1)):
        return Smoothed(rows, variables, criterion, smoother)
    if paired and (degree or own or (engine == "auto" and len(rows.X) <= FEW)):
        spread = deviations(rows.X, rows.count)
        pairs = Pairs(rows, score, np.where(spread > 0, spread, 1.0), not own, degree, dtype)
        return Paired(rows, memory, variables, criterion, pairs, smooth)
    if degree:
        raise ValueError(
            f"a search for the bandwidths of local polynomials needs kernels with a bandwidth; got {score!r}. "
            "Give `bandwidth` as a number, or None."
        )
    sloped = not own and not variables.side
    return Pooled(rows, memory, variables, loss, smooth and sloped, sloped)


def _line(look: Objective, whole: Objective, line: Line | None, start: Floats, log: Log) -> Floats:
    """One variable: the grid finds the dips, and those that are nearly the lowest are followed to the ground."""
    variables = whole.variables
    low, high = float(variables.low[0]), float(variables.high[0])
    points = int(min(max(math.ceil((high - low) / STEP), 50), 200)) + 1
    grid = np.linspace(low, high, points)
    found = np.array([look(np.array([t])) for t in grid]) if line is None else line.criteria(grid, variables)
    if np.ptp(found) <= 1e-12 * np.abs(found).max():
        return start  # nothing to choose from
    edged = np.concatenate([[math.inf], found, [math.inf]])
    least = found.min()
    deep = (found <= edged[:-2]) & (found <= edged[2:]) & (found - least <= 0.1 * max(abs(least), _depth(found)))
    dips: Any = np.flatnonzero(deep)
    dips = dips[np.argsort(found[dips], kind="stable")]
    # where only some rows were seen, all of them may want another width
    few = look.rows is whole.rows
    reach, dips, digits = (1 if few or line is not None else 4), (dips[:5] if few else dips[:1]), (9 if few else 5)
    ground = []
    for dip in dips:
        ends = float(grid[max(dip - reach, 0)]), float(grid[min(dip + reach, points - 1)])
        near = None
        if line is not None:
            lowest, curvature = line.lowest(np.linspace(*ends, 17), variables)
            near = (_by_values if len(whole.rows.X) > MANY else _nearby)(whole, lowest, curvature)
        ground.append(_ground(whole, *ends, digits) if near is None else near)
        log.starts.append((float(found[dip]), whole(ground[-1])))
    return min(ground, key=whole)


@dataclass(frozen=True, eq=False)
class Line:
    """Rows on a line, in their order there, seen by all rows on nodes: where kernels are wide, a look costs little."""

    kernel: Kernel
    column: int
    rows: Rows
    criterion: Criterion

    @staticmethod
    def of(score: Score, rows: Rows, variables: Variables, criterion: Criterion) -> Line | None:
        found = list(parts(score, list(range(rows.X.shape[1]))))
        part = found[0] if len(found) == 1 else None
        if part is None or not isinstance(part.leaf, Kernel) or part.leaf.tail == "compact" or np.any(part.factor != 1):
            return None
        if variables.lengths.size != 1 or not criterion.leaves_out or variables.side:
            return None
        column = int(variables.lengths[0])
        return Line(part.leaf, column, rows.at(np.argsort(rows.X[:, column], kind="stable")), criterion)

    def lowest(self, grid: Floats, variables: Variables) -> tuple[float, float]:
        """Where a parabola through the least of these points and its neighbours is lowest, and its curvature."""
        found, step = self.criteria(grid, variables), float(grid[1] - grid[0])
        n = int(np.argmin(found))
        if not 0 < n < len(grid) - 1:
            return float(grid[n]), 0.0
        a, b, c = found[n - 1 : n + 2]
        curvature = max(float(a - 2 * b + c), 1e-300)
        return float(grid[n] + step * (a - c) / (2 * curvature)), curvature / step**2

    def criteria(self, grid: Floats, variables: Variables) -> Floats:
        """At these values of the variable, nearly."""
        bandwidths = np.array([variables.bandwidth(np.array([t]))[self.column] for t in grid])
        rows, x = self.rows, self.rows.X[:, self.column]
        at = np.linspace(0, len(x) - 1, min(len(x), LINE)).astype(int)
        loss, none = self.criterion.loss(rows.at(at)), np.zeros(len(at))
        own = rows.weight * np.maximum(rows.count - 1, 0) / rows.count
        wide = bandwidths >= narrowest(x)
        found = np.empty(len(bandwidths))
        for seen, fits in ((wide, binned_fits), (~wide, windowed_fits)):
            given = self.kernel, x, rows.value, rows.weight, own, at, bandwidths[seen]
            found[seen] = [loss(fit, none)[0] for fit in fits(*given)]
        return found


def _depth(found: Floats) -> float:
    """The range of what is admissible: a criterion may be near 0, or below."""
    return float(np.ptp(found[found < REFUSED])) if np.any(found < REFUSED) else 0.0


def _nearby(criterion: Objective, t: float, curvature: float) -> Floats | None:
    """The minimum by a few secants of the slope, where t and the curvature there are nearly right; else None."""
    if not criterion.smooth or not curvature > 0:
        return None
    low, high = float(criterion.variables.low[0]), float(criterion.variables.high[0])
    slopes: dict[float, float] = {}

    def slope(at: float) -> float:
        if at not in slopes:
            slopes[at] = float(criterion.slope(np.array([at]))[1][0])
        return slopes[at]

    other = t - slope(t) / curvature
    if other == t:
        return np.array([t])
    if not (low <= t <= high and low <= other <= high and abs(other - t) < NEAR):
        return None
    if not (slope(other) - slope(t)) * (other - t) > 0:  # no valley
        return None
    found, how = newton(slope, t, x1=other, tol=SECANT, maxiter=6, full_output=True, disp=False)
    return np.array([found]) if how.converged and abs(found - t) < NEAR else None


def _by_values(criterion: Objective, t: float, curvature: float) -> Floats | None:
    """The same without slopes, which cost as much as five values where sums over rows are linear in their number."""
    if not criterion.smooth or not curvature > 0:
        return None
    low, high = float(criterion.variables.low[0]), float(criterion.variables.high[0])

    def value(at: float) -> float:
        return criterion(np.array([min(max(at, low), high)]))

    found = minimize_scalar(value, bracket=(t - BRACKET, t), method="brent", options={"xtol": 1e-5})
    if not low < found.x < high:
        return None
    return np.array([found.x])


def _ground(criterion: Objective, low: float, high: float, digits: int) -> Floats:
    """The least of the criterion between these ends."""
    if criterion.smooth:
        slopes: dict[float, float] = {}

        def slope(t: float) -> float:
            if t not in slopes:
                slopes[t] = float(criterion.slope(np.array([t]))[1][0])
            return slopes[t]

        step, least, most = high - low, float(criterion.variables.low[0]), float(criterion.variables.high[0])
        low, high = max(low, least), min(high, most)
        for _ in range(20):  # the look was not quite right, perhaps
            step *= 2
            if slope(low) > 0 and low > least:
                low, high = max(low - step, least), low
            elif slope(high) < 0 and high < most:
                low, high = high, min(high + step, most)
            else:
                break
        if slope(low) < 0 < slope(high):  # the root of the slope has twice the digits of the least value
            return np.array([toms748(slope, low, high, xtol=10.0**-digits)])
    if criterion.variables.side:  # whole numbers
        every = np.arange(round(math.exp(low)), round(math.exp(high)) + 1)
        few = every[np.linspace(0, len(every) - 1, min(len(every), 64)).astype(int)]
        return min((np.log([float(k)]) for k in few), key=criterion)
    options = {"xatol": 10.0 ** -min(digits, 8)}
    inside = minimize_scalar(lambda t: criterion(np.array([t])), bounds=(low, high), options=options).x
    return min((np.array([t]) for t in (low, inside, high)), key=criterion)


def _field(
    look: Objective, wide: Objective, whole: Objective, start: Floats, random: np.random.RandomState, log: Log
) -> Floats:
    """Several variables: descents from several starts, then from wherever a look along one variable finds less."""
    low, high = wide.variables.low, wide.variables.high
    lengths = np.arange(start.size) < wide.variables.logarithms
    along = [np.clip(start + f * lengths, low, high) for f in np.arange(-3.0, 4.5, 0.5)]
    starts = _dips(along, look)[:2] if wide.smooth else sorted(along, key=look)[:2]
    left, right = (np.where(lengths, np.clip(starts[0] + f, low, high), end) for f, end in ((-2, low), (2, high)))
    starts += list(left + (right - left) * random.uniform(size=((3 if wide.smooth else 4) - len(starts), start.size)))
    starts.append(_look_along(look, high))  # one feature matters, and no other
    best = min((_descend(look, t, ROUGH, log) for t in starts), key=wide)
    for _ in range(5):
        least = _look_along(look, best)
        if not look(least) < _worth(look(best), 1e-3):
            break
        best = _descend(look, least, ROUGH, log)
    if not wide.smooth:
        best = _search_lines(wide, best)
    if whole.variables.side:
        return _search_steps(whole, best)
    pairs = len(whole.rows.X) ** 2 * whole.rows.X.shape[1]
    steps = int(min(max(END / pairs, 20), 200))
    best = _descend(whole, best, 1e-13, log, steps)
    pushed = _smooth_out(whole, best)
    return best if pushed is best else _descend(whole, pushed, 1e-13, log, steps)


def _dips(along: list[Floats], criterion: Objective) -> list[Floats]:
    """Of points along a line, those that are not above their neighbours, the lowest first."""
    found = np.array([math.inf, *map(criterion, along), math.inf])
    deep = np.flatnonzero((found[1:-1] <= found[:-2]) & (found[1:-1] <= found[2:]))
    return [along[n] for n in deep[np.argsort(found[1:-1][deep], kind="stable")]]


def _worth(value: float, part: float) -> float:
    """What is less than the value by a part of it."""
    return value - part * max(abs(value), 1e-3)


def _smooth_out(criterion: Objective, t: Floats) -> Floats:
    """Each variable at its wide end, where that costs nothing."""
    value, high = criterion(t), criterion.variables.high
    for n in np.argsort(high - t):
        there = t.copy()
        there[n] = high[n]
        if there[n] > t[n] and criterion(there) <= value + 1e-9 * abs(value):
            t, value = there, criterion(there)
    return t


def _look_along(criterion: Objective, t: Floats) -> Floats:
    """The least of some points that differ from this one in one variable."""
    low, high = criterion.variables.low, criterion.variables.high
    there = np.linspace(0, 1, min(max(200 // t.size, 3), 10 if criterion.smooth else 13))
    return min(
        (np.where(i, low + f * (high - low), t) for i in np.eye(t.size, dtype=bool) for f in there), key=criterion
    )


def _descend(criterion: Objective, start: Floats, ftol: float, log: Log, steps: int = 200) -> Floats:
    """A local minimum near the start, by its gradient, to a relative change of ``ftol`` in one step."""
    low, high = criterion.variables.low, criterion.variables.high
    before = criterion(start)
    if not criterion.sloped:
        return start
    options = {"maxiter": steps, "ftol": ftol, "gtol": 1e-9}
    bounds: Any = Bounds(low, high)
    found = minimize(criterion.slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    best: Floats = min(start, np.clip(found.x, low, high), key=criterion)
    log.starts.append((before, criterion(best)))
    log.converged = found.nit < steps
    return best


def _search_steps(criterion: Objective, start: Floats) -> Floats:
    """A point that no step of one whole number improves."""
    v, best = criterion.variables, start
    for _ in range(20):
        near = []
        for n, t in np.ndenumerate(best[: v.logarithms]):
            for step in (-3, -2, -1, 1, 2, 3):
                there = best.copy()
                there[n] = np.clip(math.log(max(round(math.exp(t)) + step, 1)), v.low[n], v.high[n])
                near.append(there)
        least = min(near, key=criterion)
        if not criterion(least) < criterion(best):
            break
        best = least
    return best


def _search_lines(criterion: Objective, start: Floats) -> Floats:
    """A local minimum near the start, without gradients."""
    low, high = criterion.variables.low, criterion.variables.high
    options = {"maxiter": 3, "xtol": 1e-2, "ftol": 1e-4}
    bounds: Any = Bounds(low, high)
    found = minimize(criterion, start, method="Powell", bounds=bounds, options=options).x
    return min(start, np.clip(found, low, high), key=criterion)
