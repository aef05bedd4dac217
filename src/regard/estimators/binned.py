"""Leave-one-out fits on a line at many bandwidths at once, nearly: a first look, before the exact criterion decides."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from regard.estimators.memory import Floats, Integers
from regard.scores import Gaussian
from regard.scores.base import Kernel

NODES = 1024
NARROW = 3  # spaces of the nodes: narrower kernels are not seen
NOISE = 1e-9  # a sum of weights below it is rounding of the transform
FALL = 40.0  # of a logarithm: what is less by that is no part of a sum
LEAST = np.float32(-75.0)  # the same in float32, whose smallest numbers are slow
NOWHERE = 1e12  # a squared distance in units of the bandwidth at which there is no weight
WINDOW = 64  # rows on either side, at most
TOGETHER = 8  # bandwidths that see the same rows
AT_ONCE = 1 << 22  # numbers that are transformed at once


def narrowest(x: Floats) -> float:
    """The bandwidth from which on the fits are near."""
    return NARROW * float(np.ptp(x)) / (NODES - 1)


def binned_fits(
    kernel: Kernel, x: Floats, value: Floats, weight: Floats, own: Floats, at: Integers, bandwidths: Floats
) -> Iterator[Floats]:
    """(Q, V) for each bandwidth: the fits of the rows ``at`` by all rows, of whose own weight only ``own`` is left.

    Weights and weighted values ``(n, V)`` of sorted ``x (n,)`` are shared out between two nodes each, transformed,
    multiplied by the kernel's transform, and read between the nodes (Silverman, 1982, Applied Statistics 31, 93-99).
    What a row gave itself is taken out exactly; where too little is left, the nearest row answers.
    """
    size = NODES - 1
    place = (x - x[0]) * (size / (x[-1] - x[0]))
    left = np.minimum(place.astype(int), size - 1)
    part = place - left
    columns = np.concatenate([np.ones((len(x), 1)), value], axis=1).T  # (1 + V, n)
    mass = columns * weight
    nodes = np.stack([np.bincount(left, m * (1 - part), NODES) + np.bincount(left + 1, m * part, NODES) for m in mass])
    spectrum = np.fft.rfft(nodes, 2 * NODES)
    node, share = left[at], part[at]
    again = (weight - own)[at] * columns[:, at]  # what a row must not see of itself
    even, odd = (1 - share) ** 2 + share**2, 2 * share * (1 - share)
    near = _nearest(x, own)[at]
    steps = np.arange(NODES) * ((x[-1] - x[0]) / size)
    chunk = max(AT_ONCE // spectrum.size, 1)
    parameters = [p.ravel()[0] for p in kernel.parameters(np, np.zeros((1, 1))).values()]
    for start in range(0, len(bandwidths), chunk):
        h = bandwidths[start : start + chunk, None]
        k = np.exp(type(kernel).formula(np, (steps / h) ** 2, *parameters))
        both = np.concatenate([k, np.zeros_like(k[:, :1]), k[:, :0:-1]], axis=1)
        sums = np.fft.irfft(spectrum * np.fft.rfft(both)[:, None, :], 2 * NODES)
        itself = k[:, :1] * even + k[:, 1:2] * odd
        seen = sums[:, :, node] * (1 - share) + sums[:, :, node + 1] * share - again * itself[:, None, :]
        some = seen[:, :1] > NOISE * (1 + weight[at])
        fit = np.where(some, seen[:, 1:] / np.where(some, seen[:, :1], 1.0), value.T[:, near])
        yield from fit.transpose(0, 2, 1)


def windowed_fits(
    kernel: Kernel, x: Floats, value: Floats, weight: Floats, own: Floats, at: Integers, bandwidths: Floats
) -> Iterator[Floats]:
    """The same for narrow kernels, bandwidths ascending: by the next few rows on either side."""
    for start in range(0, len(bandwidths), TOGETHER):
        yield from _windowed(kernel, x, value, weight, own, at, bandwidths[start : start + TOGETHER])


def _windowed(
    kernel: Kernel, x: Floats, value: Floats, weight: Floats, own: Floats, at: Integers, bandwidths: Floats
) -> Iterator[Floats]:
    parameters = [p.ravel()[0] for p in kernel.parameters(np, np.zeros((1, 1))).values()]
    formula = type(kernel).formula
    wide = np.geomspace(1.0, 1e4, 41)
    nothing = wide[min(int(np.searchsorted(-formula(np, wide, *parameters), FALL)), 40)]
    reach = math.sqrt(nothing) * bandwidths.max()
    inside = np.searchsorted(x, x[at] + reach) - at, at - np.searchsorted(x, x[at] - reach)
    most = min(max(int(np.max(inside)), 2), WINDOW)
    size = float(np.ptp(x))

    def windows(of: Floats, *ends: float) -> Floats:
        found = sliding_window_view(np.pad(of, most, constant_values=ends or (0,)), 2 * most + 1)
        return found if len(at) == len(x) else found[at]

    squares = (windows(x, x[0] - size, x[-1] + size) - x[at, None]) ** 2  # beyond the ends lies nothing near
    gaps = np.concatenate([[np.inf], np.diff(x), [np.inf]])
    least = np.where(own > 0, 0.0, np.minimum(gaps[:-1], gaps[1:]) ** 2)[at, None]
    unit = bandwidths[0] ** 2  # numbers of about its size stay within the range of float32
    squares, least = (squares / unit).astype(np.float32), (least / unit).astype(np.float32)
    gone = own[at] == 0  # beyond what is nearest, however far that is in these units
    squares[gone, most] = np.maximum(np.float32(NOWHERE), 16 * least[gone, 0])
    w = None
    if np.any(weight != 1) or np.any(own > 0):
        w = windows(weight).astype(np.float32)
        w[:, most] = own[at]
    v = [windows(one) for one in value.T.astype(np.float32)]
    ones = np.ones(2 * most + 1, dtype=np.float32)
    parameters = [np.float32(p) for p in parameters]
    linear = type(kernel) is Gaussian  # whose logarithm only has to be multiplied: no fresh memory for each bandwidth
    fall = formula(np, squares - least, *parameters)
    k = np.empty_like(fall)
    for h in bandwidths:
        scale = np.float32(unit / h**2)
        if linear:
            np.multiply(fall, scale, out=k)
        else:
            np.subtract(formula(np, squares * scale, *parameters), formula(np, least * scale, *parameters), out=k)
        np.maximum(k, LEAST, out=k)
        np.exp(k, out=k)
        if w is not None:
            k *= w
        total = k @ ones
        yield np.stack([np.einsum("qk,qk->q", k, one) / total for one in v], axis=1).astype(np.float64)


def _nearest(x: Floats, own: Floats) -> Integers:
    """(n,): the row that is nearest to each, itself where some of its own weight is left."""
    n = np.arange(len(x))
    gaps = np.concatenate([[np.inf], np.diff(x), [np.inf]])
    return np.where(own > 0, n, np.where(gaps[:-1] < gaps[1:], n - 1, n + 1))
