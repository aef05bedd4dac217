"""From a kernel and data to bandwidths: where a score holds them, one number per feature, and rules of thumb."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import quad

from regard.estimators.columns import Columns
from regard.estimators.memory import Floats
from regard.scores import Gaussian, kernels, named
from regard.scores.base import Kernel, Leaf, On, Scaled, Score, Sum, snake_case


def as_score(
    kernel: Any, features: int, names: Sequence[str] | None = None, columns: Columns | None = None, rows: float = 1.0
) -> Score:
    """The score that ``kernel`` means: a name, a score, or a product of both, a dictionary by column.

    A name is the kernel of the columns of numbers; beside it, a column of categories gets the Aitchison-Aitken kernel,
    an ordered one that of Wang and van Ryzin. ``rows``: how many there are.
    """
    if isinstance(kernel, Score):
        kernel.check(features, features)
        return kernel
    if isinstance(kernel, str):
        if kernel not in kernels():
            raise ValueError(
                f"unknown `kernel` {kernel!r}; the known ones are {', '.join(kernels())}. Or give a score."
            )
        if columns is None:
            return named(kernel)
        numbers = [c for c, column in enumerate(columns.columns) if column is None]
        categories = [c for c in range(features) if c not in numbers]
        found = [named(kernel).on(numbers)] if numbers else []
        found += [_of_categories(None, columns.columns[c], features, rows).on([c]) for c in categories]
        return found[0] if len(found) == 1 else Sum(tuple(found))
    if isinstance(kernel, Mapping) and kernel:
        found = []
        for name, one in kernel.items():
            c = _position(name, features, names)
            column = None if columns is None else columns.columns[c]
            known = isinstance(one, str) and column is not None
            found.append((_of_categories(one, column, features, rows) if known else as_score(one, 1)).on([c]))
        return found[0] if len(found) == 1 else Sum(tuple(found))
    raise TypeError(
        "`kernel` must be the name of a kernel, a score such as regard.Gaussian(1.0), or a dictionary from columns to "
        f"these; got {kernel!r}."
    )


def _of_categories(name: str | None, column: Any, features: int, rows: float) -> Score:
    """The kernel of a column of categories, by name or by what kind it is.

    Its number is ``rows^(-2 / (4 + features))`` of the largest, the rate of the best one: Li & Racine (2007), section
    4.1. A rule of thumb leaves it so.
    """
    known = ("aitchison_aitken", "li_racine") if column.kind == "unordered" else ("wang_van_ryzin", "ordered_li_racine")
    name = known[0] if name is None else name
    if name not in known:
        raise ValueError(
            f"column {column.name!r} is {column.kind}: its kernel must be one of {', '.join(known)}, or a score; "
            f"got {name!r}."
        )
    share, levels = rows ** (-2 / (4 + features)), max(len(column.levels), 2)
    if name == "aitchison_aitken":
        return named(name, bandwidth=share * (levels - 1) / levels, levels=levels)
    return named(name, bandwidth=share)


def _position(column: Any, features: int, names: Sequence[str] | None) -> int:
    known = list(range(features) if names is None else names)
    if isinstance(column, int | np.integer) and 0 <= column < features:
        return int(column)
    if column not in known:
        raise ValueError(f"`kernel` names the column {column!r}; X has {', '.join(map(str, known))}.")
    return known.index(column)


class Part(NamedTuple):
    """A part of a score that holds a bandwidth."""

    name: str  # of the bandwidth among gradients
    leaf: Any
    columns: list[int]  # the features it looks at
    factor: Any  # of the part in the score


def parts(score: Score, columns: list[int], prefix: str = "", factor: Any = 1.0) -> Iterator[Part | None]:
    """The parts of a score that hold a bandwidth, and None for each that does not."""
    match score:
        case Sum(parts=inner):
            for n, one in enumerate(inner):
                yield from parts(one, columns, f"{prefix}{n}.", factor)
        case Scaled():
            yield from parts(score.score, columns, prefix, factor * score.factor)
        case On():
            yield from parts(score.score, chosen(score, columns), prefix, factor)
        case Leaf() if hasattr(score, "bandwidth"):
            yield Part(f"{prefix}bandwidth", score, columns, factor)
        case _:
            yield None


def leaves(score: Score, columns: list[int]) -> Iterator[tuple[str, Leaf, list[int]]]:
    """The parts of a score that hold a bandwidth: its name among gradients, the part, the features it looks at."""
    return ((p.name, p.leaf, p.columns) for p in parts(score, columns) if p is not None)


def chosen(score: On, columns: list[int]) -> list[int]:
    """Which of the columns it looks at."""
    at = score.columns
    return columns[at] if isinstance(at, slice) else [columns[c] for c in at]


def with_bandwidth(score: Score, bandwidth: Floats) -> Score:
    """The score with these bandwidths, one per feature, in place of its own."""
    match score:
        case Sum(parts=parts):
            return Sum(tuple(with_bandwidth(part, bandwidth) for part in parts))
        case Scaled() | On():
            inner = bandwidth if isinstance(score, Scaled) else bandwidth[chosen(score, list(range(len(bandwidth))))]
            return replace(score, score=with_bandwidth(score.score, inner))
        case Leaf() if hasattr(score, "bandwidth"):
            several = np.isinf(score.largest_bandwidth)  # a length, and no share of a category
            found: Any = bandwidth if several else float(bandwidth[0])
            return replace(score, bandwidth=found)  # type: ignore[type-var]
    return score


def own_bandwidth(score: Score, features: int) -> Floats:
    """(D,): the score's own bandwidths; inf where nothing looks at a feature, NaN where what looks has none."""
    used = score.uses(features)
    out = np.where(np.isin(np.arange(features), used), np.nan, np.inf)
    for _, leaf, columns in leaves(score, list(range(features))):
        out[columns] = leaf.bandwidth  # type: ignore[attr-defined]
    return out


