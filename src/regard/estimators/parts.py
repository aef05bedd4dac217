"""Data that arrive in parts: estimators take more rows, or those of another, and fit as if all had come at once."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from regard.estimators.columns import Columns
from regard.estimators.memory import Floats
from regard.estimators.rows import Rows


class Merging:
    """An estimator whose fit is its rows: fits merge to the fit of all rows."""

    X_: Floats
    y_: Any
    n_features_in_: int
    _count: Floats
    _columns: Columns | None

    def _given(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        raise NotImplementedError

    def _rows(self, X: Floats, y: Any, count: Floats) -> Rows:
        raise NotImplementedError

    def _fit(self, given: Rows) -> Self:
        raise NotImplementedError

    def merge(self, other: Any) -> Self:
        """A new estimator, fitted to the rows of this one and then of the other, with the parameters of this one.

        It is that of ``fit`` with all rows at once. ``a + b`` is the same.

        Raises
        ------
        TypeError : for an estimator of another kind.
        ValueError : for other features, targets of another shape, or ordered categories of other levels.
        """
        if type(other) is not type(self):
            raise TypeError(f"`other` must be a {type(self).__name__} like this one; got {type(other).__name__}.")
        check_is_fitted(self)
        check_is_fitted(other)
        merged: Any = clone(self)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(merged, name, getattr(self, name))
        found: Self = merged._fit(merged._both(self, other))
        return found

    def __add__(self, other: Any) -> Self:
        return self.merge(other) if isinstance(other, Merging) else NotImplemented

    def _with_more(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        """The rows of the fit, if there is one, and more."""
        if not hasattr(self, "X_"):
            return self._given(X, y, sample_weight)
        validate_data(self, X, reset=False, skip_check_array=True)  # as many features, of the same names
        other: Any = clone(self)
        given = other._given(X, y, sample_weight)
        other.X_, other._count = given.X, given.count
        return self._both(self, other)

    def _both(self, one: Any, other: Any) -> Rows:
        """The rows of two fits as this estimator's own."""
        names = [list(getattr(e, "feature_names_in_", range(e.n_features_in_))) for e in (one, other)]
        if names[0] != names[1]:
            told = " and ".join(
                f"{len(n)} ({', '.join(map(str, n[:5]))}{', ...' if len(n) > 5 else ''})" for n in names
            )
            raise ValueError(f"fits of the same features can be merged; got {told}.")
        if one.y_.shape[1:] != other.y_.shape[1:]:
            shapes = " and ".join(str(e.y_.shape) for e in (one, other))
            raise ValueError(f"targets must have the same number of outputs to be merged; got {shapes}.")
        X, Z = one.X_, other.X_
        if (one._columns is None) != (other._columns is None):
            raise ValueError(
                "one of the parts has columns of categories, the other has none; give both the same dtypes."
            )
        columns = one._columns
        if columns is not None:
            columns = columns.merged(other._columns)
            X, Z = columns.recoded(X, one._columns), columns.recoded(Z, other._columns)
        self._columns = columns
        y = np.concatenate([one.y_, other.y_])
        return self._rows(np.concatenate([X, Z]), y, np.concatenate([one._count, other._count]))


class Growing(Merging):
    """The same, taking rows that come later."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """The estimator with these rows beside those that it has; the first call is ``fit``.

        The result is that of ``fit`` with all rows at once. A rule for the bandwidth sees all rows again, so many small
        parts are best added with ``bandwidth`` given.

        Raises
        ------
        ValueError : for other features, or targets of another shape, than before.
        """
        return self._fit(self._with_more(X, y, sample_weight))


class GrowingClassifier(Merging):
    """The same of classes, of which some may come later."""

    classes_: Any

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """The estimator with these rows beside those that it has; the first call is ``fit``.

        The result is that of ``fit`` with all rows at once. ``classes`` may list classes that have not come yet, in
        any call: their probability is 0 until they do. A rule for the bandwidth sees all rows again.

        Raises
        ------
        ValueError : for other features than before, or labels that are not among ``classes``.
        """
        if classes is not None:
            check_classification_targets(np.asarray(classes))
            unknown = np.setdiff1d(y, classes)
            if unknown.size:
                raise ValueError(
                    f"`y` must hold labels that are among `classes`; got {', '.join(map(repr, unknown[:5].tolist()))}."
                )
        before = [known for known in (getattr(self, "classes_", None), classes) if known is not None]
        self._awaited = np.unique(np.concatenate([np.asarray(k) for k in before])) if before else None
        try:
            return self._fit(self._with_more(X, y, sample_weight))
        finally:
            self._awaited = None

    def _both(self, one: Any, other: Any) -> Rows:
        if self is not one:
            self._awaited = np.union1d(one.classes_, other.classes_)
        found = super()._both(one, other)
        if self is not one:
            self._awaited = None
        return found
