"""Tables in and out: CSV, TSV, Parquet and Arrow, by Polars.

A cell of a text file stays the text that it is: a column becomes numbers where numbers are wanted, and comes out as it
came in where they are not.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO, TextIOWrapper
from typing import IO, Any

import numpy as np
import polars as pl

from regard.cli.files import TEXT_FORMATS, TableFormat, input_file, table_format
from regard.cli.mistakes import UserError, closest, listed, quoted, shortened

_SEPARATOR = {TableFormat.csv: ",", TableFormat.tsv: "\t"}
_SPOKEN = {
    TableFormat.csv: "CSV",
    TableFormat.tsv: "TSV",
    TableFormat.parquet: "Parquet",
    TableFormat.arrow: "Arrow",
}
_MISSING = ["", "na", "n/a", "nan", "null", "none"]  # how people write that there is no value, in lower case
_TRUTH = ["true", "false"]


@dataclass(frozen=True)
class Table:
    """A data frame, and how to speak of it."""

    frame: pl.DataFrame
    label: str
    format: TableFormat


@dataclass(frozen=True)
class Role:
    """What a column is for, and the option that chooses it, if one does."""

    name: str
    option: str | None = None


FEATURE = Role("feature", "--features")
TARGET = Role("target", "--target")
WEIGHT = Role("weight column", "--weights")
MODEL_FEATURE = Role("feature")


def read_table(name: str, stream: TableFormat | None) -> Table:
    """The table in this file, or on standard input for `-`; one without rows is a mistake."""
    kind = table_format(name, stream)
    label = "standard input" if name == "-" else quoted(name)
    opened = BytesIO(sys.stdin.buffer.read()) if name == "-" else input_file(name).open("rb")
    with opened as file:
        frame = _read_text(file, _SEPARATOR[kind], label) if kind in TEXT_FORMATS else _read_binary(file, kind, label)
    if frame.height == 0:
        raise UserError(f"{label} has no rows.")
    return Table(frame, label, kind)


def _read_binary(file: IO[bytes], kind: TableFormat, label: str) -> pl.DataFrame:
    try:
        if kind is TableFormat.parquet:
            return pl.read_parquet(file)
        is_file = file.read(6) == b"ARROW1"  # Arrow has a file format and a stream format, often of the same name
        file.seek(0)
        return pl.read_ipc(file) if is_file else pl.read_ipc_stream(file)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{label} cannot be read as {_SPOKEN[kind]}: {_first_line(error)}.") from None


def _first_line(error: Exception) -> str:
    return shortened((str(error).splitlines() or ["it is empty"])[0].rstrip("."), 160)


def _read_text(file: IO[bytes], separator: str, label: str) -> pl.DataFrame:
    """The table, every cell a text.

    Python's own reader says what is right: blank lines are skipped, every other line has one field per column. Polars
    is the fast way; it fills a short line in silence, so a gap in the last column has the lines counted.
    """
    with closing(_records(file, separator, label)) as records:
        header = next(records, (0, []))[1]
    if not header:
        raise UserError(f"{label} is empty: its first line must name the columns.")
    twice = [name for at, name in enumerate(header) if name in header[:at]]
    if twice:
        raise UserError(f"{label} has two columns named {quoted(twice[0])}: give each column a name of its own.")
    file.seek(0)
    try:
        frame = pl.read_csv(file, separator=separator, infer_schema=False)
    except pl.exceptions.PolarsError:
        frame = None
    if frame is not None and frame.columns == header and not (frame.height and frame.to_series(-1).null_count()):
        return frame
    rows = []
    for line, record in _records(file, separator, label):
        if len(record) != len(header):
            raise UserError(
                f"{label} is ragged: line {line} has {len(record)} field{'s' * (len(record) != 1)}, "
                f"and the first line names {len(header)} column{'s' * (len(header) != 1)}."
            )
        rows.append([cell or None for cell in record])
    return pl.DataFrame(rows[1:], schema=dict.fromkeys(header, pl.String), orient="row")


def _records(file: IO[bytes], separator: str, label: str) -> Generator[tuple[int, list[str]]]:
    """The lines that are not blank, header first, each with the number of the line on which it begins."""
    file.seek(0)
    text = TextIOWrapper(file, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=separator, strict=True)
    line = 1
    try:
        for record in reader:
            if record:
                yield line, record
            line = reader.line_num + 1
    except UnicodeDecodeError:
        raise UserError(f"{label} is not UTF-8 text: save it as UTF-8.") from None
    except csv.Error as error:
        raise UserError(f"{label} cannot be read at line {line}: {error}.") from None
    finally:
        text.detach()  # the file stays open


def write_table(table: Table, kind: TableFormat, file: IO[bytes], *, stream: bool) -> None:
    """Write the table; numbers are written such that the same numbers are read back."""
    try:
        if kind in TEXT_FORMATS:
            table.frame.write_csv(file, separator=_SEPARATOR[kind])
            return
        frame = _typed(table.frame) if table.format in TEXT_FORMATS else table.frame
        if kind is TableFormat.parquet:
            frame.write_parquet(file)
        else:  # the oldest layout of text columns, which every Arrow library reads
            write = frame.write_ipc_stream if stream else frame.write_ipc
            write(file, compat_level=pl.CompatLevel.oldest())
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{table.label} cannot be written as {_SPOKEN[kind]}: {_first_line(error)}.") from None


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    """The table of a text file with its columns of numbers as numbers; a code such as 007 stays a text."""
    columns = []
    for column in frame:
        values, wrong = _as_numbers(column)
        if column.dtype == pl.String and wrong is None:
            given = column.filter(values.is_not_nan()).str.strip_chars().str.to_lowercase()
            if given.len() and not given.str.contains(r"^[+-]?0\d").any():
                column = values.fill_nan(None)
                if given.str.contains(r"^[+-]?\d{1,15}$").all():  # so far float64 counts every integer
                    column = column.cast(pl.Int64)
                elif given.is_in(_TRUTH).all():
                    column = column.cast(pl.Boolean)
        columns.append(column)
    return pl.DataFrame(columns)


def check_column(table: Table, name: str, role: Role) -> None:
    """Raise a mistake that names the closest column if there is none of this name."""
    if name not in table.frame.columns:
        near = quoted(closest(name, table.frame.columns))
        raise UserError(f"{table.label} has no column {quoted(name)} for a {role.name}; the closest is {near}.")


def numeric_columns(frame: pl.DataFrame) -> list[str]:
    """The names of the columns that hold numbers, gaps and truth values among them, and something at all."""
    converted = {column.name: _as_numbers(column) for column in frame}
    return [name for name, (values, wrong) in converted.items() if wrong is None and not values.is_nan().all()]


def numbers(table: Table, roles: Mapping[str, Role], *, first_row: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The columns named by `roles` as finite numbers, array (rows, columns); else a mistake that says where.

    `first_row` is the number of the frame's first row in its file: rows count from 0.
    """
    for name, role in roles.items():
        check_column(table, name, role)
    result = np.empty((table.frame.height, len(roles)), order="F")
    for at, (name, role) in enumerate(roles.items()):
        column = table.frame.get_column(name)
        values, wrong = _as_numbers(column)
        if wrong is not None:
            raise _not_numeric(table, role, name, first_row + wrong, column[wrong])
        result[:, at] = values.to_numpy()
    for found, what in ((np.isnan(result), "missing"), (np.isinf(result), "infinite")):
        if found.any():
            rows = np.unique(found.nonzero()[0]) + first_row
            columns = [quoted(name) for name, hit in zip(roles, found.T, strict=True) if hit.any()]
            raise UserError(
                f"{table.label} has {what} values in {listed(columns)}, "
                f"in row{'s' * (rows.size != 1)} {listed(rows)} (counted from 0): fill them in, or remove the rows."
            )
    return result