def upper_ends(score: Score, features: int) -> Floats:
    """(D,): the largest value that each feature's bandwidth may take, inf for a length; NaN where there is none."""
    out = np.full(features, np.nan)
    for _, leaf, columns in leaves(score, list(range(features))):
        out[columns] = leaf.largest_bandwidth
    return out


def compact(score: Score, features: int) -> bool:
    """Whether some part has a support: the criterion of a search is then not smooth."""
    return any(getattr(leaf, "tail", "") == "compact" for _, leaf, _ in leaves(score, list(range(features))))


def deviations(X: Floats, count: Floats) -> Floats:
    """(D,): the standard deviations of the rows, of which row i is there ``count[i]`` times."""
    n, size = count.sum(), np.ptp(X, axis=0)
    size = np.where(size > 0, size, 1.0)
    centred = (X - X[:1]) / size  # a common offset costs no digits, and squares stay within range
    centred = centred - count @ centred / n
    return np.asarray(size * np.sqrt(count @ centred**2 / (n - 1 if n > 1 else n)))


def rule_of_thumb(rule: str, score: Score, X: Floats, count: Floats) -> Floats:
    """(D,): ``"scott"``, ``s n^(-1 / (d + 4))``, or ``"silverman"``, ``s (n (d + 2) / 4)^(-1 / (d + 4))``.

    Both times the canonical bandwidth of the kernel over that of the Gaussian; d counts the features that have a
    length. A constant feature gets 1, and what is no length keeps the score's own number.

    References
    ----------
    Scott (1992), Multivariate Density Estimation, eq. 6.42; Silverman (1986), Density Estimation, eq. 4.14, table 4.1.
    """
    features = X.shape[1]
    lengths = np.isinf(upper_ends(score, features))
    d, n = int(lengths.sum()), count.sum()
    s = deviations(X, count) * (n if rule == "scott" else n * (d + 2) / 4) ** (-1 / (d + 4))
    out = own_bandwidth(score, features)
    for _, leaf, columns in leaves(score, list(range(features))):
        if isinstance(leaf, Kernel):
            ratio = canonical_bandwidth(leaf) / canonical_bandwidth(Gaussian())
            out[columns] = np.where(s[columns] > 0, s[columns] * ratio, 1.0)
    return out


def canonical_bandwidth(kernel: Kernel) -> float:
    """``(R(K) / mu_2(K)^2)^(1/5)``, by quadrature of the kernel's formula: kernels smooth alike at equal multiples.

    R is the integral of the squared kernel, mu_2 its variance.

    Raises
    ------
    ValueError : if the variance is infinite.

    References
    ----------
    Marron & Nolan (1988), Canonical kernels for density estimation, Statistics & Probability Letters 7, table 1.

    Examples
    --------
    >>> import regard as rg
    >>> round(canonical_bandwidth(rg.Gaussian()), 4), round(canonical_bandwidth(rg.Epanechnikov()), 4)
    (0.7764, 1.7188)
    """
    parameters = kernel.parameters(np, np.zeros((1, 1))).values()

    def density(x: float) -> float:
        return float(np.exp(type(kernel).formula(np, np.array([[x * x]]), *parameters)).squeeze())

    far = np.array([[1e30]])
    fall = float((-2 * far * type(kernel).slope(np, far, *parameters)[0]).squeeze())  # K falls like x^-fall out there
    if kernel.tail != "compact" and fall <= 3:
        raise ValueError(
            f"rules of thumb need a kernel with a finite variance; that of {snake_case(type(kernel).__name__)} is "
            'infinite. Use bandwidth="loo", or a number.'
        )

    def integral(of: Callable[[float], float]) -> float:
        pieces = ((0, 0.5), (0.5, 1), (1, 4), (4, math.inf))  # formulas have their knots at 1/2 and 1
        return 2 * sum(float(quad(of, *ends, limit=200)[0]) for ends in pieces)

    mass = integral(density)
    roughness = integral(lambda x: density(x) ** 2) / mass**2
    variance = integral(lambda x: x * x * density(x)) / mass
    return float((roughness / variance**2) ** (1 / 5))
