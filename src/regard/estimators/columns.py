"""Columns of tables: which are numbers, which are categories, and the numbers that stand for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regard.estimators.memory import Floats

KINDS = ("unordered", "ordered")
UNSEEN = ("error", "ignore")
MISSING = ("error", "drop")


@dataclass(frozen=True, eq=False)
class Column:
    """A column of categories.

    ``levels`` in their order, those that the dtype declares or those that were seen; ``numbers`` stands for each: the
    value itself for ordered numbers, else its rank.
    """

    name: Any
    kind: str
    levels: tuple[Any, ...]
    numbers: Floats
    seen: frozenset[Any]
    by_value: bool

    @staticmethod
    def of(name: Any, labels: list[Any], kind: str, declared: Sequence[Any] | None) -> Column:
        seen = {x for x in labels if not absent(x)}
        levels = tuple(declared) if declared is not None else tuple(_sorted(seen))
        by_value = kind == "ordered" and all(isinstance(x, int | float | np.number) for x in levels)
        numbers = np.array(levels if by_value else range(len(levels)), dtype=np.float64)
        return Column(name, kind, levels, numbers, frozenset(seen), by_value)

    def coded(self, labels: list[Any], unseen: str) -> Floats:
        """(n,): the number of each label, NaN where there is none; -1 for a level without order that was not seen."""
        number = dict(zip(self.levels, self.numbers, strict=True))
        out = np.empty(len(labels))
        for n, x in enumerate(labels):
            if absent(x):
                out[n] = np.nan
            elif x in self.seen:
                out[n] = number[x]
            else:
                out[n] = self._unseen(x, number, unseen)
        return out

    def _unseen(self, x: Any, number: dict[Any, Any], unseen: str) -> float:
        seen = [level for level in self.levels if level in self.seen]
        shown = ", ".join(map(repr, seen[:8])) + (", ..." if len(seen) > 8 else "")
        if unseen == "error":
            raise ValueError(
                f"column {self.name!r}: level {x!r} was not seen in fit; seen were {shown}. "
                'Leave such rows out, or set unseen="ignore": no training row is then of the same level.'
            )
        if self.kind == "unordered":
            return -1.0
        if x in number:
            return float(number[x])
        if self.by_value and isinstance(x, int | float | np.number):
            return float(x)
        raise ValueError(
            f"column {self.name!r}: level {x!r} has no place in the order {shown}. "
            "Declare all levels in the dtype of the column before fit."
        )


def absent(x: Any) -> bool:
    """Whether a label is a missing value of whatever library."""
    return x is None or type(x).__name__ in ("NAType", "NaTType") or (isinstance(x, float | np.floating) and x != x)


def _sorted(labels: set[Any]) -> list[Any]:
    try:
        return sorted(labels)
    except TypeError:  # of several types
        return sorted(labels, key=lambda x: (type(x).__name__, str(x)))


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table, in its order: None for numbers, a ``Column`` for categories."""

    columns: tuple[Column | None, ...]
    names: tuple[Any, ...]

    @staticmethod
    def of(X: Any, categorical: Any) -> Columns | None:
        """What ``categorical_features`` and the dtypes of a frame say; None where all columns are numbers."""
        names = _names(X)
        if names is None:
            if categorical is None or (isinstance(categorical, str) and categorical == "from_dtype"):
                return None
            X = X if hasattr(X, "shape") else np.array(X, dtype=object)
            if len(X.shape) != 2 or hasattr(X, "toarray"):
                return None
        width = X.shape[1] if names is None else len(names)
        kinds = _kinds(categorical, names, width)
        columns: list[Column | None] = []
        for c in range(width):
            declared, ordered = _declared(X, names, c) if categorical is not None else (None, False)
            by_dtype = declared is not None or ordered is None
            kind = kinds.get(c) or (("ordered" if ordered else "unordered") if by_dtype or c in kinds else None)
            name = c if names is None else names[c]
            columns.append(None if kind is None else Column.of(name, _labels(X, names, c), kind, declared))
        return Columns(tuple(columns), tuple(range(width) if names is None else names)) if any(columns) else None

    def coded(self, X: Any, unseen: str) -> Floats:
        """(n, D) float64: numbers as they are, the numbers of categories, NaN where a value is missing."""
        names = _names(X)
        out = []
        for c, column in enumerate(self.columns):
            if column is not None:
                out.append(column.coded(_labels(X, names, c), unseen))
                continue
            plain = np.asarray(
                X[:, c] if names is None and hasattr(X, "ndim") else () if names is None else X[names[c]]
            )
            if plain.dtype.kind in "fiub" and len(plain) == len(X):
                out.append(plain.astype(np.float64))
                continue
            try:
                out.append(np.array([np.nan if absent(x) else x for x in _labels(X, names, c)], dtype=np.float64))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"column {self.names[c]!r}: {error}. If these are categories, give the column a categorical "
                    "dtype, or name it in `categorical_features`."
                ) from error
        return np.stack(out, axis=1)

    def merged(self, other: Columns) -> Columns:
        """The columns of both tables, one below the other."""
        return Columns(tuple(_merged(a, b) for a, b in zip(self.columns, other.columns, strict=True)), self.names)

    def recoded(self, X: Floats, before: Columns) -> Floats:
        """The rows X that ``before`` has coded, by the numbers of these columns."""
        out = X.copy()
        for c, (now, old) in enumerate(zip(self.columns, before.columns, strict=True)):
            if now is not None and old is not None and now.levels != old.levels:
                number = dict(zip(now.levels, now.numbers, strict=True))
                to = np.array([number[level] for level in old.levels])
                out[:, c] = to[np.searchsorted(old.numbers, X[:, c])]
        return out


