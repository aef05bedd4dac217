"""What a fitted estimator does, whatever fitted it: its predictions are means of the rows that it attends to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from regard.estimators.bandwidths import deviations
from regard.estimators.inputs import checked, class_factors, coded, counts, predicted_class, threads_of, without_missing
from regard.estimators.memory import Floats, Integers, Memory
from regard.estimators.neighbours import of_others
from regard.estimators.rows import Rows
from regard.scores.base import Score


@dataclass(frozen=True, eq=False)
class Standard:
    """Features with mean 0 and standard deviation 1; after them a 1, if asked for, which makes a projection affine."""

    mean: Floats
    scale: Floats
    constant: bool

    @staticmethod
    def of(rows: Rows, constant: bool) -> Standard:
        """By the rows and their counts; a constant feature becomes 0."""
        mean = rows.count @ rows.X / rows.count.sum()
        scale = deviations(rows.X, rows.count)
        return Standard(mean, np.where(scale > 0, scale, 1.0), constant)

    def __call__(self, X: Floats) -> Floats:
        """(n, D), or (n, D + 1) with the constant, in the dtype of X."""
        z = (X - self.mean) / self.scale
        z = np.concatenate([z, np.ones((len(z), 1))], axis=1) if self.constant else z
        return z.astype(X.dtype)


class _Pooled(BaseEstimator):  # type: ignore[misc]
    engine: str
    n_jobs: int | None

    def _remember(self, given: Rows, score: Score, outside: str = "nearest", standard: Standard | None = None) -> Self:
        """Keep the rows as they were given: from now on they answer."""
        X = given.X
        self.score_ = score
        self.X_ = X
        self.sample_weight_ = (given.count * given.factor).astype(X.dtype)
        self._standard, self._count = standard, given.count
        self._known: dict[str, Any] = {}  # what has been computed of this fit
        key = X if standard is None else standard(X)
        self._memory = Memory(
            key, given.value, self.sample_weight_, outside, self.engine, rtol=getattr(self, "rtol", None)
        )
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = getattr(self, "missing", "error") == "drop"
        return tags

    def _queries(self, X: Any) -> Floats:
        check_is_fitted(self)
        X = checked(self, X, reset=False)
        return X if self._standard is None else self._standard(X)

    def _recall(self) -> Memory:
        return replace(self._memory, threads=threads_of(self.n_jobs))  # which may have been set after the fit

    def _pool(self, X: Any) -> Floats:
        queries = self._queries(X)  # checks that there is a fit
        return self._recall().pool(self.score_, queries)

    def _pool_others(self) -> Floats:
        check_is_fitted(self)
        return self._recall().without_own(self._count).pool(of_others(self.score_), self._memory.key)

    def attention(self, X: Any, n: int = 10) -> tuple[Floats, Integers]:
        """Which training rows made each prediction, and with which weights.

        Parameters
        ----------
        X : (rows, features)
        n : how many of them, at most

        Returns
        -------
        weights : (rows, min(n, training rows)), descending; all of them would sum to one
        indices : of the same shape, positions in the X that was given to ``fit``; -1, with weight 0, where fewer rows
            have a weight
        """
        queries = self._queries(X)
        return self._recall().top(self.score_, queries, n)


class PooledRegressor(RegressorMixin, MultiOutputMixin, _Pooled):  # type: ignore[misc]
    """Predicts the weighted mean of the targets."""

    def _given(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        X, y = checked(self, X, y=y, multi_output=True, y_numeric=True, copy=True)
        X, y, sample_weight = without_missing(X, y, sample_weight)
        return self._rows(X, y, counts(sample_weight, X))

    def _rows(self, X: Floats, y: Any, count: Floats) -> Rows:
        self.y_ = np.array(y, dtype=X.dtype)
        return Rows(X, self.y_.reshape(len(X), -1), count, np.ones(len(X)))

    def predict(self, X: Any) -> Floats:
        """(n,) or (n, outputs), as y was: the weighted mean for each row."""
        return self._shaped(self._pool(X))

    def leave_one_out(self) -> Floats:
        """Like ``predict`` of the training rows: what each gets from all the others, without another fit."""
        return self._shaped(self._pool_others())

    def _shaped(self, pooled: Floats) -> Floats:
        return pooled.reshape(len(pooled), *self.y_.shape[1:])


class PooledClassifier(ClassifierMixin, _Pooled):  # type: ignore[misc]
    """Predicts the weighted shares of the classes."""

    class_weight: Any
    _awaited: Any = None  # classes that are there without a row, perhaps

    def _given(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        X, y = checked(self, X, y=y, copy=True)
        X, y, sample_weight = without_missing(X, y, sample_weight)
        return self._rows(X, y, counts(sample_weight, X))

    def _rows(self, X: Floats, y: Any, count: Floats) -> Rows:
        self.classes_, code = coded(y)
        if self._awaited is not None:
            self.classes_ = np.union1d(self.classes_, self._awaited)
            code = np.searchsorted(self.classes_, y)
        self.y_ = self.classes_[code]
        factor = class_factors(self.class_weight, self.classes_, code, count)
        return Rows(X, np.eye(len(self.classes_), dtype=X.dtype)[code], count, factor)

    def predict_proba(self, X: Any) -> Floats:
        """(n, classes): the probabilities of each row, in the order of ``classes_``."""
        return self._pool(X)

    def predict(self, X: Any) -> Any:
        """(n,): the class of the largest probability of each row."""
        pooled = self._pool(X)
        return predicted_class(pooled, self.classes_)

    def leave_one_out(self) -> Floats:
        """Like ``predict_proba`` of the training rows: what each gets from all the others, without another fit."""
        return self._pool_others()
