"""Files in and out, `-` for the standard streams: checked before any work, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import IO

from regard.cli.mistakes import UserError, listed, quoted


class TableFormat(StrEnum):
    """How a table is stored."""

    csv = "csv"
    tsv = "tsv"
    parquet = "parquet"
    arrow = "arrow"


TEXT_FORMATS = (TableFormat.csv, TableFormat.tsv)


def table_format(name: str, stream: TableFormat | None) -> TableFormat:
    """The format of a table by the ending of its file's name; `stream` (CSV if None) for `-`."""
    if name == "-":
        return stream or TableFormat.csv
    ending = Path(name).suffix.lower().removeprefix(".")
    try:
        return TableFormat(ending)
    except ValueError:
        endings = listed([f".{known}" for known in TableFormat], last="or")
        raise UserError(f"the name {quoted(name)} does not tell its format: let it end in {endings}.") from None


def input_file(name: str) -> Path:
    """The path of a file that is there to be read."""
    path = Path(name)
    if path.is_dir():
        raise UserError(f"{quoted(name)} is a folder: give a file.")
    if not path.exists():
        raise UserError(f"there is no file {quoted(name)}.")
    return path


@dataclass(frozen=True)
class Output:
    """Where a result goes: a file that appears whole or not at all, or `-`, standard output."""

    name: str

    @classmethod
    def checked(cls, name: str, *, force: bool, text: bool, silent: bool = True) -> Output:
        """An output that can be written, found out before any work.

        Parameters
        ----------
        force : may it replace a file?
        text : is it fit to be shown on a terminal?
        silent : does nothing else go to standard output?
        """
        if name == "-":
            if not silent:
                raise UserError("--json and the output cannot both go to standard output: give -o a file.")
            if not text and sys.stdout.isatty():
                raise UserError("the output is not text to be shown on a terminal: give -o a file, or redirect it.")
            return cls(name)
        path = Path(name)
        if path.is_dir():
            raise UserError(f"{quoted(name)} is a folder: give -o a file.")
        if not path.parent.is_dir():
            raise UserError(
                f"there is no folder {quoted(path.parent)} to write {quoted(path.name)} into: create it first."
            )
        if path.is_file() and not force:
            raise UserError(f"{quoted(name)} exists: give -o another name, or replace it with --force.")
        return cls(name)

    def write(self, fill: Callable[[IO[bytes]], object]) -> None:
        """Let `fill` write the bytes; if it fails, or is interrupted, what stood there before still stands there."""
        path = Path(self.name).resolve()  # through a link, to the file that it names
        if self.name == "-" or (path.exists() and not path.is_file()):  # a stream or a device cannot be replaced
            whole = BytesIO()
            fill(whole)
            if self.name == "-":
                rest = whole.getbuffer()
                while rest:  # unbuffered (python -u), a write may take a part only
                    rest = rest[sys.stdout.buffer.write(rest) :]
                sys.stdout.buffer.flush()
            else:
                path.write_bytes(whole.getbuffer())
            return
        part = path.with_name(f".regard-{secrets.token_hex(8)}.part")  # beside it: a rename never crosses a disk
        try:
            with part.open("xb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, part)
            part.replace(path)
        except BaseException:  # Ctrl-C too
            part.unlink(missing_ok=True)
            raise