def _merged(a: Column | None, b: Column | None) -> Column | None:
    if a is None or b is None:
        if a is b:
            return None
        named = a if a is not None else b
        raise ValueError(f"column {named.name!r} holds categories in one part, and numbers in the other.")  # type: ignore[union-attr]
    if a.kind != b.kind or (a.levels != b.levels and a.kind == "ordered" and not (a.by_value and b.by_value)):
        raise ValueError(
            f"column {a.name!r}: parts must declare the same levels in the same order; "
            f"got {a.kind} {', '.join(map(repr, a.levels))} and {b.kind} {', '.join(map(repr, b.levels))}."
        )
    if a.levels == b.levels:
        return replace(a, seen=a.seen | b.seen)
    levels = tuple(_sorted({*a.levels, *b.levels}))
    numbers = np.array(levels if a.by_value else range(len(levels)), dtype=np.float64)
    return Column(a.name, a.kind, levels, numbers, a.seen | b.seen, a.by_value)


def _names(X: Any) -> list[Any] | None:
    return list(X.columns) if hasattr(X, "columns") else None


def _labels(X: Any, names: list[Any] | None, c: int) -> list[Any]:
    if names is None and not hasattr(X, "ndim"):
        return [row[c] for row in X]
    found = X[:, c] if names is None else X[names[c]]
    return list(found.to_list() if hasattr(found, "to_list") else getattr(found, "tolist", lambda: found)())


def _declared(X: Any, names: list[Any] | None, c: int) -> tuple[list[Any] | None, bool | None]:
    """The levels that a dtype declares, and whether they are ordered; ``(None, None)`` for a dtype that lists none."""
    if names is None:
        return None, False
    dtype = X[names[c]].dtype
    if str(dtype) == "category":  # pandas
        return list(dtype.categories), bool(dtype.ordered)
    kind = type(dtype).__name__ if not isinstance(dtype, type) else dtype.__name__
    if kind == "Enum":  # polars
        return list(dtype.categories), None
    return None, None if kind == "Categorical" else False


def _kinds(categorical: Any, names: list[Any] | None, width: int) -> dict[int, str]:
    """By position: the kind of each column that ``categorical_features`` names, "" where it says none."""
    if categorical is None or (isinstance(categorical, str) and categorical == "from_dtype"):
        return {}
    if isinstance(categorical, Mapping):
        for kind in categorical.values():
            if kind not in KINDS:
                raise ValueError(
                    f"`categorical_features` must map columns to {' or '.join(map(repr, KINDS))}; got {kind!r}."
                )
        return {_position(column, names, width): str(kind) for column, kind in categorical.items()}
    if isinstance(categorical, str) or not isinstance(categorical, Sequence | np.ndarray):
        raise ValueError(
            '`categorical_features` must be "from_dtype", None, names, positions, a mask, or a dictionary from columns '
            f"to {' or '.join(map(repr, KINDS))}; got {categorical!r}."
        )
    given = list(categorical)
    if given and all(isinstance(x, bool | np.bool_) for x in given):
        if len(given) != width:
            raise ValueError(
                "`categorical_features` must have one entry per column as a mask; "
                f"got {len(given)} for {width} columns."
            )
        return {int(c): "" for c in np.flatnonzero(given)}
    return {_position(column, names, width): "" for column in given}


def _position(column: Any, names: list[Any] | None, width: int) -> int:
    if names is not None and column in names:
        return names.index(column)
    if isinstance(column, int | np.integer) and 0 <= column < width:
        return int(column)
    known = range(width) if names is None else names
    raise ValueError(f"`categorical_features` names the column {column!r}; X has {', '.join(map(str, known))}.")
