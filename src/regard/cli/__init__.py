"""The command `regard`: fit a data file, predict, explain and draw."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_EXTRA = {"matplotlib", "polars", "rich", "safetensors", "typer"}  # what `regard[cli]` brings


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status of the command: 0 done, 2 a user's mistake, 130 interrupted, 1 the reader of the output has left.

    `arguments` are the words after `regard`; those of this process if None.
    """
    try:
        from regard.cli.app import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        print(f'regard: the command needs {package}, which is missing: pip install "regard[cli]".', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
