"""Draws the pictures of the documents.

python tools/make_pictures.py docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import regard as rg
from regard.datasets import motorcycle
from regard.plots import heatmap

ASKED = 20.0  # ms: the query whose attention is shown


def motorcycle_picture() -> Figure:
    """The motorcycle data with their fit, and beside it the attention behind the fit."""
    times, accel = motorcycle()
    grid = np.linspace(0.0, 55.0, 221)
    fit = rg.NadarayaWatsonRegressor().fit(times[:, None], accel)
    score = rg.Gaussian(fit.bandwidth_)
    at = rg.attention_weights(np.array([ASKED]), times, score)[0]

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(6, 5))
    left.axhline(accel.mean(), color="0.6", linestyle="--", linewidth=1, label="average pooling")
    left.scatter(times, accel, s=12, color="0.45", linewidths=0, label="data: keys and values")
    left.scatter(times, accel, s=900 * at, color="tab:orange", alpha=0.6, linewidths=0)
    left.plot(
        grid, fit.predict(grid[:, None]), color="tab:blue", label=f"attention pooling, h = {fit.bandwidth_[0]:.2f} ms"
    )
    left.axvline(ASKED, color="tab:orange", linewidth=1, label="a query, and its weights")
    left.set(xlabel="time (ms)", ylabel="acceleration (g)", title="Each point of the curve ...")
    left.legend(frameon=False, fontsize=8, loc="lower right")

    heatmap(
        rg.attention_weights(grid, times, score), axes=right, title="... is a weighted mean of the data: the weights"
    )
    right.set(xlabel="key: measurement, in order of time", ylabel="query: time (ms)")
    right.set_yticks(np.arange(0, 221, 40), [f"{t:g}" for t in grid[::40]])
    return figure


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    motorcycle_picture().savefig(folder / "motorcycle.png", dpi=110)
    print(f"wrote {folder / 'motorcycle.png'}")
