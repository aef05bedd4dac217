"""Draws the pictures of the documents.

python tools/make_pictures.py docs/images [name ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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


def bandwidth_picture() -> Figure:
    """Criteria over bandwidths, and the fits at three of them with the band of the middle one."""
    times, accel = motorcycle()
    X, grid, widths = times[:, None], np.linspace(0.0, 55.0, 221)[:, None], np.geomspace(0.5, 20.0, 40)
    chosen = {rule: rg.LocalPolynomialRegressor(bandwidth=rule).fit(X, accel) for rule in ("loo", "aicc")}
    each = [rg.LocalPolynomialRegressor(bandwidth=h).fit(X, accel).summary() for h in widths]
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(4, 6))
    for color, rule, values in (
        ("tab:blue", "loo", np.log([s.left_out for s in each])),
        ("tab:orange", "aicc", np.array([s.aicc for s in each])),
    ):
        left.plot(
            widths, values - values.min(), color=color, label={"loo": "log leave-one-out error"}.get(rule, "AICc")
        )
        left.axvline(chosen[rule].bandwidth_[0], color=color, linewidth=1, linestyle="--")
    left.set(xscale="log", ylim=(0, 0.6), xlabel="bandwidth (ms)", ylabel="above the least", title="What a search sees")
    left.legend(frameon=False, fontsize=8)

    best = chosen["loo"]
    low, high = best.confidence_band(grid, simultaneous=True, random_state=0)
    right.scatter(times, accel, s=10, color="0.6", linewidths=0)
    right.fill_between(grid[:, 0], low, high, color="tab:blue", alpha=0.2, linewidth=0)
    for h, color in ((0.5, "0.5"), (float(best.bandwidth_[0]), "tab:blue"), (8.0, "tab:red")):
        fit = rg.LocalPolynomialRegressor(bandwidth=h).fit(X, accel).predict(grid)
        right.plot(grid, fit, color=color, linewidth=1.2, label=f"h = {h:.2f} ms")
    right.set(xlabel="time (ms)", ylabel="acceleration (g)", title="Too narrow, chosen with its 95 % band, too wide")
    right.legend(frameon=False, fontsize=8)
    return figure


def errors(bandwidths: Any, rtol: float, n: int = 4000) -> tuple[Any, Any]:
    """The largest errors of lowdim at each bandwidth, as it promises them: of the weight sum, of the pooled value."""
    rng = np.random.default_rng(0)
    key = np.concatenate([rng.uniform(size=n // 2), 0.5 + 1e-3 * rng.normal(size=n // 2)])
    query, value = rng.uniform(-0.2, 1.2, size=n // 4), np.sin(9 * key) + rng.normal(size=n)
    columns, found = np.stack([value, np.abs(value)], axis=1), []
    for h in bandwidths:
        exact, near = (
            rg.partial_pool(query[:, None], key[:, None], columns, rg.Gaussian(h), **how)
            for how in ({"engine": "tiled"}, {"engine": "lowdim", "rtol": rtol})
        )
        of_sum = np.max(np.abs(np.expm1(near.log_weight_sum - exact.log_weight_sum)))
        truth = exact.finish()
        found.append((of_sum, np.max(np.abs(near.finish()[:, 0] - truth[:, 0]) / truth[:, 1])))
    return tuple(np.maximum(np.array(found).T, 1e-17))


def exactness_picture() -> Figure:
    """The error that is promised, and what is measured."""
    bandwidths = np.geomspace(1e-5, 10.0, 31)
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, at, title in zip(
        figure.subplots(1, 2, sharey=True), (0, 1), ("Weight sum", "Pooled value, by sum w |y| / sum w"), strict=True
    ):
        for rtol, color in ((1e-4, "tab:red"), (1e-6, "tab:orange"), (1e-9, "tab:blue")):
            axes.axhline(rtol, color=color, linewidth=1, linestyle="--")
            axes.plot(bandwidths, errors(bandwidths, rtol)[at], color=color, label=f"rtol = {rtol:g}")
        axes.set(xscale="log", yscale="log", xlabel="bandwidth, by the range of the data", title=title)
    axes.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("largest relative error")
    return figure


PICTURES = {
    "motorcycle": motorcycle_picture,
    "bandwidth": bandwidth_picture,
    "exactness": exactness_picture,
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or PICTURES:
        PICTURES[name]().savefig(folder / f"{name}.png", dpi=110)
        print(f"wrote {folder / name}.png")
