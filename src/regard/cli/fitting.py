"""From a table to a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import regard as rg
from regard.cli.mistakes import UserError, listed, one_sentence, quoted
from regard.cli.models import Model, as_frame
from regard.cli.progress import progress
from regard.cli.tables import FEATURE, TARGET, WEIGHT, Table, check_column, numbers, numeric_columns

RULES = ("loo", "loo_shared", "scott", "silverman")


def parse_bandwidth(text: str) -> str | list[float]:
    """The rule, or the numbers, that the text of --bandwidth means.

    >>> parse_bandwidth("0.3, 2"), parse_bandwidth("loo")
    ([0.3, 2.0], 'loo')
    """
    if text in RULES:
        return text
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--bandwidth {quoted(text)} is neither a number nor one of {listed(RULES)}.") from None
    if not all(number > 0 for number in found):  # NaN neither
        raise UserError(f"--bandwidth must be above 0; got {text}.")
    return found


def fit_model(
    table: Table,
    *,
    target: str,
    features: Sequence[str] | None,
    weights: str | None,
    kernel: str,
    bandwidth: str | list[float],
) -> Model:
    """The model of `target` by `features`, by default all other numeric columns; a mistake that says why there is none.

    `weights` names the column that counts how often a row is there; `kernel` is a name that exists.
    """
    check_column(table, target, TARGET)
    names = list(features or [])
    if features is None:
        names = [name for name in numeric_columns(table.frame) if name not in (target, weights)]
    if not names:
        raise UserError(f"{table.label} has no column of numbers from which to predict the target {quoted(target)}.")
    used = [*names, target] + ([weights] if weights is not None else [])
    for at, name in enumerate(used):
        if name in used[:at]:
            raise UserError(f"the column {quoted(name)} is named twice among --features, --target and --weights.")
    if len(bandwidth) not in (1, len(names)) and not isinstance(bandwidth, str):
        raise UserError(
            f"--bandwidth has {len(bandwidth)} numbers, and there {'is' if len(names) == 1 else 'are'} {len(names)} "
            f"feature{'s' * (len(names) != 1)}, {listed(map(quoted, names), 20)}: give one number, or one for each."
        )
    values = numbers(table, dict(zip(used, [FEATURE] * len(names) + [TARGET, WEIGHT], strict=False)))
    X, y = values[:, : len(names)], values[:, len(names)]
    sample_weight = values[:, -1] if weights is not None else None
    if sample_weight is not None:
        which = f"the weight column {quoted(weights)} of {table.label}"
        negative = (sample_weight < 0).nonzero()[0]
        if negative.size:
            rows = f"row{'s' * (negative.size != 1)} {listed(negative)}"
            raise UserError(f"{which} is negative in {rows} (counted from 0).")
        if not sample_weight.any():
            raise UserError(f"{which} is 0 in every row.")
    one = bandwidth if isinstance(bandwidth, str) or len(bandwidth) > 1 else bandwidth[0]
    estimator = rg.NadarayaWatsonRegressor(kernel, one, random_state=0)
    with progress(f"fitting {target}"):
        try:
            estimator.fit(as_frame(X, names), y, sample_weight=sample_weight)
        except ValueError as error:
            raise UserError(f"this model cannot be fitted: {one_sentence(error)}") from None
    found = np.asarray(estimator.bandwidth_, dtype=np.float64)
    return Model(kernel, found, tuple(names), target, X, y, sample_weight)
