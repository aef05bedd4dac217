"""A fitted regression, drawn with its data: one curve per feature, the others held at their median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Curve:
    """The prediction along one feature, and the data it was fitted to.

    Attributes
    ----------
    feature : its name
    x, prediction : arrays (points,), in the units of the feature and of the target
    data_x, data_y : arrays (rows,), the training data in the same units
    held : the value at which each other feature is held
    """

    feature: str
    x: Floats
    prediction: Floats
    data_x: Floats
    data_y: Floats
    held: dict[str, float]


def partial_curves(estimator: Any, *, features: Sequence[str] | None = None, points: int = 300) -> list[Curve]:
    """The curves of a fitted regressor along its features, each from the smallest to the largest value in the data.

    Parameters
    ----------
    estimator : fitted, with one output; its `X_` and `y_` are the data
    features : names, of those that it was fitted with (`x0, x1, ...` if it was fitted to an array); all if None
    points : int >= 2, the number of points of each curve

    Raises
    ------
    ValueError : for a feature that it does not have, for several outputs, for fewer than two points.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> X, y = np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 8.0]]), np.array([0.0, 1.0, 4.0])
    >>> curve = partial_curves(rg.NadarayaWatsonRegressor(bandwidth=1.0).fit(X, y), points=3)[0]
    >>> curve.feature, curve.x, curve.held
    ('x0', array([0., 1., 2.]), {'x1': 5.0})
    """
    X, y = np.asarray(estimator.X_), np.asarray(estimator.y_)
    names = [str(name) for name in getattr(estimator, "feature_names_in_", [f"x{i}" for i in range(X.shape[1])])]
    unknown = [name for name in features or [] if name not in names]
    if unknown:
        raise ValueError(f"`features` must be among {', '.join(names)}; got {unknown[0]}.")
    if y.ndim != 1 and y.shape[1] != 1:
        raise ValueError(f"`estimator` must have one output; got {y.shape[1]}. Fit one estimator per output.")
    if points < 2:
        raise ValueError(f"`points` must be at least 2; got {points}.")
    median = np.median(X, axis=0)
    curves = []
    for name in names if features is None else features:
        at = names.index(name)
        rows = np.tile(median, (points, 1))
        rows[:, at] = np.linspace(X[:, at].min(), X[:, at].max(), points)
        curves.append(
            Curve(
                feature=name,
                x=rows[:, at].copy(),
                prediction=np.asarray(estimator.predict(_like_the_fit(estimator, rows))).reshape(points),
                data_x=X[:, at],
                data_y=y.reshape(-1),
                held={other: float(median[i]) for i, other in enumerate(names) if i != at},
            )
        )
    return curves


def _like_the_fit(estimator: Any, rows: Floats) -> Any:
    """The rows in a frame with names if the estimator knows names: it would warn of an array."""
    if not hasattr(estimator, "feature_names_in_"):
        return rows
    import polars as pl

    return pl.DataFrame(rows, schema=list(estimator.feature_names_in_), orient="row")


def draw_curves(curves: Sequence[Curve], *, target: str = "y", figure: Figure | None = None) -> Figure:
    """A figure with a panel per curve: the data as points, the prediction as a line.

    Parameters
    ----------
    curves : at least one, from `partial_curves`
    target : the name of the vertical axes
    figure : an empty figure to draw into; a new one, which no window knows, if None

    Raises
    ------
    ValueError : if there is no curve.

    Examples
    --------
    >>> import numpy as np, regard as rg
    >>> x, y = np.linspace(0, 1, 7)[:, None], np.linspace(0, 1, 7) ** 2
    >>> figure = draw_curves(partial_curves(rg.NadarayaWatsonRegressor(bandwidth=0.1).fit(x, y)))
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('x0', 'y')
    """
    if not curves:
        raise ValueError("`curves` must have at least one curve; got none.")
    from matplotlib.figure import Figure as NewFigure

    across = int(np.ceil(np.sqrt(len(curves))))
    down = -(-len(curves) // across)
    if figure is None:
        wide, high = (7.0, 4.5) if len(curves) == 1 else (3.2 * across, 2.6 * down)
        figure = NewFigure(figsize=(wide, high), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    for panel, curve in zip(axes.flat, curves, strict=False):
        crowd = min(1.0, 30 / np.sqrt(len(curve.data_x)))  # many points: each fainter, so that density shows
        panel.plot(curve.data_x, curve.data_y, "o", color="0.45", markersize=3.5, alpha=crowd, markeredgewidth=0)
        panel.plot(curve.x, curve.prediction, color="C0", linewidth=2)
        panel.set_xlabel(curve.feature, parse_math=False)  # a name with two dollar signs is no formula
        panel.spines[["top", "right"]].set_visible(False)
    for row in axes:
        row[0].set_ylabel(target, parse_math=False)
    for panel in axes.flat[len(curves) :]:
        panel.set_visible(False)
    if any(curve.held for curve in curves):
        figure.suptitle("each feature alone, the others at their median", fontsize="medium")
    return figure
