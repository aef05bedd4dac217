"""Which training rows made a prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regard.cli.mistakes import UserError
from regard.cli.models import Model, as_frame
from regard.cli.progress import progress
from regard.cli.tables import MODEL_FEATURE, Table, numbers


@dataclass(frozen=True)
class Neighbour:
    """A training row, and its part in the prediction."""

    rank: int
    weight: float  # all weights of a prediction sum to one
    share: float  # the weight of this row and of those before it
    row: int  # in the training data, counted from 0
    features: dict[str, float]
    target: float


@dataclass(frozen=True)
class Explanation:
    """A prediction as the mean of the training rows that it attends to, the heaviest first."""

    row: int
    features: dict[str, float]
    prediction: float
    neighbours: list[Neighbour]


def explain_row(model: Model, table: Table, row: int, top: int) -> Explanation:
    """How the prediction of one row of the table came about; the other rows may hold anything."""
    if row >= table.frame.height:
        rows = "its only row is 0" if table.frame.height == 1 else f"its rows are 0 to {table.frame.height - 1}"
        raise UserError(f"{table.label} has no row {row}; {rows}.")
    one = Table(table.frame[row : row + 1], table.label, table.format)
    X = numbers(one, dict.fromkeys(model.features, MODEL_FEATURE), first_row=row)
    with progress("explaining"):
        estimator = model.fitted()
        frame = as_frame(X, model.features)
        prediction = float(estimator.predict(frame)[0])
        weights, rows = (found[0] for found in estimator.attention(frame, n=top))
    kept = rows >= 0  # fewer rows than asked for have a weight
    share = np.cumsum(weights)
    neighbours = [
        Neighbour(
            rank=rank,
            weight=float(weight),
            share=float(total),
            row=int(at),
            features=dict(zip(model.features, model.X[at].tolist(), strict=True)),
            target=float(model.y[at]),
        )
        for rank, (weight, total, at) in enumerate(zip(weights[kept], share[kept], rows[kept], strict=True), start=1)
    ]
    return Explanation(row, dict(zip(model.features, X[0].tolist(), strict=True)), prediction, neighbours)
