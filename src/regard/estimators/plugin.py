"""The direct plug-in bandwidth of local linear regression in one dimension."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regard.estimators.memory import Floats, Integers

QUERIES = 1000  # rows at which the pilot fits are evaluated; all rows are in them
EDGE = 0.05  # share of the range on either side where curvature is not trusted
BLOCKS = 5  # at most, of the first fit
REACH = 8.5  # bandwidths; a Gaussian beyond is nothing
ROUGHNESS = 1 / (2 * math.sqrt(math.pi))  # of the Gaussian, R(K)
# R(K * K - 2 K), the same of what the residuals of a fit have lost
LOST = 1 / (2 * math.sqrt(2 * math.pi)) - 4 / math.sqrt(6 * math.pi) + 2 / math.sqrt(math.pi)


def plug_in(x: Floats, y: Floats, count: Floats) -> float:
    """The bandwidth of a Gaussian kernel with the least asymptotic error of local linear regression.

        h = (R(K) sigma^2 (b - a) / (mu_2(K)^2 theta_22 n))^(1/5),  theta_22 = mean of m''(x_i)^2

    sigma^2 and theta_22 come from local linear and local cubic fits with bandwidths of their own, these from quartic
    fits in as many blocks as Mallows's Cp asks for. Of the range [a, b] only the inner 90 % count for curvature.

    Parameters
    ----------
    x : (n,), not all equal
    y : (n,)
    count : (n,), how often a row is there

    Returns
    -------
    h : in the units of x; NaN where the curve is straight, or rows are fewer than six

    References
    ----------
    Ruppert, Sheather & Wand (1995), An effective bandwidth selector for local least squares regression, Journal of the
    American Statistical Association 90, sections 3 and 4 (the selector h_DPI).
    """
    order = np.argsort(x, kind="stable")
    x, y, count = x[order], y[order] - count @ y / count.sum(), count[order]
    size = float(x[-1] - x[0])
    x = (x - x[0]) / size
    inner = (x >= EDGE) & (x <= 1 - EDGE)
    n, length = float(count.sum()), 1 - 2 * EDGE
    if len(x) < 6 or not inner.any() or not np.ptp(y) > 0:
        return math.nan
    variance, mixed, curvature = _blocked(x, y, count, inner)
    if not (variance > 0 and mixed != 0):
        return math.nan
    factor = 3 / (8 * math.sqrt(math.pi)) if mixed < 0 else 15 / (16 * math.sqrt(math.pi))
    pilot = (factor * variance * length / (abs(mixed) * n)) ** (1 / 7)
    at = np.flatnonzero(inner)
    at = at[np.linspace(0, len(at) - 1, min(len(at), QUERIES)).astype(int)]
    second = 2 * _local(x, y, count, at, pilot, 3)[0][:, 2]
    theta = float(count[at] @ second**2 / count[at].sum() * (count[inner].sum() / n))
    theta = theta if theta > 0 else curvature
    if not theta > 0:
        return math.nan
    smooth = (4 * LOST * variance**2 * length / (theta**2 * n**2)) ** (1 / 9)
    at = np.linspace(0, len(x) - 1, min(len(x), QUERIES)).astype(int)
    fit, own, squares = _local(x, y, count, at, smooth, 1)
    share = n / count[at].sum()
    freedom = n - share * float(np.sum(2 * own - count[at] * squares))
    if freedom > 0:
        variance = share * float(count[at] @ (y[at] - fit[:, 0]) ** 2) / freedom
    return float(size * (ROUGHNESS * variance * length / (theta * n)) ** (1 / 5))


def _blocked(x: Floats, y: Floats, count: Floats, inner: Any) -> tuple[float, float, float]:
    """sigma^2, and the means of m'' m'''' and m''^2, from quartic fits in blocks of as many rows each."""
    n = float(count.sum())
    most = max(min(int(len(x) // 20), BLOCKS), 1)
    found = []
    for blocks in range(1, most + 1):
        error, mixed, curvature = 0.0, 0.0, 0.0
        for at in np.array_split(np.arange(len(x)), blocks):
            t = x[at] - x[at].mean()
            design = np.vander(t, 5, increasing=True)
            root = np.sqrt(count[at])
            c = np.linalg.lstsq(design * root[:, None], y[at] * root, rcond=None)[0]
            second, fourth = 2 * c[2] + 6 * c[3] * t + 12 * c[4] * t**2, 24 * c[4]
            error += float(count[at] @ (y[at] - design @ c) ** 2)
            mixed += float(count[at] @ (second * fourth * inner[at])) / n
            curvature += float(count[at] @ (second**2 * inner[at])) / n
        found.append((error, mixed, curvature))
    last = found[-1][0] / max(n - 5 * most, 1.0)
    cost = [f[0] / max(last, 1e-300) - (n - 10 * blocks) for blocks, f in enumerate(found, start=1)]
    best = int(np.argmin(cost))
    return found[best][0] / max(n - 5 * (best + 1), 1.0), found[best][1], found[best][2]


def _local(x: Floats, y: Floats, count: Floats, at: Integers, h: float, degree: int) -> tuple[Floats, Floats, Floats]:
    """The coefficients (Q, degree + 1) of local polynomials at some rows, their own shares, and the sums of squares.

    ``squares`` is ``sum_j c_j l_j^2``, where ``c_j l_j`` is the weight of row j.
    """
    coefficients, own, squares = np.empty((len(at), degree + 1)), np.empty(len(at)), np.empty(len(at))
    ridge = 1e-10 * np.eye(degree + 1)
    for n, i in enumerate(at):
        low, high = np.searchsorted(x, (x[i] - REACH * h, x[i] + REACH * h))
        t = (x[low:high] - x[i]) / h
        k = np.exp(-t * t / 2)
        design = np.vander(t, degree + 1, increasing=True)
        weighted = design * (k * count[low:high])[:, None]
        inverse = np.linalg.inv(weighted.T @ design + ridge)
        coefficients[n] = inverse @ (weighted.T @ y[low:high]) / h ** np.arange(degree + 1)
        own[n] = inverse[0, 0] * count[i]
        line = (design @ inverse[0]) * k
        squares[n] = float(count[low:high] @ line**2)
    return coefficients, own, squares