def _as_numbers(column: pl.Series) -> tuple[pl.Series, int | None]:
    """The column as numbers, NaN where missing, and the first row that holds something else (None: there is none)."""
    kind = column.dtype
    if isinstance(kind, pl.Categorical | pl.Enum):
        column = column.cast(pl.String)
    elif kind.is_numeric() or kind in (pl.Boolean, pl.Null):
        return column.cast(pl.Float64).fill_null(float("nan")), None
    elif kind != pl.String:
        return pl.Series([], dtype=pl.Float64), int(column.is_not_null().arg_max() or 0)
    text = column.fill_null("").str.strip_chars()
    lower = text.str.to_lowercase()
    missing = lower.is_in(_MISSING)
    values = text.cast(pl.Float64, strict=False)
    wrong = values.is_null() & ~missing
    if wrong.any():
        truth = lower.is_in(_TRUTH) | missing
        if truth.all():
            values, wrong = (lower == "true").cast(pl.Float64), ~truth
    first = wrong.arg_max() if wrong.any() else None
    return values.zip_with(~missing, pl.Series([float("nan")])).fill_null(float("nan")), first


def _not_numeric(table: Table, role: Role, name: str, row: int, value: object) -> UserError:
    which = f"the {role.name} {quoted(name)} of {table.label}"
    sample = f"row {row} has {quoted(shortened(str(value)))}"
    if _is_time(value):
        return UserError(f"{which} holds times, not numbers: {sample}; count them first, in days since a start, say.")
    todo = f"choose another with {role.option}, or code it in numbers" if role.option else "the model needs numbers"
    return UserError(f"{which} is not numeric: {sample}; {todo}.")


def _is_time(value: object) -> bool:
    if not isinstance(value, str):
        return hasattr(value, "isoformat") or hasattr(value, "total_seconds")
    try:
        datetime.fromisoformat(value.strip())
    except ValueError:
        return False
    return True
