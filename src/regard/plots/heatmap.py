"""Attention weights as a picture: a row per query, a column per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELS = 40  # more of them could not be read


def heatmap(
    weights: Any,
    *,
    axes: Axes | None = None,
    query_labels: Sequence[object] | None = None,
    key_labels: Sequence[object] | None = None,
    title: str | None = None,
) -> Axes:
    """Axes with the weights as a heatmap, the darker the heavier, and a bar that says which shade is which weight.

    Parameters
    ----------
    weights : array (Q, K), no unit: what `attention_weights` gives for one head; a NumPy array or a torch tensor
    axes : where to draw; those of a new figure of pyplot if None
    query_labels, key_labels : Q and K names; left out, or where there are too many to be read, numbers stand there

    Raises
    ------
    ValueError : if `weights` is not a matrix, has no entry or does not fit the labels.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> axes = heatmap(np.array([[0.75, 0.25], [0.5, 0.5]]), axes=Figure().subplots(), key_labels=["left", "right"])
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['left', 'right']
    """
    matrix = np.asarray(weights.detach().cpu().double() if hasattr(weights, "detach") else weights, dtype=float)
    if matrix.ndim != 2 or 0 in matrix.shape:
        head = f"; take one head, weights[{', '.join('0' * (matrix.ndim - 2))}]" if matrix.ndim > 2 else ""
        raise ValueError(f"`weights` must be a matrix (Q, K) with entries; got shape {matrix.shape}{head}.")
    labels = {"query_labels": (query_labels, matrix.shape[0]), "key_labels": (key_labels, matrix.shape[1])}
    for name, (given, wanted) in labels.items():
        if given is not None and len(given) != wanted:
            raise ValueError(f"`{name}` must have one entry per {name[:-7]}, {wanted}; got {len(given)}.")
    if axes is None:
        from matplotlib import pyplot

        axes = pyplot.subplots(layout="constrained")[1]
    image = axes.imshow(matrix, cmap="Blues", vmin=0, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="weight")
    axes.set(xlabel="key", ylabel="query")
    if title is not None:
        axes.set_title(title, parse_math=False)
    for axis, (given, wanted) in zip((axes.yaxis, axes.xaxis), labels.values(), strict=True):
        if given is not None and wanted <= _LABELS:
            axis.set_ticks(range(wanted), [str(name) for name in given], parse_math=False)
    if key_labels is not None and matrix.shape[1] <= _LABELS:
        axes.tick_params(axis="x", rotation=90 if max(len(str(name)) for name in key_labels) > 3 else 0)
    return axes
