"""A table with its predictions."""

from __future__ import annotations

import numpy as np
import polars as pl

from regard.cli.mistakes import UserError, quoted
from regard.cli.models import Model, as_frame
from regard.cli.progress import progress
from regard.cli.tables import MODEL_FEATURE, Table, numbers


def predict_table(model: Model, table: Table) -> Table:
    """The table with one more column, `<target>_predicted`."""
    column = f"{model.target}_predicted"
    if column in table.frame.columns:
        raise UserError(f"{table.label} has a column {quoted(column)} already: rename it, or leave it out.")
    X = numbers(table, dict.fromkeys(model.features, MODEL_FEATURE))
    estimator = model.fitted()
    step = max(1024, -(-len(X) // 100))  # few enough rows that the bar moves, enough that a call is worth it
    parts = []
    with progress("predicting", total=len(X)) as done:
        for start in range(0, len(X), step):
            parts.append(estimator.predict(as_frame(X[start : start + step], model.features)))
            done(len(parts[-1]))
    return Table(table.frame.with_columns(pl.Series(column, np.concatenate(parts))), table.label, table.format)
