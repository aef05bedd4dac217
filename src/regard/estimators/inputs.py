"""What all estimators ask of their input and say of their output, by scikit-learn's own checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from joblib import cpu_count
from joblib.parallel import get_active_backend
from sklearn.utils import check_array, check_X_y, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from regard.estimators.columns import Columns, absent
from regard.estimators.memory import Floats, Integers


def checked(estimator: Any, X: Any, reset: bool = True, **options: Any) -> Any:
    """``validate_data`` in float32 or float64; a column of a frame that is at fault is named.

    Columns of categories become numbers, as ``Columns`` has it, by those of the fit. With ``missing="drop"`` missing
    values become NaN, and stay.
    """
    lost = np.zeros(0, dtype=bool)
    if getattr(estimator, "missing", "error") == "drop":
        options["ensure_all_finite"] = "allow-nan"
        if "y" in options:
            options["y"], lost = _without_gaps(options["y"])
    if reset:
        estimator._columns = Columns.of(X, getattr(estimator, "categorical_features", None))
    options["dtype"] = (np.float64, np.float32)
    columns: Columns | None = getattr(estimator, "_columns", None)
    if columns is None:
        try:
            return _marked(validate_data(estimator, X, reset=reset, **options), lost)
        except ValueError as error:
            column = _at_fault(X)
            if column is None:
                raise
            raise ValueError(f"column {column!r}: {error}") from error
    validate_data(estimator, X, reset=reset, skip_check_array=True)  # names and number of the columns
    coded = columns.coded(X, "error" if reset else estimator.unseen)
    gaps = np.flatnonzero(np.isnan(coded).any(axis=0))
    if gaps.size and "ensure_all_finite" not in options:
        name, rows = columns.names[gaps[0]], np.flatnonzero(np.isnan(coded[:, gaps[0]]))
        raise ValueError(
            f"column {name!r}: {rows.size} of {len(coded)} values are missing (the first is in row {rows[0]}). "
            'Fill them in, or set missing="drop".'
        )
    if "y" in options:
        return _marked(check_X_y(coded, estimator=estimator, **options), lost)
    return check_array(coded, estimator=estimator, **options)


def _without_gaps(y: Any) -> tuple[Any, Any]:
    """Targets with another one in place of each missing one, and which rows these are."""
    y = np.asarray(y)
    if y.dtype.kind not in "fO":
        return y, np.zeros(0, dtype=bool)
    gaps = np.isnan(y) if y.dtype.kind == "f" else np.array([absent(x) for x in y.ravel()]).reshape(y.shape)
    if not gaps.any() or gaps.all():
        return y, np.zeros(0, dtype=bool)
    return np.where(gaps, y[~gaps][0], y), gaps.reshape(len(y), -1).any(axis=1)


def _marked(found: Any, lost: Any) -> Any:
    """X and y, with NaN in the rows of X whose target is missing."""
    if lost.any():
        found = np.array(found[0]), found[1]
        found[0][lost] = np.nan
    return found


def without_missing(X: Floats, y: Any, sample_weight: Any) -> tuple[Floats, Any, Any]:
    """The rows without NaN in X, and their weights."""
    lost = np.isnan(X).any(axis=1)
    if not lost.any():
        return X, y, sample_weight
    if lost.all():
        raise ValueError(f"each of the {len(X)} rows has a missing value: nothing is left to fit.")
    return X[~lost], y[~lost], None if sample_weight is None else np.asarray(sample_weight)[~lost]


def _at_fault(X: Any) -> Any:
    """The first column of a frame that does not hold finite numbers; None if there is none, or no frame."""
    for column in getattr(X, "columns", ()):
        if not isinstance(column, str | int):
            return None
        try:
            values = np.asarray(X[column], dtype=np.float64)
        except (TypeError, ValueError):
            return column
        if not np.isfinite(values).all():
            return column
    return None


def counts(sample_weight: Any, X: Floats) -> Floats:
    """(n,) float64: how often each row is there; 1 unless given."""
    found = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not found.any():  # newer scikit-learn has said so by itself, in these words
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return np.asarray(found)


def coded(y: Any) -> tuple[Any, Integers]:
    """The classes of the labels, sorted, and for each label the position of its class."""
    check_classification_targets(y)
    classes, code = np.unique(y, return_inverse=True)
    return classes, code.ravel()


def class_factors(class_weight: Any, classes: Any, code: Integers, count: Floats) -> Floats:
    """(n,): what each row weighs for its class. "balanced" counts rows by their weights."""
    total = np.bincount(code, weights=count, minlength=len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        each = count.sum() / np.count_nonzero(total)
        return np.asarray((each / np.where(total > 0, total, 1.0))[code])
    return np.asarray(compute_class_weight(class_weight, classes=classes, y=classes[code])[code], dtype=np.float64)


def threads_of(n_jobs: Any) -> int | None:
    """How many threads ``n_jobs`` means, as joblib has it; None where neither it nor a context of joblib says so."""
    if n_jobs is None:
        n_jobs = get_active_backend()[1]
    elif not isinstance(n_jobs, int | np.integer) or isinstance(n_jobs, bool) or n_jobs == 0:
        raise ValueError(
            f"`n_jobs` must be None or a whole number other than 0, such as -1 for all CPUs; got {n_jobs!r}."
        )
    if n_jobs is None or n_jobs > 0:
        return n_jobs if n_jobs is None else int(n_jobs)
    return max(int(cpu_count()) + 1 + int(n_jobs), 1)


def predicted_class(probabilities: Floats, classes: Any) -> Any:
    """(n,): the class of the largest probability."""
    lost = np.flatnonzero(np.isnan(probabilities).any(axis=1))
    if lost.size:
        raise ValueError(
            f"{lost.size} of {len(probabilities)} rows have no class (the first is row {lost[0]}): no training row is "
            'within the support of the kernel, and outside="nan". Use predict_proba, or set `outside` to "nearest".'
        )
    return classes[probabilities.argmax(axis=1)]
