"""Data that the documents and the demo tell their story on."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


def motorcycle() -> tuple[Floats, Floats]:
    """The motorcycle data: 133 measurements of a crash helmet's acceleration in simulated impacts.

    Returns
    -------
    times : (133,), milliseconds after the impact; 94 different ones
    accel : (133,), acceleration of the head, in g

    References
    ----------
    Silverman (1985), Some aspects of the spline smoothing approach to non-parametric regression curve fitting,
    Journal of the Royal Statistical Society B 47, table 1.

    Examples
    --------
    >>> from regard.datasets import motorcycle
    >>> times, accel = motorcycle()
    >>> times.shape, float(times.max()), float(accel.min())
    ((133,), 57.6, -134.0)
    """
    with (files("regard.datasets") / "motorcycle.csv").open() as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1)
    return table[:, 0].copy(), table[:, 1].copy()
